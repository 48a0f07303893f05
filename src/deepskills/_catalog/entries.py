"""Entries of a catalog, and what each SKILL.md says, parsed once per content.

`SkillEntry` is what the rest of the library knows of a skill before it is loaded. `Readings` remembers files by path
and digest: an unchanged file is parsed once per process, and the digest is also how a changed file is noticed and how
a claim in state is checked (see `catalog.py`).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Any, Literal, TypeAlias

from deepskills._catalog.search import beginning_of
from deepskills._io.cache import BoundedCache, size_of
from deepskills._skillmd.problems import problem
from deepskills._skillmd.read import read_skill
from deepskills._skillmd.yaml import as_flag
from deepskills._types import ORIGIN_KEY, POWERS_KEY, SkillMetadata, SkillOrigin, SkillProblem, SkillSummary

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
    """Frontmatter that the library or an extension acts on: text, lists and mappings, bounded in size."""

    sha256: str = ""
    """SHA-256 of its `SKILL.md` as this process read it, 64 hexadecimal digits; empty if only a summary was read."""

    is_read: bool = True
    """Whether this process has read the file; if not, nobody can tell what the skill allows, forbids or asks for."""

    beginning: bytes = field(default=b"", compare=False, repr=False)
    """Headings and the beginning of the instructions, for search; empty where they were not read."""

    @property
    def origin(self) -> SkillOrigin | None:
        """Where a skill that was served from elsewhere came from; such a skill grants itself nothing."""
        origin: SkillOrigin | None = self.frontmatter.get(ORIGIN_KEY)
        return origin

    @property
    def is_dynamic(self) -> bool:
        """Whether nobody can tell what is in its files."""
        return self.origin is not None and self.origin["dynamic"]

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
        return as_flag(self.frontmatter.get("disable-model-invocation"))

    @property
    def is_user_invocable(self) -> bool:
        """Whether its author lets the user start it by a slash command."""
        return as_flag(self.frontmatter.get("user-invocable"), default=True)


# Files that were read, remembered by content.

MAX_REMEMBERED_BYTES = 128_000_000
"""How much of parsed files is remembered: metadata, kept frontmatter and problems, never their text."""

MAX_KEPT_CHARACTERS = 8_192
"""How much of a skill's frontmatter is kept with its entry."""

TAG_KEYS = ("tags", "keywords", "triggers")
"""Frontmatter keys, at the top or in `metadata`, whose words a skill is found by."""

KEPT_KEYS = frozenset(
    {
        *TAG_KEYS,
        "argument-hint",
        "arguments",
        "disable-model-invocation",
        "user-invocable",
        "when_to_use",
    }
)
"""Frontmatter keys that the library acts on."""

INCLUDE_TOOLS = "include_tools"
"""The metadata key by which a skill names its tools."""

POWER_KEYS = frozenset({"allowed-tools", "hooks", "model", "context", "agent"})
"""Frontmatter keys by which a skill asks for powers; those of a served skill are set aside until they are granted."""

_TEXT_BYTES = 100
"""What a text takes beside its characters, with its place in a list or mapping."""

_OVERHEAD = 600
"""What a reading, its entries and its place in a cache take beside texts and containers."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one file says. Shared by whoever asks; nobody may change it."""

    metadata: SkillMetadata | None
    problems: tuple[SkillProblem, ...]
    digest: str
    frontmatter: Mapping[str, Any]
    beginning: bytes = b""
    """Headings and the beginning of the instructions, for search."""
    sha256: str = ""
    """SHA-256 of the whole file; empty if only a part of it was read."""
    entries: dict[tuple[str, str], SkillEntry] = field(default_factory=dict, compare=False)
    """The entry of each source that gave the file, and its name there: one object while the file is unchanged."""


class Readings:
    """Reads files and remembers what they say, by path and content; bounded, safe to share by threads."""

    def __init__(self, further_keys: Iterable[str] = (), *, for_search: bool = True) -> None:
        self._for_search = for_search
        self.keys = KEPT_KEYS | set(further_keys)
        """The frontmatter keys that are kept."""
        self._remembered: BoundedCache[tuple[str, str], Reading] = BoundedCache(MAX_REMEMBERED_BYTES, _weigh)
        self._parsed: BoundedCache[tuple[str, str], Reading] = BoundedCache(MAX_REMEMBERED_BYTES, _weigh)

    def read(self, path: str, content: bytes) -> Reading:
        """Return what a file says."""
        digest = digest_of(content)
        return self._remembered.get_or_make((path, digest), lambda: self._made(path, content, digest, is_whole=True))

    def read_as(self, path: str, content: bytes, digest: str) -> Reading:
        """Return what a file of a store says, whose digest is known; `content` may be its frontmatter alone."""
        return self._remembered.get_or_make((path, digest), lambda: self._shared(path, content, digest))

    def _shared(self, path: str, content: bytes, digest: str) -> Reading:
        # Users of one store have their own paths to the same file; its text is parsed once for all of them.
        shared = (path.rpartition("/")[0].rpartition("/")[2], digest)
        return _moved(self._parsed.get_or_make(shared, lambda: self._made(path, content, digest)), path)

    def read_once(self, path: str, content: bytes) -> Reading:
        """Return what a file says, and remember nothing: nobody finds it again by a digest that state claims."""
        return self._made(path, content, digest_of(content))

    def read_served(self, summary: SkillSummary) -> Reading:
        """Return what a served skill says, under its name here; the same text from elsewhere is another skill."""
        key = (summary.path, summary.digest)
        reading = self._remembered.get_or_make(key, lambda: self._named(summary))
        if reading.metadata is not None and reading.metadata["name"] != summary.name:
            # A skill's name here depends on the skills beside it.
            reading = self._named(summary)
            self._remembered.put(key, reading)
        return reading

    def _named(self, summary: SkillSummary) -> Reading:
        reading = self._made(summary.path, summary.frontmatter, summary.digest)
        metadata = reading.metadata
        # What a server asks for is set aside, not dropped: a human may grant it (`with_powers`).
        kept = {key: value for key, value in reading.frontmatter.items() if key not in POWER_KEYS}
        powers = {key: value for key, value in reading.frontmatter.items() if key in POWER_KEYS}
        if metadata is not None:
            further = {key: text for key, text in metadata["metadata"].items() if key != INCLUDE_TOOLS}
            powers |= {key: text for key, text in metadata["metadata"].items() if key == INCLUDE_TOOLS}
            powers |= {"allowed-tools": metadata["allowed_tools"]} if metadata["allowed_tools"] else {}
            name = summary.name or metadata["name"]
            metadata = SkillMetadata(**{**metadata, "name": name, "allowed_tools": [], "metadata": further})
        kept |= {ORIGIN_KEY: summary.origin, POWERS_KEY: powers}
        return replace(reading, metadata=metadata, frontmatter=kept, entries={})

    def recall(self, path: str, digest: str) -> Reading | None:
        """Return what a file of this digest says, if this process has read it."""
        return self._remembered.get((path, digest))

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
                skill, source, reading.digest, reading.frontmatter, reading.sha256, beginning=reading.beginning
            )
            # `setdefault`: two threads may make it at the same time, and both must get the same one.
            entry = reading.entries.setdefault((source, name), made)
        return entry

    def _made(self, path: str, content: bytes, digest: str, *, is_whole: bool = False) -> Reading:
        reading = read_skill(content, path=path)
        kept: dict[str, Any] = {}
        if not self.keys.isdisjoint(reading.frontmatter):
            kept = {key: value for key, value in reading.frontmatter.items() if key in self.keys and value is not None}
        problems = tuple(reading.problems)
        # The largest goes first, so that one bloated key does not cost the others. Entries stay in memory for every
        # skill.
        while kept and _size(kept) > MAX_KEPT_CHARACTERS:
            largest = max(kept, key=lambda key: _size(kept[key]))
            del kept[largest]
            problems = (*problems, problem(path, "frontmatter-key-too-large", key=largest))
        beginning = beginning_of(reading.body) if self._for_search else b""
        # Only over a whole file: locks compare it with what lies on disk.
        sha256 = hashlib.sha256(content).hexdigest() if is_whole else ""
        return Reading(reading.metadata, problems, digest, kept, beginning, sha256)


def _moved(reading: Reading, path: str) -> Reading:
    """Return what the same file says at this path, in a directory of the same name."""
    if reading.metadata is not None and reading.metadata["path"] == path:
        return reading
    metadata = None if reading.metadata is None else reading.metadata.copy()
    problems = tuple(found.copy() for found in reading.problems)
    for item in (metadata, *problems):
        if item is not None:
            item["path"] = path
    return Reading(metadata, problems, reading.digest, reading.frontmatter, reading.beginning, reading.sha256)


def digest_of(content: bytes) -> str:
    """Return the digest by which a changed file is noticed."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _weigh(reading: Reading) -> int:
    """Return what a reading keeps alive. A stranger chooses which part of a file is large, so all of them count."""
    weight = _OVERHEAD + len(reading.beginning)
    # Most files have neither.
    if reading.frontmatter or reading.problems:
        weight += size_of(reading.frontmatter) + size_of(reading.problems)
    skill = reading.metadata
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
