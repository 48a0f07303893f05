"""`DatabaseSkillAdapter`: gives agents the skills of the store, without files on disk."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from deepagents.backends import BackendProtocol
from langchain.agents.middleware.types import ContextT, ResponseT

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillUsage
from deepskills.store.agent.mount import mounted
from deepskills.store.agent.provider import MEMORY_BYTES, StoreProvider, UserOfRun
from deepskills.store.agent.usage import ProviderRecorder
from deepskills.store.db.engine import SessionFactory
from deepskills.store.db.listings import Filter
from deepskills.store.rules import EVERYTHING, TRUSTED, ApprovalRule, GroupsOf, Policy, as_id


class DatabaseSkillAdapter(SkillsMiddleware[ContextT, ResponseT]):
    """Gives an agent a user's skills: a run reads names and descriptions, a load reads the text of its skill.

    One instance serves any number of users, threads and runs. If another user resumes a thread, only that user's skills
    are shown, and what was loaded before is unloaded. If the database does not answer, the run continues, with a
    problem in `skills_problems`. If nothing changed since the user's last run, a run costs one query.

    `ainvoke` works on the caller's event loop, `invoke` on one private event loop with its own connections, so one
    engine serves both.

    Args:
        user_id: Whose skills: a user id, `None` for nobody (system skills, and public ones), or a function of the
            runtime, which has `.state`, `.config`, `.context` and `.store`.
        skill_ids: Only these skills, public ones included, if the user may see them; a missing one is a problem in
            `skills_problems`. `None` for all that the user may see.
        db_session_factory: Opens a session, such as an `async_sessionmaker`.
        include_public: Whether other users' public skills are included.
        memory_bytes: How much memory to use for the skills that users saw, for all users together.
        versions: By name, the revision to which a skill is pinned, for as long as the user may see the skill.
        policy: The store's policy, as for `SkillService`; `groups_of` and `approval` replace what it says.
        groups_of: Returns the groups that a user is in; sync or async.
        approval: Show other users' public skills only if an operator approved their current revision.
        record_usage: Count loads and other events in the store, in the background.
        options: The options of `SkillsMiddleware`, except `backend` and `sources`.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If an option has a value that it cannot have.
    """

    def __init__(  # noqa: PLR0913 - the options of a product, each by name
        self,
        *,
        user_id: UserOfRun,
        skill_ids: Collection[UUID] | None = None,
        db_session_factory: SessionFactory,
        include_public: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        versions: Mapping[str, int] | None = None,
        policy: Policy | None = None,
        groups_of: GroupsOf | None = None,
        approval: ApprovalRule | None = None,
        record_usage: bool = False,
        **options: Any,  # noqa: ANN401 - the options of SkillsMiddleware
    ) -> None:
        taken = sorted({"backend", "sources"} & options.keys())
        if taken:
            raise TypeError(f"The adapter sets {' and '.join(taken)} itself, so that skills come from the database.")
        chosen = None if skill_ids is None else tuple(key for given in skill_ids if (key := as_id(given)) is not None)
        self._provider = StoreProvider(
            user_id,
            db_session_factory,
            # Skills that were named are wanted, by any publisher.
            chosen=Filter(EVERYTHING if include_public or chosen is not None else TRUSTED, skill_ids=chosen),
            pins=versions or {},
            # Even an operator's agent reads as any user's.
            policy=replace(Policy.of(policy, {"groups_of": groups_of, "approval": approval}), is_operator=None),
            memory_bytes=memory_bytes,
        )
        self._usage: SkillUsage | None = None
        if record_usage:
            self._usage = SkillUsage(ProviderRecorder(self._provider))
            options["extensions"] = [*options.get("extensions", ()), self._usage]
        super().__init__(sources=[self._provider], **options)

    def mounted(self, backend: BackendProtocol) -> BackendProtocol:
        """Return the backend to pass to `create_deep_agent`: the agent's own, with the user's skills at their paths.

        The agent's `read_file`, `ls`, `grep` and `glob` can then read the paths that a load shows, and only those of
        the run's user. They cannot be written.

        Args:
            backend: The agent's own backend, for all other paths.
        """
        return mounted(self._provider, backend)

    async def flush_usage(self) -> None:
        """Wait until all usage so far is in the store; call this before the process ends."""
        if self._usage is not None:
            await self._usage.aflush()
