"""Loaded means present on a thread that another process goes on with, from an SQLite file.

Run as a script, this file is the other process: `test_context_resume.py begin DIRECTORY` starts a thread for each way
of losing texts, `test_context_resume.py go-on DIRECTORY` goes on with them and prints what it saw as JSON.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from test_context_agents import LOSSES, NAMES, QUESTION, Loss, Parts, middleware, places, unpaired, write_skill

from deepskills.testing import Reply, call_tools
from support import MODES, Mode, load

RESUMED = {name: loss for name, loss in LOSSES.items() if loss.window is None}
"""The ways of losing texts that need but few turns."""


class StoredTalk:
    """A thread in an SQLite file below `root`, which an agent made for this process goes on with."""

    def __init__(self, mode: Mode, loss: Loss, root: Path) -> None:
        self.mode = mode
        self.loss = loss
        self.root = root
        self.model = loss.model()
        self.skills, self.backend = middleware(root)
        self.config: Any = {"configurable": {"thread_id": "stored"}}
        self.events: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}

    @property
    def database(self) -> str:
        return str(self.root / "threads.sqlite")

    def say(self, *replies: Reply) -> None:
        """Ask the agent, whose model gives these replies."""
        self.model.replies = [*([self.model.fallback] * len(self.model.requests)), *replies]
        if self.mode == "async":
            asyncio.run(self._asay())
            return
        with SqliteSaver.from_conn_string(self.database) as saver:
            agent = self.loss.build(Parts(self.root, self.model, self.skills, saver))
            self.events += agent.stream({"messages": [HumanMessage(QUESTION)]}, self.config, stream_mode="custom")
            self.state = agent.get_state(self.config).values

    async def _asay(self) -> None:
        async with AsyncSqliteSaver.from_conn_string(self.database) as saver:
            agent = self.loss.build(Parts(self.root, self.model, self.skills, saver))
            given = {"messages": [HumanMessage(QUESTION)]}
            self.events += [event async for event in agent.astream(given, self.config, stream_mode="custom")]
            self.state = (await agent.aget_state(self.config)).values


@dataclass(frozen=True)
class Seen:
    """What a process saw on a thread that it went on with."""

    counts: list[dict[str, int]]
    """How often each text is in each request."""

    texts: dict[str, list[str]]
    """The messages that hold each text, without repetitions."""

    places: dict[str, list[int]]
    """Where they stand."""

    unpaired: list[list[str | None]]
    reads: list[str]
    reattached: list[str]
    loaded: list[str]


def begin(mode: Mode, how: str, root: Path) -> None:
    """Load two skills on a new thread, and talk until their text is lost."""
    loss = RESUMED[how]
    loss.write(root)
    talk = StoredTalk(mode, loss, root)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")))
    talk.say(call_tools(("clock", {})))
    talk.say(call_tools(("clock", {})))
    told = [event["skill"] for event in talk.events if event["type"] == "skill.reattached"]
    assert sorted(told) == ([] if loss.is_restored_in_state else sorted(loss.lost))


def go_on(mode: Mode, how: str, root: Path) -> Seen:
    """Go on with the thread under a middleware that remembers nothing."""
    loss = RESUMED[how]
    talk = StoredTalk(mode, loss, root)
    talk.say(call_tools(("clock", {})))
    talk.say(call_tools(("clock", {})))
    requests = talk.model.requests
    at = {name: [(place, r) for r in requests for place in places(r, loss.body(name))] for name in NAMES}
    return Seen(
        counts=[{name: len(places(request, loss.body(name))) for name in NAMES} for request in requests],
        texts={name: sorted({request.messages[place].text for place, request in at[name]}) for name in NAMES},
        places={name: sorted({place for place, _ in at[name]}) for name in NAMES},
        unpaired=[unpaired(request.messages) for request in requests],
        reads=talk.backend.reads,
        reattached=[event["skill"] for event in talk.events if event["type"] == "skill.reattached"],
        loaded=talk.state["skills_loaded"],
    )


def assert_present(seen: Seen, loss: Loss) -> None:
    """Assert that each text was there once in every request, in one place, read at most once, and told no more."""
    assert seen.counts == [dict.fromkeys(NAMES, 1)] * 4
    for name in NAMES:
        assert [text.startswith("<skill_content") for text in seen.texts[name]] == [True]
        assert len(seen.places[name]) == 1
    assert seen.unpaired == [[]] * 4
    read_again = () if loss.survives_in_state else loss.lost
    # Calls of one round run at the same time, in any order.
    expected = [f"/skills/{name}/SKILL.md" for name in (*NAMES, *read_again)]
    assert sorted(seen.reads) == sorted(expected), "discovery reads each first"
    assert seen.reattached == []
    assert seen.loaded == list(NAMES)


def in_another_process(task: str, directory: Path) -> str:
    """Have a new process do a task, and return what it printed."""
    command = [sys.executable, __file__, task, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with threads that one process began, and what a second one, that went on with them, saw."""
    directory = tmp_path_factory.mktemp("threads")
    in_another_process("begin", directory / "original")
    shutil.copytree(directory / "original", directory / "copy")
    shutil.copytree(directory / "original", directory / "changed")
    (directory / "seen.json").write_text(in_another_process("go-on", directory / "copy"))
    return directory


@pytest.mark.parametrize("mode", MODES)
def test_a_process_goes_on_where_another_one_began(mode: Mode, begun: Path) -> None:
    """Of two processes that never met, the second sends what the first loaded, read again only if state lost it."""
    answer = json.loads((begun / "seen.json").read_text())

    for how, loss in RESUMED.items():
        assert_present(Seen(**answer[f"{mode}/{how}"]), loss)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_changed_between_processes_says_so(mode: Mode, begun: Path) -> None:
    """A text that only the file still has, and in a newer version, is put back with a remark."""
    root = begun / "changed" / mode / "langchain-summarization"
    write_skill(root, "alpha", "The second version.")
    talk = StoredTalk(mode, RESUMED["langchain-summarization"], root)

    talk.say("Done.")
    write_skill(root, "alpha", "The third version.")
    talk.say("Done.")

    texts = [request.messages[places(request, "The second version.")[0]].text for request in talk.model.requests]
    assert texts[0] == texts[1]
    assert "has changed since it was loaded" in texts[0]
    assert talk.state["skills_loaded"] == list(NAMES)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_went_between_processes_is_unloaded(mode: Mode, begun: Path) -> None:
    """A skill whose file is gone is unloaded for good; the thread goes on with the other."""
    root = begun / "changed" / mode / "trimmed-state"
    (root / "skills/alpha/SKILL.md").unlink()
    loss = RESUMED["trimmed-state"]

    talk = StoredTalk(mode, loss, root)
    talk.say("Done.")
    assert "unloaded: 'alpha'" in talk.model.requests[0].text
    later = StoredTalk(mode, loss, root)
    later.say("Done.")

    assert later.state["skills_loaded"] == ["beta"]
    assert "alpha" not in "".join(message.text for message in later.model.requests[0].messages[1:])
    assert len(places(later.model.requests[0], loss.body("beta"))) == 1


def main(task: str, directory: Path) -> None:
    """Do one process's part with every thread."""
    seen: dict[str, Any] = {}
    for mode in MODES:
        for how in RESUMED:
            root = directory / mode / how
            root.mkdir(parents=True, exist_ok=True)
            if task == "begin":
                begin(mode, how, root)
            else:
                seen[f"{mode}/{how}"] = asdict(go_on(mode, how, root))
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
