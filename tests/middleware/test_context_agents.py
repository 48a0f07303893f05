"""Loaded means present, unloaded means gone: what a model is sent by real agents, whatever shortens their history."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarizationMiddleware
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ModelRequest,
    ModelResponse,
    ModelRetryMiddleware,
    SummarizationMiddleware,
)
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.modifier import RemoveMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from pydantic import Field

from deepskills import SkillsMiddleware
from deepskills.testing import Reply, Request, ScriptedChatModel, call_tools
from support import FakeBackend, Mode, both_modes, load, run, skill_md, stream, unload, unreadable, write_files

NAMES = ("alpha", "beta")
QUESTION = "And then?"


# --- skills, models and agents -------------------------------------------------------------------------------------


def rules(name: str, size: int = 2_000) -> list[str]:
    """Return the lines of a skill's instructions, each one of a kind, `size` characters together."""
    line = f"{name} rule {{:05d}}: do this and no other thing."
    return [line.format(number) for number in range(1 + size // (len(line.format(0)) + 1))]


def body(name: str, size: int = 2_000) -> str:
    """Return a skill's instructions."""
    return "\n".join(rules(name, size))


def write_skill(root: Path, name: str, text: str) -> None:
    """Write a skill with these instructions below `root`, in the source `/skills`."""
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, body=f"{text}\n")})


class SummarizingModel(ScriptedChatModel):
    """Follows its script where it has tools; asked for a summary, it gives one and forgets that it was asked."""

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if not kwargs.get("tools"):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("A summary."))])
        return super()._generate(messages, stop, run_manager, **kwargs)


@tool
def clock() -> str:
    """Tell the time."""
    return "It is noon."


def since_the_last_question(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages from the user's last one on."""
    asked = max(index for index, message in enumerate(messages) if message.text.startswith(QUESTION))
    return list(messages[asked:])


class TrimsState(AgentMiddleware[Any, Any]):
    """Takes all that came before the last question out of state."""

    def before_model(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain's signature
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *since_the_last_question(state["messages"])]}


class TrimsRequests(AgentMiddleware[Any, Any]):
    """Takes all that came before the last question out of the request."""

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(request.override(messages=since_the_last_question(request.messages)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(request.override(messages=since_the_last_question(request.messages)))


@dataclass(frozen=True)
class Parts:
    """What an agent is made of, whatever shortens its history."""

    root: Path
    model: ScriptedChatModel
    skills: AgentMiddleware[Any, Any]
    saver: BaseCheckpointSaver[Any]

    @property
    def workspace(self) -> FilesystemBackend:
        """Where the agent's own files are; the skills lie there too."""
        return FilesystemBackend(root_dir=self.root, virtual_mode=True)

    def deep_agent(self, *middleware: AgentMiddleware[Any, Any]) -> Any:
        return create_deep_agent(
            model=self.model,
            tools=[clock],
            middleware=[*middleware, self.skills],
            backend=self.workspace,
            checkpointer=self.saver,
        )

    def agent(self, *middleware: AgentMiddleware[Any, Any]) -> Any:
        files = FilesystemMiddleware(backend=self.workspace)
        return create_agent(
            self.model, tools=[clock], middleware=[files, *middleware, self.skills], checkpointer=self.saver
        )


@dataclass(frozen=True)
class Loss:
    """A way in which skills lose their text."""

    build: Callable[[Parts], Any]
    lost: tuple[str, ...] = NAMES
    sizes: tuple[int, int] = (2_000, 2_000)
    window: int | None = None
    """What the model's profile says that it takes, in tokens."""

    question: str = QUESTION
    survives_in_state: bool = True
    """Whether state still has the text afterwards."""

    is_restored_in_state: bool = False
    """Whether the text returns to its message in state before a model call misses it."""

    def write(self, root: Path) -> None:
        for name, size in zip(NAMES, self.sizes, strict=True):
            write_skill(root, name, body(name, size))

    def body(self, name: str) -> str:
        return body(name, self.sizes[NAMES.index(name)])

    def model(self) -> SummarizingModel:
        return SummarizingModel(replies=[], profile={"max_input_tokens": self.window} if self.window else None)


def _summarized_by_deepagents(parts: Parts) -> Any:
    return parts.deep_agent(
        DeepAgentsSummarizationMiddleware(
            parts.model, backend=parts.workspace, trigger=("messages", 6), keep=("messages", 2)
        )
    )


def _summarized_by_langchain(parts: Parts) -> Any:
    return parts.agent(SummarizationMiddleware(parts.model, trigger=("messages", 6), keep=("messages", 2)))


def _cleared(parts: Parts) -> Any:
    return parts.agent(ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=100, keep=1)]))


LOSSES = {
    "deepagents-summarization": Loss(_summarized_by_deepagents),
    "deepagents-default-summarization": Loss(
        Parts.deep_agent, window=7_500, question=f"{QUESTION} {'Tell me more. ' * 200}"
    ),
    "langchain-summarization": Loss(_summarized_by_langchain, survives_in_state=False),
    "context-editing": Loss(_cleared),
    "trimmed-state": Loss(lambda parts: parts.agent(TrimsState()), survives_in_state=False),
    "trimmed-requests": Loss(lambda parts: parts.agent(TrimsRequests())),
    "eviction": Loss(Parts.deep_agent, lost=("alpha",), sizes=(120_000, 2_000), is_restored_in_state=True),
}
"""Every way in which skills lose their text. In the first turn both are loaded; the later ones are small talk."""

losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
ROTATED = [*list(LOSSES)[1:], *list(LOSSES)[:1]]
losses_rotated = pytest.mark.parametrize("loss", [LOSSES[name] for name in ROTATED], ids=ROTATED)
"""The same in another order, so that most ways meet the other mode than under `losses`."""


class Talk:
    """An agent on a thread; keeps what the model was sent and what came on the custom stream."""

    def __init__(self, mode: Mode, agent: Any, model: ScriptedChatModel, thread: str = "talk") -> None:
        self.mode = mode
        self.agent = agent
        self.model = model
        self.config: Any = {"configurable": {"thread_id": thread}}
        self.events: list[dict[str, Any]] = []

    def say(self, *replies: Reply, text: str = QUESTION, **more: Any) -> None:
        """Ask the agent, whose model gives these replies."""
        self.model.replies = [*([self.model.fallback] * len(self.model.requests)), *replies]
        given = {"messages": [HumanMessage(text)], **more}
        self.events += stream(self.mode, self.agent, given, self.config)

    @property
    def requests(self) -> list[Request]:
        return self.model.requests

    @property
    def state(self) -> dict[str, Any]:
        values: dict[str, Any] = self.agent.get_state(self.config).values
        return values

    def reattached(self) -> list[str]:
        """Return the skills that were told to have lost their text."""
        return [event["skill"] for event in self.events if event["type"] == "skill.reattached"]


def middleware(root: Path, **options: Any) -> tuple[SkillsMiddleware[Any, Any], FakeBackend]:
    """Return our middleware for the skills below `root`, and the backend that it reads them from."""
    backend = FakeBackend(root)
    return SkillsMiddleware(backend=backend, sources=["/skills"], **options), backend


def start(mode: Mode, loss: Loss, skills: AgentMiddleware[Any, Any], root: Path) -> Talk:
    """Return a thread of an agent that loses texts in this way."""
    model = loss.model()
    return Talk(mode, loss.build(Parts(root, model, skills, InMemorySaver())), model)


def small_talk(talk: Talk, loss: Loss, turns: int = 4) -> None:
    """Let turns go by, each with a call of a tool that has nothing to do with skills."""
    for _ in range(turns):
        talk.say(call_tools(("clock", {})), "Done.", text=loss.question)


# --- what a request holds --------------------------------------------------------------------------------------------


def places(request: Request, text: str) -> list[int]:
    """Return where `text` stands in a request, once for each time."""
    return [index for index, message in enumerate(request.messages) for _ in range(message.text.count(text))]


def the_message_with(request: Request, text: str) -> tuple[int, str]:
    """Return the place and the whole text of the one message that holds `text`."""
    [place] = places(request, text)
    return place, request.messages[place].text


def holds_all_of(request: Request, name: str, size: int) -> bool:
    """Whether every line of a skill's instructions is somewhere in a request."""
    text = request.text
    return all(rule in text for rule in rules(name, size))


def unpaired(messages: Sequence[BaseMessage]) -> list[str | None]:
    """Return the tool calls that have not exactly one answer behind them, and the answers without a call."""
    wrong: list[str | None] = []
    open_calls: list[str | None] = []
    for message in messages:
        if isinstance(message, AIMessage):
            wrong += open_calls
            open_calls = [call["id"] for call in message.tool_calls]
        elif isinstance(message, ToolMessage):
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
            else:
                wrong.append(message.tool_call_id)
    return wrong + open_calls


def load_messages(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    """Return the answers of `load_skill`, in order."""
    return [message for message in messages if isinstance(message, ToolMessage) and message.name == "load_skill"]


def with_texts(request: Request) -> list[BaseMessage]:
    """Return the messages that hold a skill's text."""
    return [message for message in request.messages if "<skill_content" in message.text]


def tokens_of(messages: Sequence[BaseMessage]) -> int:
    return count_tokens_approximately(list(messages))


# --- texts that were lost --------------------------------------------------------------------------------------------


@losses
def test_every_request_holds_each_loaded_text_once(mode: Mode, loss: Loss, tmp_path: Path) -> None:
    """Whatever shortens the history, a request holds each loaded text once, always at the same place, word for word."""
    loss.write(tmp_path)
    skills, backend = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")), text=loss.question)
    loaded = {name: the_message_with(talk.requests[n], loss.body(name))[1] for n, name in enumerate(NAMES, start=1)}
    backend.calls.clear()

    small_talk(talk, loss)
    until = len(talk.requests)
    small_talk(talk, loss, turns=2)

    told = talk.reattached()
    assert sorted(told) == ([] if loss.is_restored_in_state else sorted(loss.lost)), "each loss is told, once"
    assert backend.read_paths == []
    for name in NAMES:
        found = [the_message_with(request, loss.body(name)) for request in talk.requests[2:]]
        assert {text for _, text in found} == {loaded[name]}
        assert len({place for place, _ in found[until - 3 :]}) == 1
    assert [unpaired(request.messages) for request in talk.requests] == [[]] * len(talk.requests)


@losses
def test_deepagents_own_class_loses_the_text(loss: Loss, tmp_path: Path) -> None:
    """The same thread under deepagents' own class loses what was read: the losses here are real ones."""
    loss.write(tmp_path)
    skills = DeepAgentsSkillsMiddleware(backend=FilesystemBackend(root_dir=tmp_path), sources=["/skills"])
    talk = start("sync", loss, skills, tmp_path)
    reading = [call_tools(("read_file", {"file_path": f"/skills/{n}/SKILL.md", "limit": 9_999})) for n in NAMES]

    talk.say(*reading, text=loss.question)
    small_talk(talk, loss)

    kept = [n for n, size in zip(NAMES, loss.sizes, strict=True) if holds_all_of(talk.requests[-1], n, size)]
    assert holds_all_of(talk.requests[2], "beta", loss.sizes[1])
    assert kept == [name for name in NAMES if name not in loss.lost]


@both_modes
def test_a_long_text_is_whole_where_the_file_tools_evict_it(mode: Mode, tmp_path: Path) -> None:
    """A skill of 120,000 characters stands whole in the answer to its load, in requests and in state alike."""
    loss = LOSSES["eviction"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)

    talk.say(call_tools(load("alpha")))

    [in_request] = load_messages(talk.requests[1].messages)
    [in_state] = load_messages(talk.state["messages"])
    assert loss.body("alpha") in in_request.text
    assert in_state.text == in_request.text
    assert in_request.tool_call_id == in_state.tool_call_id


@both_modes
def test_texts_stand_in_load_order_right_after_the_summary(mode: Mode, tmp_path: Path) -> None:
    """Texts whose messages were summarized away come back behind the summary, a message each, in load order."""
    loss = LOSSES["langchain-summarization"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)

    talk.say(call_tools(load("beta")), call_tools(load("alpha")))
    small_talk(talk, loss)

    system, summary, first, second, *_ = talk.requests[-1].messages
    assert isinstance(system, SystemMessage)
    assert "A summary." in summary.text
    assert loss.body("beta") in first.text
    assert loss.body("alpha") in second.text


@both_modes
def test_a_pinned_text_is_put_back_too(mode: Mode, tmp_path: Path) -> None:
    """A skill that the user pinned is loaded like any other: its text outlives the message that brought it."""
    loss = LOSSES["trimmed-requests"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)

    talk.say("Done.", pinned_skills=["alpha"])
    small_talk(talk, loss, turns=2)

    texts = [the_message_with(request, loss.body("alpha"))[1] for request in talk.requests]
    assert len(set(texts)) == 1
    assert talk.reattached() == ["alpha"]


@both_modes
def test_a_text_comes_back_behind_a_leading_system_message(mode: Mode, tmp_path: Path) -> None:
    """Where the messages themselves begin with a system message, that stays in front: models take no later ones."""
    write_skill(tmp_path, "alpha", body("alpha"))
    skills, _ = middleware(tmp_path)
    model = SummarizingModel(replies=[])
    agent = Parts(tmp_path, model, skills, InMemorySaver()).agent(KeepsSystemMessage())
    talk = Talk(mode, agent, model)

    talk.say(call_tools(load("alpha")))
    talk.say("Done.")

    kinds = [message.type for message in talk.requests[-1].messages]
    assert places(talk.requests[-1], body("alpha")) == [2]
    assert kinds == ["system", "system", "human", "human"]


class KeepsSystemMessage(AgentMiddleware[Any, Any]):
    """Trims requests, and has them begin with a system message of its own among the messages."""

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._trimmed(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._trimmed(request))

    def _trimmed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        kept = since_the_last_question(request.messages)
        return request.override(messages=[SystemMessage("You are terse."), *kept])


@both_modes
def test_another_thread_does_not_change_what_this_one_is_put_back(mode: Mode, tmp_path: Path) -> None:
    """Put-back text is what this thread loaded, also when another thread loaded the same file beside other files."""
    loss = LOSSES["trimmed-requests"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")))
    [loaded] = load_messages(talk.requests[-1].messages)
    talk.say("Done.")
    before = the_message_with(talk.requests[-1], loss.body("alpha"))

    write_files(tmp_path, {"skills/alpha/references/later.md": "New."})
    other = Talk(mode, talk.agent, talk.model, thread="other")
    other.say(call_tools(load("alpha")))
    assert "later.md" in other.requests[-1].text
    talk.say("Done.")

    assert before[1] == loaded.text
    assert the_message_with(talk.requests[-1], loss.body("alpha")) == before


@both_modes
def test_a_text_that_is_loaded_and_lost_again_is_told_again(mode: Mode, tmp_path: Path) -> None:
    """Each loss is an event of its own: one for the first load's text, one for that of the second."""
    loss = LOSSES["trimmed-requests"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)

    talk.say(call_tools(load("alpha")))
    small_talk(talk, loss, turns=2)
    assert talk.reattached() == ["alpha"]
    talk.say(call_tools(unload("alpha")), call_tools(load("alpha")))
    small_talk(talk, loss, turns=2)

    assert talk.reattached() == ["alpha", "alpha"]
    tokens = {event["tokens"] for event in talk.events if event["type"] in {"skill.loaded", "skill.reattached"}}
    assert len(tokens) == 1


class FlakyModel(ScriptedChatModel):
    """Loses its connection at the calls with these numbers."""

    failing: list[int]
    calls: int = 0

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self.calls += 1
        if self.calls in self.failing:
            raise ConnectionError("The line is down.")
        return super()._generate(messages, stop, run_manager, **kwargs)


@both_modes
def test_a_call_that_is_retried_tells_a_loss_once(mode: Mode, tmp_path: Path) -> None:
    """One loss is one event, also when a retrying middleware around ours asks the model three times."""
    loss = LOSSES["trimmed-requests"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    model = FlakyModel(replies=[], failing=[3, 4])
    retries = ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).agent(retries, TrimsRequests()), model)

    talk.say(call_tools(load("alpha")))
    small_talk(talk, loss, turns=1)

    assert model.calls == 6
    assert talk.reattached() == ["alpha"]


# --- texts that have to be read again --------------------------------------------------------------------------------


def resumed(mode: Mode, talk: Talk, loss: Loss, root: Path, **options: Any) -> tuple[Talk, FakeBackend]:
    """Return the same thread under a new agent: its middleware remembers nothing."""
    skills, backend = middleware(root, **options)
    model = loss.model()
    agent = loss.build(Parts(root, model, skills, talk.agent.checkpointer))
    return Talk(mode, agent, model), backend


@both_modes
def test_a_text_that_changed_since_says_so(mode: Mode, tmp_path: Path) -> None:
    """A text that exists only in a newer version says so, and stays as it is in later requests."""
    loss = LOSSES["langchain-summarization"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")))
    small_talk(talk, loss, turns=2)

    write_skill(tmp_path, "alpha", "The second version.")
    again, backend = resumed(mode, talk, loss, tmp_path)
    small_talk(again, loss, turns=2)
    write_skill(tmp_path, "alpha", "The third version.")
    small_talk(again, loss, turns=2)

    found = [the_message_with(request, "The second version.") for request in again.requests]
    assert len({text for _, text in found}) == 1
    assert "changed since it was loaded" in found[0][1]
    assert loss.body("alpha") not in again.requests[-1].text
    assert backend.read_paths.count("/skills/alpha/SKILL.md") == 2, "once by discovery, once for its text"
    assert again.state["skills_loaded"] == ["alpha", "beta"]
    [untouched] = {the_message_with(request, loss.body("beta"))[1] for request in again.requests}
    assert "changed since" not in untouched


@both_modes
def test_a_text_that_grew_stays_within_the_budget(mode: Mode, tmp_path: Path) -> None:
    """A file that grew past `max_loaded_tokens` since it was loaded is unloaded, with a notice."""
    loss = LOSSES["langchain-summarization"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")))
    small_talk(talk, loss, turns=2)

    write_skill(tmp_path, "alpha", body("alpha", 20_000))
    again, backend = resumed(mode, talk, loss, tmp_path, max_loaded_tokens=2_000)
    small_talk(again, loss, turns=2)

    for request in again.requests:
        assert tokens_of(with_texts(request)) <= 2_000
        assert len(places(request, loss.body("beta"))) == 1
    assert "not loaded again: 'alpha'" in again.requests[0].text
    assert again.state["skills_loaded"] == ["beta"]
    assert backend.read_paths.count("/skills/alpha/SKILL.md") == 2, "once by discovery, once for its text"


@both_modes
def test_one_users_newer_text_is_not_put_back_for_another(mode: Mode, tmp_path: Path) -> None:
    """Users whose skills have the same path and began with the same text are put back each their own."""
    for user in ("ann", "bob"):
        write_skill(tmp_path / user, "alpha", "Common text.")
    saver, model = InMemorySaver(), ScriptedChatModel(replies=[])

    def agent_anew() -> Any:
        backends = {user: FilesystemBackend(root_dir=tmp_path / user) for user in ("ann", "bob")}
        skills = SkillsMiddleware(backend=lambda runtime: backends[runtime.context], sources=["/skills"])
        return create_agent(model, middleware=[TrimsState(), skills], checkpointer=saver, context_schema=str)

    def ask(agent: Any, user: str, *replies: Reply) -> str:
        model.replies = [*([model.fallback] * len(model.requests)), *replies]
        config = {"configurable": {"thread_id": user}}
        run(mode, agent, QUESTION, config, context=user)
        return model.requests[-1].text

    agent = agent_anew()
    for user in ("ann", "bob"):
        assert "Common text." in ask(agent, user, call_tools(load("alpha")))
    write_skill(tmp_path / "ann", "alpha", "Ann's secret.")
    agent = agent_anew()

    assert "Ann's secret." in ask(agent, "ann")
    asked_by_bob = ask(agent, "bob")
    assert "Common text." in asked_by_bob
    assert "Ann's secret." not in asked_by_bob


@both_modes
def test_room_that_a_lost_skill_leaves_is_used_at_once(mode: Mode, tmp_path: Path) -> None:
    """Where the newest skill's file cannot be read, an older one has its room in the same request."""
    loss = Loss(_summarized_by_langchain, sizes=(2_000, 4_000))
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")))
    small_talk(talk, loss, turns=2)

    again, backend = resumed(mode, talk, loss, tmp_path, max_loaded_tokens=1_200)
    backend.changes["download_files"] = unreadable(part="/skills/beta/SKILL.md")
    again.say("Done.")

    [request] = again.requests
    assert "The text of the skill 'beta' was lost" in request.text
    assert len(places(request, loss.body("alpha"))) == 1
    assert "no room" not in request.text
    assert again.state["skills_loaded"] == ["alpha"]


@pytest.mark.parametrize(
    ("fate", "told"), [("gone", "unloaded: 'alpha'"), ("denied", "The text of the skill 'alpha' was lost")]
)
def test_a_skill_whose_text_cannot_be_recovered_is_unloaded(mode: Mode, fate: str, told: str, tmp_path: Path) -> None:
    """A file that is gone, or that cannot be read, costs that skill alone: it is unloaded, and the model told."""
    loss = LOSSES["langchain-summarization"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")))
    small_talk(talk, loss, turns=2)

    again, backend = resumed(mode, talk, loss, tmp_path)
    if fate == "gone":
        (tmp_path / "skills/alpha/SKILL.md").unlink()
    else:
        backend.changes["download_files"] = unreadable(part="/skills/alpha/SKILL.md")
    again.say(call_tools(("clock", {})), "All is well.")
    state = again.state
    small_talk(again, loss, turns=1)

    assert state["skills_loaded"] == ["beta"]
    assert "alpha" not in state["skill_resources"]
    # Nobody has unloaded a skill that could not be read, so its record stays for its limits.
    assert state["skills_context"]["records"].get("alpha", {}).get("lost", False) is (fate == "denied")
    assert state["messages"][-1].text == "All is well."
    assert told in again.requests[0].text
    assert "alpha rule" not in "".join(request.text for request in again.requests)
    for request in again.requests:
        assert len(places(request, loss.body("beta"))) == 1
        assert unpaired(request.messages) == []


# --- unloading and loading again -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["system_prompt", "conversation"])
@pytest.mark.parametrize(("size", "own_cost"), [(6_000, 2), (12_000, 0)], ids=["without-its-own-call", "all-in-all"])
def test_unloading_gives_back_what_loading_took(
    mode: Mode, status: str, size: int, own_cost: int, tmp_path: Path
) -> None:
    """Unloading takes at least 95 % of what the load added out of the request, and nothing out of the history in state.

    The call of `unload_skill` and its answer cost a little themselves, which tells on a short skill.
    """
    text = body("alpha", size)
    write_skill(tmp_path, "alpha", text)
    skills, _ = middleware(tmp_path, loaded_status=status)
    model = SummarizingModel(replies=[])
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).agent(), model)

    talk.say(call_tools(load("alpha")))
    [in_state] = load_messages(talk.state["messages"])
    talk.say(call_tools(unload("alpha")))

    before, loaded, asked, unloaded = talk.requests
    counted = unloaded.messages[: len(unloaded.messages) - own_cost]
    freed = tokens_of(asked.messages) - tokens_of(counted)
    assert freed >= 0.95 * (tokens_of(loaded.messages) - tokens_of(before.messages))
    [notice] = load_messages(unloaded.messages)
    assert notice.tool_call_id == in_state.tool_call_id
    assert unloaded.messages.index(notice) == asked.messages.index(load_messages(asked.messages)[0])
    assert "Skill 'alpha'" in notice.text
    assert len(notice.text.splitlines()) == 1
    assert text not in unloaded.text
    assert unpaired(unloaded.messages) == []
    assert load_messages(talk.state["messages"]) == [in_state]
    assert text in in_state.text


@both_modes
def test_a_reload_shows_one_full_text(mode: Mode, tmp_path: Path) -> None:
    """A skill that is loaded again stands once in the request, in the newer message; the older one has a notice."""
    write_skill(tmp_path, "alpha", body("alpha"))
    skills, _ = middleware(tmp_path)
    model = SummarizingModel(replies=[])
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).agent(), model)

    talk.say(call_tools(load("alpha")), call_tools(unload("alpha")), call_tools(load("alpha")))
    talk.say("Done.")

    for request in talk.requests[-2:]:
        older, newer = load_messages(request.messages)
        assert "Skill 'alpha'" in older.text
        assert body("alpha") not in older.text
        assert body("alpha") in newer.text
        assert unpaired(request.messages) == []
    assert all(body("alpha") in message.text for message in load_messages(talk.state["messages"]))


@both_modes
def test_a_newer_text_takes_the_place_of_the_older(mode: Mode, tmp_path: Path) -> None:
    """A skill that changed and is loaded again shows its newer text alone; where the older one was is a notice."""
    write_skill(tmp_path, "alpha", body("alpha"))
    skills, _ = middleware(tmp_path)
    model = SummarizingModel(replies=[])
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).agent(), model)

    talk.say(call_tools(load("alpha")))
    write_skill(tmp_path, "alpha", "The second version.")
    talk.say(call_tools(load("alpha")))

    older, newer = load_messages(talk.requests[-1].messages)
    assert "alpha rule" not in talk.requests[-1].text
    assert "Skill 'alpha'" in older.text
    assert "The second version." in newer.text
    assert talk.state["skills_loaded"] == ["alpha"]
    assert body("alpha") in load_messages(talk.state["messages"])[0].text


@both_modes
def test_a_newer_text_is_the_one_that_is_put_back(mode: Mode, tmp_path: Path) -> None:
    """Of a skill that was loaded twice, the text that comes back is the newer one."""
    loss = LOSSES["trimmed-requests"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")))
    write_skill(tmp_path, "alpha", "The second version.")
    talk.say(call_tools(load("alpha")))

    talk.say("Done.")

    assert len(places(talk.requests[-1], "The second version.")) == 1
    assert "alpha rule" not in talk.requests[-1].text


@losses_rotated
def test_what_was_unloaded_does_not_come_back(mode: Mode, loss: Loss, tmp_path: Path) -> None:
    """A skill that is unloaded after its text was put back is gone from all later requests; the other stays."""
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(call_tools(load("alpha")), call_tools(load("beta")), text=loss.question)
    small_talk(talk, loss, turns=3)
    seen = len(talk.requests)

    talk.say(call_tools(unload("alpha")), text=loss.question)
    small_talk(talk, loss, turns=1)

    for request in talk.requests[seen + 1 :]:
        assert "alpha rule" not in request.text
        assert len(places(request, loss.body("beta"))) == 1
        assert unpaired(request.messages) == []


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["trimmed-requests", "context-editing"])
def test_what_is_put_back_stays_within_the_budget(mode: Mode, how: str, tmp_path: Path) -> None:
    """Where not all lost texts have room, the newest come back, the others leave a notice, and all stay loaded."""
    names = ("alpha", "beta", "gamma")
    for name in names:
        write_skill(tmp_path, name, body(name, 4_000))
    loss = LOSSES[how]
    skills, _ = middleware(tmp_path, max_loaded_tokens=None)
    talk = start(mode, loss, skills, tmp_path)
    talk.say(*(call_tools(load(name)) for name in names))
    sizes = [record["tokens"] for record in talk.state["skills_context"]["records"].values()]
    limit = sizes[1] + sizes[2] + 10

    again, _ = resumed(mode, talk, loss, tmp_path, max_loaded_tokens=limit)
    small_talk(again, loss, turns=2)

    for request in again.requests:
        shown = [len(places(request, body(name, 4_000))) for name in names]
        assert shown == [0, 1, 1]
        assert tokens_of([HumanMessage(message.text) for message in with_texts(request)]) <= limit
        assert request.text.count("Skill 'alpha' is loaded, but there is no room") == 1
        assert unpaired(request.messages) == []
    assert again.state["skills_loaded"] == list(names)


class BadRequestError(Exception):
    """What a provider's client raises for an answer with a status code."""

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


class WindowedModel(ScriptedChatModel):
    """Refuses requests of more characters than its window."""

    window: int
    refusal: Exception
    refused: list[Request] = Field(default_factory=list)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if sum(len(message.text) for message in messages) > self.window:
            self._refuse(messages)
        return super()._generate(messages, stop, run_manager, **kwargs)

    def _refuse(self, messages: list[BaseMessage]) -> NoReturn:
        self.refused.append(Request(list(messages)))
        raise self.refusal


REFUSALS = {
    "langchain": ContextOverflowError("Too long."),
    "http-400": BadRequestError("This model's maximum context length is 8192 tokens."),
}
refusals = pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)


def over_the_window(mode: Mode, root: Path, window: int, refusal: Exception) -> tuple[Talk, WindowedModel]:
    """Return a thread on which three skills of 10,000 characters are loaded and lost, under a model with a window."""
    for name in ("alpha", "beta", "gamma"):
        write_skill(root, name, body(name, 10_000))
    skills, _ = middleware(root, max_loaded_tokens=None)
    saver, roomy = InMemorySaver(), ScriptedChatModel(replies=[])
    talk = Talk(mode, Parts(root, roomy, skills, saver).agent(TrimsRequests()), roomy)
    talk.say(call_tools(load("alpha"), load("beta"), load("gamma")))
    model = WindowedModel(replies=[], window=window, refusal=refusal)
    return Talk(mode, Parts(root, model, skills, saver).agent(TrimsRequests()), model), model


@refusals
def test_a_thread_with_too_much_put_back_answers_and_can_unload(mode: Mode, refusal: Exception, tmp_path: Path) -> None:
    """A model that has no room for what is put back is asked without it, and by unloading makes room for the rest."""
    talk, model = over_the_window(mode, tmp_path, 26_000, refusal)

    talk.say(call_tools(unload("alpha")), "There is room again.")

    without, with_the_rest = model.requests
    assert talk.state["messages"][-1].text == "There is room again."
    assert talk.state["skills_loaded"] == ["beta", "gamma"]
    assert len(model.refused) == 1
    assert "rule" not in without.text
    assert [f"Skill '{name}' is loaded, but there is no room" in without.text for name in ("alpha", "beta")] == [
        True
    ] * 2
    assert [len(places(with_the_rest, body(n, 10_000))) for n in ("alpha", "beta", "gamma")] == [0, 1, 1]
    assert unpaired(with_the_rest.messages) == []


@both_modes
def test_an_evicted_text_too_long_for_the_model_leaves_a_notice(mode: Mode, tmp_path: Path) -> None:
    """A skill that is longer than the model's window does not end the run: the model hears why its text is missing."""
    loss = LOSSES["eviction"]
    loss.write(tmp_path)
    skills, _ = middleware(tmp_path)
    model = WindowedModel(replies=[], window=100_000, refusal=ContextOverflowError("Too long."))
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).deep_agent(), model)

    talk.say(call_tools(load("alpha")), call_tools(unload("alpha")), "Done without it.")

    assert talk.state["messages"][-1].text == "Done without it."
    assert talk.state["skills_loaded"] == []
    assert "there is no room for its text" in load_messages(model.requests[1].messages)[0].text


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("No such tool."), id="bug"),
        pytest.param(BadRequestError("Invalid schema for function 'clock'."), id="http-400"),
        pytest.param(BadRequestError("Slow down: context length quota exceeded.", 429), id="http-429"),
    ],
)
def test_other_failures_of_the_model_are_not_tried_again(mode: Mode, error: Exception, tmp_path: Path) -> None:
    """What has nothing to do with length goes to the caller at once, as it was raised."""
    talk, model = over_the_window(mode, tmp_path, 26_000, error)

    with pytest.raises(type(error), match=str(error)):
        talk.say("Done.")

    assert len(model.refused) == 1
    assert model.requests == []


@refusals
def test_a_refusal_is_tried_once_more_and_no_oftener(mode: Mode, refusal: Exception, tmp_path: Path) -> None:
    """A request that stays too long without what was put back is refused for good after the second attempt."""
    talk, model = over_the_window(mode, tmp_path, 10, refusal)

    with pytest.raises(type(refusal)):
        talk.say("Done.")

    assert len(model.refused) == 2


@refusals
def test_a_refusal_of_what_was_not_put_back_is_not_tried_again(mode: Mode, refusal: Exception, tmp_path: Path) -> None:
    """Where nothing was put back there is nothing to leave out: the refusal goes to the caller."""
    write_skill(tmp_path, "alpha", body("alpha", 10_000))
    skills, _ = middleware(tmp_path)
    model = WindowedModel(replies=[], window=9_000, refusal=refusal)
    talk = Talk(mode, Parts(tmp_path, model, skills, InMemorySaver()).agent(), model)

    with pytest.raises(type(refusal)):
        talk.say(call_tools(load("alpha")))

    assert len(model.refused) == 1
