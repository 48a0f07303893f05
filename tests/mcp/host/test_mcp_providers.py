"""Servers as sources: by provider, by path and by the whole object, and one that hangs costs the others nothing."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from mcp_support import REPORT, book, content, failure, host, names, opened, skill

from deepskills import SkillsManager, SkillsMiddleware
from deepskills.extensions import SkillApproval
from deepskills.mcp import McpSkills
from deepskills.mcp import listing as listings
from deepskills.mcp.entries import parse_entry
from deepskills.testing import ScriptedChatModel, call_tools
from support import Mode, both_modes, load, run, tool_messages

CONFIG = {"configurable": {"thread_id": "one"}}


@tool
def my_runner(code: str) -> str:
    """Run code."""
    return f"ran {code}"


def agent_of(*replies: Any, sources: Any, **options: Any) -> tuple[Any, ScriptedChatModel]:
    model = ScriptedChatModel(replies=[*replies])
    middleware: SkillsMiddleware = SkillsMiddleware(
        sources=sources, extra_tools=["load_skill_asset", "list_skill_assets"], **options
    )
    return create_agent(model, tools=[my_runner], middleware=[middleware], checkpointer=InMemorySaver()), model


@both_modes
def test_a_server_is_a_source_without_any_backend(mode: Mode, tmp_path: Path) -> None:
    """`provider(label)` gives one server's skills, the object itself those of all; files come by `load_skill_asset`."""
    one = book(tmp_path, "one", skills={REPORT: skill(files={"a.md": "From one."})})
    two = book(tmp_path, "two", declares=False)
    asset = ("load_skill_asset", {"skill_name": "one:report", "relative_path": "a.md"})
    with host({"one": one, "two": two}) as skills:
        for sources in ([skills.provider("one")], [skills]):
            replies = [call_tools(asset), call_tools(load("one:report")), call_tools(asset)]
            agent, model = agent_of(*replies, sources=sources)
            early, loaded, read = [str(message.text) for message in tool_messages(run(mode, agent, config=CONFIG))]
            assert "only while it is loaded" in early
            assert "Follow the template." in loaded
            assert "It is untrusted" in loaded
            assert read == "From one."
            assert "[MCP server 'one', untrusted]" in model.requests[0].system
            state = agent.get_state(CONFIG).values
            [known] = state["skills_metadata"]
            assert known["path"] == "skill://one/skill%3A%2F%2Fteam%2Freport%2FSKILL.md/SKILL.md"
            codes = [(found["path"], found["code"]) for found in state["skills_problems"]]
            assert codes == (
                [] if len(sources) == 1 and sources[0] is not skills else [("skill://two", "mcp-not-declared")]
            )
        assert SkillsManager(sources=[skills]).list_skills() == ["one:report"]
        with pytest.raises(ValueError, match="No connection has the label"):
            skills.provider("three")
        with pytest.raises(TypeError, match="wrap it in a list"):
            SkillsManager(sources=skills)  # type: ignore[arg-type]


@both_modes
def test_the_guard_and_its_tools_come_with_a_provider(mode: Mode, tmp_path: Path) -> None:
    """Tools named in `executes` ask a human while a skill of the provider is in use, without any backend."""
    with host({"docs": book(tmp_path)}, executes=["my_runner"]) as skills:
        replies = [call_tools(load("docs:report")), call_tools(("my_runner", {"code": "1"}))]
        agent, _ = agent_of(*replies, sources=[skills.provider("docs")])
        result = run(mode, agent, config=CONFIG)
        assert [item.value["tool"] for item in result["__interrupt__"]] == ["my_runner"]


@both_modes
def test_what_was_approved_is_never_served_as_something_else(mode: Mode, tmp_path: Path) -> None:
    """The approval shows entry A; the server answers with B, the same name, address and description: nothing of B."""
    said = book(tmp_path, ttl=0)
    for as_path in (True, False):
        said.write(skills={REPORT: skill(body="Text A.\n")})
        with host({"docs": said}) as skills:
            given: dict[str, Any] = {"sources": [skills.provider("docs")]}
            if as_path:
                backend = CompositeBackend(default=StateBackend(), routes={"/mcp/": skills})
                given = {"sources": ["/mcp/docs"], "backend": backend}
            agent, _ = agent_of(call_tools(load("docs:report")), **given, extensions=[SkillApproval()])
            [asked] = run(mode, agent, config=CONFIG)["__interrupt__"]
            said.write(skills={REPORT: skill(body="Text B.\n")})
            from langgraph.types import Command  # noqa: PLC0415 - as used

            result = run(mode, agent, Command(resume={"type": "approve"}), CONFIG)
            assert "Text B." not in str(result["messages"])
            questions = [item.value["digest"] for item in result.get("__interrupt__", [])]
            assert questions != [asked.value["digest"]]


@both_modes
def test_a_hanging_server_costs_its_neighbour_nothing(mode: Mode, tmp_path: Path) -> None:
    """With `backend_timeout`, the skills of the healthy server are there, by path and by provider."""
    good, bad = book(tmp_path, "good"), book(tmp_path, "bad", hangs_at="skills/list")
    with host({"good": good, "bad": bad}, timeout=60) as skills:
        names(skills, "good")
        for given in ({"sources": [skills]}, {"sources": ["/"], "backend": skills}):
            agent, model = agent_of(**given, backend_timeout=1.0)
            run(mode, agent, config=CONFIG)
            assert "**good:report**" in model.requests[0].system
            problems = agent.get_state(CONFIG).values["skills_problems"]
            assert [found["code"] for found in problems] == ["source-failed"]


def test_many_starts_beside_a_hanging_server_share_one_attempt(tmp_path: Path) -> None:
    """Twenty listings at once send one request, those right after it none; closing forgets that it failed."""
    said = book(tmp_path, hangs_at="skills/list")
    with host({"docs": said}, timeout=3) as skills:
        found: list[str | None] = []
        threads = [threading.Thread(target=lambda: found.append(failure(skills))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 20
        assert all("no answer to skills/list within 3 seconds" in str(reason) for reason in found)
        assert said.requests() == ["skills/list"]
        assert "no answer" in str(failure(skills))
        assert said.requests() == []
        skills.close()
        said.write(hangs_at=None)
        assert names(skills) == ["docs:report"]


@both_modes
def test_twenty_users_beside_a_dead_server_wait_once(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts together shares one wait, who starts right after waits for nothing, and nobody misses a skill."""
    monkeypatch.setattr("deepskills.mcp.connections.FAILURE_SECONDS", 600.0)
    good = book(tmp_path, "good")
    for number, hangs in enumerate(("skills/list", "initialize", "nothing: it is not there")):
        bad = book(tmp_path, f"bad{number}", hangs_at=hangs)
        gone = {"transport": "stdio", "command": str(tmp_path / "gone"), "args": []}
        with host({"good": good, "bad": bad if number < 2 else gone}, timeout=3) as skills:
            for waits in (1, 0):
                bad.forget_log()
                users = [agent_of(sources=[skills]) for _ in range(20)]
                run_together(mode, [agent for agent, _ in users])
                for agent, model in users:
                    assert "**good:report**" in model.requests[0].system
                    problems = agent.get_state(CONFIG).values["skills_problems"]
                    assert [found["code"] for found in problems] == ["source-failed"]
                if number < 2:
                    assert [line["method"] for line in bad.log()].count(hangs) == waits


def run_together(mode: Mode, agents: list[Any]) -> None:
    """Run agents at the same time: in a thread each, or on one loop."""
    message = {"messages": [{"role": "user", "content": "go"}]}

    async def run_all() -> None:
        await asyncio.gather(*(agent.ainvoke(message, CONFIG) for agent in agents))

    if mode == "async":
        asyncio.run(run_all())
        return
    threads = [threading.Thread(target=agent.invoke, args=(message, CONFIG)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_closing_ends_what_waits_at_once_and_may_come_twice(tmp_path: Path) -> None:
    """A listing and a read that hang end with a reason, long before their time limit; later uses open again."""
    said = book(tmp_path)
    skills = McpSkills({"docs": said.stdio}, timeout=600)
    assert names(skills) == ["docs:report"]
    for hangs in ("resources/read", "initialize"):
        said.write(hangs_at=hangs)
        if hangs == "initialize":
            skills.close()
        said.requests()
        told: list[str] = []
        thread = threading.Thread(
            target=lambda told=told: told.append(str(opened(skills, "/docs/team/report/SKILL.md")))
        )
        thread.start()
        while hangs not in [line["method"] for line in said.log()]:
            time.sleep(0.02)
        both = [threading.Thread(target=skills.close) for _ in range(2)]
        for one in both:
            one.start()
        for one in (*both, thread):
            one.join()
        assert "closed" in told[0]
    skills.close()
    said.write(hangs_at=None)
    assert b"Follow the template." in opened(skills, "/docs/team/report/SKILL.md")
    skills.close()
    asyncio.run(skills.aclose())


def test_a_read_that_hangs_takes_no_other_read_along(tmp_path: Path) -> None:
    """When its time is over its connection ends; what others wait for is asked once more on a new one."""
    root = REPORT.removesuffix("SKILL.md")
    slow = {f"{root}never.md": 3_600, f"{root}late.md": 2}
    said = book(tmp_path, skills={REPORT: skill(files={"never.md": "never", "late.md": "late"})}, slow=slow)
    with said.http() as port:
        given = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}"}
        with host({"docs": given}, timeout=6) as skills:
            names(skills)
            found: dict[str, Any] = {}

            def get(name: str) -> None:
                found[name] = content(skills, f"/docs/team/report/{name}")

            threads = [threading.Thread(target=get, args=(name,)) for name in ("never.md", "late.md")]
            threads[0].start()
            time.sleep(5)
            threads[1].start()
            for thread in threads:
                thread.join()
            assert "no answer to resources/read" in str(found["never.md"])
            assert found["late.md"] == b"late"


def test_entries_that_are_held_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server cannot fill memory: a listing is cut, and what loads got is forgotten, oldest first."""
    monkeypatch.setattr(listings, "MAX_HELD_BYTES", 200_000)
    many = {f"skill://team/s{n}/SKILL.md": skill(f"s{n}", fields={"x": "y" * 10_000}) for n in range(20)}
    with host({"docs": book(tmp_path, skills=many)}) as skills:
        found = SkillsManager(sources=[skills])
        assert 0 < len(found.list_skills()) < 20
        assert "mcp-listing-cut" in [problem["code"] for problem in found.list_problems()]
    server = listings.Server("docs", None, dynamic=False, timeout=1)  # type: ignore[arg-type]
    for n in range(20):
        raw = {
            "uri": f"skill://s{n}/SKILL.md",
            "frontmatter": {"name": f"s{n}", "description": "d", "x": "y" * 10_000},
            "resources": [{"uri": f"skill://s{n}/SKILL.md", "digest": "sha256:" + "0" * 64, "size": 1}],
        }
        server.hold(parse_entry("docs", raw))
    assert len(server._held) < 6  # noqa: SLF001 - what a process keeps shows nowhere else


def test_checking_a_listing_leaves_turns_to_others() -> None:
    """Thousands of entries are checked on a loop that serves other connections too, and those go on meanwhile."""
    entry = {"uri": "skill://a/SKILL.md", "frontmatter": {"name": "a", "description": "d"}, "resources": [{}] * 500}
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def listing() -> None:
        counting = asyncio.create_task(count())
        await listings._Gathered(server).take({"skills": [entry] * 2_000})  # noqa: SLF001 - no server is that large
        counting.cancel()

    server = listings.Server("docs", _Silent(), dynamic=False, timeout=1)  # type: ignore[arg-type]
    asyncio.run(listing())
    assert turns >= 100


class _Silent:
    """A connection that knows no secrets."""

    def mask(self, text: str) -> str:
        return text
