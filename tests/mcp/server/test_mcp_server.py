"""Skills served over MCP, to our own host and to the SDK's client with requests written by hand."""

import asyncio
import base64
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_support import codes, names, opened
from mcp_types import REQUEST_TIMEOUT, Request
from pydantic import BaseModel, ConfigDict

from deepskills import InlineBackend
from deepskills.mcp import McpSkills, SkillsExtension
from deepskills.mcp.entries import parse_entry
from mcp import ClientSession, MCPError, StdioServerParameters
from support import skill_md, write_files
from support.command_line import invoke

SERVING = str(Path(__file__).with_name("serving.py"))
ROOT = "skill://skills"
EXTENSION = "io.modelcontextprotocol/skills"


class Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Give a directory with skills that a careless server would leak from."""
    root = tmp_path / "skills"
    typed = "version: 1.10\nuser-invocable: true\nquoted: '1.10'\ntags: [a, 2]\nday: 2026-09-01"
    write_files(
        root,
        {
            "report/SKILL.md": f"---\nname: report\ndescription: Writes reports.\n{typed}\n---\nBody.\n",
            "report/scripts/run.py": "print(1)\n",
            "report/pic.bin": b"\x00\xff",
            "report/nested/SKILL.md": skill_md("nested"),
            "report/.env": "SECRET=1",
            "report/.git/config": "x",
            "周报/SKILL.md": skill_md("周报", "Weekly."),
            "周报/a b.md": "A",
            "nameless/SKILL.md": "---\ndescription: Has no name.\n---\n",
            "broken/SKILL.md": "no frontmatter",
            "outside.txt": "outside",
        },
    )
    (root / "report" / "leak.txt").symlink_to(root / "outside.txt")
    (root / "report" / "inside.py").symlink_to(root / "report" / "scripts" / "run.py")
    return root


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "deepskills", "mcp", "serve", *args]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def http(*args: str) -> Iterator[str]:
    """Start a server over HTTP; the port stands for `PORT` in its arguments."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = [arg.replace("PORT", str(port)) for arg in args]
    with subprocess.Popen(given, env=environment()) as process:
        try:
            while True:
                assert process.poll() is None
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


@asynccontextmanager
async def client(where: str | list[str], *, newer: bool) -> AsyncIterator[ClientSession]:
    if isinstance(where, str):
        streams: Any = streamable_http_client(where)
    else:
        streams = stdio_client(StdioServerParameters(command=where[0], args=where[1:], env=environment()))
    async with streams as ends, ClientSession(ends[0], ends[1]) as session:
        while newer:
            try:
                await session.discover()
                break
            except MCPError as error:
                # The SDK waits for ten seconds only, and a busy machine may take longer to start a process.
                if error.error.code != REQUEST_TIMEOUT:
                    raise
        if not newer:
            await session.initialize()
        yield session


async def ask(session: ClientSession, method: str, **params: Any) -> dict[str, Any]:
    answer = await session.send_request(Request[dict[str, Any], str](method=method, params=params), Answer)
    return dict(answer.model_extra or {})


async def refused(session: ClientSession, method: str, **params: Any) -> int:
    try:
        await ask(session, method, **params)
    except MCPError as error:
        return int(error.error.code)
    return 0


@pytest.mark.parametrize(("transport", "newer"), [("stdio", True), ("stdio", False), ("http", True), ("http", False)])
def test_the_reference_client_gets_every_shape_and_error(transport: str, *, newer: bool, library: Path) -> None:
    """By hand-written requests, in both revisions and over both transports."""
    if transport == "stdio":
        asyncio.run(check_everything(command("--source", str(library)), newer=newer))
    else:
        with http(*command("--source", str(library), "--http", "127.0.0.1:PORT")) as url:
            asyncio.run(check_everything(url, newer=newer))


async def check_everything(where: str | list[str], *, newer: bool) -> None:
    async with client(where, newer=newer) as session:
        capabilities = session.server_capabilities
        assert capabilities is not None
        assert capabilities.resources is not None
        if newer:
            assert (capabilities.extensions or {})[EXTENSION] == {"directoryRead": True}
        answer = await ask(session, "skills/list")
        assert answer["resultType"] == "complete"
        assert answer["ttlMs"] > 0
        assert answer["cacheScope"] == "public"
        assert "nextCursor" not in answer
        entries = {entry["uri"]: entry for entry in answer["skills"]}
        assert set(entries) == {f"{ROOT}/report/SKILL.md", f"{ROOT}/%E5%91%A8%E6%8A%A5/SKILL.md"}
        report = entries[f"{ROOT}/report/SKILL.md"]
        assert report["frontmatter"] == {
            "name": "report",
            "description": "Writes reports.",
            "version": 1.1,
            "user-invocable": True,
            "quoted": "1.10",
            "tags": ["a", 2],
            "day": "2026-09-01",
        }
        files = {item["uri"].removeprefix(f"{ROOT}/report/"): item for item in report["resources"]}
        assert set(files) == {"SKILL.md", "nested/SKILL.md", "pic.bin", "scripts/run.py"}
        for uri, entry in entries.items():
            assert parse_entry("x", entry).uri == uri
            for item in entry["resources"]:
                [found] = (await ask(session, "resources/read", uri=item["uri"]))["contents"]
                content = found["text"].encode() if "text" in found else base64.b64decode(found["blob"])
                assert (found["uri"], len(content)) == (item["uri"], item["size"])
                assert item["digest"] == "sha256:" + hashlib.sha256(content).hexdigest()
        got = await ask(session, "skills/get", uri=report["uri"])
        assert (got["skill"], got["resultType"], got["cacheScope"]) == (report, "complete", "public")
        assert "ttlMs" in got
        directory = await ask(session, "resources/directory/read", uri=f"{ROOT}/report")
        assert [(child["uri"], child.get("mimeType")) for child in directory["resources"]] == [
            (f"{ROOT}/report/SKILL.md", "text/markdown"),
            (f"{ROOT}/report/nested", "inode/directory"),
            (f"{ROOT}/report/pic.bin", "application/octet-stream"),
            (f"{ROOT}/report/scripts", "inode/directory"),
        ]
        below = await ask(session, "resources/directory/read", uri=f"{ROOT}/report/scripts")
        assert [child["uri"] for child in below["resources"]] == [f"{ROOT}/report/scripts/run.py"]
        assert len((await ask(session, "resources/directory/read", uri=ROOT))["resources"]) == 2
        unknown: list[tuple[str, dict[str, Any]]] = [
            ("skills/get", {"uri": f"{ROOT}/nothing/SKILL.md"}),
            ("skills/get", {"uri": f"{ROOT}/report/pic.bin"}),
            ("skills/get", {"uri": f"{ROOT}/nameless/SKILL.md"}),
            ("skills/get", {"uri": "skill://other/report/SKILL.md"}),
            ("skills/get", {}),
            ("skills/list", {"cursor": "nonsense"}),
            ("skills/list", {"cursor": 7}),
            ("resources/directory/read", {"uri": f"{ROOT}/report/pic.bin"}),
            ("resources/directory/read", {"uri": f"{ROOT}/nothing"}),
            *(
                ("resources/read", {"uri": f"{ROOT}/report/{path}"})
                for path in (
                    ".env",
                    ".git/config",
                    "leak.txt",
                    "nothing.md",
                    "",
                    "../outside.txt",
                    "%2e%2e/outside.txt",
                    "..%2foutside.txt",
                    "scripts",
                    "scripts%2Frun.py",
                    "./pic.bin",
                )
            ),
        ]
        codes = [(method, params, await refused(session, method, **params)) for method, params in unknown]
        assert [item for item in codes if item[2] != -32602] == []


def test_our_own_host_loads_what_our_server_serves(library: Path, tmp_path: Path) -> None:
    """A directory over stdio, skills written in Python over HTTP: listed, opened, read, unchanged in every byte."""
    stdio = command("--source", str(library))
    with http(sys.executable, SERVING, "inline", "-", "PORT") as url:
        connections: Mapping[str, Any] = {
            "disk": {"transport": "stdio", "command": stdio[0], "args": stdio[1:], "env": environment()},
            "web": {"transport": "streamable_http", "url": url},
        }
        with McpSkills(connections, timeout=60) as skills:
            assert names(skills, "disk") == ["disk:report", "disk:周报"]
            assert names(skills, "web") == ["web:notes"]
            assert [code for label in connections for code in codes(skills, label)] == []
            assert opened(skills, "/disk/skills/report/SKILL.md") == (library / "report" / "SKILL.md").read_bytes()
            paths = [info["path"] for info in skills.glob("**/*").matches or []]
            assert paths == [
                "/disk/skills/report/SKILL.md",
                "/disk/skills/report/nested/SKILL.md",
                "/disk/skills/report/pic.bin",
                "/disk/skills/report/scripts/run.py",
                "/disk/skills/周报/SKILL.md",
                "/disk/skills/周报/a b.md",
                "/web/skills/notes/SKILL.md",
                "/web/skills/notes/pic.bin",
                "/web/skills/notes/references/a.md",
            ]
            assert all(found.error is None for found in skills.download_files(paths))
            (library / "report" / "SKILL.md").write_text(skill_md("report", "Changed."))
            assert "mcp-mismatch" in str(opened(skills, "/disk/skills/report/SKILL.md"))
            assert b"Changed." in opened(skills, "/disk/skills/report/SKILL.md")
            assert tmp_path.exists()


def test_each_user_of_a_store_is_served_their_own(tmp_path: Path) -> None:
    """The request's context says who asks; nobody lists, gets or reads what is another's."""
    with http(sys.executable, SERVING, "store", str(tmp_path / "store.db"), "PORT") as url:
        connections = {
            user: {"transport": "streamable_http", "url": url, "headers": {"x-user": user}} for user in ("alice", "bob")
        }
        with McpSkills(connections, timeout=60) as skills:
            assert [names(skills, user) for user in connections] == [["alice:alice-notes"], ["bob:bob-notes"]]
            assert b"Private text." in opened(skills, "/alice/skills/alice-notes/SKILL.md")
            with pytest.raises(LookupError):
                skills.add_sync("bob", f"{ROOT}/alice-notes/SKILL.md")


def test_a_server_of_ones_own_keeps_its_resources(library: Path) -> None:
    """Beside the skills, a resource of the server is read as before, and an unknown one refused as before."""

    async def main() -> None:
        async with client([sys.executable, SERVING, "own", str(library), "stdio"], newer=True) as session:
            memo = await session.read_resource("memo://today")
            assert memo.contents[0].text == "Buy milk."
            assert await refused(session, "resources/read", uri="memo://nothing") == -32602
            assert len((await ask(session, "skills/list"))["skills"]) == 2

    asyncio.run(main())


def test_ten_thousand_skills_are_paged_in_bounded_memory() -> None:
    """Every page is small, each skill comes once, and the server's memory hardly grows while it sends them."""

    def resident(process: int) -> int:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    def server_process() -> int:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        [found] = [child for child in children if b"many" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return int(found)

    async def main() -> None:
        async with client([sys.executable, SERVING, "many", "10000", "stdio"], newer=True) as session:
            answer = await ask(session, "skills/list")
            child = server_process()
            first = resident(child)
            seen: list[str] = []
            while True:
                assert len(answer["skills"]) <= 100
                seen += [entry["uri"] for entry in answer["skills"]]
                if "nextCursor" not in answer:
                    break
                answer = await ask(session, "skills/list", cursor=answer["nextCursor"])
            assert len(seen) == len(set(seen)) == 10_000
            assert resident(child) < first + 60_000

    asyncio.run(main())


def test_what_cannot_be_served_is_told_at_once(tmp_path: Path) -> None:
    """A missing directory, a backend that is none, and a bad address are errors with a reason."""
    with pytest.raises(ValueError, match="no directory"):
        SkillsExtension(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="backend must be"):
        SkillsExtension(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sources"):
        SkillsExtension(InlineBackend([]), "/")
    for args in (["--source", str(tmp_path), "--http", "nowhere"], [], ["--source", str(tmp_path / "nowhere")]):
        assert invoke("mcp", "serve", *args).exit_code == 2, args


def test_a_backend_that_fails_is_an_internal_error_without_details(tmp_path: Path) -> None:
    """The client reads -32603 and nothing of the reason, which is in the log."""

    def broken(_ctx: object) -> Any:
        raise OSError("secret path /srv/x")

    async def main() -> None:
        extension = SkillsExtension(broken)
        handlers = {binding.method: binding.handler for binding in extension.methods()}

        class Context:
            method = "skills/list"

        class Params:
            cursor = None

        with pytest.raises(MCPError) as caught:
            await handlers["skills/list"](Context(), Params())
        assert (caught.value.error.code, "secret" in caught.value.error.message) == (-32603, False)

    asyncio.run(main())
    assert tmp_path.exists()
