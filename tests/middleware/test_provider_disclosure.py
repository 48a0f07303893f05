"""Where deepagents shows a model a skill's tool inside the conversation, to keep the prompt cache, so do we."""

import copy
import itertools
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.middleware import FilesystemMiddleware
from deepagents.middleware._skill_tools import _inline_block_builder
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field, SecretStr

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, disk, load, run, skill_md, tool_messages, unload, write_files

IN_CONVERSATION = "claude-opus-4-8"
"""A model that can be given a tool in the middle of a conversation."""

UP_FRONT = "claude-sonnet-4-5"
"""A model that takes tools only up front."""

OURS_ALONE = {"load_skill", "unload_skill"}
PING = ("ping", {"text": "1"})
_PINNED_TEXT = re.compile(
    r'<skill name="(.*?)".*?</skill>|<skill_content name="(.*?)".*?</skill_content>\n\nSkill directory: `.*?`',
    re.DOTALL,
)


@tool
def ping(text: str) -> str:
    """Answer a ping."""
    return f"pong {text}"


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return f"echo {text}"


class ScriptedAnthropic(ChatAnthropic):
    """An Anthropic model that follows a script, and keeps each request as it would go over the wire."""

    replies: list[Any] = Field(default_factory=list)
    payloads: list[Any] = Field(default_factory=list)

    def _answer(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> ChatResult:
        position = len(self.payloads)
        self.payloads.append(copy.deepcopy(self._get_request_payload(messages, **kwargs)))
        reply = self.replies[position] if position < len(self.replies) else AIMessage("Done.")
        return ChatResult(generations=[ChatGeneration(message=reply.model_copy())])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - LangChain's signature
        **kwargs: Any,
    ) -> ChatResult:
        return self._answer(messages, kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002 - LangChain's signature
        **kwargs: Any,
    ) -> ChatResult:
        return self._answer(messages, kwargs)


def anthropic(name: str) -> ScriptedAnthropic:
    """Return a scripted model of that name; nothing is sent anywhere."""
    return ScriptedAnthropic(model_name=name, api_key=SecretStr("none"), timeout=None, stop=None)


def library(root: Path) -> None:
    """Write two skills, each with a tool of its own and one that both name."""
    for name, include in (("alpha", "ping"), ("beta", "echo ping")):
        write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, metadata={"include_tools": include})})


def read(name: str) -> tuple[str, dict[str, Any]]:
    """Return a call of `read_file` on a skill."""
    return "read_file", {"file_path": f"/skills/{name}/SKILL.md"}


@dataclass(frozen=True)
class Run:
    """One run: the skills that the user pins, and what the model says."""

    pins: Sequence[str] = ()
    replies: Sequence[AIMessage] = ()


class Talk:
    """Runs of an agent, one after the other, on one thread."""

    def __init__(self, mode: Mode, root: Path, model: Any, skills: Any, *, deep: bool = False) -> None:
        self.mode = mode
        self.model = model
        if deep:
            self.agent: Any = create_deep_agent(
                model=model, middleware=[skills], backend=disk(root), checkpointer=InMemorySaver()
            )
        else:
            files = FilesystemMiddleware[Any, Any](backend=disk(root))
            self.agent = create_agent(model, middleware=[files, skills], checkpointer=InMemorySaver())
        self.result: dict[str, Any] = {}

    def follow(self, runs: Sequence[Run]) -> None:
        """Go through runs; a model has one call more a run than it has replies."""
        for step in runs:
            self.model.replies = [*self.model.replies, *step.replies, AIMessage("Done.")]
            given = {"messages": [HumanMessage("go")], "pinned_skills": list(step.pins)}
            self.result = run(self.mode, self.agent, given, {"configurable": {"thread_id": "talk"}})


def ours(root: Path, tools: Sequence[BaseTool] = (ping, echo), **options: Any) -> SkillsMiddleware[Any, Any]:
    """Return our middleware without its section, for requests that are compared."""
    given = {"system_prompt": None, **options}
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], tools=list(tools), **given)


def theirs(root: Path, tools: Sequence[BaseTool] = (ping, echo)) -> DeepAgentsSkillsMiddleware[Any, Any]:
    """Return deepagents' middleware without its section."""
    return DeepAgentsSkillsMiddleware(backend=disk(root), sources=["/skills"], system_prompt=None, tools=list(tools))


def comparable(value: Any) -> Any:
    """Return a request without what may differ: our two tools, how a pin is worded, and marks for the cache."""
    if isinstance(value, str):
        without_names = value.replace(", load_skill, unload_skill", "")
        return _PINNED_TEXT.sub(lambda found: f"[{found[1] or found[2]} pinned]", without_names)
    if isinstance(value, list):
        return [comparable(item) for item in value if not (isinstance(item, dict) and item.get("name") in OURS_ALONE)]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key != "cache_control"}
    return value


def bound_tools(payload: dict[str, Any]) -> list[str]:
    """Return the tools that a request has up front."""
    return [item["name"] for item in payload["tools"]]


def inline_tools(payload: dict[str, Any]) -> list[str]:
    """Return the tools that a request has inside the conversation."""
    blocks = [
        block
        for message in payload["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_addition"
    ]
    return [block["tool"]["definition"]["name"] for block in blocks]


SCENARIOS: dict[str, list[Run]] = {
    "pin-later": [Run(), Run(["alpha"], [call_tools(PING)]), Run([], [call_tools(PING)])],
    "two-pins": [Run(["beta", "alpha"], [call_tools(PING), call_tools(("echo", {"text": "2"}))])],
    "read": [Run([], [call_tools(read("alpha")), call_tools(PING)]), Run([], [call_tools(PING)])],
    "two-reads-of-one-turn": [Run([], [call_tools(read("beta"), read("alpha")), call_tools(PING)])],
    "pin-then-read": [Run(["alpha"]), Run([], [call_tools(read("beta")), call_tools(PING)])],
    "read-then-pin": [Run([], [call_tools(read("beta"))]), Run(["alpha"], [call_tools(PING)])],
    "hidden-call": [Run([], [call_tools(PING)])],
}


@pytest.mark.parametrize(
    ("name", "scenario"),
    [*[(IN_CONVERSATION, scenario) for scenario in SCENARIOS], (UP_FRONT, "two-pins"), (UP_FRONT, "read")],
)
def test_anthropic_is_sent_what_deepagents_would_send(mode: Mode, tmp_path: Path, name: str, scenario: str) -> None:
    """For pins and reads both classes make the same requests, tool by tool and message by message."""
    runs = SCENARIOS[scenario]
    library(tmp_path)
    their_talk = Talk(mode, tmp_path, anthropic(name), theirs(tmp_path))
    our_talk = Talk(mode, tmp_path, anthropic(name), ours(tmp_path))

    their_talk.follow(runs)
    our_talk.follow(runs)

    assert comparable(our_talk.model.payloads) == comparable(their_talk.model.payloads)
    assert [m.text for m in tool_messages(our_talk.result) if m.status == "success"] == [
        m.text for m in tool_messages(their_talk.result) if m.status == "success"
    ]


@pytest.mark.parametrize("scenario", ["pin-later", "read"])
def test_a_deep_agent_sends_anthropic_what_deepagents_would_send(mode: Mode, tmp_path: Path, scenario: str) -> None:
    """In the slot of `create_deep_agent` too, among its other middleware."""
    library(tmp_path)
    their_talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), theirs(tmp_path), deep=True)
    our_talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), ours(tmp_path), deep=True)

    their_talk.follow(SCENARIOS[scenario])
    our_talk.follow(SCENARIOS[scenario])

    assert comparable(our_talk.model.payloads) == comparable(their_talk.model.payloads)
    assert inline_tools(our_talk.model.payloads[-1]) == ["ping"]


@pytest.mark.parametrize("scenario", ["pin-later", "read"])
@pytest.mark.parametrize("name", [IN_CONVERSATION, UP_FRONT])
def test_a_tool_is_disclosed_where_the_model_takes_it(mode: Mode, tmp_path: Path, name: str, scenario: str) -> None:
    """Inside the conversation if the model can be given tools there, else up front; never in both places."""
    library(tmp_path)
    talk = Talk(mode, tmp_path, anthropic(name), ours(tmp_path))

    talk.follow(SCENARIOS[scenario])

    first, last = talk.model.payloads[0], talk.model.payloads[-1]
    inline = name == IN_CONVERSATION
    assert ("ping" in bound_tools(first), inline_tools(first)) == (False, [])
    assert ("ping" in bound_tools(last), inline_tools(last)) == (not inline, ["ping"] if inline else [])


@pytest.mark.parametrize("scenario", ["pin-later", "read", "pin-then-read"])
def test_a_disclosure_in_the_conversation_keeps_the_prompt_cache(mode: Mode, tmp_path: Path, scenario: str) -> None:
    """System prompt and tools never change, and each request of a run begins with the one before it."""
    library(tmp_path)
    skills = SkillsMiddleware[Any, Any](
        backend=disk(tmp_path), sources=["/skills"], tools=[ping, echo], loaded_status="conversation"
    )
    talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), skills)

    for step in SCENARIOS[scenario]:
        earlier = len(talk.model.payloads)
        talk.follow([step])
        of_run = talk.model.payloads[earlier:]
        for before, after in itertools.pairwise(of_run):
            assert after["messages"][: len(before["messages"])] == before["messages"]

    assert all(payload["system"] == talk.model.payloads[0]["system"] for payload in talk.model.payloads)
    assert all(payload["tools"] == talk.model.payloads[0]["tools"] for payload in talk.model.payloads)


# --- what deepagents' class does not know ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [IN_CONVERSATION, UP_FRONT])
def test_a_load_has_its_tool_bound_until_the_unload(mode: Mode, tmp_path: Path, name: str) -> None:
    """After `load_skill` the tool stands up front with every Anthropic model, and goes with `unload_skill`."""
    library(tmp_path)
    talk = Talk(mode, tmp_path, anthropic(name), ours(tmp_path))

    talk.follow([Run([], [call_tools(load("alpha")), call_tools(PING), call_tools(unload("alpha")), call_tools(PING)])])

    assert ["ping" in bound_tools(payload) for payload in talk.model.payloads] == [False, True, True, False, False]
    assert [inline_tools(payload) for payload in talk.model.payloads] == [[]] * 5
    _, ran, _, refused = tool_messages(talk.result)
    assert ran.text == "pong 1"
    assert "ping is not a valid tool" in refused.text


@pytest.mark.parametrize("way", ["pin", "read"])
def test_an_unload_takes_the_tool_out_of_the_conversation(mode: Mode, tmp_path: Path, way: str) -> None:
    """After `unload_skill` no request discloses the tool, and a call to it is unknown."""
    library(tmp_path)
    talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), ours(tmp_path))
    talk.follow([Run(["alpha"]) if way == "pin" else Run([], [call_tools(read("alpha"))])])
    assert inline_tools(talk.model.payloads[-1]) == ["ping"]

    talk.follow([Run([], [call_tools(unload("alpha")), call_tools(PING)])])

    assert inline_tools(talk.model.payloads[-1]) == []
    assert "ping" not in bound_tools(talk.model.payloads[-1])
    assert "ping is not a valid tool" in tool_messages(talk.result)[-1].text


@pytest.mark.parametrize("way", ["pin", "read"])
def test_a_tool_of_two_skills_is_sent_once(mode: Mode, tmp_path: Path, way: str) -> None:
    """Where one skill was pinned or read and another that names the same tool is loaded, it is defined once."""
    library(tmp_path)
    talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), ours(tmp_path))
    talk.follow([Run(["alpha"]) if way == "pin" else Run([], [call_tools(read("alpha"))])])

    talk.follow([Run([], [call_tools(load("beta")), call_tools(PING)])])

    last = talk.model.payloads[-1]
    assert sorted([*bound_tools(last), *inline_tools(last)]).count("ping") == 1
    assert tool_messages(talk.result)[-1].text == "pong 1"


@pytest.mark.parametrize("way", ["load", "pin", "read"])
@pytest.mark.parametrize("combinator", ["anyOf", "allOf"])
def test_a_tool_that_anthropic_would_refuse_is_withheld(mode: Mode, tmp_path: Path, combinator: str, way: str) -> None:
    """A schema that makes the API refuse the whole request is not sent, and its tool is not callable."""
    schema: dict[str, Any] = {
        "title": "ping",
        "description": "Answer a ping.",
        "type": "object",
        "properties": {"text": {"type": "string"}},
        combinator: [{"required": ["text"]}],
    }
    refused = StructuredTool(name="ping", description="Answer a ping.", args_schema=schema, func=lambda text: text)
    library(tmp_path)
    talk = Talk(mode, tmp_path, anthropic(IN_CONVERSATION), ours(tmp_path, [refused, echo]))
    begin = {"load": call_tools(load("beta")), "read": call_tools(read("beta"))}

    talk.follow([Run(["beta"] if way == "pin" else [], [begin[way]] if way in begin else [])])
    talk.follow([Run([], [call_tools(PING), call_tools(("echo", {"text": "2"}))])])

    last = talk.model.payloads[-1]
    assert "ping" not in [*bound_tools(last), *inline_tools(last)]
    first, second = tool_messages(talk.result)[-2:]
    assert "ping is not a valid tool" in first.text
    assert second.text == "echo 2"


# --- OpenAI ------------------------------------------------------------------------------------------------------


class ScriptedOpenAI(ScriptedChatModel):
    """Stands where `langchain_openai`'s base class stands, which is too much to install for one question."""


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedOpenAI]:
    """Return a model class that deepagents takes for OpenAI's."""
    module: Any = ModuleType("langchain_openai.chat_models.base")
    module.BaseChatOpenAI = ScriptedOpenAI
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ScriptedOpenAI


OLDER_CORE = pytest.mark.filterwarnings("ignore:Unrecognized keys in model profile")
"""The oldest langchain-core that we support has not heard of the capability."""


def sent(model: ScriptedChatModel) -> list[Any]:
    """Return what a scripted model was sent, as it can be compared."""
    return [
        {
            "tools": [name for name in request.tools if name not in OURS_ALONE],
            "messages": comparable([[message.type, message.content] for message in request.messages]),
        }
        for request in model.requests
    ]


@OLDER_CORE
@pytest.mark.parametrize(
    ("where", "scenario"),
    [
        *[("in-conversation", scenario) for scenario in ("pin-later", "two-pins", "read", "pin-then-read")],
        *[("up-front", scenario) for scenario in ("two-pins", "read")],
    ],
)
def test_openai_is_sent_what_deepagents_would_send(
    mode: Mode, tmp_path: Path, openai: type[ScriptedOpenAI], where: str, scenario: str
) -> None:
    """For pins and reads both classes make the same requests of an OpenAI model."""
    library(tmp_path)
    models = [openai(replies=[], profile={"mid_conversation_tools": where == "in-conversation"}) for _ in range(2)]
    their_talk = Talk(mode, tmp_path, models[0], theirs(tmp_path))
    our_talk = Talk(mode, tmp_path, models[1], ours(tmp_path))

    their_talk.follow(SCENARIOS[scenario])
    our_talk.follow(SCENARIOS[scenario])

    assert sent(models[1]) == sent(models[0])


@OLDER_CORE
@pytest.mark.parametrize("scenario", ["pin-later", "read"])
def test_openai_is_given_the_tool_in_the_conversation(
    mode: Mode, tmp_path: Path, openai: type[ScriptedOpenAI], scenario: str
) -> None:
    """Where deepagents can give the model a tool inside the conversation, pins and reads do, and a load binds it."""
    library(tmp_path)
    model = openai(replies=[], profile={"mid_conversation_tools": True})
    inline = _inline_block_builder(model) is not None
    talk = Talk(mode, tmp_path, model, ours(tmp_path))

    talk.follow(SCENARIOS[scenario])
    disclosed = model.requests[-1]
    talk.follow([Run([], [call_tools(unload("alpha")), call_tools(load("alpha"))])])
    loaded = model.requests[-1]

    blocks = [block for message in disclosed.messages for block in message.content if isinstance(block, dict)]
    names = [item["name"] for block in blocks if block["type"] == "additional_tools" for item in block["tools"]]
    assert names == (["ping"] if inline else [])
    assert ("ping" in disclosed.tools) == (not inline)
    assert "ping" in loaded.tools
    assert "additional_tools" not in json.dumps([message.content for message in loaded.messages])
