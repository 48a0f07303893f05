"""Plans: sources to a catalog of skills and the problems on the way."""

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deepskills._backend.missing import is_missing_error
from deepskills._backend.plan import Entry, Failed, File, ListDirectory, Listing, Plan, read_files
from deepskills._catalog.kept import catalog_text, pack, text_digest
from deepskills._catalog.origins import Led, origin_of, owner_of, readable_from
from deepskills._catalog.sources import PASSED_OVER, Source, distinct, lies_under
from deepskills._format.frontmatter import as_text
from deepskills._format.problems import problem, quoted
from deepskills._format.reading import SkillReading, read_skill
from deepskills._format.text import as_readable, is_text
from deepskills._types import MAX_DIRECTORIES, SKILL_FILE, CatalogRecord, SkillMetadata, SkillProblem

MAX_REMEMBERED_FILES = 16_384
"""How many parsed files a middleware remembers."""

MAX_INCOMPLETE = 100
"""How many directories of a source that could not be listed are named, each in a problem of its own."""

SOURCE_ERRORS = frozenset({"sources-failed", "source-failed", "source-incomplete"})
"""Codes of problems that are about a whole source; it is tried again at the next run."""

TAG_FIELDS = ("tags", "keywords", "triggers")
"""Frontmatter keys, at the top or in `metadata`, whose words a skill is found by."""

Reading: TypeAlias = tuple[SkillMetadata | None, list[SkillProblem], str]
"""A file's metadata, its problems, and words that a skill is found by and that its metadata does not hold."""

SkillReader = Callable[[str, bytes], Reading]
"""Turns a path and a file's content into a reading."""


@dataclass(frozen=True)
class Known:
    """What an earlier discovery on this thread found."""

    skills: Sequence[SkillMetadata] = ()
    origins: Led = field(default_factory=dict)

    def by_source(self, sources: Sequence[Source]) -> dict[str, list[SkillMetadata]]:
        """Return the skills that each source gave; where one source lies inside another, the inner gave it."""
        given: dict[str, list[SkillMetadata]] = {source.path: [] for source in sources}
        led = self.led()
        for skill in self.skills:
            owner = owner_of(skill["path"], sources, led)
            if owner is not None:
                given[owner.path].append(skill)
        return given

    def led(self) -> Led:
        """Return where listings led, quick to look up."""
        return {source: frozenset(directories) for source, directories in self.origins.items()}


@dataclass(frozen=True)
class Catalog:
    """What discovery found."""

    skills: list[SkillMetadata]
    problems: list[SkillProblem]
    sources: list[Source]
    origins: Led
    unsure: list[Source]
    """Sources that failed in part or in whole: what they no longer show may still be there."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """By path, for each skill whose file was read: words that it is found by and that its metadata does not hold."""

    unusable: frozenset[str] = frozenset()
    """Paths where a file was found that no skill could be made of."""

    def record(self, tags: dict[str, str]) -> CatalogRecord:
        """Return what state keeps to know this catalog again, and by which further words to find its skills."""
        text = catalog_text(self.skills)
        record = CatalogRecord(
            digest=text_digest(text),
            sources=[[source.path, source.label] for source in self.sources],
            tags=tags,
        )
        packed = pack(text)
        if packed is not None:
            record["kept"] = packed
        return record


class SkillCache:
    """Reads `SKILL.md` files and remembers the readings by path and content; bounded, safe to share by threads."""

    def __init__(self, size: int = MAX_REMEMBERED_FILES) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._remembered: OrderedDict[tuple[str, bytes], _Remembered] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillCache":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return SkillCache(self._size)

    def read(self, path: str, content: bytes) -> Reading:
        """Return what a file says; the caller owns what it gets."""
        key = (path, hashlib.blake2b(content, digest_size=16).digest())
        with self._lock:
            remembered = self._remembered.get(key)
            if remembered is not None:
                self._remembered.move_to_end(key)
                return remembered.copy()
        remembered = _Remembered.of(read_skill(content, path=path))
        with self._lock:
            self._remembered[key] = remembered
            while len(self._remembered) > self._size:
                self._remembered.popitem(last=False)
        return remembered.copy()


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

    def copy(self) -> Reading:
        return (_copy(self.metadata) if self.metadata is not None else None), list(self.problems), self.tags


def _copy(skill: SkillMetadata) -> SkillMetadata:
    copy = skill.copy()
    copy["metadata"] = skill["metadata"].copy()
    copy["allowed_tools"] = skill["allowed_tools"].copy()
    return copy


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
        # In turns, so that a source whose calls hang does not keep the others' from being made.
        columns = itertools.zip_longest(*([(search, path) for path in search.frontier] for search in searches))
        pending = [pair for column in columns for pair in column if pair is not None]
        if not pending:
            break
        for search in searches:
            search.frontier = []
        replies = yield tuple(ListDirectory(path) for _, path in pending)
        for (search, path), reply in zip(pending, replies, strict=True):
            search.frontier += search.take(path, reply, deepest=level == max_depth - 1)
    files = yield from read_files([path for search in searches for path in search.files])
    before = known.by_source([search.source for search in searches])
    led = known.led()
    harvests = [_Harvest(search, files, read, before[search.source.path], led) for search in searches]
    return _merge(sources, harvests)


class _Harvest:
    """The skills and problems of one source, its files read."""

    def __init__(
        self, search: _Search, files: dict[str, File], read: SkillReader, known: list[SkillMetadata], led: Led
    ) -> None:
        self.source = search.source
        self.skills: dict[str, SkillMetadata] = {}
        self.problems: list[SkillProblem] = []
        self.unsure = search.unsure
        self.tags: dict[str, str] = {}
        self.unusable: list[str] = []
        self._listed = search.files
        self._led = led
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
        if not is_text(path):
            if listed or not file.is_missing:
                self.problems.append(problem(as_readable(path), "skill-path-not-text"))
        elif file.content is not None:
            metadata, problems, self.tags[path] = read(path, file.content)
            self.problems += problems
            if metadata is not None:
                self._add(metadata)
            else:
                self.unusable.append(path)
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
        """Return the directories outside the source that its listing led to, now or before; state has no say in it."""
        outside = [s["path"] for s in self.skills.values() if not lies_under(s["path"], self.source.path)]
        seen = [path for path in outside if path in self._listed or readable_from(path, [self.source], self._led)]
        return sorted({origin_of(path, self.source) for path in seen})


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
    paths = {skill["path"] for skill in skills.values()}
    return Catalog(
        skills=list(skills.values()),
        problems=problems,
        sources=list(sources),
        origins={harvest.source.path: origins for harvest in harvests if (origins := harvest.origins())},
        unsure=[harvest.source for harvest in harvests if harvest.unsure],
        tags={path: words for h in harvests for path, words in h.tags.items() if path in paths},
        unusable=frozenset(path for harvest in harvests for path in harvest.unusable),
    )


def source_errors(problems: Iterable[SkillProblem]) -> list[str]:
    """Return the errors about sources as one line of text each."""
    return [f"Cannot load skills from '{p['path']}': {p['message']}" for p in problems if p["code"] in SOURCE_ERRORS]
