"""What one client, one setting or one process may do to the others: no more than its share."""

import asyncio
import gc
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from deepagents.backends import FilesystemBackend
from fastapi import FastAPI, Request
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy import text
from store_support import Sessions, draft, draft_with_files, on_sqlite, service_on

from deepskills.store import SkillCreate, SkillSandboxLoader, create_skills_router, create_store_app, workers
from deepskills.store.http import discovery
from deepskills.store.http.answers import PIECE_BYTES
from deepskills.store.http.settings import policy_options

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
INDEX = "/.well-known/agent-skills/index.json"


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store")


def current_user(request: Request) -> str | None:
    return request.headers.get("x-user")


def app_of(sessions: Sessions, **options: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(create_skills_router(sessions, current_user, security=None, **options))
    return app


def slow_body(size: int, *, sent: int, end: asyncio.Event) -> Callable[[], AsyncIterator[bytes]]:
    """Return the body of a client that sends the first bytes, and the rest much later."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * sent
        await end.wait()
        yield b"x" * (size - sent)

    return parts


async def save(http: httpx.AsyncClient, user: str, content: Any, size: int | None = None) -> httpx.Response:
    headers = {"x-user": user, **JSON, **({} if size is None else {"content-length": str(size)})}
    return await http.post("/skills", content=content, headers=headers)


async def until_held(least: int) -> None:
    while workers.in_flight.held < least:  # noqa: ASYNC110 - the process has no event for it
        await asyncio.sleep(0.01)


@on_sqlite
async def test_slow_clients_keep_nobody_out(sessions: Sessions) -> None:
    """Who announces much and sends little holds little; what one user sends is half of the room at most."""
    small = json.dumps({"name": "tea", "description": "Makes tea."}).encode()
    size = 30 * 1024 * 1024
    end = asyncio.Event()
    async with client_of(app_of(sessions)) as http:
        idle = [asyncio.create_task(save(http, "eve", slow_body(size, sent=1, end=end)(), size)) for _ in range(8)]
        await until_held(8)
        assert (await save(http, "ann", small)).status_code == 201
        full = [asyncio.create_task(save(http, "eve", slow_body(size, sent=size, end=end)())) for _ in range(3)]
        await until_held(2 * size)
        refused, _ = await asyncio.wait(full, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in refused] == [503]
        assert (await save(http, "bob", small)).status_code == 201
        end.set()
        await asyncio.gather(*idle, *full)
    assert workers.in_flight.held == 0


@on_sqlite
async def test_a_file_that_is_heavy_to_parse_comes_in(sessions: Sessions) -> None:
    """A table of ten megabytes is full of commas: it weighs much, and still fits in when it comes alone."""
    table = json.dumps({"content": "1," * 5_200_000}).encode()
    async with service_on(sessions) as service, client_of(app_of(sessions)) as http:
        made = await service.create_skill(draft("tea"), "ann")
        headers = {"x-user": "ann", **JSON}
        answer = await http.put(f"/skills/{made.id}/files/table.csv", content=table, headers=headers)
    assert answer.status_code == 200, answer.text


async def pieces(app: Any, path: str) -> list[int]:
    """Return the sizes of the pieces in which an answer is sent."""
    sizes = []
    asked = False

    async def send(message: Any) -> None:
        sizes.append(len(message.get("body", b"")))

    async def receive() -> Any:
        nonlocal asked
        if asked:
            # The client stays.
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "server": ("store", 80)}
    scope |= {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    return sizes


@on_sqlite
async def test_what_the_index_names_is_sent_in_pieces(empty_url: str) -> None:
    """However slowly a stranger reads a large public skill, little of it is in memory."""
    app = create_store_app(empty_url, lambda: "ann")
    async with app.router.lifespan_context(app), client_of(app) as http:
        for name, values in (("text", {"content": "x" * 3_000_000}), ("files", {"content": ""})):
            skill = {"name": name, "description": "Does it.", "is_public": True, **values}
            made = (await http.post("/api/v1/skills", json=skill)).json()["data"]
            if name == "files":
                await http.put(f"/api/v1/skills/{made['id']}/files/a.bin", content=b"x" * 3_000_000)
        entries = (await http.get(INDEX)).json()["skills"]
        for entry in entries:
            sizes = await pieces(app, INDEX.replace("index.json", entry["url"]))
            assert sum(sizes) > 3_000_000
            assert max(sizes) <= PIECE_BYTES


@on_sqlite
async def test_large_texts_are_sent_in_pieces(empty_url: str) -> None:
    """However slowly strangers read a large text, as JSON or on the page, little of it is in memory."""
    app = create_store_app(empty_url, lambda: "ann")
    async with app.router.lifespan_context(app), client_of(app) as http:
        skill = {"name": "text", "description": "Does it.", "is_public": True, "content": "<" * 3_000_000}
        made = (await http.post("/api/v1/skills", json=skill)).json()["data"]
        await http.put(f"/api/v1/skills/{made['id']}/files/a.md", content=b"x" * 3_000_000)
        own = f"/skills/{made['id']}"
        for path in (f"/api/v1{own}", f"/api/v1{own}/versions/{made['revision']}", own, f"{own}/edit"):
            sizes = await pieces(app, path)
            assert sum(sizes) > 3_000_000, path
            assert max(sizes) <= PIECE_BYTES, path


@on_sqlite
async def test_exports_do_not_fill_the_disk(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for strangers who do not read is bounded, and its room is free when they are gone."""
    monkeypatch.setattr("deepskills.store.http.answers.on_disk", disk := workers.InFlight(30_000_000))
    started = asyncio.Event()

    async def never_reads(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            started.set()
        else:
            await asyncio.Event().wait()

    async def stays() -> Any:
        await asyncio.Event().wait()

    async with service_on(sessions) as service, client_of(app := app_of(sessions)) as http:
        files = {f"{number}.bin": random.Random(number).randbytes(6_000_000) for number in range(2)}
        await service.create_skill(draft_with_files("tea", files, is_public=True), "ann")
        tasks = []
        for _ in range(2):
            scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/export", "raw_path": b"/export"}
            scope |= {"query_string": b"include_public=true", "headers": [], "root_path": "", "scheme": "http"}
            tasks.append(asyncio.create_task(app(scope, stays, never_reads)))
            await started.wait()
            started.clear()
        refused = await http.get("/export?include_public=true")
        assert (refused.status_code, refused.headers.get("retry-after")) == (503, "1")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        del task, scope
        await asyncio.sleep(0.1)
        gc.collect()
        assert disk.held == 0
        assert (await http.get("/export?include_public=true")).status_code == 200


@on_sqlite
async def test_the_index_has_bounds(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many skills, so many bytes in all, and none that is larger than clients take."""
    app = create_store_app(empty_url, lambda: "ann")

    async def names(http: httpx.AsyncClient) -> list[str]:
        return [entry["name"] for entry in (await http.get(INDEX)).json()["skills"]]

    async with app.router.lifespan_context(app), client_of(app) as http:
        for name, size in (("a", 10), ("b", 20_000), ("c", 3_000), ("d", 3_000)):
            skill = {"name": name, "description": "Does it.", "is_public": True, "content": "x" * size}
            assert (await http.post("/api/v1/skills", json=skill)).status_code == 201
        assert await names(http) == ["a", "b", "c", "d"]
        with monkeypatch.context() as patch:
            patch.setattr(discovery, "MAX_INDEXED", 2)
            assert await names(http) == ["a", "b"]
        with monkeypatch.context() as patch:
            patch.setattr(discovery, "MAX_INDEXED_BYTES", 5_000)
            patch.setattr(discovery, "MAX_ARTIFACT_BYTES", 10_000)
            assert await names(http) == ["a", "c"]


@on_sqlite
async def test_headers_of_every_answer(sessions: Sessions) -> None:
    """No browser runs an answer as a script, and no cache keeps a failure for those who may see more."""
    async with client_of(app_of(sessions)) as http:
        made = await save(http, "ann", json.dumps({"name": "tea", "description": "Makes tea."}).encode())
        skill = f"/skills/{made.json()['data']['id']}"
        hidden, unknown, wrong = await http.get(skill), await http.get(f"{skill}/nothing"), await http.patch(skill)
        seen = await http.get(skill, headers={"x-user": "ann"})
    failures = [hidden, unknown, wrong]
    assert [(answer.status_code, answer.headers.get("cache-control")) for answer in failures] == [
        (404, "no-store"), (404, "no-store"), (405, "no-store"),
    ]  # fmt: skip
    assert {answer.headers.get("x-content-type-options") for answer in (made, seen, *failures)} == {"nosniff"}


@on_sqlite
async def test_not_ready_without_a_table(empty_url: str) -> None:
    """`/ready` reads skills as every request does: whatever hinders those, it says so."""
    app = create_store_app(empty_url)
    async with app.router.lifespan_context(app), client_of(app) as http:
        assert (await http.get("/ready")).status_code == 200
        async with app.state.session_factory() as session:
            await session.execute(text("ALTER TABLE deepskills_skills RENAME TO gone"))
            await session.commit()
        answer = await http.get("/ready")
    assert (answer.status_code, answer.headers["cache-control"]) == (503, "no-store")


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    """A slip never opens a rule or drops a limit."""
    for name, value in (
        ("GROUPS_BEFORE_SYSTEM", "disabled"),
        ("LIMIT_OWN_GROUPS_ONLY", "nope"),
        ("LIMIT_OWNER_BYTES", "-1"),
        ("LIMIT_OWNER_BYTES", "1.5"),
        ("LIMIT_OWNER_BYTE", "100"),
        ("GROUPS", "team=alice;team=bob"),
        ("GROUPS", "team"),
        ("APPROVAL", "by_others"),
    ):
        with pytest.raises(ValueError, match="setting"):
            policy_options({f"DEEPSKILLS_{name}": value})
    file = tmp_path / "store.toml"
    for given in ('operators = "root"', "[limits]\nfiles = nan", "[limits]\nfile = 1", "operator = []", "limits = 3"):
        file.write_text(given)
        with pytest.raises(ValueError, match="setting"):
            policy_options({"DEEPSKILLS_CONFIG": str(file)})
    file.write_text('groups_before_system = "no"\n[limits]\nowner_bytes = "100"\nown_groups_only = "off"')
    found = policy_options({"DEEPSKILLS_CONFIG": str(file)})
    assert found["groups_before_system"] is False
    assert (found["limits"].owner_bytes, found["limits"].own_groups_only) == (100, False)


@on_sqlite
async def test_metrics_name_no_skill_and_no_user(sessions: Sessions) -> None:
    """OpenTelemetry gets how long each route took, with its status, and how much is in flight."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    async with client_of(app_of(sessions)) as http:
        await save(http, "ann", json.dumps({"name": "secret-tea", "description": "Makes tea."}).encode())
        await http.get("/skills?q=secret-tea", headers={"x-user": "ann"})
        await http.get("/skills/secret-tea")
        with workers.in_flight.hold(1_000):
            data = cast("Any", reader.get_metrics_data())
    found = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == "deepskills.store"
        for metric in scope.metrics
    }
    assert [point.value for point in found["deepskills.store.bytes_in_flight"]] == [1_000]
    counted = [tuple(point.attributes.values()) for point in found["deepskills.store.request.duration"]]
    assert set(counted) == {
        ("/skills", "POST", 201), ("/skills", "GET", 200), ("/skills/{skill_id}", "GET", 422),
    }  # fmt: skip
    assert "secret-tea" not in data.to_json()
    assert "ann" not in {word for point in counted for word in point}


LOADER = """
import asyncio, random, sys, time
from uuid import UUID
from deepagents.backends import FilesystemBackend
from sqlalchemy.ext.asyncio import async_sessionmaker
from deepskills.store import SkillSandboxLoader, SkillService, create_store_engine

class Slow(FilesystemBackend):
    def upload_files(self, files):
        answers = []
        for file in files:
            time.sleep(random.uniform(0, 0.01))
            answers += super().upload_files([file])
        return answers

async def main(url, root, skill, first):
    engine = create_store_engine(url)
    backend = Slow(root_dir=root, virtual_mode=True)
    for number in range(int(first), 34, 2):
        files = {f"{place}.md": str(number) * 2_000 for place in range(6)}
        text = f"---\\nname: tea\\ndescription: d\\n---\\n" + str(number) * 20_000
        async with async_sessionmaker(engine)() as session:
            service = SkillService(session)
            await service.save_skill(UUID(skill), text, files, "ann")
            assert await SkillSandboxLoader(service).load_skill_to_sandbox(UUID(skill), backend, "ann")
    await engine.dispose()

asyncio.run(main(*sys.argv[1:]))
"""


HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


def look(directory: Path) -> set[str]:
    """Return the revisions that are there as an agent reads them, if the `SKILL.md` stays the same meanwhile."""
    try:
        before = (directory / "SKILL.md").read_text()
        files = [path.read_text()[:2] for path in sorted(directory.glob("?.md"))]
        if (directory / "SKILL.md").read_text() != before:
            return set()
    except FileNotFoundError:
        # It was taken away while we looked: an agent is told so.
        return set()
    body = before.partition("\n---\n")[2]
    half = set() if len(body) in {20_000, 40_000} and len(files) == 6 else {"torn"}
    return {body[:2], *files} | half


@on_sqlite
async def test_two_processes_never_show_a_torn_skill(sessions: Sessions, url: str, tmp_path: Path) -> None:
    """Beside two processes that load one revision after the other, each look finds one revision whole, or none."""
    root = tmp_path / "sandbox"
    async with service_on(sessions) as service:
        made = await service.create_skill(SkillCreate(name="tea", description="d"), "ann")
    loaders = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOADER, url, str(root), str(made.id), first, stderr=subprocess.PIPE
        )
        for first in ("10", "11")
    ]
    ended = asyncio.gather(*(loader.communicate() for loader in loaders))
    looks = []
    while not ended.done():
        looks.append(look(root / "workspace/skills/tea"))
        # The loaders need the processor as well.
        await asyncio.sleep(0.001)
    assert [loader.returncode for loader in loaders] == [0, 0], await ended
    assert [found for found in looks if len(found) > 1] == []
    assert any(looks)


@on_sqlite
async def test_a_process_that_hangs_keeps_nobody_waiting(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who finds the directory locked for too long says so, and goes on when it is free."""
    monkeypatch.setattr("deepskills.store.sandbox.MAX_WAIT", 0.1)
    root = tmp_path / "workspace/skills"
    root.mkdir(parents=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("tea"), "ann")
        loader = SkillSandboxLoader(service)
        assert await loader.load_skill_to_sandbox(made.id, backend, "ann") is False
        assert "another process keeps /workspace/skills locked" in caplog.text
        await process.communicate(b"\n")
        assert await loader.load_skill_to_sandbox(made.id, backend, "ann") is True
