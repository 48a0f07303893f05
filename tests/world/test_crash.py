"""A process that dies in the middle of a run, and another that goes on with the thread from the same SQLite file."""

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import load, scaled, skill_md, unload, write_files
from support.world import check_pairs, check_whole, told, versions_in

CRASHES = scaled(3, 100)
POINTS = 150
"""About how many points a run has at which it may die; beyond the last one it ends unharmed."""

CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread"}}
NAMES = ["alpha", "beta", "gamma", "delta"]
QUESTIONS: list[dict[str, Any]] = [{}, {"pinned_skills": ["delta"]}, {}]
ANSWERS = [
    [call_tools(load("alpha"), load("beta")), call_tools(unload("alpha"), load("gamma")), AIMessage("One.")],
    [call_tools(load("alpha")), AIMessage("Two.")],
    [call_tools(unload("beta"), load("beta"), load("nobody")), call_tools(unload("delta")), AIMessage("Three.")],
]
"""What the model does after each question."""

LOADED = ["gamma", "alpha", "beta"]
"""What is loaded in the end, however often the process died."""


class Death:
    """Kills this process when it has passed a number of points."""

    def __init__(self, point: int | None) -> None:
        self._left = point
        self._lock = threading.Lock()

    def may_come(self) -> None:
        """Pass one point."""
        with self._lock:
            if self._left is None:
                return
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Mortal(FilesystemBackend):
    """A file system at each of whose calls the process may die."""

    def __init__(self, root: Path, death: Death) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self.death = death

    def ls(self, path: str) -> LsResult:
        self.death.may_come()
        return super().ls(path)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        self.death.may_come()
        return super().download_files(paths)


class MortalSaver(SqliteSaver):
    """A checkpointer before and after each of whose writes the process may die."""

    death = Death(None)

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        self.death.may_come()
        config = super().put(*args, **kwargs)
        self.death.may_come()
        return config

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        self.death.may_come()
        super().put_writes(*args, **kwargs)
        self.death.may_come()


def questions_in(messages: list[Any]) -> int:
    return sum(message.type == "human" and not message.additional_kwargs for message in messages)


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Go on where these messages end; the model itself remembers nothing."""
    last = max(position for position, m in enumerate(messages) if m.type == "human" and not m.additional_kwargs)
    said = sum(message.type == "ai" for message in messages[last:])
    return ANSWERS[questions_in(messages) - 1][said]


@contextmanager
def agent_of(root: Path, death: Death) -> Iterator[tuple[Any, ScriptedChatModel]]:
    """Give an agent on the thread's file, made again as a new process makes it."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        death.may_come()
        return answer(messages)

    model = ScriptedChatModel(replies=[reply] * 100)
    middleware = SkillsMiddleware(backend=Mortal(root, death), sources=["/skills"], refresh="run")
    with MortalSaver.from_conn_string(str(root / "threads.sqlite")) as saver:
        assert isinstance(saver, SqliteSaver)
        saver.conn.execute("PRAGMA synchronous=OFF")
        saver.death = death  # type: ignore[attr-defined]
        yield create_agent(model, middleware=[middleware], checkpointer=saver), model


def go_on(root: Path, point: int | None) -> None:
    """Check what is on the thread, go on where it stopped, and check how it ended; the process may die on the way."""
    death = Death(point)
    with agent_of(root, death) as (agent, model):
        for snapshot in agent.get_state_history(CONFIG):
            check_whole(snapshot.values)
        if agent.get_state(CONFIG).values:
            # Also where `next` is empty: the last step may be done and not yet in a checkpoint.
            agent.invoke(None, CONFIG)
        asked = questions_in(agent.get_state(CONFIG).values.get("messages", []))
        for number in range(asked, len(QUESTIONS)):
            agent.invoke({"messages": [HumanMessage(f"Question {number}")], **QUESTIONS[number]}, CONFIG)
        values = agent.get_state(CONFIG).values
        check_whole(values)
        check_pairs(values["messages"])
        assert values["messages"][-1].text == "Three."
        assert values["skills_loaded"] == LOADED
        if model.requests:
            assert versions_in(model.requests[-1].messages) == [(name, 1) for name in sorted(LOADED)]


def in_a_process(root: Path, point: int | None) -> int | None:
    """Go on with the thread in a process of its own, and return how that ended."""
    context = multiprocessing.get_context("forkserver")
    # What a process needs is imported once, in the server that it is forked from.
    context.set_forkserver_preload(
        ["deepagents.backends", "deepskills.extensions", "deepskills.testing", "langgraph.checkpoint.sqlite"]
    )
    process = context.Process(target=go_on, args=(root, point))
    process.start()
    process.join(300)
    return process.exitcode


def test_a_killed_process_leaves_no_skill_half_loaded(tmp_path: Path) -> None:
    """A thread whose process was killed, again and again, ends as if it had run through, every checkpoint whole."""
    dice = random.Random(20)
    killed = 0
    for number in range(CRASHES):
        root = tmp_path / str(number)
        write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=told(name, 1)) for name in NAMES})
        write_files(root, {f"skills/{name}/scripts/run.py": "" for name in NAMES})
        codes = [in_a_process(root, dice.randrange(POINTS)), in_a_process(root, dice.randrange(POINTS))]
        killed += codes.count(-signal.SIGKILL)
        assert set(codes) <= {0, -signal.SIGKILL}
        assert in_a_process(root, None) == 0
    assert killed >= CRASHES
