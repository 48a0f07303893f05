"""Sub-agents that are not known to carry our middleware: limits would not hold there."""

from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import Refuse, SkillsMiddleware
from deepskills.extensions import SkillChecks, SkillForks, SkillHooks, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files
from support.providers import DictProvider

CONFIG: Any = {"configurable": {"thread_id": "1"}}
HOOKS = {"PreToolUse": [{"matcher": "execute", "hooks": [{"type": "python", "handler": "check"}]}]}


def task(kind: str) -> tuple[str, dict[str, Any]]:
    return "task", {"description": "Do it.", "subagent_type": kind}


def deep_agent(skills: Any, *replies: Any) -> Any:
    """Return an agent with sub-agents that are declared, compiled, and known to carry the middleware."""
    model = ScriptedChatModel(replies=list(replies), fallback="Done.")
    child: Any = ScriptedChatModel(replies=[], fallback="Done below.")
    about = {"description": "Does a thing.", "system_prompt": "Do it."}
    subagents: list[Any] = [
        {"name": "bare", "model": child, **about},
        {"name": "compiled", "description": "Does a thing.", "runnable": create_agent(child)},
        {"name": "bound", "model": child, "middleware": [skills], **about},
        {"name": "compiled-bound", "description": "x", "runnable": create_agent(child, middleware=[skills])},
    ]
    return create_deep_agent(model, middleware=[skills], subagents=subagents, checkpointer=InMemorySaver())


def check(_request: object) -> Refuse | None:
    return None


@both_modes
def test_task_is_refused_where_limits_would_not_hold(mode: Mode, tmp_path: Path) -> None:
    """Under a policy, a hook or a check that restricts, only a sub-agent with the middleware may be started."""
    kinds = ("bare", "compiled", "bound", "compiled-bound", "general-purpose")
    fields: dict[str, dict[str, Any]] = {
        "plain": {},
        "lead": {"allowed_tools": "Task"},
        "careful": {"disallowed_tools": "Write"},
        "hooked": {"hooks": HOOKS},
        "checked": {"checks": [{"called": "run_tests", "before": "deploy"}]},
        "listed": {"checks": [{"called": "run_tests"}]},
    }
    write_files(tmp_path / "skills", {f"{name}/SKILL.md": skill_md(name, **own) for name, own in fields.items()})
    rows: list[tuple[Any, str, bool]] = [
        (ToolPolicy("enforce"), "plain", False),
        (ToolPolicy("enforce"), "lead", True),
        (ToolPolicy("enforce"), "careful", True),
        (ToolPolicy("approve", trusted_sources=["/skills"]), "careful", True),
        (ToolPolicy("approve", trusted_sources=["/skills"]), "lead", False),
        (SkillHooks({"check": check}), "hooked", True),
        (SkillHooks({"check": check}), "plain", False),
        (SkillChecks(), "checked", True),
        (SkillChecks(), "listed", False),
    ]
    for extension, name, restricts in rows:
        skills: Any = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[extension])
        agent = deep_agent(skills, call_tools(load(name)), call_tools(*map(task, kinds)))
        answers = tool_messages(run(mode, agent, config=CONFIG))[1:]
        said = "was not run" if isinstance(extension, SkillChecks) else "would not hold"
        refused = [kind for kind, answer in zip(kinds, answers, strict=True) if said in answer.text]
        assert refused == (["bare", "compiled"] if restricts else []), (type(extension), name)


@both_modes
def test_a_human_is_asked_before_a_served_skill_starts_an_unbound_agent(mode: Mode) -> None:
    """What the skill says may make that agent execute code, and nobody would be asked there."""
    provider = DictProvider({"tea": {"SKILL.md": skill_md("tea")}}, trusted=False)
    for kind, asks in (("bare", True), ("compiled", True), ("general-purpose", False)):
        skills: Any = SkillsMiddleware(sources=[provider])
        agent = deep_agent(skills, call_tools(load("tea")), call_tools(task(kind)))
        result = run(mode, agent, config=CONFIG)
        assert ("__interrupt__" in result) is asks, kind
        if asks:
            assert result["__interrupt__"][0].value["type"] == "skill_execution"
            result = run(mode, agent, Command(resume={"type": "reject"}), CONFIG)
            assert tool_messages(result)[-1].status == "error"


def with_forks(skills: Any, forks: SkillForks, *replies: Any, deep: bool) -> Any:
    """Return an agent whose forks run in these graphs, or in sub-agents that do not carry the middleware."""
    model = ScriptedChatModel(replies=list(replies), fallback="Done.")
    bare: Any = {"name": "bare", "description": "x", "system_prompt": "x", "model": ScriptedChatModel(replies=[])}
    middleware: Any = [skills([forks])]
    if not deep:
        return create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    return create_deep_agent(model, middleware=middleware, subagents=[bare], checkpointer=InMemorySaver())


@both_modes
def test_a_fork_is_refused_where_limits_would_not_hold(mode: Mode, tmp_path: Path) -> None:
    """Whether it runs in the application's graph or by `task`: under a policy, a hook or a check that restricts."""
    fields: dict[str, dict[str, Any]] = {
        "plain": {},
        "careful": {"disallowed_tools": "Write"},
        "hooked": {"hooks": HOOKS},
        "checked": {"checks": [{"called": "run_tests", "before": "deploy"}]},
        "away": {"context": "fork", "agent": "bare"},
        "home": {"context": "fork", "agent": "bound"},
    }
    write_files(tmp_path / "skills", {f"{name}/SKILL.md": skill_md(name, **own) for name, own in fields.items()})
    rows: list[tuple[Any, str, bool]] = [
        (ToolPolicy("enforce"), "plain", False),
        (ToolPolicy("enforce"), "careful", True),
        (ToolPolicy("approve", trusted_sources=["/skills"]), "careful", True),
        (SkillHooks({"check": check}), "hooked", True),
        (SkillChecks(), "checked", True),
    ]
    for extension, name, restricts in rows:

        def skills(forks: Any, extension: Any = extension) -> Any:
            return SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[*forks, extension])

        def graph(*middleware: Any) -> Any:
            return create_agent(ScriptedChatModel(replies=[], fallback="Done below."), middleware=middleware)

        own = SkillForks({"bare": graph(), "bound": graph(skills([])).with_config(tags=["x"])})
        for forks, starts, deep in ((own, ["away", "home"], False), (SkillForks(), ["away"], True)):
            agent = with_forks(skills, forks, call_tools(load(name)), call_tools(*map(load, starts)), deep=deep)
            answers = tool_messages(run(mode, agent, config=CONFIG))[1:]
            refused = [start for start, answer in zip(starts, answers, strict=True) if answer.status == "error"]
            assert refused == (["away"] if restricts else []), (type(extension), name, [a.text for a in answers])


@both_modes
def test_a_human_is_asked_before_a_served_skill_starts_a_fork_elsewhere(mode: Mode, tmp_path: Path) -> None:
    """It cannot be a fork itself, but it may ask for one of the application's."""
    write_files(tmp_path / "skills", {"away/SKILL.md": skill_md("away", context="fork", agent="bare")})
    provider = DictProvider({"tea": {"SKILL.md": skill_md("tea")}}, trusted=False)
    for served in (True, False):
        below = ScriptedChatModel(replies=[], fallback="Done below.")
        skills: Any = SkillsMiddleware(
            backend=disk(tmp_path),
            sources=["/skills", provider],
            extensions=[SkillForks({"bare": create_agent(below)})],
        )
        turns = [call_tools(load("tea")), call_tools(load("away"))][0 if served else 1 :]
        agent: Any = create_agent(
            ScriptedChatModel(replies=list(turns), fallback="Done."), middleware=[skills], checkpointer=InMemorySaver()
        )
        result = run(mode, agent, config=CONFIG)
        assert ("__interrupt__" in result) is served
        assert bool(below.requests) is not served
        if served:
            assert run(mode, agent, Command(resume={"type": "approve"}), CONFIG)["messages"][-1].text == "Done."
            assert below.requests
