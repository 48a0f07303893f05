"""Skills in a database: an HTTP API to post them, and an agent that uses what was posted.

Runs on SQLite and a scripted model, plays two users, and ends by itself. Needs `deepskills[store,api]`, uvicorn, httpx:

    python examples/store_app.py

On PostgreSQL, or to keep the server running:

    python examples/store_app.py --database postgresql://user:secret@localhost/skills
    python examples/store_app.py --serve 8000
    python examples/store_app.py --token alice    # prints a token for requests: "Authorization: Bearer ..."

Tokens are signed with the key in `SKILLS_SECRET`, and expire after an hour. Without a key one is made up for this run.
"""

import argparse
import asyncio
import base64
import binascii
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
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


class Tokens:
    """Signs and checks tokens: who, until when, and a signature over both that only the holder of the key can make."""

    def __init__(self, key: bytes, lifetime: float = 3_600) -> None:
        self._key = key
        self._lifetime = lifetime

    def issue(self, user: str) -> str:
        claims = json.dumps({"user": user, "until": time.time() + self._lifetime}).encode()
        return f"{_text(claims)}.{_text(self._signature(claims))}"

    def user_of(self, token: str) -> str | None:
        """Return whose token it is; `None` if it is forged, spoiled or too old."""
        try:
            claims, signature = (_raw(part) for part in token.split("."))
        except ValueError:
            return None
        # Nothing in the claims is looked at before the signature is known to be right.
        if not hmac.compare_digest(signature, self._signature(claims)):
            return None
        known = json.loads(claims)
        return str(known["user"]) if known["until"] > time.time() else None

    def _signature(self, claims: bytes) -> bytes:
        return hmac.digest(self._key, claims, "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _raw(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


tokens = Tokens(os.environ.get("SKILLS_SECRET", "").encode() or secrets.token_bytes(32))
bearer = HTTPBearer(auto_error=False)


def current_user(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> str | None:
    """Tell who asks, by the token that they send."""
    return None if given is None else tokens.user_of(given.credentials)


def user_of_run(runtime: Runtime[User]) -> str | None:
    return runtime.context.user_id


def build_app(sessions: Sessions) -> FastAPI:
    app = FastAPI(title="Skill store")
    # `current_user` declares itself how clients sign in.
    app.include_router(create_skills_router(sessions, current_user, security=None), prefix="/api/v1")
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


def signed(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.issue(user)}"}


async def play(sessions: Sessions, model: BaseChatModel) -> None:
    """Post a skill as Alice, then ask the agent as Alice and as Bob."""
    async with serving(build_app(sessions)) as address, httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/skills", json=posted_skill(), headers=signed("alice"))
        if answer.status_code == httpx.codes.CONFLICT:
            print("alice has the skill already")
        else:
            data = answer.raise_for_status().json()["data"]
            print(f"alice posted {data['name']} with {len(data['files'])} files")
        forged = signed("alice")["Authorization"][:-4] + "AAAA"
        refused = await client.post("/skills", json=posted_skill(), headers={"Authorization": forged})
        print(f"a forged token: {refused.status_code} {refused.headers['www-authenticate']}")
        for user in ("alice", "bob"):
            listed = (await client.get("/skills", headers=signed(user))).json()["data"]
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
    parser.add_argument("--token", metavar="USER", help="print a token for a user, and end")
    parser.add_argument("--model", help="a real model as provider:name; needs that provider's key")
    arguments = parser.parse_args()
    if arguments.token:
        print(tokens.issue(arguments.token))
        return
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
