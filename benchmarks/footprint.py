"""What skills weigh: in memory, in a checkpoint, and at import, beside deepagents' own class."""

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deepagents.backends import BackendProtocol, FilesystemBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.runtime import Runtime
from library import skill_text
from measure import Ratio, compare

from deepskills.testing import ScriptedChatModel, call_tools

Make = Callable[[Any], Any]
"""Makes a middleware for a backend."""


def bytes_held(make: Make, root: Path) -> int:
    """Return how many bytes a middleware and the state of one thread hold after discovery."""
    middleware = make(FilesystemBackend(root_dir=root))
    gc.collect()
    tracemalloc.start()
    try:
        state = middleware.before_agent({"messages": []}, Runtime(), {})
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert state is not None  # noqa: S101 - what is measured
    return held


class Memory(BackendProtocol):
    """A backend that keeps the files of skills in memory, so that many looks at thousands of them are quick."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.files = {f"/skills/skill-{number:05d}/SKILL.md": text.encode() for number, text in enumerate(texts)}

    def add_line(self, number: int) -> None:
        """Add a line to one file."""
        path = list(self.files)[number % len(self.files)]
        self.files[path] += f"\nEdit {number}.".encode()

    def ls(self, path: str) -> LsResult:  # noqa: ARG002 - there is one source
        return LsResult(entries=[{"path": own.removesuffix("SKILL.md"), "is_dir": True} for own in self.files])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path=path, content=self.files.get(path)) for path in paths]


EARLY = 20
"""After how many runs the memory is taken that later runs are compared with."""


def held_after_edits(make: Make, skills: int, runs: int) -> tuple[int, int]:
    """Return how many bytes are held after the early runs and after all, a file being edited before each.

    Whole runs, with the request that shows the list: what is rendered is remembered as well.
    """
    backend = Memory([skill_text(number) for number in range(skills)])
    model = ScriptedChatModel(replies=["Done."] * runs)
    agent: Any = create_agent(model, middleware=[make(backend)])

    def run(number: int) -> object:
        backend.add_line(number)
        # What the model was sent is the measurement's, not the middleware's.
        model.requests.clear()
        return agent.invoke({"messages": [("user", "Go.")]})

    return _held(run, runs)


def held_after_refusals(make: Make, size: int, runs: int) -> tuple[int, int]:
    """Return the same for runs that each try to load a skill of `size` bytes, which has no room."""
    backend = Memory([f"{skill_text(0)}{'word ' * (size // 5)}"])
    saver = InMemorySaver()
    replies = [call_tools(("load_skill", {"skill_name": "skill-00000"})), "Done."] * runs
    agent: Any = create_agent(ScriptedChatModel(replies=replies), middleware=[make(backend)], checkpointer=saver)

    def run(number: int) -> object:
        backend.add_line(number)
        answer = agent.invoke({"messages": [("user", "Go.")]}, {"configurable": {"thread_id": str(number)}})
        assert answer["messages"][-2].status == "error"  # noqa: S101 - what is measured
        # Threads are the application's memory, not the middleware's.
        saver.delete_thread(str(number))
        return None

    return _held(run, runs)


def _held(run: Callable[[int], object], runs: int) -> tuple[int, int]:
    held = []
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(runs):
            last = run(number)
            if number + 1 in (EARLY, runs):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            del last
    finally:
        tracemalloc.stop()
    early, late = held
    return early, late


def checkpoint_bytes(make: Make | None, root: Path) -> int:
    """Return the size of the last checkpoint in SQLite after one run; without a middleware that of the run alone."""
    middleware = [make(FilesystemBackend(root_dir=root))] if make else []
    with SqliteSaver.from_conn_string(":memory:") as saver:
        agent: Any = create_agent(ScriptedChatModel(replies=[]), middleware=middleware, checkpointer=saver)
        agent.invoke({"messages": [("user", "Hello.")]}, {"configurable": {"thread_id": "one"}})
        query = "SELECT length(checkpoint) FROM checkpoints ORDER BY checkpoint_id DESC LIMIT 1"
        size: int = saver.conn.execute(query).fetchone()[0]
    return size


def import_ratio(runs: int = 5) -> tuple[Ratio, float, float]:
    """Return how many times longer importing our middleware takes than importing deepagents, and both in seconds."""
    return compare(lambda: _run("from deepskills import SkillsMiddleware"), lambda: _run("import deepagents"), runs)


def _run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 - our own interpreter
