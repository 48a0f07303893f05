"""Engines set up the way the store wants them."""

from typing import Any

from sqlalchemy import URL, AsyncAdaptedQueuePool, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

SQLITE_BUSY_SECONDS = 30
"""How long a writer to SQLite waits for the others."""

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def create_store_engine(url: str, **options: Any) -> AsyncEngine:  # noqa: ANN401 - SQLAlchemy's options
    """Return an async engine for a database URL; `sqlite:` and `postgresql:` get their async drivers.

    On SQLite, foreign keys are enforced, readers do not wait for writers, and writers wait for each other. A database
    in memory has one connection, for which sessions wait: close each before the same task opens another.

    Args:
        url: Where the database is, such as `sqlite:///skills.db` or `postgresql://user:secret@host/name`.
        options: Passed on to SQLAlchemy's `create_async_engine`.
    """
    target = make_url(url)
    target = target.set(drivername=_DRIVERS.get(target.drivername, target.drivername))
    if target.get_backend_name() != "sqlite":
        return create_async_engine(target, **options)
    options["connect_args"] = {"timeout": SQLITE_BUSY_SECONDS, **options.get("connect_args", {})}
    if _is_in_memory(target) and not {"pool", "poolclass"} & options.keys():
        # One connection for all sessions at once would let one commit or roll back the work of another.
        options |= {"poolclass": AsyncAdaptedQueuePool, "pool_size": 1, "max_overflow": 0}
    engine = create_async_engine(target, **options)
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    return engine


def _is_in_memory(url: URL) -> bool:
    return not url.database or ":memory:" in url.database or url.query.get("mode") == "memory"


def _set_up_sqlite(connection: Any, _record: Any) -> None:  # noqa: ANN401 - a driver's connection
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()
