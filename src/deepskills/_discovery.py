"""Plans: sources to a catalog of skills and the problems on the way."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deepskills._frontmatter import as_text
from deepskills._plan import Entry, Failed, File, ListDirectory, Listing, Plan, is_missing_error, read_files
from deepskills._problems import problem, quoted
from deepskills._skillmd import SkillReading, read_skill
from deepskills._sources import PASSED_OVER, Source, distinct, lies_under, parent
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, CatalogRecord, SkillMetadata, SkillProblem

MAX_REMEMBERED_FILES = 16_384
"""How many parsed files a middleware remembers."""

MAX_INCOMPLETE = 100
"""How many directories of a source that could not be listed are named, each in a problem of its own."""

SOURCE_ERRORS = frozenset({"sources-failed", "source-failed", "source-incomplete"})
"""Codes of problems that are about a whole source; it is tried again at the next run."""

TAG_FIELDS = ("tags", "keywords", "triggers")
"""Frontmatter keys, at the top or in `metadata`, whose words a skill is found by."""

Led = Mapping[str, Collection[str]]
"""For a source, the directories that its listing led to outside of it."""

SkillReader = Callable[[str, bytes], tuple[SkillMetadata | None, list[SkillProblem]]]
"""Turns a path and a file's content into metadata and problems."""


@dataclass(frozen=True)
class Known:
    """What an earlier discovery on this thread found."""

    skills: Sequence[SkillMetadata] = ()
    origins: Led = field(default_factory=dict)

    def by_source(self, sources: Sequence[Source]) -> dict[str, list[SkillMetadata]]:
        """Return the skills that each source gave; where one source lies inside another, the inner gave it."""
        given: dict[str, list[SkillMetadata]] = {source.path: [] for source in sources}
        innermost = sorted(sources, key=lambda source: len(source.path), reverse=True)
        origins = {source: frozenset(directories) for source, directories in self.origins.items()}
        for skill in self.skills:
            owner = next((source for source in innermost if _gave(source, skill["path"], origins)), None)
            if owner is not None:
                given[owner.path].append(skill)
        return given


@dataclass(frozen=True)
class Catalog:
    """What discovery found."""

    skills: list[SkillMetadata]
    problems: list[SkillProblem]
    sources: list[Source]
    origins: Led
    unsure: list[Source]
    """Sources that failed in part or in whole: what they no longer show may still be there."""

    def record(self, tags: dict[str, str]) -> CatalogRecord:
        """Return what state keeps to know this catalog again, and by which further words to find its skills."""
        return CatalogRecord(
            digest=catalog_digest(self.skills),
            sources=[[source.path, source.label] for source in self.sources],
            tags=tags,
        )


class SkillCache:
    """Reads `SKILL.md` files and remembers the readings by path and content; bounded, safe to share by threads."""

    def __init__(self, size: int = MAX_REMEMBERED_FILES) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._remembered: OrderedDict[tuple[str, bytes], _Remembered] = OrderedDict()
        self._latest: dict[str, _Remembered] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillCache":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return SkillCache(self._size)

    def read(self, path: str, content: bytes) -> tuple[SkillMetadata | None, list[SkillProblem]]:
        """Return the metadata and problems of a file; the caller owns what it gets."""
        key = (path, hashlib.blake2b(content, digest_size=16).digest())
        with self._lock:
            remembered = self._remembered.get(key)
            if remembered is not None:
                self._remembered.move_to_end(key)
        if remembered is None:
            remembered = _Remembered.of(read_skill(content, path=path))
        with self._lock:
            self._remembered[key] = remembered
            self._latest[path] = remembered
            while len(self._remembered) > self._size:
                (gone, _digest), old = self._remembered.popitem(last=False)
                if self._latest.get(gone) is old:
                    del self._latest[gone]
        return remembered.copy()

    def tags(self, skills: Iterable[SkillMetadata]) -> dict[str, str]:
        """Return the words that skills are found by and that their metadata does not hold, by path."""
        with self._lock:
            latest = {skill["path"]: self._latest.get(skill["path"]) for skill in skills}
        return {path: found.tags for path, found in latest.items() if found is not None and found.tags}


@dataclass(frozen=True)
class _Remembered:
    """What is kept of a file that was read."""

    metadata: SkillMetadata | None
    problems: list[SkillProblem]
    tags: str

    @classmethod
    def of(cls, reading: SkillReading) -> "_Remembered":
        tags = " ".join(as_text(reading.frontmatter.get(name)) for name in TAG_FIELDS)
        return cls(reading.metadata, reading.problems, tags.strip())

    def copy(self) -> tuple[SkillMetadata | None, list[SkillProblem]]:
        return (_copy(self.metadata) if self.metadata is not None else None), list(self.problems)


def _copy(skill: SkillMetadata) -> SkillMetadata:
    copy = skill.copy()
    copy["metadata"] = skill["metadata"].copy()
    copy["allowed_tools"] = skill["allowed_tools"].copy()
    return copy


def catalog_digest(skills: Iterable[SkillMetadata]) -> str:
    """Return a digest of a catalog's content, whatever the order of keys: a checkpointer may have its own."""
    text = json.dumps(list(skills), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Origins:
    """Where listings led outside their sources (links, relative paths), as this process saw it; bounded, thread-safe.

    Kept here and not in state, because a path is read on the word of it and state may come from a caller.
    """

    def __init__(self, size: int = MAX_REMEMBERED_FILES) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> "Origins":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return Origins(self._size)

    def note(self, origins: Led) -> None:
        """Remember what a discovery saw."""
        with self._lock:
            for source, directories in origins.items():
                for directory in directories:
                    self._seen[source, directory] = None
                    self._seen.move_to_end((source, directory))
            while len(self._seen) > self._size:
                self._seen.popitem(last=False)

    def seen(self) -> Led:
        """Return, for each source, the directories its listing led to."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for source, directory in self._seen:
                found.setdefault(source, set()).add(directory)
        return found


def readable_from(path: str, sources: Iterable[Source], origins: Led) -> bool:
    """Whether a catalog's path is a `SKILL.md` under one of `sources`, or where that source's listing led."""
    if not path.endswith(f"/{SKILL_FILE}"):
        return False
    return any(_gave(source, path, origins) for source in sources)


def _gave(source: Source, path: str, origins: Led) -> bool:
    """Whether a `SKILL.md` lies under a source, or in a directory that its listing led to."""
    led = origins.get(source.path, ())
    directory = parent(path)
    return lies_under(path, source.path) or (bool(led) and (directory in led or parent(directory) in led))


class _Search:
    """The state of the search in one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: dict[str, bool] = {}
        """Each `SKILL.md` to read, and whether a listing showed it."""
        self.frontier = [source.path]
        self.directories = 0
        self.cut = False
        self.failed: str | None = None
        self.incomplete: list[str] = []
        """For each directory that could not be listed in full, which and why."""
        self.missing = False

    def take(self, path: str, reply: object, *, deepest: bool) -> list[str]:
        """Note what one directory holds and return the directories to list next."""
        if not isinstance(reply, Listing):
            reason = reply.reason if isinstance(reply, Failed) else "no listing"
            self._note_failure(path, reason)
            return []
        if reply.error:
            self._note_incomplete(path, reply.error)
        own = next((e for e in reply.entries if e.name == SKILL_FILE and not e.is_directory), None)
        if own is not None:
            self.files[own.path] = True
            return []
        below = [entry for entry in reply.entries if entry.is_directory and entry.name not in PASSED_OVER]
        kept = self._bounded(below)
        if deepest:
            self.files.update((f"{entry.path.rstrip('/')}/{SKILL_FILE}", False) for entry in kept)
            return []
        return [entry.path for entry in kept]

    def _note_failure(self, path: str, reason: str) -> None:
        if path != self.source.path:
            self._note_incomplete(path, reason)
        elif is_missing_error(reason):
            self.missing = True
        else:
            self.failed = reason

    def _note_incomplete(self, path: str, reason: str) -> None:
        self.incomplete.append(reason if path == self.source.path else f"{path}: {reason}")

    def _bounded(self, entries: list[Entry]) -> list[Entry]:
        room = MAX_DIRECTORIES - self.directories
        self.cut |= len(entries) > room
        self.directories += min(len(entries), room)
        return entries[:room]

    @property
    def unsure(self) -> bool:
        return self.failed is not None or bool(self.incomplete)

    def problems(self, *, found_any: bool) -> list[SkillProblem]:
        path = self.source.path
        found: list[SkillProblem] = []
        if self.failed is not None:
            found.append(problem(path, "source-failed", reason=self.failed))
        reasons = self.incomplete[:MAX_INCOMPLETE]
        if len(self.incomplete) > MAX_INCOMPLETE:
            reasons.append(f"{len(self.incomplete) - MAX_INCOMPLETE} more directories")
        found += [problem(path, "source-incomplete", reason=reason) for reason in reasons]
        if self.missing:
            found.append(problem(path, "source-missing"))
        elif not found_any and not found:
            found.append(problem(path, "source-empty"))
        if self.cut:
            found.append(problem(path, "source-cut"))
        return found


def discover(sources: Sequence[Source], *, max_depth: int, read: SkillReader, known: Known) -> Plan[Catalog]:
    """Find the skills of all sources: one round of listings a level, then one batch of files."""
    searches = [_Search(source) for source in distinct(sources)]
    for level in range(max_depth):
        pending = [(search, path) for search in searches for path in search.frontier]
        if not pending:
            break
        for search in searches:
            search.frontier = []
        replies = yield tuple(ListDirectory(path) for _, path in pending)
        for (search, path), reply in zip(pending, replies, strict=True):
            search.frontier += search.take(path, reply, deepest=level == max_depth - 1)
    files = yield from read_files([path for search in searches for path in search.files])
    before = known.by_source([search.source for search in searches])
    return _merge(sources, [_Harvest(search, files, read, before[search.source.path]) for search in searches])


class _Harvest:
    """The skills and problems of one source, its files read."""

    def __init__(self, search: _Search, files: dict[str, File], read: SkillReader, known: list[SkillMetadata]) -> None:
        self.source = search.source
        self.skills: dict[str, SkillMetadata] = {}
        self.problems: list[SkillProblem] = []
        self.unsure = search.unsure
        before = {skill["path"]: skill for skill in known}
        for path in sorted(search.files):
            self._take(path, files[path], read, before, listed=search.files[path])
        seen = {skill["path"] for skill in self.skills.values()}
        if search.unsure:
            for path, skill in before.items():
                if path not in seen and path not in search.files:
                    self._add(skill)
        self.problems = search.problems(found_any=bool(self.skills or self.problems)) + self.problems

    def _take(
        self, path: str, file: File, read: SkillReader, before: dict[str, SkillMetadata], *, listed: bool
    ) -> None:
        if file.content is not None:
            metadata, problems = read(path, file.content)
            self.problems += problems
            if metadata is not None:
                self._add(metadata)
        elif listed or not file.is_missing:
            self.problems.append(problem(path, "skill-unreadable", reason=file.error))
            if not file.is_missing:
                self.unsure = True
                if path in before:
                    self._add(before[path])

    def _add(self, skill: SkillMetadata) -> None:
        winner = self.skills.setdefault(skill["name"], skill)
        if winner is not skill:
            self.problems.append(
                problem(skill["path"], "skill-duplicate", name=quoted(skill["name"]), winner=quoted(winner["path"]))
            )

    def origins(self) -> list[str]:
        """Return the directories outside the source that its listing led to."""
        return sorted({self._origin(skill["path"]) for skill in self.skills.values() if not self._holds(skill["path"])})

    def _origin(self, path: str) -> str:
        """Return the skill's directory, or the source's own where the backend only spells it out."""
        directory = parent(path)
        named = "/".join(part for part in self.source.path.split("/") if part not in {"", ".", ".."})
        spelled_out = bool(named) and parent(directory).endswith(f"/{named}")
        return parent(directory) if spelled_out else directory

    def _holds(self, path: str) -> bool:
        return lies_under(path, self.source.path)


def _merge(sources: Sequence[Source], harvests: list[_Harvest]) -> Catalog:
    """Lay the sources over each other: the later wins."""
    skills: dict[str, SkillMetadata] = {}
    problems: list[SkillProblem] = []
    for harvest in harvests:
        problems += harvest.problems
        for name, skill in harvest.skills.items():
            loser = skills.get(name)
            if loser is not None and loser["path"] != skill["path"]:
                problems.append(
                    problem(loser["path"], "skill-shadowed", name=quoted(name), winner=quoted(skill["path"]))
                )
            skills[name] = skill
    return Catalog(
        skills=list(skills.values()),
        problems=problems,
        sources=list(sources),
        origins={harvest.source.path: origins for harvest in harvests if (origins := harvest.origins())},
        unsure=[harvest.source for harvest in harvests if harvest.unsure],
    )


def source_errors(problems: Iterable[SkillProblem]) -> list[str]:
    """Return the errors about sources as one line of text each."""
    return [f"Cannot load skills from '{p['path']}': {p['message']}" for p in problems if p["code"] in SOURCE_ERRORS]
