"""`SkillsManager`: skills outside an agent, by the same rules as inside one."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from deepagents.backends import BackendProtocol, FilesystemBackend
from typing_extensions import TypedDict

from deepskills._agent.settings import Settings
from deepskills._backend.plan import Plan
from deepskills._backend.routes import is_backend
from deepskills._catalog.discovery import Discovery, discover
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.lookup import check_known, find_or_raise
from deepskills._catalog.sources import parse_sources
from deepskills._errors import SkillsError
from deepskills._files.assets import list_assets, read_asset, script_path
from deepskills._files.contents import read_contents
from deepskills._format.names import shown_name
from deepskills._loading.budgets import Budgets
from deepskills._types import SkillMetadata, SkillProblem, SkillSource

__all__ = ["SearchResult", "SkillsManager"]

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

README = """# Skills

Put each skill into a directory of its own, with a file `SKILL.md` that starts like this:

    ---
    name: the-directory-name
    description: What the skill does, and when to use it.
    ---

Below it, write the instructions. Scripts go into `scripts/`, further reading into `references/`, templates and other
files into `assets/`. The format is described at https://agentskills.io.
"""


class SearchResult(TypedDict):
    """A skill that a search found."""

    name: str
    description: str


class SkillsManager:
    """Lists, searches and reads skills on a backend. Every method looks anew; each has an async twin.

    A source that cannot be read is no empty one: where nothing was found and a source failed, methods raise
    `SkillsError`, which says which and why. `list_problems` tells of it where something was found.

    Args:
        backend: Where the files are.
        sources: Backend paths that hold skill directories, each alone or as `(path, label)`; the later wins.
        max_depth: How many levels below a source skills may lie.
        backend_timeout: Seconds after which a backend call counts as failed; `None` to wait.

    Raises:
        TypeError: If `backend` is no backend, or a source no path.
        ValueError: If an argument has a value that it cannot have.
    """

    def __init__(
        self,
        *,
        backend: BackendProtocol,
        sources: Sequence[SkillSource],
        max_depth: int = 1,
        backend_timeout: float | None = None,
    ) -> None:
        if not is_backend(backend):
            raise TypeError(f"backend must be a backend, got {backend!r}")
        self._sources = parse_sources(sources)
        # Checked as the middleware checks them; budgets are for agents.
        self._settings = Settings(
            backend, tuple(self._sources), Budgets(0, None), max_depth=max_depth, backend_timeout=backend_timeout
        )

    @classmethod
    def from_directory(cls, path: str | Path, create: bool = False) -> "SkillsManager":  # noqa: FBT001, FBT002 - fixed
        """Return a manager of the skills in a local directory.

        Args:
            path: The directory.
            create: Make the directory if it is missing, with a README that says what goes there.
        """
        directory = Path(path).expanduser().absolute()
        if create and not directory.exists():
            directory.mkdir(parents=True)
            (directory / "README.md").write_text(README, encoding="utf-8")
        backend = FilesystemBackend(root_dir=directory, virtual_mode=False)
        return cls(backend=backend, sources=[directory.as_posix()])

    def list_skills(self) -> list[str]:
        """Return the names of all skills; a missing directory gives none."""
        return self._run(self._names)

    async def alist_skills(self) -> list[str]:
        """Return the names of all skills; a missing directory gives none."""
        return await self._arun(self._names)

    def list_metadata(self) -> list[SkillMetadata]:
        """Return what is known of all skills before they are loaded."""
        return self._run(self._metadata)

    async def alist_metadata(self) -> list[SkillMetadata]:
        """Return what is known of all skills before they are loaded."""
        return await self._arun(self._metadata)

    def list_problems(self) -> list[SkillProblem]:
        """Return everything that is wrong with sources and skills."""
        return self._run(self._problems)

    async def alist_problems(self) -> list[SkillProblem]:
        """Return everything that is wrong with sources and skills."""
        return await self._arun(self._problems)

    def get_skill_content(self, name: str) -> str:
        """Return the whole `SKILL.md` of a skill."""
        return self._run(lambda: self._content(name))

    async def aget_skill_content(self, name: str) -> str:
        """Return the whole `SKILL.md` of a skill."""
        return await self._arun(lambda: self._content(name))

    def search_skills(self, query: str, n: int = 5) -> list[SearchResult]:
        """Return the skills that fit `query`, best first; none if nothing fits."""
        return self._run(lambda: self._found(query, n))

    async def asearch_skills(self, query: str, n: int = 5) -> list[SearchResult]:
        """Return the skills that fit `query`, best first; none if nothing fits."""
        catalog = await self._arun(self._known)
        return await asyncio.to_thread(self._matches, catalog, query, n)

    def list_skill_assets(self, skill_name: str) -> list[str]:
        """Return the files in a skill's three directories, relative to the skill; the log tells if more are there."""
        return self._run(lambda: self._with_skill(skill_name, self._assets))

    async def alist_skill_assets(self, skill_name: str) -> list[str]:
        """Return the files in a skill's three directories, relative to the skill; the log tells if more are there."""
        return await self._arun(lambda: self._with_skill(skill_name, self._assets))

    def get_skill_asset(self, skill_name: str, relative_path: str) -> str:
        """Return the text of one of a skill's files."""
        return self._run(lambda: self._with_skill(skill_name, lambda skill: read_asset(skill, relative_path)))

    async def aget_skill_asset(self, skill_name: str, relative_path: str) -> str:
        """Return the text of one of a skill's files."""
        return await self._arun(lambda: self._with_skill(skill_name, lambda skill: read_asset(skill, relative_path)))

    def get_skill_script_path(self, skill_name: str, script_name: str) -> str:
        """Return a path by which a script of a skill can be run."""
        return self._run(lambda: self._with_skill(skill_name, lambda skill: script_path(skill, script_name)))

    async def aget_skill_script_path(self, skill_name: str, script_name: str) -> str:
        """Return a path by which a script of a skill can be run."""
        return await self._arun(lambda: self._with_skill(skill_name, lambda skill: script_path(skill, script_name)))

    def _run(self, plan: Callable[[], Plan[ResultT]]) -> ResultT:
        return self._settings.perform(plan(), None)

    async def _arun(self, plan: Callable[[], Plan[ResultT]]) -> ResultT:
        return await self._settings.aperform(plan(), None)

    def _discovery(self) -> Plan[Discovery]:
        memory = self._settings.memory
        return discover(
            self._sources, max_depth=self._settings.max_depth, readings=memory.readings, catalogs=memory.catalogs
        )

    def _known(self) -> Plan[Discovery]:
        found = yield from self._discovery()
        check_known(found.catalog.entries, found.problems)
        return found

    def _names(self) -> Plan[list[str]]:
        found = yield from self._known()
        return [entry.name for entry in found.catalog.entries]

    def _metadata(self) -> Plan[list[SkillMetadata]]:
        found = yield from self._known()
        return found.catalog.copy_skills()

    def _problems(self) -> Plan[list[SkillProblem]]:
        found = yield from self._discovery()
        return found.problems

    def _content(self, name: str) -> Plan[str]:
        entry = yield from self._entry(name)
        contents = yield from read_contents([entry], depth=1)
        text, failure = contents[entry.name].text()
        if failure is not None:
            raise SkillsError(f"The skill '{shown_name(name)}' could not be read: {failure}.")
        return text

    def _found(self, query: str, n: int) -> Plan[list[SearchResult]]:
        return self._matches((yield from self._known()), query, n)

    def _matches(self, found: Discovery, query: str, n: int) -> list[SearchResult]:
        hits = self._settings.memory.search.search(found.catalog, query, n)
        check_known(hits, found.problems)
        return [SearchResult(name=entry.name, description=entry.description) for entry in hits]

    def _entry(self, name: str) -> Plan[SkillEntry]:
        found = yield from self._discovery()
        return find_or_raise(found.catalog, found.problems, name)

    def _skill(self, name: str) -> Plan[SkillMetadata]:
        entry = yield from self._entry(name)
        return entry.skill

    def _assets(self, skill: SkillMetadata) -> Plan[list[str]]:
        assets = yield from list_assets(skill)
        for note in assets.notes:
            logger.warning("Files of skill '%s': %s", shown_name(skill["name"]), note)
        return assets.paths

    def _with_skill(self, name: str, plan: Callable[[SkillMetadata], Plan[ResultT]]) -> Plan[ResultT]:
        skill = yield from self._skill(name)
        return (yield from plan(skill))
