"""The catalog: what is known of each skill before it is loaded, and the skills of a run together.

`SkillEntry` is what the rest of the library knows of a skill. `Readings` remembers files by path and digest: an
unchanged file is parsed once per process, and the digest is also how a changed file is noticed and how a claim in state
is checked. `Catalog` holds the entries of a run, and `Catalogs` those that this process has made: the theory above them
says when a catalog that state names is trusted.
"""

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from sys import getsizeof
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary, ref

from deepskills._catalog.search import beginning_of
from deepskills._io.cache import BoundedCache, size_of
from deepskills._providers.base import SCHEME, ListedSkill, SkillProvider
from deepskills._providers.sources import Source
from deepskills._skillmd.checks import shorten_checks
from deepskills._skillmd.globs import patterns_of
from deepskills._skillmd.keys import (
    INVOCATION_FILE,
    POWER_KEYS,
    is_user_invocable,
    is_user_only,
    lets_models_start,
)
from deepskills._skillmd.names import find_meant, name_key
from deepskills._skillmd.problems import listed, problem
from deepskills._skillmd.read import SkillReading, read_fields, read_skill
from deepskills._types import CatalogRecord, SkillMetadata, SkillOrigin, SkillProblem

Visibility: TypeAlias = Literal["always", "on", "name-only", "user-only", "off"]
"""How visible a skill is in a run, from everything to nothing; by `"always"` an operator overrules its author."""

STRICTNESS: dict[str, int] = {"always": -1, "on": 0, "name-only": 1, "user-only": 2, "off": 3}
"""Visibilities in order; the strictest of several counts."""


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """One skill of a catalog."""

    skill: SkillMetadata
    """Its metadata: what the model reads about it before it is loaded."""

    source: str
    """Path of the source that gave it."""

    digest: str
    """Digest of its `SKILL.md` as discovery read it."""

    frontmatter: Mapping[str, Any] = field(default_factory=dict)
    """The whole frontmatter as read: text, lists and mappings, bounded in size."""

    sha256: str = ""
    """SHA-256 of its `SKILL.md` as this process read it, 64 hexadecimal digits; empty if only a summary was read."""

    is_read: bool = True
    """Whether this process has read the file; if not, it is unknown what the skill allows, forbids or asks for."""

    beginning: bytes = field(default=b"", compare=False, repr=False)
    """Headings and the beginning of the instructions, for search; empty where they were not read."""

    provided: ListedSkill | None = field(default=None, compare=False, repr=False)
    """The skill as its provider lists it; `None` if it lies in a directory, or only state knows of it."""

    origin: SkillOrigin | None = None
    """Where a skill of an untrusted provider came from; such a skill grants itself nothing."""

    asked: Mapping[str, Any] = field(default_factory=dict)
    """The frontmatter by which such a skill asks for powers: set aside here, so that a human may grant them."""

    @property
    def is_dynamic(self) -> bool:
        """Whether its files may differ with every read."""
        return self.origin is not None and self.origin["dynamic"]

    @property
    def has_directory(self) -> bool:
        """Whether file tools may lead to its files: not where it has an address alone."""
        return not self.path.startswith(SCHEME)

    @property
    def name(self) -> str:
        """The skill's name."""
        return self.skill["name"]

    @property
    def path(self) -> str:
        """Backend path of its `SKILL.md`."""
        return self.skill["path"]

    @property
    def description(self) -> str:
        """What the skill does and when to use it."""
        return self.skill["description"]

    @property
    def is_user_only(self) -> bool:
        """Whether its author lets only the user start it."""
        return is_user_only(self.frontmatter)

    @property
    def is_user_invocable(self) -> bool:
        """Whether its author lets the user start it by a slash command."""
        return is_user_invocable(self.frontmatter)


def include_names(entry: SkillEntry) -> list[str]:
    """Return the names that a skill lists for its tools."""
    return entry.skill["metadata"].get(INCLUDE_TOOLS, "").replace(",", " ").split()


# Files that were read, remembered by content.

MAX_REMEMBERED_BYTES = 128_000_000
"""How much of parsed files is remembered: metadata, kept frontmatter and problems, never their text."""

MAX_KEPT_CHARACTERS = 8_192
"""How much of a skill's frontmatter is kept with its entry."""

INCLUDE_TOOLS = "include_tools"
"""The metadata key by which a skill names its tools."""

MAX_BROUGHT = 10_000
"""How many entries from sub-agents are remembered."""

_TEXT_BYTES = 100
"""What a text takes beside its characters, with its place in a list or mapping."""

_OVERHEAD = 600
"""What a reading, its entries and its place in a cache take beside texts and containers."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one file says. Shared by all readers, and never changed."""

    metadata: SkillMetadata | None
    problems: tuple[SkillProblem, ...]
    digest: str
    frontmatter: Mapping[str, Any]
    beginning: bytes = b""
    """Headings and the beginning of the instructions, for search."""
    provided: ListedSkill | None = field(default=None, compare=False)
    """The skill as its provider lists it."""
    origin: SkillOrigin | None = None
    """Where it came from, if its provider is not trusted."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The frontmatter by which it asks for powers, if its provider is not trusted."""
    sha256: str = ""
    """SHA-256 of the whole file; empty if only a part of it was read."""
    entries: dict[tuple[str, str], SkillEntry] = field(default_factory=dict, compare=False)
    """The entry of each source that gave the file, and its name there: one object while the file is unchanged."""


class Readings:
    """Reads files and remembers what they say, by path and content; bounded, safe to share by threads."""

    def __init__(self, *, for_search: bool = True) -> None:
        self._for_search = for_search
        self.brought: BoundedCache[tuple[str, str], SkillEntry] = BoundedCache(MAX_BROUGHT, lambda _: 1)
        """Entries of skills in use in sub-agents, which may have been read by another middleware."""
        self._remembered: BoundedCache[tuple[str, str], Reading] = BoundedCache(MAX_REMEMBERED_BYTES, _weigh)

    def read(self, path: str, content: bytes, beside: bytes | None = None) -> Reading:
        """Return what a file says, together with the one beside it in which Codex keeps who may start the skill."""
        digest = digest_of(content)
        reading = self._remembered.get((path, digest))
        if reading is None:
            make = partial(self._parse, path, content, digest, is_whole=True)
            reading = self._remembered.get_or_make((path, digest), make)
        if beside is None:
            return reading
        key = (path, f"{digest}:{digest_of(beside)}")
        return self._remembered.get_or_make(key, partial(_read_beside, reading, path, beside))

    def read_once(self, path: str, content: bytes, beside: bytes | None = None) -> Reading:
        """Return what the files say, and remember nothing: no claim in state leads to it by a digest."""
        reading = self._parse(path, content, digest_of(content))
        return reading if beside is None else _read_beside(reading, path, beside)

    def read_listed(self, skill: ListedSkill, path: str, provider: SkillProvider, content: bytes | None) -> Reading:
        """Return what a provider says of a skill; `content` is its file, where it was read at once."""
        version = skill.version if content is None else digest_of(content)
        key = (path, f"listed:{version}")
        origin = None
        if not provider.trusted:
            origin = SkillOrigin(label=provider.label, uri=skill.key, via=provider.via, dynamic=skill.is_dynamic)
        known = self._remembered.get(key)
        # Compared as well: a provider may say something else of the same version, and another may not be trusted.
        if known is not None and known.provided == skill and known.origin == origin:
            return known
        listed = self._read_values(skill, path, version or "") if content is None else self.read(path, content)
        # A key is no directory, so no name has to be that of one.
        beside = {"name-directory-mismatch"}
        if skill.name.startswith(f"{provider.label}:"):
            # Of the right form here: the label tells it apart from those of others.
            beside.add("name-invalid")
        problems = tuple(found for found in listed.problems if found["code"] not in beside)
        reading = replace(listed, problems=problems, provided=skill, entries={})
        if origin is not None:
            reading = _without_powers(reading, origin)
        self._remembered.put(key, reading)
        return reading

    def _read_values(self, skill: ListedSkill, path: str, version: str) -> Reading:
        try:
            fields = {**skill.frontmatter, "name": skill.name, "description": skill.description}
            reading = read_fields(fields, path=path)
        except Exception as error:  # noqa: BLE001 - a provider's mapping may raise anything
            reason = f"its frontmatter cannot be read: {type(error).__name__}"
            return Reading(None, (problem(path, "provided-invalid", reason=reason),), version, {})
        return self._bound(reading, path, version, b"", "")

    def recall(self, path: str, digest: str) -> Reading | None:
        """Return what a file of this digest says, if this process has read it."""
        found = self._remembered.get((path, digest))
        if found is not None:
            return found
        # Of an untrusted skill the listing counts, not the file: what it asks for was set aside there.
        listed = self._remembered.get((path, f"listed:{digest}"))
        return listed if listed is not None and listed.origin is not None else None

    def entry(self, reading: Reading, source: str, name_of: Callable[[str], str] = str) -> SkillEntry:
        """Return the entry of a usable file, as one source gives it and calls it."""
        if reading.metadata is None:
            raise ValueError("a file without metadata is not an entry")
        name = name_of(reading.metadata["name"])
        # One object while the file is unchanged, shared by all catalogs: thousands of skills are not copied for each.
        entry = reading.entries.get((source, name))
        if entry is None:
            skill = reading.metadata
            if name != skill["name"]:
                skill = skill.copy()
                skill["name"] = name
            made = SkillEntry(
                skill,
                source,
                reading.digest,
                reading.frontmatter,
                reading.sha256,
                beginning=reading.beginning,
                provided=reading.provided,
                origin=reading.origin,
                asked=reading.asked,
            )
            # `setdefault`: two threads may make it at the same time, and both must get the same one.
            entry = reading.entries.setdefault((source, name), made)
        return entry

    def _parse(self, path: str, content: bytes, digest: str, *, is_whole: bool = False) -> Reading:
        reading = read_skill(content, path=path)
        beginning = beginning_of(reading.body) if self._for_search else b""
        # Only over a whole file: locks compare it with what lies on disk.
        sha256 = digest.removeprefix("sha256:") if is_whole else ""
        return self._bound(reading, path, digest, beginning, sha256)

    def _bound(self, reading: SkillReading, path: str, digest: str, beginning: bytes, sha256: str) -> Reading:
        # What the metadata has as well is held once.
        known: Mapping[str, Any] = reading.metadata or {}
        kept = {
            key: known[key] if key in known and known[key] == value else value
            for key, value in reading.frontmatter.items()
        }
        # Bounded on their own: all checks that count are kept.
        checks = {"checks": shorten_checks(kept.pop("checks"))} if "checks" in kept else {}
        problems = tuple(reading.problems)
        if not _is_short(kept):  # To measure takes time.
            too_large = _pop_largest(kept)
            if too_large:
                problems = (*problems, problem(path, "frontmatter-key-too-large", keys=listed(too_large)))
        return Reading(reading.metadata, problems, digest, {**kept, **checks}, beginning, sha256=sha256)


def _without_powers(reading: Reading, origin: SkillOrigin) -> Reading:
    """Return what a skill of an untrusted provider says; what it asks for is set aside, since a human may grant it."""
    metadata = reading.metadata
    kept = {key: value for key, value in reading.frontmatter.items() if key not in POWER_KEYS}
    powers = {key: value for key, value in reading.frontmatter.items() if key in POWER_KEYS}
    if metadata is not None:
        further = {key: text for key, text in metadata["metadata"].items() if key != INCLUDE_TOOLS}
        powers |= {key: text for key, text in metadata["metadata"].items() if key == INCLUDE_TOOLS}
        powers |= {"allowed-tools": metadata["allowed_tools"]} if metadata["allowed_tools"] else {}
        metadata = SkillMetadata(**{**metadata, "allowed_tools": [], "metadata": further})
    return replace(reading, metadata=metadata, frontmatter=kept, origin=origin, asked=powers)


def _read_beside(reading: Reading, path: str, content: bytes) -> Reading:
    try:
        if lets_models_start(content):
            return reading
    except ValueError as error:
        found = problem(path, "invocation-unreadable", reason=error)
        return replace(reading, problems=(*reading.problems, found), entries={})
    return replace(reading, frontmatter={**reading.frontmatter, INVOCATION_FILE: "user-only"}, entries={})


def says_the_same(skill: ListedSkill, content: bytes, path: str) -> bool:
    """Whether a file's frontmatter is what a provider listed of it."""
    if skill.version is None:
        return True  # The file itself was read, and its digest compared.
    read = read_skill(content, path=path).frontmatter
    listed = read_fields({**skill.frontmatter, "name": skill.name, "description": skill.description}, path=path)
    return read == listed.frontmatter


def digest_of(content: bytes) -> str:
    """Return the digest by which a changed file is noticed."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _is_short(frontmatter: Mapping[str, Any]) -> bool:
    """Whether frontmatter surely is far below the limit: a few short texts, lists and mappings of them, as is usual."""
    texts = [*frontmatter]
    for value in frontmatter.values():
        parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if not all(isinstance(part, str) for part in parts):
            return False
        texts += parts
    # What is left takes the quotes and the marks between the texts.
    return len("".join(texts)) + 8 * len(texts) < MAX_KEPT_CHARACTERS // 4


def _pop_largest(kept: dict[str, Any]) -> list[str]:
    """Take the largest keys out of frontmatter until the rest is within the limit, and return them.

    So one bloated key does not cost the others: entries stay in memory for every skill. Each key is measured once,
    since a file may have thousands.
    """
    sizes = {key: len(json.dumps({key: value}, ensure_ascii=False)) for key, value in kept.items()}
    together = sum(sizes.values())
    popped = []
    for key in sorted(sizes, key=lambda key: sizes[key], reverse=True):
        if together <= MAX_KEPT_CHARACTERS:
            break
        together -= sizes[key]
        del kept[key]
        popped.append(key)
    return popped


def _weigh(reading: Reading) -> int:
    """Return what a reading keeps alive. A stranger chooses which part of a file is large, so all of them count."""
    rare = sum(size_of(part) for part in (reading.problems, reading.asked) if part)
    return rare + _weigh_parts(reading.metadata, reading.frontmatter, reading.beginning)


def _weigh_parts(skill: SkillMetadata | None, frontmatter: Mapping[str, Any], beginning: bytes) -> int:
    weight = _OVERHEAD + len(beginning) + (size_of(frontmatter) if frontmatter else 0)
    if skill is not None:
        further, tools = skill["metadata"], skill["allowed_tools"]
        texts = [
            skill["path"],
            skill["name"],
            skill["description"],
            skill["license"] or "",
            skill["compatibility"] or "",
        ]
        texts += (*further, *further.values(), *tools)
        # All at once, because every file that is read is weighed: one wide character makes all of them count as wide.
        weight += getsizeof("".join(texts)) + _TEXT_BYTES * len(texts)
    return weight


# --------------------------------------------------------------------------------------------------------------------
# The catalog: the skills that discovery found, and what it takes to trust a catalog that state names.
#
# Theory of operation
# -------------------
#
# A run ends and the next one begins, perhaps in another process. Listing the sources again each time would be correct
# and slow, so state names the catalog that discovery found, by a fingerprint: a digest over what lies where and over
# each file's own digest. What a skill *is* comes from its source alone, so state is asked one question: did this
# process make that catalog? `Catalogs.remember` keeps each one that discovery produced, under its fingerprint, and
# `recognize` returns the very object that was made. Otherwise the sources are listed. A source that fails then keeps
# what the process knew of it; a process that knew nothing shows none of its skills until it works again, while what is
# loaded keeps its limits by its record (`Run.in_use`).
#
# Memory is per backend, or per invocation where it holds what a scan found (`SourceScan`): two users' states may hold
# the same record while only one may see those skills.
#
# `SourceScan` in `discovery.py` asks that question for a run, and decides in addition which *paths* may be read.
# --------------------------------------------------------------------------------------------------------------------


MAX_CATALOG_BYTES = 48_000_000
"""About how much memory the catalogs of a backend may take, with the entries in which each differs from the last."""

_ENTRY_BYTES = 500
"""What an entry takes in the tables of a catalog, with its place in the tables by name."""

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
        self.unshared = 0
        """How many bytes its entries take that the catalog before it did not have."""

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
    def with_paths(self) -> Sequence[SkillEntry]:
        """The entries that are shown only once a file was touched that their globs match."""
        return [
            entry for entry in self.entries if "paths" in entry.frontmatter and patterns_of(entry.frontmatter["paths"])
        ]

    @property
    def record(self) -> CatalogRecord:
        """What state keeps of the catalog."""
        return CatalogRecord(fingerprint=self.fingerprint)

    def find(self, asked: str) -> SkillEntry | None:
        """Return the skill that is meant by a name: exactly, in another case or form, or with marks around it."""
        exact = self.by_name.get(asked)
        if exact is not None:
            return exact
        return find_meant(self._by_key, asked)

    def is_of(self, sources: Sequence[Source]) -> bool:
        """Whether the skills came from exactly these sources."""
        return _identify(self.sources) == _identify(sources)

    def copy_skills(self) -> list[SkillMetadata]:
        """Return the metadata of all skills, for callers that keep or change it."""
        return [_copy(entry.skill) for entry in self.entries]

    def is_copied_in(self, skills: object) -> bool:
        """Whether a list holds the metadata of exactly these skills."""
        if not isinstance(skills, list) or len(skills) != len(self.entries):
            return False
        # By value: state comes back from a checkpoint as other objects.
        return all(given == entry.skill for given, entry in zip(skills, self.entries, strict=True))


def _identify(sources: Iterable[Source]) -> list[tuple[str, str, str]]:
    # Labels too: they are shown in the section.
    return [(source.path, source.label, source.namespace) for source in sources]


def fingerprint_of(entries: Iterable[SkillEntry], sources: Iterable[Source]) -> str:
    """Return what identifies a catalog: what lies where, and by which key its provider knows it.

    A file's digest stands for everything that was read from it, so no description has to be hashed.
    """
    parts = [*(part for source in _identify(sources) for part in source), ""]
    for entry in entries:
        if entry.provided is not None:
            further = entry.provided.key
        else:
            # It comes from another file.
            further = INVOCATION_FILE if INVOCATION_FILE in entry.frontmatter else ""
        parts += (entry.name, entry.path, entry.source, entry.digest, further)
    text = "\0".join(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_Made = BoundedCache[str, Catalog]
_made_on: "WeakKeyDictionary[object, _Made]" = WeakKeyDictionary()
_made_lock = threading.Lock()


def _weigh_catalog(catalog: Catalog) -> int:
    """Return what a catalog adds to the memory of a process; the newest is kept however much that is."""
    return min(MAX_CATALOG_BYTES, _ENTRY_BYTES * (1 + len(catalog.entries)) + catalog.unshared)


def _get_made_for(owner: object) -> _Made:
    """Return the catalogs that this process has made on a backend, whichever middleware did."""
    with _made_lock:
        try:
            return _made_on.setdefault(owner, BoundedCache(MAX_CATALOG_BYTES, _weigh_catalog, size_of))
        except TypeError:  # No weak reference to it is possible; then each middleware knows its own alone.
            return BoundedCache(MAX_CATALOG_BYTES, _weigh_catalog, size_of)


# Trusting a catalog: see the theory at the top.


class Catalogs:
    """The catalogs that a process has made, by fingerprint; bounded, safe to share by threads."""

    def __init__(self, owner: object = None) -> None:
        self._made = _get_made_for(owner if owner is not None else self)
        self._latest: Callable[[], Catalog | None] = lambda: None

    def remember(self, entries: Sequence[SkillEntry], sources: Sequence[Source]) -> Catalog:
        """Return the catalog of what discovery found; the same object as long as nothing changes."""
        fingerprint = fingerprint_of(entries, sources)
        made = self._made.get_or_make(fingerprint, lambda: self._make(entries, sources, fingerprint))
        # A provider may say something else of a skill whose digest is the same.
        if made.entries != tuple(entries) and any(entry.provided is not None for entry in entries):
            made = self._make(entries, sources, fingerprint)
            self._made.put(fingerprint, made)
        return made

    def _make(self, entries: Sequence[SkillEntry], sources: Sequence[Source], fingerprint: str) -> Catalog:
        made, latest = Catalog(entries, sources, fingerprint), self._latest()
        # What is the same in both is counted with neither. The first one is not worth weighing: it has no old versions.
        if latest is not None:
            known = set(map(id, latest.entries))
            others = (entry for entry in made.entries if id(entry) not in known)
            made.unshared = sum(_weigh_parts(entry.skill, entry.frontmatter, entry.beginning) for entry in others)
        self._latest = ref(made)
        return made

    def recognize(self, record: object) -> Catalog | None:
        """Return the catalog that state names, if this process has made it; `None` if it has to look for itself."""
        return self._made.get(record_key(record))


def record_key(record: object) -> str:
    """Return the fingerprint that a record in state claims; empty if there is none."""
    key = record.get("fingerprint") if isinstance(record, dict) else None
    return key if isinstance(key, str) else ""


def _copy(skill: SkillMetadata) -> SkillMetadata:
    copy = skill.copy()
    # Two levels: users may change what they are given, and the entry is shared by all threads.
    copy["metadata"] = skill["metadata"].copy()
    copy["allowed_tools"] = skill["allowed_tools"].copy()
    return copy
