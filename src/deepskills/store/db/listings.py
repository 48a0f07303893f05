"""Statements about many skills: who sees which, in which order, page by page; and which of them match a search.

Visibility is the rule of `rules.py`, written as conditions on whole tables: a skill is seen for exactly one reason, the
best that applies (own, group, system, public). Conditions of different reasons never overlap, so a listing can be a
union of one query per reason, each on its own index.
"""

import base64
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    LargeBinary,
    Select,
    String,
    Subquery,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, undefer
from sqlalchemy.orm.attributes import set_committed_value

from deepskills._catalog.search import SearchDocument
from deepskills._errors import SkillFormatError
from deepskills.store.db.models import Counter, Skill, SkillShare, SkillTag
from deepskills.store.db.search import CANDIDATES, Matches, best_matches, counts_of, telling_words, with_texts
from deepskills.store.rules import EVERYTHING, Reason, Viewer, sees_groups


def seen_for(reason: Reason, viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that `viewer` sees a skill for `reason` and for no better one."""
    shown = Skill.is_hidden.is_(False)
    if reason is Reason.OWN:
        return false() if viewer.user is None else Skill.owner_id == viewer.user
    if reason is Reason.SYSTEM:
        return and_(Skill.owner_id.is_(None), shown)
    if reason is Reason.GROUP:
        return and_(shared_with(viewer), seen_by_group(viewer))
    approved = [Skill.is_approved.is_(True)] if viewer.needs_approval else []
    # Not null, and not the viewer's; for nobody too by a comparison: `IS NOT NULL` is a range of the index over owners,
    # which SQLite would rather read from end to end than the index over public skills.
    others = Skill.owner_id != (viewer.user or "")
    return and_(_IS_PUBLIC, others, shown, not_(shared_with(viewer)), *approved)


# Just the column, without a comparison: the condition must read as in the index over public skills. SQLAlchemy writes
# `Skill.is_public` as `is_public = 1` for SQLite, which would then read all skills.
_IS_PUBLIC: Any = literal_column(f"{Skill.__tablename__}.is_public", Integer)


def seen_by_group(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition for a skill that is shared with one of the viewer's groups to be seen for that reason.

    Everybody sees a system skill as the system's; sharing it does not change its rank.
    """
    return and_(Skill.owner_id.is_not(None), Skill.owner_id != (viewer.user or ""), Skill.is_hidden.is_(False))


def shares_with(viewer: Viewer) -> Subquery:
    """Return the skills shared with the viewer's groups, each with the revision from which a group has had it."""
    query = select(SkillShare.skill_id, func.min(SkillShare.since).label("since"))
    return query.where(SkillShare.group_id.in_(sorted(viewer.groups))).group_by(SkillShare.skill_id).subquery()


def shared_with(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that a skill is shared with a group of the viewer."""
    if not viewer.groups:
        return false()
    groups = select(SkillShare.skill_id).where(SkillShare.group_id.in_(sorted(viewer.groups)))
    return Skill.id.in_(groups)


def visible(viewer: Viewer, reasons: Collection[Reason] = EVERYTHING) -> ColumnElement[bool]:
    """Return the condition that `viewer` sees a skill for one of `reasons`; deleted skills are for nobody."""
    return and_(Skill.deleted_at.is_(None), or_(false(), *(seen_for(reason, viewer) for reason in sorted(reasons))))


def readable(viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that `viewer` may read a skill, as an operator may read any."""
    return Skill.deleted_at.is_(None) if viewer.is_operator else visible(viewer)


def one_of_ids(column: InstrumentedAttribute[UUID], ids: Collection[UUID], dialect: str) -> ColumnElement[bool]:
    """Return the condition that a column has one of any number of ids, as one parameter: databases limit those."""
    if dialect == "postgresql":
        return column == any_(bindparam(None, list(ids), ARRAY(Uuid())))
    # SQLite keeps ids as hexadecimal text.
    listed = func.json_each(json.dumps([given.hex for given in ids])).table_valued("value")
    return type_coerce(column, String).in_(select(listed.c.value))


# -- Listings ----------------------------------------------------------------------------------------------------------

TagMatch: TypeAlias = Literal["any", "all"]
"""Whether a skill needs one of several tags or all of them."""

MAX_HEAD_LENGTH = 16_384
"""Longest frontmatter that an agent's run reads; a longer one is replaced by the name and the description."""

MAX_FOUND = 10_000
"""How many matches a search in the database returns at most."""


@dataclass(frozen=True)
class Filter:
    """Which skills a listing shows."""

    reasons: frozenset[Reason] = EVERYTHING
    tag_keys: tuple[str, ...] = ()
    tag_match: TagMatch = "any"
    name_key: str | None = None
    skill_ids: tuple[UUID, ...] | None = None
    is_everything: bool = False
    """Whether it shows every owner's skills, as for an operator."""

    is_unapproved: bool = False
    """Whether it shows only public skills whose current content no operator approved."""

    deleted_since: datetime | None = None
    """Show skills deleted since this time, instead of the others."""


@dataclass(frozen=True)
class Position:
    """Where a page ends: the last skill's position in the order."""

    name_key: str
    rank: int
    since: int
    id: UUID

    def cursor(self) -> str:
        """Return the position as opaque text."""
        return _encode([self.name_key, self.rank, self.since, self.id.hex])

    @classmethod
    def of(cls, cursor: str) -> "Position":
        """Return the position that a cursor names.

        Raises:
            SkillFormatError: If it names none.
        """
        try:
            name, rank, since_, skill_id = _decode(cursor)
            are_numbers = isinstance(rank, int) and isinstance(since_, int) and abs(since_) < 1 << 63
            # A cursor comes back from clients, so it is checked like any input: PostgreSQL refuses NUL and numbers that
            # are too large.
            if not isinstance(name, str) or "\x00" in name or not are_numbers:
                raise SkillFormatError(_BAD_CURSOR)
            return cls(name.encode("utf-8", "replace").decode(), rank, since_, UUID(hex=skill_id))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise SkillFormatError(_BAD_CURSOR) from None


_BAD_CURSOR = "The cursor does not come from a listing. Start again without it."


def cursor_at(offset: int) -> str:
    """Return a place in the results of a search as opaque text."""
    return _encode({"offset": offset})


def offset_of(cursor: str) -> int:
    """Return the place that a cursor of a search names.

    Raises:
        SkillFormatError: If it names none.
    """
    try:
        found = _decode(cursor)["offset"]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = -1
    if not isinstance(found, int) or not 0 <= found <= MAX_FOUND:
        raise SkillFormatError("The cursor does not come from a search. Start again without it.")
    return found


def _encode(place: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def _decode(cursor: str) -> Any:  # noqa: ANN401 - whatever a client sent
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


@dataclass(frozen=True)
class SkillSummary:
    """The part of a skill that an agent's run needs."""

    id: UUID
    name: str
    revision: int
    stamp: int
    encoding: str
    frontmatter: str | None
    """As written; `None` if it is to be generated from the description and tags."""

    description: str | None
    tags: Sequence[str] = ()
    is_pinned: bool = False
    """Whether it is a pinned version, which stays the same when the skill changes."""


class ListingRepository:
    """Reads many skills at a time."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._dialect = session.get_bind().dialect.name

    async def page(
        self, viewer: Viewer, chosen: Filter, limit: int | None, after: Position | None
    ) -> tuple[list[Skill], Position | None]:
        """Return skills without their texts, sorted by name, and where to continue; the first with a name counts."""
        reasons = [None] if chosen.is_everything else sorted(chosen.reasons)
        branches = [self._branch(reason, viewer, chosen, limit, after) for reason in reasons]
        found = union_all(*(select(branch.subquery()) for branch in branches)).subquery() if branches else None
        if found is None:
            return [], None
        order = (found.c.name_key, found.c.rank, found.c.since, found.c.id)
        query = select(Skill).join(found, found.c.id == Skill.id).add_columns(*order).order_by(*order)
        if limit is not None:
            # One more than the page has tells whether another page follows.
            query = query.limit(limit + 1)
        rows = (await self._session.execute(query)).all()
        shown = rows if limit is None else rows[:limit]
        last = Position(*shown[-1][1:]) if shown and len(rows) > len(shown) else None
        return [hide_groups(row[0], viewer) for row in shown], last

    async def by_name(
        self,
        name_key: str,
        viewer: Viewer,
        reasons: Collection[Reason] = EVERYTHING,
        *,
        trusted_owner: str | None = None,
    ) -> UUID | None:
        """Return the id of the skill with that name that `viewer` sees first, for one of `reasons`.

        Whatever the reasons, a public skill of `trusted_owner` counts.
        """
        chosen = Filter(name_key=name_key)
        branches = [self._branch(reason, viewer, chosen, 0, None) for reason in reasons]
        if trusted_owner is not None and Reason.PUBLIC not in reasons:
            trusted = self._branch(Reason.PUBLIC, viewer, chosen, 0, None)
            branches.append(trusted.where(Skill.owner_id == trusted_owner))
        found = union_all(*(select(branch.subquery()) for branch in branches)).subquery()
        query = select(found.c.id).order_by(found.c.rank, found.c.since, found.c.id).limit(1)
        return (await self._session.scalars(query)).first()

    def _branch(
        self, reason: Reason | None, viewer: Viewer, chosen: Filter, limit: int | None, after: Position | None
    ) -> Select[Any]:
        """Return the query for the skills seen for one reason, or for all skills of all owners."""
        rank = -1 if reason is None else viewer.rank(reason)
        query, first = self._seen(reason, viewer, chosen, Skill.id, Skill.name_key, literal(rank).label("rank"))
        query = query.add_columns(first.label("since"))
        if after is not None:
            query = query.where(_behind(rank, first, after))
        if limit is not None:
            query = query.order_by(Skill.name_key, first, Skill.id).limit(limit + 1)
        return query

    def _seen(
        self,
        reason: Reason | None,
        viewer: Viewer,
        chosen: Filter,
        *columns: Any,  # noqa: ANN401 - columns and expressions
    ) -> tuple[Select[Any], ColumnElement[int]]:
        """Return a query for the skills seen for one reason, or for all, and since when each has its name.

        One query per reason, because each has its own index and no database plans well for all of them at once. Skills
        of the viewer's groups are looked up from the groups' side.
        """
        query: Select[Any] = select(*columns).where(*self._conditions(chosen))
        if reason is None:
            return query, type_coerce(Skill.name_since, BigInteger)
        if reason is Reason.GROUP and viewer.groups:
            shares = shares_with(viewer)
            query = query.join(shares, shares.c.skill_id == Skill.id).where(seen_by_group(viewer))
            return query, shares.c.since
        return query.where(seen_for(reason, viewer)), type_coerce(Skill.name_since, BigInteger)

    def _all_seen(
        self,
        viewer: Viewer,
        chosen: Filter,
        *columns: Any,  # noqa: ANN401 - columns and expressions
    ) -> Subquery:
        """Return columns of all skills of a listing as a table."""
        reasons = [None] if chosen.is_everything else sorted(chosen.reasons)
        queries = [self._seen(reason, viewer, chosen, *columns)[0] for reason in reasons]
        return union_all(*(select(query.subquery()) for query in queries)).subquery()

    def _conditions(self, chosen: Filter) -> list[ColumnElement[bool]]:
        moment = chosen.deleted_since
        found: list[ColumnElement[bool]] = [
            Skill.deleted_at.is_(None) if moment is None else Skill.deleted_at >= moment
        ]
        if chosen.name_key is not None:
            found.append(Skill.name_key == chosen.name_key)
        if chosen.is_unapproved:
            found += [and_(Skill.is_public), Skill.is_approved.is_(False)]
        if chosen.skill_ids is not None:
            found.append(one_of_ids(Skill.id, chosen.skill_ids, self._dialect))
        if chosen.tag_keys:
            tagged = select(SkillTag.skill_id).where(SkillTag.tag_key.in_(chosen.tag_keys))
            if chosen.tag_match == "all":
                tagged = tagged.group_by(SkillTag.skill_id).having(func.count() == len(chosen.tag_keys))
            found.append(Skill.id.in_(tagged))
        return found

    def _visible(self, viewer: Viewer, chosen: Filter) -> ColumnElement[bool]:
        seen = [] if chosen.is_everything else [visible(viewer, chosen.reasons)]
        return and_(*self._conditions(chosen), *seen)

    def _mark(self, viewer: Viewer, chosen: Filter) -> Select[Any]:
        """Return the query for the number of skills in a listing and the sum of their stamps.

        Other skills, or the same at another revision, have another mark.
        """
        stamps = self._all_seen(viewer, chosen, Skill.stamp.label("stamp"))
        # Stamps are random, so other skills practically never have the same sum, and one row identifies any number of
        # them.
        total = func.coalesce(func.sum(stamps.c.stamp), 0)
        return select(cast(func.count(), Text) + literal(":") + cast(total, Text)).select_from(stamps)

    async def search(self, viewer: Viewer, chosen: Filter, query: str, limit: int, offset: int) -> Matches:
        """Return the best matches that the database finds, from a place on."""
        skills = select(Skill.id).where(self._visible(viewer, chosen))
        words = telling_words(query)
        if not words:
            return Matches()
        row = (await self._session.execute(counts_of(skills, words, self._dialect))).one()
        counts = dict(zip(words, map(int, row), strict=True))
        if not any(counts.values()):
            # A slip of the pen: the ranker corrects it, if there are not too many skills to look at.
            few = await self._documents(skills.order_by(Skill.name_key, Skill.id).limit(CANDIDATES * 3))
            return Matches(few, is_guess=True)
        matches = best_matches(skills, counts, self._dialect)
        best = await self._documents(matches.limit(CANDIDATES)) if offset < CANDIDATES else []
        start = max(offset, CANDIDATES)
        missing = offset + limit - start
        if missing <= 0 or (best and len(best) < CANDIDATES):
            return Matches(best)
        return Matches(best, list(await self._session.scalars(matches.limit(missing).offset(start))))

    async def _documents(self, matches: Select[Any]) -> list[tuple[UUID, SearchDocument]]:
        """Return what the ranker reads of skills."""
        rows = await self._session.execute(with_texts(matches))
        return [
            (row[0], SearchDocument(row[1], row[2], " ".join(row[3]), row[4].encode("utf-8", "replace")))
            for row in rows
        ]

    async def light(self, ids: Sequence[UUID], viewer: Viewer, chosen: Filter) -> list[Skill]:
        """Return skills without their texts, in the order of the given ids."""
        query = select(Skill).where(one_of_ids(Skill.id, ids, self._dialect), self._visible(viewer, chosen))
        found = {skill.id: skill for skill in await self._session.scalars(query)}
        return [hide_groups(found[given], viewer) for given in ids if given in found]

    async def lengths(self, ids: Sequence[UUID]) -> dict[UUID, tuple[int, int]]:
        """Return how many characters and bytes the instructions of skills have."""
        is_postgres = self._dialect == "postgresql"
        size = func.octet_length(Skill.body) if is_postgres else func.length(cast(Skill.body, LargeBinary))
        query = select(Skill.id, func.length(Skill.body), size).where(one_of_ids(Skill.id, ids, self._dialect))
        return {row[0]: (int(row[1]), int(row[2])) for row in await self._session.execute(query)}

    async def state(self, viewer: Viewer, chosen: Filter, known: int | None) -> tuple[int, str | None]:
        """Return the stamp of the store's last change and, if it is not the known one, a mark of the visible skills.

        One query, whatever the number of skills.
        """
        marks = self._mark(viewer, chosen).scalar_subquery()
        last = select(Counter.stamp).where(Counter.id == 1).scalar_subquery()
        # CASE evaluates the mark only if something changed anywhere, so the usual run costs one row.
        shown = case((last == cast(literal(known), BigInteger), null()), else_=marks)
        row = (await self._session.execute(select(last, shown))).one()
        return int(row[0] or 0), row[1]

    async def heads(self, viewer: Viewer, chosen: Filter, limit: int) -> list[SkillSummary]:
        """Return what an agent's run needs of each visible skill; the first with a name counts."""
        found: list[SkillSummary] = []
        for reason in sorted(chosen.reasons, key=viewer.rank):
            # In the database, so that frontmatter that is too long is not sent at all.
            written = case((func.length(Skill.head) <= MAX_HEAD_LENGTH, Skill.head))
            described = case((written.is_(None), Skill.description))
            columns = (Skill.id, Skill.name, Skill.revision, Skill.stamp, Skill.encoding)
            query, first = self._seen(reason, viewer, chosen, *columns, written, described, Skill.tags)
            query = query.order_by(Skill.name_key, first, Skill.id).limit(limit - len(found))
            found += [SkillSummary(*row) for row in await self._session.execute(query)]
            if len(found) >= limit:
                break
        return found

    async def documents(self, ids: Collection[UUID], viewer: Viewer, chosen: Filter) -> list[Skill]:
        """Return skills with their text and without their files."""
        query = select(Skill).where(one_of_ids(Skill.id, ids, self._dialect), self._visible(viewer, chosen))
        return list(await self._session.scalars(query.options(undefer(Skill.body), undefer(Skill.head))))

    async def visible_ids(self, ids: Collection[UUID], viewer: Viewer) -> set[UUID]:
        """Return the ids of those skills that a viewer sees."""
        query = select(Skill.id).where(one_of_ids(Skill.id, ids, self._dialect), visible(viewer))
        return set(await self._session.scalars(query))

    async def existing(self, ids: Collection[UUID], viewer: Viewer | None) -> set[UUID]:
        """Return the ids of those skills that exist and that `viewer` may read, and lock them against a purge."""
        query = select(Skill.id).where(one_of_ids(Skill.id, ids, self._dialect))
        if viewer is not None:
            query = query.where(readable(viewer))
        # The weakest lock that keeps a row from being purged before its count is written; other writers go on.
        return set(await self._session.scalars(query.with_for_update(read=True, key_share=True)))


def _behind(rank: int, first: ColumnElement[int], after: Position) -> ColumnElement[bool]:
    """Return the condition that a skill comes after a position, among those with the same rank."""
    if rank > after.rank:
        return Skill.name_key >= after.name_key
    if rank < after.rank:
        return Skill.name_key > after.name_key
    same = and_(
        Skill.name_key == after.name_key, or_(first > after.since, and_(first == after.since, Skill.id > after.id))
    )
    return and_(Skill.name_key >= after.name_key, or_(Skill.name_key > after.name_key, same))


def hide_groups(skill: Skill, viewer: Viewer) -> Skill:
    """Return a skill as a viewer may see it: not every reader may know which groups it is shared with."""
    if not sees_groups(skill, viewer):
        # Not a change: what is assigned to an attribute would be written.
        set_committed_value(skill, "shared_with", {})
    return skill
