"""Statements about skills, files and history, and nothing else: no rules, no transactions.

`SkillRepository` and `SkillFileRepository` work on one skill at a time, `HistoryRepository` on former versions and the
log. All statements of the store are here, in `listings.py` (many skills) and in `search.py`.
"""

import datetime as dt
import hashlib
import itertools
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Uuid,
    and_,
    cast,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload, undefer
from sqlalchemy.orm.attributes import set_committed_value

from deepskills._skillmd.names import stored_key
from deepskills.store.db.engine import CHANNEL
from deepskills.store.db.listings import one_of_ids, readable, visible
from deepskills.store.db.models import (
    INSERT_SEARCH_ROW,
    NEVER_SEEN,
    SEARCH_TABLE,
    Counter,
    DailyUsage,
    Delivery,
    FormerFile,
    FormerText,
    Skill,
    SkillChange,
    SkillFile,
    SkillRequirement,
    SkillShare,
    SkillTag,
)
from deepskills.store.db.search import search_row
from deepskills.store.rules import Reason, Viewer

ItemT = TypeVar("ItemT")


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
            skill_id: Which skill.
            viewer: Who is asking.
            contents: With the contents of its files.
            files: With the list of its files.
            deleted: Look for a deleted skill, and ignore the viewer.
        """
        condition = Skill.deleted_at.is_not(None) if deleted else readable(viewer)
        return await self._first(and_(Skill.id == skill_id, condition), contents=contents, files=files)

    async def get_with_files(self, skill_id: UUID) -> Skill | None:
        """Return a skill with its files and their contents, whose owner may be anyone."""
        return await self._first(and_(Skill.id == skill_id, Skill.deleted_at.is_(None)), contents=True)

    async def list_by_user(self, user_id: str | UUID, include_public: bool = True) -> list[Skill]:  # noqa: FBT001, FBT002 - callers pass it by name or by place
        """Return the skills that a user owns and, unless told otherwise, public ones, without texts, sorted by name."""
        viewer = Viewer(str(user_id))
        reasons = {Reason.OWN, Reason.PUBLIC, Reason.SYSTEM} if include_public else {Reason.OWN}
        query = select(Skill).where(visible(viewer, reasons)).order_by(Skill.name_key)
        return list(await self._session.scalars(query))

    async def of_file(self, file_id: UUID, viewer: Viewer) -> tuple[UUID, str] | None:
        """Return the id of a file's skill, if `viewer` may read it, and its path; one query either way."""
        query = select(Skill.id, SkillFile.path).join(SkillFile, SkillFile.skill_id == Skill.id)
        row = (await self._session.execute(query.where(SkillFile.id == file_id, readable(viewer)))).first()
        return None if row is None else (row[0], row[1])

    async def is_taken(self, name_key: str, owner_id: str | None, *, other_than: UUID | None = None) -> bool:
        """Whether an owner has a skill with that name, other than `other_than`."""
        owner = Skill.owner_id.is_(None) if owner_id is None else Skill.owner_id == owner_id
        query = select(Skill.id).where(Skill.name_key == name_key, owner, Skill.deleted_at.is_(None))
        if other_than is not None:
            query = query.where(Skill.id != other_than)
        return await self._session.scalar(query.limit(1)) is not None

    async def count_kept(self, owner_id: str, *, other_than: UUID | None = None) -> tuple[int, int]:
        """Return how many skills an owner has, including deleted ones, and their bytes, without `other_than`."""
        query = select(func.count(), func.coalesce(func.sum(Skill.size), 0)).where(Skill.owner_id == owner_id)
        if other_than is not None:
            query = query.where(Skill.id != other_than)
        row = (await self._session.execute(query)).one()
        return int(row[0]), int(row[1])

    async def add(self, skill: Skill) -> None:
        """Write a new skill with its files."""
        self._session.add(skill)
        await self._session.flush()

    async def set_requires(self, skill: Skill, names: Sequence[str]) -> None:
        """Write which skills a skill requires."""
        keys = ({"position": at, "name": name, "name_key": stored_key(name)} for at, name in enumerate(names))
        await self._set_rows(SkillRequirement, skill, keys)

    async def set_tags(self, skill: Skill) -> None:
        """Write the tags by which a skill is found."""
        await self._set_rows(SkillTag, skill, ({"tag_key": tag.casefold()} for tag in skill.tags))

    async def set_shares(self, skill: Skill, *, again: bool = False) -> None:
        """Write the groups through which a skill is seen, each with the revision from which it has had the skill.

        A group that has it already keeps that revision, unless all count `again`.
        """
        query = select(SkillShare.group_id, SkillShare.since).where(SkillShare.skill_id == skill.id)
        known = {} if again else {row.group_id: row.since for row in await self._session.execute(query)}
        seen = {group: since for group, since in known.items() if since != NEVER_SEEN}
        first = NEVER_SEEN if skill.is_hidden else skill.revision
        rows = ({"group_id": group, "since": seen.get(group, first)} for group in skill.shared_with)
        await self._set_rows(SkillShare, skill, rows)

    async def _set_rows(self, table: Any, skill: Skill, rows: Iterable[dict[str, Any]]) -> None:  # noqa: ANN401 - a mapped class
        """Replace a skill's rows of another table."""
        values = [{"skill_id": skill.id, **row} for row in rows]
        # A new skill has none.
        if skill.revision != skill.number:
            await self._session.execute(delete(table).where(table.skill_id == skill.id))
        if values:
            await self._session.execute(insert(table), values)

    async def find_requiring(self, skill: Skill, viewer: Viewer, limit: int) -> Sequence[Skill]:
        """Return the skills that `viewer` may read, that require a skill by its name and whose owners can see it.

        For a public or system skill these are everybody's; for any other, the owner's and those of its groups.
        """
        query = select(Skill).join(SkillRequirement, SkillRequirement.skill_id == Skill.id)
        query = query.where(SkillRequirement.name_key == skill.name_key, Skill.deleted_at.is_(None))
        query = query.where(Skill.id != skill.id, readable(viewer))
        if skill.owner_id is not None and not skill.is_public:
            groups = select(SkillShare.group_id).where(SkillShare.skill_id == skill.id)
            shared = select(SkillShare.skill_id).where(SkillShare.group_id.in_(groups))
            query = query.where(or_(Skill.owner_id == skill.owner_id, Skill.id.in_(shared)))
        return (await self._session.scalars(query.order_by(Skill.name_key, Skill.id).limit(limit))).all()

    async def requires(self, ids: Collection[UUID]) -> dict[UUID, list[str]]:
        """Return the names that skills require, in the order written."""
        query = select(SkillRequirement).where(one_of_ids(SkillRequirement.skill_id, ids, self._dialect))
        found: dict[UUID, list[str]] = {}
        for row in await self._session.scalars(query.order_by(SkillRequirement.skill_id, SkillRequirement.position)):
            found.setdefault(row.skill_id, []).append(row.name)
        return found

    async def index(self, skill: Skill) -> None:
        """Write a skill's words to SQLite's full-text table; PostgreSQL searches the column itself."""
        if self._dialect == "sqlite":
            await self._unindex([skill.number])
            await self._session.execute(text(INSERT_SEARCH_ROW), search_row(skill.number, skill.words))

    async def find_deleted(self, moment: datetime, limit: int) -> Sequence[Skill]:
        """Return some of the skills deleted before a time, oldest first, without related rows."""
        query = select(Skill).where(Skill.deleted_at < moment).order_by(Skill.deleted_at, Skill.id).limit(limit)
        return (await self._session.scalars(query)).all()

    async def purge(self, skills: Sequence[Skill]) -> None:
        """Delete skills with everything that belongs to them, even if the database does not cascade."""
        ids = [skill.id for skill in skills]
        for skill in skills:
            self._session.expunge(skill)
        # By hand on SQLite, where foreign keys cascade only if the application's engine turned them on. PostgreSQL
        # does it itself: each statement here is a round trip for which all other writers wait.
        if self._dialect == "sqlite":
            await self._unindex([skill.number for skill in skills])
            for table in (SkillFile, SkillTag, SkillShare, SkillRequirement, FormerText, FormerFile, DailyUsage):
                await self._session.execute(delete(table).where(one_of_ids(table.skill_id, ids, self._dialect)))
        await self._session.execute(delete(Skill).where(one_of_ids(Skill.id, ids, self._dialect)))

    async def _unindex(self, numbers: Sequence[int]) -> None:
        statement = text(f"DELETE FROM {SEARCH_TABLE} WHERE rowid = :number")  # noqa: S608 - a constant
        if numbers:
            await self._session.execute(statement, [{"number": number} for number in numbers])

    async def _first(
        self, condition: ColumnElement[bool], *, contents: bool = False, files: bool = True
    ) -> Skill | None:
        """Return a skill with its text, and with its files and their contents if they are wanted."""
        query = select(Skill).options(undefer(Skill.body), undefer(Skill.head)).where(condition)
        if files or contents:
            query = query.options(selectinload(Skill.file_rows).options(*[undefer(SkillFile.data)] * contents))
        return (await self._session.scalars(query)).first()


class SkillFileRepository:
    """Reads and writes rows of files."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def read(self, skill_id: UUID, path: str) -> bytes | None:
        """Return the content of a skill's file by its path."""
        query = select(SkillFile.data).where(SkillFile.skill_id == skill_id, SkillFile.path == path)
        found: bytes | None = await self._session.scalar(query)
        return found

    async def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write new files."""
        if rows:
            await self._session.execute(insert(SkillFile), rows)

    async def retire(self, files: Collection[SkillFile], until: int) -> None:
        """Move files to what the skill had before a revision; their contents do not leave the database."""
        if not files:
            return
        chosen = one_of_ids(SkillFile.id, [file.id for file in files], self._dialect)
        columns = ["id", "since", "skill_id", "path", "size", "is_text", "digest", "data"]
        # INSERT ... SELECT: a skill of 64 MB is kept as a version without being read.
        moved = select(*(getattr(SkillFile, name) for name in columns), literal(until)).where(chosen)
        await self._session.execute(insert(FormerFile).from_select([*columns, "until"], moved))
        await self._session.execute(delete(SkillFile).where(chosen).execution_options(synchronize_session=False))


APPROVED = "approved"
"""The log's word for an operator's approval."""

READ = "read"
"""The log's word for an operator's look at somebody's private skill."""

LOADED = "skill.loaded"
"""The event for a skill that was loaded."""

STAMP_BITS = 40
"""How long the random stamps of changes are; a sum of a million of them still fits a database's integer."""


MAX_CHANGES = 1_000
"""How many changes are read at a time."""

KEYS = 1_000
"""How many pairs of keys one statement names: databases limit their parameters."""


@dataclass(frozen=True)
class Replaced:
    """A former text, or a former file, by its key."""

    skill_id: UUID
    file_id: UUID | None
    """`None` for a text."""

    since: int
    until: int


class HistoryRepository:
    """Reads and writes former versions of skills and what happened to them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def next_revision(self, count: int = 1) -> int:
        """Return the revision of a change, or the last of several; the writer holds the counter until it is done."""
        query = update(Counter).where(Counter.id == 1)
        query = query.values(value=Counter.value + count, stamp=secrets.randbits(STAMP_BITS))
        # Sent when the transaction commits, and once for all changes in it.
        notice = [func.pg_notify(CHANNEL, "")] if self._dialect == "postgresql" else []
        # What was changed so far is written with the rest.
        options = {"synchronize_session": False, "autoflush": False}
        result = await self._session.execute(query.returning(Counter.value, *notice), execution_options=options)
        return int(result.scalar_one())

    async def last_revision(self) -> int:
        """Return the revision of the last change."""
        return int(await self._session.scalar(select(Counter.value).where(Counter.id == 1)) or 0)

    async def changes(  # noqa: PLR0913 - filters, each by name
        self,
        *,
        skill_id: UUID | None = None,
        owner_id: str | None = None,
        since: int = 0,
        before: int | None = None,
        limit: int = MAX_CHANGES,
        newest_first: bool = False,
        reads: bool = False,
    ) -> list[SkillChange]:
        """Return changes after one revision and before another: those of a skill, of an owner's skills, or all.

        With `reads`, what operators read is among them.
        """
        query = select(SkillChange).where(SkillChange.revision > _bound(since))
        if not reads:
            query = query.where(SkillChange.action != READ)
        if skill_id is not None:
            query = query.where(SkillChange.skill_id == skill_id)
        if owner_id is not None:
            query = query.where(SkillChange.owner_id == owner_id)
        if before is not None:
            query = query.where(SkillChange.revision < _bound(before))
        order = SkillChange.revision.desc() if newest_first else SkillChange.revision.asc()
        return list(await self._session.scalars(query.order_by(order).limit(max(1, min(limit, MAX_CHANGES)))))

    async def last_approval(self, skill_id: UUID) -> SkillChange | None:
        """Return the last approval of a skill."""
        query = select(SkillChange).where(SkillChange.skill_id == skill_id, SkillChange.action == APPROVED)
        return (await self._session.scalars(query.order_by(SkillChange.revision.desc()).limit(1))).first()

    async def change(self, revision: int) -> SkillChange | None:
        """Return the change that made a revision; a look at a skill made none."""
        query = select(SkillChange).where(SkillChange.revision == _bound(revision), SkillChange.action != READ)
        return (await self._session.scalars(query)).first()

    async def text_at(self, skill_id: UUID, revision: int) -> FormerText | None:
        """Return the text that a skill had at a revision, if it has been replaced since."""
        query = select(FormerText).where(
            FormerText.skill_id == skill_id, FormerText.since <= revision, FormerText.until > revision
        )
        return (await self._session.scalars(query)).first()

    async def list_at(self, skill_id: UUID, revision: int = NEVER_SEEN) -> list[SkillFile]:
        """Return the files that a skill had at a revision, or has, without their contents, in order of path."""
        names = ("id", "since", "path", "size", "is_text", "digest")
        queries = []
        for table in (SkillFile, FormerFile):
            columns = (getattr(table, name) for name in names)
            query = select(*columns).where(table.skill_id == skill_id, table.since <= revision)
            queries.append(query if table is SkillFile else query.where(FormerFile.until > revision))
        rows = await self._session.execute(union_all(*queries))
        files = (SkillFile(**dict(zip(names, row, strict=True))) for row in rows)
        return sorted(files, key=lambda file: file.path)

    async def contents(self, files: Iterable[SkillFile]) -> dict[tuple[UUID, int], bytes]:
        """Return the contents of files by id and by the revision that brought them; those that expired are left out.

        Two statements for each thousand files.
        """
        wanted = {(file.id, file.since) for file in files}
        found: dict[tuple[UUID, int], bytes] = {}
        # In this order: what is replaced between two statements moves from the first table to the second.
        for table in (SkillFile, FormerFile):
            for keys in batch(wanted - found.keys(), KEYS):
                query = select(table.id, table.since, table.data).where(tuple_(table.id, table.since).in_(keys))
                found |= {(row.id, row.since): row.data for row in await self._session.execute(query)}
        return found

    async def fill(self, files: Collection[SkillFile]) -> None:
        """Read the contents of files that were listed without them."""
        found = await self.contents(files)
        for file in files:
            # Not a change: what is assigned to an attribute would be written again.
            set_committed_value(file, "data", found.get((file.id, file.since), b""))

    async def content_change(self, skill_id: UUID, revision: int) -> SkillChange | None:
        """Return the change that wrote the text and files that a skill had at a revision."""
        query = select(SkillChange).where(SkillChange.skill_id == skill_id, SkillChange.has_content)
        query = query.where(SkillChange.revision <= revision).order_by(SkillChange.revision.desc())
        return (await self._session.scalars(query.limit(1))).first()

    async def was_approved(self, skill: Skill, revision: int) -> bool:
        """Whether an operator approved the text and files that a skill had at a revision, then or at another one."""
        # An approval covers text and files together, so it holds from the last change to either until the next.
        first = await self.content_change(skill.id, revision)
        since = max(skill.kept_since, 0 if first is None else first.revision)
        query = select(SkillChange).where(SkillChange.skill_id == skill.id, SkillChange.revision >= since)
        query = query.where(or_(SkillChange.has_content, SkillChange.action == APPROVED))
        changes = (await self._session.scalars(query.order_by(SkillChange.revision))).all()
        later = itertools.takewhile(lambda change: change.revision <= revision or not change.has_content, changes)
        return any(change.action == APPROVED for change in later)

    async def forgettable(self, moment: datetime, limit: int) -> list[Replaced]:
        """Return some of the former texts and files that were replaced before a time, oldest first.

        The log knows when a row was replaced. Revisions say nothing about time: if the clock was wrong once, a low
        revision may have a late time. So every former row may have to be looked at, and no writer should wait for it.
        """
        found: list[Replaced] = []
        for table in (FormerText, FormerFile):
            replaced = select(SkillChange.revision).where(SkillChange.revision == table.until, SkillChange.at < moment)
            file_id = null() if table is FormerText else FormerFile.id
            query = select(table.skill_id, file_id, table.since, table.until).where(replaced.exists())
            rows = await self._session.execute(query.order_by(table.until).limit(limit - len(found)))
            found += [Replaced(*row) for row in rows]
        return found

    async def oldest_beyond(self, owner_id: str, size: int) -> list[Replaced]:
        """Return the oldest former texts and files of an owner's skills that are too much for a size, or some of them.

        The database adds them up: all writers wait for this, and an owner may have many thousands.
        """
        queries = []
        for table in (FormerText, FormerFile):
            file_id = cast(null(), Uuid) if table is FormerText else FormerFile.id
            query = select(table.skill_id, file_id.label("file_id"), table.since, table.until, table.size)
            queries.append(query.join(Skill, Skill.id == table.skill_id).where(Skill.owner_id == owner_id))
        former = union_all(*queries).subquery()
        excess = int(await self._session.scalar(select(func.coalesce(func.sum(former.c.size), 0))) or 0) - size
        if excess <= 0:
            return []
        oldest: list[Replaced] = []
        for *key, each in await self._session.execute(select(former).order_by(former.c.until).limit(KEYS)):
            if excess <= 0:
                break
            oldest.append(Replaced(*key))
            excess -= each
        return oldest

    async def forget(self, rows: Sequence[Replaced]) -> None:
        """Delete former texts and files; the log of changes stays."""
        whole_since: dict[UUID, int] = {}
        for row in rows:
            whole_since[row.skill_id] = max(row.until, whole_since.get(row.skill_id, 0))
        for skill_id, revision in sorted(whole_since.items()):
            # A new stamp, so that agents which know the skill look at it again: a pinned version may be gone.
            values = {"kept_since": revision, "stamp": secrets.randbits(STAMP_BITS)}
            statement = update(Skill).where(Skill.id == skill_id, Skill.kept_since < revision).values(values)
            await self._session.execute(statement, execution_options={"synchronize_session": False})
        texts = [(row.skill_id, row.since) for row in rows if row.file_id is None]
        files = [(row.file_id, row.since) for row in rows if row.file_id is not None]
        for table, id_, pairs in ((FormerText, FormerText.skill_id, texts), (FormerFile, FormerFile.id, files)):
            for keys in batch(pairs, KEYS):
                gone = delete(table).where(tuple_(id_, table.since).in_(keys))
                await self._session.execute(gone, execution_options={"synchronize_session": False})
        # A changed stamp makes every agent look again; otherwise a pinned version that is gone would still be listed.
        await self._session.execute(
            update(Counter).where(Counter.id == 1).values(stamp=secrets.randbits(STAMP_BITS)),
            execution_options={"synchronize_session": False},
        )

    async def note_delivery(self, user_key: str, directory: str, skill_id: UUID, digests: Sequence[str]) -> None:
        """Write which files the loader wrote to a directory of a user's sandbox."""
        insert = postgresql.insert if self._dialect == "postgresql" else sqlite.insert
        values = {"skill_id": skill_id, "digests": "\n".join(digests), "directory": directory}
        statement: Any = insert(Delivery).values(user_key=user_key, directory_key=_digest(directory), **values)
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["user_key", "directory_key"], set_=values)
        )

    async def deliveries(self, user_key: str, directories: Collection[str]) -> dict[str, frozenset[str]]:
        """Return the digests of the files that the loader wrote, by directory of a user's sandbox."""
        found: dict[str, frozenset[str]] = {}
        keys = [_digest(directory) for directory in directories]
        for some in batch(keys, KEYS):
            query = select(Delivery.directory, Delivery.digests).where(
                Delivery.user_key == user_key, Delivery.directory_key.in_(some)
            )
            rows = await self._session.execute(query)
            found |= {row.directory: frozenset(row.digests.split("\n")) for row in rows}
        return found

    async def forget_delivery(self, user_key: str, directory: str) -> None:
        """Delete the record of a directory of a user's sandbox."""
        own = Delivery.user_key == user_key, Delivery.directory_key == _digest(directory)
        await self._session.execute(delete(Delivery).where(*own))

    async def count_usage(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add to the usage counts; each row has `skill_id`, `day`, `type`, `trigger` and `count`."""
        insert = postgresql.insert if self._dialect == "postgresql" else sqlite.insert
        for some in batch(rows, KEYS):
            statement: Any = insert(DailyUsage).values(some)
            statement = statement.on_conflict_do_update(
                index_elements=["skill_id", "day", "type", "trigger"],
                set_={"count": DailyUsage.count + statement.excluded.count},
            )
            await self._session.execute(statement)

    async def usage(self, skill_id: UUID, since: dt.date | None) -> Sequence[DailyUsage]:
        """Return how a skill was used, by day."""
        query = select(DailyUsage).where(DailyUsage.skill_id == skill_id)
        if since is not None:
            query = query.where(DailyUsage.day >= since)
        order = (DailyUsage.day, DailyUsage.type, DailyUsage.trigger)
        return (await self._session.scalars(query.order_by(*order))).all()

    async def loads(self, skill_ids: Sequence[UUID], since: dt.date) -> Sequence[DailyUsage]:
        """Return how often skills were loaded since a day, by day and trigger."""
        chosen = one_of_ids(DailyUsage.skill_id, skill_ids, self._dialect)
        query = select(DailyUsage).where(chosen, DailyUsage.day >= since, DailyUsage.type == LOADED)
        return (await self._session.scalars(query)).all()


def batch(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Yield the items, so many at a time."""
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def _digest(directory: str) -> str:
    return hashlib.sha256(directory.encode("utf-8", "surrogatepass")).hexdigest()


def _bound(revision: int) -> int:
    """Return a revision that a caller gave, within the range of a database's integers."""
    return max(0, min(revision, (1 << 63) - 1))
