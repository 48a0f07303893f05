"""`DatabaseSkillAdapter`: the store's skills for agents that have no files of their own."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from deepagents.backends import BackendProtocol
from langchain.agents.middleware.types import ContextT, ResponseT

from deepskills import SkillsMiddleware
from deepskills.store.agent.mount import mounted
from deepskills.store.agent.usage import UsageRecorder
from deepskills.store.agent.view import MEMORY_BYTES, Memory, SessionFactory, UserOfRun, View, without_roots
from deepskills.store.db.repositories import Filter
from deepskills.store.rules import EVERYTHING, TRUSTED, ApprovalRule, GroupsOf, Policy, as_id


class DatabaseSkillAdapter(SkillsMiddleware[ContextT, ResponseT]):
    """Gives an agent the skills of a user: a run reads names and descriptions, a load the skill that is loaded.

    One instance serves any number of users, threads and runs. A thread that another user resumes shows that user's
    skills alone; what was loaded before is unloaded. When the database does not answer, the run goes on, with a problem
    in `skills_problems`. Skills that did not change since the user's last run cost one query.

    `ainvoke` works on the caller's event loop, `invoke` on one private event loop with connections of its own, so that
    one engine serves both.

    Args:
        user_id: Whose skills: a user id, `None` for nobody (system skills, and public ones), or a function of the
            runtime, which has `.context` and `.store`.
        skill_ids: Only these skills, public ones included, as far as the user may see them; each that is not there
            is a problem in `skills_problems`. `None` for all that the user may see.
        db_session_factory: Opens a session, such as an `async_sessionmaker`.
        include_public: Whether skills that other users publish are among them.
        memory_bytes: How much is remembered of the skills that users saw, for all users together.
        versions: For skills by name, the revision that the agent gets, whatever the skill becomes; as long as the user
            may see the skill.
        groups_of: From a user to the groups that the user is in, sync or async.
        approval: Show public skills of others only where an operator approved their present revision.
        record_usage: Count in the store which skills the agent uses, in the background.
        options: The options of `SkillsMiddleware`, except `backend` and `sources`.

    Raises:
        TypeError: If an option is not one of those.
        ValueError: If an option has a value that it cannot have.
    """

    has_directories = False

    def __init__(  # noqa: PLR0913 - the options of a product, each by name
        self,
        *,
        user_id: UserOfRun,
        skill_ids: Collection[UUID] | None = None,
        db_session_factory: SessionFactory,
        include_public: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        versions: Mapping[str, int] | None = None,
        groups_of: GroupsOf | None = None,
        approval: ApprovalRule = False,
        record_usage: bool = False,
        **options: Any,  # noqa: ANN401 - the options of SkillsMiddleware
    ) -> None:
        taken = sorted({"backend", "sources"} & options.keys())
        if taken:
            raise TypeError(f"The adapter sets {' and '.join(taken)} itself, so that skills come from the database.")
        chosen = None if skill_ids is None else tuple(key for given in skill_ids if (key := as_id(given)) is not None)
        view = View(
            user_id=user_id,
            session_factory=db_session_factory,
            # What was named is wanted, whoever published it.
            chosen=Filter(EVERYTHING if include_public or chosen is not None else TRUSTED, skill_ids=chosen),
            memory=Memory(memory_bytes),
            pins=dict(versions or {}),
            policy=Policy(groups_of=groups_of, approval=approval),
        )
        self._view = view
        self._is_mounted = False
        self._recorder: UsageRecorder | None = None
        if record_usage:
            self._recorder = UsageRecorder(view)
            options["extensions"] = [*options.get("extensions", ()), self._recorder]
        # Functions of the runtime, so that every run looks for itself: another user may resume the thread.
        super().__init__(backend=view.backend_for, sources=view.sources_for, **options)

    def mounted(self, backend: BackendProtocol) -> BackendProtocol:
        """Return the backend to pass to `create_deep_agent`: the agent's own, with the user's skills at their paths.

        The paths that a load shows are then readable by the agent's `read_file`, `ls`, `grep` and `glob`, for the user
        of the run alone. They cannot be written.

        Args:
            backend: The agent's own backend, for all other paths.
        """
        self._is_mounted = True
        return mounted(self._view, backend)

    def _shows_paths(self) -> bool:
        """Whether a load names files by path: only where the agent's file tools lead there."""
        return self._is_mounted

    @staticmethod
    def _logged(text: str) -> str:
        """Return a text without the directories of users, which are named by a digest."""
        return without_roots(text)

    async def flush_usage(self) -> None:
        """Wait until the use of skills so far is in the store, as before the process ends."""
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.flush)
