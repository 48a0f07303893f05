"""Models that skip, reorder, repeat, claim, call in parallel, unload and reload: what `SkillChecks` does is foretold.

A seeded walk of random scripts, over turns, processes and human decisions; every second one has the same checks as the
operator's. The oracle knows nothing of receipts: it reads the conversation from its beginning and says which tools may
have run, which answers had to be sent back, and what each turn left open.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillChecks, SkillUsage, UsageEvent
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk, run, skill_md, write_files
from support.modes import MODES, scaled

CHECKS: dict[str, Any] = {
    "alpha": [{"called": "test", "before": "deploy"}, {"called": "lint"}],
    "beta": [{"called": "lint", "before": ["deploy", "publish"]}],
    "gamma": [{"called": "fragile"}],
    "plain": None,
}
RETRIES = 2
WALKS = scaled(25, 3_000)


def make_tool(name: str) -> Any:
    """Return a tool that answers with its name."""

    @tool(name)
    def act(fails: bool = False) -> str:  # noqa: FBT001, FBT002 - what the model sends
        """Act."""
        if fails:
            raise ToolException("failed")
        return f"{name} ran"

    act.handle_tool_error = True
    return act


TOOLS = [make_tool(name) for name in ("test", "lint", "fragile", "deploy", "publish")]


@dataclass
class Oracle:
    """What has to be so, read from messages alone."""

    proven: dict[str, set[str]] = field(default_factory=dict)
    """By loaded skill, what was called since its load."""

    is_operators: bool = False
    """Whether the checks are the operator's."""

    lingering: dict[str, set[str]] = field(default_factory=dict)
    """The same by skill that was unloaded in this turn, for what the operator holds until the user's next message."""

    recent: set[str] = field(default_factory=set)
    sent: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def open_checks(self, name: str) -> list[str]:
        """Return what is open of a loaded skill."""
        return [c["called"] for c in CHECKS[name] or () if c["called"] not in self.proven[name]]

    def missing(self) -> dict[str, list[str]]:
        """Return what is open of the skills that were loaded in this turn."""
        return {name: found for name in sorted(self.recent) if (found := self.open_checks(name))}

    def held(self, name: str, proven: set[str]) -> set[str]:
        """Return the tools that a skill holds while this is proven."""
        given: list[Any] = CHECKS[name] or []
        return {
            one
            for check in given
            if check["called"] not in proven
            for one in ([check["before"]] if isinstance(check.get("before"), str) else check.get("before", []))
        }

    def unload(self, names: set[str]) -> None:
        """Take skills out of use; what the operator holds stays."""
        for name in names:
            proven = self.proven.pop(name, None)
            if self.is_operators and proven is not None:
                self.lingering[name] = proven
            self.recent.discard(name)

    def read_calls(self, asked: AIMessage, answers: dict[str, ToolMessage]) -> None:
        """Go over one message with calls and its answers."""
        before = {name: set(proven) for name, proven in {**self.lingering, **self.proven}.items()}
        loading: dict[str, set[str]] = {}
        gone: set[str] = set()
        for call in asked.tool_calls:
            answer = answers[str(call["id"])]
            name, args = call["name"], call["args"]
            if name == "load_skill":
                if "<skill_content" in str(answer.text):
                    loading[args["skill_name"]] = set()
                    self.counts["loads"] += 1
            elif name == "unload_skill":
                gone |= {args["skill_name"]} if answer.status != "error" else set()
            elif "rejected" not in answer.text:
                held = {one for skill in before for one in self.held(skill, before[skill])}
                held |= {one for skill in loading for one in self.held(skill, set())}
                refused = "was not run" in answer.text
                assert refused == (name in held), (name, held, answer.text)
                self.counts["held" if refused else "ran"] += 1
        self.unload(gone - loading.keys())
        for skill in loading:
            self.proven.pop(skill, None)
            self.lingering.pop(skill, None)
        ran = {call["name"] for call in asked.tool_calls if answers[str(call["id"])].text.endswith(" ran")}
        for watched in (self.proven, self.lingering):
            for skill in before.keys() & watched.keys():
                watched[skill] |= ran
        self.proven |= loading
        self.recent |= set(loading)

    def read_turn(self, messages: Sequence[AnyMessage], unchecked: list[tuple[str, list[str]]]) -> None:
        """Go over the messages of one turn, and the events that said what it left open."""
        self.recent, self.sent, self.lingering = set(), 0, {}
        given = list(messages)
        while given:
            message = given.pop(0)
            if isinstance(message, AIMessage) and message.tool_calls:
                ids = {str(call["id"]) for call in message.tool_calls}
                answers: dict[str, ToolMessage] = {}
                while given and isinstance(given[0], ToolMessage):
                    answer = given.pop(0)
                    assert isinstance(answer, ToolMessage)
                    answers[answer.tool_call_id] = answer
                assert answers.keys() == ids
                self.read_calls(message, answers)
            elif isinstance(message, AIMessage):
                is_back = message.additional_kwargs.get("lc_source") == "deepskills"
                missing = self.missing()
                assert is_back == (bool(missing) and self.sent < RETRIES), (missing, self.sent, message.text)
                if is_back:
                    self.sent += 1
                    self.counts["sent back"] += 1
                    text = given.pop(0).text
                    for skill, labels in missing.items():
                        assert f'"{skill}"' in text
                        assert all(f"`{label}`" in text for label in labels)
                else:
                    assert not given
                    assert sorted(unchecked) == sorted(
                        (skill, [f"called: {label}" for label in labels]) for skill, labels in missing.items()
                    )
                    self.counts["unproven" if missing else "done"] += 1
        self.counts["turns"] += 1


def random_calls(chance: random.Random) -> AIMessage:
    """Return one message with one to four calls, in any order, sensible or not."""
    made: list[tuple[str, dict[str, Any]]] = []
    for _ in range(chance.choice([1, 1, 1, 2, 3, 4])):
        kind = chance.choice(["load", "load", "act", "act", "act", "act", "unload"])
        if kind == "load":
            arguments = chance.choice([{}, {}, {"arguments": str(chance.randrange(2))}])
            made.append(("load_skill", {"skill_name": chance.choice(list(CHECKS)), **arguments}))
        elif kind == "unload":
            made.append(("unload_skill", {"skill_name": chance.choice(list(CHECKS))}))
        else:
            name = chance.choice(["test", "lint", "lint", "fragile", "deploy", "publish"])
            made.append((name, {"fails": chance.random() < (0.5 if name == "fragile" else 0.2)}))
    # Beside a held call, what might free it.
    if chance.random() < 0.2:
        name = chance.choice(["alpha", "beta"])
        made += [(chance.choice(["unload_skill", "load_skill"]), {"skill_name": name}), ("deploy", {"fails": False})]
    # Two loads or unloads of one skill in a message: `test_parallel_calls.py` has them.
    seen: set[str] = set()
    kept = [
        call
        for call in made
        if "skill_name" not in call[1] or not (call[1]["skill_name"] in seen or seen.add(call[1]["skill_name"]))  # type: ignore[func-returns-value]
    ]
    return call_tools(*kept, text=chance.choice(["", "I have run `test` and `lint`: all green."]))


class Walk:
    """One thread with random scripts, over several processes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.root, self.saver = root, InMemorySaver()
        self.events: list[UsageEvent] = []
        self.config: Any = {"configurable": {"thread_id": str(seed)}, "recursion_limit": 200}
        self.oracle = Oracle(is_operators=bool(seed % 2))
        self.checks = {name: given or [] for name, given in CHECKS.items()} if seed % 2 else None

    def start_process(self) -> None:
        """Make the agent again, with nothing in memory."""
        self.usage = SkillUsage(self.events.append)
        skills: Any = SkillsMiddleware(
            backend=disk(self.root),
            sources=["/skills"],
            extensions=[SkillChecks(self.checks, retries=RETRIES), self.usage],
        )
        human = HumanInTheLoopMiddleware(interrupt_on={"lint": True})
        self.model = ScriptedChatModel(replies=[])
        self.agent = create_agent(self.model, tools=TOOLS, middleware=[human, skills], checkpointer=self.saver)

    def go(self, given: Any) -> dict[str, Any]:
        """Run on, sync or async."""

        def reply(_messages: Any) -> AIMessage:
            is_over = self.left <= 0 or self.chance.random() < 0.25
            self.left -= 1
            return AIMessage("All done, all checks passed.") if is_over else random_calls(self.chance)

        self.model.replies = reply
        return run(self.chance.choice(MODES), self.agent, given, self.config)

    def take_turn(self) -> None:
        """One message of the user's, until the turn has ended, with a human in between."""
        self.left = 12
        self.start_process()
        known = len(self.agent.get_state(self.config).values.get("messages", ()))
        heard = len(self.events)
        result = self.go({"messages": [HumanMessage(self.chance.choice(["go", "go on"]))]})
        while result.get("__interrupt__"):
            self.oracle.counts["interrupts"] += 1
            asked = result["__interrupt__"][0].value["action_requests"]
            decisions = [{"type": self.chance.choice(["approve", "approve", "reject"])} for _ in asked]
            if self.chance.random() < 0.5:
                self.start_process()
            result = self.go(Command(resume={"decisions": decisions}))
        self.usage.flush()
        unchecked = [
            (event.skill, list(event.details["checks"]))
            for event in self.events[heard:]
            if event.type == "skill.unchecked"
        ]
        self.oracle.read_turn(result["messages"][known:], unchecked)


def test_random_models_prove_nothing_falsely_and_are_never_sent_back_in_vain(tmp_path: Path) -> None:
    """No false "done", no complete run sent back, no loop, for any behaviour of the model."""
    for name, checks in CHECKS.items():
        fields: dict[str, Any] = {} if checks is None else {"checks": checks}
        write_files(tmp_path, {f"skills/{name}/SKILL.md": skill_md(name, **fields)})
    total: Counter[str] = Counter()
    for seed in range(WALKS):
        walk = Walk(tmp_path, seed)
        for _ in range(3):
            walk.take_turn()
        total += walk.oracle.counts
    print(dict(total))  # noqa: T201 - shown with `-s`
    # The walk went everywhere.
    assert min(total[kind] for kind in ("done", "unproven", "sent back", "held", "ran", "interrupts")) >= WALKS // 4
