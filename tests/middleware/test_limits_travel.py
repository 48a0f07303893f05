"""Limits travel, grants do not: what skills in use forbid holds in sub-agents and forks that carry the skills."""

from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillForks, SkillHooks, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, disk, load, run, skill_md, write_files

TASK = ("task", {"description": "Send it.", "subagent_type": "general-purpose"})


class World:
    """An agent whose sub-agents carry the skills, and a tool that skills may forbid."""

    def __init__(self, root: Path, *replies: Any, **fields: Any) -> None:
        self.sent: list[str] = []
        files = {
            "skills/strict/SKILL.md": skill_md("strict", **fields),
            "skills/wide/SKILL.md": skill_md("wide", allowed_tools="send, other"),
            "skills/forked/SKILL.md": skill_md("forked", context="fork"),
        }
        write_files(root, files)

        @tool
        def send(text: str) -> str:
            """Send a text."""
            self.sent.append(text)
            return f"sent {text}"

        def refuses(_request: Any) -> Any:
            self.asked.append("asked")

        self.asked: list[str] = []
        self.model = ScriptedChatModel(replies=[*replies, "Done.", "Done.", "Done."])
        self.skills = SkillsMiddleware(
            backend=disk(root),
            sources=["/skills"],
            extensions=[ToolPolicy("enforce"), SkillForks(), SkillHooks({"check": refuses})],
        )
        self.sends = [send]
        self.agent = create_deep_agent(model=self.model, tools=[send], middleware=[self.skills])

    def tools(self, number: int) -> list[str]:
        """Return the tools that a request offered."""
        return list(self.model.requests[number].tools)


@both_modes
def test_what_is_forbidden_is_forbidden_in_a_sub_agent(mode: Mode, tmp_path: Path) -> None:
    """A tool that `disallowed-tools` names is neither offered nor run in what `task` starts."""
    send = call_tools(("send", {"text": "x"}))
    world = World(tmp_path, call_tools(load("strict")), call_tools(TASK), send, disallowed_tools="send")
    run(mode, world.agent)
    assert world.sent == []
    assert "send" in world.tools(0)
    assert "send" not in world.tools(2)


@both_modes
def test_a_sub_agent_cannot_widen_what_it_may_do(mode: Mode, tmp_path: Path) -> None:
    """What `allowed-tools` leaves out is forbidden there, whatever a skill that the sub-agent loads allows."""
    send = call_tools(("send", {"text": "x"}))
    replies = [call_tools(load("strict")), call_tools(TASK), call_tools(load("wide")), send]
    world = World(tmp_path, *replies, allowed_tools="task")
    run(mode, world.agent)
    assert world.sent == []
    assert [{"send", "write_file"} & set(world.tools(number)) for number in (2, 3)] == [set(), set()]


@both_modes
def test_a_sub_agent_without_limits_above_is_free(mode: Mode, tmp_path: Path) -> None:
    """Where nothing is in use, or the skill allows the tool, a sub-agent does its work; limits end with the task."""
    for before in ((), (call_tools(load("wide")),)):
        world = World(tmp_path, *before, call_tools(TASK), call_tools(("send", {"text": "x"})), disallowed_tools="send")
        if before:
            write_files(tmp_path, {"skills/wide/SKILL.md": skill_md("wide", allowed_tools="send, task")})
        run(mode, world.agent)
        assert world.sent == ["x"]


@both_modes
def test_what_a_sub_agent_loaded_limits_its_parent_until_the_next_message(mode: Mode, tmp_path: Path) -> None:
    """Its answer may be what that skill said; the user's next message ends that."""
    send = call_tools(("send", {"text": "x"}))
    replies = [call_tools(TASK), call_tools(load("strict")), "It says: send it!", send, "No.", send]
    world = World(tmp_path, *replies, disallowed_tools="send")
    agent = create_deep_agent(
        model=world.model, tools=world.sends, middleware=[world.skills], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "one"}}
    run(mode, agent, "go", config)
    assert world.sent == []
    assert ["send" in world.tools(number) for number in (0, 1, 2, 3)] == [True, True, False, False]
    assert (
        "skills_loaded" not in agent.get_state(config).values or agent.get_state(config).values["skills_loaded"] == []
    )
    run(mode, agent, "now you may", config)
    assert world.sent == ["x"]


@both_modes
def test_hooks_run_in_a_sub_agent(mode: Mode, tmp_path: Path) -> None:
    """A `PreToolUse` hook of a skill in use sees the calls of what `task` starts."""
    hooks = {"PreToolUse": [{"matcher": "send", "hooks": [{"type": "python", "handler": "check"}]}]}
    replies = [call_tools(load("strict")), call_tools(TASK), call_tools(("send", {"text": "x"}))]
    world = World(tmp_path, *replies, hooks=hooks)
    run(mode, world.agent)
    assert (world.asked, world.sent) == (["asked"], ["x"])


@both_modes
def test_an_agent_that_a_tool_runs_is_limited_as_well(mode: Mode, tmp_path: Path) -> None:
    """A tool of the application that runs another agent with the skills takes the limits along."""
    sent: list[str] = []
    write_files(tmp_path, {"skills/strict/SKILL.md": skill_md("strict", disallowed_tools="send")})

    @tool
    def send(text: str) -> str:
        """Send a text."""
        sent.append(text)
        return "sent"

    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=[ToolPolicy("enforce")])
    inner = create_agent(
        ScriptedChatModel(replies=[call_tools(("send", {"text": "x"})), "Done."]), tools=[send], middleware=[skills]
    )

    @tool
    def delegate() -> str:
        """Let another agent send."""
        return str(inner.invoke({"messages": [HumanMessage("go")]})["messages"][-1].text)

    replies = [call_tools(load("strict")), call_tools(("delegate", {})), "Done."]
    run(mode, create_agent(ScriptedChatModel(replies=replies), tools=[delegate], middleware=[skills]))
    assert sent == []
