"""Sub-agents: each has its own loaded skills, a fork knows what it inherits, and nothing private crosses over."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware, SkillsState
from deepskills.testing import Request, ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, loaded_in, picked, pin_skills, run, skill_md, unload, write_files

pytestmark = pytest.mark.filterwarnings("ignore:The feature `forked subagents` is in beta")

NAMES = ("alpha", "beta", "gamma")
OWN_KEYS = frozenset(SkillsState.__annotations__) - frozenset(AgentState.__annotations__)
"""What skills keep in state."""

PRIVATE_KEYS = OWN_KEYS - {"skills_metadata", "pinned_skills"}
PARENT = "You are in charge."
PING = ("ping", {"text": "1"})


@tool
def ping(text: str) -> str:
    """Answer a ping."""
    return f"pong {text}"


class Watched(SkillsMiddleware[Any, Any]):
    """Our middleware, subclassed to look at the state that each agent starts with and calls its model with."""

    def __init__(self, root: Path, source: str = "/skills", **options: Any) -> None:
        super().__init__(backend=disk(root), sources=[source], tools=[ping], **options)
        self.starts: list[dict[str, Any]] = []
        self.calls: list[tuple[list[BaseMessage], dict[str, Any]]] = []

    def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
        self.starts.append(dict(state))
        return super().before_agent(state, runtime, config)

    async def abefore_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
        self.starts.append(dict(state))
        return await super().abefore_agent(state, runtime, config)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        self.calls.append((list(request.messages), dict(request.state)))
        return super().wrap_model_call(request, handler)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        self.calls.append((list(request.messages), dict(request.state)))
        return await super().awrap_model_call(request, handler)

    def loaded(self, task: str) -> list[list[str]]:
        """Return what was loaded at each model call for a task."""
        return [list(state["skills_loaded"]) for messages, state in self.calls if task_of(messages, [task]) == task]


def task_of(messages: Sequence[BaseMessage], tasks: Sequence[str]) -> str | None:
    """Return the task that a conversation is about: the one that was given last."""
    given = [message.text for message in messages if isinstance(message, HumanMessage)]
    return next((task for text in reversed(given) for task in tasks if text.endswith(task)), None)


class Script:
    """Replies by task, so that agents which share a model, or run side by side, each follow their own."""

    def __init__(self, **replies: Sequence[AIMessage]) -> None:
        self.model = ScriptedChatModel(replies=[self] * 100)
        self.replies: dict[str, Sequence[AIMessage]] = dict(replies)

    def says(self, task: str, replies: Sequence[AIMessage]) -> None:
        """Set what is said on a task."""
        self.replies[task] = replies

    def __call__(self, messages: list[BaseMessage]) -> AIMessage:
        task = task_of(messages, list(self.replies))
        assert task is not None
        last = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage) and m.text.endswith(task))
        said = sum(isinstance(message, AIMessage) for message in messages[last:])
        replies = self.replies[task]
        return replies[said] if said < len(replies) else AIMessage(f"{task} done")

    def requests(self, task: str) -> list[Request]:
        """Return what the model was sent for a task."""
        return [request for request in self.model.requests if task_of(request.messages, list(self.replies)) == task]


def delegate(task: str, to: str = "general-purpose") -> tuple[str, dict[str, Any]]:
    """Return a call that gives a sub-agent a task."""
    return "task", {"description": task, "subagent_type": to}


def library(root: Path, source: str = "skills", names: Sequence[str] = NAMES) -> None:
    """Write skills, of which `alpha` has a tool."""
    for name in names:
        fields: dict[str, Any] = {"metadata": {"include_tools": "ping"}} if name == "alpha" else {}
        write_files(root, {f"{source}/{name}/SKILL.md": skill_md(name, **fields)})


class Team:
    """A deep agent with sub-agents, on one thread."""

    def __init__(
        self,
        mode: Mode,
        root: Path,
        script: Script,
        *middleware: AgentMiddleware[Any, Any],
        subagents: Sequence[Any] = (),
    ) -> None:
        self.mode = mode
        self.agent: Any = create_deep_agent(
            model=script.model,
            system_prompt=PARENT,
            middleware=list(middleware),
            subagents=list(subagents),
            tools=[pin_skills],
            backend=disk(root),
            checkpointer=InMemorySaver(),
        )
        self.config = {"configurable": {"thread_id": "team"}}
        self.result: dict[str, Any] = {}

    def give(self, task: str, **given: Any) -> dict[str, Any]:
        """Give the parent a task, and return the state it leaves."""
        self.result = run(self.mode, self.agent, {"messages": [HumanMessage(task)], **given}, self.config)
        values: dict[str, Any] = self.agent.get_state(self.config).values
        return values


def spec(kind: str, script: Script, skills: SkillsMiddleware[Any, Any]) -> dict[str, Any]:
    """Return a sub-agent named `helper` of one of the kinds that have our middleware."""
    base = {"name": "helper", "description": "Helps."}
    if kind == "declared":
        return {**base, "system_prompt": "Help.", "middleware": [skills]}
    if kind == "fork":
        return {**base, "mode": "fork"}
    agent = create_agent(script.model, middleware=[skills], name="helper")
    return {**base, "runnable": agent, **({"mode": "fork"} if kind == "compiled-fork" else {})}


ISOLATED = ("general-purpose", "declared", "compiled")
FORKED = ("fork", "compiled-fork")
EACH_KIND = pytest.mark.parametrize("kind", [*ISOLATED, *FORKED])


def team(mode: Mode, root: Path, kind: str, script: Script) -> tuple[Team, Watched, str]:
    """Return a team, the middleware that parent and child share, and the child's name."""
    skills = Watched(root)
    subagents = [] if kind == "general-purpose" else [spec(kind, script, skills)]
    return Team(mode, root, script, skills, subagents=subagents), skills, "helper" if subagents else kind


def times_shown(request: Request, name: str) -> int:
    """Return how often the instructions of a skill stand in a request."""
    return request.text.count(f"Instructions of {name}.")


def answers(request: Request) -> list[str]:
    """Return what tools have answered by a request, in order."""
    return [message.text for message in request.messages if isinstance(message, ToolMessage)]


def own_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a state holds about skills."""
    return {key: state[key] for key in OWN_KEYS if key in state}


# --- each keeps its own ------------------------------------------------------------------------------------------


@EACH_KIND
def test_the_slot_is_taken_once_in_parent_and_child(mode: Mode, tmp_path: Path, kind: str) -> None:
    """A subclass of ours serves parent and child: one section, one pair of tools, nothing of deepagents' own."""
    library(tmp_path)
    script = Script(Lead=[call_tools(delegate("Chore", "general-purpose" if kind == "general-purpose" else "helper"))])
    script.says("Chore", [])
    crew, _skills, _child = team(mode, tmp_path, kind, script)

    crew.give("Lead")

    for request in [*script.requests("Lead"), *script.requests("Chore")]:
        assert request.system.count("**Available skills:**") == 1
        assert "Skills System" not in request.system
        assert request.tools.count("load_skill") == request.tools.count("unload_skill") == 1


@pytest.mark.parametrize("kind", ISOLATED)
def test_an_isolated_child_starts_with_nothing_loaded(mode: Mode, tmp_path: Path, kind: str) -> None:
    """What the parent has loaded is neither loaded nor visible in the child, which can load it for itself."""
    library(tmp_path)
    script = Script(Chore=[call_tools(load("alpha"), load("beta"))])
    crew, skills, child = team(mode, tmp_path, kind, script)
    script.says("Lead", [call_tools(load("alpha")), call_tools(delegate("Chore", child))])

    state = crew.give("Lead")

    first, second = script.requests("Chore")
    assert [times_shown(first, name) for name in NAMES] == [0, 0, 0]
    assert [times_shown(second, name) for name in NAMES] == [1, 1, 0]
    assert (loaded_in(first.system), loaded_in(second.system)) == ([], ["alpha", "beta"])
    assert skills.loaded("Chore") == [[], ["alpha", "beta"]]
    assert state["skills_loaded"] == ["alpha"]
    assert times_shown(script.requests("Lead")[-1], "beta") == 0


@EACH_KIND
def test_a_child_leaves_the_parents_skills_as_they_are(mode: Mode, tmp_path: Path, kind: str) -> None:
    """What the child loads and unloads changes nothing in the parent's state, result and texts."""
    library(tmp_path)
    busy = [call_tools(load("beta")), call_tools(load("alpha")), call_tools(unload("alpha")), call_tools(load("gamma"))]
    script = Script(Chore=busy, Before=[call_tools(load("alpha"))])
    crew, _skills, child = team(mode, tmp_path, kind, script)
    script.says("Lead", [call_tools(delegate("Chore", child))])

    before = crew.give("Before")
    after = crew.give("Lead")

    assert len(script.requests("Chore")) == len(busy) + 1
    assert own_part(after) == own_part(before)
    assert OWN_KEYS & crew.result.keys() == set()
    last = script.requests("Lead")[-1]
    assert [times_shown(last, name) for name in NAMES] == [1, 0, 0]
    assert loaded_in(last.system) == ["alpha"]
    assert answers(last)[-1] == "Chore done"


@EACH_KIND
def test_nothing_private_reaches_the_child(mode: Mode, tmp_path: Path, kind: str) -> None:
    """The child starts without the parent's loaded set, records, problems and pending pins."""
    library(tmp_path)
    script = Script(Chore=[])
    crew, skills, child = team(mode, tmp_path, kind, script)
    together = call_tools(delegate("Chore", child), ("pin_skills", {"names": ["gamma"]}))
    script.says("Lead", [call_tools(load("alpha"), PING), together])

    state = crew.give("Lead", pinned_skills=["beta", "nope"])

    _parent, start = skills.starts
    assert {key for key in PRIVATE_KEYS if start.get(key)} == set()
    assert not start.get("pinned_skills")
    assert times_shown(script.requests("Chore")[0], "gamma") == 0
    assert state["skills_loaded"] == ["beta", "alpha", "gamma"]


@both_modes
def test_a_declared_child_has_its_own_catalog(mode: Mode, tmp_path: Path) -> None:
    """With another instance in its `middleware` the child has other skills, and the parent keeps its catalog."""
    library(tmp_path)
    library(tmp_path, "special", ["delta"])
    special = Watched(tmp_path, "/special")
    script = Script(
        Chore=[call_tools(load("delta"), load("alpha"))], Lead=[call_tools(delegate("Chore", "helper"), load("alpha"))]
    )
    crew = Team(mode, tmp_path, script, Watched(tmp_path), subagents=[spec("declared", script, special)])

    state = crew.give("Lead")

    assert [skill["name"] for skill in state["skills_metadata"]] == list(NAMES)
    assert state["skills_loaded"] == ["alpha"]
    last = script.requests("Chore")[-1]
    assert times_shown(last, "delta") == 1
    assert answers(last)[1].startswith("Error: There is no skill named 'alpha'.")


@both_modes
def test_a_declared_child_without_our_middleware_has_no_skills(mode: Mode, tmp_path: Path) -> None:
    """Skills come to a declared sub-agent by its own `middleware` alone."""
    library(tmp_path)
    helper = {"name": "helper", "description": "Helps.", "system_prompt": "Help."}
    script = Script(Chore=[], Lead=[call_tools(delegate("Chore", "helper"))])

    Team(mode, tmp_path, script, Watched(tmp_path), subagents=[helper]).give("Lead")

    [request] = script.requests("Chore")
    assert "load_skill" not in request.tools
    assert "alpha" not in request.system


@pytest.mark.parametrize("kind", ["declared", "compiled"])
def test_a_child_may_have_skills_where_the_parent_has_none(mode: Mode, tmp_path: Path, kind: str) -> None:
    """Two such children side by side give the parent their answers and no state."""
    library(tmp_path)
    script = Script(
        First=[call_tools(load("alpha"))],
        Second=[call_tools(load("beta"))],
        Lead=[call_tools(delegate("First", "helper"), delegate("Second", "helper"))],
    )
    crew = Team(mode, tmp_path, script, subagents=[spec(kind, script, Watched(tmp_path))])

    state = crew.give("Lead")

    assert answers(script.requests("Lead")[-1]) == ["First done", "Second done"]
    assert own_part(state) == {}


# --- side by side ------------------------------------------------------------------------------------------------


@EACH_KIND
def test_children_side_by_side_do_not_meet(mode: Mode, tmp_path: Path, kind: str) -> None:
    """Sub-agents of one turn load what they need, and so does the parent in that turn; no update collides."""
    library(tmp_path)
    script = Script(First=[call_tools(load("alpha"))], Second=[call_tools(load("beta")), call_tools(load("gamma"))])
    crew, skills, child = team(mode, tmp_path, kind, script)
    together = call_tools(delegate("First", child), load("gamma"), delegate("Second", child))
    script.says("Lead", [together])

    state = crew.give("Lead")

    first, gamma, second = answers(script.requests("Lead")[-1])
    assert (first, second) == ("First done", "Second done")
    assert "Instructions of gamma." in gamma
    assert state["skills_loaded"] == ["gamma"]
    assert skills.loaded("First") == [[], ["alpha"]]
    assert skills.loaded("Second") == [[], ["beta"], ["beta", "gamma"]]


@both_modes
def test_children_with_different_catalogs_side_by_side_do_not_meet(mode: Mode, tmp_path: Path) -> None:
    """Two declared sub-agents with other sources than the parent's leave its catalog alone."""
    library(tmp_path)
    library(tmp_path, "one", ["delta"])
    library(tmp_path, "two", ["epsilon"])
    script = Script(
        First=[call_tools(load("delta"))],
        Second=[call_tools(load("epsilon"))],
        Lead=[call_tools(delegate("First", "one"), delegate("Second", "two"))],
    )
    helpers = [{**spec("declared", script, Watched(tmp_path, f"/{name}")), "name": name} for name in ("one", "two")]

    state = Team(mode, tmp_path, script, Watched(tmp_path), subagents=helpers).give("Lead")

    assert answers(script.requests("Lead")[-1]) == ["First done", "Second done"]
    assert [skill["name"] for skill in state["skills_metadata"]] == list(NAMES)
    assert state["skills_loaded"] == []


# --- forks -------------------------------------------------------------------------------------------------------


FORK_HISTORY = [
    call_tools(load("gamma"), load("alpha")),
    call_tools(unload("gamma")),
]
"""What the parent does before it forks; `beta` is pinned besides."""


@pytest.mark.parametrize("kind", FORKED)
def test_a_fork_knows_what_is_loaded_from_the_messages_it_inherits(mode: Mode, tmp_path: Path, kind: str) -> None:
    """Loads and pins of the parent are loaded in the fork, each text once, and what was unloaded stays away."""
    library(tmp_path)
    script = Script(Chore=[call_tools(load("alpha"), load("beta"))], Lead=[])
    crew, skills, child = team(mode, tmp_path, kind, script)
    script.says("Lead", [*FORK_HISTORY, call_tools(delegate("Chore", child))])

    state = crew.give("Lead", pinned_skills=["beta"])

    first, second = script.requests("Chore")
    for request in (first, second):
        assert [times_shown(request, name) for name in NAMES] == [1, 1, 0]
        assert loaded_in(request.system) == ["alpha", "beta"]
    assert skills.loaded("Chore") == [["beta", "alpha"], ["beta", "alpha"]]
    assert all("already loaded" in text for text in answers(second)[-2:])
    assert state["skills_loaded"] == ["beta", "alpha"]


@pytest.mark.parametrize("kind", FORKED)
def test_a_fork_may_unload_what_it_inherited(mode: Mode, tmp_path: Path, kind: str) -> None:
    """The text is gone for the fork, there for the parent, and room in the fork's budget is free."""
    library(tmp_path)
    script = Script(Chore=[call_tools(load("beta")), call_tools(unload("alpha")), call_tools(load("beta"))])
    skills = Watched(tmp_path, max_loaded_skills=1)
    crew = Team(mode, tmp_path, script, skills, subagents=[spec(kind, script, skills)])
    script.says("Lead", [call_tools(load("alpha")), call_tools(delegate("Chore", "helper"))])

    state = crew.give("Lead")

    last = script.requests("Chore")[-1]
    refused, _unloaded, granted = answers(last)[-3:]
    assert refused.startswith("Error: ")
    assert "alpha" in refused
    assert "Instructions of beta." in granted
    assert [times_shown(last, name) for name in NAMES] == [0, 1, 0]
    assert state["skills_loaded"] == ["alpha"]
    assert times_shown(script.requests("Lead")[-1], "alpha") == 1


@pytest.mark.parametrize("kind", FORKED)
def test_a_fork_takes_over_resources(mode: Mode, tmp_path: Path, kind: str) -> None:
    """The fork's prompt tells of the files of what it inherited, as the parent's does."""
    library(tmp_path)
    write_files(tmp_path, {"skills/alpha/scripts/run.py": "print()"})
    script = Script(Chore=[])
    crew, _skills, child = team(mode, tmp_path, kind, script)
    script.says("Lead", [call_tools(load("alpha")), call_tools(delegate("Chore", child))])

    crew.give("Lead")

    for request in (script.requests("Chore")[0], script.requests("Lead")[-1]):
        assert "  -> Resources: 1 script\n" in request.system


# --- tools of skills ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ISOLATED)
def test_a_skills_tool_does_not_follow_into_an_isolated_child(mode: Mode, tmp_path: Path, kind: str) -> None:
    """The child may call the tool after its own load; the parent's use of the skill does not count."""
    library(tmp_path)
    script = Script(Chore=[call_tools(PING), call_tools(load("alpha")), call_tools(PING)])
    crew, _skills, child = team(mode, tmp_path, kind, script)
    lead = [call_tools(load("alpha")), call_tools(delegate("Chore", child)), call_tools(PING)]
    script.says("Lead", lead)

    crew.give("Lead")

    refused, _loaded, ran = answers(script.requests("Chore")[-1])
    assert "ping is not a valid tool" in refused
    assert ran == "pong 1"
    assert ["ping" in request.tools for request in script.requests("Chore")] == [False, False, True, True]
    assert answers(script.requests("Lead")[-1])[-1] == "pong 1"


@pytest.mark.parametrize("kind", ISOLATED)
def test_a_childs_tool_does_not_follow_into_the_parent(mode: Mode, tmp_path: Path, kind: str) -> None:
    """A skill that only the child loaded gives the parent no tool."""
    library(tmp_path)
    script = Script(Chore=[call_tools(load("alpha")), call_tools(PING)])
    crew, _skills, child = team(mode, tmp_path, kind, script)
    script.says("Lead", [call_tools(delegate("Chore", child)), call_tools(PING)])

    crew.give("Lead")

    assert "ping is not a valid tool" in answers(script.requests("Lead")[-1])[-1]


@pytest.mark.parametrize(
    ("kind", "way"), [("fork", "load"), ("fork", "pin"), ("fork", "read"), ("compiled-fork", "load")]
)
def test_a_skills_tool_follows_into_a_fork(mode: Mode, tmp_path: Path, kind: str, way: str) -> None:
    """What is in use by the inherited messages is callable in the fork, until the fork unloads it."""
    library(tmp_path)
    script = Script(Chore=[call_tools(PING), call_tools(unload("alpha")), call_tools(PING)])
    crew, _skills, child = team(mode, tmp_path, kind, script)
    begin = {
        "load": call_tools(load("alpha")),
        "read": call_tools(("read_file", {"file_path": "/skills/alpha/SKILL.md"})),
    }
    lead = [*([begin[way]] if way in begin else []), call_tools(delegate("Chore", child)), call_tools(PING)]
    script.says("Lead", lead)

    crew.give("Lead", pinned_skills=["alpha"] if way == "pin" else [])

    ran, _unloaded, refused = answers(script.requests("Chore")[-1])[-3:]
    assert ran == "pong 1"
    assert "ping is not a valid tool" in refused
    assert answers(script.requests("Lead")[-1])[-1] == "pong 1"


@pytest.mark.parametrize("whose", ["parent", "child"])
def test_a_child_may_begin_with_what_its_parent_has_loaded(mode: Mode, tmp_path: Path, whose: str) -> None:
    """With `"inherit"` every kind of child has the parent's skills, arguments included, within its own budgets."""
    library(tmp_path, names=["alpha", "gamma"])
    write_files(tmp_path, {"skills/beta/SKILL.md": skill_md("beta", body="Instructions of beta. For <$ARGUMENTS>.")})
    offenders = []
    for kind in picked((*ISOLATED, *FORKED)):
        script = Script(Chore=[])
        skills = Watched(tmp_path, subagent_inherit="inherit" if whose == "parent" else "isolated")
        shares = kind == "general-purpose" or kind in FORKED
        own = skills if shares else Watched(tmp_path, max_loaded_skills=2, **INHERIT if whose == "child" else {})
        subagents = [] if kind == "general-purpose" else [spec(kind, script, own)]
        if whose == "child" and shares:
            continue
        child = "helper" if subagents else kind
        crew = Team(mode, tmp_path, script, skills, subagents=subagents)
        beta = ("load_skill", {"skill_name": "beta", "arguments": "Ann"})
        script.says("Lead", [call_tools(beta, load("alpha"), load("gamma")), call_tools(delegate("Chore", child))])

        state = crew.give("Lead")

        [request] = script.requests("Chore")
        expected = [1, 1, 1] if shares else [1, 1, 0]
        if [times_shown(request, name) for name in NAMES] != expected or request.text.count("For <Ann>.") != 1:
            offenders.append((kind, request.text))
        if state["skills_loaded"] != ["beta", "alpha", "gamma"] or "ping" not in request.tools:
            offenders.append((kind, str(state["skills_loaded"])))
        if loaded_in(request.system) != list(NAMES)[: sum(expected)]:
            offenders.append((kind, request.system))
    assert offenders == []


INHERIT = {"subagent_inherit": "inherit"}


def test_subagent_inherit_takes_no_other_word(tmp_path: Path) -> None:
    """A word that means nothing is refused at once."""
    with pytest.raises(ValueError, match="subagent_inherit must be one of 'isolated', 'inherit'"):
        Watched(tmp_path, subagent_inherit="fork")
