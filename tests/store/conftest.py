"""Databases for the tests: a test that asks for one runs on SQLite and on a PostgreSQL server of our own.

Tests of what is the same on every database, such as HTTP, say by `on_sqlite` or `on_postgres` on which one they run, or
their module has a fixture `kind` of its own.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Pool, event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from store_support import DATABASES, create_database, drop_database, new_engine, pooled_sessions, run_sql

from deepskills.store import migrations
from support import MODES, Mode

POSTGRES_URL = "DEEPSKILLS_TEST_POSTGRES_URL"
"""Names a PostgreSQL server to use where pgserver has no wheel; its user must be allowed to create databases."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture(scope="session", autouse=True)
def sqlite_does_not_wait_for_the_disk() -> Iterator[None]:
    """Nothing here has to survive a power cut."""

    def set_up(connection: object, _record: object) -> None:
        if isinstance(connection, AsyncAdapt_aiosqlite_connection):
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous=OFF")
            cursor.close()

    event.listen(Pool, "connect", set_up)
    yield
    event.remove(Pool, "connect", set_up)


def start_postgres(pgserver: Any, place: Path, attempts: int = 3) -> Any:
    """Start a server with its data below `place`; pgserver allows a start ten seconds, which a busy machine exceeds."""
    for attempt in range(1, attempts):
        with suppress(subprocess.TimeoutExpired):
            return pgserver.get_server(place / f"data-{attempt}", cleanup_mode="stop")
    return pgserver.get_server(place / f"data-{attempts}", cleanup_mode="stop")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Give the URL of a PostgreSQL server's own database; the server is started here and stops at the end."""
    given = os.environ.get(POSTGRES_URL)
    if given:
        yield given
        return
    place = Path(tempfile.mkdtemp(prefix="deepskills-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    runtime = Path(tempfile.mkdtemp(prefix="deepskills-run-"))
    with pytest.MonkeyPatch.context() as patch:
        # pgserver asks for a directory that only login sessions have.
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        pgserver = pytest.importorskip("pgserver", reason=f"pgserver is not installed; set {POSTGRES_URL}")
        server = start_postgres(pgserver, place)
    # Nothing here has to survive a power cut.
    run_sql(server.get_uri(), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(place)
    shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    url = create_database(postgres_server)
    asyncio.run(migrations.upgrade(new_engine(url)))
    yield url
    drop_database(postgres_server, url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    asyncio.run(migrations.upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture(params=DATABASES)
def kind(request: pytest.FixtureRequest) -> str:
    """Name the kind of database that the test runs on."""
    return str(request.param)


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a database without tables."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server = request.getfixturevalue("postgres_server")
    url = create_database(server)
    yield url
    drop_database(server, url)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of a database with empty tables."""
    if kind == "sqlite":
        path = tmp_path / "store.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    database: str = request.getfixturevalue("postgres_database")
    tables = ("deepskills_skills", "deepskills_changes", "deepskills_deliveries")
    run_sql(database, *(f"DELETE FROM {table}" for table in tables))
    return database


@pytest.fixture
async def sessions(url: str) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    """Give sessions on an empty store to an async test."""
    async with pooled_sessions(url) as given:
        yield given


@pytest.fixture
def any_sessions(url: str) -> async_sessionmaker[AsyncSession]:
    """Give sessions on an empty store that any event loop may use."""
    return async_sessionmaker(new_engine(url))
