"""The loader makes a directory hold exactly a skill's files, on every kind of backend, and touches nothing more."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deepagents.backends import (
    BackendProtocol,
    FilesystemBackend,
    LocalShellBackend,
    StateBackend,
    StoreBackend,
)
from deepagents.backends.protocol import DeleteResult, FileDownloadResponse, FileUploadResponse, LsResult
from deepagents.middleware import FilesystemMiddleware
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore
from sqlalchemy import update
from store_support import BINARY, Sessions, draft_with_files, on_postgres, seed, service_on

from deepskills.store import Skill, SkillFile, SkillFileCreate, SkillSandboxLoader, SkillUpdate
from deepskills.testing import ScriptedChatModel, call_tools

FILES: dict[str, str | bytes] = {
    "scripts/run.py": "print(1)\n",
    "references/deep/guide.md": "# Guide\n",
    "assets/logo.png": BINARY,
    "LICENSE": "",
}
ROOT = "/workspace/skills"
MARKER = ".deepskills.json"

Writes = list[str]


def counting(kind: type[BackendProtocol]) -> type[Any]:
    """Return a backend of that kind that notes every file written and every path deleted."""

    class Counting(kind):  # type: ignore[misc, valid-type]
        writes: Writes
        deletes: Writes
        calls: list[str]

        def ls(self, path: str) -> LsResult:
            self.calls.append("ls")
            answer: LsResult = super().ls(path)
            return answer

        def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
            self.calls.append("download")
            answer: list[FileDownloadResponse] = super().download_files(paths)
            return answer

        def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
            self.calls.append("upload")
            # On a local disk a `SKILL.md` is written beside its place, and renamed.
            places = [path.replace("/.deepskills.SKILL.md", "/SKILL.md") for path, _ in files]
            self.writes += [path for path in places if not path.endswith(MARKER)]
            answer: list[FileUploadResponse] = super().upload_files(files)
            return answer

        def delete(self, file_path: str) -> DeleteResult:
            self.deletes.append(file_path)
            answer: DeleteResult = super().delete(file_path)
            return answer

        async def adelete(self, file_path: str) -> DeleteResult:
            return await asyncio.to_thread(self.delete, file_path)

    return Counting


def make_backend(kind: str, root: Path) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "filesystem": lambda: counting(FilesystemBackend)(root_dir=root, virtual_mode=True),
        "shell": lambda: counting(LocalShellBackend)(root_dir=root, virtual_mode=True),
        "store": lambda: counting(StoreBackend)(store=InMemoryStore(), namespace=lambda _: ("files",)),
        "state": counting(StateBackend),
    }
    backend = made[kind]()
    backend.writes, backend.deletes, backend.calls = [], [], []
    return backend


async def in_graph(work: Callable[[], Any]) -> Any:
    """Do async work inside a run of an agent with a file system in its state, and return what it gave."""
    results: list[Any] = []

    @tool
    async def prepare() -> str:
        """Do the work."""
        results.append(await work())
        return "done"

    agent = create_agent(
        ScriptedChatModel(replies=[call_tools(("prepare", {}))]),
        tools=[prepare],
        middleware=[FilesystemMiddleware(backend=StateBackend())],
    )
    await agent.ainvoke({"messages": [HumanMessage("go")]})
    return results[0]


async def tree(backend: BackendProtocol, path: str = ROOT) -> dict[str, bytes]:
    """Return all files below a path of a backend, except markers."""
    found: dict[str, bytes] = {}
    listing = await backend.als(path)
    for entry in listing.entries or []:
        name = entry["path"].rstrip("/")
        if entry.get("is_dir"):
            found |= await tree(backend, name)
        elif not name.endswith(MARKER):
            (reply,) = await backend.adownload_files([name])
            assert reply.content is not None
            found[name] = reply.content
    return found


def files_below(root: Path) -> list[str]:
    """Return the names of all files below a directory of the disk."""
    return [path.name for path in root.rglob("*") if path.is_file()]


@pytest.fixture
def kind() -> str:
    """The loader reads through the service, which is tested on every database: SQLite will do."""
    return "sqlite"


on_each_backend = pytest.mark.parametrize(
    ("kind_of_backend", "kind"),
    [("filesystem", "sqlite"), ("shell", "postgres"), ("store", "sqlite"), ("state", "postgres")],
)


@pytest.mark.anyio
@on_each_backend
async def test_a_directory_holds_exactly_the_skill(sessions: Sessions, kind_of_backend: str, tmp_path: Path) -> None:
    """The first load writes all; the second nothing; after a change only that is written, and stale files go."""
    backend = make_backend(kind_of_backend, tmp_path)

    async def scenario() -> None:
        async with service_on(sessions) as service:
            loader = SkillSandboxLoader(service)
            skill = await service.create_skill(draft_with_files("report", FILES), "alice")

            async def load(loader: SkillSandboxLoader = loader) -> tuple[Writes, Writes]:
                backend.writes.clear()
                backend.deletes.clear()
                assert await loader.load_skill_to_sandbox(skill.id, backend, "alice") is True
                exported = await service.export_skill(skill.id, "alice")
                present = await tree(backend, f"{ROOT}/report")
                assert present == {f"{ROOT}/report/{path}": content for path, content in exported.items()}
                return sorted(backend.writes), sorted(backend.deletes)

            written, _ = await load()
            assert written == sorted(f"{ROOT}/report/{path}" for path in ("SKILL.md", *FILES))
            assert await load() == ([], [])

            await service.update_skill(skill.id, SkillUpdate(content="# New\n"), "alice")
            assert await load() == ([f"{ROOT}/report/SKILL.md"], [])

            files = {file.path: file.id for file in skill.files}
            await service.delete_file(files["references/deep/guide.md"], "alice")
            await service.delete_file(files["LICENSE"], "alice")
            await service.add_file(skill.id, SkillFileCreate(path="LICENSE/mit.txt", content="MIT"), "alice")
            written, deleted = await load()
            # While files change there is no SKILL.md.
            assert written == [f"{ROOT}/report/LICENSE/mit.txt", f"{ROOT}/report/SKILL.md"]
            assert deleted == [f"{ROOT}/report/{path}" for path in ("LICENSE", "SKILL.md", "references")]
            assert await load() == ([], [])

            # What others put there, and what they changed, is set right by a loader that looks.
            await backend.aupload_files(
                [(f"{ROOT}/report/notes/x.md", b"stale"), (f"{ROOT}/report/scripts/run.py", b"changed")]
            )
            verifying = SkillSandboxLoader(service)
            written, deleted = await load(verifying)
            assert written == [f"{ROOT}/report/SKILL.md", f"{ROOT}/report/scripts/run.py"]
            assert deleted == [f"{ROOT}/report/SKILL.md", f"{ROOT}/report/notes"]
            assert await load(verifying) == ([], [])

    await (in_graph(scenario) if kind_of_backend == "state" else scenario())


@pytest.mark.anyio
async def test_other_skills_stay(sessions: Sessions, tmp_path: Path) -> None:
    """Loading one skill leaves every other directory alone."""
    backend = make_backend("filesystem", tmp_path)
    await backend.aupload_files([(f"{ROOT}/report-two/SKILL.md", b"other"), ("/workspace/data.csv", b"data")])
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft_with_files("report", FILES), "alice")
        assert await SkillSandboxLoader(service).load_skill_to_sandbox(skill.id, backend, "alice")
    present = await tree(backend, "/workspace")
    assert present[f"{ROOT}/report-two/SKILL.md"] == b"other"
    assert present["/workspace/data.csv"] == b"data"


HOSTILE = ["../../../evil.sh", "/etc/evil", "a/../../evil", "..\\evil", "%2e%2e/evil", "SKILL.md"]


@pytest.mark.anyio
async def test_names_that_leave_the_skill(sessions: Sessions, tmp_path: Path) -> None:
    """A hostile path or name that others wrote into the tables is refused, and nothing of that skill is written."""
    backend = make_backend("filesystem", tmp_path / "sandbox")
    async with service_on(sessions) as service:
        bad = [
            await service.create_skill(draft_with_files(f"bad-{number}", {"scripts/a": "x"}), "alice")
            for number in range(len(HOSTILE))
        ]
        named = await service.create_skill(draft_with_files("named", {"scripts/a": "x"}), "alice")
        good = await service.create_skill(draft_with_files("good", {"scripts/a": "x"}), "alice")
        async with sessions() as session:
            for skill, hostile in zip(bad, HOSTILE, strict=True):
                await session.execute(update(SkillFile).where(SkillFile.skill_id == skill.id).values(path=hostile))
            await session.execute(update(Skill).where(Skill.id == named.id).values(name="../../evil"))
            await session.commit()
        loader = SkillSandboxLoader(service)
        ids = [skill.id for skill in (*bad, named, good)]
        loaded = await loader.load_skills_to_sandbox(ids, backend, "alice")
    assert loaded == {**dict.fromkeys(ids, False), good.id: True}
    assert not [path for path in files_below(tmp_path) if "evil" in path]
    assert sorted(backend.writes) == [f"{ROOT}/good/SKILL.md", f"{ROOT}/good/scripts/a"]


class Broken(FilesystemBackend):
    """Fails, in one way or another, for whatever has to do with one skill."""

    def __init__(self, root: Path, how: str) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self._how = how

    def ls(self, path: str) -> LsResult:
        if "skill-5" in path and self._how == "ls-raises":
            raise ConnectionError("gone")
        if "skill-5" in path and self._how == "ls-error":
            return LsResult(error="permission denied", entries=None)
        return super().ls(path)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        if "skill-5" in files[0][0] and self._how == "upload-raises":
            raise OSError("disk full")
        if "skill-5" in files[0][0] and self._how == "upload-error":
            return [FileUploadResponse(path=path, error="permission_denied") for path, _ in files]
        return super().upload_files(files)

    def delete(self, file_path: str) -> DeleteResult:
        if self._how == "no-delete":
            raise NotImplementedError
        return DeleteResult(error=f"{file_path}: permission denied")


WAYS_TO_FAIL = ["ls-raises", "ls-error", "upload-raises", "upload-error", "no-delete", "delete-error"]


@pytest.mark.anyio
async def test_one_of_ten_fails(sessions: Sessions, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One failing skill costs only itself; the answer and one log line say which."""
    async with service_on(sessions) as service:
        skills = [
            await service.create_skill(draft_with_files(f"skill-{number}", {"assets/a": "x"}), "alice")
            for number in range(10)
        ]
        for how in WAYS_TO_FAIL:
            place = tmp_path / how / "workspace/skills"
            if "delete" in how:
                (place / "skill-5").mkdir(parents=True)
                (place / "skill-5/stale.md").write_text("stale")
            caplog.clear()
            with caplog.at_level(logging.ERROR, "deepskills"):
                loaded = await SkillSandboxLoader(service).load_skills_to_sandbox(
                    [skill.id for skill in skills], Broken(tmp_path / how, how), "alice"
                )
            assert loaded == {skill.id: skill.name != "skill-5" for skill in skills}, how
            assert [record.levelname for record in caplog.records] == ["ERROR"], how
            assert str(skills[5].id) in caplog.text, how
            for skill in skills:
                if skill.name != "skill-5":
                    assert (place / skill.name / "assets/a").read_text() == "x", how


class Full(FilesystemBackend):
    """Takes every file but one."""

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        taken = super().upload_files([(path, content) for path, content in files if "full" not in path])
        return [*taken, *(FileUploadResponse(path=p, error="permission_denied") for p, _ in files if "full" in p)]


@pytest.mark.anyio
async def test_no_skill_before_its_files(sessions: Sessions, tmp_path: Path) -> None:
    """Where a file could not be written, no `SKILL.md` claims that the skill is there."""
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft_with_files("report", {"assets/full": "x", "assets/a": "x"}), "alice")
        loader = SkillSandboxLoader(service)
        assert not await loader.load_skill_to_sandbox(skill.id, Full(tmp_path, virtual_mode=True), "alice")
        place = tmp_path / "workspace/skills/report"
        assert (place / "assets/a").is_file()
        assert not (place / "SKILL.md").exists()
        backend = FilesystemBackend(tmp_path, virtual_mode=True)
        assert await loader.load_skill_to_sandbox(skill.id, backend, "alice")
        assert (place / "SKILL.md").is_file()


@pytest.mark.anyio
@on_postgres
async def test_only_what_the_user_may_see(sessions: Sessions, tmp_path: Path) -> None:
    """A skill that the user may not see, or that never was, is not loaded."""
    backend = make_backend("filesystem", tmp_path)
    async with service_on(sessions) as service:
        private = await service.create_skill(draft_with_files("private", {}), "alice")
        public = await service.create_skill(draft_with_files("public", {}, is_public=True), "alice")
        system = await service.create_skill(draft_with_files("system", {}), None, system=True)
        absent = uuid4()
        loader = SkillSandboxLoader(service)
        ids = [private.id, public.id, system.id, absent]
        for user in ("bob", None):
            loaded = await loader.load_skills_to_sandbox(ids, backend, user)
            assert loaded == {private.id: False, public.id: True, system.id: True, absent: False}
    assert not (tmp_path / "workspace/skills/private").exists()


@pytest.mark.anyio
async def test_names_that_hold_two_dots(sessions: Sessions, tmp_path: Path) -> None:
    """A path that the tables have, and of which no step is `..`, leads nowhere else and is loaded."""
    backend = FilesystemBackend(root_dir=tmp_path, virtual_mode=False)
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft_with_files("report", {"scripts/a": "x"}), "alice")
        for kept in ("references/v1..v2.md", "..notes/a.md", "a...b"):
            async with sessions() as session:
                await session.execute(update(SkillFile).values(path=kept))
                await session.commit()
            root = tmp_path / kept.replace("/", "-")
            loader = SkillSandboxLoader(service, root=str(root))
            assert await loader.load_skill_to_sandbox(skill.id, backend, "alice"), kept
            assert (root / "report" / kept).read_text() == "x", kept


@pytest.mark.anyio
async def test_one_skill_by_two_ids(sessions: Sessions, tmp_path: Path) -> None:
    """An id and its text are one skill, which is loaded for both."""
    backend = make_backend("filesystem", tmp_path)
    async with service_on(sessions) as service:
        skill = await service.create_skill(draft_with_files("report", {}), "alice")
        ids: list[Any] = [skill.id, str(skill.id), skill.id.hex]
        loaded = await SkillSandboxLoader(service).load_skills_to_sandbox(ids, backend, "alice")
    assert loaded == dict.fromkeys(ids, True)


@pytest.mark.anyio
async def test_two_skills_of_one_name(sessions: Sessions, tmp_path: Path) -> None:
    """Of two skills of one name the first takes the directory, and the answer says so."""
    backend = make_backend("filesystem", tmp_path)
    async with service_on(sessions) as service:
        theirs = await service.create_skill(draft_with_files("report", {"assets/a": "theirs"}, is_public=True), "bob")
        mine = await service.create_skill(draft_with_files("report", {"assets/a": "mine"}), "alice")
        loader = SkillSandboxLoader(service, root="/elsewhere/")
        loaded = await loader.load_skills_to_sandbox([mine.id, theirs.id, mine.id], backend, "alice")
    assert loaded == {mine.id: True, theirs.id: False}
    assert (tmp_path / "elsewhere/report/assets/a").read_text() == "mine"


def test_what_was_loaded_runs(any_sessions: Sessions, tmp_path: Path) -> None:
    """In a sandbox the scripts of a loaded skill can be run."""
    backend = LocalShellBackend(root_dir=tmp_path, virtual_mode=True)
    (skill,) = seed(any_sessions, "alice", draft_with_files("report", {"scripts/run.sh": "echo ran $1\n"}))

    async def load() -> bool:
        async with service_on(any_sessions) as service:
            return await SkillSandboxLoader(service).load_skill_to_sandbox(skill.id, backend, "alice")

    assert asyncio.run(load())
    result = backend.execute(f"sh {tmp_path}/workspace/skills/report/scripts/run.sh well")
    assert result.output.strip() == "ran well"
