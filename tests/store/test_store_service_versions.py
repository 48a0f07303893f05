"""Nothing is lost: versions, differences, deleted skills, the log of changes, use."""

import datetime as dt
import time
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import func, select
from store_support import BINARY, Sessions, by_name, draft, draft_with_files, service_on

from deepskills import SkillNotFoundError
from deepskills.store import (
    SkillConflictError,
    SkillCreate,
    SkillFileCreate,
    SkillPermissionError,
    SkillService,
    SkillUpdate,
    StoreLimits,
    UsageCount,
)
from deepskills.store.db.models import FormerFile, FormerText
from deepskills.store.document import MAX_LINES, difference
from deepskills.store.service import usage as versions_of_skills

pytestmark = pytest.mark.anyio

WRITTEN = "---\nname: report # mine\ndescription: Writes.\nmetadata:\n  tags: a, b\n---\n# One\n"


async def test_every_revision_comes_back_whole(sessions: Sessions) -> None:
    """Each revision has the text, tags and files that the skill had then, byte for byte."""
    async with service_on(sessions) as service:
        first: dict[str, bytes | str] = {"a.md": "1", "logo.png": BINARY}
        made = await service.create_skill(SkillCreate.from_skill_md(WRITTEN, first), "alice")
        expected = {made.revision: await service.export_skill(made.id, "alice")}

        async def note() -> None:
            skill = await service.get_skill(made.id, "alice")
            expected[skill.revision] = await service.export_skill(made.id, "alice")

        await service.update_skill(made.id, SkillUpdate(name="summary", tags=["c"]), "alice")
        await note()
        await service.save_file(made.id, SkillFileCreate(path="a.md", content="2"), "alice")
        await note()
        await service.save_skill(made.id, SkillUpdate(content="# Two\n"), {"b.md": "3"}, "alice")
        await note()
        await service.add_file(made.id, SkillFileCreate(path="a.md", content="1"), "alice")
        await note()
        await service.update_skill(made.id, SkillUpdate(is_public=True), "alice")
        await note()
        versions = await service.list_versions(made.id, "alice")
        assert [version.revision for version in versions] == sorted(expected, reverse=True)
        assert {version.user_id for version in versions} == {"alice"}
        for revision, files in expected.items():
            version = await service.get_version(made.id, revision, "alice")
            assert version.revision == revision
            found = {file.path: file.data for file in version.files}
            assert {**found, "SKILL.md": files["SKILL.md"]} == files
        assert await service.save_skill(made.id, WRITTEN.encode(), None, "alice")
        saved = await service.get_skill(made.id, "alice")
        assert (saved.name, saved.is_public, len(saved.files)) == ("report", True, 2)
        back = await service.restore_version(made.id, made.revision, "alice")
        assert back.revision > max(expected)
        assert (back.name, back.tags, back.is_public) == ("report", ["a", "b"], True)
        assert await service.export_skill(made.id, "alice") == expected[made.revision]
        page = await service.list_versions(made.id, "alice", limit=2)
        older = await service.list_versions(made.id, "alice", before=page[-1].revision)
        assert [v.revision for v in (*page, *older)] == [back.revision, saved.revision, *(v.revision for v in versions)]


async def test_versions_that_are_not_there(sessions: Sessions) -> None:
    """A revision of another skill, or none, is not found; history is for those who may write."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report", is_public=True, shared_with={"team": "read"}), "alice")
        other = await service.create_skill(draft("other"), "alice")
        for revision in (0, -1, other.revision, 10**9, 2**70):
            with pytest.raises(SkillNotFoundError, match="no version"):
                await service.get_version(made.id, revision, "alice")
        for call in (
            service.list_versions(made.id, "bob"),
            service.get_version(made.id, made.revision, "bob"),
            service.diff_versions(made.id, made.revision, made.revision, "bob"),
            service.restore_version(made.id, made.revision, "bob"),
            service.usage(made.id, None, "bob"),
        ):
            with pytest.raises(SkillPermissionError):
                await call
        with pytest.raises(SkillNotFoundError):
            await service.list_versions(other.id, "bob")


async def test_a_group_knows_no_version_from_before(sessions: Sessions) -> None:
    """Members who may write see, compare and restore what the skill was while they saw it, and nothing else of it."""
    team: dict[str, Any] = {
        "groups_of": lambda user: ["team"] if user == "bob" else [],
        "limits": StoreLimits(own_groups_only=False),
    }
    async with sessions() as session:
        service = SkillService(session, **team)
        made = await service.create_skill(draft("merger-with-acme", content="For 42 million."), "alice")
        await service.update_skill(made.id, SkillUpdate(name="deals", description="All.", content="None."), "alice")
        shared = await service.update_skill(made.id, SkillUpdate(shared_with={"team": "write"}), "alice")
        last = await service.update_skill(made.id, SkillUpdate(content="Some."), "bob")
        for limit in (1, 10):
            told = await service.list_versions(made.id, "bob", limit=limit)
            assert [change.revision for change in told] == [last.revision, shared.revision][:limit]
        assert await service.list_versions(made.id, "bob", before=shared.revision) == []
        for call in (
            service.get_version(made.id, made.revision, "bob"),
            service.diff_versions(made.id, made.revision, last.revision, "bob"),
            service.restore_version(made.id, made.revision, "bob"),
        ):
            with pytest.raises(SkillNotFoundError, match="no version"):
                await call
        assert "+Some." in await service.diff_versions(made.id, shared.revision, last.revision, "bob")
        assert len(await service.list_versions(made.id, "alice")) == 4


async def test_differences(sessions: Sessions) -> None:
    """Two revisions are compared as a unified diff over all files; binary ones are named."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "1\n", "x.bin": b"\xff"}), "alice")
        after = await service.save_skill(made.id, SkillUpdate(content="# New\n"), {"x.bin": b"\xfe"}, "alice")
        text = await service.diff_versions(made.id, made.revision, after.revision, "alice")
    assert "--- a/SKILL.md\n+++ b/SKILL.md\n@@" in text
    assert "-# report\n+# New\n" in text
    assert "--- a/a.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n" in text
    assert "Binary files a/x.bin and b/x.bin differ\n" in text


async def test_differences_of_hostile_texts_are_quick() -> None:
    """Comparing does not take longer than reading: also where every line repeats, or none is the same."""
    for before, after in (
        ("a\nb\n" * 50_000, "b\na\n" * 50_000),
        ("".join(f"{n}\n" for n in range(50_000)), "".join(f"{n}\n" for n in range(50_000, 0, -1))),
        ("x" * 5_000_000, "y" * 5_000_000),
    ):
        start = time.process_time()
        text = difference({"f": before.encode()}, {"f": after.encode()})
        assert time.process_time() - start < 10
        assert text.startswith("--- a/f\n+++ b/f\n@@ ")
    small = "".join(f"{n}\n" for n in range(20_000))
    changed = small.replace("10000\n", "changed\n")
    assert "@@ -9998,7 +9998,7 @@\n 9997\n" in difference({"f": small.encode()}, {"f": changed.encode()})


async def test_no_more_is_compared_than_is_shown() -> None:
    """A difference ends soon after the length that is asked for, and a file of too many lines is named alone."""
    many = {f"{number:03}.md": b"a line\n" * 1_000 for number in range(50)}
    cut = difference({}, many, 10_000)
    assert 10_000 < len(cut) < 20_000
    assert difference({}, many).startswith(cut)
    endless = {"a.txt": b"x\n" * (MAX_LINES + 1), "b.txt": b"y\r\x0cz"}
    assert difference({}, endless) == (
        "Files /dev/null and b/a.txt differ, and have too many lines to be shown\n"
        "--- /dev/null\n+++ b/b.txt\n@@ -0,0 +1 @@\n+y\r\x0cz\n\\ No newline at end of file\n"
    )


async def test_deleted_skills_come_back(sessions: Sessions) -> None:
    """Within the retention a deleted skill is gone for all, listed for its owner, and restored with its history."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "1"}, is_public=True), "alice")
        await service.update_skill(made.id, SkillUpdate(content="# Two\n"), "alice")
        before = await service.export_skill(made.id, "alice")
        await service.delete_skill(made.id, "alice")
        for user in ("alice", "bob", None):
            with pytest.raises(SkillNotFoundError):
                await service.get_skill(made.id, user)
            assert await service.list_skills(user) == []
            with pytest.raises(SkillNotFoundError):
                await by_name(service, "report", user)
        assert [skill.id for skill in await service.list_skills("alice", deleted=True)] == [made.id]
        assert await service.list_skills("bob", deleted=True) == []
        with pytest.raises(SkillNotFoundError):
            await service.restore_skill(made.id, "bob")
        new = await service.create_skill(draft("report"), "alice")
        with pytest.raises(SkillConflictError):
            await service.restore_skill(made.id, "alice")
        await service.delete_skill(new.id, "alice")
        back = await service.restore_skill(made.id, "alice")
        assert back.revision > made.revision
        assert await service.export_skill(made.id, "alice") == before
        assert (await service.get_version(made.id, made.revision, "alice")).content == "# report\n"


async def test_what_is_purged_is_gone(sessions: Sessions) -> None:
    """After the retention nothing is restored; a purge takes texts and files, and the log keeps who did what."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "1"}), "alice")
        await service.save_skill(made.id, SkillUpdate(content="x"), {"a.md": "2"}, "alice")
        await service.delete_skill(made.id, "alice")
        assert await service.purge() == 0
        assert await service.purge(retention=0) == 1
        with pytest.raises(SkillNotFoundError):
            await service.restore_skill(made.id, "alice")
        log = [(change.action, change.name) for change in await service.list_changes("alice")]
    assert log == [(action, "report") for action in ("created", "saved", "deleted", "purged")]
    async with sessions() as session:
        for table in (FormerText, FormerFile):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


async def test_old_versions_can_be_forgotten(sessions: Sessions) -> None:
    """The operator may let go of versions that are old; what the skill is stays, and so does the log."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "1"}), "alice")
        saved = await service.save_skill(made.id, SkillUpdate(content="x"), {"a.md": "2"}, "alice")
        await service.purge(versions=1)
        assert (await service.get_version(made.id, made.revision, "alice")).content == "# report\n"
        await service.purge(versions=0)
        with pytest.raises(SkillNotFoundError, match="expired"):
            await service.get_version(made.id, made.revision, "alice")
        assert (await service.get_version(made.id, saved.revision, "alice")).content == "x"
        assert len(await service.list_versions(made.id, "alice")) == 2


async def test_a_version_is_whole_or_not_there(sessions: Sessions) -> None:
    """Of a version whose text is kept and whose files are not, nothing is shown, compared or restored."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"a.md": "1"}), "alice")
        other = await service.create_skill(draft_with_files("other", {"a.md": "1"}), "alice")
        saved = await service.save_skill(made.id, SkillUpdate(), {"a.md": "2"}, "alice")
        await service.purge(versions=0)
        for call in (
            service.get_version(made.id, made.revision, "alice"),
            service.diff_versions(made.id, made.revision, saved.revision, "alice"),
            service.restore_version(made.id, made.revision, "alice"),
        ):
            with pytest.raises(SkillNotFoundError, match="expired"):
                await call
        assert [file.content for file in (await service.get_version(made.id, saved.revision, "alice")).files] == ["2"]
        assert [file.content for file in (await service.get_version(other.id, other.revision, "alice")).files] == ["1"]


async def test_what_an_operator_removed(sessions: Sessions) -> None:
    """The owner of a skill that an operator removed does not bring it back; the operator does."""
    async with sessions() as session:
        service = SkillService(session, is_operator=lambda user: user == "root")
        made = await service.create_skill(draft("trap", is_public=True), "mallory")
        for operator in ("root", None):
            await service.delete_skill(made.id, operator, system=operator is None)
            with pytest.raises(SkillPermissionError, match="operator removed"):
                await service.restore_skill(made.id, "mallory")
            await service.restore_skill(made.id, operator, system=operator is None)
        await service.delete_skill(made.id, "mallory")
        await service.restore_skill(made.id, "mallory")


async def test_deleted_skills_are_listed_within_the_retention(sessions: Sessions) -> None:
    """What can be restored no more is not listed as deleted, also before it is purged."""
    async with sessions() as session:
        service = SkillService(session)
        made = await service.create_skill(draft("report"), "alice")
        await service.delete_skill(made.id, "alice")
        assert [skill.name for skill in await service.list_skills("alice", deleted=True)] == ["report"]
        assert await SkillService(session, retention=0).list_skills("alice", deleted=True) == []


async def test_the_log_of_changes(sessions: Sessions) -> None:
    """Each user sees what happened to their skills, an operator all, in the order in which it happened."""
    async with service_on(sessions) as service:
        mine = await service.create_skill(draft("mine"), "alice")
        await service.create_skill(draft("bobs"), "bob")
        await service.hide_skill(mine.id, system=True)
        log = await service.list_changes("alice")
        assert [(c.action, c.user_id, c.skill_id) for c in log] == [
            ("created", "alice", mine.id),
            ("hidden", None, mine.id),
        ]
        assert [c.action for c in await service.list_changes("alice", since=log[0].revision)] == ["hidden"]
        everything = await service.list_changes(system=True)
        assert [c.name for c in everything] == ["mine", "bobs", "mine"]
        assert [c.revision for c in everything] == sorted(c.revision for c in everything)
        assert await service.list_changes("bob", skill_id=mine.id) == []


async def test_usage(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are counted by day, kind and trigger; what names no skill is left out."""
    noon = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    today = noon.date()
    monkeypatch.setattr(versions_of_skills, "now", lambda: noon)
    async with service_on(sessions) as service:
        mine = await service.create_skill(draft("mine"), "alice")
        events: list[dict[str, Any]] = [
            {"type": "skill.loaded", "skill": "Mine", "trigger": "model"},
            {"type": "skill.loaded", "skill_id": str(mine.id), "trigger": "model"},
            {"type": "skill.loaded", "skill": "mine", "trigger": "user"},
            {"type": "skill.loaded", "skill": "nothing", "trigger": "user"},
            {"type": "skill.loaded", "skill_id": uuid4(), "trigger": "user"},
            {"type": "\x00" * 99, "skill": "mine"},
            {},
        ]
        assert await service.record_usage(events, "alice") == 4
        assert await service.record_usage(events[:1], "alice") == 1
        assert await service.record_usage(events[:2], "bob") == 0
        assert await service.record_usage(["skill.loaded", 7, None, events[0]], "alice") == 1  # type: ignore[list-item]
        assert await service.record_usage(events[1:2]) == 0, "nobody does not see a private skill"
        assert await service.record_usage(events[1:2], system=True) == 1
        found = await service.usage(mine.id, None, "alice")
        assert UsageCount(today, "skill.loaded", "model", 5) in found
        assert UsageCount(today, "skill.loaded", "user", 1) in found
        assert await service.usage(mine.id, today, "alice") == found
        assert await service.usage(mine.id, today + dt.timedelta(days=1), "alice") == []
