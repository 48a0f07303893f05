"""At the door: who sent a request, how much fits in, and what the operator sees of the process."""

import asyncio
import io
import logging
import resource
import zipfile
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from store_support import Sessions, draft, draft_with_files, on_sqlite, service_on

from deepskills.store import (
    SkillConflictError,
    SkillPermissionError,
    SkillService,
    SkillUpdate,
    StoreLimits,
    create_skills_router,
    create_store_app,
    workers,
)
from deepskills.store.db.models import FormerFile
from deepskills.store.http.settings import policy_options
from deepskills.store.rules import Policy

pytestmark = pytest.mark.anyio


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store")


def app_of(sessions: Sessions, **options: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(create_skills_router(sessions, lambda: "alice", security=None, **options))
    return app


@on_sqlite
async def test_the_user_header(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One header with one UTF-8 id is taken; anything else is refused, whoever may have added it."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(empty_url)
    skill = {"name": "report", "description": "Does it."}
    async with app.router.lifespan_context(app), client_of(app) as http:
        given: list[Any] = [
            [("X-User", "alice"), ("X-User", "root")],
            [("X-User", b"al\x07ice")],
            [("X-User", b"\xff\xfe")],
            [("X-User", "al\x85ice".encode())],
            [("X-User", "\u200balice".encode())],
        ]
        for headers in given:
            assert (await http.post("/api/v1/skills", json=skill, headers=headers)).status_code == 400, headers
        made = await http.post("/api/v1/skills", json=skill, headers=cast("Any", [("X-User", "zoë".encode())]))
        assert (made.status_code, made.json()["data"]["owner_id"]) == (201, "zoë")


@on_sqlite
async def test_what_the_process_says_of_itself(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`/health` is about the process, `/ready` about the database; an outage costs one line a request."""
    app = create_store_app(empty_url)
    async with app.router.lifespan_context(app), client_of(app) as http:
        for path in ("/health", "/ready"):
            assert [(await http.request(method, path)).status_code for method in ("GET", "HEAD")] == [200, 200]
        assert [(await http.get(path)).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
        elsewhere = await http.get("/api/v1/skills/", headers={"host": "evil.example"})
        assert "evil.example" not in elsewhere.headers.get("location", "")

        async def gone(_self: SkillService, *_arguments: Any, **_options: Any) -> Any:
            raise ConnectionRefusedError("gone")

        monkeypatch.setattr(SkillService, "last_revision", gone)
        monkeypatch.setattr(SkillService, "list_skills", gone)
        caplog.clear()
        ready, answer = await http.get("/ready"), await http.get("/api/v1/skills")
        assert (ready.status_code, (await http.get("/health")).status_code, answer.status_code) == (503, 200, 503)
        assert answer.headers["retry-after"] == "5"
        lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(lines) == 2
        assert all(record.exc_info is None for record in lines)


@on_sqlite
async def test_answers_may_be_kept(sessions: Sessions) -> None:
    """An answer that the client has already is not sent again."""
    async with client_of(app_of(sessions)) as http:
        made = (await http.post("/skills", json={"name": "report", "description": "Does it."})).json()["data"]
        for path in ("/skills", f"/skills/{made['id']}"):
            first = await http.get(path)
            assert first.headers["cache-control"] == "private, no-cache"
            assert "Authorization" in first.headers["vary"]
            again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            await http.put(f"/skills/{made['id']}", json={"content": f"changed {path}"})
            assert (await http.get(path, headers={"if-none-match": first.headers["etag"]})).status_code == 200


def zipped(size: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SKILL.md", "---\nname: large\ndescription: Does it.\n---\n")
        for number in range(7):
            archive.writestr(f"{number}.bin", bytes(size // 7))
    return packed.getvalue()


@on_sqlite
async def test_work_is_bounded(sessions: Sessions) -> None:
    """Small archives that unpack to much are let in as far as they fit; the others are asked to come again."""
    bomb = zipped(63 * 1024 * 1024)
    assert len(bomb) < 80_000
    headers = {"content-type": "application/zip"}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with client_of(app_of(sessions)) as http:
        answers = await asyncio.gather(*(http.post("/skills", content=bomb, headers=headers) for _ in range(24)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    codes = [answer.status_code for answer in answers]
    assert set(codes) <= {201, 409, 503}
    assert codes.count(201) == 1
    assert 503 in codes
    assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
    assert workers.in_flight.held == 0
    assert grown < 1_000


@on_sqlite
async def test_the_quota_comes_before_unpacking(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an archive says it holds is held against the owner's quota, and nothing of it is unpacked."""

    def never(*_arguments: Any) -> Any:
        raise AssertionError("unpacked")

    monkeypatch.setattr("deepskills.store.http.requests.unpack", never)
    async with client_of(app_of(sessions, limits=StoreLimits(owner_bytes=1_000_000))) as http:
        answer = await http.post("/skills", content=zipped(7_000_000), headers={"content-type": "application/zip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "over-quota")


async def test_history_has_its_own_quota(sessions: Sessions) -> None:
    """Of an owner's former versions the oldest go when there is no room, and others' stay."""
    limits = StoreLimits(history_bytes=5_000)
    async with sessions() as session:
        service = SkillService(session, limits=limits)
        made = await service.create_skill(draft("report", content="x" * 1_500), "alice")
        for number in range(6):
            await service.update_skill(made.id, SkillUpdate(content=f"{number}" * 1_500), "alice")
        versions = await service.list_versions(made.id, "alice")
        kept = []
        for version in versions:
            try:
                kept.append((await service.get_version(made.id, version.revision, "alice")).content[0])
            except LookupError:
                continue
        assert kept == ["5", "4", "3", "2"]


_MANY = [f"{number}.md" for number in range(2_500)]


async def test_the_quota_of_history_holds_for_skills_of_many_files(sessions: Sessions) -> None:
    """However many files one change replaces, the history is within its quota afterwards."""
    limits = StoreLimits(history_bytes=5_000)
    async with service_on(sessions, limits) as service:
        made = await service.create_skill(draft_with_files("report", dict.fromkeys(_MANY, "a" * 100)), "alice")
        for letter in "bc":
            await service.save_skill(made.id, SkillUpdate(), dict.fromkeys(_MANY, letter * 100), "alice")
    async with sessions() as session:
        kept = await session.scalar(select(func.sum(FormerFile.size)))
    assert kept is not None
    assert kept <= limits.history_bytes


async def test_who_left_a_group_writes_nothing_for_it(sessions: Sessions) -> None:
    """An owner who left changes the skill only once it is no longer shared with that group."""
    members = {"alice": ["team"], "bob": ["team"]}
    async with sessions() as session:
        service = SkillService(session, policy=Policy(groups_of=lambda user: members.get(user, [])))
        made = await service.create_skill(draft("deploy", shared_with={"team": "read"}), "alice")
        other = await service.create_skill(draft("other", shared_with={"team": "read"}), "alice")
        members["alice"] = []
        with pytest.raises(SkillPermissionError, match="no longer in the group"):
            await service.update_skill(made.id, SkillUpdate(content="evil"), "alice")
        assert (await service.get_skill(made.id, "bob")).content != "evil"
        changed = await service.update_skill(made.id, SkillUpdate(content="mine", shared_with={}), "alice")
        assert changed.shared_with == {}
        await service.delete_skill(other.id, "alice")
        assert (await service.restore_skill(other.id, "alice")).shared_with == {}
        assert await service.list_skills("bob", include_public=False) == []


async def test_the_systems_names_come_before_groups(sessions: Sessions) -> None:
    """What a group shares does not replace a system skill, unless the operator says so."""
    groups: dict[str, Any] = {"groups_of": lambda _user: ["team"]}
    async with sessions() as session:
        service = SkillService(db=session, **groups)
        system = await service.create_skill(draft("deploy"), None, system=True)
        shared = await service.create_skill(draft("deploy", shared_with={"team": "read"}), "alice")
        found = await service.get_skill_by_name("deploy", "bob")
        assert (found and found.id) == system.id
        assert [skill.id for skill in await service.list_skills("bob")] == [system.id, shared.id]
        assert await service.get_skill_by_name("nothing", "bob") is None
    async with sessions() as session:
        service = SkillService(session, policy=Policy(groups_before_system=True, **groups))
        found = await service.get_skill_by_name("deploy", "bob")
        assert (found and found.id) == shared.id
        assert [skill.id for skill in await service.list_skills("bob")] == [shared.id, system.id]


async def test_operators_leave_a_trace(sessions: Sessions) -> None:
    """An operator who reads a private skill stands in the owner's log; the skill and its versions stay as they are."""
    async with sessions() as session:
        service = SkillService(session, is_operator=lambda user: user == "root")
        made = await service.create_skill(draft("report"), "alice")
        await service.get_skill(made.id, "alice")
        await service.get_skill(made.id, "root")
        logged = [(change.action, change.user_id) for change in await service.list_changes("alice")]
        assert logged == [("created", "alice"), ("read", "root")]
        assert [version.action for version in await service.list_versions(made.id, "alice")] == ["created"]
        assert (await service.get_skill(made.id, "alice")).revision == made.revision
        system = await service.create_skill(draft("build"), None, system=True)
        with pytest.raises(SkillPermissionError):
            await service.delete_skill(system.id, "root")
        with pytest.raises(SkillPermissionError):
            await service.hand_over(system.id, "root", "root")
        assert (await service.hide_skill(system.id, "root")).is_hidden


async def test_refusals_tell_nothing_of_others(sessions: Sessions) -> None:
    """Neither a deletion nor a hand-over says what is in skills that one may not see."""
    async with service_on(sessions) as service:
        needed = await service.create_skill(draft("base", is_public=True), "alice")
        builder = draft(
            "secret", frontmatter="---\nname: secret\ndescription: Does secret.\nmetadata:\n  requires: base\n---\n"
        )
        await service.create_skill(builder, "bob")
        await service.create_skill(draft("base"), "carol")
        with pytest.raises(SkillConflictError, match="cannot be handed over") as taken:
            await service.hand_over(needed.id, "carol", "alice")
        assert "base" not in str(taken.value)
        await service.delete_skill(needed.id, "alice")


def test_settings(tmp_path: Path) -> None:
    """Groups, operators, approval and limits come from a file, and from variables that win over it."""
    file = tmp_path / "store.toml"
    file.write_text(
        'operators = ["root"]\napproval = true\n[groups]\nteam = ["alice"]\n[limits]\nowner_bytes = 10\n'
        'extensions = [".md"]\n'
    )
    policy = Policy.of(None, policy_options({"DEEPSKILLS_CONFIG": str(file)}))
    assert (policy.is_operator and policy.is_operator("root"), policy.approval) == (True, True)
    assert policy.groups_of is not None
    assert policy.groups_of("alice") == ["team"]
    assert (policy.limits.owner_bytes, policy.limits.extensions) == (10, frozenset({".md"}))
    variables = {
        "DEEPSKILLS_CONFIG": str(file), "DEEPSKILLS_APPROVAL": "by-others", "DEEPSKILLS_GROUPS": "a=x,y;b=x",
        "DEEPSKILLS_LIMIT_OWNER_BYTES": "20", "DEEPSKILLS_RETENTION": "7",
    }  # fmt: skip
    policy = Policy.of(None, policy_options(variables))
    assert (policy.approval, policy.retention, policy.limits.owner_bytes) == ("by-others", 7, 20)
    # A variable for one limit leaves the file's others.
    assert policy.limits.extensions == frozenset({".md"})
    assert policy.groups_of is not None
    assert policy.groups_of("x") == ["a", "b"]
    for wrong in (
        {"DEEPSKILLS_RETENTION": "soon"},
        {"DEEPSKILLS_APPROVAL": "maybe"},
        {"DEEPSKILLS_CONFIG": "/nowhere"},
        {"DEEPSKILLS_LIMIT_FILES": "-1"},
        {"DEEPSKILLS_LIMIT_FILE": "1"},
    ):
        with pytest.raises(ValueError, match="setting"):
            policy_options(wrong)
