"""`DatabaseSkillAdapter`: the store's skills for agents that have no files of their own."""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from langchain.agents.middleware.types import ContextT, ResponseT
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills import SkillsMiddleware
from deepskills.store._rules import owner_key
from deepskills.store._service import SkillService, UserId, as_id
from deepskills.store._snapshot import SnapshotBackend, StoredTree, tree_of
from deepskills.store._unavailable import unavailable

logger = logging.getLogger("deepskills")

SessionFactory: TypeAlias = Callable[[], AsyncSession]
"""Opens a session, as SQLAlchemy's `async_sessionmaker` does."""

UserOfRun: TypeAlias = UserId | Callable[[Any], UserId | None] | None
"""A user, nobody, or a function of the runtime that says whose run it is."""

SOURCE_ROOT = "/skills"
"""Where the skills of each user appear to lie, each user's in a directory of its own."""

SOURCE_LABEL = "Database"
"""How the source is shown."""


class DatabaseSkillAdapter(SkillsMiddleware[ContextT, ResponseT]):
    """Gives an agent the skills of a user, read from the store at the start of each run and at each load.

    One instance serves any number of users, threads and runs. A thread that another user resumes shows that user's
    skills alone; what was loaded before is unloaded. When the database does not answer, the run goes on, with a problem
    in `skills_problems`.

    `ainvoke` works on the caller's event loop. `invoke` works on one private event loop in a thread of its own. A
    connection belongs to the loop that opened it, so a pooled PostgreSQL engine must not serve both: give the adapter
    an engine with `poolclass=NullPool`, or one that nothing else uses.

    Args:
        user_id: Whose skills: a user id, `None` for nobody (public and system skills), or a function of the runtime,
            which has `.context` and `.store`.
        skill_ids: Only these skills, as far as the user may see them; `None` for all that the user may see.
        db_session_factory: Opens a session, such as an `async_sessionmaker`.
        include_public: Whether public and system skills are among them; without, only the user's own.
        options: The options of `SkillsMiddleware`, save `backend` and `sources`.

    Raises:
        TypeError: If an option is not one of those.
        ValueError: If an option has a value that it cannot have.
    """

    def __init__(
        self,
        *,
        user_id: UserOfRun,
        skill_ids: Collection[UUID] | None = None,
        db_session_factory: SessionFactory,
        include_public: bool = True,
        **options: Any,  # noqa: ANN401 - the options of SkillsMiddleware
    ) -> None:
        taken = sorted({"backend", "sources"} & options.keys())
        if taken:
            raise TypeError(f"The adapter sets {' and '.join(taken)} itself, so that skills come from the database.")
        view = _View(
            user_id,
            frozenset(as_id(given) or given for given in skill_ids) if skill_ids is not None else None,
            db_session_factory,
            include_public,
        )
        super().__init__(backend=view.backend_for, sources=view.sources_for, **options)


@dataclass(frozen=True)
class _View:
    """Which skills the adapter shows, and where they appear to lie."""

    user_id: UserOfRun
    skill_ids: frozenset[UUID] | None
    session_factory: SessionFactory
    include_public: bool

    def backend_for(self, runtime: object) -> SnapshotBackend:
        """Return a backend that shows the skills of this run's user as they are now."""
        owner = self._owner(runtime)
        root = _root(owner)

        async def read_tree() -> StoredTree:
            async with self._service() as service:
                skills = await service.list_skills(owner, self.include_public, skill_ids=self.skill_ids)
            self._tell_missing({skill.id for skill in skills})
            return tree_of(skills, root)

        async def read_file(skill_id: UUID, path: str) -> bytes:
            async with self._service() as service:
                return await service.read_file(skill_id, path, owner)

        return SnapshotBackend(read_tree, read_file)

    def sources_for(self, runtime: object) -> list[tuple[str, str]]:
        """Return where the skills of this run's user appear to lie, which is nowhere else for any other user.

        A user who cannot be told gets a place that never holds skills, so that nothing of an earlier user stays.
        """
        try:
            root = _root(self._owner(runtime))
        except Exception:  # noqa: BLE001 - the backend of the same run reports it
            root = f"{SOURCE_ROOT}/unknown-user"
        return [(root, SOURCE_LABEL)]

    def _owner(self, runtime: object) -> str | None:
        user = self.user_id(runtime) if callable(self.user_id) else self.user_id
        if not isinstance(user, str | UUID | None):
            raise TypeError(f"user_id gave a {type(user).__name__}, not a user id or None")
        return owner_key(user)

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[SkillService]:
        try:
            async with self.session_factory() as session:
                yield SkillService(session)
        except Exception as error:
            failure = unavailable(error)
            if failure is None:
                raise
            raise failure from error

    def _tell_missing(self, found: set[UUID]) -> None:
        for skill_id in sorted((self.skill_ids or frozenset()) - found, key=str):
            logger.warning("Skill %s is not there, or not for this user to see", skill_id)


def _root(owner: str | None) -> str:
    """Return the directory of a user's skills; ids may hold anything, so it is named by their digest."""
    if owner is None:
        return f"{SOURCE_ROOT}/anonymous"
    return f"{SOURCE_ROOT}/{hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()}"
