"""Transactions: every call to the service sees the store at one moment, and its changes happen at one moment.

A skill is spread over rows of several tables: its text, its files, its tags, the groups it is shared with, its former
versions. Readers and writers work at the same time, in several processes. Three things could go wrong, and for each
there is a rule that prevents it.

A torn skill
    A reader fetches the text with one statement and the files with another, and a writer commits in between: the
    reader holds a skill that never existed. Rule: all statements of a call see one *snapshot*.

    - PostgreSQL gives each *statement* a snapshot by default. REPEATABLE READ takes one at the first statement and
      keeps it until the transaction ends.
    - SQLite (in WAL mode) keeps the snapshot of the first read until the transaction ends, but Python's driver begins
      a transaction at the first *write* only, so that each read before it would be a transaction of its own. The
      BEGIN is therefore sent by hand.

A missed change
    Agents and mirrors ask "what changed since revision 41?". If revision 42 committed after 43, whoever read 43 first
    would never hear of 42. Rule: writers take turns, so that revisions become visible in their order.

    - PostgreSQL: a writer first locks the counter's table. The LOCK takes no snapshot; the snapshot is taken by the
      statement after it, when the writers before have committed. In the other order a writer would work on a snapshot
      from before its turn, and every second one would fail with a serialization error. Readers are not held up:
      EXCLUSIVE conflicts with writers alone, and the writers of a process queue before they take one of its
      connections (see `turns_of`).
    - SQLite: BEGIN IMMEDIATE takes the one write lock of the file before anything is read. The lock has no queue of
      its own; `turns_of` adds one.

A lost update
    Two writers read revision 41 and both write what they made of it. Writers take turns, so each sees what the one
    before wrote; callers pass `expected_revision`, which is compared inside the transaction.

A single statement sees one moment by itself. Where a call reads with one alone, it does without a transaction
(`@reads_once`): to begin and to end one are two more ways to the database and back.

While a writer has its turn, every other writer of every process waits. Nothing is therefore computed, parsed or waited
for inside: a call prepares what it will write, begins, checks that what it prepared still fits (the skill has the
revision it had), writes, and commits. If it does not fit, the call prepares again.

A transaction that the database gives up because of others (a serialization failure, a deadlock) is run again, which is
safe for the same reason: nothing outside the database happened in it. A session that is in a transaction already is
refused, because its snapshot may be old and its commit is not ours to make.
"""

import asyncio
import functools
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillsError
from deepskills.store.db.engine import check_loop
from deepskills.store.errors import SkillConflictError
from deepskills.store.workers import Turns

ResultT = TypeVar("ResultT")
Work = Callable[[], Awaitable[ResultT]]
ParamsT = ParamSpec("ParamsT")


class HasTransactions(Protocol):
    """An object whose methods run in transactions."""

    _transactions: "Transactions"


OwnerT = TypeVar("OwnerT", bound=HasTransactions)
Method = Callable[Concatenate[OwnerT, ParamsT], Awaitable[ResultT]]
InTransaction = Callable[Concatenate[OwnerT, ParamsT], Coroutine[Any, Any, ResultT]]

MAX_ATTEMPTS = 8
"""How often work that collides with other work is tried."""

FIRST_PAUSE_SECONDS = 0.01
"""How long the second attempt waits on average; each later one waits twice as long."""

TURN_SECONDS = 60.0
"""How long a writer waits for the other writers of its process."""

_COLLISIONS = frozenset({"40001", "40P01"})
"""PostgreSQL's codes for a serialization failure and for a deadlock."""

_IN_TRANSACTION = (
    "The session is already in a transaction, so the store cannot see one moment of the database. "
    "Commit or roll back first, or give the service its own session."
)


def reads(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a reading transaction, or as part of the one that this call has already begun."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.read(lambda: method(self, *args, **kwargs))

    return run


def reads_once(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method that reads with one statement alone, which needs no transaction; inside another, as part of that."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.read(lambda: method(self, *args, **kwargs), once=True)

    return run


def writes(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a writing transaction, while no other writer is at work."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.write(lambda: method(self, *args, **kwargs))

    return run


def counts(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a transaction that adds to counts, at the same time as writers if the database can."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.count(lambda: method(self, *args, **kwargs))

    return run


class Transactions:
    """Runs work in transactions of a session; results are detached from the session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._inside: asyncio.Task[Any] | None = None
        """The task whose transaction is open. Another task that shares the session is not part of it."""

    async def read(self, work: Work[ResultT], *, once: bool = False) -> ResultT:
        """Return what `work` reads, all of it as of one moment.

        Args:
            work: Reads.
            once: It does so with one statement, which sees one moment by itself.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        # A method that calls another stays in its snapshot; a second BEGIN would see a second moment.
        if self._inside is not None and self._inside is asyncio.current_task():
            return await work()
        return await self._run(work, writes=False, isolation="AUTOCOMMIT" if once else "REPEATABLE READ")

    async def count(self, work: Work[ResultT]) -> ResultT:
        """Return the result of `work`, which adds to counts and does not block other writers.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        # Adding needs no snapshot. Under REPEATABLE READ, two transactions that add to one row would collide, and one
        # would start over.
        is_sqlite = self._session.get_bind().dialect.name == "sqlite"
        return await self._run(work, writes=is_sqlite, isolation="READ COMMITTED")

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Return the result of `work`, run while no other writer is at work.

        Raises:
            SkillsError: If the session is in a transaction already.
            SkillConflictError: If somebody wrote the same without the service.
        """
        try:
            return await self._run(work, writes=True)
        # Writers take turns, so a name cannot be taken between check and write, except by somebody who bypasses the
        # service.
        except IntegrityError:
            raise SkillConflictError("Somebody has just taken the name or the path. Choose another.") from None

    async def _run(self, work: Work[ResultT], *, writes: bool, isolation: str = "REPEATABLE READ") -> ResultT:
        bind = self._session.get_bind()
        # A session may use a connection whose transaction somebody else began, and will end.
        if self._session.in_transaction() or (isinstance(bind, Connection) and bind.in_transaction()):
            raise SkillsError(_IN_TRANSACTION)
        # Before a connection is touched: a driver that is used from a second event loop hangs or crashes.
        check_loop(bind.engine)
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, MAX_ATTEMPTS + 1):
            held = AsyncExitStack()
            try:
                await held.enter_async_context(self._begun(writes=writes, isolation=isolation))
                self._inside = asyncio.current_task()
                result = await work()
                # Flush before detaching everything: expunged objects are not written.
                await self._session.flush()
                self._session.expunge_all()
                await self._session.commit()
            # Cancelled work too: a connection must not go back to the pool in the middle of a transaction.
            except BaseException as error:
                await self._session.rollback()
                self._session.expunge_all()
                if attempt == MAX_ATTEMPTS or not is_collision(error):
                    raise
            else:
                return result
            finally:
                self._inside = None
                # After commit or rollback: the next writer of this process begins only when this one is done.
                await held.aclose()
            # Randomized, or those that collided would collide again.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - only to spread attempts
            pause *= 2
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    @asynccontextmanager
    async def _begun(self, *, writes: bool, isolation: str) -> AsyncIterator[None]:
        """Begin a transaction; whatever it holds besides is released when this ends."""
        bind = self._session.get_bind()
        is_sqlite = bind.dialect.name == "sqlite"
        if not writes:
            if not is_sqlite:
                await self._session.connection(execution_options={"isolation_level": isolation})
            elif isolation != "AUTOCOMMIT":
                await self._begin_on_sqlite("BEGIN")
            yield
            return
        turns = turns_of(bind.engine)
        async with AsyncExitStack() as held:
            try:
                # Before a connection is taken from the pool: those who wait for their turn leave it to readers.
                await held.enter_async_context(turns.turn(TURN_SECONDS))
            except TimeoutError:
                reason = f"timed out after {TURN_SECONDS:g} s, waiting for other writers of this process"
                raise locked(reason) if is_sqlite else PoolTimeoutError(f"No turn to write: {reason}.") from None
            if is_sqlite:
                await self._begin_to_write_on_sqlite()
            else:
                connection = await self._session.connection(execution_options={"isolation_level": isolation})
                # Locking takes no snapshot, so that this transaction's has what earlier writers committed.
                await connection.exec_driver_sql("LOCK TABLE deepskills_counter IN EXCLUSIVE MODE")
            yield

    async def _begin_to_write_on_sqlite(self) -> None:
        connection = await self._session.connection()
        # SQLite's own waiting would block the driver's thread and poll rarely; it is turned off while we poll.
        seconds = (await connection.run_sync(_timeout_of_sqlite)) / 1000
        deadline = time.monotonic() + seconds
        await connection.run_sync(_set_timeout_of_sqlite, 0)
        try:
            while not await connection.run_sync(_try_to_begin):
                if time.monotonic() > deadline:
                    raise locked(f"another process was writing for {seconds:g} s")
                await asyncio.sleep(pause())
        finally:
            await connection.run_sync(_set_timeout_of_sqlite, round(seconds * 1000))

    async def _begin_on_sqlite(self, statement: str) -> None:
        connection = await self._session.connection()
        await connection.run_sync(_run_on_sqlite, statement)


def _run_on_sqlite(connection: Connection, statement: str) -> Any:  # noqa: ANN401 - a row, or nothing
    """Run a statement on the driver itself: SQLAlchemy's would begin at the first write only."""
    adapted: Any = connection.connection.dbapi_connection
    if statement.startswith("BEGIN") and adapted.driver_connection.in_transaction:
        # Only where the application's own pool gives one connection to several sessions at once.
        return None
    cursor = adapted.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchone() if cursor.description else None
    finally:
        cursor.close()


def _try_to_begin(connection: Connection) -> bool:
    """Take the file's write lock if it is free, and return whether it is ours now."""
    try:
        _run_on_sqlite(connection, "BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise
        return False
    return True


def _timeout_of_sqlite(connection: Connection) -> int:
    return int(_run_on_sqlite(connection, "PRAGMA busy_timeout")[0])


def _set_timeout_of_sqlite(connection: Connection, milliseconds: int) -> None:
    _run_on_sqlite(connection, f"PRAGMA busy_timeout = {milliseconds}")


def is_collision(error: BaseException) -> bool:
    """Whether the database aborted work because of other work, so that it can be tried again."""
    origin = error.orig if isinstance(error, DBAPIError) else None
    if getattr(origin, "sqlstate", None) in _COLLISIONS:
        return True
    # A reader that began to write on an old snapshot; plain BUSY was waited for already.
    return getattr(origin, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT"


# -- Turns -------------------------------------------------------------------------------------------------------------
#
# The writers of one database take turns: in order inside a process, and fairly between processes.
#
# **PostgreSQL** has a queue for its locks, but whoever stands in it holds a connection. Without a queue of their own,
# the waiting writers of a process would take all connections of its pool, and readers would wait for writers. So they
# queue here, first come, first served, and only the first one takes a connection and stands in the database's queue.
#
# **SQLite** has one write lock per file, and no queue. A connection that finds the lock taken asks again after pauses
# of up to 100 ms, and gives up after its timeout. With 15 writers in each of three processes that fails: in one process
# the next writer takes the lock the moment it is free, while those of the other processes sleep between two questions,
# until one of them has asked in vain for 15 seconds.
#
# So here too the writers of a process queue, and only the first one asks for the file's lock, every few milliseconds:
# between two writers of one process, those of others get in.

ASK_SECONDS = (0.001, 0.004)
"""How long the first writer of a process pauses before it tries to take the file's lock again: at least, at most."""


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
