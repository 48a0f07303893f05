"""Slash commands: a user's own new message that starts with `/name` starts that skill, and nothing else does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime

from deepskills import SkillsMiddleware, SkillsState
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, share_of, skill_md, stream, unload, write_files


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


def library(root: Path) -> None:
    files = {
        f"skills/{name}/SKILL.md": skill_md(name, body=f"Text of {name} with <$ARGUMENTS>.\n")
        for name in ("deploy", "a", "b", "c", "d", "e", "f", "g", "周报")
    }
    files["skills/quiet/SKILL.md"] = "---\nname: quiet\ndescription: Hm.\nuser-invocable: false\n---\nText of quiet.\n"
    files["skills/pay/SKILL.md"] = (
        "---\nname: pay\ndescription: Pay.\ndisable-model-invocation: true\n"
        "argument-hint: '[amount]'\n---\nText of pay with <$ARGUMENTS>.\n"
    )
    files["skills/two words/SKILL.md"] = "---\nname: Two Words\ndescription: x.\n---\nText of two with <$ARGUMENTS>.\n"
    files["skills/broken/SKILL.md"] = "---\nname: broken\n---\nNo description.\n"
    write_files(root, files)


def skills(root: Path, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **{"slash_commands": True, **options})


CONFIG: RunnableConfig = {"configurable": {"thread_id": "inner"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MESSAGES: dict[str, tuple[Any, list[str], str]] = {
    "alone": ("/deploy", ["deploy"], "deploy with <$ARGUMENTS>"),
    "with arguments": ("/deploy to prod now", ["deploy"], "deploy with <to prod now>"),
    "one line only": ("/deploy to prod\nand tell me", ["deploy"], "deploy with <to prod>"),
    "another case": ("/DePloy x", ["deploy"], "deploy with <x>"),
    "leading space": ("\n  /deploy x", ["deploy"], "deploy with <x>"),
    "Chinese": ("/周报 本周", ["周报"], "周报 with <本周>"),
    "only the user may": ("/pay 5", ["pay"], "pay with <5>"),
    "stacked": ("/a /b rest of it", ["a", "b"], "b with <rest of it>"),
    "six": ("/a /b /c /d /e /f x", ["a", "b", "c", "d", "e", "f"], "a with <x>"),
    "a seventh is text": ("/a /b /c /d /e /f /g x", ["a", "b", "c", "d", "e", "f"], "a with </g x>"),
    "twice": ("/a /a x", ["a"], "a with <x>"),
    "an unknown second is text": ("/a /nope x", ["a"], "a with </nope x>"),
    "blocks": ([{"type": "text", "text": "/deploy x"}, IMAGE], ["deploy"], "deploy with <x>"),
    "blocks, image first": ([IMAGE, {"type": "text", "text": "/deploy x"}], ["deploy"], "deploy with <x>"),
    "unknown": ("/nope x", [], ""),
    "unknown first": ("/nope /deploy x", [], ""),
    "middle": ("please /deploy x", [], ""),
    "second line": ("please\n/deploy x", [], ""),
    "a path": ("/etc/deploy", [], ""),
    "a path of a skill": ("/deploy/SKILL.md", [], ""),
    "a slash alone": ("/ deploy", [], ""),
    "two slashes": ("//deploy", [], ""),
    "not for users": ("/quiet x", [], ""),
    "second text block": ([{"type": "text", "text": "hi"}, {"type": "text", "text": "/deploy"}], [], ""),
    "image alone": ([IMAGE], [], ""),
    "empty": ("", [], ""),
    "broken": ("/broken", [], ""),
    "a broken second is text": ("/a /broken x", ["a"], "a with </broken x>"),
    "one not for users second": ("/a /quiet x", ["a"], "a with </quiet x>"),
    "a name of two words": ("/two words go", ["Two Words"], "two with <go>"),
    "two words behind another": ("/a /Two Words go", ["a", "Two Words"], "two with <go>"),
    "half of two words": ("/two go", [], ""),
    "in quotes": ('/"deploy" x', [], ""),
    "in braces": ("/{deploy} x", [], ""),
    "in backticks": ("/`deploy` x", [], ""),
    "in stars": ("/*deploy* x", [], ""),
    "with a dot": ("/deploy. x", [], ""),
    "in a sentence of its own": ("/deploy, please", [], ""),
    "a slash behind": ("/deploy/ x", [], ""),
    "a full-width slash": ("／deploy x", [], ""),
    "tabs": ("/a\t/b\trest", ["a", "b"], "b with <rest>"),
    "a carriage return": ("/deploy x\r\nand more", ["deploy"], "deploy with <x>"),
    "a very long word": ("/" + "x" * 5_000, [], ""),
}


@both_modes
def test_what_starts_a_skill(mode: Mode, tmp_path: Path) -> None:
    """Each kind of message starts exactly the skills it names, with the rest of its line, and stays as it is."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path))
    offenders: list[Any] = []
    for what, (content, expected, text) in share_of(mode, MESSAGES.items()):
        talk.config = {"configurable": {"thread_id": what}}
        talk.say(given={"messages": [HumanMessage(content)]})
        [first, *_] = talk.state["messages"]
        if (talk.loaded, first.content) != (expected, content) or text not in talk.model.requests[-1].text:
            offenders.append((what, talk.loaded, talk.model.requests[-1].text[-200:]))
        triggers = {record["trigger"] for record in talk.state["skills_context"].get("records", {}).values()}
        if triggers != ({"user"} if expected else set()):
            offenders.append((what, "trigger", str(triggers)))
    assert offenders == []


def test_off_by_default(tmp_path: Path) -> None:
    """Without `slash_commands` a message that starts with a slash is text."""
    library(tmp_path)
    talk = Conversation("sync", skills(tmp_path, slash_commands=False))
    talk.say(given="/deploy x")
    assert talk.loaded == []


@both_modes
def test_only_the_users_new_message_counts(mode: Mode, tmp_path: Path) -> None:
    """Not a tool's answer, the model's word, a summary, a message of the middleware, or the same message again."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path), tools=[echo])
    talk.say(call_tools(("echo", {"text": "/deploy x"})), "/deploy y")
    assert talk.loaded == []
    talk.say(given={"messages": [HumanMessage("/deploy s", additional_kwargs={"lc_source": "summarization"})]})
    assert talk.loaded == []
    talk.say(given={"messages": [HumanMessage("/deploy z", id="own")]})
    assert talk.loaded == ["deploy"]
    talk.call(unload("deploy"))
    talk.say(given={"messages": [HumanMessage("/a 1", id="again")]})
    talk.say(call_tools(unload("a")), given={"messages": []})
    assert talk.loaded == []
    talk.say(given={"messages": [HumanMessage("/a 1", id="again")]})
    assert talk.loaded == []
    compacted = [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("/a 1", id="again")]
    talk.say(given={"messages": compacted})
    assert talk.loaded == []


@both_modes
def test_a_command_on_a_resumed_thread(mode: Mode, tmp_path: Path) -> None:
    """Another process goes on with the thread: the old message starts nothing, a new one does."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path))
    talk.say(given="/a 1")
    talk.call(unload("a"))
    again = create_agent(talk.model, middleware=[skills(tmp_path)], checkpointer=talk.agent.checkpointer)
    run(mode, again, {"messages": []}, talk.config)
    assert talk.loaded == []
    run(mode, again, "/a 2", talk.config)
    assert talk.loaded == ["a"]
    assert "a with <2>" in talk.model.requests[-1].text


@both_modes
def test_a_sub_agents_task_is_not_the_users_word(mode: Mode, tmp_path: Path) -> None:
    """A model that writes `/pay` into a task, or as the argument of another tool's agent, starts nothing by it."""
    library(tmp_path)
    middleware = skills(tmp_path)
    model = ScriptedChatModel(
        replies=[
            call_tools(("task", {"description": "/pay 5", "subagent_type": "general-purpose"})),
            "sub-agent done",
            call_tools(("hand_over", {"text": "/pay 6"})),
            "inner done",
        ]
    )
    inner: Any = create_agent(model, middleware=[middleware])

    @tool
    def hand_over(text: str) -> str:
        """Give the text to another agent."""
        return str(inner.invoke({"messages": [HumanMessage(text)]})["messages"][-1].text)

    agent = create_deep_agent(model, tools=[hand_over], middleware=[middleware], backend=disk(tmp_path))
    run(mode, agent, "go")
    assert len(model.requests) == 5
    assert [place for place, request in enumerate(model.requests) if "Text of pay" in request.text] == []


@both_modes
def test_an_old_command_starts_nothing_when_newer_messages_are_gone(mode: Mode, tmp_path: Path) -> None:
    """History that is cut back, or sent again in whole, starts no skill a second time."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path))
    talk.say(given={"messages": [HumanMessage("/a 1", id="command")]})
    talk.call(unload("a"))
    talk.say(given={"messages": [HumanMessage("thanks", id="thanks")]})
    for kept in ("ai", "human"):
        later = [m for m in talk.state["messages"] if m.id != "command" and m.type in {"human", "tool", kept}]
        talk.say(given={"messages": [RemoveMessage(id=str(message.id)) for message in later]})
        assert talk.loaded == [], kept
    whole = [HumanMessage("/a 1", id="command"), AIMessage("Done."), ToolMessage("x", tool_call_id="1")]
    stateless: Any = create_agent(talk.model, middleware=[skills(tmp_path)])
    before = len(talk.model.requests)
    run(mode, stateless, {"messages": whole})
    assert "Text of a" not in talk.model.requests[before].text


class EndsFirstRun(AgentMiddleware[Any, Any]):
    """Ends the first run before its model call."""

    def __init__(self) -> None:
        super().__init__()
        self.is_done = False

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain's signature
        was_done, self.is_done = self.is_done, True
        return None if was_done else {"jump_to": "end"}


@both_modes
def test_a_command_of_a_run_that_never_reached_the_model_starts_nothing_later(mode: Mode, tmp_path: Path) -> None:
    """The user's next message is another one; only a command in it starts a skill."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path), EndsFirstRun())
    talk.say(given="/a 1")
    assert talk.model.requests == []
    talk.say(given="hello")
    assert talk.loaded == []
    talk.say(given="/b 2")
    assert talk.loaded == ["b"]


@both_modes
def test_many_commands_are_known_again(mode: Mode, tmp_path: Path) -> None:
    """What a thread remembers of commands is bounded."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path))
    known = {f"m{number}": True for number in range(100)}
    talk.say()
    talk.agent.update_state(talk.config, {"skills_context": {"commands": known}})
    talk.say(given={"messages": [HumanMessage("/a 1", id="new")]})
    kept = talk.state["skills_context"]["commands"]
    assert talk.loaded == ["a"]
    assert list(kept) == [*list(known)[1:], "new"]


@both_modes
def test_an_agent_inside_a_tool_of_an_agent_without_skills_takes_no_commands(mode: Mode, tmp_path: Path) -> None:
    """What a model gives to a tool is not the user's word, whichever agent the tool belongs to."""
    library(tmp_path)
    inner_model = ScriptedChatModel(replies=[])
    inner: Any = create_agent(inner_model, middleware=[skills(tmp_path)])

    @tool
    def hand_over(text: str) -> str:
        """Give the text to another agent."""
        return str(inner.invoke({"messages": [HumanMessage(text)]}, CONFIG)["messages"][-1].text)

    @tool
    async def ahand_over(text: str) -> str:
        """Give the text to another agent."""
        return str((await inner.ainvoke({"messages": [HumanMessage(text)]}))["messages"][-1].text)

    called = hand_over if mode == "sync" else ahand_over
    outer = create_agent(ScriptedChatModel(replies=[call_tools((called.name, {"text": "/pay 5"}))]), tools=[called])
    run(mode, outer, "go")
    assert ["Text of pay" in request.text for request in inner_model.requests] == [False]
    graph: Any = StateGraph(SkillsState)
    graph.add_node("agent", inner)
    graph.add_edge(START, "agent")
    run(mode, graph.compile(), "/pay 6")
    assert "Text of pay" not in inner_model.requests[-1].text


@both_modes
def test_a_message_that_others_add_does_not_hide_a_command(mode: Mode, tmp_path: Path) -> None:
    """A note that another middleware puts behind the user's message leaves the command in force."""
    library(tmp_path)

    class Adds(AgentMiddleware[Any, Any]):
        """Says what time it is."""

        tools = ()

        def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
            """Add a message."""
            return {"messages": [HumanMessage("It is noon.")]}

        async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Add a message."""
            return self.before_agent(state, runtime)

    talk = Conversation(mode, skills(tmp_path), Adds())
    talk.say(given="/deploy x")
    assert "deploy with <x>" in talk.model.requests[0].text


@both_modes
def test_a_sub_agent_with_skills_of_its_own_takes_no_commands_from_the_model(mode: Mode, tmp_path: Path) -> None:
    """The same holds where only the sub-agent has skills."""
    library(tmp_path)
    model = ScriptedChatModel(
        replies=[call_tools(("task", {"description": "/pay 5", "subagent_type": "payer"})), "sub-agent done"]
    )
    payer: Any = {"name": "payer", "description": "Pays.", "system_prompt": "Pay.", "middleware": [skills(tmp_path)]}
    agent = create_deep_agent(model, subagents=[payer], backend=disk(tmp_path))
    run(mode, agent, "go")
    assert len(model.requests) == 3
    assert "Text of pay" not in "".join(request.text for request in model.requests)


@both_modes
def test_a_message_that_others_edit(mode: Mode, tmp_path: Path) -> None:
    """What another middleware makes of the message before skills look is what counts."""
    library(tmp_path)

    class Edits(AgentMiddleware[Any, Any]):
        """Changes a secret in the user's message, by its id."""

        tools = ()

        def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
            """Hide the secret."""
            last = state["messages"][-1]
            return {"messages": [last.model_copy(update={"content": str(last.text).replace("4711", "(hidden)")})]}

        async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
            """Hide the secret."""
            return self.before_model(state, runtime)

    talk = Conversation(mode, Edits(), skills(tmp_path))
    talk.say(given="/deploy 4711")
    assert "deploy with <(hidden)>" in talk.model.requests[0].text
    assert "4711" not in talk.model.requests[0].text


@both_modes
def test_a_command_and_a_pin_of_one_name(mode: Mode, tmp_path: Path) -> None:
    """One text, with the arguments that were given: the command's, or the pin's where the command has none."""
    library(tmp_path)
    middleware = skills(tmp_path)
    for message, pins, text in (
        ("/deploy x", ["deploy"], "deploy with <x>"),
        ("/deploy x", [{"name": "deploy", "arguments": "y"}], "deploy with <x>"),
        ("/deploy", [{"name": "deploy", "arguments": "y"}], "deploy with <y>"),
        ("/a", ["deploy", {"name": "deploy", "arguments": "y"}, "deploy"], "deploy with <y>"),
    ):
        talk = Conversation(mode, middleware)
        talk.say(given={"messages": [HumanMessage(message)], "pinned_skills": pins})
        assert talk.model.requests[0].text.count("Text of deploy") == 1, message
        assert text in talk.model.requests[0].text, message


@both_modes
def test_budgets_count_commands_and_do_not_refuse_them(mode: Mode, tmp_path: Path) -> None:
    """The user's word is counted: the model's next load is refused."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path, max_loaded_skills=1))
    [answer] = talk.say(call_tools(load("c")), given="/a /b x")
    assert talk.loaded == ["a", "b"]
    assert answer.status == "error"


@both_modes
def test_a_broken_skill_is_told(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`/broken` leaves the problem that says what is wrong, an event and a log line."""
    library(tmp_path)
    model = ScriptedChatModel(replies=[])
    agent: Any = create_agent(model, middleware=[skills(tmp_path)], checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    events = stream(mode, agent, "/broken x", config)
    assert [(event["type"], event["skill"], event["trigger"]) for event in events] == [
        ("skill.refused", "broken", "user")
    ]
    codes = [found["code"] for found in agent.get_state(config).values["skills_problems"]]
    assert "description-missing" in codes
    assert any("/broken" in record.getMessage() for record in caplog.records)


def test_inside_astream_events(tmp_path: Path) -> None:
    """A command works in `astream_events`, and its load is an event of the custom stream."""
    library(tmp_path)
    model = ScriptedChatModel(replies=[])
    agent: Any = create_agent(model, middleware=[skills(tmp_path)])

    async def collect() -> list[Any]:
        given = {"messages": [HumanMessage("/deploy x")]}
        stream = agent.astream_events(given, version="v2", stream_mode=["custom", "values"])
        return [event["data"]["chunk"] async for event in stream if event["event"] == "on_chain_stream"]

    chunks = asyncio.run(collect())
    loaded = [c[1] for c in chunks if isinstance(c, tuple) and c[0] == "custom"]
    assert [(event["type"], event["trigger"]) for event in loaded] == [("skill.loaded", "user")]
    assert {"source", "digest", "tokens", "resources"} <= loaded[0].keys()
    assert "deploy with <x>" in model.requests[0].text


def test_a_menu(tmp_path: Path) -> None:
    """`slash_commands_for` lists what a user may start, with the hint, and nothing that is off."""
    library(tmp_path)
    middleware = skills(tmp_path, visibility={"a": "off", "b": "user-only", "c": "name-only"})
    talk = Conversation("sync", middleware)
    talk.say()
    menu = {item["name"]: item for item in middleware.slash_commands_for(talk.state)}
    assert sorted(menu) == sorted(["b", "c", "d", "e", "f", "g", "deploy", "pay", "周报", "Two Words"])
    assert menu["pay"]["argument_hint"] == "[amount]"
    assert menu["b"]["description"] == "Does a thing."
    for name in menu:
        talk.say(given=f"/{name} x")
        assert name in talk.loaded, name


@both_modes
def test_a_menu_for_one_user(mode: Mode, tmp_path: Path) -> None:
    """Outside a run a menu is given the runtime, so that a rule knows whom it is for; a fresh thread has one too."""
    library(tmp_path)
    middleware = skills(
        tmp_path, visibility=lambda skill, runtime: "off" if skill["name"] in runtime.context["hidden"] else "on"
    )
    for hidden in ({"deploy"}, {"a", "b"}):
        runtime: Any = Runtime(context={"hidden": hidden})
        if mode == "sync":
            menu = middleware.slash_commands_for({}, runtime)
        else:
            menu = asyncio.run(middleware.aslash_commands_for({}, runtime))
        names = {item["name"] for item in menu}
        assert (len(names), names & hidden) == (11 - len(hidden), set())
