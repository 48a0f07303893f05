"""The catalog: the skills that discovery found, and what it takes to believe a catalog that comes back from state.

Theory of operation
-------------------

A run ends and the next one begins, perhaps in another process. Listing the sources again each time would be correct
and slow, so state names the catalog that discovery found, by a fingerprint: a digest over what lies where and over
each file's own digest. But state is not ours alone: a caller may write any `skills_catalog`, a checkpoint may be
edited, a thread may be copied from another user. A catalog grants power (which files are read as instructions, which
tools become callable, what a user may start), so two questions are asked about what state holds:

1. *Did this process make that catalog?* `Catalogs.made` keeps each catalog that discovery produced, per backend,
   under its fingerprint, which covers the frontmatter keys that were kept for it. Then it is the very object that was
   made, and nothing that state says about it counts (`believed`). Otherwise the sources are listed again.
2. *If a source cannot be listed, what may still be shown?* `claimed` takes the skills of that source from
   `skills_metadata`, if that is the copy which the record names, without their powers: no tools, no frontmatter
   except keys that only restrict (a lie there can hide a skill, never reveal one). So a source that is down keeps the
   names it had, until a look at it decides.

Three rules keep this right. First, nothing is ever believed because of what it says about itself; only the memory of
this process counts, and that is keyed by digests. Second, memory is per backend, or per thread where it holds what a
look found (`put_found`), because two users' states may hold the same record while only one may see those skills.
Third, an entry that only state vouches for says so (`is_read` is unset), and whoever grants something asks for that:
such an entry is shown, never obeyed.

`trust.py` asks these questions for a run, and decides in addition which *paths* may be read.
"""

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from deepskills._catalog.entries import INCLUDE_TOOLS, Readings, SkillEntry
from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._io.cache import BoundedCache, size_of
from deepskills._skillmd.names import meant, name_key
from deepskills._skillmd.text import is_text
from deepskills._skillmd.yaml import as_text
from deepskills._types import ORIGIN_KEY, SKILL_FILE, CatalogRecord, SkillMetadata, SkillOrigin, SkillProblem

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_REMEMBERED_BYTES = 48_000_000
"""About how much memory the catalogs of a backend may take, besides the entries that they share."""

MAX_FOUND_BYTES = 48_000_000
"""How much memory may be taken by catalogs that were found on threads whose state names another."""

_ENTRY_BYTES = 500
"""What an entry takes in the tables of a catalog, with its place in the tables by name."""

_RESTRICTING = ("disable-model-invocation", "user-invocable")
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ROWS_AT_ONCE = 50


_serials = itertools.count()


class Catalog:
    """The skills that were found, one per name, with the sources they came from. Never changes."""

    def __init__(
        self, entries: Iterable[SkillEntry] = (), sources: Iterable[Source] = (), fingerprint: str | None = None
    ) -> None:
        self.entries = tuple(entries)
        self.sources = tuple(sources)
        self.fingerprint = fingerprint or fingerprint_of(self.entries, self.sources)
        self.serial = next(_serials)
        """A number that is never used again: whatever is worked out from a catalog is cached under it."""

    @cached_property
    def by_name(self) -> Mapping[str, SkillEntry]:
        """The entries by exact name."""
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def _by_key(self) -> Mapping[str, SkillEntry]:
        # Reversed: of two names that differ only in case, the first in order is meant.
        return {name_key(entry.name): entry for entry in reversed(self.entries)}

    @cached_property
    def with_tools(self) -> Sequence[SkillEntry]:
        """The entries that name tools of their own."""
        return [entry for entry in self.entries if entry.skill["metadata"].get(INCLUDE_TOOLS)]

    @cached_property
    def record(self) -> CatalogRecord:
        """What state keeps of the catalog."""
        sources = [[source.path, source.label] for source in self.sources]
        restrictions = {
            entry.name: kept
            for entry in self.entries
            if (kept := {key: as_text(entry.frontmatter[key]) for key in _RESTRICTING if key in entry.frontmatter})
        }
        # By which `claimed` recognizes the list in `skills_metadata`, so that state holds it only once.
        copy = _digest_of_copy([entry.skill for entry in self.entries])
        record = CatalogRecord(sources=sources, fingerprint=self.fingerprint, copy=copy, restrictions=restrictions)
        origins = {entry.name: entry.origin for entry in self.entries if entry.origin is not None}
        if origins:
            record["origins"] = origins
        return record

    def find(self, asked: str) -> SkillEntry | None:
        """Return the skill that is meant by a name: exactly, in another case or form, or with marks around it."""
        exact = self.by_name.get(asked)
        if exact is not None:
            return exact
        return meant(self._by_key, asked)

    def is_of(self, sources: Sequence[Source]) -> bool:
        """Whether the skills came from exactly these sources."""
        # Labels too: they are shown in the section.
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
        # By value: state comes back from a checkpoint as other objects.
        return all(given == entry.skill for given, entry in zip(skills, self.entries, strict=True))


def fingerprint_of(entries: Iterable[SkillEntry], sources: Iterable[Source], keys: Iterable[str] = ()) -> str:
    """Return what identifies a catalog: what lies where, and which frontmatter was kept of it.

    A file's digest stands for everything that was read from it, so no description has to be hashed.
    """
    parts = [*sorted(keys), "", *(part for source in sources for part in (source.path, source.label)), ""]
    for entry in entries:
        parts += (entry.name, entry.path, entry.source, entry.digest)
    text = "\0".join(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest_of_copy(skills: Sequence[SkillMetadata]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # A few at a time: one call for all of them would keep every other thread from running meanwhile.
    for start in range(0, len(skills), _ROWS_AT_ONCE):
        digest.update(_ENCODER.encode(skills[start : start + _ROWS_AT_ONCE]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


_Made = BoundedCache[str, Catalog]
_made_on: "WeakKeyDictionary[object, _Made]" = WeakKeyDictionary()
_made_lock = threading.Lock()


def _weigh(catalog: Catalog) -> int:
    """Return what a catalog adds to the memory of a process; its entries are shared with the readings."""
    return _ENTRY_BYTES * (1 + len(catalog.entries))


def _made_for(owner: object) -> _Made:
    """Return the catalogs that this process has made on a backend, whichever middleware did."""
    with _made_lock:
        try:
            return _made_on.setdefault(owner, BoundedCache(MAX_REMEMBERED_BYTES, _weigh, size_of))
        except TypeError:  # It cannot be told apart for long; then each middleware knows its own alone.
            return BoundedCache(MAX_REMEMBERED_BYTES, _weigh, size_of)


# Believing a catalog: see the theory at the top.


class Catalogs:
    """The catalogs that a process has made, by fingerprint; bounded, safe to share by threads."""

    def __init__(self, readings: Readings, owner: object = None) -> None:
        self._readings = readings
        self._made = _made_for(owner if owner is not None else self)
        self._found: BoundedCache[tuple[str, str], Catalog] = BoundedCache(MAX_FOUND_BYTES, _weigh, size_of)

    def made(self, entries: Sequence[SkillEntry], sources: Sequence[Source]) -> Catalog:
        """Return the catalog of what discovery found; the same object as long as nothing changes."""
        fingerprint = fingerprint_of(entries, sources, self._readings.keys)
        # Question 1 must never be answered by what question 2 let in.
        if not all(entry.is_read for entry in entries):
            # Some of it is only what state claims: it serves this run, and is never taken for a catalog of ours.
            return Catalog(entries, sources)
        return self._made.get_or_make(fingerprint, lambda: Catalog(entries, sources, fingerprint))

    def believed(self, record: object) -> Catalog | None:
        """Return the catalog that state names, if this process has made it; `None` if it has to look for itself."""
        catalog = self._made.get(record_key(record))
        # All of the record, not its key alone: it holds the sources as well, so that a forged one cannot pass another
        # agent's catalog off as its own. What equals a record of ours needs no further check of its shape.
        return catalog if catalog is not None and catalog.record == record else None

    def put_found(self, thread_id: str, record: object, catalog: Catalog) -> None:
        """Remember what a look showed on a thread whose state holds something else, until the next run writes it.

        It stands for that thread alone: another user's state may hold the same record, and must not show these skills.
        """
        # Without a thread there is nobody to remember it for, and an empty id would be everybody's.
        if thread_id and (key := record_key(record)):
            self._found.put((thread_id, key), catalog)

    def found_for(self, thread_id: str, record: object) -> Catalog | None:
        """Return what a look showed on a thread with this in its state."""
        return self._found.get((thread_id, record_key(record))) if thread_id else None

    def claimed(self, record: object, copy: object) -> Catalog:
        """Return the catalog that state claims to have, without any power where this process has not read the file.

        It only fills in for a source that cannot be read now. `copy` is `skills_metadata`, which callers may write: it
        counts only if it is the copy that the record names.
        """
        # Question 1 first: what this process made needs no claims.
        believed = self.believed(record)
        if believed is not None:
            return believed
        known = _as_record(record)
        if known is None or not isinstance(copy, list) or not all(map(_is_skill, copy)):
            return Catalog()
        # A caller may have written the list: it must be the one that discovery wrote beside the record. Whoever forges
        # both gains names and descriptions, and nothing else (`_harmless`).
        if _digest_of_copy(copy) != known["copy"]:
            return Catalog()
        sources = [Source(path, label) for path, label in known["sources"]]
        restrictions, origins = known["restrictions"], known.get("origins", {})
        return Catalog(
            [
                _harmless(skill, sources, restrictions.get(name := skill["name"], {}), origins.get(name))
                for skill in copy
            ],
            sources,
        )


def _harmless(
    skill: SkillMetadata, sources: Sequence[Source], restrictions: Mapping[str, str], origin: SkillOrigin | None
) -> SkillEntry:
    """Return a skill that only state vouches for, without anything that would grant it power."""
    # Worked out from the path, not taken from state: the source decides what is trusted.
    under = [source.path for source in sources if lies_under(skill["path"], source.path)]
    harmless = {key: text for key, text in skill["metadata"].items() if key != INCLUDE_TOOLS}
    bare: SkillMetadata = {**skill, "allowed_tools": [], "metadata": harmless}
    kept: dict[str, object] = {**restrictions, ORIGIN_KEY: origin} if origin is not None else {**restrictions}
    # The last one, as in discovery the later source wins. No digest: nobody has read the file.
    return SkillEntry(bare, under[-1] if under else "", "", kept, is_read=False)


def record_key(record: object) -> str:
    """Return the fingerprint that a record in state claims; empty if there is none."""
    key = record.get("fingerprint") if isinstance(record, dict) else None
    return key if isinstance(key, str) else ""


def _as_record(record: object) -> CatalogRecord | None:
    """Return what state holds, if it has the shape of a record."""
    if not isinstance(record, dict):
        return None
    # Imported when state is read: the command line has no state, and pydantic would double the time it takes to start.
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return _record_type().validate_python(record)
    except ValidationError:
        return None


@cache
def _record_type() -> "TypeAdapter[CatalogRecord]":
    from pydantic import ConfigDict, TypeAdapter, with_config  # noqa: PLC0415

    strict = ConfigDict(strict=True, extra="forbid")
    with_config(strict)(SkillOrigin)
    return TypeAdapter(with_config(strict)(CatalogRecord))


def _copy(skill: SkillMetadata) -> SkillMetadata:
    copy = skill.copy()
    # Two levels: users may change what they are given, and the entry is shared by all threads.
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


# A catalog as it was last seen.

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
        # A remembered catalog is used as long as none of these places holds a file: a newcomer there might win the
        # name.
        folders = sorted({name for name in (folder, entry.name, entry.name.rpartition(":")[2]) if _may_be_folder(name)})
        sources = [source.path.rstrip("/") for source in self.catalog.sources]
        paths = dict.fromkeys(f"{source}/{name}/{SKILL_FILE}" for source in sources for name in folders)
        return [path for path in paths if path != entry.path and path not in self._losers]


def _may_be_folder(name: str) -> bool:
    return bool(name) and is_text(name) and not name.startswith(".") and not set(name) & set("/\\\x00")
