"""Who is let in: nobody and the system, the age of names, names and groups that are the owner's, forged requests."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from sqlalchemy import text
from store_support import Sessions, by_name, draft, draft_with_files, on_both

from deepskills import SkillFormatError, SkillNotFoundError
from deepskills.store import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillQuotaError,
    SkillRepository,
    SkillSchema,
    SkillService,
    SkillUpdate,
    StoreLimits,
    create_skills_router,
    create_store_engine,
)
from deepskills.store.db.models import now

pytestmark = [pytest.mark.anyio, on_both]

GROUPS = {"alice": ["team"], "bob": ["team"], "dave": ["others"]}
OPTIONS: dict[str, Any] = {"groups_of": lambda user: GROUPS.get(user, []), "is_operator": lambda user: user == "root"}


async def test_nobody_is_not_the_system(sessions: Sessions) -> None:
    """History and usage of system skills are for the operator's code: neither for nobody nor for a user."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS)
        made = await service.create_skill(draft("ours"), None, system=True)
        await service.update_skill(made.id, SkillUpdate(content="new"), None, system=True)
        for user in (None, "eve"):
            for call in (
                service.get_version(made.id, made.revision, user),
                service.list_versions(made.id, user),
                service.diff_versions(made.id, made.revision, made.revision, user),
                service.usage(made.id, None, user),
            ):
                with pytest.raises(SkillPermissionError):
                    await call
        assert len(await service.list_versions(made.id, system=True)) == 2
        await service.delete_skill(made.id, None, system=True)
        assert [skill.id for skill in await service.list_skills(deleted=True, system=True)] == [made.id]
        assert await service.list_skills(deleted=True) == []


async def test_a_name_is_as_old_as_others_know_it(sessions: Sessions) -> None:
    """A name counts from when others could first see it: not from an unseen publication; hiding keeps the age."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS, approval=True)
        squatter = await service.create_skill(draft("deploy", is_public=True), "mallory")
        honest = await service.create_skill(draft("deploy", is_public=True), "alice")
        await service.approve_skill(honest.id, honest.revision, "root")
        await service.approve_skill(squatter.id, squatter.revision, "root")
        assert (await by_name(service, "deploy", "eve")).id == honest.id
        changed = await service.update_skill(honest.id, SkillUpdate(content="edited"), "alice")
        assert (await by_name(service, "deploy", "eve")).id == squatter.id
        await service.approve_skill(honest.id, changed.revision, "root")
        assert (await by_name(service, "deploy", "eve")).id == honest.id
        await service.hide_skill(honest.id, "root")
        await service.hide_skill(honest.id, "root", hidden=False)
        assert (await by_name(service, "deploy", "eve")).id == honest.id
        for is_public in (False, True):
            await service.update_skill(honest.id, SkillUpdate(is_public=is_public), "alice")
        assert (await by_name(service, "deploy", "eve")).id == honest.id, "shown again, it keeps its age"
        renamed = await service.update_skill(honest.id, SkillUpdate(name="other"), "alice")
        renamed = await service.update_skill(honest.id, SkillUpdate(name="deploy"), "alice")
        await service.approve_skill(honest.id, renamed.revision, "root")
        assert (await by_name(service, "deploy", "eve")).id == squatter.id, "a new name starts over"
        for is_public in (False, True):
            await service.update_skill(honest.id, SkillUpdate(is_public=is_public), "alice")
        assert (await by_name(service, "deploy", "eve")).id == squatter.id
        open_store = SkillService(session, **OPTIONS)
        unseen = await open_store.create_skill(draft("build"), "mallory")
        await open_store.hide_skill(unseen.id, "root")
        await open_store.update_skill(unseen.id, SkillUpdate(is_public=True, shared_with={}), "mallory")
        first = await open_store.create_skill(draft("build", is_public=True), "alice")
        await open_store.hide_skill(unseen.id, "root", hidden=False)
        assert (await by_name(open_store, "build", "eve")).id == first.id


async def test_an_empty_user_id_is_nobody(sessions: Sessions) -> None:
    """Who has no id is not signed in, and so writes nothing."""
    async with sessions() as session:
        for user in (None, ""):
            with pytest.raises(SkillAuthenticationError, match="Sign in"):
                await SkillService(session).create_skill(draft("mine"), user)


async def test_names_belong_to_the_owner(sessions: Sessions) -> None:
    """A member of a group that may write cannot rename, and learns nothing of the owner's other skills."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS, limits=StoreLimits(owner_bytes=2_000))
        shared = await service.create_skill(draft("shared", shared_with={"team": "write"}), "alice")
        await service.create_skill(draft("secret", content="x" * 1_200), "alice")
        before = await service.save_skill(shared.id, draft("shared", content="2"), None, "alice")
        errors = []
        for name in ("secret", "free"):
            for call in (
                service.update_skill(shared.id, SkillUpdate(name=name), "bob"),
                service.save_skill(shared.id, draft(name), None, "bob"),
            ):
                with pytest.raises(SkillPermissionError) as refused:
                    await call
                errors.append(str(refused.value))
        assert len(set(errors)) == 1
        with pytest.raises(SkillQuotaError) as full:
            await service.update_skill(shared.id, SkillUpdate(content="y" * 1_500), "bob")
        assert not any(character.isdigit() for character in str(full.value))
        await service.update_skill(shared.id, SkillUpdate(name="shared", content="3"), "bob")
        await service.update_skill(shared.id, SkillUpdate(name="renamed"), "alice")
        with pytest.raises(SkillPermissionError):
            await service.restore_version(shared.id, before.revision, "bob")


async def test_groups_are_for_their_members(sessions: Sessions) -> None:
    """Owner, operators and members see which groups a skill is shared with; one shares with one's own groups."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS)
        made = await service.create_skill(draft("open", is_public=True, shared_with={"team": "read"}), "alice")
        for user, sees in (("alice", True), ("root", True), ("bob", True), ("dave", False), (None, False)):
            expected = {"team": "read"} if sees else {}
            got = await service.get_skill(made.id, user)
            named = await by_name(service, "open", user)
            (listed,) = await service.list_skills(user)
            (found,) = await service.list_skills(user, q="open")
            assert [skill.shared_with for skill in (got, named, listed, found)] == [expected] * 4, user
            assert SkillSchema.of(got).shared_with == expected
        with pytest.raises(SkillPermissionError, match="not in the group"):
            await service.create_skill(draft("trap", shared_with={"team": "read"}), "dave")


async def test_system_skills_are_not_a_groups(sessions: Sessions) -> None:
    """Members write no system skill, whatever it is shared with, and it stays the system's."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS)
        made = await service.create_skill(draft("ours", shared_with={"team": "write"}), None, system=True)
        with pytest.raises(SkillPermissionError):
            await service.update_skill(made.id, SkillUpdate(content="mine now"), "bob")
        assert (await by_name(service, "ours", "bob")).id == made.id


async def test_what_is_refused_now_is_not_restored(sessions: Sessions) -> None:
    """A version with files that the store no longer keeps is not brought back."""
    async with sessions() as session:
        made = await SkillService(session).create_skill(draft_with_files("report", {"a.exe": b"MZ"}), "alice")
        strict = SkillService(session, limits=StoreLimits(extensions=frozenset({".md"})))
        await strict.save_skill(made.id, SkillUpdate(), {}, "alice")
        with pytest.raises(SkillFormatError, match="does not allow"):
            await strict.restore_version(made.id, made.revision, "alice")


async def test_a_form_of_another_site(sessions: Sessions) -> None:
    """Where a cookie signs in, writes without a body need what no page of another site can send."""

    def by_cookie(request: Request) -> str | None:
        return request.cookies.get("user")

    app = FastAPI()
    app.include_router(create_skills_router(sessions, by_cookie, security=None))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://s", cookies={"user": "alice"}) as client:
        async with sessions() as session:
            made = await SkillService(session).create_skill(draft("report"), "alice")
        for path in (f"/skills/{made.id}/restore", f"/skills/{made.id}/versions/{made.revision}/restore"):
            await client.delete(f"/skills/{made.id}")
            forged = {"origin": "http://evil", "x-forwarded-for": "10.0.0.1"}
            for options in (
                {"data": {"a": "b"}},
                {"headers": {"content-type": "text/plain", "x-user": "alice"}},
                {"headers": forged},
                {},
            ):
                assert (await client.post(path, **options)).status_code == 422, options  # type: ignore[arg-type]
            for headers in ({"content-type": "application/json"}, {"if-match": "*"}, {"x-requested-with": "fetch"}):
                answer = await client.post(path, headers=headers)
                assert answer.status_code in (200, 404), headers


async def test_the_log_keeps_private_texts_private(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the database names no values, in engines of the store and in the router's log."""
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: PLC0415 - an application's

    engine = create_store_engine(url)
    assert engine.sync_engine.hide_parameters
    own = create_async_engine(engine.url)
    await engine.dispose()
    app = FastAPI()
    app.include_router(create_skills_router(async_sessionmaker(own), lambda: "alice", security=None))
    async with own.begin() as connection:
        await connection.execute(text("ALTER TABLE deepskills_usage RENAME TO deepskills_elsewhere"))
        await connection.execute(text("ALTER TABLE deepskills_changes RENAME TO deepskills_moved"))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client:
            body = {"name": "x", "description": "d", "content": "a very private text"}
            assert (await client.post("/skills", json=body)).status_code == 503
    finally:
        async with own.begin() as connection:
            await connection.execute(text("ALTER TABLE deepskills_elsewhere RENAME TO deepskills_usage"))
            await connection.execute(text("ALTER TABLE deepskills_moved RENAME TO deepskills_changes"))
        await own.dispose()
    shown = "".join(caplog.handler.format(record) for record in caplog.records)
    assert "deepskills" in shown
    assert "alice" not in shown
    assert "private text" not in shown


async def test_a_wrong_clock_forgets_nothing_of_today(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced long ago is told by the log's times, not by the order of revisions; purging takes batches."""
    from deepskills.store.service import governance as module  # noqa: PLC0415 - its clock and batch

    async with sessions() as session:
        service = SkillService(session)
        today = now()
        made = await service.create_skill(draft_with_files("report", {"a.md": "1"}), "alice")
        await service.save_skill(made.id, SkillUpdate(content="2"), {"a.md": "2"}, "alice")
        with monkeypatch.context() as patch:
            patch.setattr("deepskills.store.changes.now", lambda: today - timedelta(days=4_000))
            late = await service.create_skill(draft("late"), "alice")
            await service.update_skill(late.id, SkillUpdate(content="2"), "alice")
        monkeypatch.setattr(module, "PURGE_BATCH", 2)
        await service.purge(versions=365)
        assert (await service.get_version(made.id, made.revision, "alice")).files[0].content == "1"
        with pytest.raises(SkillNotFoundError):
            await service.get_version(late.id, late.revision, "alice")
        for number in range(5):
            gone = await service.create_skill(draft(f"gone-{number}"), "alice")
            await service.delete_skill(gone.id, "alice")
        batches: list[int] = []
        removal = SkillRepository.purge

        async def counted(self: SkillRepository, skills: Any) -> None:
            batches.append(len(skills))
            await removal(self, skills)

        monkeypatch.setattr(SkillRepository, "purge", counted)
        assert await service.purge(retention=0) == 5
        assert batches == [2, 2, 1], "other writers get their turn after every two"


async def test_hand_over_is_in_both_logs(sessions: Sessions) -> None:
    """The former owner's changes show that a skill went, the new owner's that it came."""
    async with sessions() as session:
        service = SkillService(session, **OPTIONS)
        made = await service.create_skill(draft("report"), "alice")
        await service.hand_over(made.id, "bob", "root")
        assert [change.action for change in await service.list_changes("alice")] == ["created", "handed-over"]
        assert [change.action for change in await service.list_changes("bob")] == ["received"]


async def test_required_skills_are_deleted_by_force(sessions: Sessions) -> None:
    """A skill that others require is deleted only by force, and the error names those that one may see."""
    front = "---\nname: build\ndescription: Builds.\nmetadata:\n  requires: base other\n---\n"
    async with sessions() as session:
        service = SkillService(session)
        base = await service.create_skill(draft("base"), "alice")
        needing = await service.create_skill(draft("build", description="Builds.", frontmatter=front), "alice")
        with pytest.raises(SkillConflictError, match="required by `build`"):
            await service.delete_skill(base.id, "alice")
        await service.update_skill(needing.id, SkillUpdate(frontmatter=front.replace("base", "more")), "alice")
        await service.delete_skill(base.id, "alice")
        await service.restore_skill(base.id, "alice")
        # A key may be spelled by escapes, in the text that goes and in the one that comes.
        plain = front.replace("metadata:\n  requires: base other\n", "")
        escaped = front.replace("requires", r'"r\u0065quires"')
        await service.update_skill(needing.id, SkillUpdate(frontmatter=plain), "alice")
        await service.update_skill(needing.id, SkillUpdate(frontmatter=escaped), "alice")
        with pytest.raises(SkillConflictError, match="required by `build`"):
            await service.delete_skill(base.id, "alice")
        await service.update_skill(needing.id, SkillUpdate(frontmatter=plain), "alice")
        await service.delete_skill(base.id, "alice")
        await service.restore_skill(base.id, "alice")
        await service.update_skill(needing.id, SkillUpdate(frontmatter=front), "alice")
        await service.delete_skill(base.id, "alice", force=True)
        ours = await service.create_skill(draft("base"), None, system=True)
        await service.delete_skill(needing.id, "alice")
        await service.create_skill(draft("build", description="Builds.", frontmatter=front), "bob")
        removing = SkillService(session, is_operator=lambda user: user == "root")
        with pytest.raises(SkillConflictError, match="required by `build`"):
            await removing.delete_skill(ours.id, system=True, user_id=None)
        await service.hand_over(ours.id, "carol", None, system=True)
        await service.update_skill(ours.id, SkillUpdate(is_public=True), "carol")
        # What she may not see is not told, not even that it is there.
        await service.delete_skill(ours.id, "carol")


async def test_searches_of_names_that_repeat(sessions: Sessions) -> None:
    """Of skills with one name each query finds its own."""
    async with sessions() as session:
        service = SkillService(session)
        cats = await service.create_skill(draft("pets", description="Feeds cats.", is_public=True), "alice")
        dogs = await service.create_skill(draft("pets", description="Walks dogs.", is_public=True), "bob")
        assert [skill.id for skill in await service.list_skills(None, q="cats")] == [cats.id]
        assert [skill.id for skill in await service.list_skills(None, q="dogs")] == [dogs.id]


async def test_settings_that_cannot_work(sessions: Sessions) -> None:
    """A retention without end and a database of another kind are errors that say what to do."""
    async with sessions() as session:
        for days in (float("inf"), float("nan"), -1, 10**9):
            with pytest.raises(SkillFormatError, match="number of days"):
                SkillService(session, retention=days)
        with pytest.raises(SkillFormatError, match="number of days"):
            await SkillService(session).purge(versions=float("inf"))
    with pytest.raises(Exception, match="SQLite and PostgreSQL, not on mysql"):
        create_store_engine("mysql://user@host/name")
    app = FastAPI()
    router = create_skills_router(
        sessions, lambda: "alice", groups_of=lambda _: [f"{n}" for n in range(1_001)], security=None
    )
    app.include_router(router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client:
        answer = await client.get("/skills")
        assert (answer.status_code, "1001 groups" in answer.text) == (500, True)
