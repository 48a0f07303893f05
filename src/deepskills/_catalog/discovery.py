"""Finds the skills of all sources, and decides which of them a run may read.

Finding: all sources are looked at, at the same time, and their skills are merged by name. What a source is makes no
difference here: `DirectoryProvider` shows the directories of a backend, `list_skills` what providers have.

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
from deepskills._errors import SkillsError
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import Attempt, Failed, File, FindRoutes, Plan, ResultT, Route, in_worker, read_files
from deepskills._providers.ask import NO_CALLER, USUAL_SECONDS, Caller, list_skills
from deepskills._providers.base import ServesSkills, SkillProvider
from deepskills._providers.directory import DirectoryProvider
from deepskills._providers.files import ProvidedFiles
from deepskills._providers.sources import Listed, Source, distinct
from deepskills._skillmd.keys import INVOCATION_FILE
from deepskills._skillmd.problems import SOURCE_ERRORS, problem, quoted
from deepskills._types import SKILL_FILE, LoadRecord, SkillMetadata, SkillProblem

_NAME_FORM = frozenset({"name-invalid", "name-directory-mismatch"})


@dataclass(frozen=True)
class Discovery:
    """What one look at the sources found."""

    catalog: Catalog
    problems: list[SkillProblem] = field(default_factory=list)
    unsure: frozenset[str] = frozenset()
    """Paths of sources that failed in part or in whole: what they no longer show may still be there."""

    is_resolved: bool = True
    """Whether it is known which sources there are; if not, nothing can be concluded."""

    unusable: frozenset[str] = frozenset()
    """Paths where a file was found that no skill could be made of."""

    shadowed: Sequence[SkillProblem] = ()
    """What later sources override. That is how sources are layered, so it is wrong only where it was not meant."""

    @property
    def is_complete(self) -> bool:
        """Whether what was not found is not there."""
        return self.is_resolved and not self.unsure


async def discover(  # noqa: PLR0913 - what a look at sources depends on
    sources: Sequence[Source],
    *,
    directories: DirectoryProvider,
    readings: Readings,
    catalogs: Catalogs,
    known: Catalog | None = None,
    retried: frozenset[str] = frozenset(),
    caller: Caller = NO_CALLER,
) -> Discovery:
    """Find the skills of all sources, whatever they are, at the same time.

    A source that fails keeps the entries that `known` has from it. Where only these sources and files are `retried`, no
    other file that `known` has is read again. Providers are asked for the run of `caller`.
    """
    # A source that is named twice is searched once, in the place where it has the higher priority.
    own = await with_providers(distinct(sources))
    asked = [(source, caller.ask(source.provider)) for source in own if source.provider is not None]
    kept = _recall_files(known, readings, own, retried) if retried and known is not None else {}
    plans = [directories.list_skills([source for source in own if source.provider is None], kept)]
    if asked:
        plans.append(list_skills(asked))
    in_directories, *provided = [iter(found) for found in await side_by_side(*plans)]
    shown = [next(in_directories if source.provider is None else provided[0]) for source in own]
    before: dict[str, list[SkillEntry]] = {}
    for entry in known.entries if known is not None else ():
        before.setdefault(entry.source, []).append(entry)

    def merge() -> Discovery:
        harvests = [_Harvest(listed, readings, before.get(listed.source.path, []), kept) for listed in shown]
        return _merge(sources, harvests, catalogs)

    return await in_worker(merge, sum(len(listed.paths) for listed in shown))


def _recall_files(
    known: Catalog, readings: Readings, sources: Sequence[Source], retried: frozenset[str]
) -> dict[str, Reading]:
    """Return what the files of a catalog said that need not be read again; only where a `SKILL.md` alone decides."""
    again = retried.union(source.path for source in sources if source.plugin is not None)
    alone = (entry for entry in known.entries if entry.provided is None and INVOCATION_FILE not in entry.frontmatter)
    recalled = {
        entry.path: readings.recall(entry.path, entry.digest)
        for entry in alone
        if again.isdisjoint((entry.source, entry.path))
    }
    return {path: reading for path, reading in recalled.items() if reading is not None}


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
    reply = await Attempt(FindRoutes(paths))
    routes = {} if isinstance(reply, Failed) else reply
    return [found for source in sources for found in _divide(source, routes.get(source.path))]


def _divide(source: Source, route: Route | None) -> list[Source]:
    """Return a source once for each provider that serves it; a directory as it is."""
    if source.provider is not None or route is None or not isinstance(route.backend, ServesSkills):
        return [source]
    providers = route.backend.providers_at(route.path, route.mount)
    return [replace(source, provider=provider) for provider in providers] or [source]


async def provider_of(sources: Iterable[Source], entry: SkillEntry) -> SkillProvider | None:
    """Return the provider of a skill, by its source; `None` if it is no longer among the sources."""
    # Asked of the sources of this run and never kept: another user's provider may list the very same.
    own = [source for source in sources if source.path == entry.source]
    label = entry.origin["label"] if entry.origin is not None else None
    for source in await with_providers(own):
        if source.provider is not None and label in (None, source.provider.label):
            return source.provider
    return None


class _Harvest:
    """The skills and problems of one source, its files read."""

    def __init__(
        self, listed: Listed, readings: Readings, known: Sequence[SkillEntry], kept: Mapping[str, Reading]
    ) -> None:
        self.source = listed.source
        self.entries: dict[str, SkillEntry] = {}
        self.problems: list[SkillProblem] = []
        self.is_unsure = listed.is_unsure
        self.unusable = [*listed.unusable]
        self._listed = listed
        self._readings = readings
        self._kept = kept
        self._before = self._own_of(known)
        for path in listed.paths:
            self._take(path)
        if listed.skills:
            # So that a list in another order is the same catalog.
            self.entries = dict(sorted(self.entries.items()))
        # What the source did not show this time may still be there. What it showed and could not be read is not lost
        # either: `_take` keeps it.
        if listed.is_unsure:
            seen = {entry.path for entry in self.entries.values()}.union(listed.paths, listed.absent, listed.unusable)
            for path, entry in self._before.items():
                if path not in seen:
                    self._add(entry)
        found_any = bool(self.entries or self.problems or listed.problems)
        self.problems = [*listed.source_problems(found_any=found_any), *listed.problems, *self.problems]

    def _own_of(self, known: Sequence[SkillEntry]) -> dict[str, SkillEntry]:
        """Return by path those of the known entries that this source gave: one path may be several sources."""
        # By two namespaces; each keeps the entries that bear its own. Or by several providers that serve it.
        prefix = f"{self.source.namespace}:" if self.source.namespace else ""
        label = self.source.provider.label if self.source.provider is not None else None
        return {
            entry.path: entry
            for entry in known
            if entry.name.startswith(prefix)
            and (label is None or entry.origin is None or entry.origin["label"] == label)
        }

    def _take(self, path: str) -> None:
        listed = self._listed
        file, skill, kept = listed.files.get(path), listed.skills.get(path), self._kept.get(path)
        if kept is None and file is not None and file.content is None:
            self.problems.append(_word_unread(path, file))
            # It is there and could not be read now. A FIFO or a file that is too large is a fault of its own, not an
            # outage.
            if not file.is_missing and file.unfit is None:
                self.is_unsure = True
                if path in self._before:
                    self._add(self._before[path])
            return
        content = file.content if file is not None else None
        if kept is not None:
            reading = kept
        elif skill is not None and self.source.provider is not None:
            reading = self._readings.read_listed(skill, path, self.source.provider, content)
        else:
            reading = self._readings.read(path, content or b"", listed.beside.get(path))
        # Most files have none.
        if reading.problems:
            self.problems += _about(reading, self.source)
        if reading.metadata is not None:
            self._add(self._readings.entry(reading, self.source.path, self.source.name_of))
        else:
            self.unusable.append(path)

    def _add(self, entry: SkillEntry) -> None:
        winner = self.entries.setdefault(entry.name, entry)
        if winner is not entry:
            self.problems.append(
                problem(entry.path, "skill-duplicate", name=quoted(entry.name), winner=quoted(winner.path))
            )


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
    if file.unfit == "not-a-file":
        return problem(path, "skill-not-a-file")
    if file.unfit == "too-large":
        return problem(path, "file-too-large", size=file.size)
    return problem(path, "skill-unreadable", reason=_REFUSED_PATH if file.error == "invalid_path" else file.error)


_REFUSED_PATH = "the backend refuses its path (invalid_path), as it does a link that leads nowhere or out of its root"
"""What deepagents' code for a refused path says to a reader."""


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
    catalog = catalogs.remember(list(entries.values()), sources)
    return Discovery(
        catalog=catalog,
        problems=problems + requirement_problems(catalog.entries, catalog.find),
        shadowed=shadowed,
        unsure=frozenset(harvest.source.path for harvest in harvests if harvest.is_unsure),
        unusable=frozenset(path for harvest in harvests for path in harvest.unusable),
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
# `catalog.py` decides whether a catalog from state is trusted. That is not enough to read a file from it: an
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


SourcesOfRun = Callable[[], Plan[tuple[Sequence[Source], str | None]]]
"""Returns the sources of a run, or why they could not be resolved."""


@dataclass(frozen=True)
class ScanSettings:
    """How a middleware looks at sources, and what this process remembers of them."""

    directories: Callable[[], DirectoryProvider]
    """Gives what lists directories: each time a new one, where each run has a backend of its own."""

    readings: Readings
    catalogs: Catalogs

    is_shared: bool = True
    """Whether every run sees the same sources, so that what one has seen may stand for one that fails."""

    varies: bool = False
    """Whether each invocation has to look for itself, whatever its state says."""

    seconds: float = USUAL_SECONDS
    """How long a call of a provider may take."""


class SourceScan:
    """One plan's look at the sources: they are resolved once, and listed at most once.

    `seen` is what the invocation has seen, by what its state held at the time. A resumed run has no start, so its first
    hook looks where `refresh="run"` promises that every run does. And where the backend or the sources come from a
    function, state proves nothing of what this user may see: a user who resumes an interrupted run is given the state
    of the one who started it.
    """

    def __init__(
        self,
        settings: ScanSettings,
        sources: SourcesOfRun,
        seen: dict[str, Discovery] | None = None,
        runtime: Callable[[], object] = lambda: None,
        loaded: Mapping[str, LoadRecord] | None = None,
        record: object = None,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._sources_of_run = sources
        self._seen = seen if seen is not None else {}
        self._loaded = loaded or {}
        """What is loaded, by name."""
        self._record = record
        """The catalog as state names it."""
        self._directories = settings.directories()
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

    async def discover(self, known: Catalog | None = None, retried: frozenset[str] = frozenset()) -> Discovery:
        """Return what the sources hold now; if they cannot be resolved, what is known already."""
        if self.found is None:
            settings = self._settings
            sources, failure = await self.sources()
            if failure is None:
                self.found = await discover(
                    sources,
                    directories=self._directories,
                    readings=settings.readings,
                    catalogs=settings.catalogs,
                    known=known,
                    retried=retried,
                    caller=self._caller,
                )
                await self._read_loaded(self.found.catalog)
            else:
                problems = [problem("sources", "sources-failed", reason=failure)]
                self.found = Discovery(known or Catalog(), problems, is_resolved=False)
        return self.found

    async def _read_loaded(self, catalog: Catalog) -> None:
        """Read the files of loaded skills that were only listed: what they allow and forbid, a list need not say."""
        # Of an untrusted provider the list counts, which was compared with the file at the load.
        unread = [
            entry
            for name, record in self._loaded.items()
            if (entry := catalog.by_name.get(name)) is not None
            and entry.provided is not None
            and entry.origin is None
            and entry.path == record["path"]
            and entry.digest in (record["digest"], record.get("listed"))
            and self._settings.readings.recall(record["path"], record["digest"]) is None
        ]
        plans = [self.read(entry, read_files([entry.path])) for entry in unread]
        for entry, files in zip(unread, await side_by_side(*plans), strict=True):
            content = files[entry.path].content
            # What could not be read stays unknown, and judges of calls refuse.
            if content is not None:
                self._settings.readings.read(entry.path, content)

    @property
    def _caller(self) -> Caller:
        return Caller(self._runtime, self._settings.seconds)

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
        # Without a provider there is nothing to compare with, which is no agreement.
        return provider is not None and (provider.compares_itself or says_the_same(skill, content, entry.path))

    async def files(self, entry: SkillEntry) -> ProvidedFiles | None:
        """Return the files of a skill as its provider gives them; `None` if they lie in a directory."""
        if entry.provided is None:
            return None
        sources, _ = await self.sources()
        return await find_provided_files(sources, entry, self._caller)

    async def look(self, retried: frozenset[str] = frozenset()) -> Discovery:
        """List the sources; for one that fails stands what this process knew, unless that may be another user's."""
        known = self._settings.catalogs.recognize(self._record) if self._settings.is_shared else None
        found = await self.discover(known, retried)
        # Under both: hooks before the update is applied see the old record, hooks after it the new one.
        self._seen[record_key(self._record)] = self._seen[found.catalog.fingerprint] = found
        return found

    async def catalog(self) -> Catalog:
        """Return the catalog that state names, if this process made it and it is of this run's sources; else look."""
        if not self._settings.varies:
            sources, failure = await self.sources()
            made = self._settings.catalogs.recognize(self._record)
            # While the sources cannot be resolved it stands: its files are still refused by `refusals`.
            if made is not None and (failure is not None or made.is_of(sources)):
                return made
        # What this invocation has seen, or else sees now.
        self.found = self._seen.get(record_key(self._record)) or await self.look()
        return self.found.catalog

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
        # Only a `SKILL.md`, and only of a source of this run: what else an entry names is not
        # read this way.
        if not entry.path.endswith(f"/{SKILL_FILE}") or not any(source.path == entry.source for source in sources):
            return False
        # Only a listing of this process sets it: state cannot.
        if entry.provided is not None:
            return True
        return self._directories.holds(entry.path, entry.source)
