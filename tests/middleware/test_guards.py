"""Guards beside skills: what they change stays changed, what they must see they see, whatever the order."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarization
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ModelRequest,
    PIIMiddleware,
    SummarizationMiddleware,
)
from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, picked, run, skill_md, skills, write_files

orders = pytest.mark.parametrize("order", ["guard first", "skills first"])

KEY_LINES = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" for _ in range(12)])
PEM = f"-----BEGIN PRIVATE KEY-----\n{KEY_LINES}\n-----END PRIVATE KEY-----"
PATTERN = r"-----BEGIN PRIVATE KEY-----[\s\S]*?-----END PRIVATE KEY-----"
BODY = f"# Deploy\n\nUse this key:\n\n{PEM}\n\nThen follow the last step.\n"
LAST_STEP = "Then follow the last step."
COMPACTED = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("go on")]}


@tool
def other(n: int) -> str:
    """Do something else."""
    return f"other {n}"


def library(root: Path, body: str = BODY, name: str = "deploy") -> None:
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=body)})


def pii(**where: bool) -> PIIMiddleware:
    return PIIMiddleware("key", detector=PATTERN, strategy="redact", **(where or {"apply_to_tool_results": True}))


class Moderation(AgentMiddleware[Any, Any]):
    """Replaces tool results that it flags, in state, as hosted moderation does with `exit_behavior="replace"`."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = []
        self.checked: list[str] = []

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        """Replace what is flagged after the last answer of the model."""
        messages = list(state["messages"])
        last = max((i for i, message in enumerate(messages) if message.type == "ai"), default=-1)
        changed = False
        for place in range(last + 1, len(messages)):
            text = str(messages[place].text)
            self.checked.append(text)
            if isinstance(messages[place], ToolMessage) and "BEGIN PRIVATE KEY" in text:
                messages[place] = messages[place].model_copy(update={"content": "I'm sorry, that was flagged."})
                changed = True
        return {"messages": messages} if changed else None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Replace what is flagged after the last answer of the model."""
        return self.before_model(state, runtime)


class RedactsRequests(AgentMiddleware[Any, Any]):
    """Hides the key in requests alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = []

    def _changed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        def clean(message: AnyMessage) -> AnyMessage:
            text = str(message.text)
            hidden = re.sub(PATTERN, "(hidden)", text)
            return message if hidden == text else message.model_copy(update={"content": hidden})

        return request.override(messages=[clean(message) for message in request.messages])

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call the model with the key hidden."""
        return handler(self._changed(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call the model with the key hidden."""
        return await handler(self._changed(request))


def guards() -> dict[str, Callable[[], AgentMiddleware[Any, Any]]]:
    return {"PII": pii, "moderation": Moderation, "requests": RedactsRequests}


def in_order(order: str, guard: AgentMiddleware[Any, Any], middleware: SkillsMiddleware) -> list[Any]:
    return [guard, middleware] if order == "guard first" else [middleware, guard]


def leaks(model: ScriptedChatModel) -> list[int]:
    """Return which requests held the key."""
    return [place for place, request in enumerate(model.requests) if "MIIEvQIBADANBgkqhkiG9w0" in request.text]


@orders
def test_what_a_guard_hid_never_returns(mode: Mode, order: str, tmp_path: Path) -> None:
    """A multi-line secret that a guard hid is in no request: later ones, after a summary, and in a new process."""
    library(tmp_path)
    offenders = []
    for what, make in picked(guards().items()):
        if (what, order) == ("requests", "skills first"):
            continue  # It stands inside and sees every request last.
        guard = make()
        talk = Conversation(mode, *in_order(order, guard, skills(tmp_path)))
        talk.call(load("deploy"))
        talk.say()
        talk.say(given=COMPACTED)
        talk.say()
        offenders += [(what, "same process", leaks(talk.model))] if leaks(talk.model) else []
        again = create_agent(
            talk.model, middleware=in_order(order, make(), skills(tmp_path)), checkpointer=talk.agent.checkpointer
        )
        before = len(talk.model.requests)
        run(mode, again, "go", talk.config)
        assert len(talk.model.requests) == before + 1
        offenders += [(what, "new process", leaks(talk.model))] if leaks(talk.model) else []
    assert offenders == []


@orders
def test_what_a_guard_left_is_put_back_as_it_left_it(mode: Mode, order: str, tmp_path: Path) -> None:
    """After a summary the redacted text returns, redacted, with all else in it."""
    library(tmp_path)
    talk = Conversation(mode, *in_order(order, pii(), skills(tmp_path)))
    talk.call(load("deploy"))
    talk.say(given=COMPACTED)
    text = talk.model.requests[-1].text
    assert LAST_STEP in text
    assert "[REDACTED_KEY]" in text
    assert leaks(talk.model) == []


@both_modes
def test_a_redaction_in_the_step_of_a_compaction_stands(mode: Mode, tmp_path: Path) -> None:
    """Where requests are compacted in the very step of a redaction, what is put back is the text in state."""
    library(tmp_path)

    class CutsRequests(AgentMiddleware[Any, Any]):
        """Sends the newest user message alone, as a summary in requests does."""

        tools = ()

        def _cut(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
            return request.override(messages=[HumanMessage("go on")])

        def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Cut the request."""
            return handler(self._cut(request))

        async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Cut the request."""
            return await handler(self._cut(request))

    talk = Conversation(mode, CutsRequests(), skills(tmp_path), pii())
    talk.call(load("deploy"))
    assert LAST_STEP in talk.model.requests[-1].text
    assert leaks(talk.model) == []


@orders
def test_a_redaction_before_a_summary_of_the_same_step_stands(mode: Mode, order: str, tmp_path: Path) -> None:
    """A guard that edits state, and a summarizer that removes the message right after, leave no way back to the key."""
    library(tmp_path)

    class Removes(AgentMiddleware[Any, Any]):
        """Removes every message once, as a summarizer does."""

        tools = ()

        def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
            """Remove what was said."""
            if not any(isinstance(message, ToolMessage) for message in state["messages"]):
                return None
            summary = HumanMessage("so far", additional_kwargs={"lc_source": "summarization"})
            return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), summary, HumanMessage("go on")]}

        async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Remove what was said."""
            return self.before_model(state, runtime)

    talk = Conversation(mode, *in_order(order, pii(), skills(tmp_path)), Removes())
    talk.call(load("deploy"))
    assert leaks(talk.model) == []


def long_body() -> str:
    return BODY + "\n".join(f"Line {n} of a long text that goes on." for n in range(2_600))


@both_modes
def test_a_guard_sees_a_text_that_was_evicted(mode: Mode, tmp_path: Path) -> None:
    """A 90 KB skill that the file tools evict is whole before any guard looks, and leaves no guard out."""
    library(tmp_path, long_body())
    offenders = []
    for what, make in picked(guards().items()):
        if what == "requests":
            continue
        model = ScriptedChatModel(replies=[call_tools(load("deploy")), call_tools(("ls", {"path": "/"}))])
        guard = make()
        agent = create_deep_agent(
            model,
            middleware=[guard, skills(tmp_path, max_loaded_tokens=None)],
            backend=disk(tmp_path),
            checkpointer=InMemorySaver(),
        )
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        result = run(mode, agent, "go", config)
        run(mode, agent, "more", config)
        offenders += [(what, leaks(model))] if leaks(model) else []
        if what == "PII":
            assert "Line 1299 of a long text" in model.requests[1].text
            assert "[REDACTED_KEY]" in model.requests[1].text
            held = next(m for m in result["messages"] if isinstance(m, ToolMessage) and m.name == "load_skill")
            assert "Line 1299" in str(held.text)
        else:
            assert "that was flagged" in model.requests[1].text
        assert len(model.requests) == 4
    assert offenders == []


@orders
def test_a_guard_sees_an_evicted_text_after_a_pause_in_another_process(mode: Mode, order: str, tmp_path: Path) -> None:
    """A turn that pauses after the eviction and goes on in a new process restores the text before guards look."""
    library(tmp_path, long_body())

    @tool
    def approve() -> str:
        """Ask a human."""
        return str(interrupt("ok?"))

    keep = InMemorySaver()
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    model = ScriptedChatModel(replies=[call_tools(load("deploy"), ("approve", {}))])

    def agent() -> Any:
        middleware = in_order(order, pii(), skills(tmp_path, max_loaded_tokens=None))
        return create_deep_agent(
            model, tools=[approve], middleware=middleware, backend=disk(tmp_path), checkpointer=keep
        )

    run(mode, agent(), "go", config)
    run(mode, agent(), Command(resume="yes"), config)
    assert "Line 1299 of a long text" in model.requests[1].text
    assert leaks(model) == []


@both_modes
def test_a_text_that_was_restored_once_is_not_restored_again(mode: Mode, tmp_path: Path) -> None:
    """Restoring starts the step over once, and no request is sent twice."""
    library(tmp_path, long_body())

    class Counts(AgentMiddleware[Any, Any]):
        """Counts the steps it sees, and what of the text."""

        tools = ()

        def __init__(self) -> None:
            super().__init__()
            self.seen: list[bool] = []

        def before_model(self, state: Any, runtime: Any) -> None:  # noqa: ARG002
            """Look at the last message."""
            self.seen.append("Line 1299" in str(state["messages"][-1].text))

        async def abefore_model(self, state: Any, runtime: Any) -> None:
            """Look at the last message."""
            self.before_model(state, runtime)

    counts = Counts()
    model = ScriptedChatModel(replies=[call_tools(load("deploy"))])
    agent = create_deep_agent(
        model, middleware=[counts, skills(tmp_path, max_loaded_tokens=None)], backend=disk(tmp_path)
    )
    run(mode, agent, "go")
    assert counts.seen == [False, False, True]
    assert len(model.requests) == 2


class ChecksTheLast(AgentMiddleware[Any, Any]):
    """Remembers the last human message of each step, the one that guards look at."""

    tools = ()

    def __init__(self) -> None:
        super().__init__()
        self.last: list[str] = []

    def before_model(self, state: Any, runtime: Any) -> None:  # noqa: ARG002
        """Look as PII and moderation do."""
        humans = [message for message in state["messages"] if isinstance(message, HumanMessage)]
        self.last.append(str(humans[-1].text))

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        """Look as PII and moderation do."""
        self.before_model(state, runtime)


@orders
def test_a_notice_does_not_hide_the_users_message_from_guards(mode: Mode, order: str, tmp_path: Path) -> None:
    """That a skill is gone is told in requests alone, before the user's message, the same bytes from call to call."""
    library(tmp_path)
    library(tmp_path, "Stays.", "stays")
    guard = ChecksTheLast()
    talk = Conversation(mode, *in_order(order, guard, skills(tmp_path, refresh="run")), tools=[other])
    talk.call(load("deploy"))
    (tmp_path / "skills/deploy/SKILL.md").unlink()
    (tmp_path / "skills/deploy").rmdir()
    talk.say(call_tools(("other", {"n": 1})), given="my number is 5")
    assert guard.last[-2:] == ["my number is 5"] * 2
    assert talk.loaded == []
    shown = [[str(m.text) for m in request.messages if m.type == "human"] for request in talk.model.requests[-2:]]
    for texts in shown:
        place = texts.index("my number is 5")
        assert "No longer available" in texts[place - 1]
        assert "deploy" in texts[place - 1]
    assert shown[0] == shown[1]
    talk.say(given="and now")
    after = [str(m.text) for m in talk.model.requests[-1].messages if m.type == "human"]
    assert after[: len(shown[0])] == shown[0]
    assert not any("No longer available" in str(message.text) for message in talk.state["messages"])


@both_modes
def test_pins_do_not_hide_the_users_message_from_guards_before_them(mode: Mode, tmp_path: Path) -> None:
    """A guard that stands before skills sees the user's message as the last one, pins or none."""
    library(tmp_path)
    guard = ChecksTheLast()
    talk = Conversation(mode, guard, skills(tmp_path, slash_commands=True))
    talk.say(given={"messages": [HumanMessage("/deploy to 5")], "pinned_skills": ["deploy"]})
    assert guard.last[0] == "/deploy to 5"
    assert talk.loaded == ["deploy"]


@pytest.mark.parametrize("order", ["editing outside", "editing inside"])
def test_context_editing_in_either_order_costs_no_text(mode: Mode, order: str, tmp_path: Path) -> None:
    """Loaded texts are in every request whether context editing stands before or after, and unloaded ones are not."""
    library(tmp_path)
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=0)])
    middleware = skills(tmp_path)
    both: list[Any] = [editing, middleware] if order == "editing outside" else [middleware, editing]
    talk = Conversation(mode, *both, tools=[other])
    talk.call(load("deploy"))
    talk.say(call_tools(("other", {"n": 1})), call_tools(("other", {"n": 2})))
    assert [request.text.count(LAST_STEP) for request in talk.model.requests[1:]] == [1] * 4
    assert "[cleared]" in talk.model.requests[-1].text
    talk.call(("unload_skill", {"skill_name": "deploy"}))
    assert LAST_STEP not in talk.model.requests[-1].text
    assert all("cleared" not in str(message.response_metadata) for message in talk.state["messages"])


@both_modes
def test_a_guard_after_context_editing_is_heeded(mode: Mode, tmp_path: Path) -> None:
    """What PII hid stays hidden though context editing clears the message and the text is put back."""
    library(tmp_path)
    editing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=10, keep=0)])
    talk = Conversation(mode, editing, skills(tmp_path), pii(), tools=[other])
    talk.call(load("deploy"))
    talk.say(call_tools(("other", {"n": 1})))
    assert leaks(talk.model) == []
    assert all(LAST_STEP in request.text for request in talk.model.requests[1:])


@both_modes
def test_a_summary_of_langchain_keeps_what_guards_did(mode: Mode, tmp_path: Path) -> None:
    """LangChain's summarization, which removes messages, and PII together leave the redacted text in requests."""
    library(tmp_path)
    summarizer = SummarizationMiddleware(
        model=ScriptedChatModel(replies=[], fallback="A summary."), trigger=("messages", 5), keep=("messages", 1)
    )
    talk = Conversation(mode, pii(), skills(tmp_path), summarizer, tools=[other])
    talk.call(load("deploy"))
    for n in range(4):
        talk.say(call_tools(("other", {"n": n})))
    assert leaks(talk.model) == []
    assert LAST_STEP in talk.model.requests[-1].text
    assert talk.loaded == ["deploy"]


def test_loads_by_arguments_are_redacted_too(tmp_path: Path) -> None:
    """A secret that comes in by the arguments of a load is seen by guards like any other text."""
    library(tmp_path, "# Deploy\n\nWith $ARGUMENTS.\n")
    talk = Conversation("async", skills(tmp_path), pii())
    talk.call(("load_skill", {"skill_name": "deploy", "arguments": PEM}))
    tool_text = next(str(m.text) for m in talk.model.requests[-1].messages if m.type == "tool")
    assert "MIIEvQ" not in tool_text
    assert "[REDACTED_KEY]" in tool_text
    assert asyncio.iscoroutinefunction(talk.agent.ainvoke)


@orders
def test_deepagents_summarization_keeps_texts_or_is_reported(mode: Mode, order: str, tmp_path: Path) -> None:
    """Before the skills, it costs no text; behind them, where nothing can be put back, the first time is a problem."""
    library(tmp_path, LAST_STEP)
    summaries = ScriptedChatModel(replies=lambda _messages: "They loaded a skill.")
    summarization = DeepAgentsSummarization(
        model=summaries, backend=disk(tmp_path), trigger=("messages", 6), keep=("messages", 2)
    )
    talk = Conversation(mode, *in_order(order, summarization, skills(tmp_path)), tools=[other])
    talk.say(call_tools(load("deploy")), *[call_tools(("other", {"n": n})) for n in range(4)])
    problems = [found["code"] for found in talk.state["skills_problems"]]
    held = [LAST_STEP in request.text for request in talk.model.requests]
    assert len(summaries.requests) >= 1
    if order == "guard first":
        assert (held, problems) == ([False, *[True] * 5], [])
    else:
        assert problems == ["middleware-order"]
