"""The loader keeps to directories that it made, leaves whole skills or none, and brings exactly what one sees."""

import asyncio
import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import DeleteResult, FileDownloadResponse, FileUploadResponse
from store_support import Sessions, draft, draft_with_files, on_both, on_postgres, service_on
from test_store_sandbox import MARKER, ROOT, in_graph, make_backend, on_each_backend, tree

from deepskills.store import SkillSandboxLoader, SkillUpdate

pytestmark = pytest.mark.anyio


@pytest.fixture
def kind() -> str:
    """The loader reads through the service, which is tested on every database: SQLite will do."""
    return "sqlite"


def disk(root: Path) -> dict[str, str]:
    """Return all files below a directory, except markers, by relative path."""
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != MARKER
    }


@pytest.mark.parametrize("virtual", [True, False])
async def test_nothing_goes_through_a_link(sessions: Sessions, tmp_path: Path, virtual: bool) -> None:  # noqa: FBT001
    """A linked skill directory, and a link inside a directory, are refused; what they lead to stays as it is."""
    outside = tmp_path / "root" / "outside"
    outside.mkdir(parents=True)
    (outside / "precious.txt").write_text("precious")
    place = tmp_path / "root" / "skills"
    place.mkdir()
    backend = FilesystemBackend(root_dir=tmp_path / "root", virtual_mode=virtual)
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft_with_files("report", {"scripts/run.py": "x"}), "alice")
        loader = SkillSandboxLoader(service, root="/skills" if virtual else str(place))

        (place / "report").symlink_to(outside)
        assert not await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        assert await loader.sync("alice", backend) == {"report": False}
        assert disk(outside) == {"precious.txt": "precious"}

        (place / "report").unlink()
        assert await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        (place / "report/scripts/run.py").unlink()
        (place / "report/scripts").rmdir()
        (place / "report/scripts").symlink_to(outside)
        await service.update_skill(skill.id, SkillUpdate(content="# New\n"), "alice")
        assert not await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        assert disk(outside) == {"precious.txt": "precious"}

        # A directory that the loader made, moved away and linked to, is not its own any more.
        (place / "report/scripts").unlink()
        (place / "report").rename(tmp_path / "root/moved")
        (place / "report").symlink_to(tmp_path / "root/moved")
        before = disk(tmp_path / "root/moved")
        assert not await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        await service.delete_skill(skill.id, "alice")
        await loader.sync("alice", backend)
        assert disk(tmp_path / "root/moved") == before


@on_postgres
async def test_directories_of_others(sessions: Sessions, tmp_path: Path) -> None:
    """What the loader did not make is neither written to nor removed, a copy of its own directories included."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    place = tmp_path / "workspace/skills"
    (place / "report").mkdir(parents=True)
    (place / "report/SKILL.md").write_text("mine")
    (place / "notes").mkdir()
    (place / "notes/a.md").write_text("notes")
    async with service_on(sessions) as service:
        await service.create_skill(draft_with_files("report", {"a.md": "x"}), "alice")
        other = await service.create_skill(draft_with_files("other", {"a.md": "x"}), "alice")
        loader = SkillSandboxLoader(service)
        assert await loader.sync("alice", backend) == {"report": False, "other": True}
        assert disk(place / "report") == {"SKILL.md": "mine"}
        (place / "copy").mkdir()
        for name in ("SKILL.md", MARKER):
            (place / "copy" / name).write_bytes((place / "other" / name).read_bytes())
        await service.delete_skill(other.id, "alice")
        assert await loader.sync("alice", backend) == {"report": False, "other": True}
        assert sorted(path.name for path in place.iterdir()) == ["copy", "notes", "report"]
        assert disk(place / "notes") == {"a.md": "notes"}


@pytest.mark.parametrize("virtual", [True, False])
async def test_a_linked_root(sessions: Sessions, tmp_path: Path, virtual: bool) -> None:  # noqa: FBT001
    """Nothing is written where the directory of all skills is a link itself."""
    home = tmp_path / "box"
    (home / "workspace").mkdir(parents=True)
    (home / "elsewhere").mkdir()
    (home / "workspace/skills").symlink_to(home / "elsewhere")
    backend = FilesystemBackend(root_dir=home, virtual_mode=virtual)
    async with service_on(sessions) as service:
        await service.create_skill(draft("report"), "alice")
        loader = SkillSandboxLoader(service, root=None if virtual else str(home / "workspace/skills"))
        assert await loader.sync("alice", backend) == {"report": False}
        assert list((home / "elsewhere").iterdir()) == []
        if virtual:
            (home / "workspace/skills").unlink()
            (home / "workspace").rmdir()
            (home / "workspace").symlink_to(home / "elsewhere")
            assert await loader.sync("alice", backend) == {"report": False}
            assert list((home / "elsewhere").iterdir()) == []


class Deaf(FilesystemBackend):
    """Fails to read any file."""

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path=path, error="connection reset") for path in paths]


async def test_what_is_in_doubt_stays(sessions: Sessions, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory whose marker cannot be read, or is not the loader's, is neither written to nor removed."""
    place = tmp_path / "workspace/skills"
    contents = {"words": "not a marker", "object": "{}", "list": "[]", "odd": '{"directory": 7}', "empty": ""}
    for name, content in contents.items():
        (place / name).mkdir(parents=True)
        (place / name / MARKER).write_text(content)
        (place / name / "precious.txt").write_text("precious")
    (place / "directory" / MARKER).mkdir(parents=True)
    (place / "plain").mkdir()
    (place / "plain/precious.txt").write_text("precious")
    before = disk(place)
    async with service_on(sessions) as service:
        await service.create_skill(draft("words"), "alice")
        loader = SkillSandboxLoader(service)
        backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
        assert await loader.sync("alice", backend) == {"words": False}
        assert disk(place) == before
        assert "was not made by the loader" in caplog.text
        assert not any((await loader.sync("alice", Deaf(root_dir=tmp_path, virtual_mode=True))).values())
        assert disk(place) == before
        assert (place / "directory" / MARKER).is_dir()


@on_postgres
async def test_a_marker_that_is_half_written(sessions: Sessions, tmp_path: Path) -> None:
    """A loader that stopped while it wrote a marker leaves a directory that the next one brings up to date."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    place = tmp_path / "workspace/skills"
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft("report"), "alice")
        loader = SkillSandboxLoader(service)
        assert await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        (place / "report" / MARKER).write_bytes(b"")
        (place / "report" / "SKILL.md").unlink()
        assert await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        marker = (place / "report" / MARKER).read_bytes()
        (place / "report" / MARKER).write_bytes(marker[:-20])
        assert await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        assert (place / "report" / MARKER).read_bytes().startswith(marker[:-30])
        (place / "report" / MARKER).write_bytes(marker[:-20])
        await service.delete_skill(skill.id, "alice")
        assert await loader.sync("alice", backend) == {"report": True}
        assert list(place.iterdir()) == []


@on_each_backend
async def test_exactly_what_one_may_see(sessions: Sessions, kind_of_backend: str, tmp_path: Path) -> None:
    """Revoked, renamed and deleted skills go; new ones come; of one name the user's own is there."""
    backend = make_backend(kind_of_backend, tmp_path)

    async def scenario() -> None:
        async with service_on(sessions) as service:
            loader = SkillSandboxLoader(service)

            async def names() -> set[str]:
                assert all((await loader.sync("alice", backend, include_public=True)).values())
                return {path.removeprefix(f"{ROOT}/").partition("/")[0] for path in await tree(backend)}

            files = {"scripts/a.py": "x"}
            revoked = await service.create_skill(draft_with_files("revoked", files, is_public=True), "bob")
            renamed = await service.create_skill(draft_with_files("renamed", files), "alice")
            deleted = await service.create_skill(draft_with_files("deleted", files), "alice")
            await service.create_skill(draft_with_files("same", files, is_public=True), "bob")
            await service.create_skill(draft_with_files("system", files), None, system=True)
            await service.create_skill(draft("hidden"), "bob")
            assert await names() == {"revoked", "renamed", "deleted", "same", "system"}

            await service.update_skill(revoked.id, SkillUpdate(is_public=False), "bob")
            await service.update_skill(renamed.id, SkillUpdate(name="new-name"), "alice")
            await service.delete_skill(deleted.id, "alice")
            await service.create_skill(draft("same", content="Mine.\n"), "alice")
            assert await names() == {"new-name", "same", "system"}
            assert (await tree(backend))[f"{ROOT}/same/SKILL.md"].endswith(b"Mine.\n")
            assert set(await loader.sync("alice", backend, include_public=False)) == {"new-name", "same", "system"}
            assert await loader.sync(None, backend, include_public=True) == {
                "new-name": True,
                "same": True,
                "system": True,
            }
            assert b"Mine." not in (await tree(backend))[f"{ROOT}/same/SKILL.md"]

    await (in_graph(scenario) if kind_of_backend == "state" else scenario())


async def test_what_is_unchanged_is_only_read(sessions: Sessions, tmp_path: Path) -> None:
    """Skills that are there already are compared, and nothing is written."""
    backend = make_backend("filesystem", tmp_path)
    async with service_on(sessions) as service:
        skills = [await service.create_skill(draft(f"skill-{number}"), "alice") for number in range(20)]
        loader = SkillSandboxLoader(service)
        ids = [skill.id for skill in skills]
        assert all((await loader.load_skills_to_sandbox(ids, backend, "alice")).values())
        backend.calls.clear()
        assert all((await loader.load_skills_to_sandbox(ids, backend, "alice")).values())
        assert {*backend.calls} == {"ls", "download"}
        backend.calls.clear()
        assert all((await loader.sync("alice", backend)).values())
        assert {*backend.calls} == {"ls", "download"}


async def test_what_an_agent_altered_is_put_back(sessions: Sessions, tmp_path: Path) -> None:
    """Edits of the sandbox's agent do not stay, whatever the marker says."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    place = tmp_path / "workspace/skills/report"
    async with service_on(sessions) as service:
        made = await service.create_skill(draft_with_files("report", {"scripts/a.py": "print(1)"}), "alice")
        loader = SkillSandboxLoader(service)
        assert await loader.load_skill_to_sandbox(made.id, backend, "alice")
        before = disk(place)
        (place / "scripts/a.py").write_text("evil()")
        (place / "SKILL.md").write_text("---\nname: report\ndescription: Evil.\n---\n")
        (place / "more.py").write_text("evil()")
        assert await loader.load_skill_to_sandbox(made.id, backend, "alice")
        assert disk(place) == before
        for marker in ("{}", "not a marker", '{"directory": "/elsewhere"}'):
            (place / MARKER).write_text(marker)
            (place / "scripts/a.py").write_text("evil()")
            assert await loader.load_skill_to_sandbox(made.id, backend, "alice"), marker
            assert disk(place) == before


async def test_a_revoked_skill_goes_whatever_its_marker_says(sessions: Sessions, tmp_path: Path) -> None:
    """A skill that is gone goes from the sandbox, altered or not, and the answer names it."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    place = tmp_path / "workspace/skills/report"
    for marker in ("{}", "", '{"directory": "/workspace/skills/other"}'):
        async with service_on(sessions) as service:
            made = await service.create_skill(draft("report"), "alice")
            loader = SkillSandboxLoader(service)
            assert await loader.load_skill_to_sandbox(made.id, backend, "alice")
            (place / MARKER).write_text(marker)
            (place / "SKILL.md").write_text("altered")
            await service.delete_skill(made.id, "alice")
            assert await loader.sync("alice", backend) == {"report": True}
            assert not place.exists()


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


async def test_no_skill_stays_by_what_is_no_file(sessions: Sessions, tmp_path: Path) -> None:
    """A directory, a link or a pipe in place of the marker or of a file neither keeps a skill nor holds a loader up."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    place = tmp_path / "workspace/skills/report"
    for spoil, name in itertools.product((as_directory, as_link, as_pipe), (MARKER, "a.md")):
        async with service_on(sessions) as service:
            made = await service.create_skill(draft_with_files("report", {"a.md": "a"}), "alice")
            loader = SkillSandboxLoader(service)
            assert await loader.sync("alice", backend) == {"report": True}
            spoil(place / name)
            if spoil is not as_link:
                assert await loader.sync("alice", backend) == {"report": True}
                assert (place / "a.md").read_text() == "a"
                spoil(place / name)
            await service.delete_skill(made.id, "alice")
            assert await loader.sync("alice", backend) == {"report": True}
            assert not place.exists()


class Failing(FilesystemBackend):
    """Fails from the given write on."""

    def __init__(self, root: Path, after: int) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self.left = after

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for file in files:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("gone")
            answers += super().upload_files([file])
        return answers

    def delete(self, file_path: str) -> DeleteResult:
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("gone")
        return super().delete(file_path)


async def test_whole_or_not_at_all(sessions: Sessions, tmp_path: Path) -> None:
    """Wherever an update breaks off, a `SKILL.md` has all files of its own version beside it, or is not there."""
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft("report"), "alice")
        loader = SkillSandboxLoader(service)
        versions = [
            {f"{version}-{number}.md": version for number in range(3)} | {"same.md": version} for version in "ab"
        ]
        for after in range(12):
            place = tmp_path / str(after)
            await service.save_skill(skill.id, draft(content="a\n"), versions[0], "alice")
            assert await loader.load_skill_to_sandbox(skill.id, Failing(place, 100), "alice")
            await service.save_skill(skill.id, draft(content="b\n"), versions[1], "alice")
            finished = await loader.load_skill_to_sandbox(skill.id, Failing(place, after), "alice")
            found = disk(place / "workspace/skills/report")
            text = found.pop("SKILL.md", None)
            whole = {"a": versions[0], "b": versions[1]}
            assert text is None or found == whole[text.strip()[-1]], (after, text, found)
            assert not finished or found == versions[1]
            assert await loader.load_skill_to_sandbox(skill.id, Failing(place, 100), "alice")
            assert disk(place / "workspace/skills/report") == {
                **versions[1],
                "SKILL.md": (await service.export_skill(skill.id, "alice"))["SKILL.md"].decode(),
            }


class Slow(FilesystemBackend):
    """Takes its time for every file, so that two who write at once meet; the first writer waits for an edit."""

    def __init__(self, root: Path) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self.is_used = asyncio.Event()
        self.is_edited = asyncio.Event()

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        self.is_used.set()
        await self.is_edited.wait()
        answers = []
        for file in files:
            await asyncio.sleep(random.uniform(0, 0.01))
            answers += self.upload_files([file])
        return answers

    async def adelete(self, file_path: str) -> DeleteResult:
        await asyncio.sleep(random.uniform(0, 0.01))
        return self.delete(file_path)


@on_both
async def test_two_loaders_at_once(sessions: Sessions, tmp_path: Path) -> None:
    """Two loaders that know different revisions leave the newest one, whole, and say the truth about it."""
    async with service_on(sessions) as service, service_on(sessions) as other, service_on(sessions) as editor:
        skill = await service.create_skill(draft("report"), "alice")
        wrong = []
        for turn in range(6):
            backend = Slow(tmp_path / str(turn))
            old: dict[str, bytes | str] = {f"old-{number}.md": f"old {turn}" for number in range(4)}
            new: dict[str, bytes | str] = {f"new-{number}.md": f"new {turn}" for number in range(4)}
            await editor.save_skill(skill.id, draft(), {**old, "same.md": "old"}, "alice")

            async def edit(files: Any = new, backend: Slow = backend) -> None:
                await backend.is_used.wait()
                await editor.save_skill(skill.id, draft(), {**files, "same.md": "new"}, "alice")
                backend.is_edited.set()

            async def late(backend: Slow = backend) -> bool:
                await backend.is_edited.wait()
                return await SkillSandboxLoader(other).load_skill_to_sandbox(skill.id, backend, "alice")

            first = SkillSandboxLoader(service).load_skill_to_sandbox(skill.id, backend, "alice")
            done = await asyncio.gather(first, late(), edit())
            found = disk(tmp_path / str(turn) / "workspace/skills/report")
            found.pop("SKILL.md", None)
            if not (done[0] and done[1]) or found != {**new, "same.md": "new"}:
                wrong.append((turn, done, found))
        assert wrong == []


@on_both
async def test_beside_a_writer(sessions: Sessions, tmp_path: Path) -> None:
    """A load beside edits and a delete leaves one version whole, or no skill; never one without its files."""
    versions = [{f"{version}.md": version, "b.md": version} for version in ("one", "two")]
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
    async with service_on(sessions) as service, service_on(sessions) as editor:
        skill = await service.create_skill(draft("report"), "alice")
        await editor.save_skill(skill.id, draft(), versions[0], "alice")
        loader = SkillSandboxLoader(service)

        async def edit() -> None:
            for turn in range(12):
                await editor.save_skill(skill.id, draft(), versions[turn % 2], "alice")
            await editor.delete_skill(skill.id, "alice")

        editing = asyncio.create_task(edit())
        while not editing.done():
            loaded = await loader.load_skill_to_sandbox(skill.id, backend, "alice")
            found = disk(tmp_path / "workspace/skills/report")
            text = found.pop("SKILL.md", None)
            assert text is None or found in versions
            assert not loaded or text is not None
        await editing
        assert await loader.sync("alice", backend) in ({}, {"report": True})
        assert not (tmp_path / "workspace/skills/report").exists()


async def test_where_skills_go(sessions: Sessions, tmp_path: Path) -> None:
    """`SKILLS_BASE_DIR` says where skills go, and a subclass may say another place."""

    class Elsewhere(SkillSandboxLoader):
        SKILLS_BASE_DIR = "/elsewhere"

    assert SkillSandboxLoader.SKILLS_BASE_DIR == ROOT
    async with service_on(sessions) as service:
        await service.create_skill(draft("report"), "alice")
        backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=True)
        assert await Elsewhere(service).sync("alice", backend) == {"report": True}
    assert (tmp_path / "elsewhere/report/SKILL.md").is_file()
