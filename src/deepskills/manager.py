"""`SkillsManager`: the skills of some sources outside an agent, by the same rules as inside one.

For applications that show skills to people: a list, a search box, an editor. It drives the same plans as the
middleware; each method has an async twin that drives the same plan on the backend's async methods.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from deepagents.backends import BackendProtocol, FilesystemBackend
from langchain_core.embeddings import Embeddings
from typing_extensions import TypedDict

from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._catalog.discovery import discover, read_from
from deepskills._catalog.lookup import check_known, find_index, find_or_raise
from deepskills._catalog.ranking import Ranker
from deepskills._errors import SkillsError
from deepskills._files.assets import list_assets, read_asset, script_path
from deepskills._files.paths import STANDARD_DIRECTORIES, AssetDirectories
from deepskills._io.backends import is_backend, with_virtual_hint
from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import File, Plan, lies_under, parent, read_files
from deepskills._loading.budget import Budgets
from deepskills._middleware.config import Settings, check_no_backend_class, refuse_unknown
from deepskills._middleware.reporting import log_problems
from deepskills._middleware.run import tool_runtime
from deepskills._providers.ask import Caller
from deepskills._providers.base import SCHEME
from deepskills._providers.sources import SkillSource, parse_sources
from deepskills._skillmd.read import decode_skill
from deepskills._skillmd.text import clean_name, is_text
from deepskills._types import SKILL_FILE, SkillMetadata, SkillProblem

__all__ = ["SearchResult", "SkillsManager"]

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

EMBEDDINGS_FAILED = "embeddings-failed"
"""Code of the problem that search goes by words alone."""

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


_LOSERS = frozenset({"skill-shadowed", "skill-duplicate"})
"""Codes of problems about files that lost a name to another."""


@dataclass(frozen=True)
class _Snapshot:
    """What a look at all sources found, and when."""

    catalog: Catalog
    problems: Sequence[SkillProblem]
    shadowed: Sequence[SkillProblem] = ()
    """Files that others of the same name in later sources override."""

    seen: float = field(default_factory=time.monotonic)

    def is_younger_than(self, seconds: float) -> bool:
        """Whether the look was that recent."""
        return time.monotonic() - self.seen < seconds

    @cached_property
    def _losers(self) -> frozenset[str]:
        return frozenset(found["path"] for found in (*self.problems, *self.shadowed) if found["code"] in _LOSERS)

    def rivals(self, entry: SkillEntry) -> list[str]:
        """Return where a skill of the same name would usually lie if it had come since, in each source."""
        folder = parent(entry.path).rpartition("/")[2]
        # A remembered catalog is used as long as none of these places holds a file: a newcomer there might win the
        # name.
        folders = sorted({name for name in (folder, entry.name, entry.name.rpartition(":")[2]) if _may_be_folder(name)})
        sources = [source.path.rstrip("/") for source in self.catalog.sources]
        paths = dict.fromkeys(f"{source}/{name}/{SKILL_FILE}" for source in sources for name in folders)
        return [path for path in paths if path != entry.path and path not in self._losers]


def _may_be_folder(name: str) -> bool:
    return bool(name) and is_text(name) and not name.startswith(".") and not set(name) & set("/\\\x00")


class SkillsManager:
    """Lists, searches and reads skills on a backend; each method has an async twin.

    Methods see what is there now: those about all skills look at all sources, unless `max_age` allows them to use what
    was seen a moment ago; those about one skill read its own directory. A skill that has come since and takes the name
    of another is noticed at once if its directory has that name too, else by the next look at all sources.

    A source that cannot be read is not an empty one: where nothing was found and a source failed, methods raise
    `SkillsError`, which says which and why. `list_problems` reports it where something was found.

    Args:
        backend: Where the files are.
        sources: Backend paths that hold skill directories, each alone or as `(path, label)`; the later wins.
        max_depth: How many levels below a source skills may lie.
        backend_timeout: Seconds after which a backend call counts as failed; `None` to wait.
        max_age: For how many seconds `list_*` and `search_skills` use what was seen; 0 to look every time.
        embeddings: LangChain embeddings, to search by meaning as well as by words.
        asset_directories: Directories of a skill whose files may be read, or `"all"`: any but hidden files.

    Raises:
        TypeError: If `backend` is not a backend, a source not a path, or `embeddings` not embeddings.
        ValueError: If an argument has a value that it cannot have.
    """

    @refuse_unknown
    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        *,
        backend: BackendProtocol | None = None,
        sources: Sequence[SkillSource],
        max_depth: int = 1,
        backend_timeout: float | None = None,
        max_age: float = 0,
        embeddings: Embeddings | None = None,
        asset_directories: AssetDirectories = STANDARD_DIRECTORIES,
    ) -> None:
        check_no_backend_class(backend)
        if backend is not None and not is_backend(backend):
            raise TypeError(f"backend must be a backend, got {backend!r}")
        if not isinstance(max_age, int | float) or not max_age >= 0:
            raise ValueError(f"max_age must be 0 or more seconds, got {max_age!r}")
        self._sources = parse_sources(sources)
        # Checked as the middleware checks them; budgets are for agents.
        self._settings = Settings(
            backend,
            tuple(self._sources),
            Budgets(0, None),
            max_depth=max_depth,
            backend_timeout=backend_timeout,
            asset_directories=asset_directories,
        )
        self._max_age = max_age
        self._ranker = Ranker(embeddings)
        self._remembered: _Snapshot | None = None
        self._trouble: str | None = None

    @classmethod
    def from_directory(  # the signature is fixed
        cls,
        path: str | Path,
        create: bool = False,  # noqa: FBT001, FBT002
        **options: Any,  # noqa: ANN401 - checked by the constructor
    ) -> "SkillsManager":
        """Return a manager of the skills in a local directory.

        Args:
            path: The directory.
            create: Make the directory if it is missing, with a README that says what goes there.
            options: Further arguments of the manager, such as `max_age`.
        """
        directory = Path(path).expanduser().absolute()
        if create and not directory.exists():
            directory.mkdir(parents=True)
            (directory / "README.md").write_text(README, encoding="utf-8")
        backend = FilesystemBackend(root_dir=directory, virtual_mode=False)
        return cls(backend=backend, sources=[directory.as_posix()], **options)

    def refresh(self) -> None:
        """Look at all sources now, whatever `max_age` says."""
        self._run(self._look)

    async def arefresh(self) -> None:
        """Look at all sources now, whatever `max_age` says."""
        await self._arun(self._look)

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
        return self._run(lambda: self._search(query, n))

    async def asearch_skills(self, query: str, n: int = 5) -> list[SearchResult]:
        """Return the skills that fit `query`, best first; none if nothing fits."""
        return await self._arun(lambda: self._search(query, n))

    def list_skill_assets(self, skill_name: str) -> list[str]:
        """Return the files in a skill's `asset_directories`, relative to the skill; the log tells if there are more."""
        return self._run(lambda: self._with_skill(skill_name, self._assets))

    async def alist_skill_assets(self, skill_name: str) -> list[str]:
        """Return the files in a skill's `asset_directories`, relative to the skill; the log tells if there are more."""
        return await self._arun(lambda: self._with_skill(skill_name, self._assets))

    def get_skill_asset(self, skill_name: str, relative_path: str) -> str:
        """Return the text of one of a skill's files."""
        return self._run(lambda: self._with_skill(skill_name, lambda skill: self._asset(skill, relative_path)))

    async def aget_skill_asset(self, skill_name: str, relative_path: str) -> str:
        """Return the text of one of a skill's files."""
        return await self._arun(lambda: self._with_skill(skill_name, lambda skill: self._asset(skill, relative_path)))

    def get_skill_script_path(self, skill_name: str, script_name: str) -> str:
        """Return a path by which a script of a skill can be run."""
        return self._run(lambda: self._with_skill(skill_name, lambda skill: self._script(skill, script_name)))

    async def aget_skill_script_path(self, skill_name: str, script_name: str) -> str:
        """Return a path by which a script of a skill can be run."""
        return await self._arun(lambda: self._with_skill(skill_name, lambda skill: self._script(skill, script_name)))

    def _run(self, plan: Callable[[], Plan[ResultT]]) -> ResultT:
        return drive(plan(), seconds=self._settings.backend_timeout, backend=self._settings.fixed_backend)

    async def _arun(self, plan: Callable[[], Plan[ResultT]]) -> ResultT:
        return await adrive(plan(), seconds=self._settings.backend_timeout, backend=self._settings.fixed_backend)

    async def _look(self) -> _Snapshot:
        """Look at all sources."""
        settings = self._settings.scan_settings
        found = await discover(
            self._sources,
            directories=settings.directories(),
            readings=settings.readings,
            catalogs=settings.catalogs,
            caller=self._caller,
        )
        backend = self._settings.backend
        problems = [with_virtual_hint(problem, backend) for problem in found.problems]
        # Whoever lists the skills of a directory that is missing gets none, and should not have to guess why.
        log_problems((problem for problem in problems if problem["code"] == "source-missing"), self._settings)
        self._remembered = _Snapshot(found.catalog, problems, found.shadowed)
        return self._remembered

    async def _recent(self) -> _Snapshot:
        """Return what is there, as old as `max_age` allows."""
        remembered = self._remembered
        if remembered is not None and remembered.is_younger_than(self._max_age):
            return remembered
        return await self._look()

    async def _require_known(self) -> _Snapshot:
        remembered = await self._recent()
        check_known(remembered.catalog.entries, remembered.problems)
        return remembered

    async def _names(self) -> list[str]:
        return [entry.name for entry in (await self._require_known()).catalog.entries]

    async def _metadata(self) -> list[SkillMetadata]:
        return (await self._require_known()).catalog.copy_skills()

    async def _problems(self) -> list[SkillProblem]:
        problems = [problem.copy() for problem in (await self._recent()).problems]
        trouble = self._trouble
        if trouble is not None:
            problems.append(SkillProblem(path="", code=EMBEDDINGS_FAILED, severity="warning", message=trouble))
        return problems

    async def _search(self, query: str, n: int) -> list[SearchResult]:
        remembered = await self._require_known()
        entries = remembered.catalog.entries
        ranking = await self._ranker.search(lambda: find_index(entries), query, n)
        # Once per trouble, not per search.
        if ranking.trouble is not None and ranking.trouble != self._trouble:
            logger.warning("Search by meaning: %s", ranking.trouble)
        self._trouble = ranking.trouble
        check_known(ranking.names, remembered.problems)
        found = [remembered.catalog.by_name[name] for name in ranking.names]
        return [SearchResult(name=entry.name, description=entry.description) for entry in found]

    async def _content(self, name: str) -> str:
        entry, content = await self._skill(name)
        text, problem = decode_skill(content, path=entry.path)
        if problem is not None:
            raise SkillsError(f"The skill '{clean_name(name)}' could not be read: {problem['message']}.")
        return text

    async def _skill(self, name: str) -> tuple[SkillEntry, bytes]:
        """Return a skill and its file, from where it was last seen if it is still there, else from a look at all."""
        # With 10,000 skills a look at all sources takes seconds; checking that one skill is still there takes one read.
        remembered = self._remembered
        entry = remembered.catalog.find(name) if remembered is not None else None
        # What a provider has, only it knows: it is asked again, unless it was just now.
        is_recent = remembered is not None and remembered.is_younger_than(self._max_age)
        if remembered is not None and entry is not None and (entry.provided is None or is_recent):
            present = await self._still(remembered, entry)
            if present is not None:
                return present
        remembered = await self._look()
        entry = find_or_raise(remembered.catalog, remembered.problems, name)
        file = await self._read_text(entry)
        if file.content is None:
            raise SkillsError(f"The skill '{clean_name(name)}' could not be read: {file.error}.")
        return entry, file.content

    async def _read_text(self, entry: SkillEntry) -> File:
        files = await read_from(self._sources, entry, read_files([entry.path]), self._caller)
        return files[entry.path]

    @property
    def _caller(self) -> Caller:
        return Caller(lambda: tool_runtime({}, None), self._settings.provider_seconds)

    async def _still(self, remembered: _Snapshot, entry: SkillEntry) -> tuple[SkillEntry, bytes] | None:
        """Return the skill as its file is now; `None` if that is gone, has another name, or has got a rival."""
        if entry.provided is not None:
            content = (await self._read_text(entry)).content
            return None if content is None else (entry, content)
        # A skill that came since may have taken over the name. It is looked for where it would usually lie.
        rivals = remembered.rivals(entry)
        files = await read_files([entry.path, *rivals])
        named = {
            path: metadata
            for path in (entry.path, *rivals)
            if (content := files[path].content) is not None
            and (metadata := self._settings.cache.readings.read(path, content).metadata) is not None
            and self._name_at(path, metadata["name"]) == entry.name
        }
        content = files[entry.path].content
        # A rival may win or lose; only a look at all sources can tell.
        if content is None or named.keys() != {entry.path}:
            return None
        skill = named[entry.path].copy()
        skill["name"] = entry.name
        return replace(entry, skill=skill), content

    def _name_at(self, path: str, name: str) -> str:
        """Return what the skill in a file is called by the last source that holds it."""
        # The last one, as in discovery.
        own = next((source for source in reversed(self._sources) if lies_under(path, source.path)), None)
        return own.name_of(name) if own is not None else name

    async def _assets(self, skill: SkillMetadata) -> list[str]:
        assets = await list_assets(skill, self._settings.asset_directories)
        for note in assets.notes:
            logger.warning("Files of skill '%s': %s", clean_name(skill["name"]), note)
        return assets.paths

    def _asset(self, skill: SkillMetadata, relative_path: str) -> Plan[str]:
        return read_asset(skill, relative_path, self._settings.asset_directories)

    async def _script(self, skill: SkillMetadata, script_name: str) -> str:
        path = await script_path(skill, script_name, self._settings.asset_directories)
        if path.startswith(SCHEME):
            raise SkillsError(f"The skill '{clean_name(skill['name'])}' has no directory, so its scripts have no path.")
        return path

    async def _with_skill(self, name: str, plan: Callable[[SkillMetadata], Plan[ResultT]]) -> ResultT:
        entry, _content = await self._skill(name)
        return await read_from(self._sources, entry, plan(entry.skill), self._caller)
