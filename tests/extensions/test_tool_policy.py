"""Tool policy: what the model is offered and may call while skills are in use, and which calls a human need not see."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from deepskills import Refuse, SkillRun, SkillsMiddleware
from deepskills.extensions import DEFAULT_ALIASES, SkillForks, ToolPolicy
from deepskills.testing import Request, ScriptedChatModel, call_tools
from support import (
    Conversation,
    Mode,
    both_modes,
    disk,
    load,
    picked,
    run,
    skill_md,
    tool_messages,
    unload,
    write_files,
)

SKILLS: dict[str, dict[str, Any]] = {
    "reader": {"allowed_tools": "Read"},
    "adder": {"allowed_tools": "Bash(git add:*) mcp__docs__search"},
    "writer": {"allowed_tools": ["Write", "Bash(git push *)"]},
    "plain": {},
    "odd": {"allowed_tools": "Read(src/**) Bash(git) Bash(git*) Bash(rm"},
    "careful": {"disallowed_tools": "Write Bash(rm:*)"},
    "greedy": {"disallowed_tools": ["unload_skill", "load_skill", "Read(secret)"]},
    "tooled": {"allowed_tools": "Read", "metadata": {"include_tools": "ping execute"}},
    "forked": {"context": "fork"},
}
OWN = {"load_skill", "unload_skill"}


class Tools:
    """The agent's own tools, and which of them ran with what."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        def made(name: str) -> BaseTool:
            @tool(name, description="Does a thing.")
            def run_it(command: str = "", timeout: int = 0, cwd: str = "") -> str:
                self.ran.append(f"{name} {command}".strip())
                return f"{name} ran {timeout}{cwd}"

            return run_it

        self.tools = [made(name) for name in ("read_file", "write_file", "execute", "mcp__docs__search")]
        self.ping = made("ping")


def library(root: Path, *extensions: Any, source: str = "/skills", **options: Any) -> SkillsMiddleware[Any, Any]:
    for name, fields in SKILLS.items():
        write_files(root, {f"{source}/{name}/SKILL.md": skill_md(name, **fields)})
    for name, value in (("empty", "[]"), ("mapped-wrong", "{Read: yes}")):
        text = f"---\nname: {name}\ndescription: Does a thing.\nallowed-tools: {value}\n---\n"
        write_files(root, {f"{source}/{name}/SKILL.md": text})
    return SkillsMiddleware(backend=disk(root), sources=[source], extensions=extensions, **options)


def shell(command: str, **more: object) -> tuple[str, dict[str, Any]]:
    return "execute", {"command": command, **more}


Call: TypeAlias = tuple[str, dict[str, Any]]
READ: Call = ("read_file", {})
WRITE: Call = ("write_file", {})
SEARCH: Call = ("mcp__docs__search", {})
ADD = shell("git add .")
RM = shell("rm -rf /")


def on_another_thread(talk: Conversation, thread_id: str) -> Conversation:
    """Return a conversation with the same agent, which was not talked to yet, on a thread of its own."""
    other = copy.copy(talk)
    other.config = {"configurable": {"thread_id": thread_id}}
    return other


def newest(model: ScriptedChatModel) -> Request:
    return model.requests[-1]


# Skills in use, the tools offered beside the skills' own, and calls with whether they run.
ENFORCED: list[tuple[Sequence[str], set[str], list[tuple[tuple[str, dict[str, Any]], bool]]]] = [
    ((), {"read_file", "write_file", "execute", "mcp__docs__search"}, [(READ, True), (RM, True)]),
    (("plain",), {"read_file", "write_file", "execute", "mcp__docs__search"}, [(WRITE, True), (RM, True)]),
    (("reader",), {"read_file"}, [(READ, True), (WRITE, False), (ADD, False)]),
    (
        ("adder",),
        {"execute", "mcp__docs__search", "read_file"},
        [
            (ADD, True),
            (SEARCH, True),
            (READ, False),
            (RM, False),
            (shell("git add .", timeout=3), True),
            (shell("git add .", cwd="/tmp"), False),
            (shell("git add .; id"), False),
            (("execute", {}), False),
        ],
    ),
    (("reader", "plain"), {"read_file"}, [(READ, True), (WRITE, False)]),
    (
        ("reader", "writer"),
        {"read_file", "write_file", "execute"},
        [(READ, True), (WRITE, True), (ADD, False), (shell("git push"), True), (SEARCH, False)],
    ),
    (("empty",), {"read_file"}, [(READ, False)]),
    (("mapped-wrong",), {"read_file"}, [(READ, False)]),
    (("odd",), {"execute", "read_file"}, [(READ, False), (shell("git"), True), (shell("git add"), False), (RM, False)]),
    (
        ("careful",),
        {"read_file", "execute", "mcp__docs__search"},
        [(READ, True), (WRITE, False), (ADD, True), (RM, False), (shell("/bin/rm x"), False), (shell("ls | x"), False)],
    ),
    (("careful", "writer"), {"execute", "read_file"}, [(WRITE, False), (shell("git push"), True), (READ, False)]),
    (("greedy",), {"write_file", "execute", "mcp__docs__search"}, [(READ, False), (WRITE, True)]),
]


@both_modes
def test_only_what_skills_in_use_declare_is_offered_and_runs(mode: Mode, tmp_path: Path) -> None:
    """While a skill in use declares tools, the union of the declared ones is offered and runs, and nothing else."""
    wrong: list[object] = []
    tools = Tools()
    start = Conversation(mode, library(tmp_path, ToolPolicy("enforce")), tools=tools.tools)
    for number, (skills, offered, calls) in picked(enumerate(ENFORCED)):
        tools.ran.clear()
        talk = on_another_thread(start, str(number))
        talk.call(*(load(name) for name in skills)) if skills else talk.say()
        if set(newest(talk.model).tools) != offered | OWN:
            wrong.append((skills, newest(talk.model).tools))
        answers = talk.call(*(call for call, _ in calls))
        wrong += [
            (skills, call, answer.text)
            for (call, may_run), answer in zip(calls, answers, strict=True)
            if (answer.status != "error") is not may_run
        ]
        expected = sorted(f"{name} {args.get('command', '')}".strip() for (name, args), may_run in calls if may_run)
        if sorted(tools.ran) != expected:
            wrong.append((skills, tools.ran.copy()))
    assert wrong == []


@both_modes
def test_the_answer_names_the_skill_and_what_is_allowed(mode: Mode, tmp_path: Path) -> None:
    """A refused model knows why, and what to do."""
    talk = Conversation(mode, library(tmp_path, ToolPolicy("enforce", always=["ls"])), tools=Tools().tools)
    talk.call(load("reader"), load("adder"), load("careful"))
    (not_allowed,) = talk.call(shell("git pull"))
    (forbidden,) = talk.call(WRITE)
    for part in ('"reader"', '"adder"', "read_file", "Bash(git add:*)", "ls", "unload_skill"):
        assert part in not_allowed.text
    assert '"careful"' in forbidden.text
    assert "unload_skill" in forbidden.text


@both_modes
def test_calls_beside_a_load_or_unload_are_judged_by_both_sides(mode: Mode, tmp_path: Path) -> None:
    """A load in the same turn restricts at once; what an unload or a load frees is free in the next turn."""
    tools = Tools()
    talk = Conversation(mode, library(tmp_path, ToolPolicy("enforce")), tools=tools.tools)
    before, _, after = talk.call(WRITE, load("reader"), WRITE)
    assert (before.status, after.status, tools.ran) == ("success", "error", ["write_file"])
    _, freed = talk.call(unload("reader"), WRITE)
    assert (freed.status, tools.ran) == ("error", ["write_file"])
    assert talk.call(WRITE)[0].status == "success"
    talk.call(load("reader"))
    _, widened = talk.call(load("writer"), WRITE)
    assert widened.status == "error"
    assert talk.call(WRITE)[0].status == "success"


@both_modes
def test_a_load_that_is_refused_widens_nothing(mode: Mode, tmp_path: Path) -> None:
    """A call beside a load that fails has no more than before."""
    tools = Tools()
    talk = Conversation(mode, library(tmp_path, ToolPolicy("enforce"), max_loaded_skills=1), tools=tools.tools)
    talk.call(load("reader"))
    refused, written = talk.call(load("writer"), WRITE)
    assert (refused.status, written.status, tools.ran) == ("error", "error", [])


@both_modes
def test_always_and_the_skills_own_tools_stay(mode: Mode, tmp_path: Path) -> None:
    """Named tools, extra tools and the tools of skills in use stay callable; a skill adds none of the agent's."""
    tools = Tools()
    options: dict[str, Any] = {"extra_tools": ["search_skills"], "tools": [tools.ping]}
    middleware = library(tmp_path, ToolPolicy("enforce", always=["write_file"]), **options)
    talk = Conversation(mode, middleware, tools=tools.tools)
    talk.call(load("tooled"))
    assert set(newest(talk.model).tools) == {*OWN, "search_skills", "read_file", "write_file", "ping"}
    answers = talk.call(("ping", {}), WRITE, ("search_skills", {"query": "reader"}), RM)
    assert [answer.status for answer in answers] == ["success", "success", "success", "error"]
    assert sorted(tools.ran) == ["ping", "write_file"]


@both_modes
def test_no_skill_takes_away_the_tools_that_end_it(mode: Mode, tmp_path: Path) -> None:
    """A skill that forbids `unload_skill` can be unloaded."""
    talk = Conversation(mode, library(tmp_path, ToolPolicy("enforce")), tools=Tools().tools)
    talk.call(load("greedy"))
    assert set(newest(talk.model).tools) >= OWN
    assert talk.call(unload("greedy"))[0].status == "success"
    assert talk.loaded == []


class RecordingModel(ScriptedChatModel):
    """Remembers tools as they are bound, also those that have no name."""

    bound_tools: list[Any]

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        self.bound_tools.append((list(tools), kwargs.get("tool_choice")))
        return super().bind_tools([item for item in tools if isinstance(item, BaseTool)])


@both_modes
def test_tools_of_a_provider_are_judged_by_name_or_type(mode: Mode, tmp_path: Path) -> None:
    """A dict is offered if its name, or for want of one its type, is allowed; what has neither is not."""
    write_files(tmp_path, {"/skills/web/SKILL.md": skill_md("web", allowed_tools="web_search google_search Fetch")})
    web: list[Any] = [
        {"type": "web_search"},
        {"google_search": {}},
        {"type": "web_fetch_20260101", "name": "fetch"},
        {"type": "function", "function": {"name": "fetch_all", "parameters": {}}},
    ]
    other: list[Any] = [
        {"type": "mcp", "server_label": "a"},
        {"type": "mcp", "server_label": "b"},
        {"type": "code_execution_20260101", "name": "code"},
        {"type": "function"},
        {"one": {}, "two": {}},
        {"type": ["web_search"], "name": {}},
        {"type": "image_generation"},
    ]
    policy = ToolPolicy("enforce", aliases={"Fetch": "fetch"}, always=["fetch_all", "image_generation"])
    model = RecordingModel(replies=[call_tools(load("web")), "Done."], bound_tools=[])
    agent: Any = create_agent(model, tools=[*web, *other], middleware=[library(tmp_path, policy)])
    run(mode, agent)
    first, second = (bound for bound, _ in model.bound_tools)
    assert [item for item in first if isinstance(item, dict)] == [*web, *other]
    assert [item for item in second if isinstance(item, dict)] == [*web, other[-1]]


@both_modes
def test_forbidden_tools_of_a_provider_are_not_offered(mode: Mode, tmp_path: Path) -> None:
    """A dict goes by its name, its type, or any part of one that is several tools without a name."""
    text = skill_md("offline", disallowed_tools="web_search google_search code_execution_1")
    write_files(tmp_path, {"/skills/offline/SKILL.md": text})
    forbidden: list[Any] = [
        {"type": "web_search"},
        {"google_search": {}},
        {"google_search": {}, "url_context": {}},
        {"type": "code_execution_1", "name": "code"},
    ]
    others: list[Any] = [{"url_context": {}}, {"type": "mcp", "server_label": "a"}, {"name": "fetch", "web_search": 1}]
    model = RecordingModel(replies=[call_tools(load("offline")), "Done."], bound_tools=[])
    skills = library(tmp_path, ToolPolicy("approve", trusted_sources=[]))
    run(mode, create_agent(model, tools=[*forbidden, *others], middleware=[skills]))
    assert [item for item in model.bound_tools[1][0] if isinstance(item, dict)] == others


@both_modes
def test_a_forced_tool_that_is_taken_away_is_not_forced(mode: Mode, tmp_path: Path) -> None:
    """A request never asks for a tool that it does not offer: providers refuse it."""

    class Forcing(AgentMiddleware[Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tool_choice="execute"))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(tool_choice="execute"))

    model = RecordingModel(replies=[call_tools(load("reader")), "Done."], bound_tools=[])
    middleware = [Forcing(), library(tmp_path, ToolPolicy("enforce"))]
    run(mode, create_agent(model, tools=Tools().tools, middleware=middleware))
    assert [choice for _, choice in model.bound_tools] == ["execute", None]


@both_modes
def test_deep_agents_own_tools_follow_the_policy_in_sub_agents_too(mode: Mode, tmp_path: Path) -> None:
    """File tools and `task` are tools as any other; a sub-agent is bound by its parent's skills and by its own."""
    write_files(tmp_path, {"/skills/lead/SKILL.md": skill_md("lead", allowed_tools="Task Read Write")})
    task = ("task", {"description": "Write it.", "subagent_type": "general-purpose"})
    model = ScriptedChatModel(
        replies=[
            call_tools(load("lead")),
            call_tools(("ls", {"path": "/"}), task),
            call_tools(("write_file", {"file_path": "/x.txt", "content": "x"})),
            call_tools(load("reader")),
            call_tools(("write_file", {"file_path": "/y.txt", "content": "y"})),
            "Written.",
            "Done.",
        ]
    )
    agent: Any = create_deep_agent(model, middleware=[library(tmp_path, ToolPolicy("enforce"))])
    result = run(mode, agent)
    assert set(model.requests[1].tools) == {*OWN, "task", "read_file", "ls", "write_file"}
    assert set(model.requests[2].tools) == {*OWN, "read_file", "ls", "write_file"}
    assert "write_file" not in model.requests[4].tools
    assert [message.status for message in tool_messages(result)] == ["success", "error", "success"]
    assert list(result["files"]) == ["/x.txt"]


@both_modes
def test_a_skill_that_runs_in_a_sub_agent_is_judged_as_task(mode: Mode, tmp_path: Path) -> None:
    """What may not start a sub-agent may not start one by a skill; without forks it is a load as any other."""
    agents = {"general-purpose": create_agent(ScriptedChatModel(replies=[], fallback="Forked."))}
    for extensions, expected in (
        ((ToolPolicy("enforce"), SkillForks(agents)), "error"),
        ((ToolPolicy("enforce"),), "success"),
    ):
        talk = Conversation(mode, library(tmp_path, *extensions))
        assert talk.call(load("forked"))[0].status == "success"
        talk.call(load("reader"))
        for spelling in ("FORKED", " forked ", "`forked`", '"Forked"', "**forked**"):
            assert talk.call(load(spelling))[0].status == expected, spelling


@both_modes
def test_a_skill_that_becomes_a_fork_is_judged_as_one(mode: Mode, tmp_path: Path) -> None:
    """A file that was changed after the skills were listed starts no sub-agent that the policy does not allow."""
    helper = ScriptedChatModel(replies=[], fallback="Forked.")
    extensions = (ToolPolicy("enforce"), SkillForks({"general-purpose": create_agent(helper)}))
    talk = Conversation(mode, library(tmp_path, *extensions))
    talk.call(load("reader"))
    write_files(tmp_path, {"/skills/plain/SKILL.md": skill_md("plain", context="fork")})
    assert talk.call(load("plain"))[0].status == "error"
    assert helper.requests == []
    talk.call(unload("reader"))
    assert talk.call(load("plain"))[0].text == "Forked."


class BrokenPolicy(ToolPolicy):
    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        raise RuntimeError(f"{request.tool_call['name']} {run.loaded}")


@both_modes
def test_a_policy_that_raises_refuses(mode: Mode, tmp_path: Path) -> None:
    """A call that could not be judged does not run, and the run goes on."""
    tools = Tools()
    talk = Conversation(mode, library(tmp_path, BrokenPolicy("enforce")), tools=tools.tools)
    assert [answer.status for answer in talk.call(READ)] == ["error"]
    assert tools.ran == []


ASKS_PER_CALL = "interrupt_mode" in inspect.signature(HumanInTheLoopMiddleware.__init__).parameters
"""Whether this release of LangChain can also ask about each call by itself."""


def reviewing(policy: ToolPolicy, interrupt_mode: Any = "batched") -> HumanInTheLoopMiddleware[Any, Any, Any]:
    asked: Any = {"allowed_decisions": ["approve", "edit", "reject"], "when": policy.needs_approval}
    names = ("read_file", "write_file", "execute", "load_skill")
    options: Any = {"interrupt_mode": interrupt_mode} if ASKS_PER_CALL else {}
    return HumanInTheLoopMiddleware(dict.fromkeys(names, asked), **options)


class Reviewed:
    """An agent with human review, whose loads are approved, and a thread on it."""

    def __init__(self, mode: Mode, root: Path, *, ahead: bool = True, per_call: bool = False, **options: Any) -> None:
        trusted = options.pop("trusted_sources", ["/skills/"])
        saver: InMemorySaver | None = options.pop("saver", None)
        self.tools = Tools()
        policy = ToolPolicy("approve", trusted_sources=trusted)
        review = reviewing(policy, "per_call" if per_call else "batched")
        skills = library(root, policy, **options)
        order = [review, skills] if ahead else [skills, review]
        self.talk = Conversation(mode, *order, tools=self.tools.tools)
        self.talk.agent.checkpointer = self.saver = saver or self.talk.agent.checkpointer

    def load(self, *names: str) -> None:
        self.talk.say(call_tools(*(load(name) for name in names)))
        self.answer(*[{"type": "approve"} for _ in names], then="Loaded.")

    def within(self, *turns: Any) -> None:
        """Have the model load skills and make calls in one run, the loads approved."""
        self.talk.say(*turns)
        self.answer({"type": "approve"}, then=None)

    def answer(self, *decisions: Any, then: Any = None) -> None:
        called = len(self.talk.model.requests)
        if then is not None:
            self.talk.model.replies = [*([self.talk.model.fallback] * called), then]
        self.talk.result = run(
            self.talk.mode, self.talk.agent, Command(resume={"decisions": list(decisions)}), self.talk.config
        )

    @property
    def asked(self) -> list[str]:
        """The calls that a human is asked about."""
        found = self.talk.result.get("__interrupt__", ())
        values = [item.value for item in found]
        listed = [request for value in values for request in value.get("action_requests", [value])]
        return [f"{request['name']} {request['args'].get('command', '')}".strip() for request in listed]


@both_modes
def test_covered_calls_run_without_asking_and_others_interrupt(mode: Mode, tmp_path: Path) -> None:
    """A human is asked about what no trusted skill in use covers, and about nothing else."""
    talk = Reviewed(mode, tmp_path)
    talk.within(call_tools(load("adder")), call_tools(ADD), call_tools(ADD, shell("git add .; id"), READ))
    assert talk.tools.ran == ["execute git add ."]
    assert talk.asked == ["execute git add .; id", "read_file"]


@both_modes
def test_a_grant_ends_with_the_users_next_message(mode: Mode, tmp_path: Path) -> None:
    """What was loaded for an earlier message spares nobody a question."""
    talk = Reviewed(mode, tmp_path)
    talk.within(call_tools(load("adder")), call_tools(ADD), "Done.")
    assert talk.asked == []
    talk.talk.say(call_tools(ADD))
    assert talk.asked == ["execute git add ."]


@both_modes
def test_a_grant_ends_with_an_unload_also_in_the_same_turn(mode: Mode, tmp_path: Path) -> None:
    """An unloaded skill covers nothing, nor one that the same turn unloads."""
    talk = Reviewed(mode, tmp_path / "a")
    talk.within(call_tools(load("adder")), call_tools(unload("adder")), call_tools(ADD))
    assert talk.asked == ["execute git add ."]
    for number, spelling in enumerate(("ADDER ", "`adder`")):
        beside = Reviewed(mode, tmp_path / str(number))
        beside.within(call_tools(load("adder")), call_tools(ADD, unload(spelling)))
        assert beside.asked == ["execute git add ."]


@both_modes
def test_a_source_that_is_not_trusted_grants_nothing(mode: Mode, tmp_path: Path) -> None:
    """A stranger's skill declares what it likes, and a human is asked all the same."""
    for number, trusted in enumerate(([], ["/skills/adder"], ["/", "/skill", "skills", "/other"])):
        talk = Reviewed(mode, tmp_path / str(number), trusted_sources=trusted)
        talk.within(call_tools(load("adder")), call_tools(ADD))
        assert talk.asked == ["execute git add ."], trusted


@both_modes
def test_disallowed_tools_hold_with_approval_too(mode: Mode, tmp_path: Path) -> None:
    """A human's yes does not run what a skill in use forbids, and it is not offered."""
    talk = Reviewed(mode, tmp_path)
    talk.load("careful")
    assert "write_file" not in newest(talk.talk.model).tools
    talk.talk.say(call_tools(WRITE))
    talk.answer({"type": "approve"})
    assert talk.tools.ran == []


@both_modes
def test_edited_calls_are_judged_as_edited(mode: Mode, tmp_path: Path) -> None:
    """What a human makes of a call is what the policy judges: batched in either order, per call with review ahead."""
    edit = {"type": "edit", "edited_action": {"name": "execute", "args": {"command": "rm -rf /"}}}
    mend = {"type": "edit", "edited_action": {"name": "execute", "args": {"command": "ls"}}}
    orders = [(True, False), (False, False), *([(True, True)] if ASKS_PER_CALL else [])]
    for number, (ahead, per_call) in enumerate(orders):
        talk = Reviewed(mode, tmp_path / str(number), ahead=ahead, per_call=per_call)
        talk.talk.say(call_tools(load("careful")))
        approve: Any = {"type": "approve"}
        resume = approve if per_call else {"decisions": [approve]}
        talk.talk.say("Loaded.", given=Command(resume=resume))
        for decision, asked, ran in ((edit, shell("ls"), []), (mend, RM, ["execute ls"])):
            talk.talk.say(call_tools(asked))
            talk.talk.say("Done.", given=Command(resume=decision if per_call else {"decisions": [decision]}))
            assert talk.tools.ran == ran, (ahead, per_call, asked)


@both_modes
def test_a_new_process_resumes_with_the_same_grants(mode: Mode, tmp_path: Path) -> None:
    """A process that resumes an interrupted turn asks about the calls that were asked about, and no others."""
    first = Reviewed(mode, tmp_path)
    first.within(call_tools(load("adder")), call_tools(ADD, shell("git push"), READ))
    assert first.asked == ["execute git push", "read_file"]
    second = Reviewed(mode, tmp_path, saver=first.saver)
    second.answer({"type": "reject"}, {"type": "approve"}, then="Done.")
    assert sorted(second.tools.ran) == ["execute git add .", "read_file"]


@both_modes
def test_a_users_command_grants_for_its_turn(mode: Mode, tmp_path: Path) -> None:
    """A skill that the user starts covers its calls as one that the model loads."""
    talk = Reviewed(mode, tmp_path, slash_commands=True)
    talk.talk.say(call_tools(ADD, READ), given="/adder now")
    assert talk.asked == ["read_file"]


def test_what_cannot_be_judged_needs_approval() -> None:
    """Without a middleware, in the wrong mode or with a broken state a human is asked."""
    call: Any = {"name": "execute", "args": {"command": "git add ."}, "id": "1", "type": "tool_call"}
    for policy in (ToolPolicy("approve", trusted_sources=["/skills"]), ToolPolicy("enforce")):
        for state in ({}, {"messages": [HumanMessage("x")]}, None):
            request = ToolCallRequest(tool_call=call, tool=None, state=state, runtime=None)  # type: ignore[arg-type]
            assert policy.needs_approval(request)


def test_wrong_parameters_are_refused() -> None:
    """A policy that would not protect is not made."""
    mistakes: list[dict[str, Any]] = [
        {"mode": "warn"},
        {"mode": "approve"},
        {"mode": "approve", "trusted_sources": "/skills"},
        {"mode": "enforce", "always": "read_file"},
    ]
    for mistake in mistakes:
        with pytest.raises(ValueError, match=r"`always`|mode|trusted_sources"):
            ToolPolicy(**mistake)


@both_modes
def test_other_clients_names_are_the_applications_to_map(mode: Mode, tmp_path: Path) -> None:
    """The default knows deepagents' tools; an application adds its own names, also for its shell."""
    write_files(
        tmp_path, {"/skills/mapped/SKILL.md": skill_md("mapped", allowed_tools="Bash(git add:*) WebSearch Read")}
    )
    tools = Tools()

    @tool
    def bash(command: str) -> str:
        """Run a command."""
        return command

    @tool
    def find_page(query: str) -> str:
        """Search."""
        return query

    aliases = {**DEFAULT_ALIASES, "Bash": "bash", "WebSearch": "find_page"}
    talk = Conversation(
        mode, library(tmp_path, ToolPolicy("enforce", aliases=aliases)), tools=[*tools.tools, bash, find_page]
    )
    talk.call(load("mapped"))
    assert set(newest(talk.model).tools) == {*OWN, "bash", "find_page", "read_file"}
    answers = talk.call(("bash", {"command": "git add x"}), ("bash", {"command": "git rm x"}), ADD)
    assert [answer.status for answer in answers] == ["success", "error", "error"]


@both_modes
def test_a_thousand_declared_tools_cost_little(mode: Mode, tmp_path: Path) -> None:
    """A stranger's long list is read once, and an answer names only some of it."""
    names = " ".join(f"tool-{number}" for number in range(3000))
    write_files(tmp_path, {"/skills/long/SKILL.md": skill_md("long", allowed_tools=names)})
    talk = Conversation(mode, library(tmp_path, ToolPolicy("enforce")), tools=Tools().tools)
    talk.call(load("long"))
    (answer,) = talk.call(READ)
    assert answer.status == "error"
    assert len(answer.text) < 2000


def test_a_thread_resumed_elsewhere_keeps_its_policy(tmp_path: Path) -> None:
    """A new process judges by the skills that the thread has in use."""
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "1"}}
    for number, replies in enumerate(([call_tools(load("reader")), "Done."], [call_tools(WRITE), "Done."])):
        tools = Tools()
        model = ScriptedChatModel(replies=replies)
        agent: Any = create_agent(
            model, tools=tools.tools, middleware=[library(tmp_path, ToolPolicy("enforce"))], checkpointer=saver
        )
        run("sync", agent, "go", config)
        assert tools.ran == []
        assert ("write_file" in model.requests[0].tools) is (number == 0)


@both_modes
def test_a_skill_that_cannot_be_read_allows_nothing(mode: Mode, tmp_path: Path) -> None:
    """A process that resumes a thread and cannot read a skill in use refuses what that may limit, until an unload."""

    class Down(FilesystemBackend):
        def ls(self, path: str) -> Any:
            raise OSError(f"{path} is out of reach")

    def broken(root: Path) -> Any:
        write_files(root, {"/skills/reader/SKILL.md": "half saved"})
        return disk(root)

    for number, made in enumerate((lambda root: Down(root_dir=root, virtual_mode=True), broken)):
        root = tmp_path / str(number)
        first = Conversation(mode, library(root, ToolPolicy("enforce")))
        first.call(load("reader"))
        tools = Tools()
        again: Any = SkillsMiddleware(
            backend=made(root), sources=["/skills"], extensions=[ToolPolicy("enforce", always=["execute"])]
        )
        talk = Conversation(mode, tools=tools.tools)
        talk.agent = create_agent(
            talk.model, tools=tools.tools, middleware=[again], checkpointer=first.agent.checkpointer
        )
        talk.call(READ, WRITE, ADD)
        assert tools.ran == ["execute git add ."], number
        assert set(newest(talk.model).tools) == {*OWN, "execute"}
        assert "cannot be read" in tool_messages(talk.result)[1].text
        talk.call(unload("reader"))
        assert talk.call(WRITE)[0].status == "success"
