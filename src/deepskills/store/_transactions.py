"""Transactions: every piece of work sees one moment of the store, and of two that collide one is done again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills._errors import SkillsError
from deepskills.store._engine import check_loop

ResultT = TypeVar("ResultT")
Work = Callable[[], Awaitable[ResultT]]

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


class Transactions:
    """Runs work in transactions of a session; what the work returns is detached from the session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` reads, all of it as of one moment.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        return await self._run(work, writes=False)

    async def count(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` returns, which adds to counts and keeps no other writer away.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        is_sqlite = self._session.get_bind().dialect.name == "sqlite"
        return await self._run(work, writes=is_sqlite, isolation="READ COMMITTED")

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Return what `work` returns, with no other writer at work meanwhile.

        Raises:
            SkillsError: If the session is in a transaction already.
        """
        return await self._run(work, writes=True)

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
