"""`before_end`: an extension sends the model back when it would end its turn, and lets the answer stand in the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import hook_config
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from deepskills import SendBack, SkillEvent, SkillExtension, SkillRun, SkillSentBack, SkillsMiddleware, SkillsState
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, stream, write_files


class Insists(SkillExtension):
    """Sends the model back a number of times, and counts ends of runs."""

    def __init__(self, times: int = 1, text: str = "Not yet.", name: str = "insists") -> None:
        self.name = name  # type: ignore[misc]
        self.times, self.text = times, text
        self.asked = self.ended = 0
        self.heard: list[SkillEvent] = []

    def before_end(self, run: SkillRun) -> SendBack | None:
        """Send it back as long as there is a time left."""
        self.asked += 1
        count = run.memory.get("count", 0)
        if count >= self.times:
            return None
        run.remember("count", count + 1)
        return SendBack(self.text)

    def at_end(self, run: SkillRun) -> None:  # noqa: ARG002 - the seam's signature
        """Count."""
        self.ended += 1

    def on_event(self, event: SkillEvent, runtime: Any) -> None:  # noqa: ARG002 - the seam's signature
        """Hear."""
        self.heard.append(event)


class InsistsAsync(Insists):
    """The same, `async def`."""

    async def before_end(self, run: SkillRun) -> SendBack | None:  # type: ignore[override]
        """Send it back as long as there is a time left."""
        await asyncio.sleep(0)
        return super().before_end(run)


def skills(root: Path, *extensions: SkillExtension) -> SkillsMiddleware:
    """Return middleware over one skill."""
    write_files(root, {"skills/alpha/SKILL.md": skill_md("alpha")})
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=extensions)


def spoken(messages: list[Any]) -> list[tuple[str, str, bool]]:
    """Return kind, text and whether a message is marked as ours."""
    return [(m.type, str(m.text), m.additional_kwargs.get("lc_source") == "deepskills") for m in messages]


@both_modes
@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
@pytest.mark.parametrize("kind", [Insists, InsistsAsync])
def test_the_model_is_sent_back_with_one_message(mode: Mode, make: Any, kind: Any, tmp_path: Path) -> None:
    """The premature answer stays, one message of ours follows, streams hear of it, and the run ends once."""
    insists = kind(2)
    replies = [call_tools(load("alpha")), "Early.", "Still early.", "Done."]
    agent = make(
        ScriptedChatModel(replies=replies), middleware=[skills(tmp_path, insists)], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    events = stream(mode, agent, "go", config)
    messages = agent.get_state(config).values["messages"]
    assert spoken(messages)[3:] == [
        ("ai", "Early.", True),
        ("human", "Not yet.", True),
        ("ai", "Still early.", True),
        ("human", "Not yet.", True),
        ("ai", "Done.", False),
    ]
    assert (insists.asked, insists.ended) == (3, 1)
    sent = [event for event in events if event["type"] == "skill.sent_back"]
    assert [(event["extensions"], event["count"]) for event in sent] == [(["insists"], 1), (["insists"], 2)]
    assert [event.as_dict() for event in insists.heard if isinstance(event, SkillSentBack)] == sent
    assert run(mode, agent, "again", config)["messages"][-1].text != ""
    assert insists.ended == 2


@both_modes
def test_several_extensions_send_one_message(mode: Mode, tmp_path: Path) -> None:
    """What they say is one message, and no text of it passes for a block of ours."""
    one, two = Insists(text="First.", name="one"), Insists(text="Second. <skill_content>", name="two")
    agent = create_agent(ScriptedChatModel(replies=["Early.", "Done."]), middleware=[skills(tmp_path, one, two)])
    messages = run(mode, agent)["messages"]
    assert [m.type for m in messages] == ["human", "ai", "human", "ai"]
    assert messages[2].text.startswith("First.\n\nSecond. ")
    assert "<skill_content>" not in messages[2].text


@both_modes
def test_a_turn_ends_whatever_an_extension_wants(mode: Mode, tmp_path: Path) -> None:
    """After 25 times the answer stands, with a problem; the next turn counts anew."""
    insists = Insists(10_000)
    model = ScriptedChatModel(replies=["Early."] * 100)
    agent = create_agent(model, middleware=[skills(tmp_path, insists)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}, "recursion_limit": 1_000}
    for turn in (1, 2):
        run(mode, agent, "go", config)
        assert (len(model.requests), insists.asked, insists.ended) == (26 * turn, 26 * turn, turn)
    codes = [found["code"] for found in agent.get_state(config).values["skills_problems"]]
    assert codes == ["sent-back-too-often"]


class Stops(AgentMiddleware[Any, Any]):
    """Ends the run after the model has answered."""

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        """End it."""
        return {"jump_to": "end"}


class Answers(AgentMiddleware[Any, Any]):
    """Answers in the model's place."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        """Answer."""
        return AIMessage("Mine.")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        """Answer."""
        return AIMessage("Mine.")


@both_modes
def test_what_another_middleware_ended_or_answered_is_not_asked_about(mode: Mode, tmp_path: Path) -> None:
    """Neither `jump_to="end"` nor an answer that the model never gave is sent back."""
    for middleware in (
        [skills(tmp_path, stopped := Insists()), Stops()],
        [Answers(), skills(tmp_path, other := Insists())],
    ):
        messages = run(mode, create_agent(ScriptedChatModel(replies=["Early."]), middleware=middleware))["messages"]
        assert len(messages) == 2
    assert (stopped.asked, other.asked) == (0, 0)


class Redacts(AgentMiddleware[Any, Any]):
    """Replaces each answer."""

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        """Replace it."""
        return {"messages": [state["messages"][-1].model_copy(update={"content": "[redacted]"})]}


@both_modes
def test_a_guard_behind_it_sees_each_answer(mode: Mode, tmp_path: Path) -> None:
    """Also one that is sent back, which stays in the conversation as the guard left it."""
    agent = create_agent(
        ScriptedChatModel(replies=["Secret.", "Done."]), middleware=[skills(tmp_path, Insists()), Redacts()]
    )
    assert spoken(run(mode, agent)["messages"])[1:] == [
        ("ai", "[redacted]", True),
        ("human", "Not yet.", True),
        ("ai", "[redacted]", False),
    ]


class Report(BaseModel):
    """A structured answer."""

    total: int


@both_modes
def test_a_structured_response_is_an_answer(mode: Mode, tmp_path: Path) -> None:
    """It is sent back like a text, and the last one is the result."""
    replies = [call_tools(("Report", {"total": 1})), call_tools(("Report", {"total": 2}))]
    insists = Insists()
    agent = create_agent(
        ScriptedChatModel(replies=replies), middleware=[skills(tmp_path, insists)], response_format=ToolStrategy(Report)
    )
    result = run(mode, agent)
    assert result["structured_response"] == Report(total=2)
    assert (insists.asked, insists.ended) == (2, 1)


@both_modes
def test_a_failure_lets_the_turn_end(mode: Mode, tmp_path: Path) -> None:
    """An extension that raises, or gives nonsense, is a problem and holds no turn."""

    class Fails(SkillExtension):
        def before_end(self, run: SkillRun) -> SendBack | None:  # noqa: ARG002 - the seam's signature
            raise RuntimeError("no idea")

    class Nonsense(SkillExtension):
        def before_end(self, run: SkillRun) -> Any:  # noqa: ARG002 - the seam's signature
            return "go back"

    for extension in (Fails(), Nonsense()):
        agent = create_agent(
            ScriptedChatModel(replies=["Done."]), middleware=[skills(tmp_path, extension)], checkpointer=InMemorySaver()
        )
        config: Any = {"configurable": {"thread_id": "one"}}
        assert len(run(mode, agent, "go", config)["messages"]) == 2
        [found] = agent.get_state(config).values["skills_problems"]
        assert (found["code"], "before_end" in found["message"]) == ("extension-failed", True)


@both_modes
def test_a_graph_of_ones_own_asks_itself(mode: Mode, tmp_path: Path) -> None:
    """`send_back` tells whether to call the model again, and what to write."""
    insists = Insists()
    middleware = skills(tmp_path, insists)
    model = ScriptedChatModel(replies=["Early.", "Done."])

    def call_model(state: SkillsState, runtime: Any) -> dict[str, Any]:
        messages, update = middleware.model_messages(state, runtime)
        return {**update, "messages": [model.invoke(messages)]}

    def ask(state: SkillsState, runtime: Any) -> Any:
        if mode == "sync":
            again, update = middleware.send_back(state, runtime)
        else:
            again, update = asyncio.run(middleware.asend_back(state, runtime))
        return {**update, "again": again}

    class State(SkillsState):
        again: bool

    graph: Any = StateGraph(State)
    graph.add_node("discover", middleware.before_agent)
    graph.add_node("model", call_model)
    graph.add_node("ask", ask)
    graph.add_edge(START, "discover")
    graph.add_edge("discover", "model")
    graph.add_edge("model", "ask")
    graph.add_conditional_edges("ask", lambda state: "model" if state["again"] else END)
    messages = graph.compile().invoke({"messages": [HumanMessage("go")]})["messages"]
    assert [m.type for m in messages] == ["human", "ai", "human", "ai"]
    assert spoken(messages)[1:3] == [("ai", "Early.", True), ("human", "Not yet.", True)]
    assert insists.asked == 2


def test_an_agent_without_it_has_no_further_step(tmp_path: Path) -> None:
    """The hook costs a step of the graph, so only agents with such an extension have it."""
    plain = create_agent(ScriptedChatModel(replies=[]), middleware=[skills(tmp_path, SkillExtension())])
    asking = create_agent(ScriptedChatModel(replies=[]), middleware=[skills(tmp_path, Insists())])
    assert not any("after_model" in name for name in plain.get_graph().nodes)
    assert any("after_model" in name for name in asking.get_graph().nodes)
