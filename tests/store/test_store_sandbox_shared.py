"""What reaches sandboxes, shells and servers: the loader's defaults, shared sandboxes, directories, the application."""

import asyncio
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from store_support import Sessions, draft, draft_with_files, on_both, on_sqlite

from deepskills import SkillPathError
from deepskills.store import (
    SharedSandbox,
    SkillCreate,
    SkillRepository,
    SkillSandboxLoader,
    SkillService,
    SkillUpdate,
    create_store_app,
)
from deepskills.store.db.engine import Listener
from deepskills.store.directories import export_skills, import_skills
from deepskills.testing import ScriptedChatModel, call_tools
from support import load, tool_messages
from support.command_line import invoke

pytestmark = pytest.mark.anyio

ROOT = "/workspace/skills"
NEEDS = "---\nname: {name}\ndescription: Does {name}.\nmetadata:\n  requires: {wanted}\n---\n"


def requiring(name: str, wanted: str, **values: Any) -> SkillCreate:
    return draft(name, frontmatter=NEEDS.format(name=name, wanted=wanted), **values)


def present(tmp_path: Path) -> list[str]:
    place = tmp_path / "workspace" / "skills"
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


@on_both
async def test_the_loader_brings_what_agents_have(sessions: Sessions, tmp_path: Path) -> None:
    """`sync` brings own, groups' and system skills, strangers' only if asked; required skills come along with loads."""
    backend = FilesystemBackend(tmp_path, virtual_mode=True)
    async with sessions() as session:
        service = SkillService(session)
        await service.create_skill(draft("mine"), "alice")
        await service.create_skill(draft("ours"), None, system=True)
        stranger = await service.create_skill(draft("strange", is_public=True), "bob")
        loader = SkillSandboxLoader(skill_service=service)
        assert await loader.sync("alice", backend) == {"mine": True, "ours": True}
        assert "strange" in await loader.sync("alice", backend, include_public=True)
        assert "strange" in await loader.sync("alice", backend)
        assert present(tmp_path) == ["mine", "ours"]
        assert await loader.load_skill_to_sandbox(stranger.id, backend, "alice")
        base = await service.create_skill(requiring("base", "ground nowhere"), "alice")
        await service.create_skill(draft("ground"), "alice")
        top = await service.create_skill(requiring("top", "base"), "alice")
        assert await loader.load_skills_to_sandbox([top.id], backend, "alice") == {top.id: True}
        assert {"base", "ground", "top"} <= set(present(tmp_path))
        assert base.id != top.id


@on_both
async def test_nobody_publishes_what_others_require(sessions: Sessions, tmp_path: Path) -> None:
    """A stranger's public skill is not brought along because a skill requires its name; one of its author's is."""
    async with sessions() as session:
        service = SkillService(session)
        mine = await service.create_skill(requiring("mine", "missing"), "alice")
        await service.create_skill(draft("missing", is_public=True), "mallory")
        theirs = await service.create_skill(requiring("theirs", "part", is_public=True), "bob")
        await service.create_skill(draft("part", is_public=True), "mallory")
        own_part = await service.create_skill(draft("part", is_public=True, content="bob's"), "bob")
        loader = SkillSandboxLoader(service)
        for number, (include_public, expected) in enumerate(
            [(False, ["mine", "part", "theirs"]), (True, ["mine", "missing", "part", "theirs"])]
        ):
            place = tmp_path / str(number)
            place.mkdir()
            backend = FilesystemBackend(place, virtual_mode=True)
            await loader.load_skills_to_sandbox([mine.id, theirs.id], backend, "alice", include_public=include_public)
            assert present(place) == expected
            text = (place / "workspace" / "skills" / "part" / "SKILL.md").read_text()
            assert text.endswith("bob's") is not include_public, "by choice, the oldest public skill of the name"
        assert own_part.owner_id == "bob"


@on_both
async def test_a_path_that_is_too_deep(sessions: Sessions, tmp_path: Path) -> None:
    """A skill whose files are too deep to be listed again is refused each time, and leaves nothing."""
    deep = "/".join(["d"] * 70) + "/x.md"
    backend = FilesystemBackend(tmp_path, virtual_mode=True)
    async with sessions() as session:
        service = SkillService(session)
        made = await service.create_skill(draft_with_files("deep", {deep: "x"}), "alice")
        loader = SkillSandboxLoader(service)
        for _ in range(2):
            assert await loader.load_skill_to_sandbox(made.id, backend, "alice") is False
        assert present(tmp_path) == []


@on_both
async def test_a_marker_that_was_deleted(sessions: Sessions, tmp_path: Path) -> None:
    """A revoked skill goes even if the sandbox's agent deleted its marker; what others made stays."""
    backend = FilesystemBackend(tmp_path, virtual_mode=True)
    place = tmp_path / "workspace" / "skills"
    async with sessions() as session:
        service = SkillService(session)
        revoked = await service.create_skill(draft_with_files("revoked", {"a.md": "x"}), "alice")
        kept = await service.create_skill(draft("kept"), "alice")
        loader = SkillSandboxLoader(service)
        await loader.sync("alice", backend)
        for name in ("revoked", "kept"):
            (place / name / ".deepskills.json").unlink()
        (place / "foreign").mkdir()
        (place / "foreign" / "SKILL.md").write_text("own")
        await service.delete_skill(revoked.id, "alice")
        await service.update_skill(kept.id, SkillUpdate(content="new"), "alice")
        result = await loader.sync("alice", backend)
        assert result == {"revoked": True, "kept": True}
        assert present(tmp_path) == ["foreign", "kept"]
        assert (place / "kept" / "SKILL.md").read_text().endswith("new")


@on_both
async def test_one_sandbox_for_several_agents(sessions: Sessions, tmp_path: Path) -> None:
    """Skills are put there once for all agents, one failure costs itself alone, and only what was written goes."""
    backend = FilesystemBackend(tmp_path, virtual_mode=True)
    async with sessions() as session:
        service = SkillService(session)
        mine = await service.create_skill(draft("mine"), "alice")
        ours = await service.create_skill(draft("ours"), None, system=True)
        before = await service.create_skill(draft("before"), "alice")
        await SkillSandboxLoader(service).load_skill_to_sandbox(before.id, backend, "alice")
    sandbox = SharedSandbox(backend, sessions)
    async with sandbox:
        assert await sandbox.preload(skill_ids=[mine.id, ours.id]) == {mine.id: False, ours.id: True}
        assert await sandbox.preload(user_id="alice") == {mine.id: True, ours.id: True, before.id: True}
        for _ in range(2):
            model = ScriptedChatModel(replies=[call_tools(load("mine")), AIMessage("done")])
            agent: Any = create_agent(model, middleware=[sandbox.middleware()])
            state = await agent.ainvoke({"messages": [("user", "go")]})
            assert "# mine" in tool_messages(state)[0].text
    assert present(tmp_path) == ["before"]
    await sandbox.cleanup()
    assert present(tmp_path) == ["before"]
    # Directories that it made itself go with the skills, unless somebody put something there.
    for number, (made, kept, left) in enumerate(
        (
            ([], [], []),
            (["workspace"], [], ["workspace"]),
            (["workspace/skills"], [], ["workspace", "workspace/skills"]),
            ([], ["workspace/notes.md"], ["workspace", "workspace/notes.md"]),
            ([], ["workspace/skills/x.md"], ["workspace", "workspace/skills", "workspace/skills/x.md"]),
        )
    ):
        place = tmp_path / str(number)
        place.mkdir()
        for directory in made:
            (place / directory).mkdir(parents=True)
        async with SharedSandbox(FilesystemBackend(place, virtual_mode=True), sessions) as other:
            assert await other.preload(skill_ids=[ours.id]) == {ours.id: True}
            assert await other.preload(skill_ids=[ours.id]) == {ours.id: True}
            for file in kept:
                (place / file).write_text("x")
        await other.cleanup()
        assert sorted(path.relative_to(place).as_posix() for path in place.rglob("*")) == left


@on_both
async def test_watching(sessions: Sessions, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher hears of own and visible skills as they change, an operator's code of all, nobody of private ones."""
    notified: list[Any] = []
    hear = Listener._hear  # noqa: SLF001 - whether the database tells

    def counted(self: Listener, *what: object) -> None:
        notified.append(what)
        hear(self, *what)

    monkeypatch.setattr(Listener, "_hear", counted)
    heard: dict[str, list[tuple[str, str]]] = {"alice": [], "nobody": [], "system": []}

    async def watch(who: str, **options: Any) -> None:
        async with sessions() as session:
            async for change in SkillService(session).watch(interval=0.02, since=0, **options):
                heard[who].append((change.name, change.action))

    async def until(is_done: Callable[[], object]) -> None:
        while not is_done():
            # A watcher that fails ends the test.
            await asyncio.wait(tasks, timeout=0.01)
            assert not [task.exception() for task in tasks if task.done()]

    async with sessions() as session:
        service = SkillService(session)
        first = await service.create_skill(draft("mine"), "alice")
        tasks = [
            asyncio.create_task(watch("alice", user_id="alice")),
            asyncio.create_task(watch("nobody")),
            asyncio.create_task(watch("system", system=True)),
        ]
        await until(lambda: heard["alice"] and heard["system"])
        await service.create_skill(draft("secret"), "bob")
        await service.create_skill(draft("open", is_public=True), "bob")
        await service.update_skill(first.id, SkillUpdate(content="2"), "alice")
        await until(lambda: len(heard["system"]) == 4 and len(heard["alice"]) == 3 and heard["nobody"])
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert heard["alice"] == [("mine", "created"), ("open", "created"), ("mine", "updated")], kind
    assert heard["nobody"] == [("open", "created")]
    assert len(heard["system"]) == 4
    assert bool(notified) == (kind == "postgres"), "PostgreSQL tells, SQLite is asked"


@on_both
async def test_directories(sessions: Sessions, tmp_path: Path) -> None:
    """A tree of skills is imported, imported again without a change, and exported byte for byte."""
    one, two = tmp_path / "in" / "one", tmp_path / "in" / "group" / "two"
    for place in (one, two):
        (place / "references").mkdir(parents=True)
        (place / "SKILL.md").write_text(f"---\nname: {place.name}\ndescription: Does it.\n---\nBody\n")
        (place / "references" / "a.bin").write_bytes(b"\xff\x00")
    async with sessions() as session:
        service = SkillService(session)
        # Visible, and not the importer's to change.
        await service.create_skill(draft("one"), None, system=True)
        outcomes = [[(d.name, d.outcome) for d in await import_skills(service, tmp_path / "in", "alice")]]
        outcomes.append([(d.name, d.outcome) for d in await import_skills(service, tmp_path / "in", "alice")])
        (one / "new.md").write_text("x")
        (two / "SKILL.md").write_text("nothing")
        outcomes.append([(d.name, d.outcome) for d in await import_skills(service, tmp_path / "in", "alice")])
        assert [sorted(outcome) for outcome in outcomes] == [
            [("one", "created"), ("two", "created")],
            [("one", "unchanged"), ("two", "unchanged")],
            [("one", "updated"), ("two", "failed")],
        ]
        out = tmp_path / "out"
        assert {d.outcome for d in await export_skills(service, out, "alice")} == {"created"}
        assert {d.outcome for d in await export_skills(service, out, "alice")} == {"unchanged"}
        assert (out / "one" / "SKILL.md").read_bytes() == (one / "SKILL.md").read_bytes()
        assert (out / "two" / "references" / "a.bin").read_bytes() == b"\xff\x00"
        (out / "one" / "stale.md").write_text("x")
        assert {d.outcome for d in await export_skills(service, out, "alice")} == {"updated", "unchanged"}
        assert not (out / "one" / "stale.md").exists()
        repository = SkillRepository(session)
        (first, _) = await repository.list_by_user("alice", include_public=False)
        assert len(await repository.list_by_user("alice")) == 3
        found = await repository.get_with_files(first.id)
        assert found is not None
        assert [file.path for file in found.files] == ["new.md", "references/a.bin"]
    made = SkillCreate.from_directory(one)
    assert (made.name, [file.path for file in made.files]) == ("one", ["new.md", "references/a.bin"])
    (one / "link.md").symlink_to("/etc/passwd")
    with pytest.raises(SkillPathError, match="link"):
        SkillCreate.from_directory(one)


@on_both
async def test_archives_over_http(sessions: Sessions) -> None:
    """A skill is created from a `SKILL.md` or a `.zip`, and comes back as the `.zip` that creates it again."""
    app = create_app(sessions)
    text = b"---\nname: report\ndescription: Does it.\n---\nBody\n"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as client:
        alice, bob = ({"x-user": user} for user in ("alice", "bob"))
        markdown = {"content-type": "text/markdown"}
        made = (await client.post("/skills", content=text, headers=alice | markdown)).json()["data"]
        path = f"/skills/{made['id']}"
        await client.put(f"{path}/files/a/b.bin", content=b"\xff\x00" * 700_000, headers=alice)
        data = b'{"content": 1.0,\n "a":1}'
        await client.put(f"{path}/files/x.json", content=data, headers=alice | {"content-type": "application/json"})
        packed = await client.get(f"{path}/archive", headers=alice)
        assert packed.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(BytesIO(packed.content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        assert files == {"report/SKILL.md": text, "report/a/b.bin": b"\xff\x00" * 700_000, "report/x.json": data}
        as_zip = bob | {"content-type": "application/zip"}
        assert (await client.post("/skills", content=packed.content, headers=as_zip)).status_code == 201
        shared = {"name": "strange", "description": "Does it.", "is_public": True}
        await client.post("/skills", json=shared, headers=alice)
        exported = await client.get("/export?include_public=false", headers=bob)
        with zipfile.ZipFile(BytesIO(exported.content)) as archive:
            assert archive.read("report/x.json") == data
            assert "strange/SKILL.md" not in archive.namelist()
        everything = await client.get("/export")
        with zipfile.ZipFile(BytesIO(everything.content)) as archive:
            assert archive.namelist() == ["strange/SKILL.md"]
        # Of each `.zip` the large file; small ones are read together.
        assert (await client.get(f"{path}/archive", headers=bob)).status_code == 404
        for broken in (
            packed.content[:-30],
            b"PK\x05\x06" + bytes(18),
            packed.content.replace(b"PK\x01\x02", b"PK\x01\x03"),
        ):
            assert (await client.post("/skills", content=broken, headers=as_zip)).status_code == 422


@on_both
async def test_operators_over_http(sessions: Sessions) -> None:
    """Approving, hiding, handing over, restoring and purging are an operator's, and the log names who did it."""
    async with sessions() as session:
        made = await SkillService(session).create_skill(draft("report"), "alice")
    transport = httpx.ASGITransport(create_app(sessions))
    async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
        alice, root = ({"x-user": user} for user in ("alice", "root"))
        path = f"/skills/{made.id}"
        json_type = {"content-type": "application/json"}
        revision = (await client.get(path, headers=alice)).json()["data"]["revision"]
        for call, body, code in (
            ("approve", {"revision": revision}, 403), ("hide", {}, 403), ("hand-over", {"owner_id": "dave"}, 403),
        ):  # fmt: skip
            answer = await client.post(f"{path}/{call}", json=body, headers=alice | json_type)
            assert answer.status_code == code, call
        assert (await client.post("/purge", json={}, headers=alice)).status_code == 403
        approved = await client.post(f"{path}/approve", json={"revision": revision}, headers=root)
        assert approved.json()["data"]["is_approved"] is True
        assert (await client.post(f"{path}/hide", json={}, headers=root)).json()["data"]["is_hidden"] is True
        given = await client.post(f"{path}/hand-over", json={"owner_id": "dave"}, headers=root)
        assert given.json()["data"]["owner_id"] == "dave"
        shared = await client.put(f"{path}/share", json={"shared_with": {}}, headers={"x-user": "dave"})
        assert shared.status_code == 200
        changes = (await client.get("/changes", headers=root)).json()["data"]
        assert {"created", "approved", "hidden", "handed-over"} <= {change["action"] for change in changes}
        assert (await client.get(f"{path}/usage", headers={"x-user": "dave"})).json()["data"] == []
        assert (await client.post("/purge", json={"retention": 0}, headers=root)).json()["data"] == {"purged": 0}
        await client.delete(path, headers={"x-user": "dave"})
        assert (await client.get("/skills?deleted=true", headers=alice)).json()["data"] == []
        assert (await client.post(f"{path}/restore", headers=alice | json_type)).status_code == 404
        assert (await client.post(f"{path}/restore", headers=root | json_type)).status_code == 200
        await client.delete(path, headers=root)
        assert (await client.post("/purge", json={}, headers=root)).json()["data"] == {"purged": 0}
        assert (await client.post("/purge", json={"retention": 0}, headers=root)).json()["data"] == {"purged": 1}
        changes = (await client.get(f"/changes?skill_id={made.id}", headers=root)).json()["data"]
        assert [(change["action"], change["user_id"]) for change in changes[-4:]] == [
            ("deleted", "dave"), ("restored", "root"), ("deleted", "root"), ("purged", "root"),
        ]  # fmt: skip


def create_app(sessions: Sessions) -> Any:
    from fastapi import FastAPI, Request  # noqa: PLC0415 - here alone

    from deepskills.store import create_skills_router  # noqa: PLC0415 - here alone

    def user(request: Request) -> str | None:
        return request.headers.get("x-user")

    app = FastAPI()
    app.include_router(create_skills_router(sessions, user, is_operator=lambda user: user == "root"))
    return app


@on_both
async def test_the_application(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One command starts the store, and starts it again; who asks comes from the proxy's header, or is nobody."""
    for header, code in (("X-Forwarded-User", 201), ("", 401)):
        monkeypatch.setenv("DEEPSKILLS_DATABASE_URL", empty_url)
        monkeypatch.setenv("DEEPSKILLS_USER_HEADER", header)
        app = create_store_app()
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
                assert (await client.get("/health")).status_code == 200
                body = {"name": "report", "description": "Does it."}
                made = await client.post("/api/v1/skills", json=body, headers={"x-forwarded-user": "alice"})
                assert made.status_code == code
        assert ("Everybody is anonymous" in caplog.text) is (not header)


@on_sqlite
def test_the_shell(tmp_path: Path, kind: str) -> None:
    """`deepskills store import` and `export` move a tree into a database and back, and say what they did."""
    place = tmp_path / "in" / "report"
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text("---\nname: report\ndescription: Does it.\n---\nBody\n")
    database = ["--database", f"sqlite:///{tmp_path / (kind + '.db')}"]

    def run(*arguments: str) -> Result:
        return invoke("store", *arguments, *database)

    assert run("import", str(tmp_path / "in")).exit_code == 2
    first = run("import", str(tmp_path / "in"), "--user", "alice")
    assert (first.stdout, first.exit_code) == ("created: report\n", 0), first.output
    again = run("import", str(tmp_path / "in"), "--user", "alice", "--json")
    assert json.loads(again.stdout) == [{"name": "report", "outcome": "unchanged", "reason": ""}]
    (place / "SKILL.md").write_text("nothing")
    assert run("import", str(tmp_path / "in"), "--user", "alice").exit_code == 1
    assert run("export", str(tmp_path / "out"), "--user", "alice").stdout == "created: report\n"
    assert (tmp_path / "out" / "report" / "SKILL.md").read_text().endswith("Body\n")
