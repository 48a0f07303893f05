"""Processes of version 0.1.0 on the new tables: they read, and every write of theirs fails with a clear error."""

import datetime as dt
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from store_support import Sessions, draft_with_files

from deepskills.store import Base, SkillService, SkillUpdate, create_store_engine

pytestmark = pytest.mark.anyio

NEW_SKILL = (
    "INSERT INTO deepskills_skills (id, owner_id, name, name_key, description, content, encoding, is_public, "
    "created_at, updated_at) VALUES (:id, 'alice', 'old', 'old', 'd', 'c', 'utf-8', false, :at, :at)"
)
NEW_FILE = (
    "INSERT INTO deepskills_files (id, skill_id, path, size, is_text, data) "
    "VALUES (:id, :skill, 'b.md', 1, true, :data)"
)


async def test_what_version_0_1_0_writes_is_refused(sessions: Sessions, kind: str) -> None:
    """Skills, files, updates and deletions as 0.1.0 writes them fail; what the service does goes on."""
    async with sessions() as session:
        service = SkillService(session)
        made = await service.create_skill(draft_with_files("report", {"a.md": "x"}), "alice")
        at: Any = dt.datetime.now(dt.UTC)

        def key(given: Any) -> Any:
            return given.hex if kind == "sqlite" else given

        writes: dict[str, tuple[str, dict[str, Any]]] = {
            "skill": (NEW_SKILL, {"id": key(uuid4()), "at": at}),
            "file": (NEW_FILE, {"id": key(uuid4()), "skill": key(made.id), "data": b"x"}),
            "update": (
                "UPDATE deepskills_skills SET content = 'mine', updated_at = :at WHERE id = :id",
                {"id": key(made.id), "at": at + dt.timedelta(seconds=9)},
            ),
            "touch": (
                "UPDATE deepskills_skills SET updated_at = :at WHERE id = :id",
                {"id": key(made.id), "at": at + dt.timedelta(seconds=9)},
            ),
            "deletion": ("DELETE FROM deepskills_skills WHERE id = :id", {"id": key(made.id)}),
            "file deletion": ("DELETE FROM deepskills_files WHERE id = :id", {"id": key(made.files[0].id)}),
        }
        for name, (statement, values) in writes.items():
            with pytest.raises(DBAPIError, match="upgrade this process"):
                await session.execute(text(statement), values)
            await session.rollback()
            assert (await service.get_skill(made.id, "alice")).files[0].content == "x", name
        await service.save_skill(made.id, SkillUpdate(content="new"), {}, "alice")
        await service.delete_skill(made.id, "alice")
        assert await service.purge(retention=0) == 1


async def test_tables_without_migrations_have_the_guards_too() -> None:
    """An application that creates the tables itself is protected as well."""
    engine = create_store_engine("sqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        found = await connection.execute(text("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"))
        assert found.scalar() == 5
    await engine.dispose()
