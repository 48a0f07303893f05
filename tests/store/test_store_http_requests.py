"""No request makes the server read, answer or wait more than it must, whoever sends it."""

import asyncio
import base64
import io
import json
import stat
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI, Header
from sqlalchemy import event
from store_support import Sessions, draft, draft_with_files, on_postgres, seed, with_service
from test_store_http_routes import Api, body, make_app, serving

from deepskills.store import SkillSchema, SkillService, StoreLimits, create_skills_router
from deepskills.store.db.models import SkillShare, SkillTag

MIB = 1024 * 1024
SMALL = 20_000
"""How many bytes the answer to a bad request may have."""


LONGEST_WAIT = 1.0
"""How many seconds a bystander may wait while the server works for others."""


@pytest.fixture
def kind() -> str:
    """What a request costs is decided before the database has its part: SQLite will do."""
    return "sqlite"


def open_app(sessions: Callable[[], Any], user: Callable[..., Any] | None = None, **options: Any) -> FastAPI:
    """Return an application with the limits that the store has by default."""

    def current_user(x_user: Annotated[str | None, Header()] = None) -> str | None:
        return x_user

    app = FastAPI()
    app.include_router(create_skills_router(sessions, user or current_user, **options), prefix="/api/v1")
    return app


class Bystander:
    """Asks a server of this process a small question again and again, in a thread of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waits: list[float] = []
        self._is_done = False
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        client = Api(self._address)
        while not self._is_done:
            # Time of the processor: what other processes take of it is not the server's doing.
            started = time.process_time()
            client.data("GET", "/skills?limit=1", "bystander")
            self._waits.append(time.process_time() - started)
            time.sleep(0.01)
        client.close()

    def longest_wait(self) -> float:
        """Return the longest wait since this was asked last, that of the question under way included."""
        answers = len(self._waits)
        while len(self._waits) == answers:
            assert self._thread.is_alive()
            time.sleep(0.005)
        longest = max(self._waits)
        self._waits.clear()
        return longest

    def leave(self) -> None:
        self._is_done = True
        self._thread.join()


@contextmanager
def bystander_of(address: str) -> Iterator[Bystander]:
    bystander = Bystander(address)
    try:
        yield bystander
    finally:
        bystander.leave()


def http_scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return a request as a server tells an application of it."""
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "server": ("test", 80), "client": ("test", 1),
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }  # fmt: skip


def asgi_request(app: FastAPI, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], int]:
    """Send a request whose body never comes, and return the status, the headers, and how often it was waited for."""
    reads = 0
    sent: list[Any] = []

    async def receive() -> Any:
        nonlocal reads
        reads += 1
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(http_scope(method, path, headers), receive, send))
    shown = {key.decode().lower(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], shown, reads


def test_identity_comes_before_the_body(any_sessions: Sessions) -> None:
    """An anonymous write is 401 with a challenge before a byte of its body is read; so is one with an empty id."""
    app = open_app(any_sessions)
    some = uuid4()
    writes = [
        ("POST", "/skills"), ("PUT", f"/skills/{some}"), ("POST", f"/skills/{some}/files"),
        ("PUT", f"/skills/{some}/document"), ("PUT", f"/skills/{some}/files/a.md"), ("DELETE", f"/skills/{some}"),
        ("POST", f"/skills/{some}/versions/1/restore"), ("DELETE", f"/skills/files/{some}"),
    ]  # fmt: skip
    for headers in ({}, {"x-user": ""}):
        for method, path in writes:
            sent = {"content-type": "application/json", "content-length": str(10 * MIB), **headers}
            code, shown, reads = asgi_request(app, method, f"/api/v1{path}", sent)
            assert (code, shown["www-authenticate"], reads) == (401, "Bearer", 0), (method, path)
    declared = {"content-type": "application/json", "content-length": str(1 << 40), "x-user": "alice"}
    assert asgi_request(app, "POST", "/api/v1/skills", declared)[::2] == (413, 0)


def test_a_user_is_text_or_nobody(any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """What `current_user` gives that is not text is a 500 that says so, to readers and writers, and owns nothing."""
    given: list[Any] = []
    transport = httpx.ASGITransport(app=open_app(any_sessions, lambda: given[-1]))

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=transport, base_url="http://test/api/v1") as client:
            return [await client.get("/skills"), await client.post("/skills", json=body())]

    for user in (object(), 7, b"alice", ["alice"], uuid4(), True):
        given.append(user)
        caplog.clear()
        for answer in asyncio.run(ask()):
            assert answer.status_code == 500, user
            assert type(user).__name__ in answer.json()["error"]["message"], user
            assert "current_user" in answer.json()["error"]["message"], user
        assert "current_user" in caplog.text, user


def shapes() -> dict[str, bytes]:
    """Return bodies that look small or harmless and are not."""

    def skill(**values: Any) -> bytes:
        return json.dumps(body("shape", **values), separators=(",", ":")).encode()

    return {
        "numbers for files": skill(files=[0] * MIB),
        "files": skill(files=[{"path": f"{number}.md", "content": ""} for number in range(20_000)]),
        "numbers for tags": skill(tags=[0] * MIB),
        "groups": skill(shared_with={f"g{number}": 0 for number in range(80_000)}),
        "keys": json.dumps({f"key{number}": 0 for number in range(80_000)}).encode(),
        "one long key": json.dumps({"k" * 2 * MIB: 0}).encode(),
        "brackets": b"[" * 2 * MIB,
        "braces": b'{"a":' * 2 * MIB,
        "quotes": b'"' * 2 * MIB,
        "escapes": b'{"name": "' + rb"\n" * 2 * MIB + b'"}',
        "escaped quotes": b'{"name": "' + rb"\"" * 2 * MIB,
        "spaces": b" " * 31 * MIB,
        "digits": b"9" * 4 * MIB,
        "bad base64": skill(files=[{"path": "a", "content": "*" * 4 * MIB, "encoding": "base64"}]),
        "long text": skill(content="x\n" * 6 * MIB),
        "many keys": b"{" + b",".join(b'"%x":1' % number for number in range(2 * MIB)) + b"}",
        "many lists": b'{"name":[' + b"[]," * 8 * MIB + b"[]]}",
        "many texts": b"[" + b'"",' * 8 * MIB + b'""]',
    }


def test_no_shape_of_body_costs_others(any_sessions: Sessions) -> None:
    """Whatever a body is made of, the answer is small and nobody else waits for a second."""
    bodies, offenders = shapes(), []
    with serving(open_app(any_sessions)) as address, bystander_of(address) as bystander:
        api = Api(address)
        for name, content in bodies.items():
            answer = api("POST", "/skills", content=content, headers={"content-type": "application/json"})
            longest = bystander.longest_wait()
            if answer.status_code not in {413, 422} or len(answer.content) > SMALL or longest > LONGEST_WAIT:
                offenders.append((name, answer.status_code, len(answer.content), longest))
        api.close()
    assert offenders == []


def test_values_are_counted(any_sessions: Sessions) -> None:
    """JSON of a million values is refused unread; texts may hold any signs, and a file is no JSON of ours."""
    with serving(open_app(any_sessions)) as address:
        api = Api(address)
        values = b",".join(b'"%x":1' % number for number in range(100_000))
        for content in (b"{%b}" % values, b'{"name":"","a":{%b}' % values, b"[" * 200_000, b'"",' * 100_000):
            answer = api("POST", "/skills", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too-large")
            assert "values" in answer.json()["error"]["message"]
        signs = '[],{}"\\' * 100_000
        skill = api.data("POST", "/skills", json=body("report", content=signs), code=201)
        assert skill["content"] == signs
        sent = b'{"content":1,%b}' % values
        path = f"/skills/{skill['id']}/files"
        api.data("PUT", f"{path}/table.txt", content=sent, headers={"content-type": "application/json"})
        (file,) = api.data("GET", f"/skills/{skill['id']}")["files"]
        assert file["content"].encode() == sent
        api.close()


def test_a_small_file_beside_many(any_sessions: Sessions) -> None:
    """Adding or replacing a small file of a skill with 3,990 deep ones is quick, and nobody waits for it."""
    deep = "/".join(["directory"] * 20)
    files = {f"{deep}/{number % 50}/{number}.md": "x" for number in range(3_990)}
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", files))
    with serving(open_app(any_sessions)) as address, bystander_of(address) as bystander:
        api = Api(address)
        bystander.longest_wait()
        for content in ("a small file of some thirty byte", "another"):
            started = time.process_time()
            api.data("PUT", f"/skills/{skill.id}/files/{deep}/new.md", json={"content": content})
            assert time.process_time() - started < 2
            assert bystander.longest_wait() < LONGEST_WAIT
        api.close()


@on_postgres
def test_answers_to_writes_are_light(any_sessions: Sessions) -> None:
    """A change of a flag, and every other write, answers without the contents of files."""
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", {"a.bin": b"\xff" * MIB, "b.md": "b" * MIB}))
    path = f"/skills/{skill.id}"
    with serving(open_app(any_sessions)) as address:
        api = Api(address)
        document = {"skill_md": "---\nname: report\ndescription: d\n---\n"}
        writes: list[tuple[str, str, dict[str, Any]]] = [
            ("PUT", path, {"json": {"is_public": True}}),
            ("PUT", f"{path}/document", {"json": document}),
            ("PUT", f"{path}/files/c.md", {"content": b"c" * MIB}),
            ("POST", f"{path}/files", {"json": {"path": "d.md", "content": "d" * MIB}}),
            ("POST", f"{path}/versions/{skill.revision}/restore", {}),
            ("POST", "/skills", {"json": body("other", files=[{"path": "a.md", "content": "a" * MIB}])}),
        ]
        for method, address_of, options in writes:
            answer = api(method, address_of, **options)
            assert answer.status_code in {200, 201}, answer.text
            assert len(answer.content) < SMALL, (method, address_of)
        assert len(api("GET", path).content) > MIB
        api.close()


def answered(app: FastAPI, path: str) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the headers and the pieces of the body that an application sends for a request of its owner."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(http_scope("GET", path, {"x-user": "alice"}), receive, send))
    return dict(sent[0]["headers"]), [message.get("body", b"") for message in sent[1:]]


@on_postgres
def test_large_answers_come_in_pieces(any_sessions: Sessions) -> None:
    """To write a large skill never takes one long step, however its text is escaped, and gives what was saved."""
    texts = {"a.txt": "\x01\n" * MIB, "b.txt": '"\\周' * 200_000, "d.txt": ""}
    binary = b"\xff\x00" * 100_000
    files: dict[str, str | bytes] = {**texts, "c.bin": binary}
    shown = {**texts, "c.bin": base64.b64encode(binary).decode()}
    large = draft_with_files("report", files).model_copy(update={"content": "é\t" * 300_000})
    (skill,) = seed(any_sessions, "alice", large)
    app = open_app(any_sessions)
    for address in (f"/api/v1/skills/{skill.id}", f"/api/v1/skills/{skill.id}/versions/{skill.revision}"):
        headers, pieces = answered(app, address)
        assert max(map(len, pieces)) < 2 * MIB
        assert headers[b"content-type"] == b"application/json"
        got = SkillSchema.model_validate(json.loads(b"".join(pieces))["data"])
        assert got.content == large.content
        assert {file.path: file.content for file in got.files or []} == shown


def test_a_request_that_ends_early_is_not_a_failure(any_sessions: Sessions, caplog: pytest.LogCaptureFixture) -> None:
    """A client that leaves in the middle of its body puts no error into the log."""

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    headers = {"x-user": "alice", "content-type": "application/json", "content-length": "100"}
    asyncio.run(open_app(any_sessions)(http_scope("POST", "/api/v1/skills", headers), receive, send))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_addresses_that_are_not_there(any_sessions: Sessions) -> None:
    """An unknown address below a skill is 404 in the envelope, a method that an address does not take 405."""
    with serving(make_app(any_sessions)) as address:
        api = Api(address)
        for path in ("nothing", "files/", "versions/1/2/3/4", "document/more", "versions/1/diff"):
            for method in ("GET", "PUT", "POST", "PATCH", "-"):
                found = api(method, f"/skills/{uuid4()}/{path}")
                assert (found.status_code, found.json()["success"]) in {(404, False), (405, False)}, (method, path)
        assert api.error("GET", f"/skills/{uuid4()}/nothing", code=404)["code"] == "not-found"
        assert api.error("GET", f"/skills/{uuid4()}/document", code=405)["code"] == "method-not-allowed"
        assert api("GET", f"/skills/{uuid4()}/document").headers["allow"] == "PUT"
        api.close()


def zipped(entries: Mapping[str, bytes | str], kind: int = 0, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            info.external_attr = (kind or stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return made.getvalue()


SKILL_MD = "---\nname: report\ndescription: From an archive.\n---\n# Do\n"
ZIP: dict[str, Any] = {"headers": {"content-type": "application/zip"}}


def liar(size: int) -> bytes:
    """Return an archive whose one large file says to have a single byte."""
    made = bytearray(zipped({"SKILL.md": SKILL_MD, "bomb": b"\0" * size}))
    real = size.to_bytes(4, "little")
    while (at := made.find(real)) >= 0:
        made[at : at + 4] = (1).to_bytes(4, "little")
    return bytes(made)


def hostile_archives() -> dict[str, tuple[bytes, int]]:
    """Return archives that must not be taken, each with the status of the answer."""
    link = zipped({"SKILL.md": "/etc/passwd"}, stat.S_IFLNK | 0o777)
    bomb = {"SKILL.md": SKILL_MD} | {f"{number}.bin": b"\0" * 9 * MIB for number in range(9)}
    entry = b"PK\x01\x02" + bytes(42)
    return {
        "no archive": (b"PK nothing", 422),
        "empty": (b"", 422),
        "no skill": (zipped({"a.md": "x"}), 422),
        "two skills": (zipped({"a/SKILL.md": SKILL_MD, "b/SKILL.md": SKILL_MD}), 422),
        "a link": (link, 422),
        "a link beside": (_joined(zipped({"SKILL.md": SKILL_MD}), "secret", "/etc/passwd"), 422),
        "leaving": (zipped({"SKILL.md": SKILL_MD, "../evil.md": "x"}), 422),
        "leaving deeper": (zipped({"SKILL.md": SKILL_MD, "a/../../evil.md": "x"}), 422),
        "absolute": (zipped({"SKILL.md": SKILL_MD, "/etc/evil": "x"}), 422),
        "backslash": (zipped({"SKILL.md": SKILL_MD, "..\\evil": "x"}), 422),
        "bomb": (zipped(bomb), 413),
        "one large": (zipped({"SKILL.md": SKILL_MD, "a.bin": b"\0" * 11 * MIB}), 413),
        "liar": (liar(64 * MIB), 422),
        "many": (zipped({"SKILL.md": SKILL_MD} | {f"{number}.md": "" for number in range(4_100)}), 413),
        "entries": (entry * 500_000, 413),
        "twice": (_joined(zipped({"SKILL.md": SKILL_MD}), "SKILL.md", "x", stat.S_IFREG | 0o644), 422),
        "case": (zipped({"SKILL.md": SKILL_MD, "A.md": "x", "a.md": "y"}), 422),
        "other packing": (zipped({"SKILL.md": SKILL_MD}, method=zipfile.ZIP_BZIP2), 422),
    }


def _joined(archive: bytes, name: str, content: str, kind: int = stat.S_IFLNK | 0o777) -> bytes:
    made = io.BytesIO(archive)
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(made, "a") as opened:
        info = zipfile.ZipInfo(name)
        info.external_attr = kind << 16
        opened.writestr(info, content)
    return made.getvalue()


def test_hostile_archives(any_sessions: Sessions) -> None:
    """Bombs, links and paths that leave are refused; the skill stays as it is, and nobody waits."""
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", {"a.md": "kept"}))
    archives, offenders = hostile_archives(), []
    with serving(open_app(any_sessions)) as address, bystander_of(address) as bystander:
        api = Api(address)
        for name, (archive, code) in archives.items():
            answer = api("PUT", f"/skills/{skill.id}/document", content=archive, **ZIP)
            longest = bystander.longest_wait()
            if answer.status_code != code or len(answer.content) > SMALL or longest > LONGEST_WAIT:
                offenders.append((name, answer.status_code, answer.text[:200], longest))
        assert offenders == []
        got = api.data("GET", f"/skills/{skill.id}")
        assert (got["revision"], [file["content"] for file in got["files"]]) == (skill.revision, ["kept"])
        api.close()


@on_postgres
def test_archives(any_sessions: Sessions) -> None:
    """A `.zip` replaces text and files, at its top or in one directory; what a system adds to it is left out."""
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", {"old.md": "x"}))
    path = f"/skills/{skill.id}"
    with serving(open_app(any_sessions)) as address:
        api = Api(address)
        files: dict[str, bytes | str] = {
            "SKILL.md": SKILL_MD,
            "scripts/run.py": "print(1)",
            "assets/a.bin": b"\xff\x00",
        }
        saved = api.data("PUT", f"{path}/document", content=zipped(files), **ZIP)
        assert (saved["description"], saved["frontmatter"]) == ("From an archive.", SKILL_MD.removesuffix("# Do\n"))
        assert [file["path"] for file in saved["files"]] == ["assets/a.bin", "scripts/run.py"]
        nested = {f"report-main/{name}": content for name, content in files.items()}
        again = api.data("PUT", f"{path}/document", content=zipped({**nested, "__MACOSX/._x": "note"}), **ZIP)
        assert again == saved
        api.close()


@on_postgres
def test_saved_with_what_the_operator_allows(any_sessions: Sessions) -> None:
    """Quotas and limits hold over HTTP, with a code of their own."""
    limits = StoreLimits(owner_skills=1, file_bytes=10)
    with serving(open_app(any_sessions, limits=limits)) as address:
        api = Api(address)
        made = api.data("POST", "/skills", json=body(), code=201)
        assert api.error("POST", "/skills", json=body("more"), code=413)["code"] == "over-quota"
        assert api.error("PUT", f"/skills/{made['id']}/files/a.md", content=b"x" * 11, code=413)["code"] == "too-large"
        api.close()


@on_postgres
def test_groups_and_operators(any_sessions: Sessions) -> None:
    """Groups, operators and approval of the application count over HTTP."""
    options: dict[str, Any] = {
        "groups_of": lambda user: ["team"] if user in {"alice", "bob"} else [],
        "is_operator": lambda user: user == "root",
        "approval": True,
    }
    with serving(open_app(any_sessions, **options)) as address:
        api = Api(address)
        shared = api.data("POST", "/skills", json=body("shared", shared_with={"team": "write"}), code=201)
        public = api.data("POST", "/skills", json=body("public", is_public=True), code=201)
        assert [skill["name"] for skill in api.data("GET", "/skills", "bob")] == ["shared"]
        assert api.data("PUT", f"/skills/{shared['id']}", "bob", json={"description": "By Bob."})["revision"] > 1
        assert api.data("GET", "/skills", "carol") == []
        api.error("GET", f"/skills/{public['id']}", "carol", code=404)
        assert len(api.data("GET", "/skills?everything=true", "root")) == 2
        assert api.error("GET", "/skills?everything=true", "carol", code=403)["code"] == "not-owner"

        async def approve(service: SkillService) -> object:
            return await service.approve_skill(public_id, revision, system=True)

        found = api.data("GET", "/skills?everything=true", "root")
        public_id, revision = next((skill["id"], skill["revision"]) for skill in found if skill["name"] == "public")
        with_service(any_sessions, approve)
        assert [skill["name"] for skill in api.data("GET", "/skills", "carol")] == ["public"]
        api.data("DELETE", f"/skills/{public_id}", "root")
        assert [skill["name"] for skill in api.data("GET", "/skills?deleted=true")] == ["public"]
        assert api.error("POST", f"/skills/{public_id}/restore", code=403)["code"] == "not-owner"
        assert api.data("POST", f"/skills/{public_id}/restore", "root")["name"] == "public"
        api.close()


def test_what_is_documented(any_sessions: Sessions) -> None:
    """Every operation documents its bodies, its failures and how one signs in."""
    schema = open_app(any_sessions).openapi()
    assert schema["components"]["securitySchemes"]["token"] == {
        "type": "http", "scheme": "bearer", "description": "A token of the application that identifies the user.",
    }  # fmt: skip
    operations = {(m, p): o for p, methods in schema["paths"].items() for m, o in methods.items()}
    assert len(operations) == 23
    for (method, path), operation in operations.items():
        assert operation["security"] == [{"token": []}], (method, path)
        assert {"401", "422", "500", "503"} <= operation["responses"].keys(), (method, path)
        if method in {"put", "post", "delete"} and "{" in path:
            assert {"403", "404"} <= operation["responses"].keys(), (method, path)
        if method == "put":
            assert "application/json" in operation["requestBody"]["content"], (method, path)
            assert "412" in operation["responses"], (method, path)
    assert "$ref" not in json.dumps([operation.get("requestBody") for operation in operations.values()])


def test_a_listing_of_many_is_paged(any_sessions: Sessions) -> None:
    """A page has at most so many skills, light, and its cursor leads to the rest, each once."""
    seed(any_sessions, "alice", *(draft(f"skill-{number:03}", content="x" * 1_000) for number in range(105)))
    with serving(open_app(any_sessions)) as address:
        api = Api(address)
        first = api("GET", "/skills")
        assert len(first.json()["data"]) == 100
        assert len(first.content) < 60_000
        names, cursor = [], ""
        while True:
            answer = api("GET", f"/skills?limit=50{cursor}").json()
            names += [skill["name"] for skill in answer["data"]]
            if "next_cursor" not in answer:
                break
            cursor = f"&cursor={answer['next_cursor']}"
        assert names == [f"skill-{number:03}" for number in range(105)]
        hex_id = uuid4().hex
        places = (
            "[]",
            "{}",
            f'["a", 1e999, 1, "{hex_id}"]',
            f'["a", 1, 1e999, "{hex_id}"]',
            f'["a", "1", 1, "{hex_id}"]',
        )
        forged = [f"cursor={base64.urlsafe_b64encode(place.encode()).decode()}" for place in places]
        malformed = ["limit=0", "limit=501", "cursor=x", "cursor=%00", "cursor=" + "a" * 3_000, "q=a&cursor=e30"]
        for bad in (*malformed, *forged):
            assert api.error("GET", f"/skills?{bad}", code=422)["code"] == "invalid"
        api.close()


@on_postgres
def test_tags_and_groups_of_a_listing_are_read_as_values(any_sessions: Sessions) -> None:
    """A page of skills with many tags and groups shows them all, and makes no object of each of their rows."""
    groups: Any = {f"group-{number:03}": "write" if number % 2 else "read" for number in range(100)}
    tags = [f"Tag {number}" for number in range(50)]
    seed(any_sessions, "alice", *(draft(f"skill-{n}", tags=tags, shared_with=groups) for n in range(3)), draft("bare"))
    made: list[object] = []

    def note(target: object, _context: object) -> None:
        made.append(target)

    async def both(service: SkillService) -> list[list[Any]]:
        return [await service.list_skills("alice", limit=10), await service.list_skills("alice", q="skill", limit=10)]

    for table in (SkillTag, SkillShare):
        event.listen(table, "load", note)
    try:
        listed, found = with_service(any_sessions, both)
    finally:
        for table in (SkillTag, SkillShare):
            event.remove(table, "load", note)
    assert made == []
    assert [(skill.tags, skill.shared_with) for skill in listed] == [([], {}), *[(tags, groups)] * 3]
    assert {skill.name: skill.tags for skill in found} == {f"skill-{n}": tags for n in range(3)}
    assert list(SkillSchema.of(listed[1]).shared_with) == sorted(groups)


def test_an_export_lists_skills_by_pages(any_sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many skills there are, an export reads the rows of a page at a time, and each name comes once."""
    monkeypatch.setattr("deepskills.store.http.routes.MAX_PAGE", 2)
    for user in ("alice", "bob"):
        seed(any_sessions, user, *(draft(f"skill-{n}", description=user, is_public=True) for n in range(5)))
    listed: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "ORDER BY" in statement and "deepskills_skills" in statement:
            listed.append(statement)

    event.listen(any_sessions.kw["bind"].sync_engine, "before_cursor_execute", note)

    async def scenario() -> bytes:
        transport = httpx.ASGITransport(open_app(any_sessions))
        async with httpx.AsyncClient(transport=transport, base_url="http://store") as client:
            answer = await client.get("/api/v1/export?include_public=true", headers={"x-user": "bob"})
            assert answer.status_code == 200
            return answer.content

    with zipfile.ZipFile(io.BytesIO(asyncio.run(scenario()))) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert list(texts) == [f"skill-{n}/SKILL.md" for n in range(5)]
    assert all("description: bob" in text for text in texts.values()), "one's own comes first"
    assert len(listed) >= 5
    assert [statement for statement in listed if "LIMIT" not in statement] == []


class CountedFile:
    """A file that counts how often somebody looks at its size."""

    looked = 0

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def size(self) -> int:
        CountedFile.looked += 1
        return 1_000
