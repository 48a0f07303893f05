"""Limits hold where they are hard to judge: scripts, unreadable skills, strangers' names, a skill's own files."""

from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillApproval, SkillHooks, SkillScripts, ToolPolicy
from deepskills.extensions.tool_policy import PolicyMode
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, FakeBackend, Mode, both_modes, disk, load, run, skill_md, tool_messages, write_files
from support.providers import DictProvider

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def script(skill: str) -> tuple[str, dict[str, Any]]:
    return "run_skill_script", {"skill_name": skill, "script_name": "a.py"}


def runner(skill: str, *_given: Any) -> ExecuteResponse:
    return ExecuteResponse(f"ran {skill}", 0)


@both_modes
def test_who_forbids_the_shell_forbids_scripts(mode: Mode, tmp_path: Path) -> None:
    """A script may run what a command may, so it is neither offered nor run, whichever skill it belongs to."""
    files = {"scripted/SKILL.md": skill_md("scripted"), "scripted/scripts/a.py": "print(1)"}
    for number, forbidden in enumerate(("Bash", "execute", "Bash(rm:*)")):
        root = tmp_path / str(number)
        write_files(root / "skills", {**files, "safe/SKILL.md": skill_md("safe", disallowed_tools=forbidden)})
        for policy in (ToolPolicy("enforce"), ToolPolicy("approve", trusted_sources=["/skills"])):
            extensions = [policy, SkillScripts(runner=runner)]
            talk = Conversation(mode, SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=extensions))
            talk.call(load("scripted"), load("safe"))
            [answer] = talk.call(script("scripted"))
            assert "forbids it" in answer.text, forbidden
            assert "run_skill_script" not in talk.model.requests[-1].tools


@both_modes
def test_a_strangers_name_in_another_case_is_another_skill(mode: Mode, tmp_path: Path) -> None:
    """What a trusted skill allows for its own scripts covers no script of one whose name differs in case alone."""
    write_files(
        tmp_path,
        {
            "trusted/mine/SKILL.md": skill_md("mine", allowed_tools="run_skill_script"),
            "trusted/mine/scripts/a.py": "print(1)",
            "stranger/Mine/SKILL.md": skill_md("mine").replace("name: mine", "name: Mine"),
            "stranger/Mine/scripts/a.py": "print(2)",
        },
    )
    modes: tuple[PolicyMode, ...] = ("enforce", "approve")
    for mode_name in modes:
        policy = ToolPolicy(mode_name, trusted_sources=["/trusted"])
        ask: Any = {"allowed_decisions": ["approve", "reject"], "when": policy.needs_approval}
        review: Any = HumanInTheLoopMiddleware({"run_skill_script": ask})
        skills: Any = SkillsMiddleware(
            backend=disk(tmp_path),
            sources=["/trusted", "/stranger"],
            extensions=[policy, SkillScripts(runner=runner)],
        )
        model = ScriptedChatModel(replies=[call_tools(load("mine")), call_tools(script("mine"), script("Mine"))])
        agent: Any = create_agent(model, middleware=[review, skills], checkpointer=InMemorySaver())
        result = run(mode, agent, config=CONFIG)
        [waiting] = result["__interrupt__"]
        asked = [request["args"]["skill_name"] for request in waiting.value["action_requests"]]
        if mode_name == "approve":
            assert asked == ["Mine"]
        else:
            decisions = [{"type": "approve"}] * len(asked)
            result = run(mode, agent, Command(resume={"decisions": decisions}), CONFIG)
            assert [item.status for item in tool_messages(result)[-2:]] == ["success", "error"]


@both_modes
def test_a_skill_reads_its_own_files(mode: Mode, tmp_path: Path) -> None:
    """Under `enforce`, `read_file` and `ls` work inside the directories of skills in use, and nowhere else."""
    write_files(
        tmp_path,
        {
            "skills/tea/SKILL.md": skill_md("tea", allowed_tools="Write"),
            "skills/tea/references/guide.md": "the guide",
            "skills/other/SKILL.md": skill_md("other"),
            "secret.md": "the secret",
        },
    )
    (tmp_path / "skills/tea/out.md").symlink_to(tmp_path / "secret.md")
    backend = disk(tmp_path)
    skills = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[ToolPolicy("enforce")])
    paths = {
        "/skills/tea/references/guide.md": True,
        "\\skills\\tea/references//guide.md": True,
        "/secret.md": False,
        "/skills/tea/out.md": False,
        "/skills/other/SKILL.md": False,
        "/skills/tea/../other/SKILL.md": False,
        "/skills/tea-2/SKILL.md": False,
    }
    reads = [("read_file", {"file_path": path}) for path in paths]
    lists = [("ls", {"path": path}) for path in ("/skills/tea", "/skills/tea/references", "/", "/skills")]
    model = ScriptedChatModel(replies=[call_tools(load("tea")), call_tools(*reads, *lists), "Done."])
    agent: Any = create_deep_agent(model, backend=backend, middleware=[skills])
    answers = tool_messages(run(mode, agent))[1:]
    assert [item.status == "success" for item in answers] == [*paths.values(), True, True, False, False]
    assert {"read_file", "ls", "write_file"} <= set(model.requests[1].tools)
    assert "grep" not in model.requests[1].tools
    # What a skill forbids stays forbidden.
    write_files(tmp_path, {"skills/tea/SKILL.md": skill_md("tea", allowed_tools="Write", disallowed_tools="Read")})
    model = ScriptedChatModel(replies=[call_tools(load("tea")), call_tools(reads[0]), "Done."])
    agent = create_deep_agent(model, backend=backend, middleware=[skills])
    assert tool_messages(run(mode, agent))[-1].status == "error"
    assert "read_file" not in model.requests[1].tools


def down(_argument: object) -> Any:
    raise OSError("the source is down")


@both_modes
def test_rules_that_nobody_can_read_refuse_in_every_mode(mode: Mode, tmp_path: Path) -> None:
    """A new process whose source is down runs what a human approved, and nothing else that could be forbidden."""
    write_files(tmp_path, {"/skills/safe/SKILL.md": skill_md("safe", disallowed_tools="Bash")})
    ran: list[str] = []

    def make(name: str) -> BaseTool:
        @tool(name, description="Does a thing.")
        def run_it(command: str = "") -> str:
            ran.append(f"{name} {command}")
            return "ran"

        return run_it

    def agent(backend: Any, saver: Any, extension: Any, *replies: Any) -> Any:
        when = asking.needs_approval if extension is asking else lambda _request: False
        ask: Any = {"allowed_decisions": ["approve", "reject"], "when": when}
        skills: Any = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[extension])
        review: Any = HumanInTheLoopMiddleware({"write_file": ask})
        tools = [make("execute"), make("write_file")]
        model = ScriptedChatModel(replies=list(replies), fallback="Done.")
        return create_agent(model, tools=tools, middleware=[review, skills], checkpointer=saver)

    asking = ToolPolicy("approve", trusted_sources=["/skills"])
    for number, extension in enumerate((asking, ToolPolicy("enforce"), SkillHooks())):
        saver = InMemorySaver()
        run(mode, agent(FakeBackend(tmp_path), saver, extension, call_tools(load("safe"))), "go", CONFIG)
        broken = FakeBackend(tmp_path, rules={"ls": down, "download_files": down})
        calls = call_tools(("execute", {"command": "ls"}), ("write_file", {"command": "x"}))
        again = agent(broken, saver, extension, calls)
        result = run(mode, again, "go on", CONFIG)
        is_asking = extension is asking
        if is_asking:
            result = run(mode, again, Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
        assert ran == (["write_file x"] if is_asking else []), number
        assert "cannot be read" in str(next(item for item in tool_messages(result) if item.status == "error").content)
        ran.clear()
        # An unload lifts it.
        last = agent(broken, saver, extension, call_tools(("unload_skill", {"skill_name": "safe"})))
        run(mode, last, "unload", CONFIG)
        run(mode, agent(broken, saver, extension, call_tools(("execute", {"command": "ls"}))), "and now", CONFIG)
        assert ran == ["execute ls"], number
        ran.clear()


@both_modes
def test_a_tool_granted_to_a_served_skill_runs(mode: Mode) -> None:
    """What a human granted is offered under `enforce`, and is then not refused."""

    @tool
    def ping() -> str:
        """Answer."""
        return "pong"

    @tool
    def other() -> str:
        """Answer."""
        return "other"

    text = skill_md("tea", allowed_tools="ping")
    provider = DictProvider({"tea": {"SKILL.md": text}}, trusted=False)
    # Beside a skill that limits tools by itself: what is granted widens what may be called.
    own = DictProvider({"own": {"SKILL.md": skill_md("own", allowed_tools="Write")}}, "Own")
    approval = SkillApproval(applies_to=lambda entry: entry.name == "tea", grants=["tools"])
    skills: Any = SkillsMiddleware(sources=[provider, own], extensions=[approval, ToolPolicy("enforce")])
    calls = call_tools(("ping", {}), ("other", {}))
    model = ScriptedChatModel(replies=[call_tools(load("own")), call_tools(load("tea")), calls, "Done."])
    agent: Any = create_agent(model, tools=[ping, other], middleware=[skills], checkpointer=InMemorySaver())
    result = run(mode, agent, config=CONFIG)
    assert "__interrupt__" in result
    result = run(mode, agent, Command(resume={"type": "approve", "grants": ["tools"]}), CONFIG)
    assert "ping" in model.requests[2].tools
    assert [item.status for item in tool_messages(result)[2:]] == ["success", "error"]
