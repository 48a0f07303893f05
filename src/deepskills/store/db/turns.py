"""Lets the writers of one database take turns: in order inside a process, and fairly between processes.

**PostgreSQL** has a queue for its locks, but whoever stands in it holds a connection. Without a queue of their own, the
waiting writers of a process would take all connections of its pool, and readers would wait for writers. So they queue
here, first come, first served, and only the first one takes a connection and stands in the database's queue.

**SQLite** has one write lock per file, and no queue. A connection that finds the lock taken asks again after pauses of
up to 100 ms, and gives up after its timeout. With 15 writers in each of three processes that fails: in one process the
next writer takes the lock the moment it is free, while those of the other processes sleep between two questions, until
one of them has asked in vain for 15 seconds.

So here too the writers of a process queue, and only the first one asks for the file's lock, every few milliseconds.
When it had to ask more than once, other processes are writing too; for the next second each writer of this process then
steps back for longer than the others pause, so that one of them gets in between.
"""

import asyncio
import random
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

ASK_SECONDS = (0.001, 0.004)
"""How long the first writer of a process pauses before it tries to take the file's lock again: at least, at most."""

STEP_BACK_SECONDS = 0.006
"""How long a writer steps back if other processes are writing; longer than they pause."""

REMEMBERED_SECONDS = 1.0
"""For how long other processes count as writing after one was noticed."""


class Turns:
    """The queue of this process for one database. Writers may come from any event loop and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[Future[None]] = deque()
        self._contended_at = float("-inf")

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
            yield
        finally:
            self._pass_on()

    def contended(self) -> None:
        """Remember that another process is writing."""
        self._contended_at = time.monotonic()

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


def locked(reason: str) -> OperationalError:
    """Return the error for a file whose lock did not come in time, as the driver raises it."""
    return OperationalError("BEGIN IMMEDIATE", None, sqlite3.OperationalError(f"database is locked: {reason}"))


def pause() -> float:
    """Return how long to pause before trying to take the file's lock again."""
    return random.uniform(*ASK_SECONDS)  # noqa: S311 - only to spread questions


_by_file: dict[str, Turns] = {}
_by_engine: "weakref.WeakKeyDictionary[Engine, Turns]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def turns_of(engine: Engine) -> Turns:
    """Return the queue for an engine's file; servers and databases in memory have one for each engine."""
    name = engine.url.database or ""
    with _lock:
        if (
            engine.dialect.name != "sqlite"
            or not name
            or ":memory:" in name
            or engine.url.query.get("mode") == "memory"
        ):
            return _by_engine.setdefault(engine, Turns())
        return _by_file.setdefault(name, Turns())
