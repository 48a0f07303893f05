"""Queries, and nothing else: no rules, no transactions."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, false, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload, undefer

from deepskills.store._models import Skill, SkillFile, SkillTag


class SkillRepository:
    """Reads and writes rows of skills; a viewer is a user id, or `None` for nobody."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def list_visible(
        self,
        viewer: str | None,
        *,
        include_public: bool = True,
        tag_keys: Collection[str] | None = None,
        skill_ids: Collection[UUID] | None = None,
    ) -> Sequence[Skill]:
        """Return the skills that `viewer` may see, in no order, without the contents of their files.

        Args:
            viewer: Who looks.
            include_public: Whether public and system skills of others are among them.
            tag_keys: Only skills with one of these tags, in folded case.
            skill_ids: Only these skills.
        """
        query = _whole().where(_visible(viewer) if include_public else _own(viewer))
        if tag_keys is not None:
            query = query.where(Skill.tag_rows.any(SkillTag.tag_key.in_(tag_keys)))
        if skill_ids is not None:
            query = query.where(Skill.id.in_(skill_ids))
        return (await self._session.scalars(query)).all()

    async def get_visible(self, skill_id: UUID, viewer: str | None, *, contents: bool = False) -> Skill | None:
        """Return a skill, with or without the contents of its files, if `viewer` may see it."""
        query = _whole(contents=contents).where(Skill.id == skill_id, _visible(viewer))
        found: Skill | None = await self._session.scalar(query)
        return found

    async def find_visible(self, name_key: str, viewer: str | None) -> Sequence[Skill]:
        """Return the skills of that name that `viewer` may see, with the contents of their files."""
        query = _whole(contents=True).where(Skill.name_key == name_key, _visible(viewer))
        return (await self._session.scalars(query)).all()

    async def is_taken(self, name_key: str, owner_id: str | None, *, other_than: UUID | None = None) -> bool:
        """Whether an owner has a skill of that name, `other_than` aside."""
        query = select(Skill.id).where(Skill.name_key == name_key, Skill.owner_id.is_not_distinct_from(owner_id))
        if other_than is not None:
            query = query.where(Skill.id != other_than)
        return await self._session.scalar(query.limit(1)) is not None

    async def touch(self, skill_id: UUID, at: datetime) -> bool:
        """Note that a skill changes, which keeps other writers away until the transaction ends.

        Returns:
            Whether the skill is still there.
        """
        result = await self._session.execute(
            update(Skill).where(Skill.id == skill_id).values(updated_at=at).returning(Skill.id)
        )
        return result.first() is not None

    async def add(self, skill: Skill) -> None:
        """Write a new skill with its files and tags."""
        self._session.add(skill)
        await self._session.flush()

    async def delete(self, skill_id: UUID) -> None:
        """Delete a skill with its files and tags, also where the database does not cascade."""
        for table in (SkillFile, SkillTag):
            await self._session.execute(delete(table).where(table.skill_id == skill_id))
        await self._session.execute(delete(Skill).where(Skill.id == skill_id))


class SkillFileRepository:
    """Reads and writes rows of files."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, file_id: UUID) -> SkillFile | None:
        """Return a file without its content."""
        found: SkillFile | None = await self._session.scalar(select(SkillFile).where(SkillFile.id == file_id))
        return found

    async def read(self, skill_id: UUID, path: str) -> bytes | None:
        """Return the content of the file at a path of a skill."""
        query = select(SkillFile.data).where(SkillFile.skill_id == skill_id, SkillFile.path == path)
        found: bytes | None = await self._session.scalar(query)
        return found

    async def sizes(self, skill_id: UUID) -> dict[str, int]:
        """Return the paths of a skill's files, each with its size."""
        rows = await self._session.execute(select(SkillFile.path, SkillFile.size).where(SkillFile.skill_id == skill_id))
        return {row.path: row.size for row in rows}

    async def add(self, file: SkillFile) -> None:
        """Write a new file."""
        self._session.add(file)
        await self._session.flush()

    async def delete(self, file_id: UUID) -> None:
        """Delete a file."""
        await self._session.execute(delete(SkillFile).where(SkillFile.id == file_id))


def _whole(*, contents: bool = False) -> Select[Any]:
    """Return a query for skills as they are now, with tags and files."""
    files = selectinload(Skill.files)
    return (
        select(Skill)
        .options(files.options(undefer(SkillFile.data)) if contents else files, selectinload(Skill.tag_rows))
        .execution_options(populate_existing=True)
    )


def _own(viewer: str | None) -> ColumnElement[bool]:
    return false() if viewer is None else Skill.owner_id == viewer


def _visible(viewer: str | None) -> ColumnElement[bool]:
    return or_(Skill.owner_id.is_(None), Skill.is_public.is_(True), _own(viewer))
