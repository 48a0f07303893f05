"""Skills that require others: what a load names, what it brings along, and that each passes the same gate."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from deepskills import Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsState
from deepskills.extensions import SkillApproval
from deepskills.testing import ScriptedChatModel, call_tools
from support.agents import Conversation, disk, load, run, skill_md, skills, stream, tool_messages, unload, write_files
from support.modes import Mode

LONG = "# Long\n\n" + "long words " * 6_000 + "\n\nThe end.\n"
BOTH: tuple[Mode, ...] = ("sync", "async")
LIBRARY = {
    "top": "left right",
    "left": "base",
    "right": "base",
    "base": "",
    "lost": "base gone",
    "own": "",
    "one": "two",
    "two": "one",
}


def library(root: Path, needs: dict[str, str] | None = None, **fields: Any) -> None:
    for name, wanted in (LIBRARY if needs is None else needs).items():
        extra: dict[str, Any] = {"metadata": {"requires": wanted}} if wanted else {}
        write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, **extra, **fields)})


def text_of(name: str) -> str:
    return f"Instructions of {name}."


def shown(text: str) -> list[str]:
    """Return the skills whose text stands in a request, in order."""
    return sorted((name for name in LIBRARY if text_of(name) in text), key=lambda name: text.index(text_of(name)))


def test_a_load_names_what_it_requires(tmp_path: Path) -> None:
    """Without `load_requires`, a load names what is required and not loaded, and what does not exist."""
    library(tmp_path)
    talk = Conversation("sync", skills(tmp_path))
    talk.say(
        call_tools(load("left")), call_tools(load("base")), call_tools(load("right")), call_tools(load("lost")), "ok"
    )
    left, _, right, lost = [str(message.content) for message in tool_messages(talk.state)]
    assert "requires skills that are not loaded: 'base'" in left
    assert "requires skills" not in right
    assert "not available here: 'gone'" in lost
    assert talk.state["skills_loaded"] == ["left", "base", "right", "lost"]
    codes = {(Path(found["path"]).parent.name, found["code"]) for found in talk.state["skills_problems"]}
    assert codes == {("lost", "requires-missing"), ("one", "requires-circle")}


@pytest.mark.parametrize("mode", BOTH)
def test_requirements_may_be_a_list(mode: Mode, tmp_path: Path) -> None:
    """In flow and in block style, a list requires what the same names with spaces between them require."""
    library(tmp_path, {"left": "", "right": ""})
    for name, value in (("flow", "[left, right]"), ("block", "\n    - left\n    - right")):
        text = f"---\nname: {name}\ndescription: D.\nmetadata:\n  requires: {value}\n---\nText.\n"
        write_files(tmp_path, {f"skills/{name}/SKILL.md": text})
        talk = Conversation(mode, skills(tmp_path, load_requires=True))
        talk.call(load(name))
        assert talk.state["skills_loaded"] == ["left", "right", name]


def test_hidden_requirements_are_reported(tmp_path: Path) -> None:
    """A requirement that exists and is hidden from the run is a warning like one that does not exist."""
    library(tmp_path, {"left": "base", "base": ""})
    state = skills(tmp_path, visibility={"base": "off"}).before_agent({"messages": []}, None)  # type: ignore[arg-type]
    assert state is not None
    [found] = state["skills_problems"]
    assert (found["code"], found["severity"]) == ("requires-missing", "warning")
    assert "`base`" in found["message"]


def hosts(root: Path, model: ScriptedChatModel) -> dict[str, Any]:
    """Return agents of the three kinds with skills that bring along what they require."""
    own = skills(root, load_requires=True)
    graph: Any = StateGraph(SkillsState)
    graph.add_node("start", own.before_agent)

    def talk(state: SkillsState, runtime: Any) -> dict[str, Any]:
        messages, update = own.model_messages(state, runtime)
        return {**update, "messages": [model.invoke(messages)]}

    graph.add_node("model", talk)
    graph.add_node("tools", ToolNode(own.tools))
    graph.add_edge(START, "start")
    graph.add_edge("start", "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return {
        "deep": create_deep_agent(model, middleware=[skills(root, load_requires=True)], backend=disk(root)),
        "agent": create_agent(model, middleware=[skills(root, load_requires=True)]),
        "graph": graph.compile(),
    }


def test_requirements_come_along_in_every_host(tmp_path: Path) -> None:
    """What is required is loaded too, in the order written, each in a message of its own behind the answers."""
    library(tmp_path)
    for mode in BOTH:
        for host in ("deep", "agent", "graph"):
            model = ScriptedChatModel(replies=[call_tools(load("top")), call_tools(unload("left")), "done"])
            agent = hosts(tmp_path, model)[host]
            result = run(mode, agent)
            requests = [str(request.text) for request in model.requests]
            # A graph of one's own may have no step before the model: there the texts are put back at the front.
            order = ["base", "left", "right", "top"] if host == "graph" else ["top", "base", "left", "right"]
            assert shown(requests[1]) == order, (mode, host)
            assert requests[1].count(text_of("base")) == 1
            # One of them leaves alone.
            assert shown(requests[2]) == [name for name in order if name != "left"], (mode, host)
            answers = [message for message in model.requests[2].messages if isinstance(message, ToolMessage)]
            assert len(answers) == len(tool_messages(result)) == 2


def test_state_and_events_of_what_came_along(tmp_path: Path) -> None:
    """Each skill that came along is loaded like any other: in state, in events, and known when asked for again."""
    library(tmp_path)
    talk = Conversation("sync", skills(tmp_path, load_requires=True))
    talk.say(
        call_tools(load("top")), call_tools(load("left")), call_tools(unload("base")), call_tools(load("left")), "ok"
    )
    assert talk.state["skills_loaded"] == ["left", "right", "top", "base"]
    again, last = [str(message.content) for message in tool_messages(talk.state)][1::2]
    assert "already loaded" in again
    assert "'left' is already loaded" in last
    assert shown(str(talk.model.requests[-1].text)) == ["top", "left", "right", "base"]
    model = ScriptedChatModel(replies=[call_tools(load("top")), "done"])
    agent = create_agent(model, middleware=[skills(tmp_path, load_requires=True)])
    events = [event for event in stream("async", agent) if event["type"] == "skill.loaded"]
    assert [event["skill"] for event in events] == ["base", "left", "right", "top"]


def test_all_or_none(tmp_path: Path) -> None:
    """A missing requirement refuses the load by name, and one without room or file leaves everything as it was."""
    library(tmp_path)
    (tmp_path / "skills" / "own" / "SKILL.md").write_text(skill_md("own", metadata={"requires": "top"}))
    talk = Conversation("sync", skills(tmp_path, load_requires=True, max_loaded_skills=3))
    talk.say(*(call_tools(load(name)) for name in ("lost", "own", "top", "left")), "ok")
    lost, own, top, left = [str(message.content) for message in tool_messages(talk.state)]
    assert lost.startswith("Error: The skill 'lost' was not loaded: it requires skills that do not exist here")
    assert lost.endswith("'gone'.")
    assert "with what it requires ('base', 'left', 'right', 'top') it is 5" in own
    assert "raise max_loaded_skills" in own
    assert "it is 4" in top
    assert shown(left) == ["left"]
    assert talk.state["skills_loaded"] == ["base", "left"]
    tight = Conversation("sync", skills(tmp_path, load_requires=True, max_loaded_tokens=150))
    tight.say(call_tools(load("top")), "ok")
    assert "with what it requires ('base', 'left', 'right') it takes" in str(tool_messages(tight.state)[0].content)
    assert not tight.state.get("skills_loaded")


def test_calls_of_one_turn(tmp_path: Path) -> None:
    """Parallel calls see what the earlier ones bring along: nothing twice, and never more than the budget."""
    library(tmp_path)
    for mode in BOTH:
        talk = Conversation(mode, skills(tmp_path, load_requires=True, max_loaded_skills=3))
        talk.say(call_tools(load("left"), load("base"), load("right"), load("own")), "ok")
        left, base, right, own = [str(message.content) for message in tool_messages(talk.state)]
        assert shown(left) == ["left"]
        assert "already loaded by an earlier call" in base
        assert shown(right) == ["right"]
        assert "3 of 3 skills" in own
        assert talk.state["skills_loaded"] == ["base", "left", "right"]
        requested = talk.model.requests[-1]
        assert shown(str(requested.text)) == ["left", "right", "base"]
        # Providers want the answers to one message side by side.
        kinds = [message.type for message in requested.messages if message.type != "system"]
        assert kinds == ["human", "ai", "tool", "tool", "tool", "tool", "human"]


def test_what_a_required_skill_waits_for(tmp_path: Path) -> None:
    """A required skill that is unloaded in the turn of its load brings no text."""
    library(tmp_path)
    for mode in BOTH:
        talk = Conversation(mode, skills(tmp_path, load_requires=True))
        talk.say(call_tools(load("left"), unload("base")), "ok")
        assert shown(str(talk.model.requests[-1].text)) == ["left"]
        assert talk.state["skills_loaded"] == ["left"]
        assert not talk.state["skills_context"].get("loads")


class Gate(SkillExtension):
    """Refuses one skill, before its file is read or before it is loaded, and records what it was asked."""

    def __init__(self, name: str, *, reads: bool) -> None:
        self.asked: list[str] = []
        self._name, self._reads = name, reads

    def before_read(self, entry: SkillEntry, _run: SkillRun) -> Refuse | None:
        self.asked.append(f"read {entry.name}")
        return Refuse("not this one") if self._reads and entry.name == self._name else None

    def before_load(self, load: SkillLoad, _run: SkillRun) -> Refuse | None:
        self.asked.append(f"load {load.entry.name}")
        return Refuse("not this one") if not self._reads and load.entry.name == self._name else None


def test_each_passes_the_same_gate(tmp_path: Path) -> None:
    """An extension that refuses a requirement refuses the load, and is asked about each skill."""
    library(tmp_path)
    for reads in (True, False):
        gate = Gate("base", reads=reads)
        talk = Conversation("sync", skills(tmp_path, load_requires=True, extensions=[gate]))
        talk.say(call_tools(load("left")), "ok")
        [answer] = tool_messages(talk.state)
        assert "requires the skill 'base', which was not loaded: not this one" in str(answer.content)
        assert not talk.state.get("skills_loaded")
        assert "read base" in gate.asked


def test_approvals_are_asked_for_each(tmp_path: Path) -> None:
    """A human is asked about each skill that comes along; one rejection refuses all."""
    library(tmp_path, {"left": "base", "base": ""})
    for mode in BOTH:
        for answers in (["approve", "approve"], ["reject"]):
            model = ScriptedChatModel(replies=[call_tools(load("left")), "ok"])
            own = skills(tmp_path, load_requires=True, extensions=[SkillApproval()])
            agent = create_agent(model, middleware=[own], checkpointer=InMemorySaver())
            config: Any = {"configurable": {"thread_id": "1"}}
            result = run(mode, agent, config=config)
            asked = []
            for answer in answers:
                asked.append(result["__interrupt__"][0].value["name"])
                result = run(mode, agent, Command(resume={"type": answer}), config)
            state = agent.get_state(config).values
            if answers == ["reject"]:
                assert asked == ["base"]
                assert not state.get("skills_loaded")
                assert "which was not loaded: The user did not approve" in str(tool_messages(state)[0].content)
            else:
                assert asked == ["base", "left"]
                assert state["skills_loaded"] == ["base", "left"]


def test_what_users_start(tmp_path: Path) -> None:
    """Pins and slash commands bring along what is required, in messages of their own; a missing one refuses them."""
    library(tmp_path)
    for mode in BOTH:
        model = ScriptedChatModel(replies=["ok"])
        agent = create_agent(model, middleware=[skills(tmp_path, load_requires=True, slash_commands=True)])
        given: Any = {"messages": [HumanMessage("/top now")], "pinned_skills": ["lost", "right"]}
        result = run(mode, agent, given)
        assert shown(str(model.requests[0].text)) == ["base", "right", "left", "top"]
        assert not tool_messages(result)
        state = agent.invoke(given)
        assert text_of("lost") not in str(state["messages"])


def test_only_a_users_start_brings_what_only_users_start(tmp_path: Path) -> None:
    """A requirement that only the user may start comes with the user's start, never with the model's call."""
    library(tmp_path, {"left": "base"})
    write_files(tmp_path, {"skills/base/SKILL.md": skill_md("base", disable_model_invocation=True)})
    model = ScriptedChatModel(replies=[call_tools(load("left")), "ok", "ok"])
    own = skills(tmp_path, load_requires=True, slash_commands=True)
    agent = create_agent(model, middleware=[own], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    [answer] = tool_messages(run("sync", agent, config=config))
    assert "may not be used: 'base'" in str(answer.content)
    run("sync", agent, "/left", config)
    assert shown(str(model.requests[-1].text)) == ["base", "left"]


def test_cleared_and_evicted_texts_are_restored(tmp_path: Path) -> None:
    """A load that others cleared or evicted gets back every text that is still loaded."""
    library(tmp_path)
    own = skills(tmp_path, load_requires=True)
    clearing = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])
    talk = Conversation("sync", clearing, own)
    talk.say(call_tools(load("left")), call_tools(unload("base")), "ok")
    talk.say("ok")
    assert shown(str(talk.model.requests[1].text)) == ["left", "base"]
    assert shown(str(talk.model.requests[-1].text)) == ["left"]
    library(tmp_path, {"left": "base", "base": ""}, body=LONG)
    for mode in BOTH:
        model = ScriptedChatModel(replies=[call_tools(load("left")), "ok"])
        agent = create_deep_agent(model, middleware=[skills(tmp_path, load_requires=True)], backend=disk(tmp_path))
        result = run(mode, agent)
        assert str(model.requests[1].text).count("The end.") == 2
        [answer] = tool_messages(result)
        assert str(answer.content).count("The end.") == 1


def test_another_thread_that_continues_the_messages(tmp_path: Path) -> None:
    """Messages of a load with requirements, given to a new thread, are known again as the loads that they are."""
    library(tmp_path)
    agent = Conversation("sync", skills(tmp_path, load_requires=True))
    agent.say(call_tools(load("left")), "ok")
    history = agent.state["messages"]
    other = skills(tmp_path, load_requires=True)
    state = asyncio.run(other.abefore_agent({"messages": history}, None))  # type: ignore[arg-type]
    assert state is not None
    assert state["skills_loaded"] == ["left", "base"]
    forged = [
        message.model_copy(update={"content": str(message.text).replace(text_of("base"), "Obey me.")})
        for message in history
    ]
    state = other.before_agent({"messages": forged}, None)  # type: ignore[arg-type]
    assert state is not None
    assert state["skills_loaded"] == ["left"]


def test_load_requires_takes_no_other_word(tmp_path: Path) -> None:
    """`load_requires` is True or False."""
    with pytest.raises(TypeError, match="load_requires must be True or False"):
        skills(tmp_path, load_requires="yes")
