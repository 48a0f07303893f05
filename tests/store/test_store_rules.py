"""Who may do what: every operation, every kind of skill, every kind of user, as one table."""

from collections.abc import Awaitable, Callable
from typing import Literal
from uuid import UUID, uuid4

import pytest
from store_support import Sessions, by_name, draft_with_files, service_on

from deepskills import SkillNotFoundError, SkillsError
from deepskills.store import (
    Skill,
    SkillAuthenticationError,
    SkillFile,
    SkillFileCreate,
    SkillPermissionError,
    SkillService,
    SkillUpdate,
)

pytestmark = pytest.mark.anyio

Kind = Literal["private", "public", "system"]
KINDS: tuple[Kind, ...] = ("private", "public", "system")
OWNER, OTHER = "alice", "bob"

USERS: dict[str, tuple[str | None, bool]] = {
    "owner": (OWNER, False),
    "other": (OTHER, False),
    "anonymous": (None, False),
    "operator": (None, True),
}

OK = None
HIDDEN, FORBIDDEN, SIGN_IN = SkillNotFoundError, SkillPermissionError, SkillAuthenticationError

READS: dict[tuple[str, Kind], type[Exception] | None] = {
    ("owner", "private"): OK,
    ("owner", "public"): OK,
    ("owner", "system"): OK,
    ("other", "private"): HIDDEN,
    ("other", "public"): OK,
    ("other", "system"): OK,
    ("anonymous", "private"): HIDDEN,
    ("anonymous", "public"): OK,
    ("anonymous", "system"): OK,
}
WRITES: dict[tuple[str, Kind], type[Exception] | None] = {
    ("owner", "private"): OK,
    ("owner", "public"): OK,
    ("owner", "system"): FORBIDDEN,
    ("other", "private"): HIDDEN,
    ("other", "public"): FORBIDDEN,
    ("other", "system"): FORBIDDEN,
    ("anonymous", "private"): SIGN_IN,
    ("anonymous", "public"): SIGN_IN,
    ("anonymous", "system"): SIGN_IN,
    ("operator", "private"): FORBIDDEN,
    ("operator", "public"): FORBIDDEN,
    ("operator", "system"): OK,
}
REMOVES = {**WRITES, ("operator", "private"): OK, ("operator", "public"): OK}
"""Who may delete: an operator any skill."""

Read = Callable[[SkillService, Skill, str | None], Awaitable[object]]
READING: dict[str, Read] = {
    "get": lambda service, skill, user: service.get_skill(skill.id, user),
    "by name": lambda service, skill, user: by_name(service, skill.name, user),
    "export": lambda service, skill, user: service.export_skill(skill.id, user),
    "format": lambda service, skill, user: service.format_skill_content(skill.id, user),
}

Write = Callable[[SkillService, Skill, str | None, bool], Awaitable[object]]
WRITING: dict[str, Write] = {
    "update": lambda service, skill, user, system: service.update_skill(
        skill.id, SkillUpdate(description="Changed."), user, system=system
    ),
    "publish": lambda service, skill, user, system: service.update_skill(
        skill.id, SkillUpdate(is_public=True), user, system=system
    ),
    "delete": lambda service, skill, user, system: service.delete_skill(skill.id, user, system=system),
    "add file": lambda service, skill, user, system: service.add_file(
        skill.id, SkillFileCreate(path="assets/new", content="x"), user, system=system
    ),
    "delete file": lambda service, skill, user, system: service.delete_file(skill.files[0].id, user, system=system),
}


async def make(service: SkillService, kind: Kind) -> Skill:
    data = draft_with_files(f"{kind}-skill", {"assets/old": "x"}, is_public=kind == "public")
    return await service.create_skill(data, OWNER, system=kind == "system")


async def refusal_of(work: Awaitable[object]) -> type[Exception] | None:
    """Return the kind of error that refuses a piece of work, or `OK`."""
    try:
        await work
    except SkillsError as error:
        return type(error)
    return OK


async def snapshot(service: SkillService, skill: Skill) -> object:
    """Return all of a skill that a writer could have changed."""
    found = await service.get_skill(skill.id, OWNER)
    return found.description, found.is_public, found.updated_at, [(file.id, file.path) for file in found.files]


async def test_reading(sessions: Sessions) -> None:
    """What one may see is read by every operation, and what one may not does not exist for them."""
    async with service_on(sessions) as service:
        skills = {kind: await make(service, kind) for kind in KINDS}
        for operation, read in READING.items():
            for (who, kind), expected in READS.items():
                work = read(service, skills[kind], USERS[who][0])
                if expected is OK:
                    assert await work, (operation, who, kind)
                else:
                    assert await refusal_of(work) is expected, (operation, who, kind)


async def test_writing(sessions: Sessions) -> None:
    """Writing is the owner's; whoever is refused has changed nothing."""
    async with service_on(sessions) as service:
        for operation, write in WRITING.items():
            cases = REMOVES if operation == "delete" else WRITES
            skills = {kind: await make(service, kind) for kind in KINDS}
            for (who, kind), expected in cases.items():
                if expected is not OK:
                    before = await snapshot(service, skills[kind])
                    refusal = await refusal_of(write(service, skills[kind], *USERS[who]))
                    assert refusal is expected, (operation, who, kind)
                    assert await snapshot(service, skills[kind]) == before, (operation, who, kind)
            for kind, skill in skills.items():
                await service.delete_skill(skill.id, OWNER, system=kind == "system")
            for (who, kind), expected in cases.items():
                if expected is OK:
                    skill = await make(service, kind)
                    assert await refusal_of(write(service, skill, *USERS[who])) is OK, (operation, who, kind)
                    if operation != "delete":
                        await service.delete_skill(skill.id, OWNER, system=kind == "system")


async def test_what_is_hidden_answers_as_what_is_not_there(sessions: Sessions) -> None:
    """A private skill of another and one that never was give the same error in the same words."""

    def words(error: BaseException, skill: Skill) -> str:
        return str(error).replace(str(skill.id), "ID").replace(str(skill.files[0].id), "ID")

    async with service_on(sessions) as service:
        hidden = await make(service, "private")
        absent = Skill(id=uuid4(), name="absent", files=[SkillFile(id=uuid4(), path="assets/old", content="x")])
        for operation, write in WRITING.items():
            with pytest.raises(SkillNotFoundError) as of_hidden:
                await write(service, hidden, *USERS["other"])
            with pytest.raises(SkillNotFoundError) as of_absent:
                await write(service, absent, *USERS["other"])
            assert words(of_hidden.value, hidden) == words(of_absent.value, absent), operation


LISTINGS: list[tuple[str | None, bool, set[str]]] = [
    (OWNER, True, {"private-skill", "public-skill", "system-skill", "bobs-public"}),
    (OWNER, False, {"private-skill", "public-skill", "system-skill"}),
    (OTHER, True, {"public-skill", "system-skill", "bobs-private", "bobs-public"}),
    (OTHER, False, {"bobs-private", "bobs-public", "system-skill"}),
    ("carol", True, {"public-skill", "system-skill", "bobs-public"}),
    ("carol", False, {"system-skill"}),
    (None, True, {"public-skill", "system-skill", "bobs-public"}),
    (None, False, {"system-skill"}),
]


async def test_listing(sessions: Sessions) -> None:
    """A listing shows what one may see and nothing else, filtered by tags or by ids or not."""
    async with service_on(sessions) as service:
        for kind in KINDS:
            await make(service, kind)
        for name, is_public in (("bobs-private", False), ("bobs-public", True)):
            await service.create_skill(draft_with_files(name, {}, is_public=is_public, tags=["t"]), OTHER)
        everything = await service.list_skills(OWNER) + await service.list_skills(OTHER)
        ids = {skill.id for skill in everything}
        for user, include_public, expected in LISTINGS:
            case = (user, include_public)
            listed = await service.list_skills(user, include_public)
            assert {skill.name for skill in listed} == expected, case
            chosen = await service.list_skills(user, include_public, skill_ids=ids)
            assert {skill.name for skill in chosen} == expected, case
            tagged = await service.list_skills(user, include_public, ["t"])
            assert {skill.name for skill in tagged} == {name for name in expected if name.startswith("bobs")}, case


async def test_creating(sessions: Sessions) -> None:
    """A user creates for themselves, nobody creates nothing, and only the operator's code creates for the system."""
    async with service_on(sessions) as service:
        mine = await service.create_skill(draft_with_files("mine", {}), OWNER)
        system = await service.create_skill(draft_with_files("ours", {}), None, system=True)
        assert (mine.owner_id, system.owner_id) == (OWNER, None)
        with pytest.raises(SkillAuthenticationError, match="Sign in"):
            await service.create_skill(draft_with_files("nobodys", {}), None)
        assert {skill.name for skill in await service.list_skills(OWNER)} == {"mine", "ours"}


async def test_a_skill_made_private_is_gone_for_others(sessions: Sessions) -> None:
    """Permissions follow the skill as it is now."""
    async with service_on(sessions) as service:
        skill = await make(service, "public")
        assert await service.get_skill(skill.id, OTHER)
        await service.update_skill(skill.id, SkillUpdate(is_public=False), OWNER)
        with pytest.raises(SkillNotFoundError):
            await service.get_skill(skill.id, OTHER)
        assert isinstance(skill.id, UUID)
