"""Who may see which skills, as conditions of queries."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    String,
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

from deepskills.store._models import Skill, SkillShare


class Reason(IntEnum):
    """Why somebody sees a skill; of skills of one name the first reason wins."""

    OWN = 0
    GROUP = 1
    SYSTEM = 2
    PUBLIC = 3


EVERYTHING = frozenset(Reason)
"""All that a user may see."""

PERSONAL = frozenset({Reason.OWN, Reason.GROUP})
"""What is a user's own or shared with them."""

TRUSTED = frozenset({Reason.OWN, Reason.GROUP, Reason.SYSTEM})
"""All but what strangers publish."""


@dataclass(frozen=True)
class Viewer:
    """Who looks: a user or nobody, with their groups."""

    user: str | None = None
    groups: frozenset[str] = frozenset()
    is_operator: bool = False
    """Whether they may see and remove any skill."""

    is_system: bool = False
    """Whether it is the operator's code, which owns the system's skills."""

    needs_approval: bool = False
    """Whether public skills of others show only when approved."""


def seen_for(reason: Reason, viewer: Viewer) -> ColumnElement[bool]:
    """Return the condition that `viewer` sees a skill for `reason` and for no better one."""
    shown = Skill.is_hidden.is_(False)
    if reason is Reason.OWN:
        return false() if viewer.user is None else Skill.owner_id == viewer.user
    if reason is Reason.SYSTEM:
        return and_(Skill.owner_id.is_(None), shown)
    others = Skill.owner_id.is_not(None) if viewer.user is None else Skill.owner_id != viewer.user
    if reason is Reason.GROUP:
        return and_(shared_with(viewer), others, shown)
    approved = [Skill.is_approved.is_(True)] if viewer.needs_approval else []
    # `is_public` alone, not compared, is how the index over public skills says it.
    return and_(Skill.is_public, others, shown, not_(shared_with(viewer)), *approved)


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
    """Return since when a skill has had its name, as those see it who see it for `reason`."""
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
