"""A backup taken while others write and restored elsewhere is the store at one moment, and goes on from there."""

import asyncio
import importlib.util
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker
from store_support import BINARY, Sessions, create_database, draft, draft_with_files, drop_database, new_engine

from deepskills.store import SkillService, SkillUpdate, migrations

pytestmark = pytest.mark.anyio

GROUPS: dict[str, Any] = {"groups_of": lambda user: ["team"] if user in ("alice", "bob") else []}


def tool(name: str) -> str:
    """Return the path of a tool of PostgreSQL: of the server that the tests start, or else an installed one."""
    found = importlib.util.find_spec("pgserver")
    own = Path(found.origin).parent / "pginstall" / "bin" / name if found is not None and found.origin else None
    path = str(own) if own is not None and own.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def call(command: str, url: str, *options: str) -> None:
    """Run a tool of PostgreSQL on a database."""
    target = make_url(url)
    host = target.query.get("host", target.host or "")
    where = {"PGHOST": str(host), "PGUSER": target.username or "", "PGPASSWORD": target.password or ""}
    where |= {"PGPORT": str(target.port)} if target.port else {}
    subprocess.run([tool(command), "-d", str(target.database), *options], env={**os.environ, **where}, check=True)


@pytest.fixture
def copy(kind: str, url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Give a function that backs the store up as the documentation says, restores it, and returns the new URL."""
    made: list[str] = []

    def back_up() -> str:
        if kind == "sqlite":
            place = tmp_path / "copy.db"
            with sqlite3.connect(url.removeprefix("sqlite:///")) as source, sqlite3.connect(place) as target:
                source.backup(target)
            return f"sqlite:///{place}"
        made.append(create_database(request.getfixturevalue("postgres_server")))
        dump = str(tmp_path / "skills.dump")
        call("pg_dump", url, "-Fc", "-f", dump)
        call("pg_restore", made[0], dump)
        call("psql", made[0], "-q", "-c", "ANALYZE")
        return made[0]

    yield back_up
    for copied in made:
        drop_database(request.getfixturevalue("postgres_server"), copied)


async def everything(sessions: Sessions) -> list[Any]:
    """Return what people see of the store that must not be lost."""
    async with sessions() as session:
        service = SkillService(session, **GROUPS)
        found: list[Any] = [await service.last_revision()]
        for user in ("alice", "bob", "carol"):
            for skill in await service.list_skills(user):
                found.append((user, skill.name, skill.revision, skill.tags, skill.shared_with, skill.is_public))
                found.append(await service.export_skill(skill.id, user))
        changes = await service.list_changes(system=True, limit=1_000)
        found += [(change.revision, change.action, change.user_id, change.at) for change in changes]
        for skill in await service.list_skills("alice", name="report"):
            versions = await service.list_versions(skill.id, "alice")
            found += [
                await service.diff_versions(skill.id, versions[-1].revision, each.revision, "alice")
                for each in versions[:-1]
            ]
            found.append(await service.usage(skill.id, None, "alice"))
        return [*found, [skill.name for skill in await service.list_skills("bob", q="quarterly")]]


async def test_a_backup_has_everything(sessions: Sessions, copy: Callable[[], str]) -> None:
    """Texts, files, versions, tags, groups, log, use and search are there, and the copy is as new as its tables say."""
    async with sessions() as session:
        service = SkillService(session, **GROUPS)
        data = draft_with_files("report", {"a.md": "first", "logo.bin": BINARY}, tags=["Sales"])
        made = await service.create_skill(data, "alice")
        await service.save_skill(made.id, SkillUpdate(content="Quarterly."), {"a.md": "second"}, "alice")
        await service.update_skill(made.id, SkillUpdate(shared_with={"team": "read"}), "alice")
        await service.create_skill(draft("open", is_public=True), "carol")
        await service.record_usage([{"type": "skill.loaded", "trigger": "model", "skill_id": made.id}], "alice")
        before = await everything(sessions)
        url = await asyncio.to_thread(copy)
        await service.update_skill(made.id, SkillUpdate(content="After the backup."), "alice")
    restored = async_sessionmaker(new_engine(url))
    await migrations.upgrade(url)
    assert await everything(restored) == before
    async with restored() as session:
        service = SkillService(session, **GROUPS)
        changed = await service.update_skill(made.id, SkillUpdate(content="In the copy."), "alice")
        assert changed.revision == before[0] + 1
        assert [skill.name for skill in await service.list_skills("bob", q="copy")] == ["report"]


async def test_a_backup_while_others_write(sessions: Sessions, copy: Callable[[], str]) -> None:
    """However many write meanwhile, each skill of the copy has the text and the files of one and the same moment."""
    async with sessions() as session:
        service = SkillService(session)
        ids = [(await service.create_skill(draft(f"s{number}"), "alice")).id for number in range(3)]
        for skill_id in ids:
            await service.save_skill(skill_id, SkillUpdate(content="0"), {"a.md": "0"}, "alice")
    is_done = asyncio.Event()

    async def write(number: int) -> int:
        count = 0
        async with sessions() as session:
            while not is_done.is_set() or count == 0:
                count += 1
                files = {"a.md": str(count)}
                await SkillService(session).save_skill(ids[number], SkillUpdate(content=str(count)), files, "alice")
        return count

    writers = [asyncio.create_task(write(number)) for number in range(3)]
    url = await asyncio.to_thread(copy)
    is_done.set()
    assert all(count > 0 for count in await asyncio.gather(*writers))
    async with async_sessionmaker(new_engine(url))() as session:
        service = SkillService(session)
        for skill_id in ids:
            skill = await service.get_skill(skill_id, "alice")
            assert [file.content for file in skill.files] == [skill.content]
