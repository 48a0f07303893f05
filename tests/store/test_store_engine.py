"""`create_store_engine`: databases in memory keep what many sessions write at once."""

import asyncio

import pytest
from sqlalchemy import StaticPool
from sqlalchemy.ext.asyncio import async_sessionmaker
from store_support import Sessions, draft, service_on

from deepskills.store import create_store_engine, migrations

pytestmark = pytest.mark.anyio

MEMORY = ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite:///file:of-a-test?mode=memory&uri=true"]


async def write_many(sessions: Sessions, count: int) -> None:
    async def write(number: int) -> None:
        async with service_on(sessions) as service:
            await service.create_skill(draft(f"skill-{number}"), "alice")

    async def read() -> None:
        async with service_on(sessions) as service:
            await service.list_skills("alice")

    await asyncio.gather(*(work for number in range(count) for work in (write(number), read())))


@pytest.mark.parametrize("url", MEMORY)
async def test_sessions_at_once_in_memory(url: str) -> None:
    """Twenty writers and twenty readers at the same moment lose nothing and fail nowhere."""
    engine = create_store_engine(url)
    await migrations.upgrade(engine)
    sessions = async_sessionmaker(engine)
    await write_many(sessions, 20)
    async with service_on(sessions) as service:
        assert {skill.name for skill in await service.list_skills("alice")} == {f"skill-{i}" for i in range(20)}
    await engine.dispose()


async def test_a_pool_of_the_callers_own() -> None:
    """Whoever passes a pool gets that pool."""
    engine = create_store_engine("sqlite://", poolclass=StaticPool)
    assert isinstance(engine.pool, StaticPool)
    await engine.dispose()
