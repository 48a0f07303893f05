"""What was read from `SKILL.md` files, remembered by content so that an unchanged file is parsed once per process."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepskills._backend.cache import BoundedCache
from deepskills._catalog.entries import SkillEntry
from deepskills._format.problems import problem
from deepskills._format.reading import read_skill
from deepskills._types import SkillMetadata, SkillProblem

MAX_REMEMBERED_CHARACTERS = 64_000_000
"""How much of parsed files is remembered, counted as the text of their metadata."""

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

_OVERHEAD = 600


@dataclass(frozen=True, slots=True)
class Reading:
    """What one file says. Shared by whoever asks; nobody may change it."""

    metadata: SkillMetadata | None
    problems: tuple[SkillProblem, ...]
    digest: str
    frontmatter: Mapping[str, Any]
    sha256: str = ""
    """SHA-256 of the whole file; empty if only a part of it was read."""
    entries: dict[str, SkillEntry] = field(default_factory=dict, compare=False)
    """The entry of each source that gave the file: one object while the file is unchanged."""


class Readings:
    """Reads files and remembers what they say, by path and content; bounded, safe to share by threads."""

    def __init__(self, further_keys: Iterable[str] = ()) -> None:
        self.keys = KEPT_KEYS | set(further_keys)
        """The frontmatter keys that are kept."""
        self._remembered: BoundedCache[tuple[str, str], Reading] = BoundedCache(MAX_REMEMBERED_CHARACTERS, _weigh)
        self._parsed: BoundedCache[tuple[str, str], Reading] = BoundedCache(MAX_REMEMBERED_CHARACTERS, _weigh)

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

    def recall(self, path: str, digest: str) -> Reading | None:
        """Return what a file of this digest says, if this process has read it."""
        return self._remembered.get((path, digest))

    def entry(self, reading: Reading, source: str) -> SkillEntry:
        """Return the entry of a usable file, as one source gives it."""
        if reading.metadata is None:
            raise ValueError("a file without metadata is not an entry")
        entry = reading.entries.get(source)
        if entry is None:
            made = SkillEntry(reading.metadata, source, reading.digest, reading.frontmatter, reading.sha256)
            entry = reading.entries.setdefault(source, made)
        return entry

    def _made(self, path: str, content: bytes, digest: str, *, is_whole: bool = False) -> Reading:
        reading = read_skill(content, path=path)
        kept = {key: value for key, value in reading.frontmatter.items() if key in self.keys and value is not None}
        problems = tuple(reading.problems)
        while kept and _size(kept) > MAX_KEPT_CHARACTERS:
            largest = max(kept, key=lambda key: _size(kept[key]))
            del kept[largest]
            problems = (*problems, problem(path, "frontmatter-key-too-large", key=largest))
        sha256 = hashlib.sha256(content).hexdigest() if is_whole else ""
        return Reading(reading.metadata, problems, digest, kept, sha256)


def _moved(reading: Reading, path: str) -> Reading:
    """Return what the same file says at this path, in a directory of the same name."""
    if reading.metadata is not None and reading.metadata["path"] == path:
        return reading
    metadata = None if reading.metadata is None else reading.metadata.copy()
    problems = tuple(found.copy() for found in reading.problems)
    for item in (metadata, *problems):
        if item is not None:
            item["path"] = path
    return Reading(metadata, problems, reading.digest, reading.frontmatter, reading.sha256)


def digest_of(content: bytes) -> str:
    """Return the digest by which a changed file is told."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _weigh(reading: Reading) -> int:
    skill = reading.metadata
    return _OVERHEAD + (len(skill["description"]) if skill is not None else 0)
