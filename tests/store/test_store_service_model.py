"""The service against a model of it: whatever users do, visibility, versions, revisions and the log agree."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import async_sessionmaker
from store_support import Sessions, draft, new_engine, on_postgres, pooled_sessions, service_on

from deepskills import SkillNotFoundError
from deepskills.store import SkillConflictError, SkillPermissionError, SkillService, SkillUpdate
from support import SOAK, scaled

USERS = ("ann", "ben", "cat")
GROUPS = {"ann": {"red"}, "ben": {"red", "blue"}, "cat": set[str]()}
NAMES = ("one", "two", "three")

Version = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass
class Known:
    """What the model knows of a skill."""

    owner: str
    name: str
    content: str
    files: dict[str, str] = field(default_factory=dict)
    public: bool = False
    shared: dict[str, str] = field(default_factory=dict)
    hidden: bool = False
    deleted: bool = False
    revision: int = 0
    versions: dict[int, Version] = field(default_factory=dict)

    def sees(self, user: str) -> bool:
        others = self.public or bool(GROUPS[user] & self.shared.keys())
        return not self.deleted and (user == self.owner or (others and not self.hidden))

    def writes(self, user: str) -> bool:
        return user == self.owner or any(self.shared.get(group) == "write" for group in GROUPS[user])

    def note(self, revision: int) -> None:
        assert revision > self.revision
        self.revision = revision
        self.versions[revision] = (self.name, self.content, tuple(sorted(self.files.items())))


class Model:
    """Does to the service and to the model the same, and compares."""

    def __init__(self, service: SkillService, salt: str) -> None:
        self.service = service
        self.salt = salt
        self.skills: dict[UUID, Known] = {}
        self.changes = 0

    def user(self, name: str) -> str:
        return f"{name}-{self.salt}"

    def is_taken(self, owner: str, name: str, other: UUID | None = None) -> bool:
        return any(
            known.owner == owner and known.name == name and not known.deleted and skill_id != other
            for skill_id, known in self.skills.items()
        )

    def refusal(self, known: Known, user: str, *, owns: bool = False) -> type[Exception] | None:
        if not known.sees(user):
            return SkillNotFoundError
        allowed = known.owner == user if owns else known.writes(user)
        return None if allowed else SkillPermissionError

    async def create(self, user: str, name: str) -> None:
        call = self.service.create_skill(draft(name), self.user(user))
        if self.is_taken(user, name):
            with pytest.raises(SkillConflictError):
                await call
            return
        made = await call
        known = self.skills[made.id] = Known(user, name, f"# {name}\n")
        known.note(made.revision)
        self.changes += 1

    async def save(self, user: str, skill_id: UUID, content: str) -> None:
        known = self.skills[skill_id]
        data = SkillUpdate(content=content)
        refusal = self.refusal(known, user)
        call = self.service.save_skill(skill_id, data, {"a.md": content}, self.user(user))
        if refusal is not None:
            with pytest.raises(refusal):
                await call
            return
        self.took(known, await call, content=content, files={"a.md": content})

    async def rename(self, user: str, skill_id: UUID, name: str) -> None:
        known = self.skills[skill_id]
        # A name is its owner's: whoever else may write keeps it.
        refusal = self.refusal(known, user) or self.refusal(known, user, owns=name != known.name)
        if refusal is None and self.is_taken(known.owner, name, skill_id):
            refusal = SkillConflictError
        call = self.service.update_skill(skill_id, SkillUpdate(name=name), self.user(user))
        if refusal is not None:
            with pytest.raises(refusal):
                await call
            return
        self.took(known, await call, name=name)

    async def show(self, user: str, skill_id: UUID, public: bool, group: str, right: str) -> None:  # noqa: FBT001 - drawn
        known = self.skills[skill_id]
        shared: Any = {group: right} if right else {}
        changes = known.public != public or known.shared != shared
        refusal = self.refusal(known, user) or (self.refusal(known, user, owns=True) if changes else None)
        if refusal is None and shared.keys() - known.shared.keys() - GROUPS[user]:
            refusal = SkillPermissionError  # one shares with groups of one's own
        update = SkillUpdate(is_public=public, shared_with={self.user(g): r for g, r in shared.items()})
        call = self.service.update_skill(skill_id, update, self.user(user))
        if refusal is not None:
            with pytest.raises(refusal):
                await call
            return
        self.took(known, await call, public=public, shared=shared)

    async def hide(self, skill_id: UUID, hidden: bool) -> None:  # noqa: FBT001 - drawn
        known = self.skills[skill_id]
        call = self.service.hide_skill(skill_id, hidden=hidden, system=True)
        if known.deleted:
            with pytest.raises(SkillNotFoundError):
                await call
            return
        self.took(known, await call, hidden=hidden)

    async def delete(self, user: str, skill_id: UUID) -> None:
        known = self.skills[skill_id]
        refusal = self.refusal(known, user, owns=True)
        call = self.service.delete_skill(skill_id, self.user(user))
        if refusal is not None:
            with pytest.raises(refusal):
                await call
            return
        await call
        known.deleted = True
        known.note(
            (await self.service.list_changes(self.user(known.owner), skill_id=skill_id, limit=1000))[-1].revision
        )
        self.changes += 1

    async def restore(self, user: str, skill_id: UUID) -> None:
        known = self.skills[skill_id]
        call = self.service.restore_skill(skill_id, self.user(user))
        if not known.deleted or known.owner != user:
            with pytest.raises(SkillNotFoundError):
                await call
        elif self.is_taken(known.owner, known.name):
            with pytest.raises(SkillConflictError):
                await call
        else:
            self.took(known, await call, deleted=False)

    def took(self, known: Known, skill: Any, **values: Any) -> None:
        """Note what a skill has now; where that is what it had, nothing may have changed."""
        changes = any(getattr(known, key) != value for key, value in values.items())
        for key, value in values.items():
            setattr(known, key, value)
        if changes:
            known.note(skill.revision)
            self.changes += 1
        assert skill.revision == known.revision

    async def compare(self) -> None:
        for user in USERS:
            listed = await self.service.list_skills(self.user(user), skill_ids=list(self.skills))
            seen = {skill.id: (skill.name, skill.revision) for skill in listed}
            assert seen == {i: (k.name, k.revision) for i, k in self.skills.items() if k.sees(user)}, user

    async def compare_history(self) -> None:
        logged = 0
        for skill_id, known in self.skills.items():
            log = await self.service.list_changes(self.user(known.owner), skill_id=skill_id, limit=1000)
            assert [change.revision for change in log] == sorted(known.versions)
            logged += len(log)
            for revision, version in known.versions.items() if not known.deleted else ():
                got = await self.service.get_version(skill_id, revision, self.user(known.owner))
                files = tuple(sorted((file.path, str(file.content)) for file in got.files))
                assert (got.name, got.content, files) == version
        assert logged == self.changes


async def play(url: str, data: st.DataObject) -> None:
    salt = uuid4().hex[:8]

    def groups_of(user: str) -> list[str]:
        return [f"{group}-{salt}" for group in GROUPS[user.partition("-")[0]]]

    async with pooled_sessions(url) as sessions, sessions() as session:
        model = Model(SkillService(session, groups_of=groups_of), salt)
        for name in NAMES[:2]:
            await model.create("ann", name)
        users, flags = st.sampled_from(USERS), st.booleans()
        for _ in range(data.draw(st.integers(8, 25))):
            # In the order of creation: ids are random, and Hypothesis has to be able to play the same again.
            skill_id = data.draw(st.sampled_from(list(model.skills)))
            user, name, flag = data.draw(users), data.draw(st.sampled_from(NAMES)), data.draw(flags)
            action = data.draw(st.sampled_from(["create", "save", "rename", "show", "hide", "delete", "restore"]))
            if action == "create":
                await model.create(user, name)
            elif action == "save":
                await model.save(user, skill_id, data.draw(st.sampled_from(["x", "y"])))
            elif action == "rename":
                await model.rename(user, skill_id, name)
            elif action == "show":
                group, right = (
                    data.draw(st.sampled_from(["red", "blue"])),
                    data.draw(st.sampled_from(["", "read", "write"])),
                )
                await model.show(user, skill_id, flag, group, right)
            elif action == "hide":
                await model.hide(skill_id, flag)
            elif action == "delete":
                await model.delete(user, skill_id)
            else:
                await model.restore(user, skill_id)
            await model.compare()
        await model.compare_history()


@settings(
    max_examples=scaled(3, 50),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    # The short form plays the same each time; the long form looks for what is not known yet.
    derandomize=not SOAK,
)
@given(data=st.data())
def test_the_service_does_as_the_model(url: str, data: st.DataObject) -> None:
    """Whatever several users do to skills, each sees what they may, and nothing of the past is lost or invented."""
    asyncio.run(play(url, data))


WORKERS = """
import asyncio, os, random, sys
from uuid import UUID
from sqlalchemy.ext.asyncio import async_sessionmaker
from deepskills.store import SkillService, SkillUpdate, SkillFileCreate, create_store_engine
from deepskills import SkillsError

async def main(url, seed, ids):
    engine = create_store_engine(url, statement_timeout=60)
    dice = random.Random(int(seed))
    for _ in range(12):
        skill_id = UUID(dice.choice(ids))
        async with async_sessionmaker(engine)() as session:
            service = SkillService(session)
            try:
                match dice.randrange(4):
                    case 0: await service.update_skill(skill_id, SkillUpdate(content=f"{seed} {dice.random()}"), "ann")
                    case 1: await service.save_skill(skill_id, SkillUpdate(), {f"{dice.randrange(3)}.md": seed}, "ann")
                    case 2: await service.delete_skill(skill_id, "ann")
                    case 3: await service.restore_skill(skill_id, "ann")
            except SkillsError:
                pass
    await engine.dispose()

def start(seed):
    child = os.fork()
    if child == 0:
        asyncio.run(main(sys.argv[1], seed, sys.argv[2:]))
        sys.exit()
    return child

for child in [start(str(number)) for number in range(4)]:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@on_postgres
def test_processes_at_once(any_sessions: Sessions, url: str) -> None:
    """Four processes that write the same skills leave one order of changes, and every version whole."""

    async def create() -> list[UUID]:
        async with service_on(any_sessions) as service:
            return [(await service.create_skill(draft(f"s{number}"), "ann")).id for number in range(3)]

    ids = asyncio.run(create())
    command = [sys.executable, "-c", WORKERS, url, *map(str, ids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["0"] * 4, done.stderr

    async def check() -> None:
        async with service_on(async_sessionmaker(new_engine(url))) as service:
            log = await service.list_changes("ann", limit=1000)
            assert [c.at for c in log if c.skill_id == ids[0]] == sorted(c.at for c in log if c.skill_id == ids[0])
            assert len({c.revision for c in log}) == len(log)
            for skill_id in ids:
                mine = [change for change in log if change.skill_id == skill_id]
                assert mine[0].action == "created"
                if mine[-1].action == "deleted":
                    await service.restore_skill(skill_id, "ann")
                else:
                    assert (await service.get_skill(skill_id, "ann")).revision == mine[-1].revision
                for change in mine:
                    version = await service.get_version(skill_id, change.revision, "ann")
                    assert len(version.files) <= 1
                    if change.action == "saved":
                        assert len(version.files) == 1

    asyncio.run(check())
