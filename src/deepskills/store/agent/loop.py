"""Runs async database work for sync callers, on an event loop of our own in a daemon thread.

Database drivers tie a connection to the event loop that opened it. With a loop that lives as long as the process,
pooled connections stay usable from one sync call to the next.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from deepskills.store.db.engine import may_be_shared

ResultT = TypeVar("ResultT")


class PrivateLoop:
    """Runs coroutines for sync callers; the thread starts at the first call, and again in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._engines: weakref.WeakKeyDictionary[Engine, AsyncEngine] = weakref.WeakKeyDictionary()
        self._of_parents: list[object] = []

    @property
    def is_running(self) -> bool:
        """Whether the caller is on the private loop."""
        return asyncio.get_running_loop() is self._loop

    def adopt(self, session: AsyncSession) -> None:
        """Let a session that was opened on the private loop use only connections of that loop.

        The session's own engine keeps serving its own event loop; a second engine, on the same database and with a pool
        of the same size, serves the private loop and is disposed of with the first.
        """
        bind = session.sync_session.bind
        # A pool that keeps no connections, or lends its only one in turn, works on any loop.
        if isinstance(bind, Engine) and not may_be_shared(bind):
            session.sync_session.bind = self._twin(bind).sync_engine

    def _twin(self, engine: Engine) -> AsyncEngine:
        with self._lock:
            twin = self._engines.get(engine)
            if twin is None:
                twin = AsyncEngine(Engine(engine.pool.recreate(), engine.dialect, engine.url))
                self._engines[engine] = twin
                event.listen(engine, "engine_disposed", self._dispose_twin)
            return twin

    def _dispose_twin(self, engine: Engine) -> None:
        with self._lock:
            twin = self._engines.pop(engine, None)
        if twin is not None:
            self.run(twin.dispose)

    def run(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Return the result of `work`, run on the private loop in the caller's context."""
        done: Future[ResultT] = Future()

        async def settle() -> None:
            try:
                result = await work()
            except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
                done.set_exception(error)
            else:
                done.set_result(result)

        self.start(settle)
        return done.result()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` on the private loop in the caller's context, without waiting for it."""
        loop = self._started()
        # Scheduling keeps the caller's context; a reference is kept because the loop holds tasks only weakly.
        loop.call_soon_threadsafe(lambda: self._hold(loop.create_task(work())))

    def _hold(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._process = os.getpid()
                # The parent process still uses its connections; closing them here would end them there.
                self._of_parents.append(self._engines)
                self._engines = weakref.WeakKeyDictionary()
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="deepskills-store", daemon=True).start()
            return self._loop


private_loop = PrivateLoop()
"""The one private loop of the process."""
