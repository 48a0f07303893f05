"""Tools that belong to skills: callable while a skill that names them is in use, unknown otherwise."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from deepagents import create_deep_agent
from deepagents.middleware import FilesystemMiddleware
from deepagents.middleware.skills import disclosed_skill_tool_names
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, SummarizationMiddleware
from langchain.agents.middleware.types import ModelResponse, ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    MODES,
    Conversation,
    Mode,
    both_modes,
    disk,
    load,
    pin_skills,
    run,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

Call: TypeAlias = tuple[str, dict[str, Any]]
Tools: TypeAlias = Sequence[Any] | Callable[..., Any] | None


@tool
def ping(text: str) -> str:
    """Answer a ping."""
    return f"pong {text}"


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return f"echo {text}"


def plain_ping(text: str) -> str:
    """Answer a ping."""
    return f"pong {text}"


plain_ping.__name__ = "ping"

BY_NAME: dict[str, list[BaseTool]] = {"ping": [ping], "echo": [echo], "kit": [ping, echo]}
PING: Call = ("ping", {"text": "1"})
ECHO: Call = ("echo", {"text": "1"})


def resolve(name: str, runtime: object) -> list[BaseTool]:  # noqa: ARG001 - a resolver's signature
    return BY_NAME.get(name, [])


async def aresolve(name: str, runtime: object) -> list[BaseTool]:
    await asyncio.sleep(0)
    return resolve(name, runtime)


KINDS: list[tuple[str, Mode, Tools]] = [
    ("list-of-tools", "sync", [ping, echo]),
    ("list-of-functions", "async", [plain_ping]),
    *[("sync-resolver", mode, resolve) for mode in MODES],
    *[("async-resolver", mode, aresolve) for mode in MODES],
]
"""What `tools=` may be."""

EACH_KIND = pytest.mark.parametrize(("mode", "tools"), [pytest.param(m, t, id=f"{n}-{m}") for n, m, t in KINDS])

WAYS = ("load", "pin", "read")
"""How a skill comes into use."""


def with_tools(name: str, include: str) -> dict[str, str]:
    """Return a skill that names tools, by its path."""
    return {f"skills/{name}/SKILL.md": skill_md(name, metadata={"include_tools": include})}


class DeepConversation(Conversation):
    """A conversation with an agent of `create_deep_agent`."""

    def __init__(self, mode: Mode, root: Path, middleware: SkillsMiddleware[Any, Any]) -> None:
        super().__init__(mode)
        self.agent = create_deep_agent(
            model=self.model,
            tools=[pin_skills],
            middleware=[middleware],
            backend=disk(root),
            checkpointer=InMemorySaver(),
        )


def talk(
    mode: Mode,
    root: Path,
    tools: Tools,
    *inner: AgentMiddleware[Any, Any],
    own: Sequence[BaseTool] = (),
    **options: Any,
) -> Conversation:
    """Return a conversation with an agent that has file tools and the skills below `root`."""
    skills = SkillsMiddleware[Any, Any](backend=disk(root), sources=["/skills"], tools=tools, **options)
    return Conversation(mode, FilesystemMiddleware(backend=disk(root)), skills, *inner, tools=[pin_skills, *own])


def use(way: str, name: str = "alpha") -> Call:
    """Return the call that brings a skill into use in one of three ways."""
    calls: dict[str, Call] = {
        "load": load(name),
        "pin": ("pin_skills", {"names": [name]}),
        "read": ("read_file", {"file_path": f"/skills/{name}/SKILL.md"}),
    }
    return calls[way]


def play(conversation: Conversation, *calls: Call) -> list[str]:
    """Have the model make these calls, one a turn of one run, and say what came of each."""
    return [outcome(answer) for answer in conversation.say(*[call_tools(call) for call in calls])]


def outcome(answer: ToolMessage) -> str:
    """Say what came of a call: `ok` for one that serves skills, `unknown`, or the tool's own text."""
    if answer.status == "error":
        return "unknown" if " is not a valid tool" in answer.text else answer.text
    return answer.text if answer.name in {"ping", "echo"} else "ok"


# --- the life of a skill's tool ----------------------------------------------------------------------------------


@EACH_KIND
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_is_callable_only_while_its_skill_is_in_use(mode: Mode, tmp_path: Path, tools: Tools, way: str) -> None:
    """Unknown before, callable after a load, a pin or a read, unknown after an unload, and callable once more."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    check_the_life_of_a_tool(talk(mode, tmp_path, tools), way)


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_is_callable_in_a_deep_agent_too(mode: Mode, tmp_path: Path, way: str) -> None:
    """In an agent of `create_deep_agent` a skill's tool comes and goes in the same way."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    skills = SkillsMiddleware[Any, Any](backend=disk(tmp_path), sources=["/skills"], tools=[ping, echo])
    check_the_life_of_a_tool(DeepConversation(mode, tmp_path, skills), way)


def check_the_life_of_a_tool(conversation: Conversation, way: str) -> None:
    """Assert that a tool is known and shown while its skill is in use, and neither before nor after."""
    outcomes = play(conversation, PING, use(way), PING, unload("alpha"), PING, use(way), PING)

    assert outcomes == ["unknown", "ok", "pong 1", "ok", "unknown", "ok", "pong 1"]
    shown = ["ping" in request.tools for request in conversation.model.requests]
    assert shown == [False, False, True, True, False, False, True, True]


@both_modes
def test_a_tool_is_callable_in_the_runs_after(mode: Mode, tmp_path: Path) -> None:
    """What is in use stays in use for the thread, and so does what was pinned with the user's message."""
    write_files(tmp_path, {**with_tools("alpha", "ping"), **with_tools("beta", "echo")})
    conversation = talk(mode, tmp_path, [ping, echo])

    conversation.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["alpha"]})
    play(conversation, load("beta"))

    assert play(conversation, PING, ECHO) == ["pong 1", "echo 1"]
    assert play(conversation, unload("alpha"), unload("beta")) == ["ok", "ok"]
    assert play(conversation, PING, ECHO) == ["unknown", "unknown"]


@both_modes
def test_reading_a_skill_does_not_load_it(mode: Mode, tmp_path: Path) -> None:
    """`read_file` discloses the tools and leaves `skills_loaded` alone, and so does the unload that takes them."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping])

    play(conversation, use("read"))
    assert conversation.loaded == []
    first, second = conversation.say(call_tools(unload("alpha")), call_tools(unload("alpha")))

    assert (first.status, second.status) == ("success", "error")
    assert conversation.loaded == []
    assert "records" not in conversation.state["skills_context"]


@both_modes
def test_a_skill_without_tools_that_was_only_read_is_not_loaded(mode: Mode, tmp_path: Path) -> None:
    """`unload_skill` has nothing to take from such a skill and says that it is not loaded."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    conversation = talk(mode, tmp_path, [ping])

    _read, answer = conversation.say(call_tools(use("read")), call_tools(unload("alpha")))

    assert answer.status == "error"
    assert "not loaded" in answer.text


@pytest.mark.parametrize("path", ["/skills/alpha/SKILL.md", "skills/alpha/SKILL.md", "/skills//alpha/./SKILL.md"])
def test_a_read_counts_however_its_path_is_written(mode: Mode, tmp_path: Path, path: str) -> None:
    """The tool comes with the read and goes with the unload for every spelling that `read_file` takes."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping])

    outcomes = play(conversation, ("read_file", {"file_path": path, "limit": 1}), PING, unload("alpha"), PING)

    assert outcomes == ["ok", "pong 1", "ok", "unknown"]


@pytest.mark.parametrize("path", ["/skills/alpha/notes.md", "/skills/beta/SKILL.md", "/skills/none/SKILL.md"])
def test_reading_another_file_discloses_nothing(mode: Mode, tmp_path: Path, path: str) -> None:
    """Only a successful read of the skill's own `SKILL.md` counts."""
    write_files(tmp_path, {**with_tools("alpha", "ping"), **with_tools("beta", "echo"), "skills/alpha/notes.md": "n"})
    conversation = talk(mode, tmp_path, [ping, echo])

    _read, called = play(conversation, ("read_file", {"file_path": path}), PING)

    assert called == "unknown"


@pytest.mark.parametrize(
    ("first", "second"), [("load", "read"), ("read", "load"), ("pin", "read"), ("read", "pin"), ("read", "read")]
)
def test_an_unload_ends_every_way_of_use(mode: Mode, tmp_path: Path, first: str, second: str) -> None:
    """One `unload_skill` takes the tool away, however often the skill was loaded, pinned or read before."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping])

    outcomes = play(conversation, use(first), use(second), PING, unload("alpha"), PING)

    assert outcomes == ["ok", "ok", "pong 1", "ok", "unknown"]


@both_modes
def test_a_load_of_the_same_turn_comes_too_late_for_the_call(mode: Mode, tmp_path: Path) -> None:
    """The model was not shown the tool when it called it, so the call fails; the next turn may."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping])

    loaded, called = conversation.call(load("alpha"), PING)

    assert (outcome(loaded), outcome(called)) == ("ok", "unknown")
    assert play(conversation, PING) == ["pong 1"]


@both_modes
def test_threads_that_share_a_middleware_do_not_share_tools(mode: Mode, tmp_path: Path) -> None:
    """What one thread has loaded is unknown to another."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping])
    play(conversation, load("alpha"))
    conversation.model.replies = [*(["."] * len(conversation.model.requests)), call_tools(PING)]

    result = run(mode, conversation.agent, config={"configurable": {"thread_id": "another"}})

    assert [outcome(answer) for answer in tool_messages(result)] == ["unknown"]
    assert play(conversation, PING) == ["pong 1"]


@pytest.mark.parametrize("way", ["load", "pin"])
def test_the_tool_of_a_loaded_skill_survives_compaction(mode: Mode, tmp_path: Path, way: str) -> None:
    """A loaded skill keeps its tool when a summary takes the message that brought it; an unload ends that too."""
    write_files(tmp_path, with_tools("alpha", "ping"))
    summarizer = SummarizationMiddleware(
        ScriptedChatModel(replies=["They talked."] * 30), trigger=("messages", 6), keep=("messages", 2)
    )
    skills = SkillsMiddleware[Any, Any](backend=disk(tmp_path), sources=["/skills"], tools=[ping])
    conversation = Conversation(mode, summarizer, skills, tools=[pin_skills])
    play(conversation, use(way))
    for _ in range(4):
        conversation.say()
    assert not any("Instructions of alpha." in message.text for message in conversation.result["messages"])

    conversation.call(PING)
    during = tool_messages(conversation.result)[-1]
    conversation.say(call_tools(unload("alpha")), call_tools(PING))
    after = tool_messages(conversation.result)[-1]

    assert (outcome(during), outcome(after)) == ("pong 1", "unknown")


@pytest.mark.parametrize("way", WAYS)
def test_a_skill_that_is_gone_takes_its_tool_along(mode: Mode, tmp_path: Path, way: str) -> None:
    """When a later discovery no longer has the skill, its tool is unknown again."""
    write_files(tmp_path, {**with_tools("alpha", "ping"), **with_tools("beta", "echo")})
    conversation = talk(mode, tmp_path, [ping, echo], refresh="run")

    assert play(conversation, use(way), PING) == ["ok", "pong 1"]
    (tmp_path / "skills/alpha/SKILL.md").unlink()

    assert play(conversation, PING) == ["unknown"]


# --- names and tools ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [("load", "load"), ("load", "read"), ("pin", "load"), ("pin", "pin"), ("read", "load"), ("read", "read")],
)
def test_a_shared_tool_stays_until_the_last_skill_goes(mode: Mode, tmp_path: Path, first: str, second: str) -> None:
    """Of two skills in use that name one tool, unloading one leaves it callable, unloading both does not."""
    write_files(tmp_path, {**with_tools("alpha", "ping"), **with_tools("beta", "echo ping")})
    conversation = talk(mode, tmp_path, [ping, echo])

    both = play(conversation, use(first, "alpha"), use(second, "beta"), PING)
    one = play(conversation, unload("alpha"), PING)
    none = play(conversation, unload("beta"), PING)

    assert [both, one, none] == [["ok", "ok", "pong 1"], ["ok", "pong 1"], ["ok", "unknown"]]
    assert {request.tools.count("ping") for request in conversation.model.requests} == {0, 1}


@EACH_KIND
def test_one_name_may_stand_for_several_tools(mode: Mode, tmp_path: Path, tools: Tools) -> None:
    """Every tool that a resolver gives for a name comes and goes with the skill; a list knows only exact names."""
    write_files(tmp_path, with_tools("alpha", "kit"))
    conversation = talk(mode, tmp_path, tools)

    outcomes = play(conversation, load("alpha"), PING, ECHO, unload("alpha"), PING, ECHO)

    during = ["pong 1", "echo 1"] if callable(tools) else ["unknown", "unknown"]
    assert outcomes == ["ok", *during, "ok", "unknown", "unknown"]


@pytest.mark.parametrize(
    "line",
    [
        "include_tools: ping echo",
        "include_tools: ping, echo",
        "include_tools: ping,echo",
        "include_tools: '  ping   echo  ping '",
        "include_tools: [ping, echo]",
        'include_tools: ["ping", "echo"]',
        "include_tools:\n    - ping\n    - echo",
        "include_tools: >\n    ping\n    echo",
    ],
    ids=["spaces", "comma-space", "commas", "repeated", "flow-list", "quoted-list", "list", "folded"],
)
def test_names_may_be_written_in_every_common_way(mode: Mode, tmp_path: Path, line: str) -> None:
    """Spaces, commas and YAML lists all name the same tools, whether the skill is read or loaded."""
    text = f"---\nname: alpha\ndescription: Pings.\nmetadata:\n  {line}\n---\n# Alpha\n"
    write_files(tmp_path, {"skills/alpha/SKILL.md": text})
    conversation = talk(mode, tmp_path, [ping, echo])

    read = play(conversation, use("read"), PING, ECHO, unload("alpha"))
    loaded = play(conversation, use("load"), PING, ECHO, unload("alpha"))

    assert read == loaded == ["ok", "pong 1", "echo 1", "ok"]


@pytest.mark.parametrize("way", ["load", "read"])
def test_a_name_that_stands_for_nothing_costs_nothing(mode: Mode, tmp_path: Path, way: str) -> None:
    """A skill may name a tool that this agent does not have; its other tools work."""
    write_files(tmp_path, with_tools("alpha", "unheard-of ping"))
    conversation = talk(mode, tmp_path, [ping])

    assert play(conversation, use(way), PING, ("unheard-of", {})) == ["ok", "pong 1", "unknown"]


@pytest.mark.parametrize("way", ["load", "read"])
def test_the_agents_own_tool_is_never_gated(mode: Mode, tmp_path: Path, way: str) -> None:
    """A tool of the agent that a skill names too runs before, during and after its use, and is shown once."""

    @tool("ping")
    def own_ping(text: str) -> str:
        """Answer as the agent's own."""
        return f"own {text}"

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [ping], own=[own_ping])

    outcomes = play(conversation, PING, use(way), PING, unload("alpha"), PING)

    assert outcomes == ["own 1", "ok", "own 1", "ok", "own 1"]
    assert {request.tools.count("ping") for request in conversation.model.requests} == {1}


@pytest.mark.parametrize("way", ["load", "read"])
def test_a_skills_tool_may_use_the_runtime(mode: Mode, tmp_path: Path, way: str) -> None:
    """A tool that takes a `ToolRuntime` gets that of its own call, and may return a `Command`."""

    @tool("ping")
    def runtime_ping(text: str, runtime: ToolRuntime[Any, Any]) -> Command[Any]:
        """Answer with what the thread has loaded."""
        answer = f"{text} {sorted(runtime.state['skills_metadata'][0]['metadata'])}"
        return Command(update={"messages": [ToolMessage(answer, name="ping", tool_call_id=runtime.tool_call_id)]})

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, [runtime_ping])

    assert play(conversation, use(way), PING) == ["ok", "1 ['include_tools']"]


# --- deferred tools ----------------------------------------------------------------------------------------------


class Peek(AgentMiddleware[Any, Any]):
    """Stands behind the skills and remembers the requests that they send on."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest[Any]] = []

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        self.requests.append(request)
        return handler(request)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        self.requests.append(request)
        return await handler(request)

    def extras(self, name: str) -> list[list[dict[str, Any] | None]]:
        """Return the extras of the tools of that name, request by request."""
        return [
            [found.extras for found in request.tools if isinstance(found, BaseTool) and found.name == name]
            for request in self.requests
        ]


@pytest.mark.parametrize("way", WAYS)
def test_a_deferred_tool_is_shown_while_its_skill_is_in_use(mode: Mode, tmp_path: Path, way: str) -> None:
    """An own tool with `defer_loading` is sent in full while a skill in use names it, and deferred again after."""
    deferred = ping.model_copy(update={"extras": {"defer_loading": True, "kept": 1}})
    write_files(tmp_path, with_tools("alpha", "ping"))
    peek = Peek()
    conversation = talk(mode, tmp_path, None, peek, own=[deferred])

    outcomes = play(conversation, use(way), PING, unload("alpha"), PING)

    assert outcomes == ["ok", "pong 1", "ok", "pong 1"]
    held, sent = [{"defer_loading": True, "kept": 1}], [{"kept": 1}]
    assert peek.extras("ping") == [held, sent, sent, held, held]
    assert deferred.extras == {"defer_loading": True, "kept": 1}


@pytest.mark.parametrize("way", ["load", "read"])
def test_a_deferred_tool_is_shown_for_a_name_that_stands_for_it(mode: Mode, tmp_path: Path, way: str) -> None:
    """A resolver's name may lead to an own tool that is deferred; the agent's own is the one that is shown."""
    deferred = ping.model_copy(update={"extras": {"defer_loading": True}})
    write_files(tmp_path, with_tools("alpha", "kit"))
    peek = Peek()
    conversation = talk(mode, tmp_path, resolve, peek, own=[deferred])

    play(conversation, use(way))

    assert peek.extras("ping") == [[{"defer_loading": True}], [{}]]
    assert disclosed_skill_tool_names(conversation.state) == {"echo"}


@pytest.mark.parametrize("way", ["load", "read"])
def test_middleware_behind_the_skills_sees_the_true_state(mode: Mode, tmp_path: Path, way: str) -> None:
    """The state in the request that is sent on holds the catalog as discovery wrote it."""
    write_files(tmp_path, {**with_tools("alpha", "ping"), **with_tools("beta", "echo ping")})
    peek = Peek()
    conversation = talk(mode, tmp_path, [ping, echo], peek)

    play(conversation, use(way), unload("alpha"))

    catalogs = [request.state.get("skills_metadata") for request in peek.requests]
    assert catalogs == [conversation.state["skills_metadata"]] * len(catalogs)


# --- the record of what is callable ------------------------------------------------------------------------------


class Gate(AgentMiddleware[Any, Any]):
    """Asks deepagents at each call which skill tools the model has been shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, set[str]]] = []

    def _note(self, request: ToolCallRequest) -> None:
        self.seen.append((request.tool_call["name"], set(disclosed_skill_tool_names(request.state))))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        self._note(request)
        return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        self._note(request)
        return await handler(request)


@pytest.mark.parametrize(
    ("place", "way"),
    [("before", "load"), ("before", "read"), ("behind", "load"), ("behind", "pin"), ("behind", "read")],
)
def test_other_middleware_learns_what_is_callable(mode: Mode, tmp_path: Path, place: str, way: str) -> None:
    """`disclosed_skill_tool_names` names the tools that the model was shown, and no longer after an unload."""
    write_files(tmp_path, {**with_tools("alpha", "kit"), **with_tools("beta", "ping")})
    gate = Gate()
    skills = SkillsMiddleware[Any, Any](backend=disk(tmp_path), sources=["/skills"], tools=resolve)
    order: list[AgentMiddleware[Any, Any]] = [gate, skills] if place == "before" else [skills, gate]
    conversation = Conversation(mode, FilesystemMiddleware(backend=disk(tmp_path)), *order, tools=[pin_skills])

    play(conversation, PING, use(way), PING, unload("alpha"), PING)

    kit = {"ping", "echo"}
    assert [names for _, names in gate.seen] == [set(), set(), kit, kit, set()]
    assert [name for name, _ in gate.seen[2:]] == ["ping", "unload_skill", "ping"]


@both_modes
def test_the_record_names_what_each_tool_came_by(mode: Mode, tmp_path: Path) -> None:
    """State maps each tool to the name that stands for it, by whichever way its skill came into use."""
    write_files(tmp_path, {**with_tools("alpha", "kit"), **with_tools("beta", "ping"), **with_tools("gamma", "echo")})
    conversation = talk(mode, tmp_path, resolve)

    play(conversation, use("load", "beta"))
    first = conversation.state["_skill_tools_disclosed"]
    play(conversation, use("read", "gamma"))
    second = conversation.state["_skill_tools_disclosed"]
    play(conversation, unload("beta"), unload("gamma"))

    assert first == {"ping": "ping"}
    assert second == {"echo": "echo", "ping": "ping"}
    assert list(second) == ["echo", "ping"]
    assert conversation.state["_skill_tools_disclosed"] == {}


# --- resolvers that fail -----------------------------------------------------------------------------------------


def _raise(name: str, runtime: object) -> list[BaseTool]:
    raise LookupError(f"no connection for {name} in {type(runtime).__name__}")


@dataclass(frozen=True)
class Fault:
    """A resolver that does not do its work, and what is said about it."""

    label: str
    resolver: Callable[[str, object], Any]
    says: str


FAULTS = [
    Fault("raises", _raise, "no connection for ping"),
    Fault("none", lambda _name, _runtime: None, "NoneType"),
    Fault("text", lambda _name, _runtime: "ping", "str"),
    Fault("empty-text", lambda _name, _runtime: "", "str"),
    Fault("names", lambda _name, _runtime: ["ping"], "list"),
    Fault("bare-tool", lambda _name, _runtime: ping, "StructuredTool"),
    Fault("functions", lambda _name, _runtime: [plain_ping], "list"),
]

EACH_FAULT = pytest.mark.parametrize(
    ("fault", "way"),
    [
        *[pytest.param(fault, "load", id=f"{fault.label}-load") for fault in FAULTS],
        *[pytest.param(FAULTS[0], way, id=f"{FAULTS[0].label}-{way}") for way in ("pin", "read")],
    ],
)


@EACH_FAULT
def test_a_resolver_that_fails_costs_its_tools_and_not_the_run(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault, way: str
) -> None:
    """Its name and the reason are logged as an error, the tool stays unknown, and other tools work."""

    def resolver(name: str, runtime: object) -> Any:
        return fault.resolver(name, runtime) if name == "ping" else resolve(name, runtime)

    write_files(tmp_path, with_tools("alpha", "ping echo"))
    conversation = talk(mode, tmp_path, resolver)

    with caplog.at_level(logging.ERROR, "deepskills"):
        play(conversation, use(way))

    logged = [record.getMessage() for record in caplog.records if record.name == "deepskills"]
    assert logged
    assert all("ping" in line and fault.says in line for line in logged)
    assert conversation.result["messages"][-1].text == "Done."
    assert play(conversation, PING, ECHO) == ["unknown", "echo 1"]


@EACH_FAULT
def test_a_resolver_that_fails_at_the_call_answers_with_an_error(
    mode: Mode, tmp_path: Path, fault: Fault, way: str
) -> None:
    """A tool that was shown and can no longer be resolved is an error that says why; the run goes on."""
    broken = False

    def resolver(name: str, runtime: object) -> Any:
        return fault.resolver(name, runtime) if broken else resolve(name, runtime)

    def break_it(_messages: object) -> Any:
        nonlocal broken
        broken = True
        return call_tools(PING)

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, resolver)

    _use, answer = conversation.say(call_tools(use(way)), break_it)
    broken = False

    assert answer.status == "error"
    assert answer.name == "ping"
    assert "'ping'" in answer.text
    assert fault.says in answer.text
    assert conversation.result["messages"][-1].text == "Done."
    assert play(conversation, PING) == ["pong 1"]


@pytest.mark.parametrize("fault", [FAULTS[0], FAULTS[1], FAULTS[4]], ids=lambda fault: fault.label)
def test_an_async_resolver_that_fails_costs_its_tools_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    """What holds for a sync resolver holds for an async one."""

    async def resolver(name: str, runtime: object) -> Any:
        await asyncio.sleep(0)
        return fault.resolver(name, runtime)

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk("async", tmp_path, resolver)

    with caplog.at_level(logging.ERROR, "deepskills"):
        outcomes = play(conversation, load("alpha"), PING)

    assert fault.says in caplog.text
    assert outcomes == ["ok", "unknown"]


@both_modes
def test_a_tool_that_the_resolver_no_longer_gives_is_unknown(mode: Mode, tmp_path: Path) -> None:
    """A shown tool that is gone when it is called fails as an unknown tool."""
    gone = False

    def resolver(name: str, runtime: object) -> list[BaseTool]:
        return [] if gone else resolve(name, runtime)

    def take_away(_messages: object) -> Any:
        nonlocal gone
        gone = True
        return call_tools(PING)

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, resolver)

    _load, answer = conversation.say(call_tools(load("alpha")), take_away)

    assert outcome(answer) == "unknown"


@dataclass(frozen=True)
class User:
    """Who is served."""

    name: str


@both_modes
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_resolver_is_given_the_name_and_the_runtime(mode: Mode, tmp_path: Path, colour: Mode) -> None:
    """At the model call and at the tool call alike, the runtime has the context of the run."""
    asked: list[tuple[str, str]] = []

    def resolver(name: str, runtime: Any) -> list[BaseTool]:
        asked.append((name, runtime.context.name))
        return resolve(name, runtime)

    async def async_resolver(name: str, runtime: Any) -> list[BaseTool]:
        await asyncio.sleep(0)
        return resolver(name, runtime)

    write_files(tmp_path, with_tools("alpha", "kit"))
    model = ScriptedChatModel(replies=[call_tools(load("alpha")), call_tools(PING)])
    skills = SkillsMiddleware[User, Any](
        backend=disk(tmp_path),
        sources=["/skills"],
        tools=async_resolver if (colour, mode) == ("async", "async") else resolver,
    )
    agent: Any = create_agent(model, middleware=[skills], context_schema=User)

    result = run(mode, agent, context=User("ann"))

    assert tool_messages(result)[-1].text == "pong 1"
    assert asked == [("kit", "ann")] * 3


@both_modes
def test_an_interrupt_in_a_resolver_passes_through(mode: Mode, tmp_path: Path) -> None:
    """A resolver may ask a human; the run pauses, and goes on with the answer."""

    def resolver(name: str, runtime: object) -> list[BaseTool]:
        return resolve(name, runtime) if interrupt(f"May I have {name}?") == "yes" else []

    write_files(tmp_path, with_tools("alpha", "ping"))
    conversation = talk(mode, tmp_path, resolver)

    conversation.say(call_tools(load("alpha")))
    paused = conversation.result["__interrupt__"]
    run(mode, conversation.agent, Command(resume="yes"), conversation.config)

    assert [asked.value for asked in paused] == ["May I have ping?"]
    assert "ping" in conversation.model.requests[-1].tools
