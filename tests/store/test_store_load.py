"""Many clients of several processes at once: nothing fails, and writes go on while others ask for what takes long.

The short form is small, and measures nothing. Under `make soak` 50 clients work on three processes and 100,000 skills,
beside comparisons of large skills, a purge of 9,000 skills and 25 readers of 60 MiB who take their time; every write
takes less than two seconds.
"""

import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pytest
from load_app import OPERATOR
from sqlalchemy import text
from store_support import Sessions, draft, draft_with_files, on_both, on_postgres, service_on
from test_store_db_listings import fill

from deepskills.store import SkillFileCreate, SkillUpdate, StoreLimits
from support import SOAK, scaled

pytestmark = pytest.mark.anyio

PROCESSES, CLIENTS, SKILLS, ROUNDS = scaled(2, 3), scaled(4, 50), scaled(200, 100_000), scaled(2, 20)
DELETED, COMPARERS, SLOW_READERS, LARGE_BYTES = scaled(150, 9_000), scaled(1, 6), scaled(2, 25), scaled(3, 60) << 20
MAX_WRITE_SECONDS = 2.0


@asynccontextmanager
async def serving(url: str, count: int) -> AsyncIterator[list[int]]:
    """Start processes of the application, and give their ports."""
    ports = []
    for _ in range(count):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    environment = {**os.environ, "DEEPSKILLS_DATABASE_URL": url, "DEEPSKILLS_USER_HEADER": "X-User"}
    here = str(Path(__file__).parent)
    command = [sys.executable, "-m", "uvicorn", "--app-dir", here, "--factory", "load_app:create"]
    # A client that had nothing to ask for a while finds its connection open.
    command += ["--log-level", "error", "--timeout-keep-alive", "600"]
    processes = [
        await asyncio.create_subprocess_exec(*command, "--port", str(port), env=environment, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        for process, port in zip(processes, ports, strict=True):
            while process.returncode is None:
                try:
                    async with Http(port, "nobody") as http:
                        assert (await http.call("GET", "/health")).code == 200
                    break
                except OSError:
                    await asyncio.sleep(0.1)
        yield ports
    finally:
        for process in processes:
            process.terminate()
            await process.wait()


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    code: int
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)["data"]


class Http:
    """A client of one process that costs next to nothing: it works on the same cores as what is measured."""

    def __init__(self, port: int, user: str) -> None:
        self._port = port
        self._user = user
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._opened: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for writer in self._opened:
            writer.close()
            await writer.wait_closed()

    async def call(self, method: str, path: str, body: Any = b"", limit: int = 1 << 20) -> Reply:
        """Return the answer to a request; bytes are sent as they are, all else as JSON."""
        reader, writer = await self.begin(method, path, body, limit)
        reply = await self.end(reader)
        self._idle.append((reader, writer))
        return reply

    async def begin(
        self, method: str, path: str, body: Any = b"", limit: int = 1 << 20
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request, and leave the answer to be read."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=limit)
            self._opened.append(writer)
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: store", f"X-User: {self._user}", f"Content-Length: {len(data)}"]
        lines += [f"Content-Type: {kind}"] if data else []
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        return reader, writer

    @staticmethod
    async def end(reader: asyncio.StreamReader) -> Reply:
        """Read an answer whose length is known, or which comes in chunks."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        code = int(head.split()[1])
        if "transfer-encoding: chunked" not in head:
            size = int(head.partition("content-length:")[2].split()[0])
            return Reply(code, await reader.readexactly(size))
        return Reply(code, b"".join([chunk async for chunk in chunks_of(reader)]))


async def chunks_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of an answer."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


class Client:
    """One client, which writes and reads its own skills through one of the processes."""

    def __init__(self, number: int, ports: list[int]) -> None:
        self._http = Http(ports[number % len(ports)], f"client-{number}")
        self.codes: list[int] = []
        self.waits: dict[str, list[float]] = defaultdict(list)
        """How long calls took, by what was asked."""

    async def call(self, kind: str, method: str, path: str, body: Any = b"") -> Reply:
        begun = time.monotonic()
        reply = await self._http.call(method, f"/api/v1{path}", body)
        self.waits[kind].append(time.monotonic() - begun)
        self.codes.append(reply.code)
        return reply

    async def run(self) -> None:
        async with self._http:
            await self._work()

    async def _work(self) -> None:
        lines = "\n".join(f"line {n}" for n in range(400))
        changed = lines.replace("line", "row")
        for number in range(ROUNDS):
            body = {"name": f"load-{number}", "description": "Works.", "content": lines}
            body["files"] = [{"path": f"{n}.md", "content": lines} for n in range(5)]  # type: ignore[assignment]
            made = (await self.call("create", "POST", "/skills", body)).data
            path = f"/skills/{made['id']}"
            files = [{"path": f"{n}.md", "content": changed} for n in range(5)]
            document = f"---\nname: load-{number}\ndescription: Works.\n---\n{changed}"
            saved = await self.call("save", "PUT", f"{path}/document", {"skill_md": document, "files": files})
            revisions = made["revision"], saved.data["revision"]
            diff, _found, archive, _put = await asyncio.gather(
                self.call("read: diff", "GET", f"{path}/versions/{revisions[0]}/diff/{revisions[1]}"),
                self.call("read: search", "GET", "/skills?q=report&limit=20"),
                self.call("read: archive", "GET", f"{path}/archive"),
                self.call("put file", "PUT", f"{path}/files/x.md", b"x"),
            )
            assert diff.data["diff"].count("\n+row ") == 6 * 400
            assert archive.body.startswith(b"PK")
            await self.call("delete", "DELETE", path)


class Nuisances:
    """What takes long, asked for as long as others work: large differences, purges, and downloads that nobody takes."""

    def __init__(self, ports: list[int], large: UUID, revisions: tuple[int, int]) -> None:
        self._ports = ports
        self._large = f"/api/v1/skills/{large}"
        self._revisions = revisions
        self._is_over = asyncio.Event()
        self.codes: list[int] = []
        self.compared = 0
        self.purged = 0

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for number in range(COMPARERS):
                tasks.create_task(self._compare(number))
            started = [asyncio.Event() for _ in range(SLOW_READERS)]
            for number, event in enumerate(started):
                tasks.create_task(self._download(number, event))
            for event in started:
                await event.wait()
            tasks.create_task(self._purge())
            yield
            self._is_over.set()

    def _http(self, number: int, user: str) -> Http:
        return Http(self._ports[number % len(self._ports)], user)

    async def _compare(self, number: int) -> None:
        async with self._http(number, "large") as http:
            while not self._is_over.is_set() or not self.compared:
                old, new = self._revisions
                reply = await http.call("GET", f"{self._large}/versions/{old}/diff/{new}")
                self.codes.append(reply.code)
                self.compared += reply.body.count(b"+new ") > 1_000

    async def _purge(self) -> None:
        async with self._http(0, OPERATOR) as http:
            while not self._is_over.is_set() or not self.purged:
                reply = await http.call("POST", "/api/v1/purge", {"versions": 365})
                self.codes.append(reply.code)
                self.purged += reply.data["purged"]

    async def _download(self, number: int, started: asyncio.Event) -> None:
        """Ask for a large skill, take the beginning, and nothing more until the others are done."""
        async with self._http(number, "large") as http:
            reader, _writer = await http.begin("GET", self._large)
            head = await reader.readuntil(b"\r\n\r\n")
            self.codes.append(int(head.split()[1]))
            started.set()
            await self._is_over.wait()
            # One takes the rest now, and gets it whole; the others have lost interest.
            if number == 0:
                length = re.search(rb"content-length: (\d+)", head.lower())
                chunks = [await reader.readexactly(int(length[1]))] if length else [c async for c in chunks_of(reader)]
                assert sum(map(len, chunks)) > LARGE_BYTES


async def large_skill(sessions: Sessions) -> tuple[UUID, tuple[int, int]]:
    """Write a skill with 180 files that all changed, 650 KB, and one that takes long to send."""
    limits = StoreLimits(skill_bytes=LARGE_BYTES * 2, file_bytes=LARGE_BYTES * 2)
    contents = ["".join(f"{word} {n} {line}\n" for line in range(330)) for n in range(180) for word in ("old", "new")]
    async with service_on(sessions, limits) as service:
        files: dict[str, str | bytes] = {f"{n}.md": contents[2 * n] for n in range(180)}
        made = await service.create_skill(draft_with_files("large", files), "large")
        later = [SkillFileCreate(path=f"{n}.md", content=contents[2 * n + 1]) for n in range(180)]
        saved = await service.save_skill(made.id, SkillUpdate(), later, "large")
        content = random.Random(7).randbytes(LARGE_BYTES)
        await service.save_file(made.id, SkillFileCreate.model_construct(path="x.bin", content=content), "large")
        return made.id, (made.revision, saved.revision)


@on_postgres
async def test_many_clients_of_several_processes(sessions: Sessions, url: str) -> None:
    """Writers, readers, searchers and comparers at once get no error, whatever else is asked meanwhile."""
    await fill(sessions, SKILLS)
    async with sessions() as session:
        gone = f"UPDATE deepskills_skills SET deleted_at = now() - interval '40 days' WHERE number <= {DELETED}"
        await session.execute(text(gone))
        await session.commit()
    large, revisions = await large_skill(sessions)
    async with serving(url, PROCESSES) as ports:
        clients = [Client(number, ports) for number in range(CLIENTS)]
        nuisances = Nuisances(ports, large, revisions)
        async with nuisances.going_on():
            await asyncio.gather(*(client.run() for client in clients))
    codes = [code for client in clients for code in client.codes]
    assert [code for code in (*codes, *nuisances.codes) if code >= 400] == []
    assert len(codes) == CLIENTS * ROUNDS * 7
    assert nuisances.compared
    assert nuisances.purged == DELETED
    waits: dict[str, list[float]] = defaultdict(list)
    for client in clients:
        for kind, seconds in client.waits.items():
            waits[kind] += seconds
    table = {kind: (statistics.median(seconds), max(seconds)) for kind, seconds in waits.items()}
    if SOAK:
        slowest = {kind: most for kind, (_, most) in table.items() if not kind.startswith("read")}
        assert max(slowest.values()) < MAX_WRITE_SECONDS, table


SAVER = """
import asyncio, sys
from sqlalchemy.ext.asyncio import async_sessionmaker
from deepskills.store import SkillFileCreate, SkillService, SkillUpdate, create_store_engine
from uuid import UUID

async def main(url, skills):
    engine = create_store_engine(url, statement_timeout=120)
    sessions = async_sessionmaker(engine)

    async def write(skill_id):
        async with sessions() as session:
            service = SkillService(session)
            number = 0
            while True:
                number += 1
                content = f"{sys.argv[2]} {number}"
                files = [SkillFileCreate(path=f"{n}.md", content=content) for n in range(4)]
                await service.save_skill(skill_id, SkillUpdate(content=content), files, "alice")
                print("saved", flush=True)

    await asyncio.gather(*(write(UUID(skill_id)) for skill_id in skills))

asyncio.run(main(sys.argv[1], sys.argv[3:]))
"""


@on_both
async def test_killed_writers_tear_nothing(sessions: Sessions, url: str) -> None:
    """Of processes that are killed in the middle of writing every skill stays whole, and the next ones write on."""
    processes, writers, lives = scaled(2, 3), scaled(3, 10), scaled(1, 8)
    async with service_on(sessions) as service:
        ids = [(await service.create_skill(draft(f"skill-{n}"), "alice")).id for n in range(writers)]
    reads = 0
    is_over = asyncio.Event()

    async def check() -> None:
        nonlocal reads
        async with service_on(sessions) as service:
            while True:
                for skill_id in ids:
                    skill = await service.get_skill(skill_id, "alice")
                    assert len({skill.content if skill.files else "", *(file.content for file in skill.files)}) == 1
                    reads += 1
                if is_over.is_set():
                    return
                # The writers need the processor as well.
                await asyncio.sleep(0.001)

    async def killed_again_and_again(number: int) -> None:
        for life in range(lives):
            # All processes write the same skills: those that live on wait for what the dead one held.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", SAVER, url, f"{number}-{life}", *map(str, ids), stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            for _ in range(writers):
                assert await process.stdout.readline() == b"saved\n"
            process.kill()
            await process.communicate()

    checking = [asyncio.create_task(check()) for _ in range(2)]
    await asyncio.gather(*(killed_again_and_again(number) for number in range(processes)))
    is_over.set()
    await asyncio.gather(*checking)
    assert reads >= 2 * writers
    async with service_on(sessions) as service:
        changes = await service.list_changes(system=True, since=0, limit=1_000)
        assert [change.revision for change in changes] == sorted({change.revision for change in changes})
        for skill_id in ids:
            skill = await service.get_skill(skill_id, "alice")
            (last,) = await service.list_versions(skill_id, "alice", limit=1)
            assert last.revision == skill.revision
            version = await service.get_version(skill_id, skill.revision, "alice")
            assert {file.path: file.content for file in version.files} == {f.path: f.content for f in skill.files}
            await service.update_skill(skill_id, SkillUpdate(description="Still written."), "alice")
