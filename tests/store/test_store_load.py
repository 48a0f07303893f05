"""Many clients of several processes at once: nothing fails, and writes go on while others ask for what takes long.

The short form is small, and measures nothing. Under `make soak` 50 clients work on three processes and 100,000 skills,
and every write takes less than two seconds.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from store_support import Sessions, on_postgres
from test_store_db_repositories import fill

from support import SOAK, scaled

pytestmark = [pytest.mark.anyio, on_postgres]

PROCESSES, CLIENTS, SKILLS, ROUNDS = scaled(2, 3), scaled(4, 50), scaled(200, 100_000), scaled(2, 20)
MAX_WRITE_SECONDS = 2.0


@asynccontextmanager
async def serving(url: str, count: int) -> AsyncIterator[list[str]]:
    """Start processes of the application, and give their addresses."""
    ports = []
    for _ in range(count):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    environment = {**os.environ, "DEEPSKILLS_DATABASE_URL": url, "DEEPSKILLS_USER_HEADER": "X-User"}
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--factory",
        "deepskills.store:create_store_app",
        "--log-level",
        "error",
    ]
    processes = [
        await asyncio.create_subprocess_exec(*command, "--port", str(port), env=environment, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        async with httpx.AsyncClient(timeout=180) as client:
            for process, address in zip(processes, addresses, strict=True):
                while process.returncode is None:
                    try:
                        await client.get(f"{address}/health")
                        break
                    except httpx.TransportError:
                        await asyncio.sleep(0.1)
        yield addresses
    finally:
        for process in processes:
            process.terminate()
            await process.wait()


class Client:
    """One client, which writes and reads its own skills through any of the processes."""

    def __init__(self, number: int, addresses: list[str]) -> None:
        self.user = {"x-user": f"client-{number}"}
        self.api = f"{addresses[number % len(addresses)]}/api/v1"
        self.codes: list[int] = []
        self.writes: list[float] = []

    async def call(self, client: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
        begun = time.monotonic()
        answer = await client.request(method, f"{self.api}{path}", headers=self.user, **options)
        if method != "GET":
            self.writes.append(time.monotonic() - begun)
        self.codes.append(answer.status_code)
        return answer

    async def work(self) -> None:
        lines = "\n".join(f"line {n}" for n in range(400))
        async with httpx.AsyncClient(timeout=180) as client:
            for number in range(ROUNDS):
                body = {"name": f"load-{number}", "description": "Works.", "content": lines}
                body["files"] = [{"path": f"{n}.md", "content": lines} for n in range(5)]  # type: ignore[assignment]
                made = (await self.call(client, "POST", "/skills", json=body)).json()["data"]
                path = f"/skills/{made['id']}"
                changed = lines.replace("line", "row")
                files = [{"path": f"{n}.md", "content": changed} for n in range(5)]
                text = f"---\nname: load-{number}\ndescription: Works.\n---\n{changed}"
                saved = await self.call(client, "PUT", f"{path}/document", json={"skill_md": text, "files": files})
                revision = saved.json()["data"]["revision"]
                await asyncio.gather(
                    self.call(client, "GET", f"{path}/versions/{made['revision']}/diff/{revision}"),
                    self.call(client, "GET", "/skills?q=report&limit=20"),
                    self.call(client, "GET", f"{path}/archive"),
                    self.call(client, "PUT", f"{path}/files/x.md", content=b"x"),
                )
                await self.call(client, "DELETE", path)


async def test_many_clients_of_several_processes(sessions: Sessions, url: str) -> None:
    """Writers, readers, searchers and comparers at once get no 5xx, and what they wrote is there."""
    await fill(sessions, SKILLS)
    async with serving(url, PROCESSES) as addresses:
        clients = [Client(number, addresses) for number in range(CLIENTS)]
        await asyncio.gather(*(client.work() for client in clients))
    codes = [code for client in clients for code in client.codes]
    assert [code for code in codes if code >= 400] == []
    assert len(codes) == CLIENTS * ROUNDS * 7
    if SOAK:
        assert max(seconds for client in clients for seconds in client.writes) < MAX_WRITE_SECONDS
