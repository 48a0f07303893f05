"""Many at once: fair turns on SQLite, comparisons that hold nobody up, large answers in pieces, indexes for groups."""

import asyncio
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import event, text
from store_support import Sessions, draft, draft_with_files, on_both, on_sqlite, seed

from deepskills.store import SkillService, SkillUpdate, create_skills_router, workers
from deepskills.store.db import turns
from deepskills.store.document import MAX_COMPARED_LINES, difference
from support import scaled

pytestmark = pytest.mark.anyio

WRITER = """
import asyncio, sys
from sqlalchemy.ext.asyncio import async_sessionmaker
from deepskills.store import SkillCreate, SkillService, create_store_engine

async def main(url, process, writers, rounds):
    engine = create_store_engine(url, statement_timeout=120, pool_size=writers)
    sessions = async_sessionmaker(engine)

    async def write(number):
        async with sessions() as session:
            service = SkillService(session)
            for count in range(rounds):
                name = f"skill-{process}-{number}-{count}"
                await service.create_skill(SkillCreate(name=name, description="x"), "alice")

    await asyncio.gather(*(write(number) for number in range(writers)))
    await engine.dispose()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


@on_sqlite
async def test_processes_write_one_file(sessions: Sessions, url: str) -> None:
    """Writers of three processes on one SQLite file all get their turn, and revisions stay in order."""
    writers, rounds = scaled(5, 15), scaled(2, 10)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, url, *map(str, (number, writers, rounds)), stderr=subprocess.PIPE
        )
        for number in range(3)
    ]
    errors = [(await process.communicate())[1].decode()[-500:] for process in processes]
    assert [(process.returncode, error) for process, error in zip(processes, errors, strict=True)] == [(0, "")] * 3
    async with sessions() as session:
        service = SkillService(session)
        changes = await service.list_changes(system=True, limit=1_000)
        assert len(changes) == len({change.revision for change in changes}) == 3 * writers * rounds


async def test_turns_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of a process get their turns first come, first served; one that gives up is passed over."""
    queue = turns.Turns()
    order: list[int] = []

    async def take(number: int, seconds: float = 60) -> None:
        async with queue.turn(seconds):
            order.append(number)
            await asyncio.sleep(0)

    async with queue.turn(60):
        waiting = []
        for number in range(4):
            waiting.append(asyncio.create_task(take(number)))
            await asyncio.sleep(0)
        waiting[1].cancel()
        with pytest.raises(Exception, match="database is locked"):
            await take(9, 0.01)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [0, 2, 3]
    monkeypatch.setattr(turns, "STEP_BACK_SECONDS", 0)
    queue.contended()
    await take(5)
    assert order[-1] == 5


@on_both
async def test_a_comparison_holds_no_writer_up(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a difference is worked out, and while a document is parsed, others write."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*_arguments: Any) -> str:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        return "done"

    async with sessions() as first, sessions() as second:
        reader, writer = SkillService(first), SkillService(second)
        made = await writer.create_skill(draft("report"), "alice")
        changed = await writer.update_skill(made.id, SkillUpdate(content="2"), "alice")
        with monkeypatch.context() as patch:
            patch.setattr("deepskills.store.service.difference", slow)
            comparing = asyncio.create_task(reader.diff_versions(made.id, made.revision, changed.revision, "alice"))
            await begun.wait()
            await writer.update_skill(made.id, SkillUpdate(content="3"), "alice")
            may_end.set()
            assert await comparing == "done"
        begun.clear()
        may_end.clear()

        async def slowly(_size: int, work: Any) -> Any:
            if begun.is_set():
                return work()
            begun.set()
            await may_end.wait()
            return work()

        monkeypatch.setattr("deepskills.store.service.computed", slowly)
        updating = asyncio.create_task(reader.update_skill(made.id, SkillUpdate(description="Slow."), "alice"))
        await begun.wait()
        await writer.update_skill(made.id, SkillUpdate(content="4"), "alice")
        may_end.set()
        done = await updating
        assert (done.description, done.content) == ("Slow.", "4")


def test_comparisons_are_bounded_in_total() -> None:
    """Of many files only so many lines are matched with each other; the rest is shown as removed and added."""
    matched: list[int] = []
    lines = MAX_COMPARED_LINES // 4
    before = {f"{n}.md": "".join(f"{i} old\n" for i in range(lines)).encode() for n in range(8)}
    after = {path: content.replace(b"old", b"new") for path, content in before.items()}
    import difflib  # noqa: PLC0415 - counted here

    original = difflib.unified_diff

    def counted(old: Any, new: Any, *names: Any, **options: Any) -> Any:
        matched.append(len(old) + len(new))
        return original(old, new, *names, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difflib, "unified_diff", counted)
        shown = difference(before, after)
    assert sum(matched) <= MAX_COMPARED_LINES
    assert all(f"+++ b/{path}" in shown for path in before)
    assert workers.INLINE_BYTES < 1024 * 1024


@on_both
async def test_slow_readers_hold_one_piece(sessions: Sessions) -> None:
    """An answer that nobody takes holds a piece of a large skill, not the skill."""
    size = 8 * 1024 * 1024
    async with sessions() as session:
        made = await SkillService(session).create_skill(
            draft_with_files("large", {f"{n}.bin": bytes(size) for n in range(3)}), "alice"
        )
    app = FastAPI()
    app.include_router(create_skills_router(sessions, lambda: "alice", security=None))
    stuck, release = asyncio.Semaphore(0), asyncio.Event()

    async def read(path: str) -> int:
        total = 0

        async def receive() -> Any:
            await asyncio.sleep(3_600)

        async def send(message: Any) -> None:
            nonlocal total
            total += len(message.get("body", b""))
            if total > 1_000_000 and not release.is_set():
                stuck.release()
                await release.wait()

        scope: Any = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [], "scheme": "http", "server": ("s", 80), "client": ("c", 1),
            "root_path": "",
        }  # fmt: skip
        await app(scope, receive, send)
        return total

    tracemalloc.start()
    try:
        paths = [f"/skills/{made.id}", f"/skills/{made.id}/versions/{made.revision}"] * 3
        readers = [asyncio.create_task(read(path)) for path in paths]
        for _ in readers:
            await stuck.acquire()
        held, _peak = tracemalloc.get_traced_memory()
        release.set()
        totals = await asyncio.gather(*readers)
    finally:
        tracemalloc.stop()
    assert held < 6 * 6 * 1024 * 1024
    assert all(total > 3 * size for total in totals)


@on_both
async def test_groups_are_looked_up_by_index(sessions: Sessions, kind: str) -> None:
    """What an agent's run asks with a group reads no whole table of skills."""
    async with sessions() as session:
        options: Any = {"groups_of": lambda _: ["team"], "is_operator": lambda user: user == "root"}
        service = SkillService(session, **options)
        for number in range(3):
            await service.create_skill(draft(f"shared-{number}", shared_with={"team": "read"}), "bob")
        statements: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            if statement.lstrip().startswith("SELECT") and "deepskills_skills" in statement:
                statements.append((statement, parameters))

        engine = sessions.kw["bind"].sync_engine
        event.listen(engine, "before_cursor_execute", note)
        try:
            from deepskills.store.agent.reader import AgentReader  # noqa: PLC0415 - what a run asks
            from deepskills.store.db.repositories import Filter  # noqa: PLC0415 - what a run asks
            from deepskills.store.rules import TRUSTED  # noqa: PLC0415 - what a run asks

            reader = AgentReader(session, **options)
            viewer = await reader.viewer("alice")
            overview = await reader.overview(viewer, Filter(TRUSTED), {}, None)
            assert [head.name for head in overview.heads] == ["shared-0", "shared-1", "shared-2"]
            await service.list_skills("alice", include_public=False, limit=2)
        finally:
            event.remove(engine, "before_cursor_execute", note)
        if kind == "postgres":
            await session.execute(text("SET LOCAL enable_seqscan = off"))
        plans = []
        for statement, parameters in statements:
            prefix = "EXPLAIN QUERY PLAN " if kind == "sqlite" else "EXPLAIN "
            rows = await (await session.connection()).exec_driver_sql(prefix + statement, parameters)
            plans.append("\n".join(str(row) for row in rows))
        assert len(plans) >= 4
        whole = "SCAN deepskills_skills" if kind == "sqlite" else "Seq Scan on deepskills_skills"
        assert [plan for plan in plans if whole in plan and "USING" not in plan.partition(whole)[2][:20]] == []


@on_both
async def test_a_search_is_indexed_once(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the visible skills stay as they are, a search makes no new index."""
    made: list[int] = []
    from deepskills.store.db.search import Ranker  # noqa: PLC0415 - counted here

    class Counted(Ranker):
        def __init__(self, skills: Any) -> None:
            made.append(len(skills))
            super().__init__(skills)

    monkeypatch.setattr("deepskills.store.service.Ranker", Counted)
    async with sessions() as session:
        service = SkillService(session)
        first = await service.create_skill(draft("report", is_public=True), "alice")
        for user in (None, "bob", "carol"):
            assert [skill.id for skill in await service.list_skills(user, q="report")] == [first.id]
        assert made == [1]
        await service.update_skill(first.id, SkillUpdate(description="Summaries."), "alice")
        assert [skill.id for skill in await service.list_skills(None, q="summaries")] == [first.id]
        assert made == [1, 1]


@on_sqlite
def test_a_purged_pin_is_not_offered(any_sessions: Sessions) -> None:
    """Agents that know a pinned version hear that a purge took it."""
    from deepskills.store import DatabaseSkillAdapter  # noqa: PLC0415 - here alone
    from support import Conversation  # noqa: PLC0415 - here alone

    (made,) = seed(any_sessions, "alice", draft("report"))

    async def change(*, purges: bool) -> None:
        async with any_sessions() as session:
            service = SkillService(session)
            if purges:
                await service.purge(versions=0)
            else:
                await service.update_skill(made.id, SkillUpdate(content="new"), "alice")

    asyncio.run(change(purges=False))
    adapter: Any = DatabaseSkillAdapter(
        user_id="alice", db_session_factory=any_sessions, versions={"report": made.revision}
    )
    talk = Conversation("sync", adapter)
    talk.say("ok")
    assert [skill["name"] for skill in talk.state["skills_metadata"]] == ["report"]
    asyncio.run(change(purges=True))
    talk.say("ok")
    assert [skill["name"] for skill in talk.state["skills_metadata"]] == []
