"""The catalog that is believed: made by discovery, kept in state as text, and worked out once per process.

State may be written by callers, so an entry that comes from state is taken only as far as this process has read the
same file with the same digest. What it has not read is stripped of everything that grants power.

A catalog as it was last seen: how long ago, and which new files would change whose name is whose. Pure.
"""

import hashlib
import json
import threading
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from deepskills._catalog.entries import Readings, SkillEntry
from deepskills._catalog.sources import Source, parent
from deepskills._io.cache import BoundedCache
from deepskills._skillmd.names import shown_name
from deepskills._skillmd.text import is_text, one_line
from deepskills._types import SKILL_FILE, CatalogRecord, SkillMetadata, SkillProblem

MAX_REMEMBERED_CHARACTERS = 128_000_000
"""How much text of catalogs a middleware remembers."""

MAX_REMEMBERED_CATALOGS = 4_096
"""How many catalogs of a backend a process knows to have made."""

MAX_FOUND_FOR_THREADS = 256
"""For how many threads a middleware remembers what it found where their state holds another catalog."""

INCLUDE_TOOLS = "include_tools"
"""The metadata key by which a skill names its tools."""

_MARKS = "*`'\"[](){}<> "
_RESTRICTING = ("disable-model-invocation", "user-invocable")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ROW = 4
_ROWS_AT_ONCE = 50
_CHARACTERS_OF_A_ROW = 250


class Catalog:
    """The skills that were found, one per name, with the sources they came from. Never changes."""

    def __init__(self, entries: Iterable[SkillEntry] = (), sources: Iterable[Source] = ()) -> None:
        self.entries = tuple(entries)
        self.sources = tuple(sources)

    @cached_property
    def by_name(self) -> Mapping[str, SkillEntry]:
        """The entries by exact name."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def _by_folded_name(self) -> Mapping[str, SkillEntry]:
        return {folded(entry.name): entry for entry in reversed(self.entries)}

    @cached_property
    def with_tools(self) -> Sequence[SkillEntry]:
        """The entries that name tools of their own."""
        return [entry for entry in self.entries if entry.skill["metadata"].get(INCLUDE_TOOLS)]

    @cached_property
    def record(self) -> CatalogRecord:
        """The catalog as state keeps it."""
        places = {source.path: position for position, source in enumerate(self.sources)}
        rows = [_row(entry, places.get(entry.source, -1)) for entry in self.entries]
        # A few rows at a time: one call for all of them would keep every other thread from running meanwhile.
        texts = [_ENCODER.encode(rows[start : start + _ROWS_AT_ONCE]) for start in range(0, len(rows), _ROWS_AT_ONCE)]
        sources = [[source.path, source.label] for source in self.sources]
        return CatalogRecord(sources=sources, entries=f"[{','.join(text[1:-1] for text in texts)}]")

    def find(self, asked: str) -> SkillEntry | None:
        """Return the skill that is meant by a name: exactly, in another case or form, or with marks around it."""
        exact = self.by_name.get(asked)
        if exact is not None:
            return exact
        bare = one_line(asked).strip(_MARKS)
        return self._by_folded_name.get(folded(asked)) or self._by_folded_name.get(folded(bare))

    def is_of(self, sources: Sequence[Source]) -> bool:
        """Whether the skills came from exactly these sources."""
        if [(own.path, own.label) for own in self.sources] != [(given.path, given.label) for given in sources]:
            return False
        # State keeps no namespaces; the names that they gave tell.
        prefixes = {given.path: f"{given.namespace}:" for given in sources if given.namespace}
        return not prefixes or all(e.name.startswith(prefixes.get(e.source, "")) for e in self.entries)

    def copy_skills(self) -> list[SkillMetadata]:
        """Return the metadata of all skills, for whoever wants to keep or change it."""
        return [_copy(entry.skill) for entry in self.entries]

    def is_copied_in(self, skills: object) -> bool:
        """Whether a list holds the metadata of exactly these skills."""
        if not isinstance(skills, list) or len(skills) != len(self.entries):
            return False
        return all(given == entry.skill for given, entry in zip(skills, self.entries, strict=True))


def folded(name: str) -> str:
    """Return a name as it is compared: as it is shown, in one case and one Unicode form."""
    shown = shown_name(name)
    return shown.casefold() if shown.isascii() else unicodedata.normalize("NFC", shown).casefold()


def meant_name(names: Iterable[str], asked: str) -> str | None:
    """Return the one of a few names that was asked for, exactly, in another case or form, or with marks around it."""
    by_folded = {folded(name): name for name in names}
    bare = one_line(asked).strip(_MARKS)
    return by_folded.get(folded(asked)) or by_folded.get(folded(bare))


_Made = BoundedCache[bytes, bool]
_made_on: "WeakKeyDictionary[object, _Made]" = WeakKeyDictionary()
_made_lock = threading.Lock()


def _made_for(owner: object) -> _Made:
    """Return the digests of the catalogs that this process has made on a backend, whichever middleware did."""
    with _made_lock:
        try:
            return _made_on.setdefault(owner, BoundedCache(MAX_REMEMBERED_CATALOGS))
        except TypeError:  # It cannot be told apart for long; then each middleware knows its own alone.
            return BoundedCache(MAX_REMEMBERED_CATALOGS)


class Catalogs:
    """The catalogs that a process has made or checked, by their text; bounded, safe to share by threads."""

    def __init__(self, readings: Readings, owner: object = None) -> None:
        self._readings = readings
        self._made = _made_for(owner if owner is not None else self)
        self._by_text: BoundedCache[tuple[object, ...], Catalog] = BoundedCache(
            MAX_REMEMBERED_CHARACTERS, lambda catalog: len(catalog.record["entries"]) + 1
        )
        self._found: BoundedCache[tuple[object, ...], Catalog] = BoundedCache(MAX_FOUND_FOR_THREADS)
        self._by_entries: BoundedCache[tuple[object, ...], Catalog] = BoundedCache(
            MAX_REMEMBERED_CHARACTERS, lambda catalog: len(catalog.record["entries"]) + 1
        )

    def made(self, entries: Sequence[SkillEntry], sources: Sequence[Source]) -> Catalog:
        """Return the catalog of what discovery found; the same object as long as nothing changes."""
        key = (tuple(map(id, entries)), tuple(sources))
        return self._by_entries.get_or_make(key, lambda: self._newly_made(entries, sources))

    def _newly_made(self, entries: Sequence[SkillEntry], sources: Sequence[Source]) -> Catalog:
        catalog = Catalog(entries, sources)
        if all(entry.is_read for entry in entries):
            self._made.put(self._digest(catalog.record), value=True)
        self._by_text.put(_key(catalog.record) or (), catalog)
        return catalog

    def recalled(self, record: object) -> Catalog | None:
        """Return the catalog that state holds, if it was worked out and believed before."""
        key = _key(record)
        return self._by_text.get(key) if key is not None else None

    def put_found(self, thread_id: str, record: object, catalog: Catalog) -> None:
        """Remember what a look showed on a thread whose state holds something else, until the next run writes it.

        It stands for that thread alone: another user's state may hold the same text, and must not show these skills.
        """
        if thread_id and (key := _key(record)) is not None:
            self._found.put((thread_id, *key), catalog)

    def found_for(self, thread_id: str, record: object) -> Catalog | None:
        """Return what a look showed on a thread with this in its state."""
        key = _key(record)
        return self._found.get((thread_id, *key)) if thread_id and key is not None else None

    def believed(self, record: object) -> Catalog | None:
        """Return the catalog that state holds, if this process made it, or has read every file of it."""
        catalog, is_read = self._judged(record)
        return catalog if is_read else None

    def claimed(self, record: object) -> Catalog:
        """Return the catalog that state holds, without powers where this process has not read the file."""
        catalog, _is_read = self._judged(record)
        return catalog or Catalog()

    def _judged(self, record: object) -> tuple[Catalog | None, bool]:
        """Return the catalog that state holds, and whether it can be believed."""
        key = _key(record)
        if key is None:
            return None, False
        known = self._by_text.get(key)
        if known is not None:
            return known, True
        was_made = self._made.get(self._digest(record)) is not None
        catalog, is_read = self._parsed(record, trusts=was_made)
        if catalog is None or not is_read:
            return catalog, is_read
        worked_out = catalog
        return self._by_text.get_or_make(key, lambda: worked_out), True

    def _digest(self, record: object) -> bytes:
        """Return what a catalog is known by in this process: its text, and which frontmatter was kept for it."""
        text, sources = _key(record) or ("", ())
        known = json.dumps([sources, sorted(self._readings.keys)]).encode()
        return hashlib.blake2b(str(text).encode(), digest_size=16, key=hashlib.sha256(known).digest()).digest()

    def _parsed(self, record: object, *, trusts: bool = False) -> tuple[Catalog | None, bool]:
        key = _key(record)
        if key is None:
            return None, False
        try:
            rows = json.loads(str(key[0]))
        except (ValueError, RecursionError):
            return None, False
        sources = [Source(path, label) for path, label in record["sources"]]  # type: ignore[index]
        if not isinstance(rows, list):
            return None, False
        entries: dict[str, SkillEntry] = {}
        is_read = True
        for row in rows:
            entry, was_read = self._entry(row, sources, trusts=trusts)
            if entry is None:
                return None, False
            is_read &= was_read
            entries[entry.name] = entry
        return Catalog(entries.values(), sources), is_read

    def _entry(self, row: object, sources: Sequence[Source], *, trusts: bool) -> tuple[SkillEntry | None, bool]:
        """Return a row's entry: what this process read of that file in that source, else the row without its powers."""
        if not isinstance(row, list) or len(row) != _ROW or not _is_skill(row[0]) or not _are_text(row[2:3]):
            return None, False
        skill, place, digest, frontmatter = row
        if not isinstance(place, int) or not -1 <= place < len(sources):
            return None, False
        source = sources[place].path if place >= 0 else ""
        reading = self._readings.recall(skill["path"], digest)
        known = reading.entries.get((source, skill["name"])) if reading is not None else None
        if known is not None:
            return known, True
        if trusts:
            return SkillEntry(skill, source, digest, frontmatter), True
        frontmatter = frontmatter if isinstance(frontmatter, dict) else {}
        kept = {key: frontmatter[key] for key in _RESTRICTING if key in frontmatter}
        harmless = {key: text for key, text in skill["metadata"].items() if key != INCLUDE_TOOLS}
        bare: SkillMetadata = {**skill, "allowed_tools": [], "metadata": harmless}  # type: ignore[typeddict-item]
        return SkillEntry(bare, source, digest, kept, is_read=False), False


def _key(record: object) -> tuple[object, ...] | None:
    """Return what a catalog in state is known by; `None` if it is not one."""
    if not isinstance(record, dict) or record.keys() != CatalogRecord.__annotations__.keys():
        return None
    sources, text = record["sources"], record["entries"]
    if not isinstance(text, str) or not isinstance(sources, list):
        return None
    if not all(isinstance(pair, list) and len(pair) == 2 and _are_text(pair) for pair in sources):  # noqa: PLR2004
        return None
    return text, tuple(map(tuple, sources))


def row_count(record: object) -> int:
    """Return about how many skills have to be worked out to judge what state holds."""
    key = _key(record)
    return len(str(key[0])) // _CHARACTERS_OF_A_ROW if key is not None else 0


def _row(entry: SkillEntry, place: int) -> list[Any]:
    return [entry.skill, place, entry.digest, entry.frontmatter]


def _copy(skill: SkillMetadata) -> SkillMetadata:
    copy = skill.copy()
    copy["metadata"] = skill["metadata"].copy()
    copy["allowed_tools"] = skill["allowed_tools"].copy()
    return copy


def _is_skill(item: object) -> bool:
    if not isinstance(item, dict) or item.keys() != SkillMetadata.__annotations__.keys():
        return False
    optional = (item["license"], item["compatibility"])
    further, tools = item["metadata"], item["allowed_tools"]
    return (
        _are_text([item["path"], item["name"], item["description"], *(text for text in optional if text is not None)])
        and isinstance(further, dict)
        and _are_text([*further, *further.values()])
        and isinstance(tools, list)
        and _are_text(tools)
    )


def _are_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


# A catalog as it was last seen: how long ago, and which new files would change whose name is whose. Pure.


_LOSERS = frozenset({"skill-shadowed", "skill-duplicate"})


@dataclass(frozen=True)
class Remembered:
    """What a look at all sources found, and when."""

    catalog: Catalog
    problems: Sequence[SkillProblem]
    seen: float = field(default_factory=time.monotonic)

    def is_younger_than(self, seconds: float) -> bool:
        """Whether the look was that recent."""
        return time.monotonic() - self.seen < seconds

    @cached_property
    def _losers(self) -> frozenset[str]:
        return frozenset(found["path"] for found in self.problems if found["code"] in _LOSERS)

    def rivals(self, entry: SkillEntry) -> list[str]:
        """Return where a skill of the same name would usually lie if it had come since, in each source."""
        folder = parent(entry.path).rpartition("/")[2]
        folders = sorted({name for name in (folder, entry.name, entry.name.rpartition(":")[2]) if _may_be_folder(name)})
        sources = [source.path.rstrip("/") for source in self.catalog.sources]
        paths = dict.fromkeys(f"{source}/{name}/{SKILL_FILE}" for source in sources for name in folders)
        return [path for path in paths if path != entry.path and path not in self._losers]


def _may_be_folder(name: str) -> bool:
    return bool(name) and is_text(name) and not name.startswith(".") and not set(name) & set("/\\\x00")
