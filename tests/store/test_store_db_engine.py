"""`create_store_engine`: databases in memory, timeouts, and one event loop for each engine."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from sqlalchemy import StaticPool, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from store_support import Sessions, draft, new_engine, service_on

from deepskills import SkillsError
from deepskills.store import SkillService, create_store_engine, migrations
from deepskills.store.db.engine import unavailable
from support import scaled

pytestmark = pytest.mark.anyio

MEMORY = ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite:///file:of-a-test?mode=memory&uri=true"]


async def write_many(sessions: Sessions, number: int) -> None:
    async def write(position: int) -> None:
        async with service_on(sessions) as service:
            await service.create_skill(draft(f"skill-{position}"), "alice")

    async def read() -> None:
        async with service_on(sessions) as service:
            await service.list_skills("alice")

    await asyncio.gather(*(work for position in range(number) for work in (write(position), read())))


async def test_sessions_at_once_in_memory() -> None:
    """Many writers and readers at the same moment lose nothing and fail nowhere."""
    number = scaled(8, 20)
    for url in MEMORY:
        engine = create_store_engine(url)
        await migrations.upgrade(engine)
        sessions = async_sessionmaker(engine)
        await write_many(sessions, number)
        async with service_on(sessions) as service:
            found = {skill.name for skill in await service.list_skills("alice")}
        assert found == {f"skill-{i}" for i in range(number)}, url
        await engine.dispose()


async def test_a_pool_of_the_callers_own() -> None:
    """Whoever passes a pool gets that pool."""
    engine = create_store_engine("sqlite://", poolclass=StaticPool)
    assert isinstance(engine.pool, StaticPool)
    await engine.dispose()


def run_in_thread(work: object) -> list[BaseException | None]:
    """Run an async function on an event loop of another thread and return what it raised."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            asyncio.run(work())  # type: ignore[operator]
            raised.append(None)
        except BaseException as error:  # noqa: BLE001 - given back
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(180)
    return raised


async def test_two_event_loops(url: str, kind: str) -> None:
    """A second event loop on one engine gets a clear error, and the first goes on; without a pool both work."""
    store = create_store_engine(url)
    # SQLite's driver moves between event loops.
    own = create_async_engine(store.url)
    for engine, is_refused in ((store, True), (own, kind == "postgres"), (new_engine(url), False)):
        sessions = async_sessionmaker(engine)

        async def use(sessions: Sessions = sessions) -> None:
            async with service_on(sessions) as service:
                await service.list_skills("alice")

        await use()
        (raised,) = await asyncio.to_thread(run_in_thread, use)
        if is_refused:
            assert isinstance(raised, SkillsError)
            assert "one engine for each event loop" in str(raised)
        else:
            assert raised is None
        await use()
        await engine.dispose()


async def test_a_locked_table(url: str, kind: str) -> None:
    """A table that somebody locks costs a caller the statement timeout, not forever, and the pool is free again."""
    engine = create_store_engine(url, statement_timeout=0.5, pool_size=2, max_overflow=0)
    locker = new_engine(url)
    async with locker.connect() as connection:
        if kind == "sqlite":
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await connection.execute(text("LOCK TABLE deepskills_skills, deepskills_counter IN ACCESS EXCLUSIVE MODE"))

        async def use(number: int) -> BaseException | None:
            try:
                async with async_sessionmaker(engine)() as session:
                    await SkillService(session).create_skill(draft(f"s{number}"), "alice")
            except Exception as error:  # noqa: BLE001 - given back
                return error
            return None

        async with asyncio.timeout(180):
            failures = await asyncio.gather(*(use(number) for number in range(4)))
        assert all(failure is not None and unavailable(failure) is not None for failure in failures), failures
        await connection.rollback()
    # Half a second may be too short for a statement on a busy machine, but not each time.
    async with asyncio.timeout(180):
        for number in count(9):
            if await use(number) is None:
                break
    await engine.dispose()


@contextmanager
def silent_server() -> Iterator[int]:
    """Accept connections and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_silent_server() -> None:
    """A server that accepts and says nothing is given up after the connection timeout."""
    with silent_server() as port:
        engine = create_store_engine(f"postgresql://a:b@127.0.0.1:{port}/x", connect_timeout=0.5)
        async with asyncio.timeout(180), async_sessionmaker(engine)() as session:
            with pytest.raises(Exception) as error:  # noqa: PT011 - drivers raise what they like
                await SkillService(session).list_skills("alice")
        assert unavailable(error.value) is not None
        await engine.dispose()
