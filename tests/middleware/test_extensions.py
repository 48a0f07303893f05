"""The seam for capabilities: what an extension is asked, in which order, and what its failures cost."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt

from deepskills import Answer, Refuse, SkillEvent, SkillExtension, SkillsError, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import (
    Conversation,
    Mode,
    both_modes,
    disk,
    load,
    run,
    share_of,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

COMPACTED = {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("go on")]}


@tool
def other() -> str:
    """Do something else."""
    return "other done"


def library(root: Path) -> None:
    alpha = "---\nname: alpha\ndescription: First.\nteam: blue\n---\nText of alpha with 4711.\n"
    write_files(root, {"skills/alpha/SKILL.md": alpha, "skills/beta/SKILL.md": skill_md("beta")})


def skills(root: Path, *extensions: SkillExtension, **options: Any) -> SkillsMiddleware:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=extensions, **options)


class Logs(SkillExtension):
    """Writes down every question, and lets everything pass."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name  # type: ignore[misc]
        self._log = log

    def _note(self, what: str) -> None:
        self._log.append(f"{self.name}:{what}")

    def visibility(self, skills: Sequence[Any], run: Any) -> Any:
        """Note it."""
        self._note("visibility")
        return super().visibility(skills, run)

    def before_load(self, load: Any, run: Any) -> Any:
        """Note it."""
        self._note(f"before_load {load.entry.name} {load.trigger}")
        return super().before_load(load, run)

    def change_text(self, load: Any, run: Any) -> Any:
        """Note it."""
        self._note("change_text")
        return super().change_text(load, run)

    def change_request(self, request: Any, run: Any) -> Any:
        """Note it."""
        self._note(f"change_request {[skill.entry.name for skill in run.loaded]}")
        return super().change_request(request, run)

    def before_tool(self, request: Any, run: Any) -> Any:
        """Note it."""
        self._note(f"before_tool {request.tool_call['name']} {[skill.entry.name for skill in run.loaded]}")
        return super().before_tool(request, run)

    def after_tool(self, request: Any, result: Any, run: Any) -> Any:
        """Note it."""
        self._note(f"after_tool {request.tool_call['name']}")
        return super().after_tool(request, result, run)

    def at_start(self, run: Any) -> None:  # noqa: ARG002
        """Note it."""
        self._note("at_start")

    def at_end(self, run: Any) -> None:  # noqa: ARG002
        """Note it."""
        self._note("at_end")

    def on_event(self, event: SkillEvent, runtime: Any) -> Any:  # noqa: ARG002
        """Note it."""
        self._note(f"{event.type} {event.skill}")


def _awaited(method: str) -> Any:
    async def call(self: Any, *given: Any) -> Any:
        await asyncio.sleep(0)
        return getattr(Logs, method)(self, *given)

    return call


HOOKS = [name for name in vars(Logs) if not name.startswith("_")]
AsyncLogs: Any = type("AsyncLogs", (Logs,), {name: _awaited(name) for name in HOOKS})
"""The same with every method written `async def` under its one name."""


@both_modes
@pytest.mark.parametrize("made", [Logs, AsyncLogs], ids=["def", "async def"])
def test_every_method_is_asked_in_the_order_of_the_list(mode: Mode, made: Any, tmp_path: Path) -> None:
    """Each question goes to the first extension, then to the second, however they and the run are written."""
    library(tmp_path)
    log: list[str] = []
    talk = Conversation(mode, skills(tmp_path, made("one", log), made("two", log)), tools=[other])
    talk.say(call_tools(load("alpha")), call_tools(("other", {})))
    assert [found["code"] for found in talk.state["skills_problems"]] == []
    steps = [entry for entry in log if "visibility" not in entry]
    if made is AsyncLogs:
        # Events are heard beside an async run, which does not wait.
        heard = [entry for entry in steps if "skill.loaded" in entry]
        assert sorted(heard) == ["one:skill.loaded alpha", "two:skill.loaded alpha"]
        at = steps.index("two:before_load alpha model") + 1
        steps = [entry for entry in steps if entry not in heard]
        steps[at:at] = ["one:skill.loaded alpha", "two:skill.loaded alpha"]
    expected = [
        "at_start",
        "change_request []",
        "before_tool load_skill []",
        "change_text",
        "before_load alpha model",
        "skill.loaded alpha",
        "after_tool load_skill",
        "change_request ['alpha']",
        "before_tool other ['alpha']",
        "after_tool other",
        "change_request ['alpha']",
        "at_end",
    ]
    assert steps == [f"{name}:{step}" for step in expected for name in ("one", "two")]
    assert "one:visibility" in log


@both_modes
def test_the_first_refusal_wins(mode: Mode, tmp_path: Path) -> None:
    """A refused load and a refused call run nothing, tell the reason, and ask no later extension."""
    library(tmp_path)
    ran: list[str] = []
    log: list[str] = []

    @tool
    def launch() -> str:
        """Launch it."""
        ran.append("launch")
        return "launched"

    class Refuses(SkillExtension):
        def before_load(self, load: Any, run: Any) -> Any:  # noqa: ARG002
            return Refuse("the first says no")

        def before_tool(self, request: Any, run: Any) -> Any:  # noqa: ARG002
            return Refuse("not that tool") if request.tool_call["name"] == "launch" else None

    class AlsoRefuses(SkillExtension):
        def before_load(self, load: Any, run: Any) -> Any:  # noqa: ARG002
            log.append("load")
            return Refuse("the second says no")

        def before_tool(self, request: Any, run: Any) -> Any:  # noqa: ARG002
            log.append(request.tool_call["name"])

    talk = Conversation(mode, skills(tmp_path, Refuses(), AlsoRefuses()), tools=[launch])
    answers = talk.call(load("alpha"), ("launch", {}))
    assert [answer.status for answer in answers] == ["error", "error"]
    assert "the first says no" in str(answers[0].text)
    assert "not that tool" in str(answers[1].text)
    assert (ran, log, talk.loaded) == ([], ["load_skill"], [])
    talk.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["alpha"]})
    assert talk.loaded == []
    assert "skill-refused" in [found["code"] for found in talk.state["skills_problems"]]


@both_modes
def test_an_answer_stands_in_the_place_of_a_load(mode: Mode, tmp_path: Path) -> None:
    """A load that an extension answers shows its text, changes the state it names, and loads nothing."""
    library(tmp_path)

    class Answers(SkillExtension):
        def before_load(self, load: Any, run: Any) -> Any:
            run.remember("asked", load.entry.name)
            return Answer("Done elsewhere.")

    talk = Conversation(mode, skills(tmp_path, Answers()))
    [answer] = talk.call(load("alpha"))
    assert (str(answer.text), answer.status, talk.loaded) == ("Done elsewhere.", "success", [])
    assert talk.state["skills_context"]["extension Answers"] == {"asked": "alpha"}


METHODS = ("visibility", "before_load", "change_text", "before_tool")
OPEN = ("change_request", "after_tool", "at_start", "at_end", "on_event", "catalog_list")


def failing(method: str, *, protects: bool = False) -> SkillExtension:
    """Return an extension that raises in one method."""

    def raises(*_args: Any) -> Any:
        raise RuntimeError("no idea")

    made: SkillExtension = type("Fails", (SkillExtension,), {method: raises, "protective": protects})()
    return made


@both_modes
def test_what_a_failure_costs(mode: Mode, tmp_path: Path) -> None:
    """Judgements fail closed, all else fails open, and each failure is a problem; no run ends by it."""
    library(tmp_path)
    offenders: list[Any] = []
    for method in share_of(mode, (*METHODS, *OPEN)):
        talk = Conversation(mode, skills(tmp_path, failing(method)), tools=[other])
        answers = talk.call(load("alpha"), ("other", {}))
        talk.say()
        loaded = talk.loaded == ["alpha"]
        offenders += [(method, "loaded", loaded)] if loaded != (method in OPEN) else []
        ran = "other done" in [str(answer.text) for answer in answers]
        offenders += [(method, "ran", ran)] if ran != (method != "before_tool") else []
        codes = [found["code"] for found in talk.state["skills_problems"]]
        offenders += [(method, "problem", codes)] if "extension-failed" not in codes and method != "on_event" else []
        shown = "**beta**" in talk.model.requests[0].system
        offenders += [(method, "shown", shown)] if shown != (method != "visibility") else []
    assert offenders == []


@both_modes
def test_protective_extensions_fail_closed(mode: Mode, tmp_path: Path) -> None:
    """With `protective` a failure stops the request, withholds a tool's result, and ends no run silently."""
    library(tmp_path)
    for method in ("change_request", "at_start"):
        talk = Conversation(mode, skills(tmp_path, failing(method, protects=True)))
        with pytest.raises(SkillsError, match="no idea"):
            talk.say()
        assert talk.model.requests == []
    talk = Conversation(mode, skills(tmp_path, failing("after_tool", protects=True)), tools=[other])
    [answer] = talk.call(("other", {}))
    assert answer.status == "error"
    assert "other done" not in str(answer.text)


@both_modes
def test_what_protects_withholds_lists_and_finds_and_lets_a_run_end(mode: Mode, tmp_path: Path) -> None:
    """A protecting extension that fails keeps the list and the search's results back; an ended run stays ended."""
    library(tmp_path)
    for protects in (True, False):
        talk = Conversation(mode, skills(tmp_path, failing("catalog_list", protects=protects)))
        talk.say()
        assert ("**alpha**" in talk.model.requests[0].system) is not protects
        searching = skills(tmp_path, failing("search", protects=protects), extra_tools=["search_skills"])
        [found] = Conversation(mode, searching).call(("search_skills", {"query": "alpha"}))
        assert ("First." in found.text, found.status) == (not protects, "error" if protects else "success")
        talk = Conversation(mode, skills(tmp_path, failing("at_end", protects=protects)))
        talk.call(load("alpha"))
        assert talk.loaded == ["alpha"]


@both_modes
def test_a_result_that_means_nothing_is_a_failure(mode: Mode, tmp_path: Path) -> None:
    """A judgement that is none of those there are refuses, any other keeps what was there, and no run ends by it."""
    library(tmp_path)

    def giving(value: Any) -> Any:
        return lambda *_args: value

    offenders: list[Any] = []
    methods = (*METHODS, "change_request", "after_tool", "search", "catalog_list")
    for given, method in share_of(mode, itertools.product([giving(7)], methods)):
        extension: SkillExtension = type("Odd", (SkillExtension,), {method: given})()
        talk = Conversation(mode, skills(tmp_path, extension, extra_tools=["search_skills"]), tools=[other])
        talk.call(load("alpha"), ("other", {}), ("search_skills", {"query": "alpha"}))
        talk.say()
        if (talk.loaded == []) is not (method in METHODS):
            offenders.append((method, given, talk.loaded))
        if "extension-failed" not in [found["code"] for found in talk.state["skills_problems"]]:
            offenders.append((method, given, "no problem"))
    assert offenders == []


def test_a_method_under_a_second_name_is_refused(tmp_path: Path) -> None:
    """A guard written as LangChain's async hooks are would never be called, so it is an error at once."""

    class Twin(SkillExtension):
        async def abefore_tool(self, request: Any, run: Any) -> Any:  # noqa: ARG002
            return Refuse("no")

    with pytest.raises(TypeError, match="`async def before_tool`"):
        skills(tmp_path, Twin())


class Masks(SkillExtension):
    """Hides a number in every text."""

    def change_text(self, load: Any, run: Any) -> str:  # noqa: ARG002
        """Hide it."""
        return str(load.text).replace("4711", "(masked)")


@both_modes
def test_texts_are_changed_at_load_and_at_put_back(mode: Mode, tmp_path: Path) -> None:
    """The text that an extension changed is in every request: at a load, after a summary, and in a new process."""
    library(tmp_path)
    talk = Conversation(mode, skills(tmp_path, Masks()))
    talk.call(load("alpha"))
    talk.say(given=COMPACTED)
    again = create_agent(talk.model, middleware=[skills(tmp_path, Masks())], checkpointer=talk.agent.checkpointer)
    run(mode, again, "go", talk.config)
    for request in talk.model.requests[1:]:
        assert request.text.count("Text of alpha with (masked).") == 1
        assert "4711" not in request.text
    unmasked = Conversation(mode, skills(tmp_path))
    unmasked.call(load("alpha"))
    later: Any = create_agent(
        unmasked.model, middleware=[skills(tmp_path, Masks())], checkpointer=unmasked.agent.checkpointer
    )
    run(mode, later, COMPACTED, unmasked.config)
    assert "(masked)" in unmasked.model.requests[-1].text
    assert "4711" not in unmasked.model.requests[-1].text


@both_modes
def test_a_human_is_asked_before_a_load(mode: Mode, tmp_path: Path) -> None:
    """`interrupt` in `before_load` pauses the run; the answer decides, and two extensions get theirs in order."""
    library(tmp_path)

    def asks(question: str, *, is_async: bool = False) -> SkillExtension:
        def before_load(self: Any, load: Any, run: Any) -> Any:  # noqa: ARG001
            return None if interrupt(f"{question} {load.entry.name}?") == "yes" else Refuse(f"{question}: no")

        async def awaited(self: Any, load: Any, run: Any) -> Any:
            await asyncio.sleep(0)
            return before_load(self, load, run)

        made: SkillExtension = type(
            question, (SkillExtension,), {"before_load": awaited if is_async else before_load}
        )()
        return made

    for second, expected in (("yes", ["alpha"]), ("no", [])):
        talk = Conversation(mode, skills(tmp_path, asks("First", is_async=True), asks("Second")))
        talk.call(load("alpha"))
        assert [i.value for i in talk.result["__interrupt__"]] == ["First alpha?"]
        again = run(mode, talk.agent, Command(resume="yes"), talk.config)
        assert [i.value for i in again["__interrupt__"]] == ["Second alpha?"]
        result = run(mode, talk.agent, Command(resume=second), talk.config)
        assert talk.loaded == expected
        assert ("Second: no" in str(tool_messages(result)[0].text)) == (second == "no")


@both_modes
def test_notes_stay_the_same(mode: Mode, tmp_path: Path) -> None:
    """A note stands at the end of its message, in requests alone, the same bytes in every later request."""
    library(tmp_path)

    class Notes(SkillExtension):
        def at_start(self, run: Any) -> None:
            run.note(run.user_message.id, f"(note on {run.user_message.text})")

    talk = Conversation(mode, skills(tmp_path, Notes()), tools=[other])
    talk.say(call_tools(("other", {})), given="one")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    blocks = HumanMessage([{"type": "text", "text": "two"}, image])
    talk.say(given={"messages": [blocks]})
    firsts = [str(request.messages[1].text) for request in talk.model.requests]
    assert firsts == ["one\n\n(note on one)"] * 3
    assert "(note on two)" in str(talk.model.requests[-1].messages[-1].text)
    assert not any("(note on" in str(message.text) for message in talk.state["messages"])


@both_modes
def test_state_problems_loads_and_events_of_its_own(mode: Mode, tmp_path: Path) -> None:
    """An extension keeps state, reports once, starts skills, emits events and reads any frontmatter."""
    library(tmp_path)
    heard: list[str] = []
    teams: list[Any] = []

    class Own(SkillExtension):
        name = "own"
        extra_tools = ("search_skills",)

        def at_start(self, run: Any) -> None:
            run.remember("runs", run.memory.get("runs", 0) + 1)
            run.report("/x", "own-code", "Something is odd.")
            run.load("alpha")
            run.emit({"type": "own.started", "skill": ""})
            teams.append({entry.name: entry.frontmatter.get("team") for entry in run.skills})

        def at_end(self, run: Any) -> None:
            run.remember("ended", [skill.entry.name for skill in run.loaded])

        def on_event(self, event: SkillEvent, runtime: Any) -> None:  # noqa: ARG002
            heard.append(event.type)

        def tools(self, host: Any) -> Sequence[BaseTool]:  # noqa: ARG002
            return [other]

    talk = Conversation(mode, skills(tmp_path, Own()))
    [answer] = talk.say(call_tools(("other", {})))
    talk.say()
    assert str(answer.text) == "other done"
    assert talk.state["skills_context"]["extension own"] == {"runs": 2, "ended": ["alpha"]}
    assert [found["code"] for found in talk.state["skills_problems"]] == ["own-code"]
    assert talk.loaded == ["alpha"]
    assert talk.state["skills_context"]["records"]["alpha"]["trigger"] == "system"
    assert heard == ["own.started", "skill.loaded", "own.started"]
    assert teams[0] == {"alpha": "blue", "beta": None}
    assert {"search_skills", "other"} <= set(talk.model.requests[0].tools)


@both_modes
def test_the_list_can_be_replaced(mode: Mode, tmp_path: Path) -> None:
    """`catalog_list` stands in place of the list, as it is; the first that gives one counts."""
    library(tmp_path)

    class Short(SkillExtension):
        def catalog_list(self, skills: Sequence[Any]) -> str | None:
            return f"Skills:\n\n\n\nThere are {len(skills)}, {{all}} of them good."

    class Longer(SkillExtension):
        def catalog_list(self, skills: Sequence[Any]) -> str | None:  # noqa: ARG002
            return "Never shown."

    talk = Conversation(mode, skills(tmp_path, Short(), Longer(), visibility={"beta": "user-only"}))
    talk.say()
    assert "Skills:\n\n\n\nThere are 1, {all} of them good." in talk.model.requests[0].system
    assert "**alpha**" not in talk.model.requests[0].system
    assert "Never shown." not in talk.model.requests[0].system


@both_modes
def test_calls_earlier_in_a_turn_count_as_done(mode: Mode, tmp_path: Path) -> None:
    """`before_tool` sees a load and an unload of the same turn, and what calls remember side by side is kept."""
    library(tmp_path)
    seen: dict[str, list[str]] = {}

    class Sees(SkillExtension):
        def before_tool(self, request: Any, run: Any) -> Any:
            run.remember(request.tool_call["id"], "seen")
            if request.tool_call["name"] == "other":
                seen[request.tool_call["id"]] = [skill.entry.name for skill in run.loaded]

    talk = Conversation(mode, skills(tmp_path, Sees()), tools=[other])
    talk.call(load("alpha"))
    talk.call(("other", {}), unload("alpha"), ("other", {}), load("beta"), ("other", {}))
    assert list(seen.values()) == [["alpha"], [], ["beta"]] or sorted(seen.values()) == [[], ["alpha"], ["beta"]]
    assert len(talk.state["skills_context"]["extension Sees"]) == 6


def test_extensions_are_checked(tmp_path: Path) -> None:
    """What is not an extension, and two that would share state, are errors in the constructor."""
    library(tmp_path)
    with pytest.raises(TypeError, match="SkillExtension"):
        skills(tmp_path, Masks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="twice"):
        skills(tmp_path, Masks(), Masks())


def test_a_result_can_be_replaced(tmp_path: Path) -> None:
    """`after_tool` sees what a tool gave and may put another result in its place."""
    library(tmp_path)

    class Replaces(SkillExtension):
        def after_tool(self, request: Any, result: Any, run: Any) -> Any:  # noqa: ARG002
            if isinstance(result, ToolMessage):
                return result.model_copy(update={"content": f"{result.text}, reviewed"})
            return result

    model = ScriptedChatModel(replies=[call_tools(("other", {}), load("alpha"))])
    agent = create_agent(model, tools=[other], middleware=[skills(tmp_path, Replaces())], checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    result = run("async", agent, "go", config)
    assert str(tool_messages(result)[0].text) == "other done, reviewed"
    assert agent.get_state(config).values["skills_loaded"] == ["alpha"]
