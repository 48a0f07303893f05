"""Async database work for sync callers: one event loop of our own, in a thread that nobody waits for.

Database drivers tie a connection to the event loop that opened it. A loop that lives as long as the process keeps
pooled connections usable from one sync call to the next.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class PrivateLoop:
    """Runs coroutines for sync callers; the thread starts at the first call, and again in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Return what `work` returns, run on the private loop in the caller's context."""
        loop = self._started()
        done: Future[ResultT] = Future()

        async def settle() -> None:
            try:
                result = await work()
            except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
                done.set_exception(error)
            else:
                done.set_result(result)

        # Scheduling takes the caller's context along; the loop itself holds tasks only weakly.
        tasks: set[asyncio.Task[None]] = set()
        loop.call_soon_threadsafe(lambda: tasks.add(loop.create_task(settle())))
        return done.result()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="deepskills-store", daemon=True).start()
            return self._loop


private_loop = PrivateLoop()
"""The one private loop of the process."""
