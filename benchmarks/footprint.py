"""What skills weigh: in memory, in a checkpoint, and at import, beside deepagents' own class."""

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.runtime import Runtime
from measure import Ratio, compare

from deepskills.testing import ScriptedChatModel

Make = Callable[[FilesystemBackend], Any]
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
