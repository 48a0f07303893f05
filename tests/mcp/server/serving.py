"""Servers for tests, each in a process of its own: `serving.py inline|store|own|middleware|many WHERE PORT`."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend

from deepskills import InlineBackend, InlineSkill, Refuse, SkillExtension, SkillFile, SkillsMiddleware
from deepskills.mcp import SkillsExtension

USERS = ("alice", "bob")


def inline() -> SkillsExtension:
    made = InlineSkill("notes", "Takes notes.", "Write down.", files={"references/a.md": "A", "pic.bin": b"\x00\xff"})
    return SkillsExtension(InlineBackend([made]), ["/"])


def many(count: str) -> SkillsExtension:
    made = [InlineSkill(f"s{n:05d}", f"Does thing {n}.", "Body.") for n in range(int(count))]
    return SkillsExtension(InlineBackend(made), ["/"])


def store(path: str) -> SkillsExtension:
    """Serve each user's own skills, told by a header."""
    from sqlalchemy.ext.asyncio import async_sessionmaker  # noqa: PLC0415 - only here

    from deepskills.store import Base, DatabaseSkillAdapter, SkillCreate, SkillService, create_store_engine  # noqa: PLC0415

    url = f"sqlite+aiosqlite:///{path}"

    async def seed() -> None:
        engine = create_store_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with async_sessionmaker(engine)() as session:
            for user in USERS:
                draft = SkillCreate(name=f"{user}-notes", description=f"Notes of {user}.", content="Private text.")
                await SkillService(session).create_skill(draft, user)
            await session.commit()
        await engine.dispose()

    asyncio.run(seed())
    factory = async_sessionmaker(create_store_engine(url))

    def user(ctx: Any) -> str | None:
        name: str | None = ctx.request.headers.get("x-user")
        return name

    return SkillsExtension(DatabaseSkillAdapter(user_id=user, db_session_factory=factory))


def middleware(path: str) -> SkillsExtension:
    """Serve what a middleware shows: one skill is hidden, and an extension judges the files of another."""

    class Judge(SkillExtension):
        def before_file(self, file: SkillFile, run: Any) -> Refuse | None:  # noqa: ARG002 - the seam's signature
            return Refuse("It differs from the lock.") if file.entry.name == "refused" else None

    backend = FilesystemBackend(root_dir=path, virtual_mode=True)
    return SkillsExtension(
        SkillsMiddleware(backend=backend, sources=["/"], visibility={"hidden": "off"}, extensions=[Judge()])
    )


def own(path: str) -> Any:
    """Return a server of one's own, with a tool and a resource of its own beside the skills."""
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - only here

    it = SkillsExtension(Path(path))
    server = MCPServer("mine", extensions=[it], middleware=[it.middleware])

    @server.resource("memo://today")  # type: ignore[untyped-decorator]
    def memo() -> str:
        return "Buy milk."

    @server.tool()  # type: ignore[untyped-decorator]
    def today() -> str:
        """Return the day."""
        return "Monday"

    return server


if __name__ == "__main__":
    kind, where, port = sys.argv[1:4]
    kinds: dict[str, Callable[[], Any]] = {
        "inline": inline,
        "many": lambda: many(where),
        "store": lambda: store(where),
        "own": lambda: own(where),
        "middleware": lambda: middleware(where),
    }
    found = kinds[kind]()
    server = found.server() if isinstance(found, SkillsExtension) else found
    if port == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(port))
