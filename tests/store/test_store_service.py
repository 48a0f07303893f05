"""The service keeps its rules: names, conflicts, transactions, limits; and gives back what it was given."""

import asyncio
import datetime as dt
import shutil
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest
from sqlalchemy import NullPool, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from store_support import BINARY, Sessions, by_name, draft, draft_with_files, on_postgres, on_sqlite, service_on

from deepskills import SkillFormatError, SkillNotFoundError, SkillPathError, SkillsError
from deepskills.store import (
    Skill,
    SkillAuthenticationError,
    SkillConflictError,
    SkillCreate,
    SkillFile,
    SkillFileCreate,
    SkillRepository,
    SkillService,
    SkillTooLargeError,
    SkillUpdate,
    StoreLimits,
)

pytestmark = pytest.mark.anyio


async def counts(sessions: Sessions) -> tuple[int, int]:
    async with sessions() as session:
        skills = await session.scalar(select(func.count()).select_from(Skill))
        files = await session.scalar(select(func.count()).select_from(SkillFile))
        return skills or 0, files or 0


async def test_create_and_get(sessions: Sessions) -> None:
    """A skill comes back with every value, and with times in UTC."""
    async with service_on(sessions) as service:
        made = await service.create_skill(
            draft("report", tags=["Numbers", "sales"], files=[SkillFileCreate(path="assets/a.bin", content=BINARY)]),
            "alice",
        )
        got = await service.get_skill(made.id, "alice")
    assert (got.name, got.description, got.content, got.tags) == (
        "report",
        "Does report.",
        "# report\n",
        ["Numbers", "sales"],
    )
    assert (got.owner_id, got.is_public, [file.content for file in got.files]) == ("alice", False, [BINARY])
    assert got.created_at == got.updated_at == made.created_at
    assert got.created_at.utcoffset() == dt.timedelta(0)


async def test_ids_may_be_text(sessions: Sessions) -> None:
    """An id as a client sends it serves as well; one that is not an id belongs to no skill."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"scripts/a.py": "x"}), "alice")
        for text in (str(made.id), made.id.hex, str(made.id).upper()):
            assert (await service.get_skill(cast("UUID", text), "alice")).name == "report"
            assert len(await service.list_skills("alice", skill_ids=[cast("UUID", text)])) == 1
            assert await service.read_file(cast("UUID", text), "scripts/a.py", "alice") == b"x"
            await service.update_skill(cast("UUID", text), SkillUpdate(content="# New\n"), "alice")
        assert await service.list_skills("alice", skill_ids=[cast("UUID", "no-id")]) == []
        for odd in ("no-id", "", "\x00", 7, None):
            no_id = cast("UUID", odd)
            for call in (
                service.get_skill(no_id, "alice"),
                service.read_file(no_id, "scripts/a.py", "alice"),
                service.update_skill(no_id, SkillUpdate(content="x"), "alice"),
                service.delete_skill(no_id, "alice"),
                service.add_file(no_id, SkillFileCreate(path="a.md", content="x"), "alice"),
                service.delete_file(no_id, "alice"),
            ):
                with pytest.raises(SkillNotFoundError):
                    await call
        await service.delete_file(cast("UUID", str(made.files[0].id)), "alice")
        await service.delete_skill(cast("UUID", str(made.id)), "alice")


async def test_values_outlive_the_session(sessions: Sessions) -> None:
    """What the service gave stays as it was, whatever it does next and when the session is gone."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"scripts/a.py": "a"}), "alice")
        listed = await service.list_skills("alice")
        await service.update_skill(made.id, SkillUpdate(description="Another."), "alice")
        await service.delete_skill(made.id, "alice")
    assert (made.description, made.tags, made.files[0].content) == ("Does report.", [], "a")
    assert (listed[0].description, listed[0].tags, listed[0].revision) == ("Does report.", [], made.revision)


async def test_listing_leaves_contents_out(sessions: Sessions) -> None:
    """A listing reads neither texts nor files, and says how to."""
    async with service_on(sessions) as service:
        await service.create_skill(draft_with_files("report", {"scripts/a.py": "a"}), "alice")
        (listed,) = await service.list_skills("alice")
        light = await service.get_skill(listed.id, "alice", contents=False)
    assert (listed.has_text, listed.has_files, light.files[0].has_content) == (False, False, False)
    for read in (
        lambda: listed.content,
        lambda: listed.frontmatter,
        lambda: listed.files,
        lambda: light.files[0].content,
    ):
        with pytest.raises(SkillsError, match="Get the skill by its id"):
            read()


SAME_NAMES = [
    ("report", "report"),
    ("report", "Report"),
    ("straße", "strasse"),
    ("caf\u00e9", "cafe\u0301"),
    ("σίσυφος", "σίσυφοσ"),
]


async def test_names_are_unique_per_owner_in_any_case(sessions: Sessions) -> None:
    """An owner has a name once, in any spelling; another owner and the system may have it too."""
    async with service_on(sessions) as service:
        for first, second in SAME_NAMES:
            made = [
                await service.create_skill(draft(first), "alice"),
                await service.create_skill(draft(first), "bob"),
                await service.create_skill(draft(first), None, system=True),
            ]
            for owner in ("alice", None):
                with pytest.raises(SkillConflictError, match="taken"):
                    await service.create_skill(draft(second), owner, system=owner is None)
            for skill in made:
                await service.delete_skill(skill.id, skill.owner_id, system=skill.owner_id is None)
            assert await service.purge(retention=0) == 3, (first, second)
            assert await counts(sessions) == (0, 0), (first, second)


async def test_system_names_are_unique_in_the_database(sessions: Sessions) -> None:
    """The database itself refuses a second system skill of a name, for owners are compared as values."""
    async with sessions() as session:
        session.add_all([Skill(name="report", description="d", content="", revision=1) for _ in range(2)])
        with pytest.raises(IntegrityError):
            await session.commit()


async def test_get_by_name_in_any_case(sessions: Sessions) -> None:
    """A name is found in any case: one's own first, then the system's, then the oldest public one."""
    async with service_on(sessions) as service:
        first = await service.create_skill(draft("report", is_public=True), "bob")
        await service.create_skill(draft("report", is_public=True), "carol")
        assert (await by_name(service, "REPORT", "alice")).id == first.id
        system = await service.create_skill(draft("report"), None, system=True)
        assert (await by_name(service, "Report", "alice")).id == system.id
        assert (await by_name(service, "Report")).id == system.id
        own = await service.create_skill(draft("report"), "alice")
        assert (await by_name(service, "rePort", "alice")).id == own.id
        for name in ("nothing", "", "\x00", "\ud800"):
            assert await service.get_skill_by_name(name, "alice") is None


async def test_tags_filter(sessions: Sessions) -> None:
    """Tags filter in any case; a skill with one of several is there; an unknown one finds nothing."""
    async with service_on(sessions) as service:
        await service.create_skill(draft("one", tags=["Sales", "csv"]), "alice")
        await service.create_skill(draft("two", tags=["legal"]), "alice")
        await service.create_skill(draft("three"), "alice")

        async def names(*tags: str) -> list[str]:
            return [skill.name for skill in await service.list_skills("alice", tags=tags)]

        assert await names("sales") == ["one"]
        assert await names("CSV", "Legal") == ["one", "two"]
        assert await names() == ["one", "three", "two"]
        assert await names("unknown") == await names("\x00") == []


async def test_two_writers_of_one_name(sessions: Sessions) -> None:
    """Of writers of one name at once one wins, the others get a conflict, and nothing is half-written."""

    async def write(number: int) -> Skill:
        async with service_on(sessions) as service:
            return await service.create_skill(
                draft_with_files("Report".lower(), {f"assets/{number}.txt": str(number)}, tags=["x"]), "alice"
            )

    results = await asyncio.gather(*(write(number) for number in range(6)), return_exceptions=True)
    winners = [result for result in results if isinstance(result, Skill)]
    assert len(winners) == 1
    assert all(isinstance(result, SkillConflictError) for result in results if result is not winners[0])
    assert await counts(sessions) == (1, 1)


async def test_two_writers_who_do_not_see_each_other(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both found the name free, the database decides."""

    async def never(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(SkillRepository, "is_taken", never)
    async with service_on(sessions) as service:
        await service.create_skill(draft("report"), "alice")
        with pytest.raises(SkillConflictError, match="taken"):
            await service.create_skill(draft("report"), "alice")
        other = await service.create_skill(draft("other"), "alice")
        with pytest.raises(SkillConflictError, match="taken"):
            await service.update_skill(other.id, SkillUpdate(name="report"), "alice")
        assert [skill.name for skill in await service.list_skills("alice")] == ["other", "report"]


async def test_writers_of_one_skill(sessions: Sessions) -> None:
    """Files that many add to one skill at once are all there, and none twice."""
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft("report"), "alice")

    async def add(number: int) -> None:
        async with service_on(sessions) as service:
            await service.add_file(skill.id, SkillFileCreate(path=f"assets/{number % 8}.txt", content="x"), "alice")

    results = await asyncio.gather(*(add(number) for number in range(16)), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [SkillConflictError] * 8
    assert await counts(sessions) == (1, 8)


async def test_a_failed_batch_leaves_nothing(sessions: Sessions) -> None:
    """One bad file among good ones costs the whole skill, and the session goes on."""
    bad_ones: list[tuple[SkillFileCreate, type[Exception]]] = [
        (SkillFileCreate(path="../evil.sh", content="x"), SkillPathError),
        (SkillFileCreate(path="references/v1..v2.md", content="x"), SkillPathError),
        (SkillFileCreate(path="assets/huge.bin", content=b"x" * 2_000), SkillTooLargeError),
        (SkillFileCreate(path="assets/0.txt", content="twice"), SkillPathError),
        (SkillFileCreate(path="assets/0.txt/below", content="x"), SkillPathError),
    ]
    good = [SkillFileCreate(path=f"assets/{number}.txt", content="x") for number in range(3)]
    async with service_on(sessions, StoreLimits(file_bytes=1_000)) as service:
        for bad, error in bad_ones:
            with pytest.raises(error):
                await service.create_skill(draft("report", files=[*good, bad]), "alice")
        assert await counts(sessions) == (0, 0)
        await service.create_skill(draft("report", files=good), "alice")
    assert await counts(sessions) == (1, 3)


async def test_a_failure_while_writing_rolls_back(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that fails after the skill's row was written leaves no row."""

    async def fail(_session: object) -> None:
        raise ConnectionError("gone")

    async with sessions() as session:
        monkeypatch.setattr(type(session), "commit", fail)
        with pytest.raises(ConnectionError):
            await SkillService(session).create_skill(draft_with_files("report", {"assets/a": "x"}), "alice")
        monkeypatch.undo()
    assert await counts(sessions) == (0, 0)


async def test_update(sessions: Sessions) -> None:
    """An update changes what it names, moves the time, and leaves the rest."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"assets/a": "x"}, tags=["a", "b"]), "alice")
        changed = await service.update_skill(
            made.id, SkillUpdate(name="summary", tags=["b", "c"], is_public=True), "alice"
        )
        assert (changed.name, changed.tags, changed.is_public) == ("summary", ["b", "c"], True)
        assert (changed.description, changed.content) == (made.description, made.content)
        again = await service.update_skill(made.id, SkillUpdate(description="Sums up.", name=None), "alice")
        got = await service.get_skill(made.id)
    assert (got.name, got.description, got.tags, [f.path for f in got.files]) == (
        "summary",
        "Sums up.",
        ["b", "c"],
        ["assets/a"],
    )
    assert made.created_at == got.created_at < changed.updated_at < again.updated_at == got.updated_at


async def test_renaming_to_another_case_of_itself(sessions: Sessions) -> None:
    """A skill's own name is not a conflict; another's is."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")
        await service.create_skill(draft("other"), "alice")
        assert (await service.update_skill(made.id, SkillUpdate(name="report"), "alice")).name == "report"
        with pytest.raises(SkillConflictError):
            await service.update_skill(made.id, SkillUpdate(name="OTHER"), "alice")
        assert (await service.get_skill(made.id, "alice")).name == "report"


async def test_purge_takes_files_and_tags(sessions: Sessions) -> None:
    """Nothing of a purged skill stays, and a deleted file is gone."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"assets/a": "x"}, tags=["a"]), "alice")
        kept = await service.create_skill(draft_with_files("kept", {"assets/a": "x"}), "alice")
        await service.delete_skill(made.id, "alice")
        with pytest.raises(SkillNotFoundError):
            await service.get_skill(made.id, "alice")
        assert await service.purge(retention=0) == 1
        assert await counts(sessions) == (1, 1)
        await service.delete_file(kept.files[0].id, "alice")
        with pytest.raises(SkillNotFoundError):
            await service.delete_file(kept.files[0].id, "alice")
        assert (await service.get_skill(kept.id, "alice")).updated_at > kept.updated_at
    assert await counts(sessions) == (1, 0)


async def test_purge_where_the_database_does_not_cascade(sqlite_template: Path, tmp_path: Path) -> None:
    """On an engine that leaves SQLite's foreign keys off, files and tags go all the same."""
    shutil.copy(sqlite_template, tmp_path / "store.db")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'store.db'}", poolclass=NullPool)
    sessions = async_sessionmaker(engine)
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"assets/a": "x"}, tags=["a"]), "alice")
        await service.delete_skill(made.id, "alice")
        await service.purge(retention=0)
    assert await counts(sessions) == (0, 0)


async def test_add_file(sessions: Sessions) -> None:
    """A file is added once a path, at any place in the skill but its `SKILL.md`, within the limits of the whole."""
    async with service_on(sessions, StoreLimits(skill_bytes=10, files=3)) as service:
        made = await service.create_skill(draft("report"), "alice")
        added = await service.add_file(made.id, SkillFileCreate(path="LICENSE.txt", content="MIT"), "alice")
        assert (added.path, added.content, added.size) == ("LICENSE.txt", "MIT", 3)
        with pytest.raises(SkillConflictError, match="already"):
            await service.add_file(made.id, SkillFileCreate(path="LICENSE.txt", content="x"), "alice")
        with pytest.raises(SkillPathError, match="at once"):
            await service.add_file(made.id, SkillFileCreate(path="LICENSE.txt/x", content="x"), "alice")
        with pytest.raises(SkillTooLargeError, match="11 bytes"):
            await service.add_file(made.id, SkillFileCreate(path="assets/a", content="12345678"), "alice")
        before = await service.get_skill(made.id, "alice")
        with pytest.raises(SkillConflictError):
            await service.add_file(made.id, SkillFileCreate(path="LICENSE.txt", content="x"), "alice")
        assert (await service.get_skill(made.id, "alice")).updated_at == before.updated_at
        for path in ("assets/a", "forms/b"):
            await service.add_file(made.id, SkillFileCreate(path=path, content="x"), "alice")
        with pytest.raises(SkillTooLargeError, match="4 files"):
            await service.add_file(made.id, SkillFileCreate(path="c", content="x"), "alice")
        assert (await service.get_skill(made.id, "alice")).updated_at > made.updated_at
    assert await counts(sessions) == (1, 3)


@pytest.mark.anyio
async def test_a_kept_path_is_no_reason_to_refuse_another(sessions: Sessions) -> None:
    """A file is judged by its own path and size, and with the others by their number and sum alone."""
    async with service_on(sessions) as service:
        data = draft_with_files("report", {"references/v1-v2.md": "12345678"})
        made = await service.create_skill(data, "alice")
    async with sessions() as session:
        await session.execute(update(SkillFile).values(path="references/v1..v2.md"))
        await session.commit()
    limits = StoreLimits(file_bytes=4, skill_bytes=10, files=2, extensions=frozenset({".txt"}))
    async with service_on(sessions, limits) as service:
        with pytest.raises(SkillPathError, match=r"`\.\.`"):
            await service.add_file(made.id, SkillFileCreate(path="v2..v3.txt", content="x"), "alice")
        with pytest.raises(SkillTooLargeError, match="11 bytes"):
            await service.add_file(made.id, SkillFileCreate(path="a.txt", content="123"), "alice")
        await service.add_file(made.id, SkillFileCreate(path="a.txt", content="12"), "alice")
        with pytest.raises(SkillTooLargeError, match="3 files"):
            await service.add_file(made.id, SkillFileCreate(path="b.txt", content=""), "alice")


HOSTILE_PATHS = [
    "../up.md", "assets/../../up.md", "/etc/passwd", "C:/x", "c:x", "a\\b", "..\\x", "a/./b", "a//b", "", " ", "a/",
    "%2e%2e/x", "a%2fb", "a\x00b", "a\nb", "a\u202eb", "a\ud800", "~/x", "~root", "..", ".", "...", "a/.. /b",
    "SKILL.md", "skill.md", "x" * 513, "é" * 200, "\uff0e\uff0e/x",
]  # fmt: skip


@on_sqlite
async def test_hostile_paths_are_refused(sessions: Sessions) -> None:
    """A path that could leave the skill, or be its `SKILL.md`, is refused by create and by add."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("report"), "alice")
        for path in HOSTILE_PATHS:
            file = SkillFileCreate.model_construct(path=path, content="x", encoding="utf-8")
            with pytest.raises(SkillPathError):
                await service.add_file(made.id, file, "alice")
            with pytest.raises(SkillPathError):
                await service.create_skill(draft("other").model_copy(update={"files": [file]}), "alice")
    assert await counts(sessions) == (1, 0)


async def test_plain_paths_are_kept(sessions: Sessions) -> None:
    """Files may lie anywhere inside the skill."""
    paths = [
        "scripts/run.py",
        "references/deep/er/x.md",
        "LICENSE",
        ".hidden",
        "forms/a b.txt",
        "assets/模板.md",
        "a.b.c",
    ]
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", dict.fromkeys(paths, BINARY)), "alice")
        exported = await service.export_skill(made.id, "alice")
    assert {path: exported[path] for path in paths} == dict.fromkeys(paths, BINARY)


INVALID_NAMES = ["Report", "a b", "-a", "a--b", "a/b", "../a", "", "x" * 65, "a\x00", "a_b", ".", "a\ud800"]


@on_sqlite
async def test_names_keep_the_rules(sessions: Sessions) -> None:
    """A name that the specification refuses is refused, in create and in update."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("fine"), "alice")
        for name in INVALID_NAMES:
            with pytest.raises(SkillFormatError):
                await service.create_skill(draft("x").model_copy(update={"name": name}), "alice")
            with pytest.raises(SkillFormatError):
                await service.update_skill(made.id, SkillUpdate().model_copy(update={"name": name}), "alice")
        assert [skill.name for skill in await service.list_skills("alice")] == ["fine"]


INVALID_VALUES: list[dict[str, object]] = [
    {"description": " "}, {"description": "x" * 1025}, {"description": "a\x00"}, {"content": "a\x00"},
    {"content": "\ud800"}, {"tags": [""]}, {"tags": ["a\nb"]}, {"tags": ["x" * 65]},
    {"tags": [str(number) for number in range(51)]},
    {"name": "another", "frontmatter": "---\nname: other\ndescription: Does x.\n---\n"},
    {"description": "Another.", "frontmatter": "---\nname: x\ndescription: Does x.\n---\n"},
    {"frontmatter": "no fence"}, {"frontmatter": "---\nname: x\ndescription: Does x.\n"},
]  # fmt: skip


@on_postgres
async def test_values_keep_the_rules(sessions: Sessions) -> None:
    """A value that cannot be kept, or that contradicts the frontmatter, is refused and nothing is written."""
    async with service_on(sessions) as service:
        made = await service.create_skill(draft("fine"), "alice")
        for values in INVALID_VALUES:
            with pytest.raises(SkillFormatError):
                await service.create_skill(draft("x").model_copy(update=values), "alice")
            with pytest.raises(SkillFormatError):
                await service.update_skill(made.id, SkillUpdate.model_construct({*values}, **values), "alice")
        assert await service.export_skill(made.id, "alice") == {
            "SKILL.md": b"---\nname: fine\ndescription: Does fine.\n---\n# fine\n"
        }


@on_sqlite
async def test_size_of_the_skill_itself(sessions: Sessions) -> None:
    """A `SKILL.md` over 10 MiB is too large, in create and in update."""
    async with service_on(sessions) as service:
        with pytest.raises(SkillTooLargeError, match=r"SKILL\.md"):
            await service.create_skill(draft("big", content="x" * (10 * 1024 * 1024)), "alice")
        made = await service.create_skill(draft("fine"), "alice")
        with pytest.raises(SkillTooLargeError):
            await service.update_skill(made.id, SkillUpdate(content="é" * (5 * 1024 * 1024)), "alice")
    with pytest.raises(SkillTooLargeError):
        SkillCreate.from_skill_md(b"---\nname: x\n---\n" + b"x" * (10 * 1024 * 1024))


@on_sqlite
async def test_extensions(sessions: Sessions) -> None:
    """With an allow-list only its extensions are kept, in any case and with or without the dot."""
    async with service_on(sessions, StoreLimits(extensions=frozenset({".md", "PY"}))) as service:
        made = await service.create_skill(draft_with_files("fine", {"references/A.MD": "x", "scripts/b.py": "x"}), "a")
        for path in ("scripts/c.sh", "LICENSE", "scripts/d.py.exe"):
            with pytest.raises(SkillFormatError, match="does not allow"):
                await service.add_file(made.id, SkillFileCreate(path=path, content="x"), "a")


@on_sqlite
async def test_user_ids_keep_the_rules(sessions: Sessions) -> None:
    """A user id that cannot be kept is neither an anonymous reader nor an owner, but an error."""
    async with service_on(sessions) as service:
        for user_id in ("", "x" * 256, "a\x00b", "\ud800"):
            with pytest.raises(SkillFormatError, match="user id"):
                await service.list_skills(user_id)
            # Who writes with an empty id is not signed in; any other such id is a mistake.
            refusal = SkillFormatError if user_id else SkillAuthenticationError
            with pytest.raises(refusal, match="user id" if user_id else "Sign in"):
                await service.create_skill(draft(), user_id)


async def test_ids_of_users_may_be_uuids(sessions: Sessions) -> None:
    """A UUID as user id is the same user as its text."""
    user = uuid4()
    async with service_on(sessions) as service:
        made = await service.create_skill(draft(), user)
        assert (await service.get_skill(made.id, str(user))).owner_id == str(user)
