"""Decides who sees which skills, as conditions of queries.

This is the rule of `rules.py` for whole tables: a skill is seen for exactly one reason, the best that applies (own,
group, system, public). Conditions of different reasons never overlap, so a listing can be a union of one query per
reason, each on its own index.
"""

import json
from collections.abc import Collection
from typing import Any
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
    column,
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
    # Just `is_public`, without a comparison: the condition must read as in the index over public skills.
    return and_(Skill.is_public, others, shown, not_(shared_with(viewer)), *approved)


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


def since(reason: Reason, viewer: Viewer) -> ColumnElement[int]:
    """Return the revision from which a skill has had its name, for viewers who see it for `reason`."""
    if reason is Reason.GROUP:
        query = select(func.min(SkillShare.since)).where(
            SkillShare.skill_id == Skill.id, SkillShare.group_id.in_(sorted(viewer.groups))
        )
        return query.scalar_subquery()
    return type_coerce(Skill.name_since, BigInteger)


def one_of_ids(column: InstrumentedAttribute[UUID], ids: Collection[UUID], dialect: str) -> ColumnElement[bool]:
    """Return the condition that a column has one of any number of ids, as one parameter: databases limit those."""
    if dialect == "postgresql":
        return column == any_(bindparam(None, list(ids), ARRAY(Uuid())))
    # SQLite keeps ids as hexadecimal text.
    listed = func.json_each(json.dumps([given.hex for given in ids])).table_valued("value")
    return type_coerce(column, String).in_(select(listed.c.value))


def pairs_of_keys(pairs: Collection[tuple[UUID, int]], dialect: str) -> Any:  # noqa: ANN401 - a table
    """Return any number of pairs of an id and a revision as a table with the columns `id` and `since`."""
    if dialect == "postgresql":
        ids = bindparam(None, [given for given, _ in pairs], ARRAY(Uuid()))
        revisions = bindparam(None, [since_ for _, since_ in pairs], ARRAY(BigInteger()))
        keys = func.unnest(ids, revisions)
        return keys.table_valued(column("id", Uuid()), column("since", BigInteger()), name="keys").render_derived()
    listed = func.json_each(json.dumps([[given.hex, since_] for given, since_ in pairs])).table_valued("value")
    columns = (
        func.json_extract(listed.c.value, "$[0]", type_=String()).label("id"),
        func.json_extract(listed.c.value, "$[1]", type_=BigInteger()).label("since"),
    )
    return select(*columns).subquery("keys")
