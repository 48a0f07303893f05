"""Long work: threads for it, a few at a time, and how many bytes of it a process holds at once.

The event loop's shared thread pool is not used: database drivers and the application wait there too, and one user's
large document would delay everybody's short work. Nothing here is ever awaited inside a transaction, because a writer
holds the store's one lock and all other writers would wait for the computation as well.
"""

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from deepskills.store.errors import SkillBusyError

ResultT = TypeVar("ResultT")

INLINE_BYTES = 16 * 1024
"""Up to this size, work is done at once: changing threads would cost more than the work."""

BYTES_IN_FLIGHT = 160 * 1024 * 1024
"""How many bytes of requests and answers a process holds at once."""

# Two at a time: because of the GIL, more threads would only delay short work.
_WORKERS = ThreadPoolExecutor(2, thread_name_prefix="deepskills-store")


async def run_in_thread(size: int, work: Callable[[], ResultT]) -> ResultT:
    """Return the result of `work`, run in a thread unless there is little data."""
    if size <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)


class Turns:
    """Lets a few at a time work, first come, first served, on each event loop."""

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    @asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait for a turn, for at most so many seconds, and hold it.

        Raises:
            TimeoutError: If it did not come in time.
        """
        with self._lock:
            # A semaphore of asyncio belongs to one event loop.
            semaphore = self._by_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._count))
        await asyncio.wait_for(semaphore.acquire(), seconds)
        try:
            yield
        finally:
            semaphore.release()


class InFlight:
    """Bounds how many bytes a process works on at once, and how many of them are one user's."""

    def __init__(self, size: int = BYTES_IN_FLIGHT) -> None:
        self._size = size
        self._held = 0
        self._of_users: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """How many bytes are held now."""
        return self._held

    @contextmanager
    def hold(self, size: int = 0, user: str = "") -> Iterator[Callable[[int], None]]:
        """Hold so many bytes, and give the function that holds more.

        It counts for half of the room at most: a request holds its body and what becomes of it, and has to fit in when
        it comes alone. Nor do all bodies of one user take more than half, however slowly they arrive.

        Raises:
            SkillBusyError: If they do not fit now; the function raises it too.
        """
        held, most = 0, self._size // 2

        def more(size: int) -> None:
            nonlocal held
            size = min(size, most - held)
            with self._lock:
                is_full = self._held + size > self._size or (user and self._of_users[user] + size > most)
                if size and is_full:
                    raise SkillBusyError("The server is working on as much as it can hold. Try again in a moment.")
                self._held += size
                self._of_users[user] += size
                held += size

        try:
            more(size)
            yield more
        finally:
            with self._lock:
                self._held -= held
                self._of_users[user] -= held
                # Only users who hold something are remembered.
                self._of_users += Counter()


in_flight = InFlight()
"""What this process works on."""

on_disk = InFlight(8 * 1024 * 1024 * 1024)
"""What waits on the disk until slow clients have read it."""
