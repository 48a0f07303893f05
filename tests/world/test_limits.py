"""Limits hold in any order of events: loads, failures, forged state, edits, restarts, and runs resumed by others."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.extensions import ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    MODES,
    SOAK,
    FakeBackend,
    Mode,
    both_modes,
    fails,
    load,
    loaded_in,
    run,
    scaled,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

USERS = ("ada", "bob")
SLOTS = 4
FIELDS: dict[str, dict[str, Any]] = {
    "guard": {"disallowed_tools": "launch"},
    "owner": {"metadata": {"include_tools": "ping"}},
    "plain": {},
    "secret": {"disable_model_invocation": True, "metadata": {"include_tools": "ping"}},
}
"""The skills that all users share. Of the rest each user has one."""

PLACES = {**{name: f"shared/{name}" for name in FIELDS}, **{f"{user}s": f"{user}/{user}s" for user in USERS}}

NOBODY_READ = {"digest": "0" * 64, "tokens": 1, "arguments": "", "trigger": "user"}
FORGED: list[dict[str, Any]] = [
    {"skills_loaded": ["secret", "ghost"]},
    {"skills_loaded": ["owner", "guard"]},
    {
        "skills_loaded": ["secret"],
        "skills_context": {
            "records": {"secret": {**NOBODY_READ, "path": "/shared/secret/SKILL.md", "source": "/shared"}}
        },
    },
    {
        "skills_loaded": ["adas", "bobs"],
        "skills_context": {
            "records": {
                f"{user}s": {**NOBODY_READ, "path": f"/{user}/{user}s/SKILL.md", "source": f"/{user}"} for user in USERS
            }
        },
    },
    {"skills_context": {"records": {"guard": {**NOBODY_READ, "path": "/shared/guard/SKILL.md"}}}},
    {"skills_context": {"texts": {"m": {"skill": "guard", "state": "undone"}}, "disclosed": {"secret": "0" * 64}}},
    {"skills_context": {"loads": {"secret": {"arguments": "", "trigger": "user"}}, "permits": {"secret": 5}}},
    {"skills_metadata": [{"name": "secret", "path": "/shared/secret/SKILL.md", "description": "x"}]},
    {"skills_catalog": {"entries": []}, "_skill_tools_disclosed": {"ping": "ping"}},
    {"skills_problems": 5, "skill_resources": {"guard": 5}},
]
"""What a caller may write into state. None of it is a lawful unload."""

skills = st.sampled_from([*PLACES, "ghost"])
turns = st.lists(st.tuples(st.sampled_from(["load", "load", "unload"]), skills), max_size=3)
users = st.sampled_from(USERS)


def told(name: str, version: int) -> str:
    """Return the sentence that only this version of a skill holds."""
    return f"Text of {name} in version {version}."


class Limits(RuleBasedStateMachine):
    """One thread that two users share, while files, functions and backends fail and callers lie."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="deepskills-limits-"))
        self.saver = InMemorySaver()
        self.config: RunnableConfig = {"configurable": {"thread_id": "limits"}}
        self.versions = dict.fromkeys(PLACES, 0)
        self.ran: list[str] = []
        self.is_judge_down = False
        self.is_source_down = False
        self.in_use: set[str] = set()
        """Skills whose load was granted, and that were not unloaded lawfully since."""
        for name in PLACES:
            self.write(name)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def write(self, name: str) -> None:
        self.versions[name] += 1
        text = skill_md(name, body=told(name, self.versions[name]) + "\n", **FIELDS.get(name, {}))
        write_files(self.root, {f"{PLACES[name]}/SKILL.md": text})

    @initialize(mode=st.sampled_from(MODES))
    def begin(self, mode: Mode) -> None:
        self.mode = mode
        self.restart()
        self.talk("ada", [])

    @rule()
    def restart(self) -> None:
        """Go on in another process, which has read nothing yet."""
        self.backend = FakeBackend(self.root)
        self.fail_source(down=self.is_source_down)
        self.model = ScriptedChatModel(replies=[])
        middleware = SkillsMiddleware[Any, Any](
            backend=self.backend,
            sources=lambda runtime: ["/shared", f"/{runtime.context['user']}"],
            visibility=self.judge,
            tools=[self.tool("ping")],
            extensions=[ToolPolicy("enforce")],
            max_loaded_skills=SLOTS,
        )
        tools = [self.tool("launch"), self.tool("ask")]
        self.agent: Any = create_agent(self.model, tools=tools, middleware=[middleware], checkpointer=self.saver)

    def judge(self, _skill: Any, _runtime: Any) -> Any:
        if self.is_judge_down:
            raise ConnectionError("the judge is down")
        return "on"

    def tool(self, name: str) -> BaseTool:
        @tool(name, description="Does a thing.")
        def do() -> str:
            if name == "ask":
                interrupt("May I?")
            self.ran.append(name)
            return f"{name} ran"

        return do

    # What happens.

    @rule(user=users, turn=turns)
    def talk(self, user: str, turn: list[tuple[str, str]]) -> None:
        """Let the model load and unload, and then try what is forbidden."""
        self.run_as(user, {"messages": [HumanMessage("go")]}, turn)

    @rule(user=users, other=users, turn=turns, forged=st.sampled_from([{}, *FORGED]), anew=st.booleans())
    def resume(self, user: str, other: str, turn: list[tuple[str, str]], forged: dict[str, Any], anew: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        """Let somebody answer what the model asked in another's run, in this process or in another one."""
        self.run_as(user, {"messages": [HumanMessage("go")]}, turn, asks=True)
        if anew:
            self.restart()
        # Where limits are unknown, `ask` was refused and nobody waits: an update alone would run none of our code.
        if self.agent.get_state(self.config).next:
            self.run_as(other, Command(resume="yes", update=forged), [])

    @rule(forged=st.sampled_from(FORGED), user=users)
    def forge(self, forged: dict[str, Any], user: str) -> None:
        self.agent.update_state(self.config, forged)
        self.run_as(user, {"messages": [HumanMessage("go")]}, [])

    @rule(name=st.sampled_from(list(PLACES)), user=users)
    def edit(self, name: str, user: str) -> None:
        self.write(name)
        self.run_as(user, {"messages": [HumanMessage("go")]}, [])

    @rule(down=st.booleans())
    def fail_judge(self, down: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        self.is_judge_down = down

    @rule(down=st.booleans())
    def fail_source(self, down: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        self.is_source_down = down
        self.backend.rules = {"ls": fails(), "download_files": fails()} if down else {}

    # What must hold.

    def run_as(self, user: str, given: Any, turn: list[tuple[str, str]], *, asks: bool = False) -> None:
        calls = [(load if kind == "load" else unload)(name) for kind, name in turn]
        attempts: list[tuple[str, dict[str, Any]]] = [("launch", {}), ("ping", {})]
        replies = [call_tools(*calls)] if calls else []
        replies.append(call_tools(("ask", {})) if asks else call_tools(*attempts))
        first, answered = len(self.model.requests), self.answered
        self.model.replies = [*["Done."] * first, *replies]
        self.ran.clear()
        before = set(self.in_use)
        result = run(self.mode, self.agent, given, self.config, context={"user": user})
        new = tool_messages(result)[answered:]
        loads = [message for message in new if message.name in {"load_skill", "unload_skill"}]
        for (kind, name), message in zip(turn, loads, strict=False):
            if message.status == "success":
                self.in_use = self.in_use | {name} if kind == "load" else self.in_use - {name}
        self.check_calls(before)
        self.check_requests(user, first)
        self.check_bounds()

    @property
    def answered(self) -> int:
        return len(tool_messages({"messages": self.agent.get_state(self.config).values.get("messages", [])}))

    def check_calls(self, before: set[str]) -> None:
        """Assert that nothing ran that a skill in use forbids, and no skill's own tool without that skill."""
        assert "launch" not in self.ran or "guard" not in self.in_use, (before, self.in_use)
        loaded = self.agent.get_state(self.config).values.get("skills_loaded", [])
        assert "ping" not in self.ran or "owner" in loaded

    def check_requests(self, user: str, first: int) -> None:
        """Assert that requests show what this user may see, and call loaded only what they show."""
        others = [f"{other}s" for other in USERS if other != user]
        for request in self.model.requests[first:]:
            hidden = list(PLACES) if self.is_judge_down else ["secret", *others]
            for name in hidden:
                assert f"Text of {name} " not in request.text, (user, name)
            for name in loaded_in(request.system):
                assert f"Text of {name} " in request.text, (user, name)
            for name, version in self.versions.items():
                assert sum(request.text.count(told(name, old)) for old in range(version + 1)) <= 1, name
                if not self.is_source_down and not self.is_judge_down:
                    old = [known for known in range(version) if told(name, known) in request.text]
                    assert old == [], (name, version)

    def check_bounds(self) -> None:
        """Assert that state grows with the conversation at most."""
        state = self.agent.get_state(self.config).values
        messages = len(state["messages"])
        private = {key: value for key, value in state.items() if key != "messages"}
        assert len(state["skills_loaded"]) <= SLOTS + 1  # names that were forged in wait for the next model call
        assert len(repr(private)) < 40_000 + 400 * messages
        assert len(state["skills_problems"]) < 100


@both_modes
def test_a_text_that_nobody_can_read_lifts_no_limit(mode: Mode) -> None:
    """A record that was spoiled while the source is down costs the text, not the limit; the model's unload ends it."""
    world = Limits()
    world.begin(mode)
    world.talk("ada", [("load", "guard")])
    world.fail_source(down=True)
    world.restart()
    world.forge({"skills_context": {"records": {"guard": {**NOBODY_READ, "path": "/shared/guard/SKILL.md"}}}}, "bob")
    assert world.agent.get_state(world.config).values["skills_loaded"] == ["guard"]
    assert "its text is left out of this request" in world.model.requests[0].text
    # Once the file can be read again, it is known what the skill forbids, and nothing else is refused.
    world.fail_source(down=False)
    world.write("guard")
    world.talk("ada", [])
    assert "launch" not in world.ran
    assert "forbids it" in tool_messages(world.agent.get_state(world.config).values)[-2].text
    world.talk("ada", [("unload", "guard")])
    assert world.in_use == set()
    assert world.ran == ["launch"]
    assert world.agent.get_state(world.config).values["skills_context"].get("records", {}) == {}
    world.teardown()


@both_modes
def test_problems_of_the_wrong_shape_are_replaced(mode: Mode) -> None:
    """What somebody wrote over the problems in the middle of a run is set aside by the end of it."""
    world = Limits()
    world.begin(mode)
    world.fail_judge(down=True)
    world.talk("ada", [])
    world.resume("ada", "ada", [], {"skills_problems": 5}, anew=False)
    [*problems] = world.agent.get_state(world.config).values["skills_problems"]
    assert "state-malformed" in {found["code"] for found in problems}
    world.teardown()


@both_modes
def test_no_text_is_shown_that_no_judge_was_asked_about(mode: Mode) -> None:
    """A skill that is missing from the catalog, because its source and the catalog in state are gone, stays hidden."""
    world = Limits()
    world.begin(mode)
    world.talk("ada", [("load", "guard")])
    world.fail_source(down=True)
    world.fail_judge(down=True)
    world.restart()
    world.talk("ada", [])
    world.resume("bob", "bob", [], {"skills_catalog": {"entries": []}}, anew=True)
    world.talk("ada", [])
    assert world.model.requests != []
    world.teardown()


def test_limits_hold_in_any_order() -> None:
    """After every step: no forbidden call ran, no hidden text was sent, and nothing grew beyond its bounds."""
    run_state_machine_as_test(
        Limits,
        settings=settings(
            max_examples=scaled(8, 300),
            stateful_step_count=scaled(12, 40),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate, Phase.shrink] if SOAK else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
