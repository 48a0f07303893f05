"""Finds the skills of all sources: lists directories level by level, reads every SKILL.md in one batch, merges by name.

Latency decides the shape: a backend may be a network away, so discovery makes one round of listings per level for all
sources together, then one batch of reads, however many skills there are.

A source that fails keeps what it had. An outage must not unload skills in the middle of a conversation, so "not
listed" and "not there" are different answers throughout: `Discovery.unsure` names the sources about which nothing can
be concluded.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deepskills._catalog.catalog import Catalog, Catalogs
from deepskills._catalog.entries import Reading, Readings, SkillEntry
from deepskills._catalog.requires import requirement_problems
from deepskills._catalog.sources import PASSED_OVER, Source, distinct, lies_under
from deepskills._io.plan import (
    Attempt,
    Entry,
    Failed,
    File,
    Listing,
    ListSkills,
    Plan,
    SkillsListed,
    Summarize,
    Summarized,
    apart,
    is_missing_error,
)
from deepskills._io.walk import Visit, Visitor, read_files, walk
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import as_readable, is_text
from deepskills._types import (
    MAX_DIRECTORIES,
    RESOURCE_DIRECTORIES,
    SKILL_FILE,
    SkillListing,
    SkillMetadata,
    SkillProblem,
    SkillSummary,
)

MAX_INCOMPLETE = 100
"""How many directories of a source that could not be listed are named, each in a problem of its own."""

_NAME_FORM = frozenset({"name-invalid", "name-directory-mismatch"})

SOURCE_ERRORS = frozenset({"sources-failed", "source-failed", "source-incomplete"})
"""Codes of problems that are about a whole source; it is tried again at the next run."""


@dataclass(frozen=True)
class Discovery:
    """What one look at the sources found."""

    catalog: Catalog
    problems: list[SkillProblem] = field(default_factory=list)
    unsure: frozenset[str] = frozenset()
    """Paths of sources that failed in part or in whole: what they no longer show may still be there."""

    unusable: frozenset[str] = frozenset()
    """Paths where a file was found that no skill could be made of."""

    led: Sequence[tuple[str, str]] = ()
    """Files that a source's listing led to outside of it (by links, or by a relative path): source and file."""


class _Search:
    """The state of the search in one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: dict[str, bool] = {}
        """Each `SKILL.md` to read, and whether a listing showed it."""
        self.directories = 0
        self.cut = False
        self.failed: str | None = None
        self.incomplete: list[str] = []
        """For each directory that could not be listed in full, which and why."""
        self.missing = False
        self.misnamed: list[str] = []
        """Files named like `SKILL.md` in another case, where there is none."""
        self.is_served = False
        """Whether the backend lists the skills itself."""
        self.found: list[SkillProblem] = []
        """What the backend found wrong with the skills that it lists."""

    def take(self, path: str, reply: Listing | Failed, *, deepest: bool) -> list[str]:
        """Record what one directory holds and return the directories to list next."""
        if isinstance(reply, Failed):
            self._note_failure(path, reply.reason)
            return []
        # Some entries and an error: what is there is used, and what is missing is not taken for gone.
        if reply.error:
            self._note_incomplete(path, reply.error)
        files = [entry for entry in reply.entries if not entry.is_directory]
        own = next((entry for entry in files if entry.name == SKILL_FILE), None)
        if own is not None:
            # A skill's directory: what lies below it is its own business and holds no further skills.
            self.files[own.path] = True
            # Only below a source of its own: one stray file must not hide the skills that a source holds.
            if path != self.source.path:
                return []
        else:
            # Only the exact name makes a skill. `skill.md` is reported, so that its author sees why it is missing.
            self.misnamed += [entry.path for entry in files if entry.name.lower() == SKILL_FILE.lower()]
        # A skill's own files are not searched for skills: one may hold a `SKILL.md` as an example.
        passed_over = PASSED_OVER if own is None else PASSED_OVER | RESOURCE_DIRECTORIES.keys()
        below = [entry for entry in reply.entries if entry.is_directory and entry.name not in passed_over]
        kept = self._bounded(below)
        if deepest:
            # Reading a file that may not exist is cheaper than listing each directory first to find out.
            self.files.update((f"{entry.path.rstrip('/')}/{SKILL_FILE}", False) for entry in kept)
            return []
        return [entry.path for entry in kept]

    def take_served(self, listing: SkillListing) -> None:
        """Record what the backend lists itself."""
        self.is_served = True
        self.found = list(listing.problems)
        self.failed = listing.failure
        self.files = dict.fromkeys((summary.path for summary in listing.summaries), True)

    def _note_failure(self, path: str, reason: str) -> None:
        if path != self.source.path:
            self._note_incomplete(path, reason)
        # A missing source is normal, a failing one is an outage; only the latter keeps what it had.
        elif is_missing_error(reason):
            self.missing = True
        else:
            self.failed = reason

    def _note_incomplete(self, path: str, reason: str) -> None:
        self.incomplete.append(reason if path == self.source.path else f"{path}: {reason}")

    def _bounded(self, entries: list[Entry]) -> list[Entry]:
        # Bounded per source: a source may be a whole disk by mistake.
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
        misnamed = [
            problem(as_readable(file), "skill-file-misnamed", found=quoted(file.rpartition("/")[2]))
            for file in self.misnamed[:MAX_INCOMPLETE]
        ]
        if self.missing:
            found += [] if self.source.is_optional else [problem(path, "source-missing")]
        # Empty is worth a word only if nothing else explains why there is no skill.
        elif not found_any and not found and not self.found and not self.source.is_optional:
            found.append(problem(path, "source-empty"))
        if self.cut:
            found.append(problem(path, "source-cut"))
        return found + misnamed + self.found


class _Visitor(Visitor[int]):
    """Sends each directory of a walk to the search of its source."""

    def __init__(self, searches: Sequence[_Search], max_depth: int) -> None:
        self._searches = searches
        self._deepest = max_depth - 1

    def take(self, visit: Visit[int], reply: Listing | Failed) -> list[tuple[int, str]]:
        search = self._searches[visit.key]
        return [(visit.key, path) for path in search.take(visit.path, reply, deepest=visit.depth == self._deepest)]


def discover(
    sources: Sequence[Source], *, max_depth: int, readings: Readings, catalogs: Catalogs, known: Catalog | None = None
) -> Plan[Discovery]:
    """Find the skills of all sources: one round of listings per level, then one batch of files.

    A source that fails keeps the entries that `known` has from it.
    """
    # A source that is named twice is searched once, in the place where it has the higher priority.
    searches = [_Search(source) for source in distinct(sources)]
    served = yield from _served(searches)
    starts = [(place, search.source.path) for place, search in enumerate(searches) if not search.is_served]
    yield from walk(starts, _Visitor(searches, max_depth), levels=max_depth)
    # All sources together: one batch, whichever of them a file belongs to.
    paths = [path for search in searches for path in search.files]
    summaries = served | (yield from _summaries([path for path in paths if path not in served]))
    files = yield from read_files([path for path in paths if path not in summaries])
    before: dict[str, list[SkillEntry]] = {}
    for entry in known.entries if known is not None else ():
        before.setdefault(entry.source, []).append(entry)
    read = _Files(readings, files, summaries)

    def merged() -> Discovery:
        harvests = [_Harvest(search, read, before.get(search.source.path, [])) for search in searches]
        return _merge(sources, harvests, catalogs)

    return (yield from apart(merged, len(paths)))


def _served(searches: Sequence[_Search]) -> Plan[dict[str, SkillSummary]]:
    """Return the skills that backends serve themselves, and let those sources be searched no further."""
    if not searches:
        return {}
    reply: SkillsListed | Failed = yield Attempt(ListSkills(tuple(search.source.path for search in searches)))
    # A backend that lists skills says itself what fails; where the call fails, the sources are searched and say so.
    listings = {} if isinstance(reply, Failed) else reply.listings
    summaries: dict[str, SkillSummary] = {}
    for search in searches:
        listing = listings.get(search.source.path)
        if listing is not None:
            search.take_served(listing)
            summaries |= {summary.path: summary for summary in listing.summaries}
    return summaries


def _summaries(paths: Sequence[str]) -> Plan[dict[str, SkillSummary]]:
    """Return what a backend that keeps skills in parts says of files without their bodies."""
    if not paths:
        return {}
    reply: Summarized | Failed = yield Attempt(Summarize(tuple(paths)))
    # Summaries only save time: where there are none, the files themselves are read.
    return {} if isinstance(reply, Failed) else reply.summaries


@dataclass(frozen=True)
class _Files:
    """The files of a discovery, read or summarized."""

    readings: Readings
    files: Mapping[str, File]
    summaries: Mapping[str, SkillSummary]

    def reading(self, path: str) -> Reading | None:
        """Return what a file says, or `None` if it could not be read."""
        summary = self.summaries.get(path)
        if summary is not None:
            if summary.origin is not None:
                return self.readings.read_served(summary)
            return self.readings.read_as(path, summary.frontmatter, summary.digest)
        content = self.files[path].content
        return self.readings.read(path, content) if content is not None else None


class _Harvest:
    """The skills and problems of one source, its files read."""

    def __init__(self, search: _Search, read: _Files, known: Sequence[SkillEntry]) -> None:
        self.source = search.source
        self.entries: dict[str, SkillEntry] = {}
        self.problems: list[SkillProblem] = []
        self.unsure = search.unsure
        self.unusable: list[str] = []
        self._listed_now = search.files
        self._read = read
        # One path may be a source twice, by two namespaces; each keeps the entries that bear its own.
        namespace = search.source.namespace
        self._before = {entry.path: entry for entry in known if not namespace or entry.name.startswith(f"{namespace}:")}
        # Sorted, so that of two skills of one name the same one wins on every machine.
        for path in sorted(search.files):
            self._take(path, listed=search.files[path])
        seen = {entry.path for entry in self.entries.values()}
        # What the source did not show this time may still be there. What it showed and could not be read is not lost
        # either: `_take` keeps it.
        if search.unsure:
            for path, entry in self._before.items():
                if path not in seen and path not in search.files:
                    self._add(entry)
        self.problems = search.problems(found_any=bool(self.entries or self.problems)) + self.problems

    def _take(self, path: str, *, listed: bool) -> None:
        reading = self._read.reading(path) if is_text(path) else None
        if reading is not None:
            # Directories of a backend that keeps skills in parts are its own invention, not the author's.
            is_invented = path in self._read.summaries
            self.problems += [
                found
                for found in _about(reading, self.source)
                if not (is_invented and found["code"] == "name-directory-mismatch")
            ]
            if reading.metadata is not None:
                self._add(self._read.readings.entry(reading, self.source.path, self.source.name_of))
            else:
                self.unusable.append(path)
            return
        file = self._read.files.get(path) or File(path, error="the backend returned no file")
        if file.is_missing and not listed:
            # A guess of the deepest level: just a directory without a skill.
            return
        self.problems.append(_unread(path, file))
        # It is there and could not be read now. A FIFO or a file that is too large is a fault of its own, not an
        # outage.
        if is_text(path) and not file.is_missing and file.unfit is None:
            self.unsure = True
            if path in self._before:
                self._add(self._before[path])

    def _add(self, entry: SkillEntry) -> None:
        winner = self.entries.setdefault(entry.name, entry)
        if winner is not entry:
            self.problems.append(
                problem(entry.path, "skill-duplicate", name=quoted(entry.name), winner=quoted(winner.path))
            )

    def led(self) -> list[tuple[str, str]]:
        """Return the files outside the source that its listing led to."""
        root = self.source.path
        return [
            (root, entry.path)
            for entry in self.entries.values()
            # What was kept from before does not count: only this listing led here.
            if entry.path in self._listed_now and not lies_under(entry.path, root)
        ]


def _about(reading: Reading, source: Source) -> Iterable[SkillProblem]:
    """Return a file's problems; a name that begins with its source's namespace is of the right form."""
    has_own = (
        reading.metadata is not None
        and source.namespace
        and source.name_of(reading.metadata["name"]) == (reading.metadata["name"])
    )
    return [found for found in reading.problems if found["code"] not in _NAME_FORM] if has_own else reading.problems


def _unread(path: str, file: File) -> SkillProblem:
    """Return the problem of a file that was found and not read."""
    if not is_text(path):
        return problem(as_readable(path), "skill-path-not-text")
    if file.unfit == "not-a-file":
        return problem(path, "skill-not-a-file")
    if file.unfit == "too-large":
        return problem(path, "file-too-large", size=file.size)
    return problem(path, "skill-unreadable", reason=file.error)


def _merge(sources: Sequence[Source], harvests: list[_Harvest], catalogs: Catalogs) -> Discovery:
    """Lay the sources over each other: the later wins."""
    entries: dict[str, SkillEntry] = {}
    problems: list[SkillProblem] = []
    for harvest in harvests:
        problems += harvest.problems
        for name, entry in harvest.entries.items():
            loser = entries.get(name)
            if loser is not None and loser.path != entry.path and (loser.origin or entry.origin):
                # A served skill neither takes a name away nor loses its own: it gets another.
                served, other = (entry, loser) if entry.origin else (loser, entry)
                renamed = _renamed(served)
                entries[name], entries[renamed.name] = other, renamed
                problems.append(
                    problem(served.path, "mcp-renamed", name=quoted(renamed.name), other=quoted(other.path))
                )
                continue
            if loser is not None and loser.path != entry.path:
                problems.append(problem(loser.path, "skill-shadowed", name=quoted(name), winner=quoted(entry.path)))
            # Set again, not moved: a name keeps its place in the list when a later source overrides it.
            entries[name] = entry
    catalog = catalogs.made(list(entries.values()), sources)
    return Discovery(
        catalog=catalog,
        problems=problems + requirement_problems(catalog.entries, catalog.find),
        unsure=frozenset(harvest.source.path for harvest in harvests if harvest.unsure),
        unusable=frozenset(path for harvest in harvests for path in harvest.unusable),
        led=[pair for harvest in harvests for pair in harvest.led()],
    )


def _renamed(entry: SkillEntry) -> SkillEntry:
    # From source and path, so that the name is the same in every run.
    mark = hashlib.sha256(f"{entry.source} {entry.path}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return replace(entry, skill=SkillMetadata(**{**entry.skill, "name": f"{entry.name}~{mark}"}))


def source_errors(problems: Iterable[SkillProblem]) -> list[str]:
    """Return the errors about sources as one line of text each."""
    return [f"Cannot load skills from '{p['path']}': {p['message']}" for p in problems if p["code"] in SOURCE_ERRORS]
