"""The skill store at scale, on SQLite and, where pgserver has a wheel, on PostgreSQL: runs, loads and listings."""

import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from measure import Row
from sqlalchemy import event, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from deepskills.store import DatabaseSkillAdapter, Skill, SkillService, create_store_engine, migrations
from deepskills.store.db.models import INSERT_SEARCH_ROW
from deepskills.store.db.search import index_words, search_row
from deepskills.testing import ScriptedChatModel, call_tools

BODY = "x" * 8_000
DESCRIPTION = "Does what number {0} is for, and is described in the words that a description takes on average, " * 2
SIZES = (100, 1_000, 10_000)
MANY = 100_000
USERS = 30
BEFORE = {1_000: 8.7e6, 10_000: 87e6}
"""Bytes that a bare run read when it read whole skills, by number of visible skills."""


@dataclass
class Meter:
    """What a database was asked and what it gave."""

    statements: int = 0
    bytes: int = 0

    def note(self, _connection: Any, cursor: Any, *_: Any) -> None:
        self.statements += 1
        for row in getattr(cursor, "_rows", ()):
            self.bytes += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


@contextlib.contextmanager
def metered(engine: AsyncEngine) -> Iterator[Meter]:
    meter = Meter()
    event.listen(engine.sync_engine, "after_cursor_execute", meter.note)
    yield meter
    event.remove(engine.sync_engine, "after_cursor_execute", meter.note)


async def fill(engine: AsyncEngine, start: int, stop: int, body: str = BODY) -> None:
    """Write system skills past the service: rows as it would write them."""
    for first in range(start, stop, 2_000):
        rows: list[dict[str, Any]] = []
        for number in range(first, min(first + 2_000, stop)):
            name, described = f"skill-{number:06}", DESCRIPTION.format(number).rstrip(", ")
            rows.append(
                {
                    "id": uuid4(), "owner_id": None, "name": name, "name_key": name, "description": described,
                    "content": body, "frontmatter": None, "size": len(body), "revision": number + 1,
                    "stamp": number + 1, "number": number + 1, "name_since": number + 1,
                    "words": index_words(name, described, []),
                }
            )  # fmt: skip
        async with engine.begin() as connection:
            await connection.execute(insert(Skill), rows)
            if engine.dialect.name == "sqlite":
                values = [search_row(row["number"], row["words"]) for row in rows]
                await connection.execute(text(INSERT_SEARCH_ROW), values)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE deepskills_counter SET value = :stop, stamp = :stop"), {"stop": stop})
    if engine.dialect.name == "postgresql":
        async with engine.begin() as connection:
            await connection.execute(text("ANALYZE"))


@contextlib.asynccontextmanager
async def measured(engine: AsyncEngine) -> AsyncIterator[Callable[[], tuple[Meter, float]]]:
    with metered(engine) as meter:
        start = time.process_time()
        yield lambda: (meter, time.process_time() - start)


def agent(adapter: Any, *calls: Any) -> Any:
    return create_agent(ScriptedChatModel(replies=[call_tools(*calls)] if calls else ["ok"]), middleware=[adapter])


async def run_rows(kind: str, engine: AsyncEngine) -> list[Row]:
    sessions = async_sessionmaker(engine)
    rows: list[Row] = []
    given: Any = {"messages": [HumanMessage("go")]}
    filled = 0
    for size in SIZES:
        await fill(engine, filled, size)
        filled = size
        adapter: Any = DatabaseSkillAdapter(user_id="alice", db_session_factory=sessions, catalog_budget=2_000)
        for what, calls in (("first run", ()), ("run, nothing changed", ()), ("one load", (_load(size - 1),))):
            async with measured(engine) as result:
                await agent(adapter, *calls).ainvoke(given)
                meter, cpu = result()
            reach = {"run, nothing changed": 10e3, "one load": 60e3}.get(what, size * 600.0)
            reference = f"whole skills {BEFORE[size] / 1e6:.1f} MB" if size in BEFORE else "whole skills"
            shown = f"{meter.bytes / 1e3:.1f} kB, {meter.statements} statements, {cpu * 1000:.0f} ms of CPU"
            rows.append(
                Row(
                    f"{kind}: {what}, {size:,} visible",
                    reference,
                    shown,
                    f"{reach / 1e3:.0f} kB",
                    meter.bytes <= reach,
                    {"bytes": meter.bytes, "statements": meter.statements, "cpu": cpu},
                )
            )
        if size == 1_000:
            rows.append(await users_row(kind, sessions, given))
    return rows


def _load(number: int) -> tuple[str, dict[str, str]]:
    return "load_skill", {"skill_name": f"skill-{number:06}"}


async def users_row(kind: str, sessions: Any, given: Any) -> Row:
    """Measure many users at once on one agent, and how long the event loop stalls meanwhile."""
    adapter: Any = DatabaseSkillAdapter(
        user_id=lambda runtime: runtime.context["user"], db_session_factory=sessions, catalog_budget=2_000
    )
    waits: list[float] = []
    stalls = [0.0]
    is_done = False

    async def watch() -> None:
        while not is_done:
            start = time.perf_counter()
            await asyncio.sleep(0.01)
            stalls.append(time.perf_counter() - start - 0.01)

    async def one(user: int) -> None:
        start = time.perf_counter()
        await agent(adapter).ainvoke(given, context={"user": f"user-{user}"})
        waits.append(time.perf_counter() - start)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(one(user) for user in range(USERS)))
    is_done = True
    await watcher
    median = statistics.median(waits)
    return Row(
        f"{kind}: {USERS} users at once, 1,000 visible",
        "whole skills: 54 s, the loop stalls 3.3 s",
        f"median {median:.2f} s, the loop stalls {max(stalls):.2f} s",
        "5 s",
        median < 5,
        {"median": median, "stall": max(stalls)},
    )


async def listing_rows(kind: str, engine: AsyncEngine) -> list[Row]:
    await fill(engine, SIZES[-1], MANY, body="x")
    sessions = async_sessionmaker(engine)
    rows = []
    async with sessions() as session:
        service = SkillService(session)
        page = await service.list_skills("alice", limit=50)
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "a page of 50": lambda: service.list_skills("alice", limit=50, cursor=page.next_cursor),
            "a search for a rare word": lambda: service.list_skills("alice", q=f"{MANY - 7}", limit=20),
            "a search for common words": lambda: service.list_skills("alice", q="described on average", limit=20),
        }
        for what, call in work.items():
            async with measured(engine) as result:
                start = time.perf_counter()
                await call()
                taken = time.perf_counter() - start
                meter, _ = result()
            rows.append(
                Row(
                    f"{kind}: {what}, {MANY:,} skills",
                    "all 92 MB at 10,000",
                    f"{taken * 1000:.0f} ms, {meter.bytes / 1e3:.0f} kB, {meter.statements} statements",
                    "1 s" if "common" not in what else "2 s",
                    taken < (1 if "common" not in what else 2),
                    {"seconds": taken, "bytes": meter.bytes},
                )
            )
    return rows


@contextlib.contextmanager
def databases() -> Iterator[dict[str, str]]:
    """Give a database of each kind that can be started here, by URL."""
    place = Path(tempfile.mkdtemp(prefix="deepskills-bench-"))
    found = {"SQLite": f"sqlite:///{place / 'store.db'}"}
    server = None
    try:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(place))
        import pgserver  # noqa: PLC0415 - it has wheels for some platforms only

        server = pgserver.postgres_server.get_server(place / "pg", cleanup_mode="stop")
        found["PostgreSQL"] = server.get_uri()
    except ImportError:
        print("PostgreSQL is left out: pgserver is not installed", file=sys.stderr)
    try:
        yield found
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def store_rows() -> Iterator[Row]:
    """Measure both databases."""

    async def measure(kind: str, url: str) -> list[Row]:
        engine = create_store_engine(url, statement_timeout=120)
        await migrations.upgrade(engine)
        rows = [*await run_rows(kind, engine), *await listing_rows(kind, engine)]
        await engine.dispose()
        return rows

    with databases() as urls:
        for kind, url in urls.items():
            yield from asyncio.run(measure(kind, url))


if __name__ == "__main__":
    for row in store_rows():
        print(f"{'ok ' if row.reached else 'OVER'} {row.what}: {row.measured}")
