"""The store over HTTP, through a real server: every endpoint, every error in the envelope, many clients at once."""

import asyncio
import base64
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from store_support import BINARY, Sessions, draft, new_engine, on_both, on_postgres, run_sql, seed

from deepskills.store import StoreLimits, create_skills_router, create_store_engine
from support import scaled

LIMITS = StoreLimits(file_bytes=1_000, skill_bytes=3_000, files=5, extensions=frozenset({".md", ".py", ".bin"}))
MAX_REQUEST = 100_000
CLIENTS = scaled(12, 50)
"""How many clients write and read at once."""


@pytest.fixture
def kind() -> str:
    """Most answers are made before or after the database's work: SQLite will do."""
    return "sqlite"


def current_user(x_user: Annotated[str | None, Header()] = None) -> str | None:
    if x_user == "banned":
        raise HTTPException(403, "You are banned.", headers={"X-Reason": "rude"})
    if x_user == "broken-text":
        raise HTTPException(403, "You \ud800 are \x00 banned.")
    if x_user == "crash":
        raise RuntimeError("hunter2")
    if x_user == "divide":
        raise ZeroDivisionError
    if x_user == "malformed":
        raise HTTPException(400, "The token is malformed.") from ValueError("no token")
    return x_user


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Run an application on a free port of the loopback interface and give its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        server.should_exit = True
        thread.join()


def make_app(sessions: Callable[[], Any], **options: Any) -> FastAPI:
    app = FastAPI(**options)
    router = create_skills_router(sessions, current_user, limits=LIMITS, max_request_bytes=MAX_REQUEST)
    app.include_router(router, prefix="/api/v1")
    return app


class Api:
    """A client of the store, and what its answers look like."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=180, verify=False)

    def __call__(self, method: str, path: str, user: str | None = "alice", **options: Any) -> httpx.Response:
        headers = {"x-user": user} if user is not None else {}
        return self._client.request(method, path, headers={**headers, **options.pop("headers", {})}, **options)

    def data(self, method: str, path: str, user: str | None = "alice", *, code: int = 200, **options: Any) -> Any:
        answer = self(method, path, user, **options)
        assert answer.status_code == code, answer.text
        body = answer.json()
        assert body.keys() - {"next_cursor"} == {"success", "data"}
        assert body["success"] is True
        return body["data"]

    def error(self, method: str, path: str, user: str | None = "alice", *, code: int, **options: Any) -> dict[str, Any]:
        answer = self(method, path, user, **options)
        assert answer.status_code == code, answer.text
        body = answer.json()
        assert body.keys() == {"success", "error"}
        assert body["success"] is False
        assert body["error"]["message"]
        found: dict[str, Any] = body["error"]
        return found

    def close(self) -> None:
        self._client.close()


class SessionsOfTheTest:
    """A session factory for a server that many tests share: each puts its own database behind it."""

    sessions: Sessions

    def __call__(self) -> AsyncSession:
        return self.sessions()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, SessionsOfTheTest]]:
    behind = SessionsOfTheTest()
    with serving(make_app(behind)) as address:
        yield address, behind


@pytest.fixture
def api(server: tuple[str, SessionsOfTheTest], any_sessions: Sessions) -> Iterator[Api]:
    address, behind = server
    behind.sessions = any_sessions
    client = Api(address)
    yield client
    client.close()


def body(name: str = "report", **values: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", **values}


@on_both
def test_every_endpoint(api: Api) -> None:
    """A skill is created, listed, read, changed and deleted, its files too."""
    files = [
        {"path": "scripts/run.py", "content": "print(1)"},
        {"path": "assets/a.bin", "content": base64.b64encode(BINARY).decode(), "encoding": "base64"},
    ]
    made = api.data("POST", "/skills", json=body(content="# Do\n", tags=["Sales"], files=files), code=201)
    assert (made["name"], made["owner_id"], made["is_public"], made["tags"]) == ("report", "alice", False, ["Sales"])
    path = f"/skills/{made['id']}"
    got = api.data("GET", path)
    assert made == {**got, "files": [{**file, "content": None} for file in got["files"]]}
    assert api.data("GET", f"{path}?contents=false") == made
    assert [(file["path"], file["encoding"], file["size"]) for file in got["files"]] == [
        ("assets/a.bin", "base64", 256),
        ("scripts/run.py", "utf-8", 8),
    ]
    assert base64.b64decode(got["files"][0]["content"]) == BINARY
    (listed,) = api.data("GET", "/skills")
    assert listed == {**got, "content": None, "files": None}
    changed = api.data("PUT", path, json={"description": "Other.", "is_public": True})
    assert (changed["description"], changed["name"], changed["content"]) == ("Other.", "report", "# Do\n")
    added = api.data("POST", f"{path}/files", json={"path": "references/a.md", "content": "# A"}, code=201)
    assert (added["path"], added["size"], added["content"]) == ("references/a.md", 3, None)
    assert len(api.data("GET", path, None)["files"]) == 3
    assert api.data("DELETE", f"/skills/files/{added['id']}") == {"id": added["id"]}
    assert len(api.data("GET", path, "bob")["files"]) == 2
    assert api.data("DELETE", path) == {"id": made["id"]}
    assert api.data("GET", "/skills") == []


@on_postgres
def test_filters(api: Api, any_sessions: Sessions) -> None:
    """A listing takes `include_public` and any number of `tags`."""
    seed(any_sessions, "alice", draft("one", tags=["a"]), draft("two", tags=["b"]))
    seed(any_sessions, "bob", draft("three", tags=["a"], is_public=True), draft("four"))
    seed(any_sessions, None, draft("five"))

    def names(user: str | None, query: str = "") -> list[str]:
        return [skill["name"] for skill in api.data("GET", f"/skills{query}", user)]

    assert names("alice") == ["five", "one", "three", "two"]
    assert names("alice", "?include_public=false") == ["five", "one", "two"]
    assert names("alice", "?tags=A") == ["one", "three"]
    assert names("alice", "?tags=a&tags=b&include_public=false") == ["one", "two"]
    assert names("alice", "?tags=%00") == []
    assert names(None) == ["five", "three"]
    assert names(None, "?include_public=false") == ["five"]


def test_errors(api: Api, any_sessions: Sessions) -> None:
    """Every refusal has its code and the envelope, and what one may not see is not found."""
    private, public = seed(any_sessions, "alice", draft("private"), draft("public", is_public=True))
    (system,) = seed(any_sessions, None, draft("system"))
    made = api.data("POST", f"/skills/{public.id}/files", json={"path": "a.md", "content": "x"}, code=201)
    secret = api.data("POST", f"/skills/{private.id}/files", json={"path": "a.md", "content": "x"}, code=201)
    file = {"path": "b.md", "content": "x"}

    def writes(skill_id: object, file_id: object) -> list[tuple[str, str, Any]]:
        return [
            ("PUT", f"/skills/{skill_id}", {"description": "x"}),
            ("DELETE", f"/skills/{skill_id}", None),
            ("POST", f"/skills/{skill_id}/files", file),
            ("DELETE", f"/skills/files/{file_id}", None),
        ]

    for method, path, json in [("POST", "/skills", body()), *writes(public.id, made["id"])]:
        assert api.error(method, path, None, json=json, code=401)["code"] == "not-signed-in"
    for method, path, json in [*writes(public.id, made["id"]), *writes(system.id, made["id"])]:
        assert api.error(method, path, "bob", json=json, code=403)["code"] == "not-owner"
    for method, path, json in [*writes(private.id, secret["id"]), *writes(uuid4(), uuid4())]:
        assert api.error(method, path, "bob", json=json, code=404)["code"] == "not-found"
    for user in ("bob", None):
        assert api.error("GET", f"/skills/{private.id}", user, code=404)["code"] == "not-found"
    assert api.error("POST", "/skills", json=body("private"), code=409)["code"] == "conflict"
    assert api.error("POST", "/skills", json=body("PRIVATE"), code=409)["code"] == "conflict"
    assert api.error("PUT", f"/skills/{public.id}", json={"name": "private"}, code=409)["code"] == "conflict"
    assert api.error("POST", f"/skills/{public.id}/files", json={**file, "path": "a.md"}, code=409)
    assert {skill["name"] for skill in api.data("GET", "/skills")} == {"private", "public", "system"}


INVALID: list[Any] = [
    {}, [], "text", None, {"name": "x"}, body("Not Valid"), body("x", description=""), body("x", unknown=1),
    body("x", tags="a"), body("x", content="a\x00b"), body("x", description="\x00"),
    body("x", files=[{"path": "../a.md", "content": ""}]), body("x", files=[{"path": "a.exe", "content": ""}]),
    body("x", files=[{"path": "a.bin", "content": "*", "encoding": "base64"}]), body("x" * 65), body("a\x00b"),
    body("x", frontmatter="---\nname: y\n---\n"), body("x", is_public="perhaps"), body("x", system=True),
]  # fmt: skip


@on_postgres
def test_invalid_requests(api: Api) -> None:
    """What is invalid is 422, whatever is wrong with it, and says where."""
    for json in INVALID:
        assert api.error("POST", "/skills", json=json, code=422)["code"] == "invalid"
    raw: dict[str, Any] = {"headers": {"content-type": "application/json"}}
    for content in (
        b"{",
        b"\xff",
        b'{"name": "\\ud800", "description": "x"}',
        b'{"\\ud800": 1}',
        b"[" * 50,
        b'{"a": NaN}',
    ):
        api.error("POST", "/skills", content=content, code=422, **raw)
    details = api.error("POST", "/skills", json={"name": "x"}, code=422)["details"]
    assert [detail["where"] for detail in details] == ["body.description"]
    api.error("GET", "/skills/no-uuid", code=422)
    api.error("DELETE", "/skills/files/no-uuid", code=422)
    api.error("GET", "/skills?include_public=perhaps", code=422)
    api.error("POST", "/skills", content=b"[" * 90_000, code=422, **raw)
    api.error("POST", "/skills", content=b'{"name": ' + b"9" * 5_000 + b"}", code=422, **raw)
    assert api.data("GET", "/skills") == []


def test_sizes(api: Api) -> None:
    """What is too large is 413: a file, all files, their number, and a request before it is parsed."""
    big = {"path": "a.md", "content": "x" * 1_001}
    assert api.error("POST", "/skills", json=body(files=[big]), code=413)["code"] == "too-large"
    many = [{"path": f"{number}.md", "content": "x" * 999} for number in range(4)]
    api.error("POST", "/skills", json=body(files=many), code=413)
    small = [{"path": f"{number}.md", "content": "x"} for number in range(6)]
    api.error("POST", "/skills", json=body(files=small), code=413)
    assert "100000 bytes" in api.error("POST", "/skills", content=b"x" * (MAX_REQUEST + 1), code=413)["message"]
    api.error("POST", "/skills", content=b"x" * 20_000_000, code=413)
    api.error("POST", "/skills", content=iter([b"x" * 60_000] * 3), code=413)
    made = api.data("POST", "/skills", json=body(files=small[:5]), code=201)
    api.error("POST", f"/skills/{made['id']}/files", json=small[5], code=413)
    api.error("PUT", f"/skills/{made['id']}", json={"content": "x" * MAX_REQUEST}, code=413)


def test_errors_of_the_application(api: Api) -> None:
    """What `current_user` refuses comes in the envelope too, with its code and headers."""
    answer = api("GET", "/skills", "banned")
    assert (answer.status_code, answer.headers["x-reason"]) == (403, "rude")
    assert answer.json()["error"]["message"] == "You are banned."


def test_the_database_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A database that does not answer is 503 in the envelope, and tells nothing of itself."""
    for url in (f"sqlite:///{tmp_path}/no/such/place.db", "postgresql://someone:hunter2@127.0.0.1:1/nothing"):
        with serving(make_app(async_sessionmaker(new_engine(url)))) as address:
            api = Api(address)
            error = api.error("GET", "/skills", code=503)
            assert error["code"] == "unavailable"
            assert "sql" not in str(error).lower()
            api.close()
    assert "the skill database did not answer" in caplog.text


@contextmanager
def connections_used_up(server: str) -> Iterator[str]:
    """Give the URL of a role that may open no connection."""
    role = f"busy_{uuid4().hex[:12]}"
    run_sql(server, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    yield make_url(server).set(username=role).render_as_string(hide_password=False)
    run_sql(server, f"DROP ROLE {role}")


@pytest.mark.parametrize("how", ["unknown database", "too many connections", "statement timeout"])
def test_what_drivers_raise_themselves(how: str, postgres_database: str) -> None:
    """A database that refuses to connect or to answer in time is 503 in the envelope, whoever raises it."""
    with ExitStack() as stack:
        url, options = postgres_database, dict[str, Any]()
        if how == "unknown database":
            url = make_url(url).set(database="no_such_database").render_as_string(hide_password=False)
        elif how == "too many connections":
            url = stack.enter_context(connections_used_up(url))
        else:
            # Whoever waits for the lock waits too long.
            options = {"connect_args": {"server_settings": {"lock_timeout": "50", "statement_timeout": "50"}}}
            stack.enter_context(locked_table(url))
        address = stack.enter_context(serving(make_app(async_sessionmaker(new_engine(url, **options)))))
        api = Api(address)
        error = api.error("GET", "/skills", code=503)
        assert error["code"] == "unavailable"
        assert not any(word in str(error).lower() for word in ("sql", "select", "asyncpg", "no_such"))
        api.close()


@contextmanager
def locked_table(url: str) -> Iterator[None]:
    """Hold the table of skills so that nobody reads it."""
    locked, done = threading.Event(), threading.Event()

    async def hold() -> None:
        async with new_engine(url).begin() as connection:
            await connection.execute(text("LOCK TABLE deepskills_skills"))
            locked.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(hold()))
    thread.start()
    assert locked.wait(30)
    try:
        yield
    finally:
        done.set()
        thread.join()


@on_both
def test_tables_that_are_missing(empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A database that nobody migrated is 503, and the answer names what makes the tables."""
    with serving(make_app(async_sessionmaker(new_engine(empty_url)))) as address:
        api = Api(address)
        for method, path, json in (("GET", "/skills", None), ("POST", "/skills", body())):
            error = api.error(method, path, json=json, code=503)
            assert error["code"] == "unavailable"
            assert "`migrations.upgrade`" in error["message"]
        api.close()
    assert "migrations.upgrade" in caplog.text


def test_errors_hold_clean_text(api: Api) -> None:
    """What a request or the application wrote comes back without what JSON cannot carry."""
    raw: dict[str, Any] = {"headers": {"content-type": "application/json"}}
    (detail,) = api.error(
        "POST", "/skills", content=b'{"name": "x", "description": "x", "a\\u0000b": 1}', code=422, **raw
    )["details"]
    assert detail["where"] == "body.a\ufffdb"
    assert api.error("GET", "/skills", "broken-text", code=403)["message"] == "You ? are \ufffd banned."


def test_methods_that_no_route_has(api: Api) -> None:
    """A method that a path does not have is 405 in the envelope, with those that it has."""
    for method, path, allowed in (
        ("DELETE", "/skills", {"GET", "POST"}),
        ("PATCH", f"/skills/{uuid4()}", {"GET", "PUT", "DELETE"}),
        ("GET", f"/skills/{uuid4()}/files", {"POST"}),
    ):
        assert api.error(method, path, code=405)["code"] == "method-not-allowed"
        assert set(api(method, path).headers["allow"].split(", ")) == allowed


def test_a_user_function_that_crashes(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in `current_user` is 500 in the envelope that tells nothing of it, and stands in the log."""
    error = api.error("GET", "/skills", "crash", code=500)
    assert error["code"] == "failed"
    assert "hunter2" not in str(error)
    assert "hunter2" in caplog.text


def test_exceptions_that_the_application_handles(any_sessions: Sessions) -> None:
    """What the application has a handler for goes to that handler."""
    app = make_app(any_sessions)

    @app.exception_handler(ZeroDivisionError)
    async def handle(_request: Request, _error: Exception) -> JSONResponse:
        return JSONResponse({"own": True}, status_code=418)

    with serving(app) as address:
        api = Api(address)
        assert api("GET", "/skills", "divide").status_code == 418
        api.close()


@pytest.mark.parametrize("handled", [ValueError, LookupError, Exception])
def test_what_the_store_refuses_is_the_store_s_to_answer(any_sessions: Sessions, handled: type[Exception]) -> None:
    """A handler of the application, for however wide a kind of exception, takes no answer of the store away."""
    app = make_app(any_sessions)

    @app.exception_handler(handled)
    async def handle(_request: Request, _error: Exception) -> JSONResponse:
        return JSONResponse({"own": True}, status_code=418)

    with serving(app) as address:
        api = Api(address)
        assert api.error("POST", "/skills", json=body("Not Valid"), code=422)["code"] == "invalid"
        made = api.data("POST", "/skills", json=body(), code=201)
        bad_file = {"path": "../x.md", "content": ""}
        assert api.error("POST", f"/skills/{made['id']}/files", json=bad_file, code=422)["code"] == "invalid"
        assert api.error("GET", f"/skills/{uuid4()}", code=404)["code"] == "not-found"
        assert api.error("GET", "/skills", "crash", code=500)["code"] == "failed"
        api.close()


def test_a_spoiled_row_costs_no_other(api: Api, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A public skill corrupted outside the service is left out of listings and logged; others are there."""
    spoiled = api.data("POST", "/skills", json=body("bad", is_public=True), code=201)
    api.data("POST", "/skills", json=body("good", is_public=True), code=201)
    run_sql(url, "UPDATE deepskills_skills SET encoding = 'latin-1' WHERE name = 'bad'")
    for user in ("alice", "bob", None):
        caplog.clear()
        assert [skill["name"] for skill in api.data("GET", "/skills", user)] == ["good"]
        assert [record.levelname for record in caplog.records if spoiled["id"] in record.getMessage()] == ["ERROR"]


def test_a_refusal_of_the_application_is_passed_on(api: Api) -> None:
    """What `current_user` refuses with 400 is told in its words, whatever the body, and not taken for a bad body."""
    raw: dict[str, Any] = {"headers": {"content-type": "application/json"}}
    assert api.error("GET", "/skills", "malformed", code=400)["message"] == "The token is malformed."
    for content in (b'{"name": "a", "description": "d"}', b"{", b"\xff"):
        answer = api.error("POST", "/skills", "malformed", code=400, content=content, **raw)
        assert (answer["code"], answer["message"]) == ("refused", "The token is malformed.")


def test_nobody_hears_of_a_bad_body(api: Api) -> None:
    """An anonymous write is 401, whatever the body holds."""
    bodies: list[dict[str, Any]] = [
        {"json": {}}, {"json": body("Not Valid")}, {"content": b"{"}, {"content": b"\xff"}, {},
    ]  # fmt: skip
    for options in bodies:
        for method, path in (("POST", "/skills"), ("PUT", f"/skills/{uuid4()}"), ("POST", f"/skills/{uuid4()}/files")):
            raw = {"headers": {"content-type": "application/json"}, **options}
            assert api.error(method, path, None, code=401, **raw)["code"] == "not-signed-in"


def test_a_skill_md_over_http(api: Api) -> None:
    """Frontmatter as written travels both ways."""
    head = "---\n# note\nname: report\ndescription:   Does report.\nlicense: MIT\n---\n"
    made = api.data("POST", "/skills", json=body(frontmatter=head, content="# Do\n"), code=201)
    assert api.data("GET", f"/skills/{made['id']}")["frontmatter"] == head
    nothing = dict.fromkeys(("name", "description", "content", "tags", "is_public", "frontmatter", "encoding"))
    same = api.data("PUT", f"/skills/{made['id']}", json=nothing)
    assert same == {**made, "updated_at": same["updated_at"]}


@on_both
def test_clients_at_once(url: str) -> None:
    """Clients that write and read at the same time lose nothing and fail nowhere, however slow the machine is."""
    users = CLIENTS // 2
    engine = create_store_engine(url, statement_timeout=120, pool_timeout=120)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    def client(address: str, number: int) -> set[str]:
        api, user = Api(address), f"user-{number % users}"
        path = f"/skills/{api.data('POST', '/skills', user, json=body(f'skill-{number}'), code=201)['id']}"
        api.data("POST", f"{path}/files", user, json={"path": "a.md", "content": f"of {number}"}, code=201)
        api.data("PUT", path, user, json={"content": f"# {number}\n"})
        got = api.data("GET", path, user)
        assert (got["content"], got["files"][0]["content"]) == (f"# {number}\n", f"of {number}")
        taken = api("POST", "/skills", user, json=body("same")).status_code
        assert taken in {201, 409}
        found = {skill["name"] for skill in api.data("GET", "/skills", user)}
        api.close()
        return found | ({f"won by {user}"} if taken == 201 else set())

    app = make_app(async_sessionmaker(engine), lifespan=lifespan)
    with serving(app) as address, ThreadPoolExecutor(CLIENTS) as pool:
        seen = list(pool.map(lambda number: client(address, number), range(CLIENTS)))
        for number in range(users):
            api = Api(address)
            names = [skill["name"] for skill in api.data("GET", "/skills", f"user-{number}")]
            assert names == sorted(["same", f"skill-{number}", f"skill-{number + users}"])
            api.close()
    winners = [name for found in seen for name in found if name.startswith("won by")]
    assert sorted(winners) == sorted(f"won by user-{number}" for number in range(users))


def test_two_editors(api: Api) -> None:
    """Whoever sends the `ETag` that they know never overwrites what they do not: 412, with the present one."""
    first = api("POST", "/skills", json=body(files=[{"path": "old.md", "content": "old"}]))
    file_id = first.json()["data"]["files"][0]["id"]
    path, known = f"/skills/{first.json()['data']['id']}", first.headers["etag"]
    assert api("GET", path).headers["etag"] == known
    second = api("PUT", path, json={"content": "# One\n"}, headers={"if-match": known})
    new = second.headers["etag"]
    assert (second.status_code, new) == (200, f'"{second.json()["data"]["revision"]}"')
    document = {"skill_md": "---\nname: report\ndescription: d\n---\n"}
    writes: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", path, {"json": {"content": "# Two\n"}}),
        ("PUT", f"{path}/document", {"json": document}),
        ("PUT", f"{path}/files/a.md", {"content": b"x"}),
        ("POST", f"{path}/files", {"json": {"path": "a.md", "content": "x"}}),
        ("POST", f"{path}/versions/{known.strip(chr(34))}/restore", {}),
        ("DELETE", path, {}),
        ("DELETE", f"/skills/files/{file_id}", {}),
    ]
    for stale in (known, '"0"', f"W/{new}", "nonsense", f'{known}, "7777777"', '"' + "9" * 30 + '"'):
        for method, address, options in writes:
            answer = api(method, address, headers={"if-match": stale}, **options)
            assert (answer.status_code, answer.json()["error"]["code"]) == (412, "stale"), (method, address, stale)
            assert answer.headers["etag"] == new
    assert api.data("GET", path)["content"] == "# One\n"
    for method, address, options in writes[:3]:
        matching = f'"1", {api("GET", path).headers["etag"]}'
        answer = api(method, address, headers={"if-match": matching}, **options)
        assert answer.status_code == 200, answer.text
        assert answer.headers["etag"] == api("GET", path).headers["etag"]
    same = api("PUT", f"{path}/files/a.md", content=b"x", headers={"if-match": api("GET", path).headers["etag"]})
    assert same.headers["etag"] == api("GET", path).headers["etag"]
    unchanged = api("PUT", f"{path}/files/old.md", content=b"old")
    assert unchanged.headers["etag"] == api("GET", path).headers["etag"]
    api.data("DELETE", f"/skills/files/{file_id}", headers={"if-match": f'"1", {unchanged.headers["etag"]}'})
    api.data("DELETE", path, headers={"if-match": "*"})
    (deleted,) = api.data("GET", "/skills?deleted=true")
    assert api.error("POST", f"{path}/restore", headers={"if-match": new}, code=412)["code"] == "stale"
    api.data("POST", f"{path}/restore", headers={"if-match": f'{new}, "{deleted["revision"]}"'})


def test_an_update_of_nothing(api: Api) -> None:
    """What changes nothing changes neither the revision nor the time."""
    made = api.data("POST", "/skills", json=body(), code=201)
    assert api.data("PUT", f"/skills/{made['id']}", json={}) == made


@on_postgres
def test_a_file_is_replaced_in_one_step(api: Api, url: str) -> None:
    """Readers beside a writer who replaces a file always find it, and raw bytes and JSON are both taken."""
    made = api.data("POST", "/skills", json=body(files=[{"path": "a b/é.md", "content": "0"}]), code=201)
    path, lacking = f"/skills/{made['id']}", []
    begun, done = threading.Event(), threading.Event()

    def read(address: str) -> None:
        reader = Api(address)
        while not done.is_set():
            files = reader.data("GET", path)["files"]
            begun.set()
            if [file["path"] for file in files] != ["a b/é.md"]:
                lacking.append(files)
        reader.close()

    with ThreadPoolExecutor(1) as pool, serving(make_app(async_sessionmaker(new_engine(url)))) as address:
        reading = pool.submit(read, address)
        try:
            assert begun.wait(180)
            for number in range(15):
                api.data("PUT", f"{path}/files/a b/é.md", content=str(number).encode())
        finally:
            done.set()
        reading.result()
    assert lacking == []
    replaced = {"content": base64.b64encode(b"\xff").decode(), "encoding": "base64"}
    api.data("PUT", f"{path}/files/a b/é.md", json=replaced)
    (file,) = api.data("GET", path)["files"]
    assert (file["id"], file["encoding"], file["content"]) == (made["files"][0]["id"], "base64", replaced["content"])
    for bad in ("../x.md", "%2e%2e/x.md", "SKILL.md", "a.exe", "A B/É.md", "%00.md"):
        assert api("PUT", f"{path}/files/{bad}", content=b"x").status_code in {404, 405, 422}, bad
    assert api.error("PUT", f"{path}/files/a.md", json={"content": "*", "encoding": "base64"}, code=422)


def test_a_whole_skill_is_saved(api: Api) -> None:
    """A `SKILL.md` with files replaces both at once; without files those stay, and a bad part changes nothing."""
    made = api.data("POST", "/skills", json=body(files=[{"path": "old.md", "content": "x"}]), code=201)
    path = f"/skills/{made['id']}/document"
    head = "---\nname: report\ndescription: Other.\ntags: [One, Two]\n---\n"
    saved = api.data("PUT", path, json={"skill_md": f"{head}# Do\n", "files": [{"path": "new.md", "content": "y"}]})
    assert (saved["description"], saved["tags"], saved["content"]) == ("Other.", ["One", "Two"], "# Do\n")
    assert [file["path"] for file in saved["files"]] == ["new.md"]
    text = base64.b64encode(f"\ufeff{head}# Wide\n".encode("utf-16-le")).decode()
    wide = api.data("PUT", path, json={"skill_md": text, "encoding": "base64"})
    assert (wide["encoding"], wide["content"], [file["path"] for file in wide["files"]]) == (
        "utf-16-le", "# Wide\n", ["new.md"],
    )  # fmt: skip
    bad: list[dict[str, Any]] = [
        {}, {"skill_md": "no frontmatter"}, {"skill_md": head, "files": [{"path": "../a.md", "content": ""}]},
        {"skill_md": head, "files": 1}, {"skill_md": head, "other": 1}, {"skill_md": "*", "encoding": "base64"},
    ]  # fmt: skip
    for given in bad:
        assert api.error("PUT", path, json=given, code=422)["code"] == "invalid"
    assert api.error("PUT", path, content=b"x", code=422, headers={"content-type": "text/plain"})
    assert api.data("GET", f"/skills/{made['id']}")["revision"] == wide["revision"]


@on_postgres
def test_versions(api: Api) -> None:
    """Who may write a skill sees its versions and their differences, page by page, and goes back to one."""
    made = api.data("POST", "/skills", json=body(content="# One\n", is_public=True), code=201)
    path = f"/skills/{made['id']}"
    changed = api.data("PUT", path, json={"content": "# Two\n"})
    api.data("PUT", f"{path}/files/a.md", content=b"x")
    listed = api("GET", f"{path}/versions?limit=2").json()
    assert [version["action"] for version in listed["data"]] == ["file-added", "updated"]
    (first,) = api.data("GET", f"{path}/versions?limit=2&cursor={listed['next_cursor']}")
    assert (first["revision"], first["user_id"]) == (made["revision"], "alice")
    former = api.data("GET", f"{path}/versions/{made['revision']}")
    assert (former["content"], former["files"], former["revision"]) == ("# One\n", [], made["revision"])
    diff = api.data("GET", f"{path}/versions/{made['revision']}/diff/{changed['revision']}")
    assert "-# One\n+# Two\n" in diff["diff"]
    restored = api.data("POST", f"{path}/versions/{made['revision']}/restore")
    assert (restored["content"], restored["files"]) == ("# One\n", [])
    assert restored["revision"] > changed["revision"]
    for address in ("", f"/{made['revision']}", f"/{made['revision']}/diff/{changed['revision']}"):
        assert api.error("GET", f"{path}/versions{address}", "bob", code=403)["code"] == "not-owner"
        assert api.error("GET", f"{path}/versions{address}", None, code=401)["code"] == "not-signed-in"
        assert api.error("GET", f"/skills/{uuid4()}/versions{address}", code=404)["code"] == "not-found"
    api.error("GET", f"{path}/versions/999999999", code=404)
    for bad in ("/0", "/x", "/" + "9" * 30, "?cursor=x", "?limit=0", "?cursor=" + "OTk5" * 10):
        assert api.error("GET", f"{path}/versions{bad}", code=422)["code"] == "invalid"


@on_postgres
def test_searches(api: Api, any_sessions: Sessions) -> None:
    """A listing takes a name in any case, all or any of several tags, and words to search for."""
    seed(any_sessions, "alice", draft("invoices", description="Summarize invoices.", tags=["a", "b"]))
    seed(any_sessions, "alice", draft("poems", description="Write poems.", tags=["a"]))

    def names(query: str) -> list[str]:
        return [skill["name"] for skill in api.data("GET", f"/skills?{query}")]

    assert names("name=INVOICES") == ["invoices"]
    assert names("tags=a&tags=b") == ["invoices", "poems"]
    assert names("tags=a&tags=b&tag_match=all") == ["invoices"]
    assert names("q=write a poem")[:1] == ["poems"]
    assert names("q=zebra") == []


@on_postgres
def test_tags_of_the_frontmatter(api: Api) -> None:
    """Tags in the frontmatter count for a skill that is created as for one that is changed, unless others are given."""
    head = "---\nname: report\ndescription: Does report.\nmetadata:\n  tags: One, Two\n---\n"
    made = api.data("POST", "/skills", json=body(frontmatter=head), code=201)
    assert made["tags"] == ["One", "Two"]
    assert api.data("GET", "/skills?tags=two")[0]["id"] == made["id"]


@on_postgres
def test_a_hidden_file_is_not_told_from_none(api: Api, any_sessions: Sessions) -> None:
    """The answers about a file of a private skill and about no file are the same but for the id."""
    (skill,) = seed(any_sessions, "bob", draft("private", files=[{"path": "a.md", "content": "x"}]))
    hidden, none = skill.files[0].id, uuid4()
    told = [api.error("DELETE", f"/skills/files/{given}", code=404) for given in (hidden, none)]
    assert str(told[0]).replace(str(hidden), "") == str(told[1]).replace(str(none), "")


def test_refusals_of_nobody_name_the_way_in(api: Api) -> None:
    """A 401 says how to sign in."""
    answer = api("POST", "/skills", None, json=body())
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_required_skill_is_deleted_by_force(api: Api) -> None:
    """Deleting what others require is a 409 that names them; `?force=true` deletes it."""
    base = api.data("POST", "/skills", json=body("base"), code=201)
    text = "---\nname: build\ndescription: Builds.\nmetadata:\n  requires: base\n---\n"
    api.data("POST", "/skills", content=text, headers={"content-type": "text/markdown"}, code=201)
    refused = api.error("DELETE", f"/skills/{base['id']}", code=409)
    assert "`build`" in refused["message"]
    api.data("DELETE", f"/skills/{base['id']}?force=true")
    api.error("GET", f"/skills/{base['id']}", code=404)
