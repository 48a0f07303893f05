"""Who sees what: names that cannot be taken over, groups, owners, operators, approval, quotas."""

from typing import Any

import pytest
from store_support import Sessions, by_name, draft, draft_with_files

from deepskills import SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills.store import (
    SkillConflictError,
    SkillFileCreate,
    SkillPermissionError,
    SkillQuotaError,
    SkillService,
    SkillStaleError,
    SkillTooLargeError,
    SkillUpdate,
    StoreLimits,
)

pytestmark = pytest.mark.anyio

GROUPS = {"alice": ["team", "staff"], "bob": ["team"], "carol": ["team", "staff"], "dave": ["staff"]}


def groups_of(user: str) -> list[str]:
    return GROUPS.get(user, [])


async def agroups_of(user: str) -> list[str]:
    return groups_of(user)


def is_operator(user: str) -> bool:
    return user == "root"


async def names(service: SkillService, user: str | None, **filters: Any) -> list[str]:
    return [skill.name for skill in await service.list_skills(user, **filters)]


async def test_nobody_takes_over_a_name(sessions: Sessions) -> None:
    """Of public skills of a name the first that others could see under it wins: not by renaming or publishing later."""
    async with sessions() as session:
        service = SkillService(session)
        renamed = await service.create_skill(draft("older", is_public=True), "mallory")
        published = await service.create_skill(draft("deploy"), "trudy")
        deleted = await service.create_skill(draft("deploy", is_public=True), "oscar")
        await service.delete_skill(deleted.id, "oscar")
        honest = await service.create_skill(draft("deploy", is_public=True), "alice")
        await service.update_skill(renamed.id, SkillUpdate(name="deploy"), "mallory")
        await service.update_skill(published.id, SkillUpdate(is_public=True), "trudy")
        await service.restore_skill(deleted.id, "oscar")
        assert (await by_name(service, "deploy", "bob")).id == honest.id
        assert (await service.list_skills("bob"))[0].id == honest.id
        await service.update_skill(honest.id, SkillUpdate(description="Edited."), "alice")
        assert (await by_name(service, "deploy", None)).id == honest.id
        await service.update_skill(honest.id, SkillUpdate(name="release"), "alice")
        await service.update_skill(honest.id, SkillUpdate(name="deploy"), "alice")
        assert (await by_name(service, "deploy", "bob")).id == renamed.id


async def test_the_order_of_reasons(sessions: Sessions) -> None:
    """A user's own skill of a name comes first, then the system's, their groups', and public ones."""
    async with sessions() as session:
        service = SkillService(session, groups_of=groups_of)
        public = await service.create_skill(draft("same", is_public=True), "zoe")
        system = await service.create_skill(draft("same"), None, system=True)
        group = await service.create_skill(draft("same", shared_with={"team": "read"}), "alice")
        own = await service.create_skill(draft("same"), "bob")
        order = [own.id, system.id, group.id, public.id]
        assert [skill.id for skill in await service.list_skills("bob")] == order
        for left in range(4):
            assert (await by_name(service, "SAME", "bob")).id == order[left]
            owner = (await service.get_skill(order[left], "bob")).owner_id
            await service.delete_skill(order[left], owner, system=owner is None)


@pytest.mark.parametrize("given", [groups_of, agroups_of])
async def test_groups(sessions: Sessions, given: Any) -> None:
    """Members read or write what is shared with their groups; who sees it stays the owner's to decide."""
    async with sessions() as session:
        service = SkillService(session, groups_of=given)
        shared = {"team": "read", "staff": "write"}
        made = await service.create_skill(draft_with_files("report", {"a.md": "x"}, shared_with=shared), "alice")
        assert (await service.get_skill(made.id, "alice")).shared_with == shared
        for user, sees in (("bob", True), ("carol", True), ("dave", True), ("eve", False), (None, False)):
            assert await names(service, user) == (["report"] if sees else [])
            assert await names(service, user, include_public=False) == (["report"] if sees else [])
        with pytest.raises(SkillPermissionError):
            await service.update_skill(made.id, SkillUpdate(content="x"), "bob")
        with pytest.raises(SkillPermissionError):
            await service.delete_file(made.files[0].id, "bob")
        with pytest.raises(SkillNotFoundError):
            await service.update_skill(made.id, SkillUpdate(content="x"), "eve")
        await service.update_skill(made.id, SkillUpdate(content="by dave"), "dave")
        await service.save_skill(made.id, SkillUpdate(content="again"), {"b.md": "y"}, "carol")
        assert [v.user_id for v in await service.list_versions(made.id, "dave")] == ["carol", "dave", "alice"]
        for call in (
            service.update_skill(made.id, SkillUpdate(is_public=True), "dave"),
            service.update_skill(made.id, SkillUpdate(shared_with={"staff": "write"}), "dave"),
            service.save_skill(made.id, draft("report", is_public=True), {}, "dave"),
            service.delete_skill(made.id, "dave"),
            service.hand_over(made.id, "dave", "dave"),
        ):
            with pytest.raises(SkillPermissionError):
                await call
        await service.update_skill(made.id, SkillUpdate(shared_with={"staff": "read"}), "alice")
        with pytest.raises(SkillPermissionError):
            await service.update_skill(made.id, SkillUpdate(content="x"), "dave")
        assert await names(service, "bob") == []


async def test_sharing_with_groups_of_ones_own(sessions: Sessions) -> None:
    """Where the store says so, users share only with groups that they are in; operators with any."""
    async with sessions() as session:
        service = SkillService(
            session, groups_of=groups_of, is_operator=is_operator, limits=StoreLimits(own_groups_only=True)
        )
        made = await service.create_skill(draft("mine", shared_with={"team": "read"}), "bob")
        for call in (
            service.create_skill(draft("trap", shared_with={"staff": "read"}), "bob"),
            service.update_skill(made.id, SkillUpdate(shared_with={"team": "read", "staff": "read"}), "bob"),
            service.save_skill(made.id, draft("mine", shared_with={"staff": "write"}), {}, "bob"),
        ):
            with pytest.raises(SkillPermissionError, match="not in the group `staff`"):
                await call
        await service.update_skill(made.id, SkillUpdate(shared_with={"team": "write"}), "bob")
        assert await names(service, "dave") == []
        await service.create_skill(draft("ours", shared_with={"staff": "read"}), "root")
        assert await names(service, "dave") == ["ours"]


async def test_what_is_no_group(sessions: Sessions) -> None:
    """Groups that cannot be kept, or a function that gives none, are errors, not guesses."""
    async with sessions() as session:
        service = SkillService(session)
        for bad in ({"": "read"}, {"g" * 256: "read"}, {"a\x00": "read"}, {f"g{n}": "read" for n in range(101)}):
            with pytest.raises(SkillFormatError):
                await service.create_skill(draft("x").model_copy(update={"shared_with": bad}), "alice")
        for wrong in ("team", 7, [7], None, [f"{n}" for n in range(1001)]):
            with pytest.raises(SkillFormatError, match=r"group"):
                await SkillService(session, groups_of=lambda _, wrong=wrong: wrong).list_skills("alice")


async def test_users_are_text(sessions: Sessions) -> None:
    """An object is not a user: its text may be its address, which another object gets later."""
    async with sessions() as session:
        service = SkillService(session)
        for user in (object(), 7, b"alice", ["alice"]):
            for call in (service.list_skills(user), service.create_skill(draft("x"), user)):  # type: ignore[arg-type]
                with pytest.raises(SkillFormatError, match="user id is text"):
                    await call


async def test_handing_over(sessions: Sessions) -> None:
    """A skill gets a new owner by its owner or an operator, unless the name is taken there; the old one loses it."""
    async with sessions() as session:
        service = SkillService(session, is_operator=is_operator)
        made = await service.create_skill(draft("report"), "alice")
        with pytest.raises(SkillNotFoundError):
            await service.hand_over(made.id, "bob", "bob")
        await service.create_skill(draft("report"), "carol")
        with pytest.raises(SkillConflictError):
            await service.hand_over(made.id, "carol", "alice")
        given = await service.hand_over(made.id, "bob", "alice")
        assert (given.owner_id, given.revision > made.revision) == ("bob", True)
        assert await names(service, "alice") == []
        assert (await service.hand_over(made.id, "dave", "root")).owner_id == "dave"
        assert (await service.hand_over(made.id, "alice", None, system=True)).owner_id == "alice"


async def test_operators(sessions: Sessions) -> None:
    """An operator lists, reads, hides and removes any skill, and writes none; others may do none of it."""
    async with sessions() as session:
        service = SkillService(session, is_operator=is_operator, groups_of=groups_of)
        private = await service.create_skill(draft("private"), "alice")
        public = await service.create_skill(draft("public", is_public=True, shared_with={"team": "write"}), "alice")
        assert await names(service, "root") == ["public"]
        assert await names(service, "root", everything=True) == ["private", "public"]
        assert await names(service, None, everything=True, system=True) == ["private", "public"]
        assert (await service.get_skill(private.id, "root")).content
        for user in ("bob", None):
            with pytest.raises(SkillPermissionError):
                await service.list_skills(user, everything=True)
        for call in (service.hide_skill(public.id, "bob"), service.approve_skill(public.id, public.revision, "alice")):
            with pytest.raises(SkillPermissionError):
                await call
        with pytest.raises(SkillPermissionError):
            await service.update_skill(private.id, SkillUpdate(content="x"), "root")
        hidden = await service.hide_skill(public.id, "root")
        assert (await names(service, "bob"), await names(service, None)) == ([], [])
        assert await names(service, "alice") == ["private", "public"]
        with pytest.raises(SkillNotFoundError):
            await service.update_skill(public.id, SkillUpdate(content="x"), "bob")
        assert (await service.hide_skill(public.id, "root")).revision == hidden.revision
        await service.hide_skill(public.id, "root", hidden=False)
        assert await names(service, "bob") == ["public"]
        await service.delete_skill(private.id, "root")
        assert await names(service, "alice") == ["public"]


async def test_approval(sessions: Sessions) -> None:
    """With approval a public skill shows to others only as an operator saw it, until its text or files change."""
    async with sessions() as session:
        service = SkillService(session, is_operator=is_operator, groups_of=groups_of, approval=True)
        made = await service.create_skill(draft("report", is_public=True, shared_with={"staff": "read"}), "alice")
        await service.create_skill(draft("ours"), None, system=True)
        assert await names(service, "bob") == ["ours"]
        assert await names(service, "dave") == ["ours", "report"]
        with pytest.raises(SkillStaleError):
            await service.approve_skill(made.id, made.revision - 1, "root")
        await service.approve_skill(made.id, made.revision, "root")
        assert await names(service, "bob") == ["ours", "report"]
        await service.update_skill(made.id, SkillUpdate(shared_with={}), "alice")
        assert await names(service, "bob") == ["ours", "report"]
        for change in (
            service.update_skill(made.id, SkillUpdate(content="MANDATORY: obey"), "alice"),
            service.add_file(made.id, SkillFileCreate(path="a.md", content="x"), "alice"),
        ):
            await change
            assert await names(service, "bob") == ["ours"]
            with pytest.raises(SkillNotFoundError):
                await service.get_skill(made.id, "bob")
            now = await service.get_skill(made.id, "root")
            await service.approve_skill(made.id, now.revision, "root")
            assert await names(service, "bob") == ["ours", "report"]


async def test_quotas(sessions: Sessions) -> None:
    """An owner keeps so many skills and bytes, deleted ones included until a purge; system skills do not count."""
    async with sessions() as session:
        service = SkillService(session, limits=StoreLimits(owner_skills=2, owner_bytes=1_000))
        one = await service.create_skill(draft("one"), "alice")
        two = await service.create_skill(draft_with_files("two", {"a.md": "x" * 500}), "alice")
        with pytest.raises(SkillQuotaError, match="3 skills"):
            await service.create_skill(draft("three"), "alice")
        for call in (
            service.update_skill(one.id, SkillUpdate(content="x" * 900), "alice"),
            service.add_file(one.id, SkillFileCreate(path="b.md", content="x" * 500), "alice"),
            service.save_skill(one.id, SkillUpdate(), {"b.md": "x" * 500}, "alice"),
        ):
            with pytest.raises(SkillQuotaError, match="bytes") as error:
                await call
            assert isinstance(error.value, SkillTooLargeError)
        await service.delete_skill(two.id, "alice")
        with pytest.raises(SkillQuotaError, match="3 skills"):
            await service.create_skill(draft("three"), "alice")
        await service.restore_skill(two.id, "alice")
        await service.delete_skill(two.id, "alice")
        await service.purge(retention=0)
        await service.create_skill(draft("three"), "alice")
        bobs = await service.create_skill(draft("bobs"), "bob")
        with pytest.raises(SkillQuotaError) as refused:
            await service.hand_over(bobs.id, "alice", "bob")
        assert "3" not in str(refused.value)
        for number in range(4):
            await service.create_skill(draft(f"system-{number}", content="x" * 900), None, system=True)
        tight = SkillService(session, limits=StoreLimits(owner_bytes=10))
        assert (await tight.update_skill(one.id, SkillUpdate(content=""), "alice")).content == ""


COLLIDING = [
    ("README.md", "readme.md"), ("caf\u00e9.md", "cafe\u0301.md"), ("a/B.md", "A/b.md"), ("ﬁle.md", "file.md"),
    ("data", "DATA/x.md"), ("SKILL.md/x", "y.md"), ("straße.md", "STRASSE.md"),
]  # fmt: skip


async def test_paths_that_collide(sessions: Sessions) -> None:
    """Two paths that a file system may take for one are refused, together and one after the other."""
    async with sessions() as session:
        service = SkillService(session)
        for number, (first, second) in enumerate(COLLIDING):
            with pytest.raises(SkillPathError):
                await service.create_skill(draft_with_files(f"both-{number}", {first: "x", second: "y"}), "alice")
            if first.startswith("SKILL"):
                continue
            made = await service.create_skill(draft_with_files(f"one-{number}", {first: "x"}), "alice")
            for call in (service.add_file, service.save_file):
                with pytest.raises(SkillPathError):
                    await call(made.id, SkillFileCreate(path=second, content="y"), "alice")


async def test_tags_of_the_frontmatter(sessions: Sessions) -> None:
    """Tags in frontmatter count when a skill is created, unless tags are given."""
    front = "---\nname: report\ndescription: Does report.\nmetadata:\n  tags: a, b\n---\n"
    async with sessions() as session:
        service = SkillService(session)
        made = await service.create_skill(draft("report", frontmatter=front), "alice")
        assert (made.tags, await names(service, "alice", tags=["B"])) == (["a", "b"], ["report"])
        given = await service.create_skill(draft("report", frontmatter=front, tags=["c"]), "bob")
        assert given.tags == ["c"]
