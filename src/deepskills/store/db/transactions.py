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
    Agents and mirrors ask "what changed since revision 41?". If revision 42 committed after 43, a reader of 43 would
    never hear of 42. Rule: writers take turns, so that revisions become visible in their order.

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
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

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


Kind: TypeAlias = Literal["read", "write", "count"]
"""What a transaction is for."""


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
    """Run a method in a snapshot, or as part of the transaction that this call has already begun."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        async with self._transactions.snapshot():
            return await method(self, *args, **kwargs)

    return run


def writes(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a writing transaction, while no other writer is at work."""
    return _perform(method, "write")


def counts(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a transaction that adds to counts, at the same time as writers if the database can."""
    return _perform(method, "count")


def _perform(
    method: Method[OwnerT, ParamsT, ResultT], kind: Literal["write", "count"]
) -> InTransaction[OwnerT, ParamsT, ResultT]:
    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.perform(lambda: method(self, *args, **kwargs), kind)

    return run


class Transactions:
    """Runs work in transactions of a session; results are detached from the session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._inside: asyncio.Task[Any] | None = None
        """The task whose transaction is open. Another task that shares the session is not part of it."""

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Let everything inside see the store at one moment: that of the transaction that this call has begun, if any.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        # A method that calls another stays in its snapshot; a second BEGIN would see a second moment.
        if self._inside is not None and self._inside is asyncio.current_task():
            yield
            return
        # Never tried again: what only reads a snapshot collides with nobody.
        async with self._transaction("read"):
            yield

    async def perform(self, work: Work[ResultT], kind: Literal["write", "count"]) -> ResultT:
        """Return the result of `work`, run in a transaction that writes.

        Raises:
            SkillsError: If the session is in a transaction already.
            SkillConflictError: If another client wrote the same without the service.
        """
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                async with self._transaction(kind):
                    return await work()
            except DBAPIError as error:
                # Writers take turns, so a name can be taken between check and write only past the service.
                if kind == "write" and isinstance(error, IntegrityError):
                    raise SkillConflictError("The name or the path has just been taken. Choose another.") from None
                if attempt == MAX_ATTEMPTS or not is_collision(error):
                    raise
            # Randomized, or those that collided would collide again.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - only to spread attempts
            pause *= 2
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    @asynccontextmanager
    async def _transaction(self, kind: Kind) -> AsyncIterator[None]:
        """Run what is inside in a transaction; values that it read are detached from the session."""
        bind = self._session.get_bind()
        # A session may use a connection with a transaction that the application began, and will end.
        if self._session.in_transaction() or (isinstance(bind, Connection) and bind.in_transaction()):
            raise SkillsError(_IN_TRANSACTION)
        # Before a connection is touched: a driver that is used from a second event loop hangs or crashes.
        check_loop(bind.engine)
        # The turn ends after commit or rollback: the next writer of this process begins only when this one is done.
        async with self._turn(kind):
            try:
                await self._begin(kind)
                self._inside = asyncio.current_task()
                yield
                # Flush before detaching everything: expunged objects are not written.
                await self._session.flush()
                self._session.expunge_all()
                await self._session.commit()
            # Cancelled work too: a connection must not go back to the pool in the middle of a transaction.
            except BaseException:
                await self._session.rollback()
                self._session.expunge_all()
                raise
            finally:
                self._inside = None

    @asynccontextmanager
    async def _turn(self, kind: Kind) -> AsyncIterator[None]:
        """Wait for the turn of a writer; before it takes a connection, so that those who wait leave them to readers."""
        engine = self._session.get_bind().engine
        if kind == "read" or (kind == "count" and engine.dialect.name != "sqlite"):
            yield
            return
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(turns_of(engine).turn(TURN_SECONDS))
            except TimeoutError:
                raise PoolTimeoutError(f"Other writers of this process took more than {TURN_SECONDS:g} s.") from None
            yield

    async def _begin(self, kind: Kind) -> None:
        if self._session.get_bind().dialect.name == "sqlite":
            await (self._begin_to_read_on_sqlite() if kind == "read" else self._begin_to_write_on_sqlite())
            return
        # Adding needs no snapshot. Under REPEATABLE READ, two transactions that add to one row would collide, and one
        # would start over.
        isolation = "READ COMMITTED" if kind == "count" else "REPEATABLE READ"
        connection = await self._session.connection(execution_options={"isolation_level": isolation})
        if kind == "write":
            # Locking takes no snapshot, so that this transaction's has what earlier writers committed.
            await connection.exec_driver_sql("LOCK TABLE deepskills_counter IN EXCLUSIVE MODE")

    async def _begin_to_read_on_sqlite(self) -> None:
        await (await self._session.connection()).run_sync(_run_on_sqlite, "BEGIN")

    async def _begin_to_write_on_sqlite(self) -> None:
        connection = await self._session.connection()
        # SQLite's own waiting would block the driver's thread and poll rarely; it is turned off while we poll.
        (milliseconds,) = await connection.run_sync(_run_on_sqlite, "PRAGMA busy_timeout")
        deadline = time.monotonic() + milliseconds / 1000
        await connection.run_sync(_run_on_sqlite, "PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return await connection.run_sync(_run_on_sqlite, "BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    is_busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                    if not is_busy or time.monotonic() > deadline:
                        raise OperationalError("BEGIN IMMEDIATE", None, error) from error
                await asyncio.sleep(random.uniform(*ASK_SECONDS))  # noqa: S311 - only to spread questions
        finally:
            await connection.run_sync(_run_on_sqlite, f"PRAGMA busy_timeout = {milliseconds}")


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
# **PostgreSQL** has a queue for its locks, but each place in it holds a connection. Without a queue of their own,
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


_turns: "weakref.WeakKeyDictionary[Engine, Turns]" = weakref.WeakKeyDictionary()


def turns_of(engine: Engine) -> Turns:
    """Return the queue for the writers of an engine."""
    return _turns.setdefault(engine, Turns())
