"""What the tests of the store share: databases, services, and skills to put into them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from sqlalchemy import NullPool, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from deepskills import generate_skill_md
from deepskills.store import Skill, SkillCreate, SkillNotFoundError, SkillService, StoreLimits, create_store_engine

Sessions = async_sessionmaker[AsyncSession]
ResultT = TypeVar("ResultT")

DATABASES = ("sqlite", "postgres")
"""The kinds of database that the store runs on."""

on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])
on_postgres = pytest.mark.parametrize("kind", ["postgres"])
on_both = pytest.mark.parametrize("kind", DATABASES)

BINARY = bytes(range(256))
"""No text in any encoding."""


def names(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the skills that an agent found."""
    return sorted(skill["name"] for skill in state["skills_metadata"])


def create_database(server: str) -> str:
    """Create an empty database on a PostgreSQL server and return its URL."""
    name = f"deepskills_{uuid.uuid4().hex[:12]}"
    run_sql(server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def drop_database(server: str, url: str) -> None:
    run_sql(server, f"DROP DATABASE {make_url(url).database} WITH (FORCE)")


def run_sql(url: str, *statements: str) -> None:
    async def execute() -> None:
        engine = new_engine(url, isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    asyncio.run(execute())


def new_engine(url: str, **options: Any) -> AsyncEngine:
    """Return an engine that keeps no connection, so that any event loop may use it."""
    return create_store_engine(url, poolclass=NullPool, **options)


@asynccontextmanager
async def pooled_sessions(url: str, **options: Any) -> AsyncIterator[Sessions]:
    """Give sessions on an engine with a pool, for one event loop."""
    engine = create_store_engine(url, **options)
    try:
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


@asynccontextmanager
async def service_on(sessions: Sessions, limits: StoreLimits | None = None) -> AsyncIterator[SkillService]:
    """Give a service with a session of its own."""
    async with sessions() as session:
        yield SkillService(session, limits=limits or StoreLimits(own_groups_only=False))


def with_service(sessions: Sessions, work: Callable[[SkillService], Awaitable[ResultT]]) -> ResultT:
    """Return what `work` does with a service, for tests that are not async."""

    async def run() -> ResultT:
        async with service_on(sessions) as service:
            return await work(service)

    return asyncio.run(run())


def draft(name: str = "report", **values: Any) -> SkillCreate:
    """Return a skill to create."""
    return SkillCreate(**{"name": name, "description": f"Does {name}.", "content": f"# {name}\n", **values})


def draft_with_files(name: str, files: Mapping[str, str | bytes], **values: Any) -> SkillCreate:
    """Return a skill to create from a `SKILL.md` and files."""
    return SkillCreate.from_skill_md(generate_skill_md(name, f"Does {name}.", f"# {name}\n"), files, **values)


def seed(sessions: Sessions, owner: str | None, *drafts: SkillCreate) -> list[Skill]:
    """Create skills from a test that is not async; without an owner they are the system's."""

    async def create(service: SkillService) -> list[Skill]:
        return [await service.create_skill(data, owner, system=owner is None) for data in drafts]

    return with_service(sessions, create)


async def by_name(service: SkillService, name: str, user: str | None = None) -> Skill:
    """Return the skill that a user gets under a name; a missing one is an error, as for other calls."""
    found = await service.get_skill_by_name(name, user)
    if found is None:
        raise SkillNotFoundError(f"there is no {name}")
    return found
