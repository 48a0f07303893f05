"""Who may do what: 28 calls by 6 roles on 7 kinds of skill, with and without approval, as one table.

The table says for each kind who sees a skill, and for each call what seeing it is good for. Whatever a cell allows is
done, and taken back with its transaction, so that every cell finds the same store.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from store_support import Sessions, by_name, draft_with_files

from deepskills import SkillNotFoundError, SkillsError
from deepskills.store import (
    Skill,
    SkillAuthenticationError,
    SkillCreate,
    SkillFileCreate,
    SkillPermissionError,
    SkillService,
    SkillUpdate,
)
from support.modes import SOAK

pytestmark = pytest.mark.anyio

ROLES: dict[str, str | None] = {
    "owner": "alice",
    "writer": "wendy",
    "reader": "rob",
    "stranger": "steve",
    "operator": "root",
    "nobody": None,
}
GROUPS = {"alice": ["readers", "writers"], "wendy": ["writers"], "rob": ["readers"]}
SHARED: Any = {"writers": "write", "readers": "read"}

ALL = "owner writer reader stranger operator nobody"
SEEN: dict[str, tuple[str, str]] = {
    # kind: who sees it without approval, and with it
    "private": ("owner", "owner"),
    "public": (ALL, "owner"),
    "approved": (ALL, ALL),
    "shared": ("owner writer reader", "owner writer reader"),
    "hidden": ("owner", "owner"),
    "system": (ALL, ALL),
    "deleted": ("", ""),
}
"""Who finds a skill in a listing. By its id an operator sees any that is not deleted."""

WRITERS = {"private": "owner", "public": "owner", "approved": "owner", "shared": "owner writer", "hidden": "owner"}
"""Who may change text and files."""

OWNERS = dict.fromkeys(["private", "public", "approved", "shared", "hidden"], "owner")
"""Who decides about name, readers and owner."""

REMOVERS = {**{kind: f"{who} operator" for kind, who in OWNERS.items()}}
APPROVERS = dict.fromkeys(OWNERS, "operator")
OPERATORS = dict.fromkeys([*OWNERS, "system"], "operator")
HISTORIANS = {**{kind: f"{who} operator" for kind, who in WRITERS.items()}, "system": "operator"}
RESTORERS = {"deleted": "owner operator"}

OK, NO, SIGN_IN, UNSEEN = None, SkillPermissionError, SkillAuthenticationError, SkillNotFoundError
Call = Callable[[SkillService, Skill, str | None], Awaitable[object]]


@dataclass(frozen=True)
class Case:
    """One call: how it is made, what kind of call it is, and who may make it."""

    call: Call
    may: Mapping[str, str] | None = None
    """Who may, by kind of skill; `None` for whoever sees it."""

    is_write: bool = True
    """Whether one has to be signed in."""

    lists: bool = False
    """Whether it gives a collection, in which the skill is or is not."""

    by_id: bool = True
    """Whether the skill is found by its id, as an operator finds any."""


def update(**values: Any) -> Call:
    return lambda service, skill, user: service.update_skill(skill.id, SkillUpdate(**values), user)


CALLS: dict[str, Case] = {
    "list_skills": Case(lambda s, _, u: s.list_skills(u), is_write=False, lists=True, by_id=False),
    "list_skills q": Case(lambda s, k, u: s.list_skills(u, q=k.name), is_write=False, lists=True, by_id=False),
    "list_skills ids": Case(
        lambda s, k, u: s.list_skills(u, skill_ids=[k.id]), is_write=False, lists=True, by_id=False
    ),
    "get_skill_by_name": Case(lambda s, k, u: by_name(s, k.name, u), is_write=False, by_id=False),
    "get_skill": Case(lambda s, k, u: s.get_skill(k.id, u), is_write=False),
    "read_file": Case(lambda s, k, u: s.read_file(k.id, "a.md", u), is_write=False),
    "export_skill": Case(lambda s, k, u: s.export_skill(k.id, u), is_write=False),
    "format_skill_content": Case(lambda s, k, u: s.format_skill_content(k.id, u), is_write=False),
    "list_versions": Case(lambda s, k, u: s.list_versions(k.id, u), HISTORIANS, is_write=False),
    "get_version": Case(lambda s, k, u: s.get_version(k.id, k.number, u), HISTORIANS, is_write=False),
    "diff_versions": Case(lambda s, k, u: s.diff_versions(k.id, k.number, k.number, u), HISTORIANS, is_write=False),
    "usage": Case(lambda s, k, u: s.usage(k.id, None, u), HISTORIANS, is_write=False),
    "update_skill": Case(update(content="changed"), WRITERS),
    "save_skill": Case(lambda s, k, u: s.save_skill(k.id, SkillUpdate(content="x"), {}, u), WRITERS),
    "add_file": Case(lambda s, k, u: s.add_file(k.id, SkillFileCreate(path="n.md", content="x"), u), WRITERS),
    "save_file": Case(lambda s, k, u: s.save_file(k.id, SkillFileCreate(path="a.md", content="y"), u), WRITERS),
    "delete_file": Case(lambda s, k, u: s.delete_file(k.files[0].id, u), WRITERS),
    "restore_version": Case(lambda s, k, u: s.restore_version(k.id, k.number, u), WRITERS),
    "rename": Case(update(name="renamed"), OWNERS),
    "publish": Case(lambda s, k, u: s.update_skill(k.id, SkillUpdate(is_public=not k.is_public), u), OWNERS),
    "share": Case(
        lambda s, k, u: s.update_skill(k.id, SkillUpdate(shared_with={"readers": "write", "writers": "read"}), u),
        OWNERS,
    ),
    "hand_over": Case(lambda s, k, u: s.hand_over(k.id, "zoe", u), REMOVERS),
    "delete_skill": Case(lambda s, k, u: s.delete_skill(k.id, u), REMOVERS),
    "hide_skill": Case(lambda s, k, u: s.hide_skill(k.id, u, hidden=not k.is_hidden), OPERATORS),
    "approve_skill": Case(lambda s, k, u: s.approve_skill(k.id, k.revision, u), APPROVERS),
    "restore_skill": Case(lambda s, k, u: s.restore_skill(k.id, u), RESTORERS),
    "list_changes": Case(lambda s, k, u: s.list_changes(u, skill_id=k.id), lists=True),
    "record_usage": Case(lambda s, k, u: s.record_usage([{"skill_id": str(k.id)}], u), is_write=False),
}


class UndoneSession(AsyncSession):
    """A session that takes back what it did, where another commits."""

    async def commit(self) -> None:
        await self.rollback()


async def make(service: SkillService, kind: str) -> Skill:
    """Make a skill of a kind."""
    name = f"{kind}-skill"
    is_shared = kind in {"shared", "hidden", "deleted"}
    is_public = kind in {"public", "approved", "hidden", "deleted"}
    values: dict[str, Any] = {"shared_with": SHARED if is_shared else {}, "is_public": is_public}
    data: SkillCreate = draft_with_files(name, {"a.md": "x"}, **values)
    is_system = kind == "system"
    made = await service.create_skill(data, None if is_system else "alice", system=is_system)
    if kind in {"approved", "hidden"}:
        await service.approve_skill(made.id, made.revision, system=True)
    if kind == "hidden":
        await service.hide_skill(made.id, system=True)
    found = await service.get_skill(made.id, system=True)
    if kind == "deleted":
        await service.delete_skill(made.id, "alice")
    return found


def expected(call: str, case: Case, role: str, kind: str, *, approval: bool) -> object:  # noqa: PLR0911 - rows of a table
    """Return what the table says about a cell: an error, or whether a collection has the skill, or `OK`."""
    sees = role in SEEN[kind][approval].split()
    sees_by_id = sees or (role == "operator" and kind != "deleted")
    if case.is_write and role == "nobody":
        return SIGN_IN
    if call == "list_changes":
        return role == "operator" or (role == "owner" and kind != "system")
    if call == "record_usage":
        return sees_by_id
    if case.lists:
        return sees
    may = role in (case.may or {}).get(kind, "").split() if case.may is not None else sees_by_id
    if call == "restore_skill":
        return OK if may else UNSEEN
    if not (sees_by_id if case.by_id else sees):
        return UNSEEN
    return OK if may or case.may is None else NO


async def outcome(call: str, case: Case, service: SkillService, skill: Skill, user: str | None) -> object:
    """Return what a call did, in the words of the table."""
    try:
        result = await case.call(service, skill, user)
    except SkillsError as error:
        return type(error)
    if call == "record_usage":
        return bool(result)
    if case.lists:
        found: Any = result
        return any(
            getattr(item, "skill_id", item.id if isinstance(item, Skill) else None) == skill.id for item in found
        )
    return OK


async def test_every_cell(sessions: Sessions, kind: str) -> None:
    """All 2,352 cells are as the table says; on PostgreSQL the half with approval, which asks more of the database."""
    halves = (False, True) if kind == "sqlite" or SOAK else (True,)
    wrong, cells = [], 0
    undone = async_sessionmaker(sessions.kw["bind"], class_=UndoneSession)
    for approval in halves:
        options: Any = {
            "groups_of": lambda user: GROUPS.get(user, []),
            "is_operator": lambda user: user == "root",
            "approval": approval,
        }
        async with sessions() as session:
            service = SkillService(session, **options)
            if not cells:
                skills = {what: await make(service, what) for what in SEEN}
        async with undone() as session:
            service = SkillService(session, **options)
            for call, case in CALLS.items():
                for what, skill in skills.items():
                    for role, user in ROLES.items():
                        cells += 1
                        said = expected(call, case, role, what, approval=approval)
                        done = await outcome(call, case, service, skill, user)
                        if done is not said:
                            wrong.append((call, role, what, approval, said, done))
    assert cells == 1_176 * len(halves)
    assert wrong == []
