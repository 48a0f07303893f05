"""A drop-in: ours stands where deepagents' class stands, and where there is no deepagents at all."""

import asyncio
import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend, StateBackend
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime

from deepskills import SKILLS_SYSTEM_PROMPT, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    Conversation,
    Mode,
    both_modes,
    disk,
    hand_written_graph,
    load,
    loaded_in,
    run,
    skill_md,
    state_files,
    tool_messages,
    unload,
    write_files,
)

CONFIG: RunnableConfig = {"configurable": {"thread_id": "drop-in"}}
FILES = {"/skills/alpha/SKILL.md": skill_md("alpha"), "/skills/beta/SKILL.md": skill_md("beta")}
GIVEN = {"messages": [HumanMessage("go")], "files": state_files(FILES)}
HEADING = SKILLS_SYSTEM_PROMPT.split("\n", 1)[0]


class HouseSkills(SkillsMiddleware):
    """A user's own class, as one writes to set a house style."""


def make(kind: type[SkillsMiddleware] = SkillsMiddleware, **options: Any) -> SkillsMiddleware:
    return kind(backend=StateBackend(), sources=["/skills"], **options)


def delegate(agent: str) -> tuple[str, dict[str, Any]]:
    return "task", {"description": "Do it.", "subagent_type": agent}


# --- create_deep_agent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SkillsMiddleware, HouseSkills], ids=["ours", "subclass"])
def test_a_deep_agent_has_our_skills_once(mode: Mode, kind: type[SkillsMiddleware]) -> None:
    """Passed as middleware, ours is the one skills section there is, a subclass too."""
    model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[make(kind)], checkpointer=InMemorySaver())

    result = run(mode, agent, GIVEN, CONFIG)

    assert tool_messages(result)[0].status == "success"
    for request in model.requests:
        assert request.system.count(HEADING) == 1
        assert request.system.count("**alpha**") == 1
        assert "Progressive Disclosure" not in request.system
        assert request.tools.count("load_skill") == 1
        assert request.tools.count("unload_skill") == 1
    assert loaded_in(model.requests[-1].system) == ["alpha"]


@pytest.mark.parametrize("kind", [SkillsMiddleware, HouseSkills], ids=["ours", "subclass"])
def test_the_general_purpose_sub_agent_has_our_skills_once(mode: Mode, kind: type[SkillsMiddleware]) -> None:
    """The general-purpose sub-agent gets the section and the tools without being told to."""
    model = ScriptedChatModel(replies=[call_tools(delegate("general-purpose")), call_tools(load("beta")), "Helped."])
    agent = create_deep_agent(model, backend=StateBackend(), middleware=[make(kind)])

    result = run(mode, agent, GIVEN)

    first, second = model.requests[1:3]
    assert "task" not in first.tools
    assert first.tools.count("load_skill") == 1
    assert first.tools.count("unload_skill") == 1
    assert first.system.count(HEADING) == 1
    assert loaded_in(second.system) == ["beta"]
    assert tool_messages(result)[-1].text == "Helped."


@both_modes
def test_a_declared_sub_agent_has_ours_in_its_own_middleware(mode: Mode) -> None:
    """A declared sub-agent with ours in its `middleware` has skills, also where its parent has none."""
    sub = ScriptedChatModel(replies=[call_tools(load("alpha")), "Helped."])
    model = ScriptedChatModel(replies=[call_tools(delegate("helper"))])
    spec: Any = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "You help.",
        "model": sub,
        "middleware": [make()],
    }
    agent = create_deep_agent(model, backend=StateBackend(), subagents=[spec])

    run(mode, agent, GIVEN)

    assert "load_skill" not in model.requests[0].tools
    assert sub.requests[0].system.count(HEADING) == 1
    assert loaded_in(sub.requests[1].system) == ["alpha"]


def test_the_name_is_that_of_the_slot() -> None:
    """Ours, and any subclass, goes by the name of deepagents' class and is one."""
    for middleware in (make(), make(HouseSkills)):
        assert middleware.name == "SkillsMiddleware"
        assert isinstance(middleware, DeepAgentsSkillsMiddleware)


@pytest.mark.parametrize("build", [create_agent, create_deep_agent], ids=["create_agent", "create_deep_agent"])
def test_schemas_and_drawings_can_be_made(build: Callable[..., Any]) -> None:
    """An agent with skills can tell its schemas and be drawn; private keys are not part of input and output."""
    agent = build(ScriptedChatModel(replies=[]), middleware=[make()])

    taken = agent.get_input_jsonschema()["properties"]
    given = agent.get_output_jsonschema()["properties"]
    agent.get_context_jsonschema()

    assert "messages" in taken
    assert "skills_metadata" in taken
    private = {"skills_loaded", "skill_resources", "skills_context", "skills_problems", "skills_load_errors"}
    assert private.isdisjoint(taken)
    assert private.isdisjoint(given)
    assert "SkillsMiddleware" in agent.get_graph().draw_mermaid()


# --- nothing else of deepagents ----------------------------------------------------------------------------------


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "real-paths"])
def test_a_plain_agent_needs_nothing_else_of_deepagents(mode: Mode, tmp_path: Path, *, virtual: bool) -> None:
    """With `create_agent` and a file system, skills are found, loaded and unloaded by ours alone."""
    write_files(tmp_path, FILES)
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=virtual)
    source = "/skills" if virtual else str(tmp_path / "skills")
    conversation = Conversation(mode, SkillsMiddleware(backend=backend, sources=[source]))

    answers = conversation.say(*(call_tools(call) for call in (load("alpha"), load("beta"), unload("alpha"))))

    assert [answer.status for answer in answers] == ["success"] * 3
    assert sorted(conversation.model.requests[0].tools) == ["load_skill", "unload_skill"]
    assert conversation.loaded == ["beta"]
    assert loaded_in(conversation.model.requests[-1].system) == ["beta"]


@both_modes
def test_without_a_section_the_tools_still_work(mode: Mode, tmp_path: Path) -> None:
    """`system_prompt=None` leaves the system prompt alone and keeps the tools."""
    write_files(tmp_path, FILES)
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], system_prompt=None)
    conversation = Conversation(mode, middleware)

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "success"
    assert [request.system for request in conversation.model.requests] == ["", ""]


# --- a graph of one's own ----------------------------------------------------------------------------------------


@both_modes
def test_a_hand_written_graph(mode: Mode, tmp_path: Path) -> None:
    """Discovery as a node, the section in a prompt and the tools in a `ToolNode` make a graph with skills."""
    write_files(tmp_path, FILES)
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"])
    model = ScriptedChatModel(replies=[call_tools(load("alpha"), load("beta")), call_tools(unload("alpha"))])
    graph = hand_written_graph(model, middleware, InMemorySaver())

    run(mode, graph, "go", CONFIG)

    assert [loaded_in(request.system) for request in model.requests] == [[], ["alpha", "beta"], ["beta"]]
    state = graph.get_state(CONFIG).values
    assert state["skills_loaded"] == ["beta"]
    assert list(state["skill_resources"]) == ["beta"]
    run(mode, graph, "again", CONFIG)
    assert loaded_in(model.requests[-1].system) == ["beta"]


@both_modes
def test_discovery_can_be_called_by_hand(mode: Mode, tmp_path: Path) -> None:
    """On a new thread the hook gives the catalog and says that nothing is loaded; on a known one it has no news."""
    write_files(tmp_path, FILES)
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"])

    def discover(state: Any) -> Any:
        if mode == "sync":
            return middleware.before_agent(state, Runtime())
        return asyncio.run(middleware.abefore_agent(state, Runtime()))

    update = discover({"messages": []})

    assert [skill["name"] for skill in update["skills_metadata"]] == ["alpha", "beta"]
    assert update["skills_loaded"] == []
    assert update["skill_resources"] == {}
    assert middleware.skills_section(update).startswith(HEADING)
    assert discover({"messages": [], **update}) is None


# --- what deepagents' class takes --------------------------------------------------------------------------------


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_every_argument_of_deepagents_class_is_taken() -> None:
    """All that deepagents' constructor takes ours takes too, of the same kind; the rest has defaults."""
    theirs, ours = parameters(DeepAgentsSkillsMiddleware.__init__), parameters(SkillsMiddleware.__init__)

    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        # Without paths among the sources ours needs no backend.
        is_required = parameter.default is parameter.empty and name != "backend"
        assert (ours[name].default is parameter.empty) == is_required, name
    further = [parameter for name, parameter in ours.items() if name not in theirs]
    assert all(parameter.default is not parameter.empty for parameter in further)


KNOWN_HOOKS = {
    "before_agent",
    "abefore_agent",
    "before_model",
    "abefore_model",
    "modify_request",
    "wrap_model_call",
    "awrap_model_call",
    "wrap_tool_call",
    "awrap_tool_call",
}


def public_functions(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}


def test_no_hook_of_deepagents_class_is_unknown() -> None:
    """When deepagents' class gains or loses a public function, somebody has to look at it."""
    assert public_functions(DeepAgentsSkillsMiddleware) == KNOWN_HOOKS


@pytest.mark.parametrize("hook", sorted(KNOWN_HOOKS))
def test_every_hook_of_deepagents_class_is_ours(hook: str) -> None:
    """Each public function of deepagents' class has its counterpart in ours and can be called in the same way."""
    assert hook in vars(SkillsMiddleware)
    theirs = parameters(getattr(DeepAgentsSkillsMiddleware, hook))
    ours = parameters(getattr(SkillsMiddleware, hook))
    assert list(ours)[: len(theirs)] == list(theirs)
    assert inspect.iscoroutinefunction(getattr(SkillsMiddleware, hook)) == hook.startswith("a")
    assert all(parameter.default is not parameter.empty for name, parameter in ours.items() if name not in theirs)


@pytest.mark.parametrize("sources", [[], ["/a/"], ["/a", ("/b/skills", "Mine")], ("/a", "/b"), ["relative/skills"]])
def test_sources_and_labels_are_those_of_deepagents_class(sources: Any) -> None:
    """`sources` and `source_labels` are the lists that deepagents' class has."""
    ours = SkillsMiddleware(backend=StateBackend(), sources=sources)
    theirs: DeepAgentsSkillsMiddleware[Any, Any] = DeepAgentsSkillsMiddleware(backend=StateBackend(), sources=sources)

    assert ours.sources == theirs.sources
    assert ours.source_labels == theirs.source_labels
    assert ours.system_prompt_template == SKILLS_SYSTEM_PROMPT


def test_sources_given_as_a_function_leave_empty_lists() -> None:
    """Where sources are known only in a run, the lists are there and empty."""
    middleware = SkillsMiddleware(backend=StateBackend(), sources=lambda _runtime: ["/skills"])

    assert middleware.sources == []
    assert middleware.source_labels == []


@tool
def stamp() -> str:
    """Stamp a form."""
    return "Stamped."


TEMPLATE = "{skills_locations}{skills_load_warnings}{skills_list}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sources": [("/a",)]}, TypeError),
        ({"sources": [("/a", "b", "c")]}, TypeError),
        ({"sources": [("/a", 5)]}, TypeError),
        ({"sources": [(5, "a")]}, TypeError),
        ({"system_prompt": 5}, TypeError),
        ({"system_prompt": "No slots."}, ValueError),
        ({"system_prompt": "{skills_load_warnings}{skills_list}"}, ValueError),
        ({"tools": stamp}, TypeError),
        ({"tools": [{"type": "web_search"}]}, TypeError),
        ({"tools": 5}, TypeError),
        ({"tools": [stamp, stamp]}, ValueError),
    ],
)
def test_what_deepagents_class_refuses_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Arguments that raise in deepagents' constructor raise the same kind of error in ours."""
    given: dict[str, Any] = {"backend": StateBackend(), "sources": ["/skills"], **arguments}

    with pytest.raises(error):
        DeepAgentsSkillsMiddleware(**given)
    with pytest.raises(error):
        SkillsMiddleware(**given)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"refresh": "always"}, ValueError, "refresh.*'thread'.*'run'.*'always'"),
        ({"refresh": None}, ValueError, "refresh"),
        ({"loaded_status": "nowhere"}, ValueError, "loaded_status.*'conversation'.*'nowhere'"),
        ({"max_loaded_skills": -1}, ValueError, "max_loaded_skills.*-1"),
        ({"max_loaded_skills": 1.5}, ValueError, "max_loaded_skills.*1.5"),
        ({"max_loaded_skills": None}, ValueError, "max_loaded_skills"),
        ({"max_loaded_tokens": -1}, ValueError, "max_loaded_tokens.*-1"),
        ({"max_depth": 0}, ValueError, "max_depth.*0"),
        ({"resource_depth": -1}, ValueError, "resource_depth.*-1"),
        ({"backend_timeout": 0}, ValueError, "backend_timeout.*0"),
        ({"backend_timeout": -2.5}, ValueError, "backend_timeout.*-2.5"),
        ({"system_prompt": TEMPLATE + "{mine}"}, ValueError, "mine"),
        ({"system_prompt": TEMPLATE + "{"}, ValueError, "brace"),
        ({"sources": "/skills"}, TypeError, "/skills"),
        ({"sources": [5]}, TypeError, "5"),
        ({"backend": None}, TypeError, "backend"),
        ({"backend": "/skills"}, TypeError, "backend"),
    ],
)
def test_values_that_no_argument_has_are_refused(arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    """A value that an argument cannot have fails in the constructor, with the argument's name and the value."""
    given: dict[str, Any] = {"backend": StateBackend(), "sources": ["/skills"], **arguments}

    with pytest.raises(error, match=told):
        SkillsMiddleware(**given)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_loaded_skills": 0},
        {"max_loaded_tokens": 0},
        {"max_loaded_tokens": None},
        {"backend_timeout": 0.5},
        {"refresh": "run", "loaded_status": "conversation", "strict": True},
        {"tools": [stamp]},
        {"tools": lambda _name, _runtime: []},
        {"tools": None},
        {"backend": lambda _runtime: StateBackend()},
        {"sources": []},
    ],
)
def test_values_at_the_border_are_taken(arguments: dict[str, Any]) -> None:
    """Zero slots, no limit, a resolver for tools, functions of the runtime: all fine."""
    SkillsMiddleware(**{"backend": StateBackend(), "sources": ["/skills"], **arguments})


# --- copies ------------------------------------------------------------------------------------------------------


@both_modes
def test_a_deep_copy_of_a_configuration_has_the_same_middleware(mode: Mode, tmp_path: Path) -> None:
    """An instance serves any number of agents at once, so a copy of what holds it loads skills like the original."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    spec = {"middleware": [HouseSkills(backend=disk(tmp_path), sources=["/skills"])]}
    for [middleware] in (spec["middleware"], copy.deepcopy(spec)["middleware"]):
        conversation = Conversation(mode, middleware)
        conversation.call(load("alpha"))
        assert conversation.loaded == ["alpha"]
