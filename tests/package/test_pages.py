"""Nothing fails when it is pasted: every block of every page runs as it stands, in order, in an empty directory.

A page is read as its reader would follow it. Python blocks share one namespace; blocks of shell run in `bash` with
`deepskills` on the path and no key in the environment; a block with a title is saved under that name first. A block
that cannot run so says in its first line what it needs, `# needs: ...`; those are listed below, with what proves them
instead.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarizationMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver

from deepskills.testing import ScriptedChatModel, call_tools

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", flags=re.DOTALL | re.MULTILINE)
SHELL = {"console", "sh"}
MODEL = '"anthropic:claude-sonnet-5"'
KEY = "ANTHROPIC_API_KEY"
INSTALL = "Python 3.11 or newer, and a network"
"""What a block needs that installs the package, which is here, and then uses it."""


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    kind: str
    title: str | None
    text: str

    @property
    def needs(self) -> str | None:
        """What its first line says that it needs; `None` if it runs as it stands."""
        found = re.match(r"# needs: (.+)", self.text)
        return found[1] if found else None


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    for _, kind, info, text in FENCE.findall(page.read_text(encoding="utf-8")):
        title = re.search(r'title="([^"]+)"', info)
        yield Block(kind, title[1] if title else None, textwrap.dedent(text))


class Reader:
    """Follows one page in an empty directory."""

    def __init__(self, page: Path, place: Path) -> None:
        self._page, self._place = named(page), place
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.model: ScriptedChatModel | None = None
        self.printed = io.StringIO()

    def follow(self, block: Block) -> None:
        """Save a block that has a title, then run it if it is code."""
        if block.title is not None:
            file = self._place / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
            self.names["__file__"] = str(file)
        if block.kind == "python":
            self._run(block)
        elif block.kind in SHELL and block.needs in (None, INSTALL):
            self._type(re.sub(r"^(?:# needs|pip install) .*\n", "", block.text, flags=re.MULTILINE))

    def _run(self, block: Block) -> None:
        text = block.text
        if block.needs is not None:
            if KEY not in block.needs:
                return
            # There is no key here; the rest of the block must still be right.
            self.model = self.names["scripted_model"] = ScriptedChatModel(replies=[])
            text = text.replace(MODEL, "scripted_model")
        known = set(self.names)
        with contextlib.redirect_stdout(self.printed):
            exec(compile(text, self._page, "exec"), self.names)
            for name in [name for name in self.names if name.startswith("test_") and name not in known]:
                self.names[name]()  # as pytest would

    def _type(self, text: str) -> None:
        """Type the commands of a block; what follows a command behind a `$` is what it prints."""
        if not text.startswith("$ "):
            done = self._shell(text)
            assert done.returncode == 0, (self._page, text, done.stdout, done.stderr)
            return
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            done = self._shell(command)
            assert done.returncode == 0, (self._page, command, done.stderr)
            expected = printed.replace("/home/me/project", str(self._place))
            assert _numberless(done.stdout) == _numberless(expected), (self._page, command)

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self._place,
            env={"PATH": path, "HOME": str(self._place / "home"), "LANG": "C.UTF-8", **own},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )


def _said_to_be_printed(text: str) -> list[str]:
    """Return what comments say that calls of `print` print: behind the call, or on the lines below it."""
    behind = re.findall(r"^ *print\(.*\)  # (.+)$", text, flags=re.MULTILINE)
    below = re.findall(r"^ *print\(.*\)\n((?: *# .+\n)+)", text, flags=re.MULTILINE)
    return [*behind, *(line.strip().removeprefix("# ") for part in below for line in part.splitlines())]


def _numberless(text: str) -> str:
    """Return a text without its numbers: paths are part of what a skill costs, and differ."""
    return re.sub(r"[\d,]*\d", "N", text).replace("\n\n", "\n").strip()


NEEDING = {
    "ANTHROPIC_API_KEY": "run here with a scripted model",
    "ANTHROPIC_API_KEY, or any other model": "run here with a scripted model",
    "a key for the agent's model": "`tests/evals` measure agents with scripted models",
    INSTALL: "`make test-wheel` installs the package; the other commands of such a block run here",
    "a network": "`make test-wheel` installs the package with each extra",
    "a network, and a key in .env": "`make test-server` starts that project",
    "a checkout": "`.ci/run` runs both",
    "a PostgreSQL server and a port": "`tests/store` starts the application on both databases",
    "a PostgreSQL server and its tools": "`tests/store` dumps and restores with `pg_dump`",
    "jq": "the same command without `jq` is tested in `tests/cli`",
    "mcp": "`make test-mcp` runs the page",
    "mcp, langchain-mcp-adapters and a server with tools": "`make test-mcp` uses the adapters beside ours with 1.x",
    "mcp 2.x": "`make test-mcp` runs the page",
    "mcp 2.x, and the extra store": "`make test-mcp` runs the page",
    "mcp 2.x, and a host or a port to serve": "`make test-mcp` starts both",
    "mcp, and skills/release-notes (`deepskills create release-notes -s skills -d ...`)": "`make test-mcp` runs it",
    "mcp 2.x, and skills/release-notes (`deepskills create release-notes -s skills -d ...`)": "`make test-mcp` runs it",
}
"""What blocks say that they need, and where they are shown to be right all the same."""

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_what_a_page_needs_is_known_and_exists() -> None:
    """Each block that does not run here is listed; packages have the extras it names, the Makefile its targets."""
    all_blocks = [block for page in PAGES for block in blocks(page)]
    assert {block.needs for block in all_blocks} - {None} == NEEDING.keys()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    extras = {*PROJECT["project"]["optional-dependencies"], "inmem"}
    typed = "\n".join(block.text for block in all_blocks if block.kind in {*SHELL, "dockerfile", "yaml"})
    named_extras = {extra for part in re.findall(r"deepskills\[([\w,]+)\]", typed) for extra in part.split(",")}
    assert named_extras - extras == set()
    assert named_extras >= {"cli", "store", "postgres", "api", "otel", "mcp"}
    targets = set(re.findall(r"^make ([\w-]+)", typed, flags=re.MULTILINE))
    assert targets == {target for target in targets if re.search(rf"^{target}:", makefile, flags=re.MULTILINE)} != set()


WITH_CODE = [page for page in PAGES if any(block.kind in {"python", *SHELL} for block in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_a_page_can_be_pasted(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a page runs as it stands, from top to bottom, in an empty directory and without a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    reader = Reader(page, tmp_path)
    for block in blocks(page):
        reader.follow(block)
    told = [said for block in blocks(page) if not block.needs for said in _said_to_be_printed(block.text)]
    assert [said for said in told if said not in reader.printed.getvalue()] == []
    if page.name.startswith("README"):
        assert reader.model is not None
        assert "- **release-notes**" in reader.model.requests[0].system
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_endpoint_of_the_page_streams_the_answer_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client sees what the agent's model writes: no summarizer's tokens, no skill, no tool's answer, no question."""
    page = ROOT / "docs" / "how-to" / "deploy-fastapi.md"
    monkeypatch.chdir(tmp_path)
    reader = Reader(page, tmp_path)
    for block in blocks(page):
        reader.follow(block)
    names = reader.names
    backend = names["backend"]
    for summarizer in (SummarizationMiddleware, DeepAgentsSummarizationMiddleware):
        options: dict[str, Any] = {} if summarizer is SummarizationMiddleware else {"backend": backend}
        unused = [AIMessage("A summary of what was said.")] * 9
        summary = GenericFakeChatModel(messages=(unused.pop() for _ in range(9)))
        load = call_tools(("load_skill", {"skill_name": "csv-report"}))
        names["agent"] = create_agent(
            StreamingModel(messages=iter([AIMessage("First answer."), load, AIMessage("The second answer.")])),
            middleware=[
                summarizer(model=summary, trigger=("messages", 3), keep=("messages", 1), **options),
                names["skills"],
            ],
            checkpointer=InMemorySaver(),
        )
        asyncio.run(names["try_it"]())
        parts = [json.loads(line[6:]) for line in asyncio.run(names["try_it"]()).splitlines() if line]
        assert len(unused) < 9, "nothing was summarized"
        assert [part["type"] for part in parts].count("skill.loaded") == 1
        assert "".join(part["text"] for part in parts if part["type"] == "token") == "The second answer."


class StreamingModel(GenericFakeChatModel):
    """A chat model of LangChain's for tests that streams its answers word by word, and calls of tools as well."""

    def bind_tools(self, tools: Any, **_options: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        return self

    def _stream(self, *_args: Any, **_options: Any) -> Iterator[ChatGenerationChunk]:
        message = next(self.messages)
        assert isinstance(message, AIMessage)
        for call in message.tool_calls:
            chunk = tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))
        for word in re.findall(r"\S+ ?", message.text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
