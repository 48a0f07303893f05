"""Servers in processes of their own, and what tests ask of them."""

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepskills import SkillProblem, SkillsError, SkillsManager
from deepskills.mcp import McpSkills

CROOKED = str(Path(__file__).with_name("crooked_server.py"))
SERVER_PYTHON = os.environ.get("DEEPSKILLS_MCP_SERVER", sys.executable)
"""The Python that has `mcp` 2.x, for our own server."""

REPORT = "skill://team/report/SKILL.md"
REPORT_MD = "---\nname: report\ndescription: Writes reports.\n---\nFollow the template.\n"


def b64(content: str | bytes) -> str:
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def skill(name: str = "report", body: str = "Follow the template.\n", **more: Any) -> dict[str, Any]:
    """Return a skill for a book: its files as they are sent, and its frontmatter as it is claimed."""
    description = more.pop("description", "Writes reports.")
    fields = more.pop("fields", {})
    head = {"name": name, "description": description, **fields}
    text = "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items()) + f"---\n{body}"
    files = {"SKILL.md": b64(text), **{path: b64(content) for path, content in more.pop("files", {}).items()}}
    return {"frontmatter": head, "files": files, **more}


class Book:
    """What a crooked server says; a change counts from the next request on."""

    def __init__(self, path: Path, **said: Any) -> None:
        self.path = path
        self.said: dict[str, Any] = {"ttl": 3_600_000, **said}
        self.write()

    def write(self, **changes: Any) -> None:
        self.said |= changes
        # In one step: the server may read it at any moment.
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text(json.dumps(self.said))
        fresh.replace(self.path)

    def skill(self, uri: str = REPORT, **changes: Any) -> None:
        self.said["skills"][uri] |= changes
        self.write()

    @property
    def stdio(self) -> dict[str, Any]:
        return {"transport": "stdio", "command": sys.executable, "args": [CROOKED, str(self.path)]}

    def requests(self) -> list[str]:
        """Return the requests since the last look, without those that open a connection."""
        found = [line["method"] for line in self.log() if line["method"] not in {"server/discover", "initialize"}]
        self.forget_log()
        return found

    def forget_log(self) -> None:
        Path(f"{self.path}.log").write_text("")

    def log(self) -> list[dict[str, Any]]:
        path = Path(f"{self.path}.log")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @contextlib.contextmanager
    def http(self, port: int = 0) -> Iterator[int]:
        """Serve over streamable HTTP."""
        port_file = self.path.with_suffix(".port")
        port_file.unlink(missing_ok=True)
        command = [sys.executable, CROOKED, str(self.path), str(port_file), str(port)]
        with subprocess.Popen(command) as process:
            try:
                while not port_file.exists() or not port_file.read_text():
                    assert process.poll() is None
                    time.sleep(0.02)
                yield int(port_file.read_text())
            finally:
                process.kill()


def book(tmp_path: Path, name: str = "docs", **said: Any) -> Book:
    return Book(tmp_path / f"{name}.json", **{"skills": {REPORT: skill()}, **said})


@contextlib.contextmanager
def host(books: Mapping[str, Book | Mapping[str, Any]], **options: Any) -> Iterator[McpSkills]:
    connections = {label: given.stdio if isinstance(given, Book) else given for label, given in books.items()}
    with McpSkills(connections, **{"timeout": 60, **options}) as skills:
        yield skills


def manager(skills: McpSkills, label: str = "docs") -> SkillsManager:
    return SkillsManager(backend=skills, sources=[f"/{label}"])


def problems(skills: McpSkills, label: str = "docs") -> list[SkillProblem]:
    """List a server's skills and return what is wrong with them."""
    return manager(skills, label).list_problems()


def names(skills: McpSkills, label: str = "docs") -> list[str]:
    """List a server's skills and return their names; none if it fails."""
    try:
        return manager(skills, label).list_skills()
    except SkillsError:
        return []


def codes(skills: McpSkills, label: str = "docs") -> list[str]:
    return [code for problem in problems(skills, label) if (code := problem["code"]).startswith("mcp-")]


def failure(skills: McpSkills, label: str = "docs") -> str | None:
    """Return why a server cannot be listed; `None` if it can."""
    return next((found["message"] for found in problems(skills, label) if found["code"] == "source-failed"), None)


def content(skills: McpSkills, path: str) -> bytes | str:
    """Return a file, or why it cannot be read."""
    [found] = skills.download_files([path])
    assert (found.content is None) != (found.error is None)
    return found.content if found.content is not None else str(found.error)


def opened(skills: McpSkills, path: str) -> bytes | str:
    """Return a `SKILL.md` as a load gets it, or why it gets none."""
    label = path.split("/")[1]
    try:
        known = {skill["path"]: skill["name"] for skill in manager(skills, label).list_metadata()}
        return manager(skills, label).get_skill_content(known[path]).encode()
    except SkillsError as error:
        return str(error)
