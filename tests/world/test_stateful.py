"""The life of skills in a conversation, step by step in any order, beside a model of it."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    MODES,
    SOAK,
    Conversation,
    Mode,
    both_modes,
    disk,
    load,
    run,
    scaled,
    skill_md,
    tool_messages,
    unload,
    write_files,
)
from support.world import check_pairs, check_whole, told, unloaded_in, versions_in

NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]
SLOTS = 3
TOKENS = 700
WEIGHTS = {"alpha": 0, "beta": 1, "gamma": 2, "delta": 0, "epsilon": 1}
"""How long each skill is: a hundred tokens at most, and less than 150 for each point."""

names = st.sampled_from(NAMES)
calls = st.lists(st.tuples(st.sampled_from(["load", "load", "unload"]), names), min_size=1, max_size=3)


class LifeOfSkills(RuleBasedStateMachine):
    """One user with one library: threads are talked to, compacted, forked and resumed while files change."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="deepskills-world-"))
        self.saver = InMemorySaver()
        self.threads = 0
        self.files: dict[str, int] = {}
        """The skills on disk, each with its version."""
        self.written = dict.fromkeys(NAMES, 0)
        self.loaded: dict[str, int] = {}
        """What is loaded, in order, each in the version that was loaded."""
        self.shown: dict[tuple[str, int], int] = {}
        """By skill and loaded version: the version that this process shows when the text is lost from the thread."""
        self.foreign: set[str | None] = set()
        """Messages that a thread started with and whose text no file proves: they stay what they are."""
        self.messages: list[AnyMessage] = []
        for name in NAMES:
            self.write(name)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(mode=st.sampled_from(MODES), refresh=st.sampled_from(["run", "thread"]))
    def begin(self, mode: Mode, refresh: Any) -> None:
        self.mode = mode
        self.refresh = refresh
        self.catalog: set[str] = set()
        self.new_thread()
        self.restart()
        self.talk()

    def new_thread(self) -> None:
        self.threads += 1
        self.is_new = True
        self.config: RunnableConfig = {"configurable": {"thread_id": str(self.threads)}}

    def restart(self) -> None:
        """Make everything again that lives in a process; threads and files stay."""
        self.model = ScriptedChatModel(replies=[])
        middleware = SkillsMiddleware(
            backend=disk(self.root),
            sources=["/skills"],
            refresh=self.refresh,
            max_loaded_skills=SLOTS,
            max_loaded_tokens=TOKENS,
        )
        self.agent: Any = create_agent(self.model, middleware=[middleware], checkpointer=self.saver)
        self.shown = {}
        self.is_new = True  # what another process found is not believed before it was read

    def write(self, name: str) -> None:
        self.written[name] += 1
        self.files[name] = self.written[name]
        body = f"{told(name, self.files[name])}\n" + "Word by word. " * (40 * WEIGHTS[name])
        write_files(self.root, {f"skills/{name}/SKILL.md": skill_md(name, body=body)})

    def talk(self, *turn: tuple[str, str], pins: Sequence[str] = (), given: Sequence[BaseMessage] = ()) -> None:
        """Make one run in which the model makes these calls in one turn, and check all that was promised."""
        replies = [call_tools(*((load if kind == "load" else unload)(name) for kind, name in turn))] if turn else []
        self.model.replies = [*(["Done."] * len(self.model.requests)), *replies]
        value: dict[str, Any] = {"messages": [*given, HumanMessage("go")]}
        if pins:
            value["pinned_skills"] = list(pins)
        first = len(self.model.requests)
        result = run(self.mode, self.agent, value, self.config)
        self.messages = result["messages"]
        self.expect_discovery()
        self.expect_pins(pins)
        self.expect_put_back()
        self.check_request(first)
        self.expect_answers(turn, result)
        self.check_request(len(self.model.requests) - 1)
        self.check_state()

    def expect_discovery(self) -> None:
        if self.refresh == "run" or self.is_new:
            self.catalog = set(self.files)
            self.loaded = {name: version for name, version in self.loaded.items() if name in self.files}
            self.expect_reloads()
        self.is_new = False

    def expect_reloads(self) -> None:
        """Take into account that a file which changed is loaded again, or unloaded where there is no room for it."""
        loaded = self.agent.get_state(self.config).values["skills_loaded"]
        for name, version in list(self.loaded.items()):
            if self.files[name] == version:
                continue
            if name in loaded:
                self.loaded[name] = self.files[name]
                self.shown[name, self.files[name]] = self.files[name]
            else:
                assert "not loaded again" in self.model.requests[-1].text
                del self.loaded[name]

    def expect_pins(self, pins: Sequence[str]) -> None:
        for name in pins:
            if name in self.catalog and name in self.files:
                self.loaded[name] = version = self.files[name]
                self.shown[name, version] = version

    def expect_put_back(self) -> None:
        """Take into account texts that the thread has lost: remembered, or read again, or given up."""
        present = versions_in(self.messages)
        for name, version in list(self.loaded.items()):
            if (name, version) in present:
                self.shown[name, version] = version
                continue
            if (name, version) not in self.shown and name not in self.files:
                del self.loaded[name]
                continue
            self.shown.setdefault((name, version), self.files.get(name, version))

    def expect_answers(self, turn: tuple[tuple[str, str], ...], result: dict[str, Any]) -> None:
        answers = tool_messages(result)[-len(turn) :] if turn else []
        unsure: set[str] = set()
        for (kind, name), answer in zip(turn, answers, strict=True):
            if kind == "unload":
                # An unload assumes that a load of the same turn was granted, also where the file cannot be read.
                if name not in unsure:
                    assert (answer.status == "success") == (name in self.loaded), answer.text
                self.loaded.pop(name, None)
            else:
                unsure |= {name} - self.files.keys()
                self.expect_load(name, answer)

    def expect_load(self, name: str, answer: Any) -> None:
        version = self.files.get(name)
        if name not in self.catalog:
            assert "There is no skill named" in answer.text
        elif version is None:
            assert (answer.status == "success") == (name in self.loaded), answer.text
        elif self.loaded.get(name) == version:
            assert "is already loaded" in answer.text
        elif name not in self.loaded and len(self.loaded) >= SLOTS:
            assert f"of {SLOTS} skills are loaded" in answer.text
        elif answer.status == "error":
            figures = re.search(r"it takes ([\d,]+) tokens, and ([\d,]+) of", answer.text)
            assert figures is not None, answer.text
            needed, used = (int(figure.replace(",", "")) for figure in figures.groups())
            assert needed + used > TOKENS - (400 if name in self.loaded else 0)
        else:
            assert told(name, version) in answer.text
            self.loaded[name] = version
            self.shown[name, version] = version

    def check_request(self, number: int) -> None:
        """Assert that a request holds each loaded skill's text once and no other skill's."""
        held = versions_in(m for m in self.model.requests[number].messages if m.id not in self.foreign)
        present = versions_in(m for m in self.messages if m.id not in self.foreign)
        wanted = [(n, v if (n, v) in present else self.shown[n, v]) for n, v in self.loaded.items()]
        assert held == sorted(wanted)

    def check_state(self) -> None:
        state = self.agent.get_state(self.config).values
        assert state["skills_loaded"] == list(self.loaded)
        check_whole(state)
        check_pairs(self.messages)
        assert {skill["name"] for skill in state["skills_metadata"]} == self.catalog
        assert self.model.requests[-1].text.count("[Loaded]") == len(self.catalog & set(self.loaded))

    @rule(turn=calls)
    def load_and_unload(self, turn: list[tuple[str, str]]) -> None:
        before = set(self.loaded)
        self.talk(*turn)
        state = self.agent.get_state(self.config).values
        if set(self.loaded) - before:
            assert len(self.loaded) <= SLOTS
            assert sum(record["tokens"] for record in state["skills_context"]["records"].values()) <= TOKENS

    @rule(name=names)
    def pin(self, name: str) -> None:
        if name in self.files and sum(100 + 150 * WEIGHTS[other] for other in {*self.loaded, name}) <= TOKENS:
            self.talk(pins=[name])

    @rule(name=names)
    def edit(self, name: str) -> None:
        if name in self.files:
            self.write(name)
            self.talk()

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name in self.files:
            del self.files[name]
            shutil.rmtree(self.root / "skills" / name)
            self.talk()

    @rule(name=names)
    def restore(self, name: str) -> None:
        if name not in self.files:
            self.write(name)
            self.talk()

    @rule(kept=st.integers(0, 2), summary=st.booleans())
    def compact(self, kept: int, summary: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        starts = [place for place, m in enumerate(self.messages) if m.type == "human" and m.text == "go"]
        rest = self.messages[starts[-kept] :] if kept and kept <= len(starts) else []
        lead = [HumanMessage("So far.", additional_kwargs={"lc_source": "summarization"})] if summary else []
        self.talk(given=[RemoveMessage(REMOVE_ALL_MESSAGES), *lead, *rest])

    @rule()
    def fork(self) -> None:
        """Start a thread with the messages of another: what they show is loaded if the files prove it."""
        self.new_thread()
        self.loaded, self.foreign = {}, set()
        for message in self.messages:
            for name, version in versions_in([message]):
                if self.files.get(name) == version:
                    self.loaded.pop(name, None)
                    self.loaded[name] = version
                else:
                    self.foreign.add(message.id)
            for name in unloaded_in(message):
                self.loaded.pop(name, None)
        self.talk(given=self.messages)

    @rule()
    def resume(self) -> None:
        self.restart()
        self.talk()


def forked(talk: Conversation) -> Any:
    """Return what is loaded on a new thread that starts with the messages of another."""
    config: RunnableConfig = {"configurable": {"thread_id": "fork"}}
    run(talk.mode, talk.agent, {"messages": [*talk.result["messages"], HumanMessage("go")]}, config)
    return talk.agent.get_state(config).values["skills_loaded"]


@both_modes
def test_a_thread_that_starts_with_messages_loads_what_the_files_prove(mode: Mode, tmp_path: Path) -> None:
    """Of loads that messages show, those count whose text is what the file gives now, and that were not unloaded."""
    names = ("alpha", "beta", "gamma", "delta")
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name) for name in names})
    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"]))
    talk.call(*map(load, names))
    talk.call(unload("gamma"))
    write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name, body="Changed.") for name in ("alpha", "delta")})
    talk.call(load("alpha"))

    assert talk.loaded == ["alpha", "beta", "delta"]
    assert forked(talk) == ["beta", "alpha"]


def test_life_of_skills_in_any_order() -> None:
    """In any order of events, what is loaded is what was granted, its text is present once, and budgets hold."""
    run_state_machine_as_test(
        LifeOfSkills,
        settings=settings(
            max_examples=scaled(8, 300),
            stateful_step_count=scaled(15, 40),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink] if SOAK else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
