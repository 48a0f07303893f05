"""One truth at a time: snapshots, revisions in the order of commits, and writers who do not overwrite each other."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from store_support import Sessions, draft, draft_with_files, service_on

from deepskills import SkillNotFoundError, SkillsError
from deepskills.store import (
    Skill,
    SkillConflictError,
    SkillFileCreate,
    SkillService,
    SkillStaleError,
    SkillUpdate,
)
from deepskills.store import changes as core
from deepskills.store.db.transactions import MAX_ATTEMPTS, Transactions, is_collision

pytestmark = pytest.mark.anyio


async def test_reads_never_mix_two_moments(sessions: Sessions) -> None:
    """Beside a writer who saves text and files as one, no reader gets text and files of two moments."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "0", "b.md": "0"}), "alice")
        await service.update_skill(made.id, SkillUpdate(content="0"), "alice")
    is_done = False

    async def write() -> None:
        nonlocal is_done
        async with service_on(sessions) as service:
            for number in range(1, 16):
                data = SkillUpdate(content=f"{number}")
                await service.save_skill(made.id, data, {"a.md": f"{number}", "b.md": f"{number}"}, "alice")
        is_done = True

    mixed: list[object] = []

    async def read() -> int:
        count = 0
        async with service_on(sessions) as service:
            while not is_done:
                skill = await service.get_skill(made.id, "alice")
                parts = {skill.content, *(str(file.content) for file in skill.files)}
                if len(parts) != 1 or len(skill.files) != 2:
                    mixed.append((skill.content, [(file.path, file.content) for file in skill.files]))
                count += 1
        return count

    results = await asyncio.gather(write(), read(), read())
    assert mixed == []
    assert all(count for count in results[1:] if count is not None)


async def test_a_read_beside_a_delete_has_all_or_nothing(sessions: Sessions) -> None:
    """While skills are deleted and purged, a reader gets a skill with its files or none, never one without them."""
    async with service_on(sessions) as service:
        made = [await service.create_skill(draft_with_files(f"s{n}", {"a.md": "x"}), "alice") for n in range(12)]

    async def delete() -> None:
        async with service_on(sessions) as service:
            for skill in made:
                await service.delete_skill(skill.id, "alice")
                await service.purge(retention=0)

    async def read() -> list[int]:
        found = []
        async with service_on(sessions) as service:
            for skill in made * 3:
                try:
                    found.append(len((await service.get_skill(skill.id, "alice")).files))
                except SkillNotFoundError:
                    continue
        return found

    _, *seen = await asyncio.gather(delete(), read(), read())
    assert all(set(counts) <= {1} for counts in seen)


async def test_a_session_in_a_transaction_is_refused(sessions: Sessions) -> None:
    """What the session began before is neither seen nor ended; the message says what to do."""
    async with sessions() as session:
        service = SkillService(session)
        await session.execute(text("SELECT 1"))
        for call in (service.list_skills("alice"), service.create_skill(draft(), "alice")):
            with pytest.raises(SkillsError, match="its own session"):
                await call
        await session.rollback()
        assert await service.list_skills("alice") == []


async def test_a_connection_in_a_transaction_is_refused(sessions: Sessions, kind: str) -> None:
    """On PostgreSQL a session on a connection that somebody else uses cannot get a snapshot of its own."""
    if kind == "sqlite":
        return
    async with sessions.kw["bind"].connect() as connection:
        await connection.execute(text("SELECT 1"))
        async with AsyncSession(bind=connection) as session:
            with pytest.raises(SkillsError, match="its own session"):
                await SkillService(session).list_skills("alice")


async def test_revisions_rise_with_every_change(sessions: Sessions) -> None:
    """Each change of a skill or its files raises its revision above all before; the clock may do what it likes."""
    async with service_on(sessions) as service:
        other = await service.create_skill(draft("other"), "alice")
        made = await service.create_skill(draft("report"), "alice")
        seen = [other.revision, made.revision]
        times = [made.updated_at]
        for work in (
            lambda: service.update_skill(made.id, SkillUpdate(content="x"), "alice"),
            lambda: service.update_skill(made.id, SkillUpdate(is_public=True), "alice"),
            lambda: service.update_skill(made.id, SkillUpdate(shared_with={"team": "read"}), "alice"),
            lambda: service.add_file(made.id, SkillFileCreate(path="a.md", content="x"), "alice"),
            lambda: service.save_file(made.id, SkillFileCreate(path="a.md", content="y"), "alice"),
            lambda: service.save_skill(made.id, SkillUpdate(), {"b.md": "z"}, "alice"),
        ):
            await work()
            got = await service.get_skill(made.id, "alice")
            seen.append(got.revision)
            times.append(got.updated_at)
        await service.delete_file(got.files[0].id, "alice")
        seen.append((await service.get_skill(made.id, "alice")).revision)
    assert seen == sorted(set(seen))
    assert times == sorted(set(times))


async def test_updates_that_change_nothing(sessions: Sessions) -> None:
    """An update, a save or a file with what is there already leaves revision, time and log as they were."""
    async with service_on(sessions) as service:
        data = draft_with_files("report", {"a.md": "x", "b.bin": b"\x00"}, tags=["t"], is_public=True)
        made = await service.create_skill(data, "alice")
        same: dict[str, bytes | str] = {"a.md": "x", "b.bin": b"\x00"}
        for update in (SkillUpdate(), SkillUpdate(name="report"), SkillUpdate(tags=["t"], is_public=True)):
            await service.update_skill(made.id, update, "alice")
            await service.save_skill(made.id, update, same, "alice")
        await service.save_skill(made.id, data, same, "alice")
        await service.save_file(made.id, SkillFileCreate(path="a.md", content="x"), "alice")
        await service.update_skill(made.id, SkillUpdate(shared_with={}), "alice")
        got = await service.get_skill(made.id, "alice")
        changes = await service.list_changes("alice")
    assert (got.revision, got.updated_at) == (made.revision, made.updated_at)
    assert [change.action for change in changes] == ["created"]


async def test_the_clock_runs_backwards(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back does not make `updated_at` go back."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")
        monkeypatch.setattr(core, "now", lambda: made.updated_at - timedelta(hours=1))
        for number in range(3):
            after = await service.update_skill(made.id, SkillUpdate(content=f"{number}"), "alice")
            assert after.updated_at > made.updated_at
            made = after


async def test_bursts_of_writers(sessions: Sessions) -> None:
    """Of many writers at the same time on one skill each gets through; times and revisions follow the commits."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")
    log: list[tuple[int, object]] = []

    async def write(number: int) -> None:
        async with service_on(sessions) as service:
            if number % 3 == 0:
                await service.save_file(made.id, SkillFileCreate(path=f"{number}.md", content="x"), "alice")
                return
            if number % 3 == 1:
                skill = await service.update_skill(made.id, SkillUpdate(tags=[f"{number}"]), "alice")
            else:
                skill = await service.save_skill(made.id, draft("report", content=f"{number}"), None, "alice")
            log.append((skill.revision, skill.updated_at))

    await asyncio.gather(*(write(number) for number in range(30)))
    ordered = sorted(log)
    assert len({revision for revision, _ in log}) == 20
    assert [at for _, at in ordered] == sorted(at for _, at in log)  # type: ignore[type-var]
    async with service_on(sessions) as service:
        assert len((await service.get_skill(made.id, "alice")).files) == 10
        assert len(await service.list_versions(made.id, "alice")) == 31


async def test_one_of_two_editors_at_the_same_time(sessions: Sessions) -> None:
    """Of writers at the same time who name the same revision, one gets through, whatever the others prepared."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")

    async def write(number: int) -> Skill:
        async with service_on(sessions) as service:
            data = SkillUpdate(content=f"{number}")
            return await service.update_skill(made.id, data, "alice", expected_revision=made.revision)

    done = await asyncio.gather(*(write(number) for number in range(8)), return_exceptions=True)
    assert [type(result) for result in done].count(SkillStaleError) == 7, done


async def test_no_reader_passes_a_change_that_commits_later(sessions: Sessions) -> None:
    """Whoever has read up to a revision finds later only higher ones, though writers overlap."""
    is_done = False
    seen: list[int] = []
    late: list[int] = []

    async def write(number: int) -> None:
        async with service_on(sessions) as service:
            for step in range(4):
                await service.create_skill(draft(f"s{number}-{step}"), "alice")

    async def follow() -> None:
        async with service_on(sessions) as service:
            while not is_done:
                known = {change.revision for change in await service.list_changes("alice", limit=1000)}
                late.extend(known - set(seen) & set(range(max(seen, default=0))))
                seen.extend(sorted(known - set(seen)))
                await asyncio.sleep(0)

    follower = asyncio.create_task(follow())
    await asyncio.gather(*(write(number) for number in range(5)))
    is_done = True
    await follower
    assert late == []
    assert seen == sorted(seen)


async def test_two_editors(sessions: Sessions) -> None:
    """The second of two who edited the same revision is told, by every writing call, and has changed nothing."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "x"}), "alice")
        known = made.revision
        first = await service.update_skill(made.id, SkillUpdate(content="one"), "alice", expected_revision=known)
        file = SkillFileCreate(path="b.md", content="x")
        for call in (
            service.update_skill(made.id, SkillUpdate(content="two"), "alice", expected_revision=known),
            service.save_skill(made.id, SkillUpdate(content="two"), {}, "alice", expected_revision=known),
            service.delete_skill(made.id, "alice", expected_revision=known),
            service.add_file(made.id, file, "alice", expected_revision=known),
            service.save_file(made.id, file, "alice", expected_revision=known),
            service.delete_file(made.files[0].id, "alice", expected_revision=known),
            service.restore_version(made.id, known, "alice", expected_revision=known),
            service.hand_over(made.id, "bob", "alice", expected_revision=known),
        ):
            with pytest.raises(SkillStaleError, match="Get it again") as error:
                await call
            assert isinstance(error.value, SkillConflictError)
            assert error.value.revision == first.revision
        got = await service.get_skill(made.id, "alice")
        assert (got.revision, got.content, len(got.files)) == (first.revision, "one", 1)
        await service.save_file(made.id, file, "alice", expected_revision=first.revision)


async def test_replacing_a_file_is_one_step(sessions: Sessions) -> None:
    """A file that is replaced is never missing, and keeps its id."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "0"}), "alice")
    is_done = False

    async def write() -> None:
        nonlocal is_done
        async with service_on(sessions) as service:
            for number in range(10):
                file = await service.save_file(made.id, SkillFileCreate(path="a.md", content=f"{number}"), "alice")
                assert file.id == made.files[0].id
        is_done = True

    async def read() -> set[int]:
        found = set()
        async with service_on(sessions) as service:
            while not is_done:
                found.add(len((await service.get_skill(made.id, "alice")).files))
        return found

    _, found = await asyncio.gather(write(), read())
    assert found == {1}


async def test_collisions_are_tried_again(sessions: Sessions, kind: str) -> None:
    """Work that the database gives up because of others is done again, a bounded number of times."""
    if kind == "sqlite":
        return
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")
    attempts = 0

    async def beside() -> None:
        async with sessions() as other:
            await other.execute(text("UPDATE deepskills_skills SET description = description || 'x'"))
            await other.commit()

    async with sessions() as session:

        async def work() -> str:
            nonlocal attempts
            attempts += 1
            skill = (await session.scalars(select(Skill).where(Skill.id == made.id))).one()
            if attempts < 3:
                await beside()
            skill.description = "Mine."
            await session.flush()
            return skill.description

        assert await Transactions(session).perform(work, "write") == "Mine."
        assert attempts == 3

        async def never() -> None:
            nonlocal attempts
            attempts += 1
            (await session.scalars(select(Skill).where(Skill.id == made.id))).one().description = "Never."
            await beside()
            await session.flush()

        attempts = 0
        with pytest.raises(DBAPIError) as error:
            await Transactions(session).perform(never, "write")
        assert is_collision(error.value)
        assert attempts == MAX_ATTEMPTS


async def test_a_connection_in_a_transaction(sessions: Sessions) -> None:
    """A session on a connection whose transaction somebody else began is refused: what it wrote could be undone."""
    async with sessions.kw["bind"].connect() as connection:
        await connection.execute(text("SELECT 1"))
        async with AsyncSession(connection) as session:
            for call in (
                SkillService(session).list_skills("alice"),
                SkillService(session).create_skill(draft("report"), "alice"),
            ):
                with pytest.raises(SkillsError, match="already in a transaction"):
                    await call
        await connection.rollback()
        async with AsyncSession(connection) as session:
            await SkillService(session).create_skill(draft("report"), "alice")
    async with service_on(sessions) as service:
        assert [skill.name for skill in await service.list_skills("alice")] == ["report"]
