"""Queries over many skills: pages of a listing, searches, and what an agent's run needs of each."""

import base64
import binascii
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Select,
    SQLColumnExpression,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    literal,
    null,
    or_,
    select,
    table,
    text,
    type_coerce,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from deepskills._errors import SkillFormatError
from deepskills.store._history import SEARCH_TABLE, Counter
from deepskills.store._models import Skill, SkillShare, SkillTag
from deepskills.store._repositories import light, whole
from deepskills.store._rules import Labels
from deepskills.store._visibility import EVERYTHING, Reason, Viewer, one_of_ids, readable, seen_for, since, visible
from deepskills.store._words import postgres_query, query_words, sqlite_query

TagMatch: TypeAlias = Literal["any", "all"]
"""Whether a skill needs one of several tags or all of them."""

MAX_HEAD_LENGTH = 16_384
"""Longest frontmatter that an agent's run reads; of a longer one the name and the description stand for it."""

MAX_FOUND = 10_000
"""How many matches a search in the database gives at most."""

_SEARCH = table(SEARCH_TABLE, column("rowid"), column("words"))


@dataclass(frozen=True)
class Filter:
    """Which skills a listing shows."""

    reasons: frozenset[Reason] = EVERYTHING
    tag_keys: tuple[str, ...] = ()
    tag_match: TagMatch = "any"
    name_key: str | None = None
    skill_ids: tuple[UUID, ...] | None = None
    is_everything: bool = False
    """Whether it shows any skill of any owner, as to an operator."""

    deleted_since: datetime | None = None
    """Since when deleted skills are shown, in place of others."""


@dataclass(frozen=True)
class Position:
    """Where a page ends: the last skill's place in the order."""

    name_key: str
    rank: int
    since: int
    id: UUID

    def cursor(self) -> str:
        """Return the place as text that means nothing to others."""
        raw = json.dumps([self.name_key, self.rank, self.since, self.id.hex])
        return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, cursor: str) -> "Position":
        """Return the place that a cursor names.

        Raises:
            SkillFormatError: If it names none.
        """
        try:
            name, rank, since_, skill_id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
            are_numbers = isinstance(rank, int) and isinstance(since_, int) and abs(since_) < 1 << 63
            if not isinstance(name, str) or "\x00" in name or not are_numbers:
                raise SkillFormatError(_BAD_CURSOR)
            return cls(name.encode("utf-8", "replace").decode(), rank, since_, UUID(hex=skill_id))
        except (ValueError, TypeError, AttributeError, binascii.Error, RecursionError):
            raise SkillFormatError(_BAD_CURSOR) from None


_BAD_CURSOR = "The cursor is not one that a listing gave. Start again without it."


@dataclass(frozen=True)
class Head:
    """What an agent's run needs of a skill."""

    id: UUID
    name: str
    revision: int
    stamp: int
    encoding: str
    frontmatter: str | None
    """As written; `None` where it is to be generated from the description and tags."""

    description: str | None
    tags: tuple[str, ...] = ()
    is_pinned: bool = False
    """Whether it is a version that stays, whatever the skill becomes."""


@dataclass(frozen=True)
class Searchable:
    """What a search looks at."""

    id: UUID
    name: str
    description: str
    tags: list[str] = field(default_factory=list)


class ListingRepository:
    """Reads many skills at a time."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def page(
        self, viewer: Viewer, chosen: Filter, limit: int | None, after: Position | None
    ) -> tuple[list[Skill], Position | None]:
        """Return skills in order of name, light, and where to go on; of one name the first is the one that counts."""
        reasons = [None] if chosen.is_everything else sorted(chosen.reasons)
        branches = [self._branch(reason, viewer, chosen, limit, after) for reason in reasons]
        found = union_all(*(select(branch.subquery()) for branch in branches)).subquery() if branches else None
        if found is None:
            return [], None
        order = (found.c.name_key, found.c.rank, found.c.since, found.c.id)
        query = light().join(found, found.c.id == Skill.id).add_columns(*order).order_by(*order)
        if limit is not None:
            query = query.limit(limit + 1)
        rows = (await self._session.execute(query)).all()
        shown = rows if limit is None else rows[:limit]
        last = Position(*shown[-1][1:]) if shown and len(rows) > len(shown) else None
        return await self._labelled([row[0] for row in shown]), last

    def _branch(
        self, reason: Reason | None, viewer: Viewer, chosen: Filter, limit: int | None, after: Position | None
    ) -> Select[Any]:
        """Return the query for the skills that are seen for one reason, or all skills of all owners."""
        rank = -1 if reason is None else int(reason)
        first = type_coerce(Skill.name_since, BigInteger) if reason is None else since(reason, viewer)
        columns: list[Any] = [Skill.id, Skill.name_key, literal(rank).label("rank"), first.label("since")]
        query: Select[Any] = select(*columns)
        query = query.where(*self._conditions(chosen))
        if reason is not None:
            query = query.where(seen_for(reason, viewer))
        if after is not None:
            query = query.where(_behind(rank, first, after))
        if limit is not None:
            query = query.order_by(Skill.name_key, first, Skill.id).limit(limit + 1)
        return query

    def _conditions(self, chosen: Filter) -> list[ColumnElement[bool]]:
        moment = chosen.deleted_since
        found: list[ColumnElement[bool]] = [
            Skill.deleted_at.is_(None) if moment is None else Skill.deleted_at >= moment
        ]
        if chosen.name_key is not None:
            found.append(Skill.name_key == chosen.name_key)
        if chosen.skill_ids is not None:
            found.append(one_of_ids(Skill.id, chosen.skill_ids, self._dialect))
        if chosen.tag_keys:
            tagged = select(SkillTag.skill_id).where(SkillTag.tag_key.in_(chosen.tag_keys))
            if chosen.tag_match == "all":
                matches = func.count(SkillTag.tag_key.distinct())
                tagged = tagged.group_by(SkillTag.skill_id).having(matches == len(chosen.tag_keys))
            found.append(Skill.id.in_(tagged))
        return found

    def _visible(self, viewer: Viewer, chosen: Filter) -> ColumnElement[bool]:
        seen = [] if chosen.is_everything else [visible(viewer, chosen.reasons)]
        return and_(*self._conditions(chosen), *seen)

    async def count(self, viewer: Viewer, chosen: Filter, up_to: int) -> int:
        """Return how many skills a listing has, counted up to a number."""
        some = select(Skill.id).where(self._visible(viewer, chosen)).limit(up_to).subquery()
        return int(await self._session.scalar(select(func.count()).select_from(some)) or 0)

    async def searchable(self, viewer: Viewer, chosen: Filter) -> list[Searchable]:
        """Return what a search looks at, of all skills of a listing in order."""
        condition = self._visible(viewer, chosen)
        query = select(Skill.id, Skill.name, Skill.description).where(condition).order_by(Skill.name_key, Skill.id)
        found = {row.id: Searchable(*row) for row in await self._session.execute(query)}
        tags = select(SkillTag.skill_id, SkillTag.tag).join(Skill).where(condition)
        for row in await self._session.execute(tags):
            found[row.skill_id].tags.append(row.tag)
        return list(found.values())

    async def search(self, viewer: Viewer, chosen: Filter, query: str, limit: int, offset: int) -> list[UUID]:
        """Return the ids of the best matches, found and ranked by the database."""
        words = query_words(query)
        if not words:
            return []
        matches = select(Skill.id).where(self._visible(viewer, chosen))
        if self._dialect == "postgresql":
            wanted = func.to_tsquery(text("'simple'"), postgres_query(words))
            score: SQLColumnExpression[Any] = func.ts_rank(Skill.words, wanted).desc()
            matches = matches.where(Skill.words.op("@@")(wanted))
        else:
            score = func.bm25(text(SEARCH_TABLE))
            matches = matches.join(_SEARCH, _SEARCH.c.rowid == Skill.number)
            matches = matches.where(text(f"{SEARCH_TABLE} MATCH :wanted").bindparams(wanted=sqlite_query(words)))
        matches = matches.order_by(score, Skill.name_key, Skill.id).limit(limit).offset(offset)
        return list(await self._session.scalars(matches))

    async def light(self, ids: Sequence[UUID], viewer: Viewer, chosen: Filter) -> list[Skill]:
        """Return skills by id, light, in the order of their ids."""
        query = light().where(one_of_ids(Skill.id, ids, self._dialect), self._visible(viewer, chosen))
        found = {skill.id: skill for skill in await self._session.scalars(query)}
        return await self._labelled([found[given] for given in ids if given in found])

    async def _labelled(self, skills: list[Skill]) -> list[Skill]:
        """Return skills with their tags and groups, which are read as one value per skill."""
        ids = [skill.id for skill in skills]
        tags = await self._lists_of(SkillTag.skill_id, SkillTag.position, SkillTag.tag, ids)
        groups = await self._lists_of(SkillShare.skill_id, SkillShare.group_id, SkillShare.can_write, ids)
        for skill in skills:
            shares = sorted(groups.get(skill.id, []))
            skill.labels = Labels(
                [tag for _position, tag in sorted(tags.get(skill.id, []))],
                {group: "write" if can_write else "read" for group, can_write in shares},
            )
        return skills

    async def _lists_of(
        self,
        skill_id: InstrumentedAttribute[UUID],
        first: InstrumentedAttribute[Any],
        second: InstrumentedAttribute[Any],
        ids: Sequence[UUID],
    ) -> dict[UUID, list[Any]]:
        """Return the rows that belong to skills, of each skill a list of pairs."""
        if not ids:
            return {}
        is_postgres = self._dialect == "postgresql"
        pair = (func.json_build_array if is_postgres else func.json_array)(first, second)
        pairs = (func.json_agg if is_postgres else func.json_group_array)(pair, type_=JSON)
        query = select(skill_id, pairs).where(one_of_ids(skill_id, ids, self._dialect)).group_by(skill_id)
        return {row[0]: row[1] for row in await self._session.execute(query)}

    async def state(self, viewer: Viewer, chosen: Filter, known: int | None) -> tuple[int, str | None]:
        """Return the stamp of the store's last change and, if it is not the known one, a mark of the visible skills.

        One query, whatever the number of skills. The mark is the number and the sum of their stamps: other skills, or
        the same in another revision, have another one.
        """
        mark = cast(func.count(), Text) + literal(":") + cast(func.coalesce(func.sum(Skill.stamp), 0), Text)
        marks = select(mark).where(self._visible(viewer, chosen)).scalar_subquery()
        last = select(Counter.stamp).where(Counter.id == 1).scalar_subquery()
        shown = case((last == cast(literal(known), BigInteger), null()), else_=marks)
        row = (await self._session.execute(select(last, shown))).one()
        return int(row[0] or 0), row[1]

    async def heads(self, viewer: Viewer, chosen: Filter, limit: int) -> list[Head]:
        """Return what an agent's run needs of each visible skill: of one name the first is the one that counts."""
        found: list[Head] = []
        for reason in sorted(chosen.reasons):
            first = since(reason, viewer)
            written = case((func.length(Skill.head) <= MAX_HEAD_LENGTH, Skill.head))
            described = case((written.is_(None), Skill.description))
            query = select(Skill.id, Skill.name, Skill.revision, Skill.stamp, Skill.encoding, written, described)
            query = query.where(*self._conditions(chosen), seen_for(reason, viewer))
            query = query.order_by(Skill.name_key, first, Skill.id).limit(limit - len(found))
            found += [Head(*row) for row in await self._session.execute(query)]
            if len(found) >= limit:
                break
        return await self._with_tags(found)

    async def _with_tags(self, heads: list[Head]) -> list[Head]:
        """Add the tags to those whose frontmatter is generated."""
        ids = [head.id for head in heads if head.frontmatter is None]
        if not ids:
            return heads
        query = select(SkillTag.skill_id, SkillTag.tag).where(one_of_ids(SkillTag.skill_id, ids, self._dialect))
        tags: dict[UUID, list[str]] = {}
        for row in await self._session.execute(query.order_by(SkillTag.skill_id, SkillTag.position)):
            tags.setdefault(row.skill_id, []).append(row.tag)
        return [head if head.id not in tags else Head(**{**vars(head), "tags": tuple(tags[head.id])}) for head in heads]

    async def documents(self, ids: Collection[UUID], viewer: Viewer, chosen: Filter) -> list[Skill]:
        """Return skills with their text and without their files."""
        condition = and_(one_of_ids(Skill.id, ids, self._dialect), self._visible(viewer, chosen))
        return list(await self._session.scalars(whole(files=False).where(condition)))

    async def existing(self, ids: Collection[UUID], viewer: Viewer | None) -> set[UUID]:
        """Return those ids that skills have, or that skills which `viewer` may read have; none is purged meanwhile."""
        query = select(Skill.id).where(one_of_ids(Skill.id, ids, self._dialect))
        if viewer is not None:
            query = query.where(readable(viewer))
        return set(await self._session.scalars(query.with_for_update(read=True, key_share=True)))


def _behind(rank: int, first: ColumnElement[int], after: Position) -> ColumnElement[bool]:
    """Return the condition that a skill stands behind a position, for those that have one rank."""
    if rank > after.rank:
        return Skill.name_key >= after.name_key
    if rank < after.rank:
        return Skill.name_key > after.name_key
    same = and_(
        Skill.name_key == after.name_key, or_(first > after.since, and_(first == after.since, Skill.id > after.id))
    )
    return and_(Skill.name_key >= after.name_key, or_(Skill.name_key > after.name_key, same))
