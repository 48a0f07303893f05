"""Counts what agents use, in the background: no run waits for it or fails because of it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from deepskills import SkillEvent, SkillExtension
from deepskills._io.bridge import bridge
from deepskills.extensions import UsageEvent
from deepskills.store.agent.provider import StoreProvider
from deepskills.store.agent.reader import AgentReader
from deepskills.store.db.engine import SessionFactory, bridged_engines, unavailable
from deepskills.store.rules import UserId
from deepskills.store.service import SkillService

logger = logging.getLogger("deepskills")

PAUSE_SECONDS = 0.5
"""How long events are collected before they are written together."""

MAX_WAITING = 10_000
"""How many events can wait; more are dropped, and logged."""

Event = dict[str, Any]


class UsageRecorder(SkillExtension):
    """Hears the skill events of an agent's runs and counts them in the store."""

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._waiting: list[tuple[AsyncSession, str | None, Event]] = []
        self._is_writing = False
        self._underway: set[asyncio.Task[None]] = set()

    def __deepcopy__(self, memo: dict[int, object]) -> "UsageRecorder":
        """Return a recorder for the same store without the waiting events, so that those are written once."""
        return UsageRecorder(self._provider)

    def on_event(self, event: SkillEvent, runtime: Any) -> None:  # noqa: ANN401 - LangGraph's runtime
        """Record an event; it is written later."""
        owner = self._provider.owner(runtime)
        known = self._provider.skill_id(owner, event.skill)
        # Opened now, although used later: the choice of database may depend on the run's context.
        entry = (self._provider.session_factory(), owner, {**event.as_dict(), "skill_id": known})
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                logger.warning("Usage of a skill was not counted: %d events are waiting for the database", MAX_WAITING)
                return
            self._waiting.append(entry)
            is_first, self._is_writing = not self._is_writing, True
        if is_first:
            bridge.start(self._write_soon)

    def flush(self) -> None:
        """Wait until all events so far are written."""
        bridge.run(self._write)

    async def _write_soon(self) -> None:
        await asyncio.sleep(PAUSE_SECONDS)
        with self._lock:
            self._is_writing = False
        await self._write()

    async def _write(self) -> None:
        """Write the waiting events, and wait for those that others are writing."""
        with self._lock:
            entries, self._waiting = self._waiting, []
        task = asyncio.create_task(self._write_entries(entries))
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)
        loop = asyncio.get_running_loop()
        # After a fork, tasks of the parent's event loop never end here.
        await asyncio.wait([task for task in self._underway if task.get_loop() is loop])

    async def _write_entries(self, entries: list[tuple[AsyncSession, str | None, Event]]) -> None:
        batches: dict[tuple[int, str | None], tuple[AsyncSession, list[Event]]] = {}
        for session, owner, event in entries:
            # Events of one user in one database are written together, by the first of their sessions.
            key = (id(session.sync_session.bind or session), owner)
            batches.setdefault(key, (session, []))[1].append(event)
        for (_, owner), (session, events) in batches.items():
            await self._write_batch(session, owner, events)

    async def _write_batch(self, session: AsyncSession, owner: str | None, events: list[Event]) -> None:
        try:
            async with session:
                bridged_engines.adopt(session)
                await AgentReader(session, policy=self._provider.policy).record_usage(events, owner)
        except Exception as error:  # noqa: BLE001 - counting must not end anything
            failure = unavailable(error) or error
            logger.error("Use of skills was not counted (%d events): %s", len(events), failure)  # noqa: TRY400 - the message says it all


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
                    bridged_engines.adopt(session)
                    await SkillService(session, **self._options).record_usage(counted, user)

        bridge.run(write)
