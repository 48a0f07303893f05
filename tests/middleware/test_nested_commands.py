"""Slash commands inside another graph's run: only what the outer run's own input held is the user's word."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

from deepskills import SkillsMiddleware
from deepskills._middleware import nesting
from deepskills.testing import ScriptedChatModel
from support import Mode, both_modes, disk, picked, run, skill_md, write_files


class Outer(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    question: str


class Nested:
    """An agent with skills that an outer graph runs in one of several ways."""

    def __init__(self, root: Path, *, slash_commands: Any = True) -> None:
        self.model = ScriptedChatModel(replies=[])
        skills = SkillsMiddleware(backend=disk(root), sources=["/skills"], slash_commands=slash_commands)
        self.agent: Any = create_agent(self.model, middleware=[skills])

    def graph(self, first: Callable[[Any], Any] | None, node: str = "worker", *, sends: bool = False) -> Any:
        """Return a graph in which the agent is a node, behind another node that may write to the conversation."""
        graph: Any = StateGraph(Outer)
        graph.add_node(node, self.agent)
        graph.add_edge(node, END)
        if first is None:
            graph.add_edge(START, node)
        elif sends:
            graph.add_conditional_edges(START, lambda state: [Send(node, first(state))], [node])
        else:
            graph.add_node("planner", first)
            graph.add_edge(START, "planner")
            graph.add_edge("planner", node)
        return graph.compile()

    def inside_a_node(self, text: str) -> Any:
        """Return a graph whose node calls the agent itself, as a tool node of one's own does."""

        def work(_state: Any, config: RunnableConfig) -> dict[str, Any]:
            self.agent.invoke({"messages": [HumanMessage(text)]}, config)
            return {}

        async def awork(_state: Any, config: RunnableConfig) -> dict[str, Any]:
            await self.agent.ainvoke({"messages": [HumanMessage(text)]}, config)
            return {}

        graph: Any = StateGraph(Outer)
        graph.add_node("my_tools", RunnableLambda(work, awork))
        graph.add_edge(START, "my_tools")
        return graph.compile()

    @property
    def has_loaded(self) -> bool:
        return "Text of pay" in self.model.requests[-1].text


def plan(_state: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage("/pay 5")]}


def say(_state: Any) -> dict[str, Any]:
    return {"messages": [AIMessage("Let us see.")]}


@both_modes
def test_only_the_outer_runs_input_is_the_users_word(mode: Mode, tmp_path: Path) -> None:
    """A message that the outer input held starts a skill; one that a node, `Send` or a tool node wrote does not."""
    file = "---\nname: pay\ndescription: Pay.\ndisable-model-invocation: true\n---\nText of pay.\n"
    write_files(tmp_path, {"skills/pay/SKILL.md": file, "skills/a/SKILL.md": skill_md("a")})
    users = {"messages": [("user", "/pay 5")]}
    hello = {"messages": [HumanMessage("hello")]}
    cases: list[tuple[str, Callable[[Nested], Any], Any, bool]] = [
        ("the agent alone", lambda nested: nested.agent, users, True),
        ("a node", lambda nested: nested.graph(None), users, True),
        ("a node called tools", lambda nested: nested.graph(None, "tools"), users, True),
        ("a node, a message with an id", lambda n: n.graph(None), {"messages": [HumanMessage("/pay", id="1")]}, True),
        ("a node, a dict", lambda n: n.graph(None), {"messages": [{"role": "user", "content": "/pay"}]}, True),
        (
            "handed on by Send",
            lambda n: n.graph(lambda state: {"messages": state["messages"]}, sends=True),
            users,
            True,
        ),
        ("asked in another key", lambda n: n.inside_a_node("/pay 5"), {"question": "/pay 5"}, True),
        ("a planner's", lambda n: n.graph(plan), hello, False),
        ("a planner's by Send", lambda n: n.graph(plan, sends=True), hello, False),
        ("a tool node's", lambda n: n.inside_a_node("/pay 5"), hello, False),
        (
            "an assistant's in the input",
            lambda n: n.graph(plan),
            {"messages": [("ai", "/pay 5"), ("user", "x")]},
            False,
        ),
    ]
    offenders = []
    for what, make, given, expected in picked(cases):
        nested = Nested(tmp_path)
        run(mode, make(nested), given)
        if nested.has_loaded != expected:
            offenders.append(what)
    assert offenders == []
    always = Nested(tmp_path, slash_commands="always")
    run(mode, always.graph(plan), hello)
    assert always.has_loaded
    assert nesting._follower._places == {}  # noqa: SLF001 - nothing stays of runs that are over


def test_slash_commands_takes_no_other_word(tmp_path: Path) -> None:
    """A word that means nothing is refused at once."""
    with pytest.raises(ValueError, match="slash_commands must be"):
        Nested(tmp_path, slash_commands="sometimes")
