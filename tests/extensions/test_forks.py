"""Forks: skills that run in a sub-agent, which sees none of the conversation and gives back its last message."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillForks
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, skill_md, stream, tool_messages, write_files

pytestmark = [
    both_modes,
    pytest.mark.filterwarnings("ignore:The feature `forked subagents` is in beta"),
]

CONFIG: Any = {"configurable": {"thread_id": "1"}}
WORK = "Long notes that only the sub-agent needs. " * 50


@tool
def ask_human(question: str) -> str:
    """Ask a human."""
    return f"The human says {interrupt({'question': question})}."


@tool
def take_note(runtime: ToolRuntime[Any, Any]) -> Command[Any]:
    """Work at length."""
    return Command(update={"messages": [ToolMessage(WORK, tool_call_id=runtime.tool_call_id)]})


def library(root: Path, *extensions: Any, **options: Any) -> SkillsMiddleware[Any, Any]:
    skills: dict[str, dict[str, Any]] = {
        "research": {"context": "fork", "body": "Research $ARGUMENTS now."},
        "report": {"context": "fork", "agent": "writer", "body": "Report now."},
        "stray": {"context": "fork", "agent": "nobody", "body": "Stray now."},
        "heir": {"context": "fork", "agent": "heir", "body": "Inherit now."},
        "deploy": {"context": "fork", "disable-model-invocation": "true", "body": "Deploy $ARGUMENTS now."},
        "plain": {"body": "Plain now."},
    }
    for name, fields in skills.items():
        write_files(root, {f"/skills/{name}/SKILL.md": skill_md(name, **fields)})
    return SkillsMiddleware(
        backend=options.pop("backend", disk(root)), sources=["/skills"], extensions=extensions, **options
    )


def roles(parent: list[Any], child: list[Any], is_child: Callable[[str], bool]) -> ScriptedChatModel:
    """Return a model that plays the parent's lines or the sub-agent's, by the first message of the conversation."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        first = next(message for message in messages if isinstance(message, HumanMessage))
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        lines = child if is_child(first.text) else parent
        line = lines[spoken] if spoken < len(lines) else "Done."
        return line if isinstance(line, AIMessage) else AIMessage(line)

    return ScriptedChatModel(replies=[reply] * 100)


def is_task(text: str) -> bool:
    return " now." in text


def fork_of(name: str, arguments: str = "") -> tuple[str, dict[str, Any]]:
    return "load_skill", {"skill_name": name, **({"arguments": arguments} if arguments else {})}


def test_a_deep_agent_runs_it_without_further_setup(mode: Mode, tmp_path: Path) -> None:
    """The sub-agent gets the text with its arguments and no conversation; the parent gets the answer and the files."""
    writes = call_tools(("write_file", {"file_path": "/out.txt", "content": "found"}), ("take_note", {}))
    model = roles([call_tools(fork_of("research", "whales")), "Done."], [writes, "Whales are large."], is_task)
    agent: Any = create_deep_agent(
        model, tools=[take_note], middleware=[library(tmp_path, SkillForks())], checkpointer=InMemorySaver()
    )
    result = run(mode, agent, "A secret wish.", CONFIG)
    (answer,) = tool_messages(result)
    assert "Whales are large." in answer.text
    assert answer.status == "success"
    assert "/out.txt" in result["files"]
    child = [request for request in model.requests if "Research whales now." in request.text]
    assert len(child) == 2
    assert not any("secret wish" in request.text for request in child)
    assert agent.get_state(CONFIG).values["skills_loaded"] == []
    last = model.requests[-1]
    assert WORK not in last.text
    assert "Research whales now." not in last.text
    grown = len(last.text) - len(model.requests[0].text)
    assert grown < len("Whales are large.") + 10


def test_an_agent_of_the_application_runs_it(mode: Mode, tmp_path: Path) -> None:
    """On `create_agent`, the graph that `agent:` names is given the text."""
    writer = ScriptedChatModel(replies=["The report."])
    agents = {"writer": create_agent(writer), "general-purpose": create_agent(ScriptedChatModel(replies=["Other."]))}
    talk = Conversation(mode, library(tmp_path, SkillForks(agents)))
    answers = talk.call(fork_of("report"), fork_of("research", "x"))
    assert ["The report." in answers[0].text, "Other." in answers[1].text] == [True, True]
    assert [message.type for message in writer.requests[0].messages] == ["human"]
    assert "Report now." in writer.requests[0].text
    assert talk.loaded == []


def test_state_that_the_conversation_does_not_have_is_left_out(mode: Mode, tmp_path: Path) -> None:
    """A sub-agent with files serves a conversation without."""
    writes = call_tools(("write_file", {"file_path": "/out.txt", "content": "found"}))
    helper: Any = create_deep_agent(ScriptedChatModel(replies=[writes, "Written."]))
    talk = Conversation(mode, library(tmp_path, SkillForks({"general-purpose": helper})))
    (answer,) = talk.call(fork_of("research"))
    assert answer.text == "Written."
    assert "files" not in talk.state


def test_a_plain_skill_is_loaded_as_ever(mode: Mode, tmp_path: Path) -> None:
    """Only `context: fork` forks; and without the extension nothing does."""
    talk = Conversation(mode, library(tmp_path, SkillForks()))
    talk.call(load("plain"))
    assert talk.loaded == ["plain"]
    without = Conversation(mode, library(tmp_path))
    without.call(load("research"))
    assert without.loaded == ["research"]


def test_what_cannot_run_it_is_an_error(mode: Mode, tmp_path: Path) -> None:
    """No agent, an unknown type, and a type that is given the conversation are told to the model."""
    talk = Conversation(mode, library(tmp_path, SkillForks({"writer": create_agent(ScriptedChatModel(replies=[]))})))
    (answer,) = talk.call(fork_of("research"))
    assert answer.status == "error"
    assert '"general-purpose"' in answer.text
    assert '"writer"' in answer.text
    heir: Any = {"name": "heir", "description": "Heir.", "mode": "fork", "system_prompt": "x"}
    model = roles([call_tools(fork_of("stray"), fork_of("heir")), "Done."], ["I saw it."], is_task)
    agent: Any = create_deep_agent(model, middleware=[library(tmp_path, SkillForks())], subagents=[heir])
    stray, inherited = tool_messages(run(mode, agent))
    assert (stray.status, inherited.status) == ("error", "error")
    assert "nobody" in stray.text
    assert "general-purpose" in stray.text
    assert "conversation" in inherited.text
    assert len(model.requests) == 2


def test_an_interrupt_inside_passes_through_and_resumes(mode: Mode, tmp_path: Path) -> None:
    """A human is asked from inside each sub-agent, and each goes on where it stopped."""
    asking = call_tools(("ask_human", {"question": "Go on?"}))
    calls = call_tools(fork_of("research", "a"), fork_of("research", "b"))

    def child(messages: list[BaseMessage]) -> AIMessage:
        answers = [message.text for message in messages if isinstance(message, ToolMessage)]
        return AIMessage(f"Heard: {answers[0]}") if answers else asking

    helper = create_agent(ScriptedChatModel(replies=[child] * 20), tools=[ask_human])
    deep = roles([calls, "Done."], [asking, "Heard: The human says yes."], is_task)
    agents: list[Any] = [
        create_agent(
            ScriptedChatModel(replies=[calls, "Done."]),
            middleware=[library(tmp_path, SkillForks({"general-purpose": helper}))],
            checkpointer=InMemorySaver(),
        ),
        create_deep_agent(
            deep, tools=[ask_human], middleware=[library(tmp_path, SkillForks())], checkpointer=InMemorySaver()
        ),
    ]
    for agent in agents:
        stopped = run(mode, agent, "go", CONFIG)
        interrupts = stopped["__interrupt__"]
        assert len(interrupts) == 2
        result = run(mode, agent, Command(resume={item.id: "yes" for item in interrupts}), CONFIG)
        answers = tool_messages(result)
        assert ["Heard: The human says yes." in answer.text for answer in answers] == [True, True]


def test_a_sub_agent_that_fails_is_told_and_the_run_goes_on(mode: Mode, tmp_path: Path) -> None:
    """An exception, a missing answer and a wrong result are errors of the call."""

    def explode(_messages: list[BaseMessage]) -> AIMessage:
        raise ValueError("no luck")

    broken = create_agent(ScriptedChatModel(replies=[explode]))
    silent = create_agent(ScriptedChatModel(replies=[AIMessage("")]))
    talk = Conversation(mode, library(tmp_path, SkillForks({"general-purpose": broken, "writer": silent})))
    failed, mute = talk.call(fork_of("research"), fork_of("report"))
    assert (failed.status, mute.status) == ("error", "error")
    assert "no luck" in failed.text
    assert "without an answer" in mute.text
    assert talk.result["messages"][-1].text == "Done."


def test_forks_inside_forks_are_bounded(mode: Mode, tmp_path: Path) -> None:
    """A skill never runs inside itself, and a chain of different ones ends."""
    for number in range(8):
        body = f"Step {number} now."
        write_files(
            tmp_path, {f"/skills/step-{number}/SKILL.md": skill_md(f"step-{number}", body=body, context="fork")}
        )
    forks = SkillForks()
    skills = library(tmp_path, forks)
    started: list[str] = []

    def go_on(messages: list[BaseMessage]) -> AIMessage:
        answers = [message.text for message in messages if isinstance(message, ToolMessage)]
        if answers:
            return AIMessage(f"Back: {answers[-1]}")
        first = str(messages[-1].text)
        started.append(first)
        number = int(first.partition("Step ")[2][:1]) if "Step " in first else -1
        return call_tools(fork_of(f"step-{number + 1}"))

    agent: Any = create_agent(ScriptedChatModel(replies=[go_on] * 100), middleware=[skills])
    forks._agents["general-purpose"] = agent  # noqa: SLF001 - an agent that is its own sub-agent
    (answer,) = tool_messages(run(mode, agent))
    assert len(started) == 4
    assert "at most 3 deep" in answer.text

    def again(messages: list[BaseMessage]) -> AIMessage:
        answers = [message.text for message in messages if isinstance(message, ToolMessage)]
        return AIMessage(f"Back: {answers[-1]}") if answers else call_tools(fork_of("research"))

    looping = ScriptedChatModel(replies=[again] * 100)
    forks._agents["general-purpose"] = create_agent(looping, middleware=[skills])  # noqa: SLF001
    (answer,) = tool_messages(run(mode, forks._agents["general-purpose"]))  # noqa: SLF001
    assert "never inside themselves" in answer.text
    assert len(looping.requests) == 4


def test_a_users_command_asks_the_model_to_call_it(mode: Mode, tmp_path: Path) -> None:
    """A slash command of a skill for the user alone permits one call, with the user's arguments."""
    helper = ScriptedChatModel(replies=["Deployed.", "Deployed again."])
    skills = library(tmp_path, SkillForks({"general-purpose": create_agent(helper)}), slash_commands=True)
    talk = Conversation(mode, skills)
    first, second = talk.say(
        call_tools(fork_of("deploy", "prod")), call_tools(fork_of("deploy", "prod")), given="/deploy prod"
    )
    request = talk.model.requests[0].text
    assert "load_skill" in request
    assert '"prod"' in request
    assert "Deploy prod now." not in request
    assert "Deployed." in first.text
    assert second.status == "error"
    assert len(helper.requests) == 1
    (refused,) = talk.say(call_tools(fork_of("deploy", "prod")))
    assert refused.status == "error"


def test_what_a_user_permits_is_one_call_with_the_users_arguments(mode: Mode, tmp_path: Path) -> None:
    """Of two calls in one turn one runs; other arguments do not count; the user's next message ends it."""
    helper = ScriptedChatModel(replies=[])
    skills = library(tmp_path, SkillForks({"general-purpose": create_agent(helper)}), slash_commands=True)
    talk = Conversation(mode, skills)
    calls = [fork_of("deploy", "everything"), fork_of("Deploy", "prod"), fork_of("deploy")]
    answers = talk.say(call_tools(*calls), given="/deploy prod")
    assert [answer.status for answer in answers] == ["success", "error", "error"]
    assert ["Deploy prod now." in request.text for request in helper.requests] == [True]
    talk.say("Later.", given="/deploy test")
    (late,) = talk.say(call_tools(fork_of("deploy", "test")), given="something else")
    assert late.status == "error"
    (own,) = talk.say(call_tools(fork_of("deploy", "the model's")), given="/deploy")
    assert own.status == "success"
    assert "Deploy the model's now." in helper.requests[-1].text
    assert len(helper.requests) == 2


def test_a_permit_is_for_one_call_in_the_users_turn(mode: Mode, tmp_path: Path) -> None:
    """Of several calls in one turn the first runs, and what was not used ends with the user's next message."""
    helper = ScriptedChatModel(replies=["Deployed."] * 5)
    skills = library(tmp_path, SkillForks({"general-purpose": create_agent(helper)}), slash_commands=True)
    talk = Conversation(mode, skills)
    turn = call_tools(fork_of("deploy", "prod"), fork_of("deploy", "test"), fork_of("DEPLOY", "all"))
    answers = talk.say(turn, given="/deploy prod")
    assert [answer.status for answer in answers] == ["success", "error", "error"]
    talk.say(given="/deploy prod")
    (late,) = talk.say(call_tools(fork_of("deploy", "prod")), given="Forget it.")
    assert late.status == "error"
    assert len(helper.requests) == 1


def test_a_pin_asks_the_model_too(mode: Mode, tmp_path: Path) -> None:
    """A pinned fork is not put into the conversation."""
    helper = ScriptedChatModel(replies=["Found."])
    talk = Conversation(mode, library(tmp_path, SkillForks({"general-purpose": create_agent(helper)})))
    given = {"messages": [HumanMessage("go")], "pinned_skills": ["research"]}
    (answer,) = talk.say(call_tools(fork_of("research", "x")), given=given)
    assert "load_skill" in talk.model.requests[0].text
    assert "Found." in answer.text
    assert talk.loaded == []


def test_state_of_the_conversation_does_not_reach_the_sub_agent(mode: Mode, tmp_path: Path) -> None:
    """A graph of the application gets shared state, and gives back what it changed; to-dos and skills stay apart."""
    seen: list[dict[str, Any]] = []

    class Watching(SkillsMiddleware[Any, Any]):
        def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
            seen.append(dict(state))
            return super().before_agent(state, runtime, config)

        async def abefore_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> Any:
            seen.append(dict(state))
            return await super().abefore_agent(state, runtime, config)

    watching: Any = Watching(backend=disk(tmp_path), sources=["/skills"])
    helper = create_agent(ScriptedChatModel(replies=["Found."]), middleware=[watching])
    talk = Conversation(mode, library(tmp_path, SkillForks({"general-purpose": helper})))
    talk.call(load("plain"))
    talk.call(fork_of("research"))
    (state,) = seen
    assert len(state["messages"]) == 1
    assert not state.get("skills_loaded")
    assert talk.loaded == ["plain"]


def test_cancelling_the_run_cancels_the_sub_agent(mode: Mode, tmp_path: Path) -> None:
    """A run that is cancelled while a sub-agent works ends, and so does the sub-agent."""
    if mode == "sync":
        return
    ended: list[str] = []
    has_started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        has_started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "late"

    helper = create_agent(ScriptedChatModel(replies=[call_tools(("wait", {}))]), tools=[wait])
    model = ScriptedChatModel(replies=[call_tools(fork_of("research"))])
    agent: Any = create_agent(model, middleware=[library(tmp_path, SkillForks({"general-purpose": helper}))])

    async def cancelled() -> None:
        running = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}))
        await has_started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert ended == ["cancelled"]


def test_the_sub_agents_messages_stream(mode: Mode, tmp_path: Path) -> None:
    """A stream with sub-graphs shows the sub-agent at work."""
    helper = create_agent(ScriptedChatModel(replies=["Found."]))
    model = ScriptedChatModel(replies=[call_tools(fork_of("research")), "Done."])
    agent: Any = create_agent(model, middleware=[library(tmp_path, SkillForks({"general-purpose": helper}))])
    parts = stream(mode, agent, kinds="updates", subgraphs=True)
    inner = [update for namespace, update in parts if namespace]
    assert any("Found." in str(update) for update in inner)
