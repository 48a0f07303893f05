"""Texts that others change, texts that cannot be recovered, and texts for which there is no room: who is told what."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, PIIMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware, SkillsState
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    Conversation,
    FakeBackend,
    Mode,
    both_modes,
    disk,
    fails,
    load,
    loaded_in,
    run,
    skill_md,
    skills,
    stream,
    unload,
    without_origin,
    write_files,
)

SECRET = "ada@example.com"
COMPACTED = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("go on")]}


def library(root: Path, *names: str, body: str = "", **files: str) -> None:
    for name in names:
        write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=body or f"Text of {name}.\n" + "x" * 400)})
    write_files(root, {f"skills/{path}": text for path, text in files.items()})


class Events:
    """Talks to an agent and gives the events of its stream."""

    def __init__(self, mode: Mode, *middleware: Any, model: ScriptedChatModel | None = None) -> None:
        self.mode = mode
        self.talk = Conversation(mode, *middleware)
        self.model = model or self.talk.model
        if model is not None:
            self.talk.model = model
            self.talk.agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())

    def say(self, *replies: Any, given: Any = "go") -> list[dict[str, Any]]:
        """Run the agent with these replies and return the events."""
        called = len(self.model.requests)
        self.model.replies = [*([self.model.fallback] * called), *replies]
        value = {"messages": [HumanMessage(given)]} if isinstance(given, str) else given
        return stream(self.mode, self.talk.agent, value, self.talk.config)


# Texts that others changed.


class Redacts(AgentMiddleware[Any, Any]):
    """Hides an address in requests, as people write it for themselves."""

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return handler(request.override(messages=list(map(hide, request.messages))))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return await handler(request.override(messages=list(map(hide, request.messages))))


def hide(message: AnyMessage) -> AnyMessage:
    if not isinstance(message.content, str):
        return message
    return message.model_copy(update={"content": message.content.replace(SECRET, "[hidden]")})


@pytest.mark.parametrize("kind", ["pii", "own"])
def test_what_others_hide_stays_hidden(mode: Mode, kind: str, tmp_path: Path) -> None:
    """A text in which other middleware hides personal data goes out as it left it, also when it is put back later."""
    library(tmp_path, "alpha", body=f"Write to {SECRET} first. " + "More. " * 50)
    redaction: Any = PIIMiddleware("email", apply_to_tool_results=True) if kind == "pii" else Redacts()
    talk = Conversation(mode, redaction, skills(tmp_path))
    talk.call(load("alpha"))
    assert "Write to" in talk.model.requests[-1].text
    talk.say(given=COMPACTED)
    assert "Write to" in talk.model.requests[-1].text
    assert [SECRET in request.text for request in talk.model.requests] == [False] * 3


class Cuts(Redacts):
    """Cuts the answers of tools in requests."""

    def __init__(self, cut: Callable[[str], str]) -> None:
        super().__init__()
        self._cut = cut

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return handler(request.override(messages=list(map(self._shortened, request.messages))))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return await handler(request.override(messages=list(map(self._shortened, request.messages))))

    def _shortened(self, message: AnyMessage) -> AnyMessage:
        return message.model_copy(update={"content": self._cut(message.text)}) if message.type == "tool" else message


@both_modes
def test_a_text_that_others_cut_stays_as_they_left_it(mode: Mode, tmp_path: Path) -> None:
    """However much of a text others take out, that is their intent: it stands, also when the text is put back later."""
    cuts: dict[str, Callable[[str], str]] = {
        "the beginning is left": lambda text: text[:900],
        "the middle is missing": lambda text: f"{text[: len(text) // 3]}\n...\n{text[-len(text) // 3 :]}",
        "a line is left": lambda text: text[:80],
    }
    library(tmp_path, "alpha", body="".join(f"Rule {number}.\n" for number in range(300)))
    for what, cut in cuts.items():
        talk = Conversation(mode, Cuts(cut), skills(tmp_path))
        [answer] = talk.call(load("alpha"))
        left = cut(answer.text)
        talk.say(given=COMPACTED)
        assert "Rule 150." in answer.text
        assert [left in request.text for request in talk.model.requests[1:]] == [True, True], what
        assert not any("Rule 150." in request.text for request in talk.model.requests), what


@both_modes
def test_what_others_hid_does_not_come_back_from_the_file(mode: Mode, tmp_path: Path) -> None:
    """A text that was changed by others and then lost is given up in a process that never saw it changed."""
    library(tmp_path, "alpha", body=f"Write to {SECRET} first.\n" * 30)
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "hidden"}}
    for given, replies in (("go", [call_tools(load("alpha"))]), ("go", []), (COMPACTED, [])):
        model = ScriptedChatModel(replies=replies)
        redaction: Any = PIIMiddleware("email", apply_to_tool_results=True)
        agent: Any = create_agent(model, middleware=[redaction, skills(tmp_path)], checkpointer=saver)
        run(mode, agent, given, config)
        assert not any(SECRET in request.text for request in model.requests)
    assert agent.get_state(config).values["skills_loaded"] == []


class KeepsLastQuestion(Redacts):
    """Sends the last question alone, as middleware that shortens requests and not the history does."""

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return handler(request.override(messages=request.messages[-1:]))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Any:
        return await handler(request.override(messages=request.messages[-1:]))


@both_modes
def test_what_was_hidden_in_requests_does_not_come_back_from_the_history(mode: Mode, tmp_path: Path) -> None:
    """A text that was hidden in requests alone is given up, not put back from state, in a process that never saw it."""
    library(tmp_path, "alpha", body=f"Write to {SECRET} first.\n" * 30)
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "requests"}}
    for shortens in (False, True):
        model = ScriptedChatModel(replies=[] if shortens else [call_tools(load("alpha"))])
        others = [Redacts(), *([KeepsLastQuestion()] if shortens else [])]
        agent: Any = create_agent(model, middleware=[*others, skills(tmp_path)], checkpointer=saver)
        run(mode, agent, "go", config)
        assert not any(SECRET in request.text for request in model.requests)
    assert agent.get_state(config).values["skills_loaded"] == []


# Texts that cannot be recovered.


@both_modes
def test_a_text_that_cannot_be_recovered_is_told_to_all(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Model, log, stream and prompt agree that a skill was unloaded because its text could not be recovered."""
    library(tmp_path, "alpha")
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "lost"}}
    for down in (False, True):
        backend = FakeBackend(tmp_path)
        model = ScriptedChatModel(replies=[] if down else [call_tools(load("alpha"))])
        middleware = SkillsMiddleware(backend=backend, sources=["/skills"])
        agent: Any = create_agent(model, middleware=[middleware], checkpointer=saver)
        backend.rules = {"download_files": fails("the disk is away")} if down else {}
        if not down:
            run(mode, agent, "go", config)
            continue
        with caplog.at_level(logging.ERROR, "deepskills"):
            events = stream(mode, agent, COMPACTED, config)
    [event] = without_origin(events)
    assert (event["type"], event["skill"]) == ("skill.unloaded", "alpha")
    assert "OSError: the disk is away" in event["reason"]
    assert (events[0]["source"], events[0]["trigger"]) == ("/skills", "system")
    assert [record.getMessage() for record in caplog.records if "the disk is away" in record.getMessage()] != []
    assert "[Loaded]" not in model.requests[-1].system
    assert "The text of the skill 'alpha' was lost" in model.requests[-1].text
    assert agent.get_state(config).values["skills_loaded"] == []


@both_modes
def test_a_loaded_skill_whose_file_is_away_is_logged(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading a loaded skill whose file cannot be read says so to the model and in the log."""
    library(tmp_path, "alpha")
    talk = Conversation(mode, skills(tmp_path))
    talk.call(load("alpha"))
    shutil.rmtree(tmp_path / "skills")
    with caplog.at_level(logging.ERROR, "deepskills"):
        (answer,) = talk.call(load("alpha"))
    assert "could not be checked" in answer.text
    assert len([record for record in caplog.records if "'alpha'" in record.getMessage()]) == 1


# Texts for which there is no room.


@both_modes
def test_no_room_is_no_dead_end(mode: Mode, tmp_path: Path) -> None:
    """Where more is pinned than there is room for, the model is told what helps, and doing it helps."""
    library(tmp_path, "alpha", "beta")
    talk = Conversation(mode, skills(tmp_path, max_loaded_tokens=250))
    talk.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["alpha", "beta"]})
    talk.say(given=COMPACTED)
    assert "Text of alpha." not in talk.model.requests[-1].text
    assert "no room" in talk.model.requests[-1].text
    (answer,) = talk.call(load("alpha"))
    assert "Unload what is no longer needed" in answer.text
    talk.call(unload("beta"))
    assert "Text of alpha." in talk.model.requests[-1].text


class SmallWindow(ScriptedChatModel):
    """Refuses requests that hold a certain text."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        if self.refuses and any("Text of alpha." in message.text for message in messages):
            raise ContextOverflowError("too long")
        return super()._generate(messages, *args, **kwargs)

    refuses: bool = False


@both_modes
def test_what_did_not_go_out_is_not_told_as_put_back(mode: Mode, tmp_path: Path) -> None:
    """A text that the model had no room for is `skill.left_out`, once, and not tried again in a request as large."""
    library(tmp_path, "alpha")
    model = SmallWindow(replies=[])
    chat = Events(mode, skills(tmp_path), model=model)
    chat.say(call_tools(load("alpha")))
    model.refuses = True
    assert [event["type"] for event in chat.say(given=COMPACTED)] == ["skill.left_out"]
    assert chat.say(call_tools(load("alpha"))) == []
    answers = [message.text for message in chat.talk.state["messages"] if message.type == "tool"]
    assert "more is loaded than there is room for" in answers[-1]
    model.refuses = False
    assert chat.say() == []
    chat.say(call_tools(unload("alpha")), call_tools(load("alpha")))
    assert "Text of alpha." in model.requests[-1].text
    chat.say(call_tools(load("alpha")))
    answers = [message.text for message in chat.talk.state["messages"] if message.type == "tool"]
    assert "its instructions are in this conversation" in answers[-1]


class RoomForTwo(ScriptedChatModel):
    """Refuses requests that hold the texts of more than two skills, once there is `no_room`."""

    no_room: bool = False
    refused: int = 0

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        if self.no_room and "".join(str(message.text) for message in messages).count("Text of ") > 2:
            self.refused += 1
            raise ContextOverflowError("too long")
        return super()._generate(messages, *args, **kwargs)


@both_modes
def test_what_fits_is_put_back_the_newest_first(mode: Mode, tmp_path: Path) -> None:
    """After one refusal no request is as large again; what is left out is one event a loss and not marked as loaded."""
    library(tmp_path, "alpha", "beta", "gamma")
    model = RoomForTwo(replies=[])
    chat = Events(mode, skills(tmp_path), model=model)
    chat.say(call_tools(load("alpha"), load("beta"), load("gamma")))
    model.no_room = True
    events = chat.say(given=COMPACTED)
    assert [(event["type"], event["skill"]) for event in events] == [
        ("skill.left_out", name) for name in ("alpha", "beta", "gamma")
    ]
    for _ in range(3):
        assert "skill.left_out" not in [event["type"] for event in chat.say()]
        request = model.requests[-1]
        assert "Text of gamma." in request.text
        assert "Text of beta." in request.text
        assert "[Skill 'alpha' is loaded, but there is no room for its text." in request.text
        assert loaded_in(request.system) == ["beta", "gamma"]
    assert model.refused == 1


@pytest.mark.parametrize("how", ["load", "pin"])
def test_what_is_put_back_is_what_was_brought_in(mode: Mode, how: str, tmp_path: Path) -> None:
    """A text that was loaded or pinned comes back as it was, whatever became of its file."""
    library(tmp_path, "alpha")
    talk = Conversation(mode, skills(tmp_path))
    if how == "load":
        talk.call(load("alpha"))
    else:
        talk.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["alpha"]})
    library(tmp_path, "alpha", body="Another text.")
    talk.say(given=COMPACTED)
    assert "Text of alpha." in talk.model.requests[-1].text
    assert "Another text." not in talk.model.requests[-1].text


# Who hears of what.


@both_modes
def test_pins_are_told_like_loads(mode: Mode, tmp_path: Path) -> None:
    """A pinned skill is an event on the stream, as a loaded one is."""
    library(tmp_path, "alpha")
    chat = Events(mode, skills(tmp_path))
    (event,) = chat.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["ALPHA"]})
    assert (event["type"], event["skill"], event["resources"]) == ("skill.loaded", "alpha", 0)
    assert chat.talk.loaded == ["alpha"]


@both_modes
def test_a_graph_of_ones_own_hears_of_texts_put_back(mode: Mode, tmp_path: Path) -> None:
    """In a hand-written graph a text that is put back is an event too."""
    library(tmp_path, "alpha")
    middleware, model = skills(tmp_path), ScriptedChatModel(replies=[call_tools(load("alpha"))])

    def call_model(state: SkillsState, runtime: Runtime) -> dict[str, Any]:
        messages, update = middleware.model_messages(state, runtime)
        return {**update, "messages": [model.invoke(messages)]}

    async def acall_model(state: SkillsState, runtime: Runtime) -> dict[str, Any]:
        messages, update = await middleware.amodel_messages(state, runtime)
        return {**update, "messages": [await model.ainvoke(messages)]}

    graph: Any = StateGraph(SkillsState)
    graph.add_node("discover", middleware.before_agent)
    graph.add_node("model", call_model if mode == "sync" else acall_model)
    graph.add_node("tools", ToolNode(middleware.tools))
    graph.add_edge(START, "discover")
    graph.add_edge("discover", "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    agent, config = graph.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "own"}}
    run(mode, agent, "go", config)
    assert [event["type"] for event in stream(mode, agent, COMPACTED, config)] == ["skill.reattached"]


@both_modes
def test_a_broken_skill_answers_with_what_is_wrong(mode: Mode, tmp_path: Path) -> None:
    """A directory whose file is broken is not "no such skill" to the model."""
    write_files(tmp_path, {"skills/broken/SKILL.md": "---\nname: broken\n---\nNo description.\n"})
    talk = Conversation(mode, skills(tmp_path))
    (answer,) = talk.call(load("Broken"))
    assert answer.status == "error"
    assert "description-missing" in answer.text
    assert "There is no skill" not in answer.text


@both_modes
def test_nested_directories_are_named(mode: Mode, tmp_path: Path) -> None:
    """Files that lie too deep to be listed are at least hinted at, by their directories."""
    library(tmp_path, "alpha", **{"alpha/scripts/office/unpack.py": "", "alpha/references/api/v1.md": ""})
    talk = Conversation(mode, skills(tmp_path))
    (answer,) = talk.call(load("alpha"))
    assert "Other directories: `references/api`, `scripts/office`" in answer.text


@both_modes
def test_a_second_load_in_a_turn_points_to_the_first(mode: Mode, tmp_path: Path) -> None:
    """Only what is loaded for sure is said to be in the conversation; of two loads in a turn the first one tells."""
    library(tmp_path, "alpha")
    talk = Conversation(mode, skills(tmp_path))
    first, second = talk.call(load("alpha"), load("alpha"))
    assert "Text of alpha." in first.text
    assert "already loaded by an earlier call" in second.text
    gone, again, last = talk.call(unload("alpha"), load("alpha"), load("alpha"))
    assert (gone.status, again.status) == ("success", "success")
    assert "already loaded by an earlier call" in last.text
    (sure,) = talk.call(load("alpha"))
    assert "its instructions are in this conversation" in sure.text


@both_modes
def test_room_that_nobody_knows_is_not_told_as_taken(mode: Mode, tmp_path: Path) -> None:
    """A load behind one that cannot be read is told to try again, not that something is loaded which is not."""
    library(tmp_path, "alpha", "beta")
    talk = Conversation(mode, skills(tmp_path))
    talk.say()
    (tmp_path / "skills/alpha/SKILL.md").unlink()
    failed, waiting = talk.call(load("alpha"), load("beta"))
    assert failed.status == "error"
    assert waiting.status == "success" or "Try again" in waiting.text
    assert "50,000 of 50,000" not in waiting.text
    assert "Loaded now" not in waiting.text


@both_modes
def test_sources_that_cannot_be_resolved_are_the_reason(mode: Mode, tmp_path: Path) -> None:
    """Where the function for the sources fails in the middle of a run, the answer says so and blames no file."""
    library(tmp_path, "alpha")
    asked: list[int] = []

    def sources(_runtime: Any) -> list[str]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError("directory service is away")
        return ["/skills"]

    talk = Conversation(mode, SkillsMiddleware(backend=disk(tmp_path), sources=sources))
    (answer,) = talk.call(load("alpha"))
    assert answer.status == "error"
    assert "directory service is away" in answer.text


# Threads that deepagents' own class began.


@tool
def special() -> str:
    """Do something special."""
    return "Special."


@both_modes
def test_a_pin_of_deepagents_class_grants_nothing(mode: Mode, tmp_path: Path) -> None:
    """On a thread that deepagents' class began, a message that pins a skill brings no tools: it may be anybody's."""
    text = skill_md("alpha", metadata={"include_tools": "special"})
    write_files(tmp_path, {"skills/alpha/SKILL.md": text})
    saver, config = InMemorySaver(), {"configurable": {"thread_id": "taken-over"}}
    theirs: Any = DeepAgentsSkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], tools=[special])
    before = create_agent(ScriptedChatModel(replies=[]), middleware=[theirs], checkpointer=saver)
    run(mode, before, {"messages": [HumanMessage("go")], "pinned_skills": ["alpha"]}, config)
    model = ScriptedChatModel(replies=[call_tools(unload("alpha")), call_tools(("special", {}))])
    after = create_agent(model, middleware=[skills(tmp_path, tools=[special])], checkpointer=saver)
    result = run(mode, after, "go", config)
    assert ["special" in request.tools for request in model.requests] == [False, False, False]
    assert [m.status for m in result["messages"] if m.type == "tool"] == ["error", "error"]


@both_modes
def test_a_resolver_is_not_asked_for_tools_that_the_agent_has(mode: Mode, tmp_path: Path) -> None:
    """Names that the agent's own tools bear are not resolved."""
    text = skill_md("alpha", metadata={"include_tools": "special further"})
    write_files(tmp_path, {"skills/alpha/SKILL.md": text})
    asked: list[str] = []

    def resolve(name: str, runtime: Any) -> list[Any]:  # noqa: ARG001 - a resolver's signature
        asked.append(name)
        return []

    talk = Conversation(mode, skills(tmp_path, tools=resolve), tools=[special])
    talk.call(load("alpha"))
    assert set(asked) == {"further"}


@both_modes
def test_a_skill_that_is_gone_at_a_resume_is_told_in_that_request(mode: Mode, tmp_path: Path) -> None:
    """As at a run's start: one notice before the user's newest message, the same bytes in the requests that follow."""

    @tool
    def ask(question: str) -> str:
        """Ask a human."""
        return str(interrupt(question))

    library(tmp_path, "alpha", "beta")
    middleware: Any = SkillsMiddleware(backend=disk(tmp_path), sources=lambda _runtime: ["/skills"])
    talk = Conversation(mode, middleware, tools=[ask])
    talk.say(call_tools(load("alpha")), call_tools(("ask", {"question": "?"})), given="Please.")
    shutil.rmtree(tmp_path / "skills/alpha")
    talk.say(call_tools(load("beta")), "done", given=Command(resume="yes"))
    seen = [[str(message.text) for message in request.messages] for request in talk.model.requests[-2:]]
    notice, user = seen[0][seen[0].index("Please.") - 1 :][:2]
    assert (notice.startswith("[Notice about skills, not from the user] No longer available"), user) == (
        True,
        "Please.",
    )
    assert [texts.count(notice) for texts in seen] == [1, 1]
    assert seen[1][1 : len(seen[0])] == seen[0][1:]
    assert not any("Text of alpha." in text for text in seen[0])
    assert talk.state["skills_loaded"] == ["beta"]
