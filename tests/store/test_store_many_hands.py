"""Many at once: fair turns on SQLite, comparisons that hold nobody up, large answers in pieces, indexes for groups."""

import asyncio
import math
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from store_support import Sessions, draft, draft_with_files, on_both, on_postgres, on_sqlite, seed
from test_store_db_listings import statements

from deepskills.store import (
    SkillFileCreate,
    SkillNotFoundError,
    SkillService,
    SkillUpdate,
    create_skills_page,
    create_skills_router,
    create_store_engine,
    workers,
)
from deepskills.store.document import MAX_COMPARED, difference
from deepskills.store.service.history import History
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


async def test_turns_are_in_order() -> None:
    """Writers of a process get their turns first come, first served; one that gives up is passed over."""
    queue = workers.Turns()
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
        with pytest.raises(TimeoutError):
            await take(9, 0.01)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == [0, 2, 3]


@on_postgres
async def test_waiting_writers_leave_connections_to_readers(sessions: Sessions, url: str) -> None:
    """However many writers of a process wait, one of them stands in the database's queue, and reads go on."""
    engine = create_store_engine(url, pool_size=2, max_overflow=0, pool_timeout=1)
    others = async_sessionmaker(engine)

    async def write(number: int) -> None:
        async with others() as session:
            await SkillService(session).create_skill(draft(f"skill-{number}"), "alice")

    async with sessions() as holder:
        await holder.execute(text("LOCK TABLE deepskills_counter IN EXCLUSIVE MODE"))
        writers = [asyncio.create_task(write(number)) for number in range(6)]
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not await holder.scalar(waiting):  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.01)
        async with others() as session:
            assert await SkillService(session).list_skills("alice") == []
        assert await holder.scalar(waiting) == 1
        await holder.rollback()
    await asyncio.gather(*writers)
    async with others() as session:
        assert len(await SkillService(session).list_skills("alice")) == 6
    await engine.dispose()


@on_postgres
async def test_writers_hold_the_lock_for_few_statements(sessions: Sessions) -> None:
    """Each statement is a way to the database and back, for which all other writers wait."""
    files = {f"{number}.md": "old" for number in range(5)}
    async with sessions() as session:
        service = SkillService(session)
        with statements(sessions) as seen:

            def in_lock() -> int:
                last = max(place for place, statement in enumerate(seen) if statement.startswith("LOCK"))
                return len(seen) - last - 1

            made = await service.create_skill(draft_with_files("report", files), "alice")
            assert in_lock() == 4, seen
            await service.save_skill(made.id, SkillUpdate(content="new"), dict.fromkeys(files, "new"), "alice")
            assert in_lock() == 9, seen
            await service.save_file(made.id, SkillFileCreate(path="x.md", content="x"), "alice")
            assert in_lock() == 6, seen
            await service.delete_skill(made.id, "alice")
            assert in_lock() == 5, seen
            for number in range(15):
                other = await service.create_skill(draft(f"skill-{number}"), "alice")
                await service.delete_skill(other.id, "alice")
            first = len(seen)
            assert await service.purge(retention=0, versions=0) == 16
            # Whatever the number of skills: found, counted, logged, and deleted from each table.
            assert len(seen) - first <= 20, seen[first:]


@on_postgres
async def test_a_purge_looks_for_old_versions_before_its_turn(sessions: Sessions) -> None:
    """Finding what was replaced long ago may take a look at all former versions, and no writer waits for that."""
    async with sessions() as session:
        service = SkillService(session)
        made = await service.create_skill(draft_with_files("report", {"a.md": "first"}), "alice")
        for number in range(15):
            await service.save_skill(made.id, SkillUpdate(content=f"{number}"), {"a.md": f"{number}"}, "alice")
        engine = sessions.kw["bind"].sync_engine
        with statements(sessions) as seen:

            def ended(_connection: object) -> None:
                seen.append("COMMIT")

            event.listen(engine, "commit", ended)
            await service.purge(versions=365)
            await service.purge(versions=0)
            event.remove(engine, "commit", ended)
        with pytest.raises(SkillNotFoundError):
            await service.get_version(made.id, made.revision, "alice")
    turns = [turn.partition("COMMIT")[0] for turn in "\n".join(seen).split("LOCK TABLE")[1:]]
    # One to see that no skill is to be purged, for each purge, and two for the 30 former texts and files.
    assert ["DELETE FROM deepskills_former" in turn for turn in turns] == [False, False, True, True]
    assert [turn for turn in turns if "JOIN deepskills_changes" in turn or "FROM deepskills_changes" in turn] == []
    assert sum("FROM deepskills_changes" in statement for statement in seen) >= 3, "they are looked for all the same"


@on_both
async def test_a_comparison_holds_no_writer_up(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a difference is worked out, and while a document is parsed, others write."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*_arguments: Any) -> str:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()
        return "done"

    read: list[str] = []
    original: Any = vars(History)["_compare"]

    async def noted(*arguments: Any) -> Any:
        read.append("read")
        return await original(*arguments)

    async with sessions() as first, sessions() as second, sessions() as third:
        reader, writer, other = SkillService(first), SkillService(second), SkillService(third)
        made = await writer.create_skill(draft("report"), "alice")
        changed = await writer.update_skill(made.id, SkillUpdate(content="2"), "alice")
        with monkeypatch.context() as patch:
            patch.setattr("deepskills.store.service.history.difference", slow)
            comparing = asyncio.create_task(reader.diff_versions(made.id, made.revision, changed.revision, "alice"))
            await begun.wait()
            # Another one that waits for its turn has read nothing yet.
            patch.setattr(SkillService, "_compare", noted)
            waiting = asyncio.create_task(other.diff_versions(made.id, made.revision, changed.revision, "alice"))
            await writer.update_skill(made.id, SkillUpdate(content="3"), "alice")
            assert read == []
            may_end.set()
            assert await comparing == await waiting == "done"
            assert read == ["read"]
        begun.clear()
        may_end.clear()

        async def slowly(_size: int, work: Any) -> Any:
            if begun.is_set():
                return work()
            begun.set()
            await may_end.wait()
            return work()

        monkeypatch.setattr("deepskills.store.service.writing.run_in_thread", slowly)
        updating = asyncio.create_task(reader.update_skill(made.id, SkillUpdate(description="Slow."), "alice"))
        await begun.wait()
        await writer.update_skill(made.id, SkillUpdate(content="4"), "alice")
        may_end.set()
        done = await updating
        assert (done.description, done.content) == ("Slow.", "4")


class Refusing(ThreadPoolExecutor):
    """Stands for the event loop's shared pool, which drivers and the application wait for."""

    def submit(self, *_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("the shared pool was used")


@on_both
async def test_long_work_has_threads_of_its_own(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the store's waits in the event loop's pool, and of two versions only so many bytes are compared."""
    large = "".join(f"line {number}\n" for number in range(5_000))
    monkeypatch.setattr("deepskills.store.service.history.MAX_COMPARED_BYTES", 3 * len(large))
    async with sessions() as session:
        service = SkillService(session)
        # A connection is made before: looking a host up takes a thread of that pool.
        await service.list_skills("alice")
        asyncio.get_running_loop().set_default_executor(Refusing())
        made = await service.create_skill(draft_with_files("report", dict.fromkeys(["a.md", "b.md"], large)), "alice")
        files = dict.fromkeys(["a.md", "b.md"], large.replace("line 7\n", "row 7\n"))
        saved = await service.save_skill(made.id, SkillUpdate(content=large), files, "alice")
        shown = await service.diff_versions(made.id, made.revision, saved.revision, "alice")
        assert "+row 7\n" in shown
        assert "Binary files a/b.md and b/b.md differ" in shown
        assert [skill.id for skill in await service.list_skills("alice", q="report line")] == [made.id]


def test_comparisons_are_bounded_in_total() -> None:
    """Of many files only so many lines are compared with each other; the rest is shown as removed and added."""
    matched: list[int] = []
    lines = math.isqrt(MAX_COMPARED) // 2
    before = {f"{n}.md": "".join(f"{i} old\n" for i in range(lines)).encode() for n in range(8)}
    after = {path: content.replace(b"old", b"new") for path, content in before.items()}
    import difflib  # noqa: PLC0415 - counted here

    original = difflib.unified_diff

    def counted(old: Any, new: Any, *names: Any, **options: Any) -> Any:
        matched.append(len(old) * len(new))
        return original(old, new, *names, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difflib, "unified_diff", counted)
        shown = difference(before, after)
    assert sum(matched) <= MAX_COMPARED
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
    app.mount("/page", create_skills_page(sessions, lambda: "alice", security=None))
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

    for paths, least in (
        ([f"/skills/{made.id}", f"/skills/{made.id}/versions/{made.revision}"] * 3, 3 * size + 1),
        ([f"/page/skills/{made.id}/download/0.bin"] * 6, size),
    ):
        release.clear()
        tracemalloc.start()
        try:
            readers = [asyncio.create_task(read(path)) for path in paths]
            for _ in readers:
                await stuck.acquire()
            held, _peak = tracemalloc.get_traced_memory()
            release.set()
            totals = await asyncio.gather(*readers)
        finally:
            tracemalloc.stop()
        assert held < 6 * 6 * 1024 * 1024, paths[0]
        assert all(total >= least for total in totals)


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
            from deepskills.store.db.listings import Filter  # noqa: PLC0415 - what a run asks
            from deepskills.store.rules import TRUSTED, Policy  # noqa: PLC0415 - what a run asks

            reader = AgentReader(session, **options)
            viewer = await Policy(**options).viewer("alice")
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
        steps = [line for plan in plans for line in plan.splitlines() if " deepskills_skills" in line]
        if kind == "sqlite":
            # By its id or its owner: a scan of an index, or a range of owners, would be the whole table too.
            whole = [line for line in steps if not ("SEARCH" in line and ("(id=?" in line or "(owner_id=?" in line))]
        else:
            whole = [line for line in steps if "Seq Scan" in line]
        assert (len(steps) >= 4, whole) == (True, [])


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
