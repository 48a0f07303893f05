"""The tables come and go by migrations, and the models are what the migrations make."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from store_support import create_database, drop_database, new_engine, on_postgres

from deepskills import SkillsError
from deepskills.store import Base, SkillCreate, SkillService, migrations
from deepskills.store.db.models import SEARCH_TABLE

pytestmark = pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")

HEAD = "0001"
"""The newest revision."""


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave out what SQLite keeps for its full-text index."""
    return kind != "table" or not str(name).startswith(SEARCH_TABLE)


async def tables(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection,
        opts={
            "compare_type": True,
            "compare_server_default": True,
            "version_table": migrations.VERSION_TABLE,
            "include_name": is_ours,
        },
    )
    return list(compare_metadata(context, Base.metadata))


@pytest.mark.anyio
async def test_up_and_down(empty_url: str) -> None:
    """Up makes the tables, down leaves nothing of them, and up again works."""
    engine = new_engine(empty_url)
    await migrations.upgrade(engine)
    assert {"deepskills_skills", "deepskills_files", "deepskills_tags"} <= await tables(engine)
    assert await migrations.current_revision(engine) == HEAD
    await migrations.downgrade(engine)
    assert await tables(engine) == {migrations.VERSION_TABLE}
    assert await migrations.current_revision(engine) is None
    await migrations.upgrade(engine)
    assert await migrations.current_revision(engine) == HEAD


@pytest.mark.anyio
async def test_by_url(empty_url: str) -> None:
    """A URL does as well as an engine, and a second upgrade changes nothing."""
    await migrations.upgrade(empty_url)
    await migrations.upgrade(empty_url, "head")
    assert await migrations.current_revision(empty_url) == HEAD
    await migrations.downgrade(empty_url, "base")
    assert await migrations.current_revision(empty_url) is None


@pytest.mark.anyio
async def test_models_agree_with_migrations(empty_url: str) -> None:
    """Alembic finds no difference between the migrated tables and the models."""
    engine = new_engine(empty_url)
    await migrations.upgrade(engine)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


@pytest.mark.anyio
async def test_a_difference_would_be_found(empty_url: str) -> None:
    """The comparison sees an index that is missing, so that it can fail."""
    engine = new_engine(empty_url)
    await migrations.upgrade(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("DROP INDEX ix_deepskills_tags_tag_key_skill_id")
        assert [found[0] for found in await connection.run_sync(differences)] == ["add_index"]


@pytest.mark.anyio
async def test_an_upgrade_keeps_what_is_there(empty_url: str) -> None:
    """Skills survive an upgrade of a database that is up to date."""
    engine = new_engine(empty_url)
    await migrations.upgrade(engine)
    async with AsyncSession(engine) as session:
        await SkillService(session).create_skill(SkillCreate(name="kept", description="Stays."), "alice")
    await migrations.upgrade(engine)
    async with AsyncSession(engine) as session:
        assert [skill.name for skill in await SkillService(session).list_skills("alice")] == ["kept"]


@pytest.mark.anyio
async def test_many_databases_at_once(tmp_path: Path, empty_url: str) -> None:
    """A process may migrate several databases, and one several times, at the same time."""
    urls = [empty_url] * 3 + [f"sqlite:///{tmp_path / str(number)}.db" for number in range(3)]
    await asyncio.gather(*(migrations.upgrade(url) for url in urls))
    assert [await migrations.current_revision(url) for url in urls] == [HEAD] * 6


WAITERS = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted
"""


def test_processes_take_turns(postgres_server: str) -> None:
    """On PostgreSQL a process waits while another migrates the same database."""
    url = create_database(postgres_server)

    async def scenario() -> None:
        async with new_engine(url).connect() as other_process:
            await other_process.execute(text("SELECT pg_advisory_lock(:key)"), {"key": migrations.POSTGRES_LOCK})
            waiting = asyncio.create_task(migrations.upgrade(new_engine(url)))
            async with asyncio.timeout(180):
                while not await other_process.scalar(text(WAITERS)):
                    assert not waiting.done()
                    await asyncio.sleep(0.01)
            _, pending = await asyncio.wait([waiting], timeout=0.1)
            assert pending == {waiting}
        async with asyncio.timeout(180):
            await waiting
        assert await migrations.current_revision(url) == HEAD

    asyncio.run(scenario())
    drop_database(postgres_server, url)


def test_alembic_by_other_means_is_refused() -> None:
    """Running the environment without a connection says what to call instead."""
    config = Config()
    config.set_main_option("script_location", str(migrations.__path__[0]))
    with pytest.raises(SkillsError, match=r"migrations\.upgrade"):
        command.upgrade(config, "head")


@pytest.mark.anyio
async def test_a_migration_that_fails_half_way(empty_url: str) -> None:
    """A migration that fails leaves the database as it was, and the next one finishes."""
    engine = new_engine(empty_url)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    event.listen(Base.metadata, "after_create", fail)
    with pytest.raises(RuntimeError, match="power cut"):
        await migrations.upgrade(engine)
    event.remove(Base.metadata, "after_create", fail)
    assert await migrations.current_revision(engine) is None
    assert "deepskills_changes" not in await tables(engine)
    await migrations.upgrade(engine)
    assert await migrations.current_revision(engine) == HEAD


STARTS = """
import asyncio, os, sys
from deepskills.store import migrations

def start(url):
    child = os.fork()
    if child == 0:
        asyncio.run(asyncio.wait_for(migrations.upgrade(url), 200))
        sys.exit()
    return child

for child in [start(url) for url in sys.argv[1:] for _ in range(3)]:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@on_postgres
def test_any_number_of_starts(empty_url: str, tmp_path: Path) -> None:
    """Processes that start at the same time on an empty database all find it migrated, none fails."""
    urls = [empty_url, f"sqlite:///{tmp_path / 'store.db'}"]
    done = subprocess.run(
        [sys.executable, "-c", STARTS, *urls], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["0"] * 6, done.stderr
    for url in urls:
        assert asyncio.run(migrations.current_revision(url)) == HEAD


@pytest.mark.anyio
async def test_starts_of_one_process(tmp_path: Path) -> None:
    """Many upgrades of one SQLite file at the same time all succeed."""
    url = f"sqlite:///{tmp_path / 'many.db'}"
    await asyncio.gather(*(migrations.upgrade(url) for _ in range(12)))
    assert await migrations.current_revision(url) == HEAD


@pytest.mark.anyio
@on_postgres
async def test_searches_read_a_short_list_of_new_entries(empty_url: str) -> None:
    """However the tables were made, PostgreSQL's list of what is not yet in the index stays short."""
    options = text("SELECT reloptions FROM pg_class WHERE relname = 'ix_deepskills_skills_words'")
    engine = new_engine(empty_url)

    async def shown() -> Any:
        async with engine.connect() as connection:
            return await connection.scalar(options)

    await migrations.upgrade(engine)
    assert await shown() == ["gin_pending_list_limit=256"]
    await migrations.downgrade(engine, "base")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    assert await shown() == ["gin_pending_list_limit=256"]
