"""The scripted model that users test their agents with."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from deepskills.testing import Reply, ReplyFunction, ScriptedChatModel, call_tools
from support import Mode, both_modes, run


@tool
def double(number: int) -> int:
    """Double a number."""
    return number * 2


def talk(mode: Mode, replies: list[Reply] | ReplyFunction, **options: Any) -> Any:
    """Return the texts of a run, and the model that spoke in it."""
    model = ScriptedChatModel(replies=replies, **options)
    agent = create_agent(model, [double])
    asked = {"messages": [HumanMessage("21")]}
    return [message.text for message in run(mode, agent, asked)["messages"]], model


@both_modes
def test_a_function_answers_every_call(mode: Mode) -> None:
    """It sees the messages of each call, and may answer with a message or a text; the fallback is never said."""

    def answer(messages: list[BaseMessage]) -> AIMessage | str:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            return f"It is {last.text}."
        return call_tools(("double", {"number": int(last.text)}))

    texts, model = talk(mode, answer)
    assert texts == ["21", "", "42", "It is 42."]
    assert len(model.requests) == 2
    texts, _ = talk(mode, answer)
    assert texts[-1] == "It is 42."


@both_modes
def test_a_script_is_said_in_order_and_then_the_fallback(mode: Mode) -> None:
    """Messages, texts and functions, one per call; past the end the model says the fallback."""
    calls = [call_tools(("double", {"number": number})) for number in (1, 2)]
    texts, model = talk(mode, [calls[0], lambda _messages: calls[1]], fallback="The end.")
    assert texts == ["21", "", "2", "", "4", "The end."]
    assert [request.tools for request in model.requests] == [["double"]] * 3
