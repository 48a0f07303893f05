"""The history of the tables, and how to bring a database to any point in it.

The revision is kept in its own version table, so that an application's migrations are not disturbed.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from deepskills.store.db.engine import create_store_engine, patient_twin

VERSION_TABLE = "deepskills_alembic_version"
"""The table in which a database keeps its revision."""

POSTGRES_LOCK = 0x6465_6570_736B_696C
"""The key of the advisory lock that lets one process migrate a PostgreSQL database at a time."""

SQLITE_WAIT_SECONDS = 600
"""How long a process waits for others that migrate the same SQLite file."""

_POLL_SECONDS = 0.01

_one_at_a_time = threading.Lock()
"""Alembic uses global variables, so a process migrates one database at a time."""


async def upgrade(database: AsyncEngine | str, revision: str = "head") -> None:
    """Upgrade a database, given as engine or URL, to a revision; one that is already there stays as it is.

    Any number of processes may call this at once: one migrates, the others wait. A migration that fails leaves the
    database as it was.
    """
    await _migrate(database, lambda config: command.upgrade(config, revision))


async def downgrade(database: AsyncEngine | str, revision: str = "base") -> None:
    """Downgrade a database, given as engine or URL, to a revision; `base` removes all tables with their content."""
    await _migrate(database, lambda config: command.downgrade(config, revision))


async def current_revision(database: AsyncEngine | str) -> str | None:
    """Return the revision that a database is at, or `None` if it has no tables of the store."""
    async with _engine(database) as engine, engine.connect() as connection:
        return await connection.run_sync(
            lambda sync: MigrationContext.configure(sync, opts={"version_table": VERSION_TABLE}).get_current_revision()
        )


async def _migrate(database: AsyncEngine | str, run: Callable[[Config], None]) -> None:
    """Run revisions in one transaction, which makes the migrations of other processes wait."""
    async with _turn(), _engine(database) as given:
        with patient_twin(given) as engine:
            async with engine.begin() as connection:
                if connection.dialect.name == "postgresql":
                    # Tied to the transaction, so that a process that dies releases it.
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRES_LOCK})
                elif connection.dialect.name == "sqlite":
                    await connection.run_sync(_begin_on_sqlite)
                await connection.run_sync(lambda sync: run(_config(sync)))


def _begin_on_sqlite(connection: Connection) -> None:
    """Begin by hand, so that changes to tables are part of the transaction and a failure leaves nothing half done."""
    adapted: Any = connection.connection.dbapi_connection
    cursor = adapted.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {SQLITE_WAIT_SECONDS * 1000}")
    if not adapted.driver_connection.in_transaction:
        cursor.execute("BEGIN IMMEDIATE")
    cursor.close()


def _config(connection: Connection) -> Config:
    config = Config()
    # Alembic reads this as a template, in which `%` is special.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@asynccontextmanager
async def _turn() -> AsyncIterator[None]:
    """Wait for the other migrations of this process, in whichever thread or event loop they run."""
    while not _one_at_a_time.acquire(blocking=False):  # noqa: ASYNC110 - no event crosses event loops
        await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        _one_at_a_time.release()


@asynccontextmanager
async def _engine(database: AsyncEngine | str) -> AsyncIterator[AsyncEngine]:
    if isinstance(database, AsyncEngine):
        yield database
        return
    engine = create_store_engine(database)
    try:
        yield engine
    finally:
        await engine.dispose()
