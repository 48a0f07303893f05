"""Counts what agents use, in the background: no run waits for it or fails because of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._io.bridge import bridge
from deepskills.extensions import UsageEvent
from deepskills.store.agent.provider import StoreProvider
from deepskills.store.db.engine import SessionFactory, bridged_engines
from deepskills.store.rules import UserId
from deepskills.store.service import SkillService


class StoreRecorder:
    """Counts skill events in the store: `SkillUsage(StoreRecorder(session_factory))`.

    An event counts for the skill that the run's user sees under that name. `DatabaseSkillAdapter(record_usage=True)`
    does the same for an agent whose skills all come from the store.

    Args:
        db_session_factory: Opens a session, such as an `async_sessionmaker`.
        user_id: Whose runs these are: a user, or a function of the runtime that returns one.
        options: Options of `SkillService`.
    """

    def __init__(
        self,
        db_session_factory: SessionFactory,
        user_id: UserId | Callable[[Any], UserId | None] | None = None,
        **options: Any,  # noqa: ANN401 - the options of SkillService
    ) -> None:
        self._session_factory = db_session_factory
        self._user_id = user_id
        self._options = options

    def capture(self, runtime: Any) -> tuple[AsyncSession, UserId | None]:  # noqa: ANN401 - LangGraph's runtime
        """Return a session for the event, and the user of the run."""
        # Opened now, although used later: the choice of database may depend on the run's context.
        return self._session_factory(), self._user_id(runtime) if callable(self._user_id) else self._user_id

    def find_skill(self, user: UserId | None, name: str) -> UUID | None:  # noqa: ARG002 - for those who know more
        """Return the id of the skill that a user's run means by a name; `None` if the store has to look it up."""
        return None

    def __call__(self, event: UsageEvent) -> None:
        """Count one event."""
        self.record_batch([event])

    def record_batch(self, events: Sequence[UsageEvent]) -> None:
        """Count events, with one transaction per user and database."""
        batches: dict[Any, tuple[AsyncSession, list[dict[str, Any]]]] = {}
        for event in events:
            session, user = event.captured or (self._session_factory(), None)
            key = (id(session.sync_session.bind or session), user)
            known = {**event.as_dict(), "skill_id": self.find_skill(user, event.skill)}
            batches.setdefault(key, (session, []))[1].append(known)

        async def write(session: AsyncSession, user: UserId | None, counted: list[dict[str, Any]]) -> None:
            async with session:
                bridged_engines.adopt(session)
                await SkillService(session, **self._options).record_usage(counted, user)

        async def write_all() -> None:
            writes = (write(session, user, counted) for (_, user), (session, counted) in batches.items())
            # One database that does not answer costs no other its counts.
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

        bridge.run(write_all)


class ProviderRecorder(StoreRecorder):
    """Counts for the skills that a provider listed, which knows their ids."""

    def __init__(self, provider: StoreProvider) -> None:
        super().__init__(provider.session_factory, provider.owner, policy=provider.policy)
        self._provider = provider

    def find_skill(self, user: UserId | None, name: str) -> UUID | None:
        """Return the id of the skill that a user's run knows by a name."""
        return self._provider.skill_id(None if user is None else str(user), name)
