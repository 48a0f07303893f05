"""Skills in a database: an HTTP API to post them, and an agent that uses what was posted.

Runs on SQLite and a scripted model, plays two users, and ends by itself. Needs `deepskills[store,api]`, uvicorn, httpx:

    python examples/store_app.py

On PostgreSQL, or to keep the server running:

    python examples/store_app.py --database postgresql://user:secret@localhost/skills
    python examples/store_app.py --serve 8000
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import FastAPI, Header
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from deepskills.store import DatabaseSkillAdapter, SkillCreate, create_skills_router, create_store_engine, migrations
from deepskills.testing import ScriptedChatModel, call_tools

Sessions = async_sessionmaker[AsyncSession]
SKILL = Path(__file__).parent / "skills" / "release-notes"


@dataclass
class User:
    """The context of a run: whose it is."""

    user_id: str | None


def current_user(x_user: Annotated[str | None, Header()] = None) -> str | None:
    """Tell who asks. A real application checks a token here; never trust a header that a client can set."""
    return x_user


def user_of_run(runtime: Runtime[User]) -> str | None:
    return runtime.context.user_id


def build_app(sessions: Sessions) -> FastAPI:
    app = FastAPI(title="Skill store")
    app.include_router(create_skills_router(sessions, current_user), prefix="/api/v1")
    return app


def build_agent(model: BaseChatModel, sessions: Sessions) -> Any:
    """Return one agent for all users: each run gets the skills of its own."""
    skills: Any = DatabaseSkillAdapter(
        user_id=user_of_run, db_session_factory=sessions, extra_tools=["load_skill_asset"]
    )
    return create_agent(model, middleware=[skills], context_schema=User)


def scripted_model() -> BaseChatModel:
    asked = {"skill_name": "release-notes", "relative_path": "references/style-guide.md"}
    return ScriptedChatModel(
        replies=[
            call_tools(("load_skill", {"skill_name": "release-notes"}), text="There is a skill for that."),
            call_tools(("load_skill_asset", asked), text="It has a style guide."),
            "Release notes written by the skill.",
            call_tools(("load_skill", {"skill_name": "release-notes"}), text="Is there a skill for that?"),
            "I have no such skill.",
        ]
    )


def posted_skill() -> dict[str, Any]:
    """Return a skill from disk as the API takes it."""
    files = {
        path.relative_to(SKILL).as_posix(): path.read_bytes()
        for path in SKILL.rglob("*")
        if path.is_file() and path.name != "SKILL.md"
    }
    draft = SkillCreate.from_skill_md((SKILL / "SKILL.md").read_bytes(), files, tags=["writing"])
    return draft.model_dump(mode="json")


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this alone
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/api/v1"
    server.should_exit = True
    await task


async def play(sessions: Sessions, model: BaseChatModel) -> None:
    """Post a skill as Alice, then ask the agent as Alice and as Bob."""
    async with serving(build_app(sessions)) as address, httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/skills", json=posted_skill(), headers={"x-user": "alice"})
        if answer.status_code == httpx.codes.CONFLICT:
            print("alice has the skill already")
        else:
            data = answer.raise_for_status().json()["data"]
            print(f"alice posted {data['name']} with {len(data['files'])} files")
        for user in ("alice", "bob"):
            listed = (await client.get("/skills", headers={"x-user": user})).json()["data"]
            print(f"{user} sees: {', '.join(skill['name'] for skill in listed) or 'no skills'}")
    agent = build_agent(model, sessions)
    for user in ("alice", "bob"):
        given = {"messages": [HumanMessage("Write the release notes for 2.4.1.")]}
        result = await agent.ainvoke(given, context=User(user))
        print(f"\n{user}'s run:")
        for message in result["messages"]:
            print(f"  {message.type}: {' '.join(str(message.text).split())[:100]}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Skills in a database, over HTTP and in an agent.")
    parser.add_argument("--database", help="a database URL; a temporary SQLite file by default")
    parser.add_argument("--serve", type=int, metavar="PORT", help="only serve HTTP, until stopped")
    parser.add_argument("--model", help="a real model as provider:name; needs that provider's key")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        engine = create_store_engine(arguments.database or f"sqlite:///{directory}/skills.db")
        try:
            await migrations.upgrade(engine)
            sessions = async_sessionmaker(engine)
            if arguments.serve:
                await uvicorn.Server(uvicorn.Config(build_app(sessions), port=arguments.serve)).serve()
            else:
                await play(sessions, init_chat_model(arguments.model) if arguments.model else scripted_model())
        finally:
            await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
