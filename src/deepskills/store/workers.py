"""Runs long computations in the store's own threads, a few at a time.

The event loop's shared thread pool is not used: database drivers and the application wait there too, and one user's
large document would delay everybody's short work. Nothing here is ever awaited inside a transaction, because a writer
holds the store's one lock and all other writers would wait for the computation as well.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
