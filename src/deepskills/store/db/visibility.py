"""Who sees which skills, as conditions of queries.

The same rule as in `rules.py`, for whole tables: a skill is seen for exactly one reason, the best that applies (own,
group, system, public). Conditions of different reasons never overlap, so that a listing can be a union of one query per
reason, each on its own index.
"""

import json
from collections.abc import Collection
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    String,
    Subquery,
    Uuid,
    and_,
    any_,
    bindparam,
    false,
    func,
    not_,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute

from deepskills.store.db.models import Skill, SkillShare
from deepskills.store.rules import EVERYTHING, Reason, Viewer


def seen_for(reason: Reason, viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that `viewer` sees a skill for `reason` and for no better one."""
    shown = Skill.is_hidden.is_(False)
    if reason is Reason.OWN:
        return false() if viewer.user is None else Skill.owner_id == viewer.user
    if reason is Reason.SYSTEM:
        return and_(Skill.owner_id.is_(None), shown)
    others = Skill.owner_id.is_not(None) if viewer.user is None else Skill.owner_id != viewer.user
    if reason is Reason.GROUP:
        return and_(shared_with(viewer), seen_by_group(viewer))
    approved = [Skill.is_approved.is_(True)] if viewer.needs_approval else []
    # `is_public` alone, not compared, is how the index over public skills says it.
    return and_(Skill.is_public, others, shown, not_(shared_with(viewer)), *approved)


def seen_by_group(viewer: Viewer) -> ColumnElement[bool]:
    """Return what must hold besides the skill being shared with one of the viewer's groups.

    A system skill is seen by all, as the system's; being shared gives it no other place.
    """
    return and_(Skill.owner_id.is_not(None), Skill.owner_id != (viewer.user or ""), Skill.is_hidden.is_(False))


def shares_with(viewer: Viewer) -> Subquery:
    """Return the skills that are shared with the viewer's groups, each with since when one of them has had it."""
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


def since(reason: Reason, viewer: Viewer) -> ColumnElement[int]:
    """Return since when a skill has had its name, for those who see it for `reason`."""
    if reason is Reason.GROUP:
        query = select(func.min(SkillShare.since)).where(
            SkillShare.skill_id == Skill.id, SkillShare.group_id.in_(sorted(viewer.groups))
        )
        return query.scalar_subquery()
    return type_coerce(Skill.name_since, BigInteger)


def one_of_ids(column: InstrumentedAttribute[UUID], ids: Collection[UUID], dialect: str) -> ColumnElement[bool]:
    """Return the condition that a column has one of any number of ids, in one parameter: databases bound those."""
    if dialect == "postgresql":
        return column == any_(bindparam(None, list(ids), ARRAY(Uuid())))
    # SQLite keeps ids as hexadecimal text.
    listed = func.json_each(json.dumps([given.hex for given in ids])).table_valued("value")
    return type_coerce(column, String).in_(select(listed.c.value))
