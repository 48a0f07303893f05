"""Loaded means present on a thread that another process goes on with, from an SQLite file.

Run as a script, this file is the other process: `test_context_resume.py DIRECTORY` goes on with the threads that the
tests began there, one for each way of losing texts, and prints what it saw as JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from test_context_agents import LOSSES, NAMES, QUESTION, Loss, Parts, middleware, places, unpaired, write_skill

from deepskills.testing import Reply, call_tools
from support import MODES, SOAK, Mode, both_modes, load

RESUMED = {name: loss for name, loss in LOSSES.items() if loss.window is None}
"""The ways of losing texts that need but few turns."""

THREADS: list[tuple[Mode, str]] = [
    (mode, how) for number, how in enumerate(RESUMED) for mode in (MODES if SOAK else MODES[number % 2 :][:1])
]
"""The threads that another process goes on with: sync and async by turns, and each in both under `make soak`."""


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
        reads=talk.backend.read_paths,
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


def in_another_process(directory: Path) -> str:
    """Have a new process go on with the threads, and return what it printed."""
    command = [sys.executable, __file__, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def place_of(directory: Path, mode: Mode, how: str) -> Path:
    """Return the directory of a thread, with its skills and its database."""
    root = directory / mode / how
    root.mkdir(parents=True, exist_ok=True)
    return root


def test_a_process_goes_on_where_another_one_began(tmp_path: Path) -> None:
    """Of two processes that never met, the second sends what the first loaded, read again only if state lost it."""
    for mode, how in THREADS:
        begin(mode, how, place_of(tmp_path, mode, how))

    answer = json.loads(in_another_process(tmp_path))

    assert len(answer) == len(THREADS) >= len(RESUMED)
    for mode, how in THREADS:
        assert_present(Seen(**answer[f"{mode}/{how}"]), RESUMED[how])


@both_modes
def test_a_file_that_changed_between_processes_says_so(mode: Mode, tmp_path: Path) -> None:
    """A text that only the file still has, and in a newer version, is put back with a remark."""
    root = tmp_path
    begin(mode, "langchain-summarization", root)
    write_skill(root, "alpha", "The second version.")
    talk = StoredTalk(mode, RESUMED["langchain-summarization"], root)

    talk.say("Done.")
    write_skill(root, "alpha", "The third version.")
    talk.say("Done.")

    texts = [request.messages[places(request, "The second version.")[0]].text for request in talk.model.requests]
    assert texts[0] == texts[1]
    assert "changed since it was loaded" in texts[0]
    assert talk.state["skills_loaded"] == list(NAMES)


@both_modes
def test_a_file_that_went_between_processes_is_unloaded(mode: Mode, tmp_path: Path) -> None:
    """A skill whose file is gone is unloaded for good; the thread goes on with the other."""
    root = tmp_path
    begin(mode, "trimmed-state", root)
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


def main(directory: Path) -> None:
    """Go on with every thread, and print what was seen."""
    seen = {f"{mode}/{how}": asdict(go_on(mode, how, place_of(directory, mode, how))) for mode, how in THREADS}
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
