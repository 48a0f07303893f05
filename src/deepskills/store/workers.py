"""Runs what takes long in threads of the store's own, a few at a time.

The event loop's shared thread pool is not used: database drivers and the application wait there too, and one user's
large document would stand before everybody's short work. Nothing here is ever awaited inside a transaction. A writer
holds the store's one lock, and all other writers would wait for the computation with it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")

INLINE_BYTES = 16 * 1024
"""Up to which size work is done at once; for less, changing threads costs more than the work."""

# Two at a time: Python holds one lock while it computes, and more threads would only delay those with short work.
_WORKERS = ThreadPoolExecutor(2, thread_name_prefix="deepskills-store")

# One at a time, and apart from the others: whoever asks for differences waits for others who do, and for nobody else.
_COMPARERS = ThreadPoolExecutor(1, thread_name_prefix="deepskills-diff")


async def computed(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns, done in a thread if it is about more than a little data."""
    if size <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


async def compared(work: Callable[[], ResultT]) -> ResultT:
    """Return what a comparison returns, done in the one thread for comparisons."""
    return await asyncio.get_running_loop().run_in_executor(_COMPARERS, work)
