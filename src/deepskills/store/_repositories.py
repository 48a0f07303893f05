"""Queries about skills and their files as they are now, and nothing else: no rules, no transactions."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, func, literal, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload, selectinload, undefer

from deepskills.store._history import SEARCH_TABLE, FormerFile, FormerText, SkillUsage
from deepskills.store._models import KeptFile, Skill, SkillFile, SkillShare, SkillTag
from deepskills.store._visibility import Reason, Viewer, one_of_ids, readable, seen_for, since


class SkillRepository:
    """Reads and writes rows of skills."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def get(
        self, skill_id: UUID, viewer: Viewer, *, contents: bool = False, files: bool = True, deleted: bool = False
    ) -> Skill | None:
        """Return a skill that `viewer` may read.

        Args:
            skill_id: Which.
            viewer: Who asks.
            contents: With the contents of its files.
            files: With the list of its files.
            deleted: One that was deleted, whoever asks.
        """
        condition = Skill.deleted_at.is_not(None) if deleted else readable(viewer)
        return await self._first(whole(contents=contents, files=files).where(Skill.id == skill_id, condition))

    async def by_name(self, name_key: str, viewer: Viewer) -> UUID | None:
        """Return the id of the skill of that name that `viewer` sees first."""
        branches: list[Any] = [
            select(Skill.id, literal(int(reason)).label("rank"), since(reason, viewer).label("since")).where(
                Skill.name_key == name_key, Skill.deleted_at.is_(None), seen_for(reason, viewer)
            )
            for reason in Reason
        ]
        found = union_all(*branches).subquery()
        query = select(found.c.id).order_by(found.c.rank, found.c.since, found.c.id).limit(1)
        name: UUID | None = await self._session.scalar(query)
        return name

    async def of_file(self, file_id: UUID, viewer: Viewer) -> tuple[Skill, SkillFile] | None:
        """Return a file, without its content, with its skill, if `viewer` may read that; one query either way."""
        query = (
            select(Skill, SkillFile)
            .join(SkillFile, SkillFile.skill_id == Skill.id)
            .where(SkillFile.id == file_id, readable(viewer))
            .options(joinedload(Skill.share_rows), undefer(Skill.body), undefer(Skill.head))
        )
        row = (await self._session.execute(query)).unique().first()
        return None if row is None else (row[0], row[1])

    async def is_taken(self, name_key: str, owner_id: str | None, *, other_than: UUID | None = None) -> bool:
        """Whether an owner has a skill of that name, `other_than` aside."""
        owner = Skill.owner_id.is_(None) if owner_id is None else Skill.owner_id == owner_id
        query = select(Skill.id).where(Skill.name_key == name_key, owner, Skill.deleted_at.is_(None))
        if other_than is not None:
            query = query.where(Skill.id != other_than)
        return await self._session.scalar(query.limit(1)) is not None

    async def kept_by(self, owner_id: str, *, other_than: UUID | None = None) -> tuple[int, int]:
        """Return how many skills an owner has, and how many bytes they take, `other_than` aside."""
        query = select(func.count(), func.coalesce(func.sum(Skill.size), 0)).where(
            Skill.owner_id == owner_id, Skill.deleted_at.is_(None)
        )
        if other_than is not None:
            query = query.where(Skill.id != other_than)
        row = (await self._session.execute(query)).one()
        return int(row[0]), int(row[1])

    async def add(self, skill: Skill) -> None:
        """Write a new skill with its files and tags."""
        self._session.add(skill)
        await self._session.flush()
        await self.index(skill)

    async def index(self, skill: Skill) -> None:
        """Note a skill's words where SQLite searches; PostgreSQL looks at the column itself."""
        if self._dialect == "sqlite":
            await self._unindex([skill.number])
            await self._session.execute(
                text(f"INSERT INTO {SEARCH_TABLE}(rowid, words) VALUES (:number, :words)"),  # noqa: S608 - a constant
                {"number": skill.number, "words": skill.words},
            )

    async def deleted_before(self, moment: Any) -> Sequence[Skill]:  # noqa: ANN401 - a time
        """Return the skills that were deleted before a moment, as rows alone."""
        return (await self._session.scalars(light().where(Skill.deleted_at < moment))).all()

    async def purge(self, skills: Sequence[Skill]) -> None:
        """Delete skills with all that belongs to them, also where the database does not cascade."""
        if self._dialect == "sqlite":
            await self._unindex([skill.number for skill in skills])
        ids = [skill.id for skill in skills]
        for skill in skills:
            self._session.expunge(skill)
        for table in (SkillFile, SkillTag, SkillShare, FormerText, FormerFile, SkillUsage):
            await self._session.execute(delete(table).where(one_of_ids(table.skill_id, ids, self._dialect)))
        await self._session.execute(delete(Skill).where(one_of_ids(Skill.id, ids, self._dialect)))

    async def _unindex(self, numbers: Sequence[int]) -> None:
        statement = text(f"DELETE FROM {SEARCH_TABLE} WHERE rowid = :number")  # noqa: S608 - a constant
        if numbers:
            await self._session.execute(statement, [{"number": number} for number in numbers])

    async def _first(self, query: Select[Any]) -> Skill | None:
        found: Skill | None = await self._session.scalar(query)
        return found


class SkillFileRepository:
    """Reads and writes rows of files."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def read(self, skill_id: UUID, path: str) -> bytes | None:
        """Return the content of the file at a path of a skill."""
        query = select(SkillFile.data).where(SkillFile.skill_id == skill_id, SkillFile.path == path)
        found: bytes | None = await self._session.scalar(query)
        return found

    async def at(self, skill: Skill, path: str) -> SkillFile:
        """Return the file at a path of a skill, with its content and the skill's revision."""
        query = select(SkillFile).where(SkillFile.skill_id == skill.id, SkillFile.path == path)
        query = query.options(undefer(SkillFile.data)).execution_options(populate_existing=True)
        found = (await self._session.scalars(query)).one()
        found.skill_revision = skill.revision
        return found

    async def listed(self, skill_id: UUID) -> dict[str, KeptFile]:
        """Return the files of a skill by path, without their contents."""
        query = select(SkillFile.id, SkillFile.path, SkillFile.size, SkillFile.digest)
        rows = await self._session.execute(query.where(SkillFile.skill_id == skill_id))
        return {row.path: KeptFile(*row) for row in rows}

    async def add(self, files: Sequence[SkillFile]) -> None:
        """Write new files."""
        self._session.add_all(files)
        await self._session.flush()

    async def retire(self, files: Collection[KeptFile], until: int) -> None:
        """Move files to what the skill had before a revision; their contents do not leave the database."""
        if files:
            chosen = one_of_ids(SkillFile.id, [file.id for file in files], self._dialect)
            columns = ["id", "since", "skill_id", "path", "size", "is_text", "digest", "data"]
            moved = select(*(getattr(SkillFile, name) for name in columns), literal(until)).where(chosen)
            table: Any = FormerFile.__table__
            await self._session.execute(table.insert().from_select([*columns, "until"], moved))
            await self._session.execute(delete(SkillFile).where(chosen).execution_options(synchronize_session=False))


def light() -> Select[Any]:
    """Return a query for skills without their text, files, tags and groups."""
    return select(Skill)


def whole(*, contents: bool = False, files: bool = True) -> Select[Any]:
    """Return a query for skills with their text, and with their files, contents included or not."""
    labels = selectinload(Skill.tag_rows), selectinload(Skill.share_rows)
    query = light().options(undefer(Skill.body), undefer(Skill.head), *labels)
    if not files:
        return query
    listed = selectinload(Skill.file_rows)
    return query.options(listed.options(undefer(SkillFile.data)) if contents else listed)
