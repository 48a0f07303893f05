"""Counts the use of skills in the store, for agents whose skills come from elsewhere too."""

from collections.abc import Callable, Sequence
from typing import Any

from deepskills.extensions import UsageEvent
from deepskills.store.agent.loop import private_loop
from deepskills.store.agent.view import SessionFactory
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

    def capture(self, runtime: Any) -> UserId | None:  # noqa: ANN401 - LangGraph's runtime
        """Return the user of the run."""
        return self._user_id(runtime) if callable(self._user_id) else self._user_id

    def __call__(self, event: UsageEvent) -> None:
        """Count one event."""
        self.record_batch([event])

    def record_batch(self, events: Sequence[UsageEvent]) -> None:
        """Count events, with one transaction per user."""
        by_user: dict[Any, list[dict[str, Any]]] = {}
        for event in events:
            by_user.setdefault(event.captured, []).append(event.as_dict())

        async def write() -> None:
            for user, counted in by_user.items():
                async with self._session_factory() as session:
                    private_loop.adopt(session)
                    await SkillService(session, **self._options).record_usage(counted, user)

        private_loop.run(write)
