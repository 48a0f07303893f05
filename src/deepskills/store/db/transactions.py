"""Transactions: every call of the service sees one moment of the store, and its changes happen at one moment.

A skill is spread over rows of several tables: its text, its files, its tags, the groups it is shared with, what it was
before. Readers and writers work at the same time, in several processes. Three things could go wrong, and each has one
rule that prevents it.

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
      EXCLUSIVE conflicts with writers alone.
    - SQLite: BEGIN IMMEDIATE takes the one write lock of the file before anything is read.

A lost update
    Two writers read revision 41 and both write what they made of it. Writers take turns, so each sees what the one
    before wrote; callers pass `expected_revision`, which is compared inside the transaction.

While a writer has its turn, every other writer of every process waits. Nothing is therefore computed, parsed or waited
for inside: a call prepares what it will write, begins, checks that what it prepared still fits (the skill has the
revision it had), writes, and commits. If it does not fit, the call prepares again.

A transaction that the database gives up because of others (a serialization failure, a deadlock) is run again, which is
safe for the same reason: nothing outside the database happened in it. A session that is in a transaction already is
refused, for its snapshot may be an old one and its commit is not ours to make.
"""

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillsError
from deepskills.store.db.engine import check_loop
from deepskills.store.errors import SkillConflictError

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
"""How often work is begun that collides with that of others."""

FIRST_PAUSE_SECONDS = 0.01
"""How long the second attempt waits on average; each later one waits twice as long."""

_COLLISIONS = frozenset({"40001", "40P01"})
"""PostgreSQL's codes for a serialization failure and for a deadlock."""

_IN_TRANSACTION = (
    "The session is in a transaction already, so the store cannot see one moment of the database. "
    "Commit or roll back first, or give the service a session of its own."
)


def reads(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a transaction that reads; inside another of the same call, as part of that."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.read(lambda: method(self, *args, **kwargs))

    return run


def writes(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a transaction that writes, with no other writer at work at the same time."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.write(lambda: method(self, *args, **kwargs))

    return run


def counts(method: Method[OwnerT, ParamsT, ResultT]) -> InTransaction[OwnerT, ParamsT, ResultT]:
    """Run a method in a transaction that adds to counts, and where the database can, beside other writers."""

    @functools.wraps(method)
    async def run(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        return await self._transactions.count(lambda: method(self, *args, **kwargs))

    return run


class Transactions:
    """Runs work in transactions of a session; what the work returns is detached from the session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._inside: asyncio.Task[Any] | None = None
        """The task whose transaction is open. Another task that shares the session is not part of it."""

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` reads, all of it as of one moment.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        if self._inside is not None and self._inside is asyncio.current_task():
            return await work()
        return await self._run(work, writes=False)

    async def count(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` returns, which adds to counts and keeps no other writer away.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        is_sqlite = self._session.get_bind().dialect.name == "sqlite"
        return await self._run(work, writes=is_sqlite, isolation="READ COMMITTED")

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` returns, with no other writer at work at the same time.

        Raises:
            SkillsError: If the session is in a transaction already.
            SkillConflictError: If somebody who wrote without the service was first.
        """
        try:
            return await self._run(work, writes=True)
        except IntegrityError:
            raise SkillConflictError("Somebody has just taken the name or the path. Choose another.") from None

    async def _run(self, work: Work[ResultT], *, writes: bool, isolation: str = "REPEATABLE READ") -> ResultT:
        bind = self._session.get_bind()
        # A session may stand on a connection whose transaction somebody else began, and will end.
        if self._session.in_transaction() or (isinstance(bind, Connection) and bind.in_transaction()):
            raise SkillsError(_IN_TRANSACTION)
        check_loop(bind.engine)
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                await self._begin(writes=writes, isolation=isolation)
                self._inside = asyncio.current_task()
                result = await work()
                await self._session.flush()
                self._session.expunge_all()
                await self._session.commit()
            except BaseException as error:
                await self._session.rollback()
                self._session.expunge_all()
                if attempt == MAX_ATTEMPTS or not is_collision(error):
                    raise
            else:
                return result
            finally:
                self._inside = None
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - only to spread attempts
            pause *= 2
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    async def _begin(self, *, writes: bool, isolation: str) -> None:
        if self._session.get_bind().dialect.name == "sqlite":
            connection = await self._session.connection()
            await connection.run_sync(_begin_sqlite, writes)
            return
        connection = await self._session.connection(execution_options={"isolation_level": isolation})
        if writes:
            # Locking takes no snapshot, so that the one of this transaction has what earlier writers committed.
            await connection.exec_driver_sql("LOCK TABLE deepskills_counter IN EXCLUSIVE MODE")


def _begin_sqlite(connection: Connection, writes: bool) -> None:  # noqa: FBT001 - `run_sync` passes by place
    """Begin by hand: the driver would begin at the first write only, and each earlier read see its own moment."""
    adapted: Any = connection.connection.dbapi_connection
    if adapted.driver_connection.in_transaction:
        # Only where the application's own pool gives one connection to several sessions at once.
        return
    cursor = adapted.cursor()
    cursor.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    cursor.close()


def is_collision(error: BaseException) -> bool:
    """Whether a database gave work up because of the work of others, and would take it now."""
    origin = error.orig if isinstance(error, DBAPIError) else None
    if getattr(origin, "sqlstate", None) in _COLLISIONS:
        return True
    return getattr(origin, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT"
