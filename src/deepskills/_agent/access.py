"""What a run may read: only what its sources hold, and where their listings led in this process.

A run may go on in a process that has listed nothing yet, or on a thread whose catalog another class wrote. Then the
sources are looked at once, within the same plan, before anything is refused.
"""

from collections.abc import Sequence

from deepskills._agent.settings import Settings
from deepskills._backend.plan import Plan
from deepskills._catalog.discovery import Catalog, Known, discover
from deepskills._catalog.origins import readable_from
from deepskills._catalog.sources import Source
from deepskills._format.problems import problem


class Look:
    """The sources of one plan: asked for once, and listed once at most."""

    def __init__(self, settings: Settings, runtime: object) -> None:
        self._settings = settings
        self._runtime = runtime
        self._origins = settings.origins_of_run()
        self._sources: list[Source] | None = None
        self._failure: str | None = None
        self._found: Catalog | None = None

    def may_read(self, path: str) -> bool:
        """Whether a path lies where the sources are, as far as they were looked at."""
        return readable_from(path, self._sources or (), self._origins.seen())

    def why_not(self) -> str:
        """Say why a path may not be read."""
        if self._failure is not None:
            return f"the sources could not be had ({self._failure}); try again later"
        return "its path lies under no current source"

    def learn(self, paths: Sequence[str]) -> Plan[None]:
        """Ask for the sources, and list them if they do not account for all of `paths`."""
        yield from self._ask()
        if not all(map(self.may_read, paths)):
            yield from self.discover()

    def discover(self) -> Plan[Catalog]:
        """Return what the sources hold now, and what is wrong with them."""
        if self._found is None:
            sources = yield from self._ask()
            settings = self._settings
            catalog = yield from discover(
                sources, max_depth=settings.max_depth, read=settings.cache.read, known=Known()
            )
            self._origins.note(catalog.origins)
            if self._failure is not None:
                catalog.problems.append(problem("sources", "sources-failed", reason=self._failure))
            self._found = catalog
        return self._found

    def _ask(self) -> Plan[list[Source]]:
        if self._sources is None:
            self._sources, self._failure = yield from self._settings.sources_in(self._runtime)
        return self._sources
