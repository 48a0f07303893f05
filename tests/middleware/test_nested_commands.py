"""Slash commands where an agent runs by itself, and inside another graph's run, where messages may be a model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, hand_written_graph, picked, run, write_files

COMMAND = {"messages": [("user", "/pay 5")]}
HELLO = {"messages": [("user", "hello")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "outer"}}


class Outer(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


class Nested:
    """An agent with skills, to be run by itself or in one of several ways by another graph."""

    def __init__(self, root: Path, *, slash_commands: Any = True) -> None:
        self.model = ScriptedChatModel(replies=[])
        self.skills: Any = SkillsMiddleware(backend=disk(root), sources=["/skills"], slash_commands=slash_commands)

    @property
    def agent(self) -> Any:
        return create_agent(self.model, middleware=[self.skills])

    @property
    def saved(self) -> Any:
        return create_agent(self.model, middleware=[self.skills], checkpointer=InMemorySaver())

    def deep(self) -> Any:
        return create_deep_agent(self.model, middleware=[self.skills])

    def own_graph(self) -> Any:
        return hand_written_graph(self.model, self.skills)

    def node(self) -> Any:
        """Return a graph that has the agent as a node."""
        return _graph(self.agent)

    def inside_a_node(self) -> Any:
        """Return a graph whose node calls the agent."""
        return _graph(_call(self.agent))

    def with_a_thread_of_its_own(self) -> Any:
        """Return a graph whose node calls the agent on a thread that the outer graph does not have."""
        return _graph(_call(self.saved, {"configurable": {"thread_id": "inner"}}), InMemorySaver())

    def inside_a_tool(self) -> Any:
        """Return an agent without skills, one of whose tools calls the agent."""
        return create_agent(ScriptedChatModel(replies=[call_tools(("ask", {}))]), tools=[_tool(self.agent)])

    def inside_a_tool_of_ours(self) -> Any:
        """Return an agent with skills, one of whose tools calls the agent on a thread of its own."""
        outer = ScriptedChatModel(replies=[call_tools(("ask", {}))])
        tool = _tool(self.saved, {"configurable": {"thread_id": "inner"}})
        return create_agent(outer, tools=[tool], middleware=[self.skills])

    def sub_agent(self) -> Any:
        """Return a deep agent without skills whose declared sub-agent has them."""
        task = call_tools(("task", {"description": "/pay 5", "subagent_type": "clerk"}))
        clerk = {"name": "clerk", "description": "Pays.", "system_prompt": "Pay.", "model": self.model}
        clerk["middleware"] = [self.skills]
        return create_deep_agent(ScriptedChatModel(replies=[task]), subagents=[clerk])  # type: ignore[list-item]

    def sub_agent_with_a_thread_of_its_own(self) -> Any:
        """Return a deep agent without skills whose compiled sub-agent has them, and a fixed thread."""
        task = call_tools(("task", {"description": "/pay 5", "subagent_type": "clerk"}))
        runnable = self.saved.with_config({"configurable": {"thread_id": "inner"}})
        clerk = {"name": "clerk", "description": "Pays.", "runnable": runnable}
        return create_deep_agent(ScriptedChatModel(replies=[task]), subagents=[clerk])  # type: ignore[list-item]

    def general_purpose(self) -> Any:
        """Return a deep agent with skills whose sub-agent gets them by that."""
        task = call_tools(("task", {"description": "/pay 5", "subagent_type": "general-purpose"}))
        # One model for both: its first reply is the parent's.
        self.model.replies = [task]
        return create_deep_agent(self.model, middleware=[self.skills])

    @property
    def has_loaded(self) -> bool:
        return any("Text of pay" in request.text for request in self.model.requests)


def _graph(node: Any, checkpointer: Any = None) -> Any:
    graph: Any = StateGraph(Outer)
    graph.add_node("worker", node)
    graph.add_edge(START, "worker")
    return graph.compile(checkpointer=checkpointer)


def _call(agent: Any, own: RunnableConfig | None = None) -> Any:
    def work(_state: Any) -> dict[str, Any]:
        agent.invoke(COMMAND, own)
        return {}

    async def awork(_state: Any, config: RunnableConfig) -> dict[str, Any]:
        # Passed on by hand, as Python 3.10 needed it in async code; many still do.
        await agent.ainvoke(COMMAND, own or config)
        return {}

    return RunnableLambda(work, awork)


def _tool(agent: Any, config: RunnableConfig | None = None) -> BaseTool:
    def ask() -> str:
        agent.invoke(COMMAND, config)
        return "done"

    async def aask() -> str:
        await agent.ainvoke(COMMAND, config)
        return "done"

    return StructuredTool.from_function(ask, aask, name="ask", description="Ask.")


CASES: list[tuple[str, Callable[[Nested], Any], Any, bool]] = [
    ("create_agent", lambda nested: nested.agent, COMMAND, True),
    ("create_agent on a thread", lambda nested: nested.saved, COMMAND, True),
    ("create_deep_agent", Nested.deep, COMMAND, True),
    ("a graph of one's own", Nested.own_graph, COMMAND, True),
    ("behind a runnable", lambda nested: RunnableLambda(lambda given: given) | nested.agent, COMMAND, True),
    ("a node", Nested.node, COMMAND, False),
    ("inside a node", Nested.inside_a_node, HELLO, False),
    ("inside a node, with a thread of its own", Nested.with_a_thread_of_its_own, HELLO, False),
    ("a graph of one's own as a node", lambda nested: _graph(nested.own_graph()), COMMAND, False),
    ("inside a tool", Nested.inside_a_tool, HELLO, False),
    ("inside a tool of an agent with skills", Nested.inside_a_tool_of_ours, HELLO, False),
    ("a sub-agent with a thread of its own", Nested.sub_agent_with_a_thread_of_its_own, HELLO, False),
    ("a declared sub-agent", Nested.sub_agent, HELLO, False),
    ("the general-purpose sub-agent", Nested.general_purpose, HELLO, False),
]


ON_A_THREAD = {"create_agent on a thread", "inside a node, with a thread of its own"}


@pytest.fixture
def library(tmp_path: Path) -> Path:
    file = "---\nname: pay\ndescription: Pay.\ndisable-model-invocation: true\n---\nText of pay.\n"
    write_files(tmp_path, {"skills/pay/SKILL.md": file})
    return tmp_path


@both_modes
def test_only_an_agent_that_runs_by_itself_takes_commands(mode: Mode, library: Path) -> None:
    """A command starts a skill in an agent that runs by itself, and in no other unless the application says so."""
    offenders = []
    for what, make, given, expected in picked(CASES):
        for slash_commands in (True, "always"):
            nested = Nested(library, slash_commands=slash_commands)
            run(mode, make(nested), given, THREAD if what in ON_A_THREAD else None)
            if nested.has_loaded != (expected or slash_commands == "always"):
                offenders.append((what, slash_commands))
    assert offenders == []


@both_modes
def test_a_command_holds_over_an_interrupt(mode: Mode, library: Path) -> None:
    """A run that stops before its first model call starts the skill when it is resumed; a nested one still does not."""

    class Stops(SkillsMiddleware):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            interrupt("wait")
            return super().before_model(state, runtime)

        async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            interrupt("wait")
            return await super().abefore_model(state, runtime)

    for is_nested in (False, True):
        model = ScriptedChatModel(replies=[])
        skills: Any = Stops(backend=disk(library), sources=["/skills"], slash_commands=True)
        agent: Any = create_agent(model, middleware=[skills], checkpointer=None if is_nested else InMemorySaver())
        graph = _graph(agent, InMemorySaver()) if is_nested else agent
        run(mode, graph, COMMAND, THREAD)
        assert model.requests == []
        run(mode, graph, Command(resume="go"), THREAD)
        assert ("Text of pay" in model.requests[-1].text) is not is_nested


def test_no_callback_follows_the_runs_of_the_process(library: Path) -> None:
    """An agent with slash commands registers nothing with LangChain: other runs of the process are not its business."""
    from langchain_core.callbacks import CallbackManager  # noqa: PLC0415 - of this test alone

    Nested(library)
    handlers = CallbackManager.configure().handlers
    assert [handler for handler in handlers if type(handler).__module__.startswith("deepskills")] == []


def test_slash_commands_takes_no_other_word(library: Path) -> None:
    """A word that means nothing is refused at once."""
    with pytest.raises(ValueError, match="slash_commands must be"):
        Nested(library, slash_commands="sometimes")
