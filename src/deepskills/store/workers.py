"""Who works when: threads for long computations, a few at a time, and a queue for what must happen one at a time.

The event loop's shared thread pool is not used: database drivers and the application wait there too, and one user's
large document would delay everybody's short work. Nothing here is ever awaited inside a transaction, because a writer
holds the store's one lock and all other writers would wait for the computation as well.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

ResultT = TypeVar("ResultT")

INLINE_BYTES = 16 * 1024
"""Up to this size, work is done at once: changing threads would cost more than the work."""

# Two at a time: because of the GIL, more threads would only delay short work.
_WORKERS = ThreadPoolExecutor(2, thread_name_prefix="deepskills-store")

# One at a time, and apart from the others: diffs wait only for other diffs.
_COMPARERS = ThreadPoolExecutor(1, thread_name_prefix="deepskills-diff")


SHARE = 4
"""Of so many moments a comparison works in one, and leaves the others to the rest of the process."""

MAX_PAUSE_SECONDS = 0.1


class GivesWay:
    """Lets the other threads of the process work, each time it is called, for longer than this one has worked.

    A thread that computes keeps Python's lock for milliseconds at a time. A writer needs that lock for each of its
    statements, and holds up every other writer of every process while it waits. On a busy machine the work takes
    longer, and so do the pauses.
    """

    def __init__(self) -> None:
        self._resumed = time.monotonic()

    def __call__(self) -> None:
        """Pause in proportion to the time since the last pause."""
        worked = time.monotonic() - self._resumed
        time.sleep(min((SHARE - 1) * worked, MAX_PAUSE_SECONDS))
        self._resumed = time.monotonic()


async def computed(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Return the result of `work`, run in a thread unless there is little data."""
    if size <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


async def compared(work: Callable[[], ResultT]) -> ResultT:
    """Return the result of a comparison, run in the one thread for comparisons."""
    return await asyncio.get_running_loop().run_in_executor(_COMPARERS, work)


STEP_BACK_SECONDS = 0.006
"""How long a writer steps back if other processes are writing; longer than they pause."""

REMEMBERED_SECONDS = 1.0
"""For how long other processes count as writing after one was noticed."""


class Turns:
    """A queue of this process, first come, first served; those who wait may be on any event loop and thread.

    The writers of a database use it (`db/transactions.py` says why), and so do large answers and comparisons.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[Future[None]] = deque()
        self._contended_at = float("-inf")
        self._rests_until = float("-inf")

    @asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn, for at most so many seconds, and hold it.

        Raises:
            TimeoutError: If it did not come in time.
        """
        await self._wait(seconds)
        try:
            if time.monotonic() - self._contended_at < REMEMBERED_SECONDS:
                await asyncio.sleep(STEP_BACK_SECONDS)
            left = self._rests_until - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
            yield
        finally:
            self._pass_on()

    def contended(self) -> None:
        """Remember that another process is writing."""
        self._contended_at = time.monotonic()

    def rest(self, seconds: float) -> None:
        """Let whoever is next wait for so long, in which the process works for others."""
        self._rests_until = time.monotonic() + seconds

    async def _wait(self, seconds: float) -> None:
        with self._lock:
            # The common case, without a future.
            if not self._is_taken:
                self._is_taken = True
                return
            ours: Future[None] = Future()
            self._waiting.append(ours)
        try:
            await asyncio.wait_for(asyncio.wrap_future(ours), seconds)
        except BaseException:
            with self._lock:
                was_given = not ours.cancel() and ours.done() and not ours.cancelled()
            if was_given:
                # The turn came just as this writer gave up: pass it on.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                # Whoever gave up waiting is skipped; from here on a future can no longer be cancelled.
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._is_taken = False
