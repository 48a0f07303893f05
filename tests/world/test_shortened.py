"""Summaries, context editing and eviction at once: each loaded text stands in each request once, and no other does."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarization
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.testing import Request, ScriptedChatModel, call_tools
from support import disk, load, loaded_in, run, scaled, skill_md, unload, write_files
from support.world import check_pairs, told, versions_in

NAMES = ("alpha", "beta", "gamma", "delta")
TURNS = 10

GIVEN: tuple[Callable[[str], Any], ...] = (
    lambda text: text,
    lambda text: [("user", text)],
    lambda text: [{"role": "user", "content": text}],
    lambda text: [HumanMessage([{"type": "text", "text": text}])],
)
"""A user's message, with and without an id of its own."""


class EditingInside(ContextEditingMiddleware):
    """LangChain takes no two middlewares of one name."""


@tool
def clock() -> str:
    """Tell the time."""
    return "It is noon. " * 60


class Session:
    """One thread whose agent is made of what a seed chooses."""

    def __init__(self, seed: int, root: Path) -> None:
        self.choose = random.Random(seed)
        self.root, self.saver = root, InMemorySaver()
        self.versions = dict.fromkeys(NAMES, 1)
        self.large = {name for name in NAMES if self.choose.random() < 0.25}
        for name in NAMES:
            self.write(name)
        self.is_deep = self.choose.random() < 0.5
        self.mode: Any = self.choose.choice(["sync", "async"])
        self.outside, self.inside = self._stack()
        self.refresh: Any = self.choose.choice(["thread", "run"])
        self.budget = self.choose.choice([None, 50_000, 400])
        self.restart()

    def _stack(self) -> tuple[list[Any], list[Any]]:
        pick, summarizer = self.choose.randint, ScriptedChatModel(replies=[], fallback="A summary.")
        sizes: Any = {"trigger": ("messages", pick(5, 14)), "keep": ("messages", pick(1, 4))}
        layers: list[Callable[[], Any]] = [
            lambda: ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=pick(50, 1_500), keep=pick(0, 2))])
        ]
        # A deep agent has both of its own.
        if self.is_deep:
            layers.append(lambda: SummarizationMiddleware(summarizer, **sizes))
        else:
            own = DeepAgentsSummarization(model=summarizer, backend=disk(self.root), **sizes)
            layers.append(lambda: self.choose.choice([SummarizationMiddleware(summarizer, **sizes), own]))
            layers.append(lambda: FilesystemMiddleware(backend=disk(self.root)))
        outside = [make() for make in layers if self.choose.random() < 0.6]
        inside = [EditingInside(edits=[ClearToolUsesEdit(trigger=50, keep=pick(0, 1))])]
        return outside, inside if self.choose.random() < 0.5 else []

    def restart(self) -> None:
        """Go on in another process: nothing is remembered but the thread."""
        self.model = ScriptedChatModel(replies=[])
        skills = SkillsMiddleware(
            backend=disk(self.root),
            sources=["/skills"],
            refresh=self.refresh,
            max_loaded_tokens=self.budget,
            slash_commands=True,
        )
        stack: list[Any] = [*self.outside, skills, *self.inside]
        options: Any = {"tools": [clock], "middleware": stack, "checkpointer": self.saver}
        make: Any = create_deep_agent if self.is_deep else create_agent
        self.agent = make(self.model, **options, **({"backend": disk(self.root)} if self.is_deep else {}))

    def write(self, name: str) -> None:
        filler = "Word by word. " * (7_000 if name in self.large else 40)
        body = f"{told(name, self.versions[name])}\nFor $ARGUMENTS.\n{filler}"
        write_files(self.root, {f"skills/{name}/SKILL.md": skill_md(name, body=body)})

    def step(self) -> AIMessage:
        """Return what the model calls next."""
        first, second = self.choose.choice(NAMES), self.choose.choice(NAMES)
        again: Any = ("load_skill", {"skill_name": first, "arguments": f"team {self.choose.randint(1, 3)}"})
        kinds: list[list[Any]] = [
            [load(first)],
            [load(first), load(second), ("clock", {})],
            [unload(first)],
            [unload(first), load(first)],
            [again],
            [("clock", {})],
        ]
        return call_tools(*self.choose.choices(kinds, [4, 1, 2, 1, 1, 3])[0])

    def turn(self) -> list[Request]:
        """Talk for one turn, and return the requests that were made for it."""
        if self.choose.random() < 0.15:
            self.restart()
        if self.choose.random() < 0.2:
            edited = self.choose.choice(NAMES)
            self.versions[edited] += 1
            self.write(edited)
        self.model.requests.clear()
        self.model.replies = [self.step() for _ in range(self.choose.randint(0, 4))]
        text = self.choose.choice(["Hello.", "Go on.", f"/{self.choose.choice(NAMES)} team 9"])
        given = {"messages": self.choose.choice(GIVEN)(text)}
        run(self.mode, self.agent, given, {"configurable": {"thread_id": "one"}})
        # deepagents has the model sum up as well, without tools.
        return [request for request in self.model.requests if request.tools]

    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = self.agent.get_state({"configurable": {"thread_id": "one"}}).values
        return values


@pytest.mark.parametrize("seed", range(scaled(8, 120)))
def test_what_is_loaded_is_in_every_request_once(seed: int, tmp_path: Path) -> None:
    """Whatever takes texts away: the section marks the skills whose text is there, and calls keep their answers."""
    session = Session(seed, tmp_path)
    for _ in range(TURNS):
        requests = session.turn()
        for request in requests:
            there = Counter(name for name, _version in versions_in(request.messages))
            assert sorted(there) == sorted(loaded_in(request.system))
            assert set(there.values()) <= {1}
            check_pairs(request.messages)  # type: ignore[arg-type]
        state = session.state()
        marks = state.get("skills_context", {}).get("reported", {})
        left_out = {name for name, mark in marks.items() if mark == "(left out)"}
        assert (
            set(state["skills_loaded"]) - left_out <= set(loaded_in(requests[-1].system)) <= set(state["skills_loaded"])
        )
