"""Grants: which calls a trusted skill spares a human, for how long, in which process, and never for another's skill."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import SkillsMiddleware
from deepskills.extensions import SkillScripts, ToolPolicy
from deepskills.testing import ScriptedChatModel, call_tools
from support import FakeBackend, Mode, OnlyAsync, both_modes, load, run, skill_md, write_files

CONFIG: Any = {"configurable": {"thread_id": "1"}}
ADD = ("execute", {"command": "git add ."})
PUSH = ("execute", {"command": "git push"})
REVIEWED = ("execute", "run_skill_script", "ping")


class Agent:
    """A process: an agent with human review of some tools, on a thread that others may have begun."""

    def __init__(self, mode: Mode, backend: Any, saver: InMemorySaver, *replies: Any, **options: Any) -> None:
        self.mode = mode
        self.ran: list[str] = []
        self.after_call: Callable[[], None] = lambda: None
        trusted = options.pop("trusted_sources", ["/skills"])
        policy = options.pop("policy", None) or ToolPolicy("approve", trusted_sources=trusted)
        asked: Any = {"allowed_decisions": ["approve", "reject"], "when": policy.needs_approval}
        review: Any = HumanInTheLoopMiddleware(dict.fromkeys(REVIEWED, asked))
        options.setdefault("sources", ["/skills"])
        extensions = [policy, *options.pop("extensions", ())]
        skills: Any = SkillsMiddleware(backend=backend, extensions=extensions, **options)
        self.model = ScriptedChatModel(replies=list(replies), fallback="Done.")
        self.agent: Any = create_agent(
            self.model, tools=[self._tool("execute")], middleware=[review, skills], checkpointer=saver
        )
        self.result: Any = None

    def _tool(self, name: str) -> BaseTool:
        @tool(name, description="Does a thing.")
        def run_it(command: str = "") -> str:
            self.ran.append(command)
            self.after_call()
            return "ran"

        return run_it

    def go(self, given: Any = "go") -> "Agent":
        self.result = run(self.mode, self.agent, given, CONFIG)
        return self

    def decide(self, *kinds: str) -> "Agent":
        return self.go(Command(resume={"decisions": [{"type": kind} for kind in kinds]}))

    @property
    def asked(self) -> list[dict[str, Any]]:
        found = self.result.get("__interrupt__", ())
        return [request["args"] for item in found for request in item.value["action_requests"]]


def git_skill(root: Path) -> None:
    write_files(root, {"/skills/git/SKILL.md": skill_md("git", allowed_tools="Bash(git add:*)")})


def down(_argument: object) -> Any:
    raise OSError("the source is down")


@both_modes
def test_a_verdict_counts_at_the_resume_while_the_source_is_down(mode: Mode, tmp_path: Path) -> None:
    """Another process, which can read no skill, asks about the same calls: decisions and calls match."""
    git_skill(tmp_path)
    saver = InMemorySaver()
    first = Agent(mode, FakeBackend(tmp_path), saver, call_tools(load("git")), call_tools(ADD, PUSH)).go()
    assert first.asked == [PUSH[1]]
    broken = FakeBackend(tmp_path, rules={"ls": down, "download_files": down})
    second = Agent(mode, broken, saver).decide("reject")
    assert (second.ran, second.asked) == (["git add ."], [])


def test_a_verdict_needs_no_sync_method_and_holds_no_loop(tmp_path: Path) -> None:
    """With a backend of async methods alone a resume elsewhere works, and judging makes no call to the backend."""
    git_skill(tmp_path)
    saver = InMemorySaver()
    replies = (call_tools(load("git")), call_tools(ADD, PUSH))
    first = Agent("async", OnlyAsync(tmp_path), saver, *replies).go()
    assert first.asked == [PUSH[1]]
    backend = OnlyAsync(tmp_path)
    policy = ToolPolicy("approve", trusted_sources=["/skills"])
    second = Agent("async", backend, saver, policy=policy)
    request: Any = _request(first, ADD)

    async def judged() -> bool:
        return policy.needs_approval(request)

    assert not asyncio.run(judged())
    assert backend.inner.calls == []
    assert sorted(second.decide("approve").ran) == ["git add .", "git push"]


def _request(agent: Agent, call: tuple[str, dict[str, Any]]) -> Any:
    state = agent.agent.get_state(CONFIG).values
    (made,) = [item for item in state["messages"][-1].tool_calls if item["args"] == call[1]]
    return ToolCallRequest(tool_call=made, tool=None, state=state, runtime=None)  # type: ignore[arg-type]


def test_a_verdict_is_about_the_call_that_was_judged(tmp_path: Path) -> None:
    """Another call under the same id, or a record of the wrong shape, is not granted."""
    git_skill(tmp_path)
    agent = Agent("sync", FakeBackend(tmp_path), InMemorySaver(), call_tools(load("git")), call_tools(ADD, PUSH)).go()
    policy = ToolPolicy("approve", trusted_sources=["/skills"])
    request = _request(agent, ADD)
    assert not policy.needs_approval(request)
    changed = {**request.tool_call, "args": {"command": "git add .; id"}}
    assert policy.needs_approval(request.override(tool_call=changed))
    written: list[Any] = [{"granted": []}, {"granted": {request.tool_call["id"]: True}}, "granted", {"granted": None}]
    for forged in written:
        state = {**request.state, "skills_context": {"extension ToolPolicy": forged}}
        assert policy.needs_approval(request.override(state=state)), forged


class Failing:
    """A visibility function that fails when told to."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, *_: object) -> str:
        if self.fails:
            raise RuntimeError("no verdict")
        return "on"


@both_modes
def test_what_cannot_be_judged_grants_nothing_and_lifts_no_limit(mode: Mode, tmp_path: Path) -> None:
    """A visibility function that raises in one model call takes the grant for that call; what is forbidden stays so."""
    text = skill_md("git", allowed_tools="Bash(git add:*)", disallowed_tools="Bash(rm:*)")
    write_files(tmp_path, {"/skills/git/SKILL.md": text})
    visibility = Failing()
    turns = (call_tools(load("git")), call_tools(ADD), call_tools(ADD), call_tools(("execute", {"command": "rm x"})))
    agent = Agent(mode, FakeBackend(tmp_path), InMemorySaver(), *turns, visibility=visibility)
    agent.after_call = lambda: setattr(visibility, "fails", True)
    agent.go()
    assert (agent.ran, agent.asked) == (["git add ."], [ADD[1]])
    agent.after_call = lambda: None
    agent.decide("approve")
    assert agent.asked == [{"command": "rm x"}]
    visibility.fails = False
    agent.decide("approve")
    assert agent.ran == ["git add ."] * 2


# A grant is its owner's.

SCRIPTED = {
    "/skills/mine/SKILL.md": skill_md("mine", allowed_tools="run_skill_script"),
    "/skills/mine/scripts/a.py": "print('mine')",
    "/skills/narrow/SKILL.md": skill_md("narrow", allowed_tools="run_skill_script(report.py:*) run_skill_script(b.py)"),
    "/skills/narrow/scripts/report.py": "print('report')",
    "/skills/narrow/scripts/b.py": "print('b')",
    "/other/theirs/SKILL.md": skill_md("theirs", metadata={"include_tools": "ping"}),
    "/other/theirs/scripts/evil.py": "print('evil')",
    "/skills/pinger/SKILL.md": skill_md("pinger", allowed_tools="ping"),
    "/skills/owner/SKILL.md": skill_md("owner", allowed_tools="ping", metadata={"include_tools": "ping"}),
}
SCRIPT_CALLS: list[tuple[str, str, list[str], bool]] = [
    ("mine", "a.py", ["x"], True),
    ("MINE", "scripts/a.py", [], True),
    ("theirs", "evil.py", [], False),
    ("narrow", "report.py", ["--all"], True),
    ("narrow", "scripts/report.py", [], True),
    ("narrow", "b.py", [], True),
    ("narrow", "b.py", ["x"], False),
    ("narrow", "report.py.py", [], False),
]


def runner(skill: str, path: str, args: list[str], env: dict[str, str], timeout: int) -> ExecuteResponse:
    return ExecuteResponse(f"ran {skill} {path.rpartition('/')[2]} {args} {env} {timeout}", 0)


def script(skill: str, name: str, args: list[str]) -> tuple[str, dict[str, Any]]:
    return "run_skill_script", {"skill_name": skill, "script_name": name, "args": args}


@tool
def ping() -> str:
    """Answer."""
    return "pong"


@both_modes
def test_scripts_are_granted_by_their_own_skill_alone(mode: Mode, tmp_path: Path) -> None:
    """A trusted skill that allows `run_skill_script` spares nobody a question about a stranger's, in either mode."""
    write_files(tmp_path, SCRIPTED)
    loads = call_tools(load("mine"), load("theirs"), load("narrow"))
    calls = [script(skill, name, args) for skill, name, args, _ in SCRIPT_CALLS]
    expected = [granted for *_, granted in SCRIPT_CALLS]
    options: Any = {"sources": ["/skills", "/other"]}
    replies = (loads, call_tools(*calls))
    scripts = [SkillScripts(runner=runner)]
    agent = Agent(mode, FakeBackend(tmp_path), InMemorySaver(), *replies, extensions=scripts, **options).go()
    assert agent.asked == [args for (_, args), granted in zip(calls, expected, strict=True) if not granted]
    policy = ToolPolicy("enforce")
    talk = Agent(mode, FakeBackend(tmp_path), InMemorySaver(), *replies, policy=policy, extensions=scripts, **options)
    talk.go().decide(*["approve"] * len(calls))
    answers = [item for item in talk.result["messages"] if getattr(item, "name", "") == "run_skill_script"]
    assert [item.status == "success" for item in answers] == expected


@both_modes
def test_a_skills_own_tool_is_granted_by_that_skill_alone(mode: Mode, tmp_path: Path) -> None:
    """What one skill brings, another skill's `allowed-tools` does not cover."""
    write_files(tmp_path, SCRIPTED)
    options: Any = {"sources": ["/other", "/skills"], "tools": [ping]}
    for names, asked in ((("theirs", "pinger"), [{}]), (("owner",), [])):
        replies = (call_tools(*(load(name) for name in names)), call_tools(("ping", {})))
        agent = Agent(mode, FakeBackend(tmp_path), InMemorySaver(), *replies, **options).go()
        assert agent.asked == asked, names


@both_modes
def test_a_skill_that_two_sources_hold_has_the_lesser_trust(mode: Mode, tmp_path: Path) -> None:
    """Where sources overlap, a file is trusted only if all sources are that hold it, in whichever order they stand."""
    write_files(tmp_path, {"/skills/team/git/SKILL.md": skill_md("git", allowed_tools="Bash(git add:*)")})
    replies = (call_tools(load("git")), call_tools(ADD))
    for sources in (["/skills", "/skills/team"], ["/skills/team", "/skills"]):
        for trusted, asked in ((["/skills/team"], [ADD[1]]), (["/skills"], [ADD[1]]), (sources, [])):
            options: Any = {"sources": sources, "trusted_sources": trusted}
            agent = Agent(mode, FakeBackend(tmp_path), InMemorySaver(), *replies, **options).go()
            assert agent.asked == asked, (sources, trusted)
