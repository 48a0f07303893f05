"""The index of public skills that clients of other makers read."""

import asyncio
import hashlib
import io
import itertools
import zipfile
from typing import Any, Self

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from store_support import on_sqlite

from deepskills.store import SkillCreate, SkillService, create_store_app
from deepskills.store.http.discovery import create_discovery_router
from deepskills.store.rules import Policy
from deepskills.store.workers import BYTES_IN_FLIGHT, in_flight

pytestmark = pytest.mark.anyio

INDEX = "/.well-known/agent-skills/index.json"


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://store")


async def create(http: httpx.AsyncClient, name: str, *, public: bool = True, **values: Any) -> dict[str, Any]:
    skill = {"name": name, "description": f"Does {name}.", "content": f"# {name}\n", "is_public": public, **values}
    answer = await http.post("/api/v1/skills", json=skill, headers={"X-User": "alice"})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()["data"]
    return made


@on_sqlite
async def test_the_index_names_what_everybody_may_see(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each public skill is there as one file with its digest, also for those who see more; private ones are not."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(empty_url)
    async with app.router.lifespan_context(app), client_of(app) as http:
        await create(http, "plain")
        await create(http, "secret", public=False)
        await create(http, "filed", files=[{"path": "references/a.md", "content": "text"}])
        index = await http.get(INDEX, headers={"X-User": "alice"})
        assert index.json()["$schema"] == "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
        entries = {entry["name"]: entry for entry in index.json()["skills"]}
        kinds = {name: (entry["type"], entry["description"]) for name, entry in entries.items()}
        assert kinds == {"filed": ("archive", "Does filed."), "plain": ("skill-md", "Does plain.")}
        sent = {name: await http.get(httpx.URL(f"http://store{INDEX}").join(e["url"])) for name, e in entries.items()}
        for name, answer in sent.items():
            assert answer.status_code == 200
            assert entries[name]["digest"] == f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        assert sent["plain"].headers["content-type"].startswith("text/markdown")
        assert "name: plain" in sent["plain"].text
        archive = zipfile.ZipFile(io.BytesIO(sent["filed"].content))
        assert archive.namelist() == ["SKILL.md", "references/a.md"]
        assert archive.read("references/a.md") == b"text"
        assert (await http.get(INDEX)).content == index.content
        assert (await http.head(INDEX)).status_code == 200


@on_sqlite
async def test_the_index_is_sent_once(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has it gets 304; after a change it has another tag, and the old file is gone."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(empty_url)
    async with app.router.lifespan_context(app), client_of(app) as http:
        made = await create(http, "plain")
        first = await http.get(INDEX)
        assert first.headers["cache-control"] == "private, no-cache"
        known = {"if-none-match": first.headers["etag"]}
        again = await http.get(INDEX, headers=known)
        assert (again.status_code, again.content) == (304, b"")
        await http.put(f"/api/v1/skills/{made['id']}", json={"content": "changed"}, headers={"X-User": "alice"})
        after = await http.get(INDEX, headers=known)
        assert after.status_code == 200
        (old,), (new,) = first.json()["skills"], after.json()["skills"]
        assert old["digest"] != new["digest"]
        base = httpx.URL(f"http://store{INDEX}")
        assert [(await http.get(base.join(entry["url"]))).status_code for entry in (old, new)] == [404, 200]
        assert (await http.get(base.join(new["url"].replace(".md", ".zip")))).status_code == 404


@on_sqlite
async def test_what_nobody_approved_is_not_there(empty_url: str) -> None:
    """With approval, a public skill is in the index once an operator approved it, whoever asks."""

    def is_operator(user: str) -> bool:
        return user == "root"

    app = create_store_app(empty_url, lambda x_user="alice": x_user, approval=True, is_operator=is_operator)
    async with app.router.lifespan_context(app), client_of(app) as http:
        made = await create(http, "plain")
        assert (await http.get(INDEX)).json()["skills"] == []
        approve = f"/api/v1/skills/{made['id']}/approve?x_user=root"
        assert (await http.post(approve, json={"revision": made["revision"]})).status_code == 200
        assert [entry["name"] for entry in (await http.get(INDEX)).json()["skills"]] == ["plain"]


@on_sqlite
async def test_an_application_may_refuse_strangers(empty_url: str) -> None:
    """Where nobody unknown may read, nobody unknown reads the index."""

    def current_user() -> str:
        raise HTTPException(401, "Sign in.")

    app = create_store_app(empty_url, current_user)
    async with app.router.lifespan_context(app), client_of(app) as http:
        assert (await http.get(INDEX)).status_code == 401


@on_sqlite
async def test_the_index_is_bounded(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names so many skills and bytes and no more, and no skill that clients would refuse for its size."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(empty_url)

    async def names(http: httpx.AsyncClient) -> list[str]:
        answer = await http.get(INDEX)
        assert answer.status_code == 200
        return [entry["name"] for entry in answer.json()["skills"]]

    async with app.router.lifespan_context(app), client_of(app) as http:
        for letter in "abcde":
            content = "x" * (5_000 if letter == "c" else 1_000)
            await create(http, letter, content=content, files=[{"path": "f.md", "content": content}])
        assert await names(http) == list("abcde")
        large = next(entry for entry in (await http.get(INDEX)).json()["skills"] if entry["name"] == "c")
        address = httpx.URL(f"http://store{INDEX}").join(large["url"])
        assert (await http.get(address)).status_code == 200
        module = "deepskills.store.http.discovery"
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.MAX_INDEXED", 3)
            assert await names(http) == list("abc")
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.MAX_INDEXED_BYTES", 5_000)
            assert await names(http) == list("ab")
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.MAX_ARTIFACT_BYTES", 5_000)
            assert await names(http) == list("abde")
            # A small one that another user publishes under that name does not take its place.
            small = {"name": "c", "description": "Does it.", "is_public": True}
            assert (await http.post("/api/v1/skills", json=small, headers={"x-user": "eve"})).status_code == 201
            assert await names(http) == list("abde")
            assert (await http.get(address)).status_code == 404
        assert await names(http) == list("abcde")


@on_sqlite
async def test_a_busy_process_says_when_to_come_back(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it holds as much as it can, index and skills are 503 with `Retry-After`; afterwards they are there."""
    monkeypatch.setenv("DEEPSKILLS_USER_HEADER", "X-User")
    app = create_store_app(empty_url)
    async with app.router.lifespan_context(app), client_of(app) as http:
        await create(http, "plain")
        # One request counts for half at most.
        with in_flight.hold(BYTES_IN_FLIGHT), in_flight.hold(BYTES_IN_FLIGHT):
            answer = await http.get(INDEX)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        [entry] = (await http.get(INDEX)).json()["skills"]
        address = httpx.URL(f"http://store{INDEX}").join(entry["url"])
        with in_flight.hold(BYTES_IN_FLIGHT), in_flight.hold(BYTES_IN_FLIGHT):
            # Its digests are known by now.
            assert (await http.get(INDEX)).status_code == 200
            answer = await http.get(address)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await http.get(address)).status_code == 200
    assert in_flight.held == 0


@on_sqlite
async def test_who_waits_too_long_for_the_index_comes_back(
    sessions: async_sessionmaker[AsyncSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request makes the digests, and the others wait for it for a bounded time."""
    made, goes_on, counted = asyncio.Event(), asyncio.Event(), itertools.count(1)

    class Slow(AsyncSession):
        async def __aenter__(self) -> Self:
            made.set()
            await goes_on.wait()
            return await super().__aenter__()

    def factory() -> AsyncSession:
        # The first is the request's own, the second reads the first skill.
        return Slow(sessions.kw["bind"]) if next(counted) == 2 else sessions()

    async with sessions() as session:
        for name in ("first", "second"):
            skill = SkillCreate(name=name, description="Does it.", content="# It\n", is_public=True)
            await SkillService(session).create_skill(skill, "alice")
    app = FastAPI()
    app.include_router(create_discovery_router(factory, lambda: None, Policy()), prefix=INDEX.rpartition("/")[0])
    async with client_of(app) as http:
        first = asyncio.create_task(http.get(INDEX))
        await made.wait()
        monkeypatch.setattr("deepskills.store.http.discovery._WAIT_SECONDS", 0.05)
        answer = await http.get(INDEX)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        goes_on.set()
        assert [entry["name"] for entry in (await first).json()["skills"]] == ["first", "second"]
        assert (await http.get(INDEX)).status_code == 200
