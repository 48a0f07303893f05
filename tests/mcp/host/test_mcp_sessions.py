"""Sessions that a caller opened: used on the caller's loop, by async and sync callers, and left open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from mcp.client.stdio import stdio_client
from mcp_support import REPORT, Book, book, failure, names, opened

from deepskills import SkillsManager, SkillsMiddleware
from deepskills.mcp import McpSkills
from deepskills.testing import ScriptedChatModel, call_tools
from mcp import ClientSession, StdioServerParameters
from support import load, tool_messages

SKILL = "/docs/team/report/SKILL.md"


@asynccontextmanager
async def session_of(said: Book) -> AsyncIterator[Any]:
    server = StdioServerParameters(command=said.stdio["command"], args=said.stdio["args"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def alisted(skills: McpSkills) -> list[str]:
    return await SkillsManager(backend=skills, sources=["/docs"]).alist_skills()


def agent_of(skills: McpSkills, **options: Any) -> tuple[Any, ScriptedChatModel]:
    model = ScriptedChatModel(replies=[call_tools(load("docs:report"))])
    return create_agent(model, middleware=[SkillsMiddleware(backend=skills, sources=["/docs"], **options)]), model


def test_an_open_session_serves_async_and_sync_agents_and_stays_open(tmp_path: Path) -> None:
    """On its own loop it is awaited; from other threads work is handed over; `close` leaves it to its owner."""
    said = book(tmp_path)

    async def main() -> None:
        async with session_of(said) as session:
            async with McpSkills({"docs": session}, timeout=60) as skills:
                [answer] = tool_messages(await agent_of(skills)[0].ainvoke({"messages": [("user", "go")]}))
                assert "Follow the template." in str(answer.text)
                agent, _ = agent_of(skills)
                result = await asyncio.to_thread(agent.invoke, {"messages": [("user", "go")]})
                assert "Follow the template." in str(tool_messages(result)[0].text)
                assert await asyncio.to_thread(asyncio.run, skills.add("docs", REPORT)) == SKILL
            assert await session.send_ping() is not None
            assert await alisted(skills) == ["docs:report"]

    asyncio.run(main())
    assert [line["method"] for line in said.log()].count("initialize") == 1


def test_a_sync_call_on_the_loop_of_the_session_is_an_error_not_a_deadlock(tmp_path: Path) -> None:
    """A backend call and a whole sync run on that loop end with a reason, in this thread or in another for it."""
    said = book(tmp_path)

    async def main() -> None:
        async with session_of(said) as session:
            skills = McpSkills({"docs": session}, timeout=1)
            assert "would wait for itself" in str(failure(skills))
            assert "would wait for itself" in str(opened(skills, SKILL))
            for options in ({}, {"backend_timeout": 30}):
                agent, model = agent_of(skills, **options)
                [answer] = tool_messages(agent.invoke({"messages": [("user", "go")]}))
                assert answer.status == "error"
                assert "would wait for itself" in model.requests[0].system

    asyncio.run(main())
    assert said.requests() == []


def test_a_session_needs_its_loop(tmp_path: Path) -> None:
    """Outside of any loop it is a `ValueError`; once its loop has ended, or before it is ready, it is a failure."""
    said = book(tmp_path)

    async def late() -> McpSkills:
        async with session_of(said) as session:
            skills = McpSkills({"docs": session})
            assert await alisted(skills) == ["docs:report"]
        return skills

    ended = asyncio.run(late())
    assert names(ended) == ["docs:report"] or "no longer running" in str(failure(ended))
    assert "no longer running" in str(opened(ended, SKILL))

    class Unready:
        server_capabilities = None

        def get_server_capabilities(self) -> None:
            """Say that nothing was agreed on yet."""

        async def send_request(self, *_: object) -> None:
            """Never be called."""

    with pytest.raises(ValueError, match="make McpSkills on the event loop"):
        McpSkills({"docs": Unready()})

    async def unready() -> str:
        skills = McpSkills({"docs": Unready()})
        [found] = await SkillsManager(backend=skills, sources=["/docs"]).alist_problems()
        return found["message"]

    assert "initialize" in asyncio.run(unready())
