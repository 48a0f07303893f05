"""`explain`: plant one cause for which a skill is not used, and exactly that one is named."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime

from deepskills import (
    Answer,
    OptionalSource,
    ProvidedSkill,
    Refuse,
    SkillEntry,
    SkillExplanation,
    SkillExtension,
    SkillLoad,
    SkillProvider,
    SkillRun,
    SkillsMiddleware,
    Visibility,
)
from deepskills.extensions import SkillLock, SkillSuggestions
from deepskills.testing import ScriptedChatModel, call_tools, skills_state
from support import Mode, both_modes, disk, load, run, skill_md, unload, write_files

STAGES = ["found", "visible", "listed", "suggested", "loaded", "present", "used", "checked"]
FILE = "/skills/alpha/SKILL.md"
ALPHA = skill_md("alpha", "Writes release notes from a list of merged changes.")
BETA = skill_md("beta", "Draws diagrams of database tables.")
BASE = {"skills/alpha/SKILL.md": ALPHA, "skills/beta/SKILL.md": BETA}
GUIDE = {**BASE, "skills/alpha/references/guide.md": "How to."}
LONG = skill_md("alpha", "Writes release notes. " * 30 + "Yes.")


@tool
def read_guide(path: str) -> str:
    """Read a file."""
    return path


class Hides(SkillExtension):
    """Turns a skill off."""

    def visibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:  # noqa: ARG002
        """Hide it."""
        return {"alpha": "off"}


class Fails(SkillExtension):
    """Fails to judge."""

    def visibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:  # noqa: ARG002
        """Fail."""
        raise RuntimeError("no database")


class Refuses(SkillExtension):
    """Refuses every load."""

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse:  # noqa: ARG002
        """Refuse it."""
        return Refuse("not on Fridays")


class Answers(SkillExtension):
    """Answers every load itself."""

    def before_load(self, load: SkillLoad, run: SkillRun) -> Answer:  # noqa: ARG002
        """Answer it."""
        return Answer("Done elsewhere.")


class Insists(SkillExtension):
    """Keeps receipts of checks, as an extension for checks does."""

    def __init__(self, status: str = "open") -> None:
        self.status = status

    def before_end(self, run: SkillRun) -> None:
        """Remember what is open."""
        run.remember("receipt", {"skill": "alpha", "check": "run_tests", "status": self.status})


def raises(skill: object, runtime: object) -> Visibility:  # noqa: ARG001 - an operator's function
    """Fail, as a function of the operator may."""
    raise LookupError("no tenant")


def by_context(skill: Any, runtime: Any) -> Visibility:
    """Hide a skill by who asks; fails where nobody knows who asks."""
    return "off" if skill["name"] == "alpha" and runtime.config["configurable"]["thread_id"] else "on"


class Summarizes(AgentMiddleware[Any, Any]):
    """Removes everything before the third model call, as a summary does."""

    calls = 0

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Leave one message."""
        self.calls += 1
        if self.calls != 3:
            return None
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("go on", id="later")]}

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Leave one message."""
        return self.before_model(state, runtime)


def overflows(replies: list[Any]) -> Callable[[Any], AIMessage]:
    """Answer by a script, and have no room for a text that was put back."""

    def answer(messages: Sequence[Any]) -> AIMessage:
        text = "\n".join(str(message.text) for message in messages)
        if "go on" in text and "<skill_content" in text:
            raise ContextOverflowError("prompt is too long")
        reply = replies.pop(0) if replies else "Done."
        return reply if isinstance(reply, AIMessage) else AIMessage(reply)

    return answer


@dataclass
class Cause:
    """One cause: what to plant, and where the skill must stop and why."""

    stopped: str | None
    code: str | None
    files: Mapping[str, str] = field(default_factory=lambda: BASE)
    options: Mapping[str, Any] = field(default_factory=dict)
    extensions: Callable[[], Sequence[SkillExtension]] = tuple
    sources: Sequence[Any] = ("/skills",)
    replies: Sequence[Any] = ("Done.",)
    given: str = "Please write release notes for the merged changes"
    says: str = ""
    name: str = "alpha"
    overflow: bool = False
    update: Mapping[str, Any] | None = None
    place: int = 0


BROKEN = "# no frontmatter\n"
USER_ONLY = skill_md("alpha", disable_model_invocation="true")
LOADED = (call_tools(load("alpha")), "Done.")

CAUSES = {
    # Found.
    "unknown": Cause("found", "unknown", name="alpa", says="Did you mean `alpha`"),
    "unknown, asked for": Cause(
        "found", "unknown", name="nothing-like-it", replies=(call_tools(load("nothing-like-it")), "Done.")
    ),
    "broken": Cause("found", "no-frontmatter", files={**BASE, "skills/alpha/SKILL.md": BROKEN}, says=FILE),
    "no description": Cause(
        "found", "description-missing", files={**BASE, "skills/alpha/SKILL.md": "---\nname: alpha\n---\nText.\n"}
    ),
    "misnamed": Cause(
        "found",
        "skill-file-misnamed",
        files={"skills/alpha/skill.md": ALPHA, "skills/b/SKILL.md": BETA},
        options={"max_depth": 2},
    ),
    "source missing": Cause("found", "source-missing", sources=("/none",), says="/none"),
    "duplicate": Cause(
        "found", "skill-duplicate", files={**BASE, "skills/other/SKILL.md": ALPHA}, place=1, says="/skills/other"
    ),
    "shadowed": Cause(
        "found",
        "skill-shadowed",
        files={**BASE, "more/alpha/SKILL.md": ALPHA},
        sources=("/skills", "/more"),
        place=1,
        says="/more/alpha",
    ),
    # Visible.
    "off by a mapping": Cause("visible", "off", options={"visibility": {"al*": "off"}}, says="`visibility`"),
    "off by a function": Cause("visible", "off", options={"visibility": by_context}, says="function"),
    "off by an extension": Cause("visible", "off", extensions=lambda: [Hides()], says="Hides"),
    "user-only": Cause("visible", "user-only", files={**BASE, "skills/alpha/SKILL.md": USER_ONLY}, says="its author"),
    "user-only by a mapping": Cause("visible", "user-only", options={"visibility": {"alpha": "user-only"}}),
    "user-only, asked for": Cause(
        "visible", "user-only", files={**BASE, "skills/alpha/SKILL.md": USER_ONLY}, replies=LOADED
    ),
    "judge failed": Cause("visible", "visibility-failed", options={"visibility": raises}, says="no tenant"),
    "extension failed": Cause("visible", "extension-failed", extensions=lambda: [Fails()], says="no database"),
    "not in the lock": Cause(
        "visible", "lock-unlisted", extensions=lambda: [SkillLock({"version": 1, "skills": {}})], says="lock"
    ),
    # Listed.
    "name only": Cause("listed", "name-only", options={"visibility": {"alpha": "name-only"}}),
    "cut": Cause(
        "listed", "catalog-budget", files={**BASE, "skills/alpha/SKILL.md": LONG}, options={"catalog_budget": 260}
    ),
    # Suggested.
    "not suggested": Cause(
        "suggested",
        "not-suggested",
        extensions=lambda: [SkillSuggestions(k=1)],
        given="Draw a diagram of the database tables",
        says="`beta`",
    ),
    "silent": Cause("suggested", "suggestions-silent", extensions=lambda: [SkillSuggestions()], given="Good morning!"),
    "suggested, list cut": Cause(
        "loaded",
        "not-loaded",
        files={
            **BASE,
            "skills/alpha/SKILL.md": skill_md("alpha", "Writes release notes from merged changes. " * 20 + "Yes."),
        },
        options={"catalog_budget": 260},
        extensions=lambda: [SkillSuggestions()],
    ),
    # Loaded.
    "not loaded": Cause("loaded", "not-loaded"),
    "suggested, not loaded": Cause("loaded", "not-loaded", extensions=lambda: [SkillSuggestions()]),
    "too many": Cause(
        "loaded",
        "max_loaded_skills",
        options={"max_loaded_skills": 1},
        replies=(call_tools(load("beta")), call_tools(load("alpha")), "Done."),
    ),
    "too large": Cause("loaded", "max_loaded_tokens", options={"max_loaded_tokens": 5}, replies=LOADED),
    "refused": Cause("loaded", "refused", extensions=lambda: [Refuses()], replies=LOADED, says="not on Fridays"),
    "unloaded": Cause(
        "loaded", "unloaded", replies=(call_tools(load("alpha")), call_tools(unload("alpha")), "Done."), says="model"
    ),
    "unloaded by the application": Cause(
        "loaded", "unloaded", replies=LOADED, update={"skills_loaded": {"unload": ["alpha"]}}, says="application"
    ),
    "refused, then loaded": Cause(
        None,
        None,
        options={"max_loaded_skills": 1},
        replies=(
            call_tools(load("beta")),
            call_tools(load("alpha")),
            call_tools(unload("beta")),
            call_tools(load("alpha")),
            "Done.",
        ),
    ),
    "answered": Cause(None, None, extensions=lambda: [Answers()], replies=LOADED),
    # Present.
    "left out": Cause(
        "present", "left-out", replies=(call_tools(load("alpha")), call_tools(load("nothing")), "Done."), overflow=True
    ),
    # Used.
    "file unread": Cause("used", "file-unread", files=GUIDE, replies=LOADED, says="`references/guide.md`"),
    "file read": Cause(
        None,
        None,
        files=GUIDE,
        replies=(
            call_tools(load("alpha")),
            call_tools(("read_guide", {"path": "/skills/alpha/references/guide.md"})),
            "Done.",
        ),
    ),
    "file asked for": Cause(
        None,
        None,
        files=GUIDE,
        options={"extra_tools": ["load_skill_asset"]},
        replies=(
            call_tools(load("alpha")),
            call_tools(("load_skill_asset", {"skill_name": "Alpha", "relative_path": "references/guide.md"})),
            "Done.",
        ),
    ),
    "file not there": Cause(
        "used",
        "file-unread",
        files=GUIDE,
        options={"extra_tools": ["load_skill_asset"]},
        replies=(
            call_tools(load("alpha")),
            call_tools(("load_skill_asset", {"skill_name": "alpha", "relative_path": "references/none.md"})),
            "Done.",
        ),
    ),
    # Checked.
    "unchecked": Cause("checked", "unchecked", extensions=lambda: [Insists()], replies=LOADED, says="`run_tests`"),
    "proven": Cause(None, None, extensions=lambda: [Insists("passed")], replies=LOADED),
    "used": Cause(None, None, replies=LOADED),
}


def middleware_of(cause: Cause, root: Path) -> SkillsMiddleware:
    """Return middleware with the cause planted, as any process makes it."""
    return SkillsMiddleware(
        backend=disk(root), sources=list(cause.sources), extensions=[*cause.extensions()], **cause.options
    )


def state_after(mode: Mode, make: Any, cause: Cause, skills: SkillsMiddleware) -> dict[str, Any]:
    """Return the state of a thread on which the cause had its effect."""
    replies: Any = overflows([*cause.replies]) if cause.overflow else list(cause.replies)
    further = [Summarizes()] if cause.overflow else []
    agent = make(
        ScriptedChatModel(replies=replies),
        tools=[read_guide],
        middleware=[*further, skills],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run(mode, agent, cause.given, config)
    if cause.update is not None:
        agent.update_state(config, cause.update)
    values = agent.get_state(config).values
    assert isinstance(values, dict)
    return values


def explain(mode: Mode, skills: SkillsMiddleware, state: Any, name: str | None = None) -> list[SkillExplanation]:
    """Explain a state, sync or async."""
    return skills.explain(state, name) if mode == "sync" else asyncio.run(skills.aexplain(state, name))


@both_modes
@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
@pytest.mark.parametrize("planted", CAUSES)
def test_the_cause_that_was_planted_is_named(mode: Mode, make: Any, planted: str, tmp_path: Path) -> None:
    """Exactly it, with a message; another process gives the same answer, and so does a look at all skills."""
    cause = CAUSES[planted]
    write_files(tmp_path, cause.files)
    skills = middleware_of(cause, tmp_path)
    state = state_after(mode, make, cause, skills)
    found = explain(mode, skills, state, cause.name)
    told = found[cause.place]
    assert (told.stopped, told.code) == (cause.stopped, cause.code), told
    assert list(told.stages) == STAGES
    assert told.message
    assert cause.says in told.message
    assert len(found) == cause.place + 1
    places = [stage.passed for stage in told.stages.values()]
    assert places == sorted(places, reverse=True)
    assert [stage.code for stage in told.stages.values() if stage.code] == [code for code in [cause.code] if code]
    # Another process, which knows the state alone.
    assert explain(mode, middleware_of(cause, tmp_path), json_copy(state), cause.name) == found
    if told.code != "unknown" and planted not in {"misnamed", "source missing"}:
        assert told in explain(mode, skills, state)


def json_copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a checkpointer gives it to another process: private keys are plain data."""
    plain = {key: value for key, value in state.items() if key.startswith(("skill", "pinned"))}
    return {**state, **json.loads(json.dumps(plain))}


def thread(skills: SkillsMiddleware, *replies: Any, given: str = "go", **options: Any) -> dict[str, Any]:
    """Return the state of a thread after one run."""
    agent: Any = create_agent(
        ScriptedChatModel(replies=list(replies)), middleware=[skills], checkpointer=InMemorySaver(), **options
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run("sync", agent, given, config)
    values = agent.get_state(config).values
    assert isinstance(values, dict)
    return values


def simple(root: Path, files: Mapping[str, str] = BASE, **options: Any) -> SkillsMiddleware:
    """Return middleware over skills on disk."""
    write_files(root, files)
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


@both_modes
def test_a_state_without_private_keys_is_told_so(mode: Mode, tmp_path: Path) -> None:
    """What `invoke` returns has none: each answer says what to pass, and names what is wrong with files."""
    skills = simple(tmp_path, {**BASE, "skills/broken/SKILL.md": BROKEN})
    agent: Any = create_agent(ScriptedChatModel(replies=["Done."]), middleware=[skills])
    result = run("sync", agent)
    for state in (result, {}):
        told = {each.skill: each for each in explain(mode, skills, state)}
        assert set(told) == {"alpha", "beta", "broken"}
        assert all("get_state" in each.message for each in told.values())
        assert told["broken"].code == "no-frontmatter"
    assert "get_state" in explain(mode, skills, {}, "nobody")[0].message
    with pytest.raises(TypeError, match="get_state"):
        skills.explain(agent)


def test_a_broken_file_is_no_worse_than_spoiled_state(tmp_path: Path) -> None:
    """Private state of any shape gives an answer, never an exception."""
    skills = simple(tmp_path, GUIDE, extensions=[SkillSuggestions(), Insists()])
    state = thread(skills, call_tools(load("alpha")))
    nonsense = (None, 3, "text", ["x"], {"a": 1}, {"trail": {"alpha": 5}, "uses": {"alpha": "x"}, "hidden": {"": []}})
    for key in [key for key in state if key.startswith("skill")]:
        for value in nonsense:
            assert [each.skill for each in skills.explain({**state, key: value}) if each.skill in ("alpha", "beta")]
    memory = {
        "extension SkillSuggestions": {"asked": [], "note:x": [3, []], "ranked": 5},
        "extension Insists": {"receipt": {"skill": "alpha", "check": [1], "status": ["open"]}},
    }
    assert skills.explain({**state, "skills_context": {**state["skills_context"], **memory}})


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    """However many skills are refused, hidden, replaced or used, their traces stay within 200 skills and 64 KiB."""
    many = {f"skills/s{number}/SKILL.md": skill_md(f"s{number}") for number in range(300)}
    more = {f"more/s{number}/SKILL.md": skill_md(f"s{number}") for number in range(300)}
    write_files(tmp_path, {**many, **more})
    skills = SkillsMiddleware(
        backend=disk(tmp_path),
        sources=["/skills", "/more"],
        visibility=lambda skill, _runtime: "off" if skill["name"] != "s0" else "on",
    )
    calls = [call_tools(*(load(f"{'nobody' * 20}-{turn}-{call}") for call in range(30))) for turn in range(12)]
    state = thread(skills, *calls)
    context = state["skills_context"]
    traces = {key: context.get(key, {}) for key in ("trail", "uses", "hidden", "shadowed")}
    assert all(len(found) <= 200 for found in traces.values())
    assert len(json.dumps(traces).encode()) <= 65_536
    assert traces["hidden"]
    assert traces["shadowed"]
    # The newest stay, and what had no room is judged again.
    assert any(name.endswith("-11-29") for name in traces["trail"])
    told = [each.code for each in skills.explain(state)]
    assert told.count("off") == 299
    assert "skill-shadowed" in told
    # Bounded or not, the same is not written again.
    assert "hidden" not in (skills.before_agent(state, Runtime()) or {}).get("skills_context", {})  # type: ignore[arg-type]


def test_an_extension_tells_by_its_trace_after_messages_are_gone(tmp_path: Path) -> None:
    """A refusal and a file's use are known even when a summary has removed the messages that show them."""
    skills = simple(tmp_path, GUIDE, max_loaded_skills=1, extra_tools=["load_skill_asset"])
    asset = ("load_skill_asset", {"skill_name": "alpha", "relative_path": "references/guide.md"})
    state = thread(skills, call_tools(load("alpha")), call_tools(asset, load("beta")), "Done.")
    bare = {**state, "messages": [HumanMessage("go on")]}
    told = {each.skill: each for each in skills.explain(bare)}
    assert (told["alpha"].stopped, told["beta"].code) == (None, "max_loaded_skills")
    assert "guide.md" in told["alpha"].stages["used"].message


def test_a_call_that_a_human_or_another_middleware_refused_counts_as_refused(tmp_path: Path) -> None:
    """Its answer has no mark of ours, and says why."""

    class Blocks(AgentMiddleware[Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:  # noqa: ARG002 - LangChain's signature
            return ToolMessage("Denied by Ann.", tool_call_id=request.tool_call["id"], status="error")

    skills = simple(tmp_path)
    agent: Any = create_agent(
        ScriptedChatModel(replies=[call_tools(load("alpha")), "Done."]),
        middleware=[Blocks(), skills],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run("sync", agent, "go", config)
    [told] = skills.explain(agent.get_state(config).values, "alpha")
    assert (told.code, "Denied by Ann" in told.message) == ("refused", True)


def test_a_skill_that_vanished_or_whose_judge_fails_later_says_so(tmp_path: Path) -> None:
    """A loaded skill whose file is gone, and one whose text stays out while nobody can tell who may see it."""
    down: list[str] = []

    def rule(skill: Any, runtime: Any) -> Visibility:  # noqa: ARG001 - an operator's function
        if down:
            raise RuntimeError("no tenant")
        return "on"

    skills = simple(tmp_path, visibility=rule, refresh="run")
    agent: Any = create_agent(
        ScriptedChatModel(replies=[call_tools(load("alpha"), load("beta")), "Done."]),
        middleware=[skills],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run("sync", agent, "go", config)
    (tmp_path / "skills/beta/SKILL.md").unlink()
    (tmp_path / "skills/beta").rmdir()
    down.append("yes")
    run("sync", agent, "again", config)
    told = {name: skills.explain(agent.get_state(config).values, name)[0] for name in ("alpha", "beta")}
    assert (told["alpha"].stopped, told["alpha"].code) == ("present", "visibility-failed")
    assert (told["beta"].stopped, told["beta"].code) == ("found", "skill-gone")


def test_what_only_the_user_may_start_and_did_is_not_called_hidden(tmp_path: Path) -> None:
    """A later stage overtakes an earlier one."""
    skills = simple(tmp_path, {"skills/alpha/SKILL.md": USER_ONLY}, slash_commands=True)
    state = thread(skills, "Done.", given="/alpha now")
    [told] = skills.explain(state)
    assert told.stopped is None
    assert "slash command" in told.stages["loaded"].message
    assert "its author" in told.stages["visible"].message


def test_missing_optional_sources_are_nobodys_cause(tmp_path: Path) -> None:
    """A name that no skill has is unknown where an optional source is missing."""
    write_files(tmp_path, BASE)
    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills", OptionalSource("/none")])
    [told] = skills.explain(thread(skills), "zzzz")
    assert told.code == "unknown"


@both_modes
def test_a_text_that_was_put_back_is_present(mode: Mode, tmp_path: Path) -> None:
    """A summary took it away, and the next request has it again."""
    skills = simple(tmp_path)
    replies = [call_tools(load("alpha")), call_tools(load("nothing")), "Done."]
    agent: Any = create_agent(
        ScriptedChatModel(replies=replies), middleware=[Summarizes(), skills], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run(mode, agent, "go", config)
    [told] = explain(mode, skills, agent.get_state(config).values, "alpha")
    assert told.stopped is None
    assert "put back" in told.stages["present"].message


class Hub(SkillProvider):
    """Skills from elsewhere."""

    label = "hub"

    def list_skills(self, runtime: Any) -> list[ProvidedSkill]:  # noqa: ARG002 - the provider's signature
        """List one."""
        return [ProvidedSkill("a", "alpha", "Writes release notes.")]

    def read_skill(self, skill: ProvidedSkill, runtime: Any) -> bytes:  # noqa: ARG002 - the provider's signature
        """Read it."""
        return ALPHA.encode()


def sources_of(runtime: Any) -> list[str]:
    """Return the sources of whoever asks; fails where nobody knows who asks."""
    return [f"/{runtime.config['configurable']['thread_id']}"]


@both_modes
@pytest.mark.parametrize(
    "make",
    [
        lambda root: SkillsMiddleware(backend=disk(root), sources=["/skills"], refresh="run"),
        lambda root: SkillsMiddleware(backend=disk(root), sources=sources_of),
        lambda root: SkillsMiddleware(backend=lambda _runtime: disk(root), sources=["/skills"]),
        lambda _root: SkillsMiddleware(sources=[Hub()]),
    ],
    ids=["refresh", "sources", "backend", "provider"],
)
def test_whatever_varies_by_run_is_known_from_the_thread(mode: Mode, make: Any, tmp_path: Path) -> None:
    """Functions of the runtime need no runtime to explain what they gave, in this process and in another."""
    write_files(tmp_path, {**BASE, "one/alpha/SKILL.md": ALPHA})
    skills = make(tmp_path)
    state = thread(skills, call_tools(load("alpha")), "Done.")
    for process in (skills, make(tmp_path)):
        [told] = explain(mode, process, state, "alpha")
        assert told.stopped is None, told
    state = thread(skills, "Done.")
    for process in (skills, make(tmp_path)):
        [told] = explain(mode, process, state, "alpha")
        assert (told.stopped, told.code) == ("loaded", "not-loaded")


@both_modes
def test_another_process_knows_why_a_skill_was_hidden_where_only_a_run_can_list_it(mode: Mode, tmp_path: Path) -> None:
    """By its author, or by its `paths`: what the run found stands on the thread, as no other can ask for it."""
    gamma = skill_md("gamma", paths="src/**")
    write_files(tmp_path, {"one/alpha/SKILL.md": USER_ONLY, "one/beta/SKILL.md": BETA, "one/gamma/SKILL.md": gamma})
    state = thread(SkillsMiddleware(backend=disk(tmp_path), sources=sources_of), "Done.")
    for process in (SkillsMiddleware(backend=disk(tmp_path), sources=sources_of) for _ in range(2)):
        told = {each.skill: each for each in explain(mode, process, state)}
        assert told["beta"].code == "not-loaded"
        assert (told["alpha"].code, told["gamma"].code) == ("user-only", "user-only")
        assert "its author" in told["alpha"].message
        assert "its `paths`" in told["gamma"].message


def test_a_tool_may_ask_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """The state of the run is enough, also what was called in this very turn."""
    skills = simple(tmp_path)
    heard: list[str | None] = []

    @tool
    def why(runtime: ToolRuntime) -> str:
        """Say why alpha was not used."""
        [told] = skills.explain(runtime.state, "alpha", runtime)
        heard.append(told.code)
        return told.message

    thread(skills, call_tools(("why", {})), call_tools(load("alpha")), call_tools(("why", {})), "Done.", tools=[why])
    assert heard == ["not-loaded", None]


def test_a_state_for_unit_tests_is_explained(tmp_path: Path) -> None:
    """What `skills_state` makes has private keys as an agent's has."""
    skills = simple(tmp_path)
    told = {each.skill: each for each in skills.explain(skills_state(skills, loaded=["alpha"]))}
    assert (told["alpha"].stopped, told["beta"].code) == (None, "not-loaded")


def test_suggestions_that_are_only_tried_out_stop_nothing(tmp_path: Path) -> None:
    """With `shadow=True` no note is shown, so none is missing."""
    skills = simple(tmp_path, extensions=[SkillSuggestions(shadow=True)])
    [told] = skills.explain(thread(skills, given="Good morning!"), "alpha")
    assert told.code == "not-loaded"
