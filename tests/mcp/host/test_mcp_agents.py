"""Agents with skills of MCP servers: names, origins, the acting window, and what a served skill may not do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, LocalShellBackend, StateBackend
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from mcp_support import REPORT, Book, b64, book, host, skill

from deepskills import InlineBackend, InlineSkill, SkillsManager, SkillsMiddleware
from deepskills.extensions import SkillForks, SkillHooks, SkillModels, SkillScripts, ToolPolicy
from deepskills.mcp import McpSkills
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, disk, load, run, skill_md, tool_messages, unload, write_files

CONFIG = {"configurable": {"thread_id": "one"}}


class Talk:
    """An agent on a thread, whose model follows a script."""

    def __init__(self, mode: Mode, kind: str, backend: Any, sources: Any, **options: Any) -> None:
        self.mode = mode
        self.model = ScriptedChatModel(replies=[])
        tools = options.pop("agent_tools", [])
        checkpointer = options.pop("checkpointer", None) or InMemorySaver()
        self.middleware = SkillsMiddleware(backend=backend, sources=sources, **options)
        if kind == "deep":
            self.agent: Any = create_deep_agent(
                self.model, tools=tools, backend=backend, middleware=[self.middleware], checkpointer=checkpointer
            )
        else:
            self.agent = create_agent(self.model, tools=tools, middleware=[self.middleware], checkpointer=checkpointer)
        self.result: dict[str, Any] = {}
        self._told = 0

    def call(self, *calls: tuple[str, dict[str, Any]], resume: Any = None) -> list[str]:
        """Have the model make calls in one turn, or answer an interrupt; return what the tools answered."""
        if resume is None:
            called = len(self.model.requests)
            self.model.replies = [*([self.model.fallback] * called), call_tools(*calls)]
        given: Any = "go" if resume is None else Command(resume=resume)
        self.result = run(self.mode, self.agent, given, CONFIG)
        answers = [str(message.text) for message in tool_messages(self.result)]
        new, self._told = answers[self._told :], len(answers)
        return new

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [item.value for item in self.result.get("__interrupt__", [])]

    @property
    def system(self) -> str:
        return self.model.requests[-1].system

    @property
    def problems(self) -> list[dict[str, Any]]:
        return list(self.agent.get_state(CONFIG).values.get("skills_problems") or [])

    @property
    def loaded(self) -> list[str]:
        names: list[str] = self.agent.get_state(CONFIG).values["skills_loaded"]
        return names


MODES: list[tuple[Mode, str]] = [("sync", "deep"), ("async", "deep"), ("sync", "plain"), ("async", "plain")]


@pytest.mark.parametrize(("mode", "kind"), MODES)
def test_skills_of_two_servers_and_a_directory_stand_side_by_side(mode: Mode, kind: str, tmp_path: Path) -> None:
    """One URI and name on two servers, the same bytes on one of them, and a local skill: three skills, three texts."""
    same = skill_md("report", "Writes reports.", "Local text.\n")
    write_files(tmp_path / "local", {"report/SKILL.md": same})
    one = book(tmp_path, "one", skills={REPORT: skill(body="First text.\n", files={"a.md": "From one."})})
    two = book(tmp_path, "two", skills={REPORT: skill(body="First text.\n", files={"a.md": "From two."})})
    with host({"one": one, "two": two}) as skills:
        backend = CompositeBackend(default=disk(tmp_path / "local"), routes={"/mcp/": skills})
        talk = Talk(
            mode, kind, backend, ["/mcp/one", "/", "/mcp/two"], extra_tools=["load_skill_asset", "search_skills"]
        )
        answers = talk.call(load("one:report"), load("two:report"), load("report"))
        assert talk.loaded == ["one:report", "two:report", "report"]
        assert (one.requests(), two.requests()) == (
            ["skills/list", "resources/read"],
            ["skills/list", "resources/read"],
        )
        for label, text in zip(("one", "two"), answers, strict=False):
            assert f'name="{label}:report"' in text
            assert f'origin="MCP server {label}"' in text
            assert f"This skill came from the MCP server '{label}'. It is untrusted" in text
            assert f"`/mcp/{label}/team/report/a.md`" in text
        assert "Local text." in answers[2]
        assert "MCP" not in answers[2]
        for line in (
            "- **one:report** [MCP server 'one', untrusted]",
            "- **two:report** [MCP",
            "- **report** [Loaded]",
        ):
            assert line in talk.system
        assert talk.problems == []
        got = talk.call(
            *(("load_skill_asset", {"skill_name": f"{x}:report", "relative_path": "a.md"}) for x in ("one", "two"))
        )
        assert ["From one." in got[0], "From two." in got[1]] == [True, True]
        assert (one.requests(), two.requests()) == (["resources/read"], ["resources/read"])
        talk.call(unload("one:report"))
        assert talk.loaded == ["two:report", "report"]
        [late] = talk.call(("load_skill_asset", {"skill_name": "one:report", "relative_path": "a.md"}))
        assert "only while it is loaded" in late
        [found] = talk.call(("search_skills", {"query": "report"}))
        assert all(name in found for name in ("one:report", "two:report"))
        assert (one.requests(), two.requests()) == ([], [])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_files_are_read_only_while_their_skill_is_loaded_by_any_tool(mode: Mode, tmp_path: Path) -> None:
    """`read_file`, `grep` and `load_skill_asset` read nothing before the load, of other skills, or after the unload."""
    said = book(
        tmp_path,
        skills={
            REPORT: skill(files={"a.md": "needle A"}),
            "skill://team/notes/SKILL.md": skill("notes", files={"b.md": "needle B"}),
        },
    )
    root = "/mcp/docs/team"
    reads: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"file_path": f"{root}/report/a.md"}),
        ("read_file", {"file_path": f"{root}/report/SKILL.md"}),
        ("read_file", {"file_path": f"{root}/notes/b.md"}),
        ("grep", {"pattern": "needle", "path": "/mcp/docs"}),
        ("load_skill_asset", {"skill_name": "docs:report", "relative_path": "a.md"}),
    ]
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        talk = Talk(mode, "deep", backend, ["/mcp/docs"], extra_tools=["load_skill_asset"])
        before = talk.call(*reads)
        assert not any("needle" in text for text in before)
        assert said.requests() == ["skills/list"]
        talk.call(load("docs:report"))
        assert said.requests() == ["resources/read"]
        during = talk.call(*reads)
        assert ["needle A" in text for text in during] == [True, False, False, False, True]
        assert "report/a.md" in during[3]
        assert "b.md" not in during[3]
        assert "Follow the template." in during[1]
        assert "needle B" not in "".join(during)
        [outside] = talk.call(("read_file", {"file_path": f"{root}/report/other.md"}))
        assert "not a file of the skill as it was loaded" in outside
        talk.call(unload("docs:report"))
        said.requests()
        assert not any("needle" in text for text in talk.call(*reads))
        assert said.requests() == []


def test_the_entry_held_since_the_load_decides(tmp_path: Path) -> None:
    """What the server adds, changes or removes in the middle of a run cannot be read until the next load."""
    said = book(tmp_path, ttl=0, skills={REPORT: skill(files={"a.md": "A", "gone.md": "G"})})
    root = "/mcp/docs/team/report"

    def reads(*names: str) -> list[tuple[str, dict[str, Any]]]:
        return [("read_file", {"file_path": f"{root}/{name}"}) for name in names]

    with host({"docs": said}) as skills:

        @tool
        def change() -> str:
            """Change what the server has, and list it again in this process."""
            said.write(skills={REPORT: skill(files={"a.md": "changed", "new.md": "N"})})
            SkillsManager(backend=skills, sources=["/docs"]).list_skills()
            return "done"

        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        talk = Talk("sync", "deep", backend, ["/mcp/docs"], agent_tools=[change])
        talk.model.replies = [
            call_tools(load("docs:report")),
            call_tools(("change", {})),
            call_tools(("ls", {"path": root}), *reads("a.md", "gone.md", "new.md")),
        ]
        names, changed, gone, new = [
            str(message.text) for message in tool_messages(run("sync", talk.agent, "go", CONFIG))
        ][-4:]
        assert "gone.md" in names
        assert "new.md" not in names
        assert "mcp-mismatch" in changed
        assert "mcp-mismatch" in gone
        assert "not a file of the skill" in new


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_entry_that_changed_between_runs_is_a_changed_file(mode: Mode, tmp_path: Path) -> None:
    """Its skill is loaded again at the next run, whatever part of it changed, and its new files may be read."""
    said = book(tmp_path, ttl=0, skills={REPORT: skill(files={"a.md": "A"})})
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        talk = Talk(mode, "deep", backend, ["/mcp/docs"])
        talk.call(load("docs:report"))
        said.write(skills={REPORT: skill(files={"a.md": "changed", "new.md": "N"})})
        found = talk.call(
            *(("read_file", {"file_path": f"/mcp/docs/team/report/{name}"}) for name in ("a.md", "new.md"))
        )
        assert ["changed" in found[0], "N" in found[1]] == [True, True]
        said.write(skills={REPORT: skill(body="Other text.\n")})
        talk.call()
        assert "Other text." in str(talk.model.requests[-1].messages)
        assert "Follow the template." not in str(talk.model.requests[-1].messages)
        assert talk.loaded == ["docs:report"]


def test_a_mismatch_at_the_load_is_told_and_the_next_load_succeeds(tmp_path: Path) -> None:
    """The model reads the code and what to do; the text of the refused load is nowhere."""
    said = book(tmp_path)
    with host({"docs": said}) as skills:
        talk = Talk("async", "plain", skills, ["/docs"])
        talk.call()
        said.write(skills={REPORT: skill(body="Newer text.\n")})
        [refused] = talk.call(load("docs:report"))
        assert "mcp-mismatch" in refused
        assert "Newer text." not in refused
        assert talk.loaded == []
        [loaded] = talk.call(load("docs:report"))
        assert "Newer text." in loaded


def test_a_thread_goes_on_in_another_process_with_what_it_had_loaded(tmp_path: Path) -> None:
    """A new host holds what the thread loaded; what its server has changed since is a changed file."""
    said = book(tmp_path, skills={REPORT: skill(files={"a.md": "A"}), "skill://t/x/SKILL.md": skill("x")})
    read = ("read_file", {"file_path": "/mcp/docs/team/report/a.md"})
    saver = InMemorySaver()
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        Talk("sync", "deep", backend, ["/mcp/docs"], checkpointer=saver).call(load("docs:report"))
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        assert "A" in Talk("sync", "deep", backend, ["/mcp/docs"], checkpointer=saver).call(read)[-1]
    said.write(skills={REPORT: skill(files={"a.md": "B"})})
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
        answer = Talk("sync", "deep", backend, ["/mcp/docs"], checkpointer=saver).call(read)[-1]
        assert answer.rstrip().endswith("B")


def test_a_run_with_nothing_changed_makes_no_request(tmp_path: Path) -> None:
    """Within the time to live a second run, and a second thread's first, list from memory."""
    said = book(tmp_path)
    with host({"docs": said}) as skills:
        for refresh in ("thread", "run"):
            talk = Talk("sync", "plain", skills, ["/docs"], refresh=refresh)
            talk.call()
            talk.call()
        assert said.requests() == ["skills/list"]


def test_problems_of_servers_reach_the_thread_and_cost_no_other_skill(tmp_path: Path) -> None:
    """A failing server is `source-failed`, one without the extension `mcp-not-declared`; the good one is listed."""
    good = book(tmp_path, "good")
    mute = book(tmp_path, "mute", declares=False)
    dead = {"transport": "stdio", "command": str(tmp_path / "nowhere"), "args": []}
    with host({"good": good, "mute": mute, "dead": dead}) as skills:
        talk = Talk("async", "plain", skills, ["/good", "/mute", "/dead", "/unknown"])
        talk.call()
        found = {(problem["path"], problem["code"]) for problem in talk.problems}
        assert found == {("/mute", "mcp-not-declared"), ("/dead", "source-failed"), ("/unknown", "source-missing")}
        assert "- **good:report**" in talk.system
        manager = SkillsManager(backend=skills, sources=["/good"])
        assert manager.list_skills() == ["good:report"]
        assert "Follow the template." in manager.get_skill_content("good:report")


def test_a_served_skill_never_takes_a_name_away(tmp_path: Path) -> None:
    """A local skill that is called like a served one keeps its name, whichever source comes later."""
    local = InlineBackend([InlineSkill("report", "Local.", "Local text.")])
    write_files(tmp_path / "local", {"x/SKILL.md": skill_md("x", "Local.").replace("name: x", "name: docs:report")})
    said = book(tmp_path)
    with host({"docs": said}) as skills:
        backend = CompositeBackend(default=disk(tmp_path / "local"), routes={"/mcp/": skills, "/inline/": local})
        for sources in (["/", "/mcp/docs"], ["/mcp/docs", "/"]):
            talk = Talk("sync", "plain", backend, sources)
            [first] = talk.call(load("docs:report"))
            assert 'path="/x/SKILL.md"' in first
            codes = [problem["code"] for problem in talk.problems]
            assert "mcp-renamed" in codes
            assert "skill-shadowed" not in codes
            renamed = next(word for word in talk.system.split("**") if word.startswith("docs:report~"))
            assert "Follow the template." in talk.call(load(renamed))[0]


# What a served skill may not do.

HOOKS = {"PreToolUse": [{"matcher": ".*", "hooks": [{"type": "python", "handler": "spy"}]}]}
POWERS = {
    "allowed-tools": "execute",
    "hooks": HOOKS,
    "model": "big",
    "context": "fork",
    "metadata": {"include_tools": "secret_tool"},
}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_served_skill_grants_itself_nothing(mode: Mode, tmp_path: Path) -> None:
    """Allowed tools, hooks, model, tools of its own and forks do nothing, even from a trusted source."""
    seen: list[str] = []

    @tool
    def secret_tool() -> str:
        """Return a secret."""
        return "secret"

    @tool
    def harmless() -> str:
        """Do nothing."""
        return "done"

    big = ScriptedChatModel(replies=["big"])
    said = book(tmp_path, skills={REPORT: skill(fields=POWERS)})
    with host({"docs": said}) as skills:
        policy = ToolPolicy("approve", trusted_sources=["/docs"])
        talk = Talk(
            mode,
            "plain",
            skills,
            ["/docs"],
            agent_tools=[harmless],
            tools=[secret_tool],
            extensions=[
                policy,
                SkillHooks(handlers={"spy": lambda request: seen.append(request.tool_call["name"])}, sources=["/docs"]),
                SkillModels({"big": big}),
                SkillForks(agents={"general-purpose": create_agent(ScriptedChatModel(replies=["forked"]))}),
            ],
        )
        [loaded] = talk.call(load("docs:report"))
        assert "Follow the template." in loaded
        assert talk.loaded == ["docs:report"]
        assert talk.call(("harmless", {})) == ["done"]
        assert (seen, big.requests) == ([], [])
        assert "secret_tool" not in talk.model.requests[-1].tools
        assert "Recommended tools" not in talk.system
        assert "secret" not in talk.call(("secret_tool", {}))[0].replace("secret_tool", "")
        enforced = Talk(mode, "plain", skills, ["/docs"], agent_tools=[harmless], extensions=[ToolPolicy("enforce")])
        enforced.call(load("docs:report"))
        assert enforced.call(("harmless", {})) == ["done"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[tuple[Any, McpSkills, Book]]:
    """Give a backend with a shell, a local skill with a script, and a server beside them."""
    scripts = {"scripts/go.py": "print('script ran')\n"}
    write_files(tmp_path / "work", {"own/SKILL.md": skill_md("own"), "own/scripts/go.py": scripts["scripts/go.py"]})
    said = book(tmp_path, skills={REPORT: skill(files=scripts)})
    with host({"docs": said}, executes=["my_runner"]) as skills:
        default = LocalShellBackend(root_dir=tmp_path / "work", virtual_mode=True, inherit_env=True)
        yield CompositeBackend(default=default, routes={"/mcp/": skills}), skills, said


@tool
def my_runner(code: str) -> str:
    """Run code."""
    return f"ran {code}"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tools_that_execute_code_ask_while_a_served_skill_is_in_use(mode: Mode, shell: Any) -> None:
    """`execute`, `run_skill_script` and the tools named in `executes` ask, with tool, arguments and skill."""
    backend, _, _ = shell
    talk = Talk(mode, "deep", backend, ["/", "/mcp/docs"], agent_tools=[my_runner], extensions=[SkillScripts()])
    echo = ("execute", {"command": "echo free"})
    assert "free" in talk.call(echo)[0]
    assert talk.asked == []
    talk.call(load("docs:report"), load("own"))
    for call in (
        echo,
        ("my_runner", {"code": "1"}),
        ("run_skill_script", {"skill_name": "own", "script_name": "go.py"}),
    ):
        assert talk.call(call) == []
        [question] = talk.asked
        assert (question["type"], question["tool"], question["arguments"]) == ("skill_execution", *call)
        assert (question["skill"], question["grants"]) == ("docs:report", ["scripts"])
        assert question["skills"][0]["uri"] == REPORT
        assert question["skills"][0]["label"] == "docs"
        [refused] = talk.call(resume={"type": "reject", "message": "not today"})
        assert "not today" in refused
        assert "docs:report" in refused
        talk.call(call)
        [ran] = talk.call(resume={"type": "approve"})
        assert "free" in ran or "ran" in ran
    talk.call(echo)
    assert "did not let execute run" in talk.call(resume="yes, sure")[0]
    # A skill that asks to be unloaded in the same turn has moved the model all the same.
    talk.call(unload("docs:report"), echo)
    assert len(talk.asked) == 1
    talk.call(resume={"type": "approve"})
    assert "free" in talk.call(echo)[0]
    assert talk.asked == []
    # A load in the same turn counts as well.
    talk.call(load("docs:report"), echo)
    assert len(talk.asked) == 1


def test_scripts_that_were_granted_ask_no_more_for_that_content(shell: Any) -> None:
    """An approval with the grant `scripts` holds for the skill and its digest; changed content asks again."""
    backend, _, said = shell
    talk = Talk("sync", "deep", backend, ["/mcp/docs"], refresh="run")
    echo = ("execute", {"command": "echo free"})
    talk.call(load("docs:report"))
    talk.call(echo)
    talk.call(resume={"type": "approve", "grants": ["scripts"]})
    assert "free" in talk.call(echo)[0]
    assert talk.asked == []
    talk.call(unload("docs:report"))
    talk.call(load("docs:report"))
    assert "free" in talk.call(echo)[0]
    talk.call(unload("docs:report"))
    said.write(skills={REPORT: skill(body="Other.\n")})
    assert "mcp-mismatch" in talk.call(load("docs:report"))[0]
    talk.call(load("docs:report"))
    assert talk.call(echo) == []
    assert len(talk.asked) == 1


def test_a_text_that_lingers_after_its_unload_still_asks(shell: Any) -> None:
    """With `unload_when="cheap"` the text stays in requests for a while; until it has left, code asks."""
    backend, _, _ = shell
    talk = Talk("sync", "deep", backend, ["/mcp/docs"], unload_when="cheap", loaded_status="conversation")
    talk.call(load("docs:report"))
    talk.call(unload("docs:report"))
    talk.call(("execute", {"command": "echo free"}))
    assert len(talk.asked) == 1


def test_a_backend_function_is_guarded_as_well(shell: Any) -> None:
    """What a function of the runtime gives is not known before the run; the question comes all the same."""
    backend, _, _ = shell

    def made(_runtime: object) -> Any:
        return backend

    model = ScriptedChatModel(replies=[])
    middleware = SkillsMiddleware(backend=made, sources=["/mcp/docs"])
    agent = create_agent(model, tools=[my_runner], middleware=[middleware], checkpointer=InMemorySaver())
    model.replies = [call_tools(load("docs:report")), call_tools(("my_runner", {"code": "1"}))]
    result = run("sync", agent, "go", CONFIG)
    assert [item.value["tool"] for item in result["__interrupt__"]] == ["my_runner"]


def test_a_graph_that_knows_no_skills_reads_nothing(tmp_path: Path) -> None:
    """Inside a run in which no middleware says what is loaded, files are refused; outside of runs they are compared."""
    said = book(tmp_path)
    with host({"docs": said}) as skills:

        @tool
        def peek() -> str:
            """Read behind the middleware's back."""
            return str(skills.download_files(["/docs/team/report/SKILL.md"])[0])

        model = ScriptedChatModel(replies=[call_tools(("peek", {}))])
        [answer] = tool_messages(run("sync", create_agent(model, tools=[peek])))
        assert "only while it is loaded" in str(answer.text)
        assert b"Follow" in (skills.download_files(["/docs/team/report/SKILL.md"])[0].content or b"")


def test_async_runs_on_several_loops_share_one_host(tmp_path: Path) -> None:
    """Sync runs, and async ones on loops of their own, use the same connections."""
    said = book(tmp_path, skills={REPORT: skill(files={"a.md": b64("x")})})
    with host({"docs": said}) as skills:
        for mode in ("sync", "async", "sync", "async"):
            talk = Talk(mode, "plain", skills, ["/docs"])
            assert "Follow the template." in talk.call(load("docs:report"))[0]

        async def many() -> list[Any]:
            return await asyncio.gather(*(skills.aread("/docs/team/report/a.md") for _ in range(20)))

        assert all(found.error is None for found in asyncio.run(many()))
    assert [line["method"] for line in said.log()].count("initialize") == 1
