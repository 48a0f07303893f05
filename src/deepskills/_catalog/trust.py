"""Decides what a run may read: only files that its current sources hold, as this process has seen for itself.

Theory of operation
-------------------

`catalog.py` decides whether a catalog from state is believed. That is not enough to read a file from it: an
application may have changed its sources since, or give each user other ones, and then yesterday's catalog names paths
that today's user must not see. So before any text of a skill is read:

* The entry must come from a source of *this* run. Sources are resolved once per plan (`Look.sources`), because a
  function of the application may answer differently each time.
* The path must lie under that source, going by its text. A path with `..` in it does not (`lies_under`).
* A listing may lead elsewhere: a link, or a backend that spells a relative path out. Such a file counts only if a
  listing of this process led to it; `Look` remembers those pairs of source and file.
* If an entry fails, the sources are listed again, once, since this process may simply not have looked yet. Then the
  answer is final for the plan (`Look.refusals`).
* Where the backend or the sources come from a function, state proves nothing at all about this user. Then only what
  this very invocation has seen counts (`Looks`), and the first hook of a resumed run looks for itself.

An attacker who writes state can therefore make a run look at its own sources, and nothing more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deepskills._catalog.catalog import Catalog, Catalogs, record_key
from deepskills._catalog.discovery import Discovery, discover
from deepskills._catalog.entries import Readings, SkillEntry
from deepskills._catalog.sources import Source, lies_under
from deepskills._io.cache import BoundedCache
from deepskills._io.plan import Plan, apart
from deepskills._skillmd.problems import problem
from deepskills._types import SKILL_FILE, SkillProblem

MAX_LED_BYTES = 32_000_000
"""How much memory may be used to remember files outside their sources that listings led to: tens of thousands."""

Led = BoundedCache[tuple[str, str], bool]
"""Files that listings of this process led to outside their sources: source and file."""

SourcesOfRun = Callable[[], Plan[tuple[Sequence[Source], str | None]]]
"""Returns the sources of a run, or why they could not be resolved."""


def remembered_files() -> Led:
    """Return an empty memory of where listings led."""
    return BoundedCache(MAX_LED_BYTES)


@dataclass(frozen=True)
class Library:
    """How a middleware looks at sources, and what this process remembers of them."""

    max_depth: int
    readings: Readings
    catalogs: Catalogs
    led: Led | None
    """Where listings led; `None` where each run has a backend of its own, on which the same path may lead elsewhere."""

    is_shared: bool = True
    """Whether every run sees the same sources, so that state may fill in for one that fails."""

    shown: Callable[[str], str] = str
    """Gives a text with paths as problems name them."""


def shown_problems(problems: Sequence[SkillProblem], shown: Callable[[str], str]) -> list[SkillProblem]:
    """Return problems with their paths as users know them."""
    return [
        SkillProblem(
            path=shown(found["path"]),
            code=found["code"],
            severity=found["severity"],
            message=shown(found["message"]),
        )
        for found in problems
    ]


class Looks:
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


class Look:
    """One plan's look at the sources: they are resolved once, and listed at most once."""

    def __init__(
        self, library: Library, sources: SourcesOfRun, thread_id: str = "", looks: "Looks | None" = None
    ) -> None:
        self._library = library
        self._sources_of_run = sources
        self._thread_id = thread_id
        """The thread of the run; empty if it has none."""
        self._looks = looks
        """What this very invocation has seen, where each has to look for itself."""
        self._led = library.led if library.led is not None else remembered_files()
        self._sources: Sequence[Source] | None = None
        self._failure: str | None = None
        self.found: Discovery | None = None
        """What a look showed, if one was needed."""

    def sources(self) -> Plan[tuple[Sequence[Source], str | None]]:
        """Return the sources of the run, or why they could not be resolved."""
        # Once per plan: a function of the application may answer differently each time.
        if self._sources is None:
            self._sources, self._failure = yield from self._sources_of_run()
        return self._sources, self._failure

    def discover(self, known: Catalog | None = None) -> Plan[Discovery]:
        """Return what the sources hold now; if they cannot be resolved, what is known already."""
        if self.found is None:
            library = self._library
            sources, failure = yield from self.sources()
            if failure is None:
                self.found = yield from discover(
                    sources,
                    max_depth=library.max_depth,
                    readings=library.readings,
                    catalogs=library.catalogs,
                    known=known,
                )
                self.found = replace(self.found, problems=shown_problems(self.found.problems, library.shown))
                # Only what a listing of ours showed is remembered here, never what state claims.
                for pair in self.found.led:
                    self._led.put(pair, value=True)
            else:
                # Every source of the known catalog is unsure: its skills may still exist, so none is unloaded for this.
                known = known or Catalog()
                problems = [problem("sources", "sources-failed", reason=failure)]
                self.found = Discovery(known, problems, frozenset(source.path for source in known.sources))
        return self.found

    def started(self, record: object, found: Discovery) -> None:
        """Remember what the start of a run found, so that its other hooks need not look again."""
        if self._looks is not None:
            self._looks.put(record, found)

    def catalog(self, record: object, copy: object) -> Plan[Catalog]:
        """Return the catalog that state names, if it can be believed and is of this run's sources; else look.

        `copy` is `skills_metadata`, of use only while a source cannot be read.
        """
        if self._looks is not None:
            return (yield from self._in_invocation(self._looks, record, copy))
        catalogs, thread_id = self._library.catalogs, self._thread_id
        sources, failure = yield from self.sources()
        # What a look has shown on this thread is newer than what its state names.
        for believed in (catalogs.found_for(thread_id, record), catalogs.believed(record)):
            # While the sources cannot be resolved, the believed catalog stands: its files are still refused by
            # `refusals`.
            if believed is not None and (failure is not None or believed.is_of(sources)):
                return believed
        found = yield from self.discover((yield from self.claimed(record, copy)))
        catalogs.put_found(thread_id, record, found.catalog)
        return found.catalog

    def _in_invocation(self, looks: Looks, record: object, copy: object) -> Plan[Catalog]:
        """Return what this invocation has seen with its own eyes."""
        found = looks.get(record)
        if found is None:
            # Where runs have sources of their own, nothing of state fills in for one that fails: it may be another
            # user's.
            known = (yield from self.claimed(record, copy)) if self._library.is_shared else None
            found = yield from self.discover(known)
            looks.put(record, found)
        self.found = found
        return found.catalog

    def claimed(self, record: object, copy: object) -> Plan[Catalog]:
        """Return the catalog that state claims to have, without powers; see `Catalogs.claimed`."""
        size = len(copy) if isinstance(copy, list) else 0
        return (yield from apart(lambda: self._library.catalogs.claimed(record, copy), size))

    def refusals(self, entries: Sequence[SkillEntry]) -> Plan[dict[str, str]]:
        """Return which of these skills must not be read, and why; the sources are listed if that may help."""
        sources, failure = yield from self.sources()
        refused = [entry for entry in entries if not self._holds(entry, sources)]
        if refused and failure is None:
            # Perhaps a listing leads to them that this process has not made yet.
            yield from self.discover()
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
        return lies_under(entry.path, entry.source) or self._led.get((entry.source, entry.path)) is not None
