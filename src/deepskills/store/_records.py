"""Queries about revisions, former texts and files, the log of changes, and use."""

import datetime as dt
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, select, union, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from deepskills.store._history import Counter, FormerFile, FormerText, SkillChange, SkillUsage
from deepskills.store._models import Skill, SkillFile

APPROVED = "approved"
"""What the log says of an operator's approval."""

STAMP_BITS = 40
"""How long the random stamps of changes are; a sum of a million of them still fits a database's integer."""


class HistoryRepository:
    """Reads and writes what skills were and what happened to them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def next_revision(self) -> int:
        """Return the revision of a change; the writer holds the counter until its transaction ends."""
        stamp = secrets.randbits(STAMP_BITS)
        query = update(Counter).where(Counter.id == 1).values(value=Counter.value + 1, stamp=stamp)
        value: int | None = await self._session.scalar(
            query.returning(Counter.value), execution_options={"synchronize_session": False}
        )
        if value is None:
            known = await self._session.scalar(select(func.coalesce(func.max(Skill.revision), 0)))
            value = int(known or 0) + 1
            self._session.add(Counter(id=1, value=value, stamp=stamp))
            await self._session.flush()
        return value

    async def add(self, record: SkillChange | FormerText) -> None:
        """Write a record."""
        self._session.add(record)

    async def changes(
        self,
        *,
        skill_id: UUID | None = None,
        owner_id: str | None = None,
        since: int = 0,
        before: int | None = None,
        limit: int,
        newest_first: bool = False,
    ) -> Sequence[SkillChange]:
        """Return changes after one revision and before another: those of a skill, of an owner's skills, or all."""
        query = select(SkillChange).where(SkillChange.revision > _bounded(since))
        if skill_id is not None:
            query = query.where(SkillChange.skill_id == skill_id)
        if owner_id is not None:
            query = query.where(SkillChange.owner_id == owner_id)
        if before is not None:
            query = query.where(SkillChange.revision < _bounded(before))
        order = SkillChange.revision.desc() if newest_first else SkillChange.revision.asc()
        return (await self._session.scalars(query.order_by(order).limit(limit))).all()

    async def change(self, skill_id: UUID, revision: int) -> SkillChange | None:
        """Return the change that brought a revision of a skill."""
        query = select(SkillChange).where(SkillChange.revision == revision, SkillChange.skill_id == skill_id)
        found: SkillChange | None = await self._session.scalar(query)
        return found

    async def change_of(self, revision: int) -> SkillChange | None:
        """Return the change that brought a revision."""
        found: SkillChange | None = await self._session.scalar(
            select(SkillChange).where(SkillChange.revision == _bounded(revision))
        )
        return found

    async def text_at(self, skill_id: UUID, revision: int) -> FormerText | None:
        """Return the text that a skill had at a revision and has no more."""
        query = select(FormerText).where(
            FormerText.skill_id == skill_id, FormerText.since <= revision, FormerText.until > revision
        )
        found: FormerText | None = await self._session.scalar(query)
        return found

    async def files_at(self, skill_id: UUID, revision: int) -> list[SkillFile | FormerFile]:
        """Return the files that a skill had at a revision, with their contents."""
        current = select(SkillFile).where(SkillFile.skill_id == skill_id, SkillFile.since <= revision)
        former = select(FormerFile).where(
            FormerFile.skill_id == skill_id, FormerFile.since <= revision, FormerFile.until > revision
        )
        found: list[SkillFile | FormerFile] = [
            *(await self._session.scalars(current.options(undefer(SkillFile.data)))),
            *(await self._session.scalars(former)),
        ]
        return sorted(found, key=lambda file: file.path)

    async def was_approved(self, skill: Skill, revision: int) -> bool:
        """Whether an operator approved the text and files that a skill had at a revision, then or at another one."""
        approved = select(SkillChange.revision).where(
            SkillChange.skill_id == skill.id, SkillChange.action == APPROVED, SkillChange.revision >= skill.kept_since
        )
        bounds = union(
            select(FormerText.until).where(FormerText.skill_id == skill.id),
            select(FormerFile.since).where(FormerFile.skill_id == skill.id),
            select(FormerFile.until).where(FormerFile.skill_id == skill.id),
            select(SkillFile.since).where(SkillFile.skill_id == skill.id),
        )
        changed = [skill.text_since, *await self._session.scalars(bounds)]
        first = max((at for at in changed if at <= revision), default=0)
        next_one = min((at for at in changed if at > revision), default=skill.revision + 1)
        return any(first <= at < next_one for at in await self._session.scalars(approved))

    async def forget(self, moment: datetime) -> None:
        """Delete former texts and files that were replaced before a moment; the log of changes stays.

        Each skill that loses any notes since when its versions are whole.
        """
        last = await self._session.scalar(select(func.max(SkillChange.revision)).where(SkillChange.at < moment))
        for table in (FormerText, FormerFile):
            old = table.until <= (last or 0)
            until = select(func.max(table.until)).where(table.skill_id == Skill.id, old).scalar_subquery()
            losing = Skill.id.in_(select(table.skill_id).where(old))
            await self._session.execute(
                update(Skill).where(losing, Skill.kept_since < until).values(kept_since=until),
                execution_options={"synchronize_session": False},
            )
            await self._session.execute(delete(table).where(old))

    async def count_usage(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add to the counts of use, each row with `skill_id`, `day`, `type`, `trigger` and `count`."""
        insert = postgresql.insert if self._dialect == "postgresql" else sqlite.insert
        for start in range(0, len(rows), 500):
            statement: Any = insert(SkillUsage).values(list(rows[start : start + 500]))
            statement = statement.on_conflict_do_update(
                index_elements=["skill_id", "day", "type", "trigger"],
                set_={"count": SkillUsage.count + statement.excluded.count},
            )
            await self._session.execute(statement)

    async def usage(self, skill_id: UUID, since: dt.date | None) -> Sequence[SkillUsage]:
        """Return how a skill was used, by day."""
        query = select(SkillUsage).where(SkillUsage.skill_id == skill_id)
        if since is not None:
            query = query.where(SkillUsage.day >= since)
        order = (SkillUsage.day, SkillUsage.type, SkillUsage.trigger)
        return (await self._session.scalars(query.order_by(*order))).all()


def _bounded(revision: int) -> int:
    """Return a revision that a caller gave, as far as databases count."""
    return max(0, min(revision, (1 << 63) - 1))
