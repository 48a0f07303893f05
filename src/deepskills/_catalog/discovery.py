"""Finds the skills of all sources, and decides which of them a run may read.

Finding: directories are listed level by level, every SKILL.md is read in one batch, and skills are merged by name.
Latency decides the shape: a backend may be a network away, so discovery makes one round of listings per level for all
sources together, then one batch of reads, however many skills there are.

A source that fails keeps what it had. An outage must not unload skills in the middle of a conversation, so "not
listed" and "not there" are different answers throughout: `Discovery.unsure` names the sources about which nothing can
be concluded.

Trusting: `SourceScan` is one run's look at its sources. The theory above it says what a run may read, and why state
cannot widen that.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deepskills._catalog.catalog import (
    Catalog,
    Catalogs,
    Reading,
    Readings,
    SkillEntry,
    record_key,
    says_the_same,
)
from deepskills._catalog.lookup import requirement_problems
from deepskills._catalog.plugins import MAX_MANIFEST_BYTES, Plugin, manifests_of, read_plugin
from deepskills._catalog.sources import Source, distinct
from deepskills._errors import SkillsError
from deepskills._io.cache import BoundedCache
from deepskills._io.plan import (
    PASSED_OVER,
    Attempt,
    Entry,
    Failed,
    File,
    FindProviders,
    Inspect,
    Listing,
    Plan,
    ResultT,
    Visit,
    Visitor,
    in_worker,
    is_missing_error,
    lies_under,
    parent,
    read_files,
    tidy,
    walk,
)
from deepskills._providers.ask import NOBODY, USUAL_SECONDS, Caller, Listed, list_skills
from deepskills._providers.base import SkillProvider
from deepskills._providers.files import ProvidedFiles
from deepskills._skillmd.keys import INVOCATION_FILE
from deepskills._skillmd.problems import SOURCE_ERRORS, problem, quoted
from deepskills._skillmd.read import validate_skill
from deepskills._skillmd.text import as_readable, is_text
from deepskills._types import (
    MAX_DIRECTORIES,
    RESOURCE_DIRECTORIES,
    SKILL_FILE,
    SkillMetadata,
    SkillProblem,
)

MAX_INCOMPLETE = 100
"""How many directories of a source that could not be listed are named, each in a problem of its own."""

_AGENTS = INVOCATION_FILE.partition("/")[0]
_NAME_FORM = frozenset({"name-invalid", "name-directory-mismatch"})


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

    shadowed: Sequence[SkillProblem] = ()
    """What later sources override. That is how sources are layered, so it is wrong only for whoever did not mean it."""


class _Search:
    """The state of the search in one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: dict[str, bool] = {}
        """Each `SKILL.md` to read, and whether a listing showed it."""
        self.has_agents: dict[str, bool] = {}
        """For each of them whose directory was listed, whether that has a directory `agents`."""
        self.directories = 0
        self.cut = False
        self.failed: str | None = None
        self.incomplete: list[str] = []
        """For each directory that could not be listed in full, which and why."""
        self.missing = False
        self.misnamed: list[str] = []
        """Files named like `SKILL.md` in another case, where there is none."""
        self.is_provided = False
        """Whether a provider lists the skills."""
        self.is_shut = False
        """Whether it is not searched: it is a plugin whose manifest cannot be used."""
        self.found: list[SkillProblem] = []
        """What was found wrong with the skills that are listed so."""

    def take(self, path: str, reply: Listing | Failed, *, deepest: bool) -> list[str]:
        """Record what one directory holds and return the directories to list next."""
        if isinstance(reply, Failed):
            self._note_failure(path, reply.reason)
            return []
        # Some entries and an error: what is there is used, and what is missing is not taken for gone.
        if reply.error:
            self._note_incomplete(path, reply.error)
        # What lies in a plugin's `skills/` itself is no skill, by the format.
        is_plugin = self.source.plugin is not None
        files = [] if is_plugin else [entry for entry in reply.entries if not entry.is_directory]
        own = next((entry for entry in files if entry.name == SKILL_FILE), None)
        if own is not None:
            # A skill's directory: what lies below it is its own business and holds no further skills.
            self.files[own.path] = True
            self.has_agents[own.path] = has_invocation_directory(reply)
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
        # A plugin's skills are its direct children, however deep other sources are searched.
        if deepest or is_plugin:
            # Reading a file that may not exist is cheaper than listing each directory first to find out.
            self.files.update((f"{entry.path.rstrip('/')}/{SKILL_FILE}", False) for entry in kept)
            return []
        return [entry.path for entry in kept]

    def take_plugin(self, plugin: Plugin) -> None:
        """Record what the plugin's manifest says."""
        self.source = replace(self.source, namespace=plugin.namespace)
        self.failed = plugin.failure
        self.found = [plugin.problem] if plugin.problem is not None else []
        self.is_shut = plugin.problem is not None or plugin.failure is not None

    def take_provided(self, listed: Listed) -> None:
        """Record what a provider lists."""
        self.is_provided = True
        self.found = listed.problems
        self.failed = listed.failure
        self.cut = listed.is_cut
        self.files = dict.fromkeys(listed.skills, True)

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
        # What a thread knows of a personal source may be another user's: it neither fills in nor stays.
        is_personal = self.source.provider is not None and self.source.provider.is_personal
        return (self.failed is not None or bool(self.incomplete)) and not is_personal

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


async def discover(
    sources: Sequence[Source],
    *,
    max_depth: int,
    readings: Readings,
    catalogs: Catalogs,
    known: Catalog | None = None,
    caller: Caller = NOBODY,
) -> Discovery:
    """Find the skills of all sources: one round of listings per level, then one batch of files.

    A source that fails keeps the entries that `known` has from it. Providers are asked for the run of `caller`.
    """
    # A source that is named twice is searched once, in the place where it has the higher priority.
    searches = [_Search(source) for source in await with_providers(distinct(sources))]
    provided = await _list_provided(searches, caller)
    await _read_plugins(searches)
    starts = [
        (place, search.source.path)
        for place, search in enumerate(searches)
        if not search.is_provided and not search.is_shut
    ]
    await walk(starts, _Visitor(searches, max_depth), levels=max_depth)
    # All sources together: one batch, whichever of them a file belongs to.
    paths = [path for search in searches for path in search.files]
    wanted = [path for path in paths if path not in provided]
    files = await read_files([*wanted, *await _invocation_files(wanted, searches)])
    for listed in provided.values():
        files |= listed.contents
    before: dict[str, list[SkillEntry]] = {}
    for entry in known.entries if known is not None else ():
        before.setdefault(entry.source, []).append(entry)
    read = _Files(readings, files, provided)

    def merged() -> Discovery:
        harvests = [_Harvest(search, read, before.get(search.source.path, [])) for search in searches]
        return _merge(sources, harvests, catalogs)

    return await in_worker(merged, len(paths))


async def read_from(sources: Iterable[Source], entry: SkillEntry, plan: Plan[ResultT], caller: Caller) -> ResultT:
    """Perform a plan that reads the text or the files of a skill: on the backend, or on what its provider gives.

    Raises:
        SkillsError: If its provider is no longer among the sources.
    """
    try:
        files = await find_provided_files(sources, entry, caller)
    except SkillsError:
        plan.close()
        raise
    return await (plan if files is None else files.perform(plan))


async def find_provided_files(sources: Iterable[Source], entry: SkillEntry, caller: Caller) -> ProvidedFiles | None:
    """Return the files of a skill as its provider gives them; `None` if they lie in a directory.

    Raises:
        SkillsError: If its provider is no longer among the sources.
    """
    skill = entry.provided
    if skill is None:
        return None
    # Without a version the text was read at discovery, so its own digest is known.
    digest = entry.digest if skill.version is None else skill.digest
    provider = await provider_of(sources, entry)
    if provider is None:
        raise SkillsError(f"The provider of the skill {quoted(entry.name)} is no longer among the sources.")
    return ProvidedFiles(caller.ask(provider), skill, entry.path, digest)


async def with_providers(sources: Sequence[Source]) -> list[Source]:
    """Return the sources, with the providers that serve the paths among them; several may serve one path."""
    paths = tuple(source.path for source in sources if source.provider is None)
    if not paths:
        return [*sources]
    reply = await Attempt(FindProviders(paths))
    serving = {} if isinstance(reply, Failed) else reply.providers
    return [
        found
        for source in sources
        for found in [replace(source, provider=one) for one in serving.get(source.path, ())] or [source]
    ]


async def provider_of(sources: Iterable[Source], entry: SkillEntry) -> SkillProvider | None:
    """Return the provider of a skill, by its source; `None` if it is no longer among the sources."""
    # Asked of the sources of this run and never kept: another user's provider may list the very same.
    own = [source for source in sources if source.path == entry.source]
    label = entry.origin["label"] if entry.origin is not None else None
    for source in await with_providers(own):
        if source.provider is not None and label in (None, source.provider.label):
            return source.provider
    return None


async def _list_provided(searches: Sequence[_Search], caller: Caller) -> dict[str, Listed]:
    """Let providers list their skills, and return by path what lists each."""
    own = [(search, search.source.provider) for search in searches if search.source.provider is not None]
    asked = [caller.ask(provider) for _, provider in own]
    found: dict[str, Listed] = {}
    for (search, _), listed in zip(own, await list_skills(asked), strict=True):
        search.take_provided(listed)
        found |= dict.fromkeys(listed.skills, listed)
    return found


async def _read_plugins(searches: Sequence[_Search]) -> None:
    """Read the manifests of all plugins in one batch; they name the namespaces."""
    roots = [(search, search.source.plugin) for search in searches if not search.is_provided]
    plugins = [(search, root) for search, root in roots if root is not None]
    if plugins:
        paths = [path for _, root in plugins for path in manifests_of(root)]
        files = await read_files(paths, max_bytes=MAX_MANIFEST_BYTES)
        for search, root in plugins:
            search.take_plugin(read_plugin(root, files))


async def _invocation_files(paths: Sequence[str], searches: Sequence[_Search]) -> list[str]:
    """Return the files beside `SKILL.md` that say who may start a skill, as far as no further round is needed for it.

    Most skills have none. A listing tells, or a look at the local disk; elsewhere a load reads it with the text.
    """
    listed: dict[str, bool] = {}
    for search in searches:
        listed |= search.has_agents
    unlisted = tuple(invocation_file(path) for path in paths if path not in listed)
    seen = await Attempt(Inspect(unlisted))
    there = [] if isinstance(seen, Failed) else [path for path in unlisted if path in seen.natures]
    return [*there, *(invocation_file(path) for path in paths if listed.get(path))]


def has_invocation_directory(listing: Listing | Failed) -> bool:
    """Whether a skill's directory, as it was listed, may hold the file that says who may start it."""
    return isinstance(listing, Listing) and any(
        entry.is_directory and entry.name == _AGENTS for entry in listing.entries
    )


def invocation_file(path: str) -> str:
    """Return where Codex keeps who may start the skill of a `SKILL.md`."""
    return f"{parent(path)}/{INVOCATION_FILE}"


@dataclass(frozen=True)
class _Files:
    """The files of a discovery, read or listed."""

    readings: Readings
    files: Mapping[str, File]
    provided: Mapping[str, Listed]

    def reading(self, path: str) -> Reading | None:
        """Return what a file says, or `None` if it could not be read."""
        listed = self.provided.get(path)
        if listed is not None:
            skill, file = listed.skills[path], listed.contents.get(path)
            if file is not None and file.content is None:
                return None
            return self.readings.read_listed(skill, path, listed.provider, file.content if file is not None else None)
        content = self.files[path].content
        if content is None:
            return None
        reading = self.readings.read(path, content)
        beside = self.files.get(invocation_file(path))
        return (
            reading
            if beside is None or beside.content is None
            else self.readings.read_beside(reading, path, beside.content)
        )


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
        provider = search.source.provider
        if provider is not None:
            # Several may serve one path, and each keeps its own.
            self._before = {
                path: entry
                for path, entry in self._before.items()
                if entry.origin is None or entry.origin["label"] == provider.label
            }
        # Sorted, so that of two skills of one name the same one wins on every machine; a provider says which does.
        for path in search.files if search.source.provider is not None else sorted(search.files):
            self._take(path, listed=search.files[path])
        if search.source.provider is not None:
            # So that a list in another order is the same catalog.
            self.entries = dict(sorted(self.entries.items()))
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
            faults = self._faults_in_plugin(path)
            if faults:
                self.problems += faults
                self.unusable.append(path)
                return
            # Most files have none.
            if reading.problems:
                self.problems += _about(reading, self.source)
            if reading.metadata is not None:
                self._add(self._read.readings.entry(reading, self.source.path, self.source.name_of))
            else:
                self.unusable.append(path)
            return
        file = self._read.files.get(path) or File(path, error="the backend returned no file")
        if file.is_missing and not listed:
            # A guess of the deepest level: just a directory without a skill.
            return
        self.problems.append(_word_unread(path, file))
        # It is there and could not be read now. A FIFO or a file that is too large is a fault of its own, not an
        # outage.
        if is_text(path) and not file.is_missing and file.unfit is None:
            self.unsure = True
            if path in self._before:
                self._add(self._before[path])

    def _faults_in_plugin(self, path: str) -> list[SkillProblem]:
        """Return why a plugin's skill is not used; the format is stricter than the reader."""
        root = self.source.plugin
        if root is None or self.source.provider is not None:
            return []
        if not lies_under(path, root):
            return [problem(path, "plugin-leads-out", plugin=quoted(root))]
        content = self._read.files[path].content
        return validate_skill(content, path=path) if content is not None else []

    def _add(self, entry: SkillEntry) -> None:
        winner = self.entries.setdefault(entry.name, entry)
        if winner is not entry:
            self.problems.append(
                problem(entry.path, "skill-duplicate", name=quoted(entry.name), winner=quoted(winner.path))
            )

    def led(self) -> list[tuple[str, str]]:
        """Return the files outside the source that its listing led to."""
        root = self.source.path
        inside = f"{tidy(root).rstrip('/')}/"
        paths = [entry.skill["path"] for entry in self.entries.values()]
        return [
            (root, path)
            for path in paths
            # Nearly all lie inside, which one comparison tells. What was kept from before does not count: only this
            # listing led here.
            if (not path.startswith(inside) or ".." in path) and path in self._listed_now and not lies_under(path, root)
        ]


def _about(reading: Reading, source: Source) -> Iterable[SkillProblem]:
    """Return a file's problems; a name that begins with its source's namespace is of the right form."""
    has_own = (
        reading.metadata is not None
        and source.namespace
        and source.name_of(reading.metadata["name"]) == (reading.metadata["name"])
    )
    return [found for found in reading.problems if found["code"] not in _NAME_FORM] if has_own else reading.problems


def _word_unread(path: str, file: File) -> SkillProblem:
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
    shadowed: list[SkillProblem] = []
    for harvest in harvests:
        problems += harvest.problems
        for name, entry in harvest.entries.items():
            loser = entries.get(name)
            if loser is not None and loser.path != entry.path and (loser.origin or entry.origin):
                # A served skill neither takes a name away nor loses its own: it gets another.
                served, other = (entry, loser) if entry.origin else (loser, entry)
                renamed = _rename(served)
                entries[name], entries[renamed.name] = other, renamed
                problems.append(
                    problem(served.path, "mcp-renamed", name=quoted(renamed.name), other=quoted(other.path))
                )
                continue
            if loser is not None and loser.path != entry.path:
                shadowed.append(problem(loser.path, "skill-shadowed", name=quoted(name), winner=quoted(entry.path)))
            # Set again, not moved: a name keeps its place in the list when a later source overrides it.
            entries[name] = entry
    catalog = catalogs.made(list(entries.values()), sources)
    return Discovery(
        catalog=catalog,
        problems=problems + requirement_problems(catalog.entries, catalog.find),
        shadowed=shadowed,
        unsure=frozenset(harvest.source.path for harvest in harvests if harvest.unsure),
        unusable=frozenset(path for harvest in harvests for path in harvest.unusable),
        led=[pair for harvest in harvests for pair in harvest.led()],
    )


def _rename(entry: SkillEntry) -> SkillEntry:
    # From source and path, so that the name is the same in every run.
    mark = hashlib.sha256(f"{entry.source} {entry.path}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return replace(entry, skill=SkillMetadata(**{**entry.skill, "name": f"{entry.name}~{mark}"}))


def format_source_errors(problems: Iterable[SkillProblem]) -> list[str]:
    """Return the errors about sources as one line of text each."""
    return [f"Cannot load skills from '{p['path']}': {p['message']}" for p in problems if p["code"] in SOURCE_ERRORS]


# --------------------------------------------------------------------------------------------------------------------
# Decides what a run may read: only files that its current sources hold, as this process has seen for itself.
#
# Theory of operation
# -------------------
#
# `catalog.py` decides whether a catalog from state is believed. That is not enough to read a file from it: an
# application may have changed its sources since, or give each user other ones, and then yesterday's catalog names paths
# that today's user must not see. So before any text of a skill is read:
#
# * The entry must come from a source of *this* run. Sources are resolved once per plan (`SourceScan.sources`): a
#   function of the application may answer differently each time.
# * The path must lie under that source, going by its text. A path with `..` in it does not (`lies_under`).
# * A listing may lead elsewhere: a link, or a backend that spells a relative path out. Such a file counts only if a
#   listing of this process led to it; `SourceScan` remembers those pairs of source and file.
# * If an entry fails, the sources are listed again, once, since this process may simply not have looked yet. Then the
#   answer is final for the plan (`SourceScan.refusals`).
# * Where the backend or the sources come from a function, state proves nothing at all about this user. Then only what
#   this very invocation has seen counts (`ScanMemory`), and the first hook of a resumed run looks for itself.
#
# An attacker who writes state can therefore make a run look at its own sources, and nothing more.
# --------------------------------------------------------------------------------------------------------------------


MAX_LED_BYTES = 32_000_000
"""How much memory may be used to remember files outside their sources that listings led to: tens of thousands."""

Led = BoundedCache[tuple[str, str], bool]
"""Files that listings of this process led to outside their sources: source and file."""

SourcesOfRun = Callable[[], Plan[tuple[Sequence[Source], str | None]]]
"""Returns the sources of a run, or why they could not be resolved."""


def make_file_memory() -> Led:
    """Return an empty memory of where listings led."""
    return BoundedCache(MAX_LED_BYTES)


@dataclass(frozen=True)
class ScanSettings:
    """How a middleware looks at sources, and what this process remembers of them."""

    max_depth: int
    readings: Readings
    catalogs: Catalogs
    led: Led | None
    """Where listings led; `None` where each run has a backend of its own, on which the same path may lead elsewhere."""

    is_shared: bool = True
    """Whether every run sees the same sources, so that state may fill in for one that fails."""

    seconds: float = USUAL_SECONDS
    """How long a call of a provider may take."""


class ScanMemory:
    """What one invocation has seen, by what its state held at the time; made for each invocation, safe to share.

    A resumed run has no start, so its first hook looks where `refresh="run"` promises that every run does. And where
    the backend or the sources come from a function, state proves nothing of what this user may see: whoever resumes an
    interrupted run is given the state of the one who started it.
    """

    def __init__(self) -> None:
        self._found: dict[str, Discovery] = {}

    def get(self, record: object) -> Discovery | None:
        """Return what this invocation has found while state held this."""
        return self._found.get(record_key(record))

    def put(self, record: object, found: Discovery) -> None:
        """Remember what was found, for now and for when it has been written to state."""
        # Under both: hooks before the update is applied see the old record, hooks after it the new one.
        self._found[record_key(record)] = found
        self._found[record_key(found.catalog.record)] = found


class SourceScan:
    """One plan's look at the sources: they are resolved once, and listed at most once."""

    def __init__(
        self,
        library: ScanSettings,
        sources: SourcesOfRun,
        looks: "ScanMemory | None" = None,
        runtime: Callable[[], object] = lambda: None,
        *,
        varies: bool = False,
    ) -> None:
        self._library = library
        self._runtime = runtime
        self._sources_of_run = sources
        self._varies = varies
        """Whether each invocation has to look for itself, whatever its state says."""
        self._looks = looks if looks is not None else ScanMemory()
        """What this very invocation has seen."""
        self._led = library.led if library.led is not None else make_file_memory()
        self._sources: Sequence[Source] | None = None
        self._failure: str | None = None
        self.found: Discovery | None = None
        """What a look showed, if one was needed."""

    async def sources(self) -> tuple[Sequence[Source], str | None]:
        """Return the sources of the run, or why they could not be resolved."""
        # Once per plan: a function of the application may answer differently each time.
        if self._sources is None:
            self._sources, self._failure = await self._sources_of_run()
        return self._sources, self._failure

    async def discover(self, known: Catalog | None = None) -> Discovery:
        """Return what the sources hold now; if they cannot be resolved, what is known already."""
        if self.found is None:
            library = self._library
            sources, failure = await self.sources()
            if failure is None:
                self.found = await discover(
                    sources,
                    max_depth=library.max_depth,
                    readings=library.readings,
                    catalogs=library.catalogs,
                    known=known,
                    caller=self._caller,
                )
                # Only what a listing of ours showed is remembered here, never what state claims.
                for pair in self.found.led:
                    self._led.put(pair, value=True)
            else:
                # Every source of the known catalog is unsure: its skills may still exist, so none is unloaded for this.
                known = known or Catalog()
                problems = [problem("sources", "sources-failed", reason=failure)]
                self.found = Discovery(known, problems, frozenset(source.path for source in known.sources))
        return self.found

    @property
    def _caller(self) -> Caller:
        return Caller(self._runtime, self._library.seconds)

    async def read(self, entry: SkillEntry, plan: Plan[ResultT]) -> ResultT:
        """Perform a plan that reads the text or the files of a skill, wherever it comes from."""
        if entry.provided is None:
            return await plan
        sources, _ = await self.sources()
        return await read_from(sources, entry, plan, self._caller)

    async def is_as_listed(self, entry: SkillEntry, content: bytes) -> bool:
        """Whether the frontmatter of an untrusted skill's file is what its provider listed."""
        skill = entry.provided
        if skill is None:
            return True
        sources, _ = await self.sources()
        provider = await provider_of(sources, entry)
        # Nobody to compare with is no agreement.
        return provider is not None and (provider.compares_itself or says_the_same(skill, content, entry.path))

    async def files(self, entry: SkillEntry) -> ProvidedFiles | None:
        """Return the files of a skill as its provider gives them; `None` if they lie in a directory."""
        if entry.provided is None:
            return None
        sources, _ = await self.sources()
        return await find_provided_files(sources, entry, self._caller)

    def started(self, record: object, found: Discovery) -> None:
        """Remember what the start of a run found, so that its other hooks need not look again."""
        self._looks.put(record, found)

    async def catalog(self, record: object, copy: object) -> Catalog:
        """Return the catalog that state names, if it can be believed and is of this run's sources; else look.

        `copy` is `skills_metadata`, of use only while a source cannot be read.
        """
        if self._varies:
            return await self._in_invocation(self._looks, record, copy)
        sources, failure = await self.sources()
        believed = self._library.catalogs.believed(record)
        # While the sources cannot be resolved, the believed catalog stands: its files are still refused by `refusals`.
        if believed is not None and (failure is not None or believed.is_of(sources)):
            return believed
        return await self._in_invocation(self._looks, record, copy)

    async def _in_invocation(self, looks: ScanMemory, record: object, copy: object) -> Catalog:
        """Return what this invocation has seen with its own eyes."""
        found = looks.get(record)
        if found is None:
            # Where runs have sources of their own, nothing of state fills in for one that fails: it may be another
            # user's.
            known = (await self.claimed(record, copy)) if self._library.is_shared else None
            found = await self.discover(known)
            looks.put(record, found)
        self.found = found
        return found.catalog

    async def claimed(self, record: object, copy: object) -> Catalog:
        """Return the catalog that state claims to have, without powers; see `Catalogs.claimed`."""
        size = len(copy) if isinstance(copy, list) else 0
        return await in_worker(lambda: self._library.catalogs.claimed(record, copy), size)

    async def refusals(self, entries: Sequence[SkillEntry]) -> dict[str, str]:
        """Return which of these skills must not be read, and why; the sources are listed if that may help."""
        sources, failure = await self.sources()
        refused = [entry for entry in entries if not self._holds(entry, sources)]
        if refused and failure is None:
            # Perhaps a listing leads to them that this process has not made yet.
            await self.discover()
            refused = [entry for entry in refused if not self._holds(entry, sources)]
        reason = "its path lies under no current source"
        if failure is not None:
            reason = f"the sources could not be resolved ({failure}); try again later"
        return dict.fromkeys((entry.name for entry in refused), reason)

    def _holds(self, entry: SkillEntry, sources: Sequence[Source]) -> bool:
        # Only a `SKILL.md`, and only of a source of this run: whatever else an entry names, nobody reads it by this
        # way.
        if not entry.path.endswith(f"/{SKILL_FILE}") or not any(source.path == entry.source for source in sources):
            return False
        # Only a listing of this process sets it: state cannot.
        if entry.provided is not None:
            return True
        return lies_under(entry.path, entry.source) or self._led.get((entry.source, entry.path)) is not None
