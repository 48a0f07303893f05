"""Which file a tool call means: guards judge the very file that deepagents' file tools open."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills._files.paths import path_of_call
from deepskills.extensions import SkillApproval, SkillLock
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Mode, run, skill_md, tool_messages, write_files

SECRET = "unreviewed words"
SPELLINGS = [
    "/skills/tea/SKILL.md",
    "skills/tea/SKILL.md",
    "\\skills\\tea\\SKILL.md",
    "\\\\skills\\tea\\SKILL.md",
    "/skills\\tea/SKILL.md",
    "//skills//tea///SKILL.md",
    "/./skills/./tea/SKILL.md",
    "/skills/\\./tea\\.\\SKILL.md",
    "\\.\\skills/tea/SKILL.md",
    "/skills/tea/SKILL.md/",
    "/skills/x/../tea/SKILL.md",
    "\\skills\\x\\..\\tea\\SKILL.md",
    "/linked/tea/SKILL.md",
    "/alias/SKILL.md",
    "linked\\tea\\SKILL.md",
]


class Watched(FilesystemBackend):
    """A directory that remembers which files were opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root_dir=root, virtual_mode=True)
        self.opened: list[Path] = []

    def _note(self, path: str) -> None:
        self.opened.append(self._resolve_path(path))

    def ls(self, path: str) -> Any:
        self._note(path)
        return super().ls(path)

    def read(self, file_path: str, *args: Any, **options: Any) -> Any:
        self._note(file_path)
        return super().read(file_path, *args, **options)

    def write(self, file_path: str, content: str) -> Any:
        self._note(file_path)
        return super().write(file_path, content)

    def edit(self, file_path: str, *args: Any, **options: Any) -> Any:
        self._note(file_path)
        return super().edit(file_path, *args, **options)

    def glob(self, pattern: str, path: str | None = None) -> Any:
        self._note(path or "/")
        return super().glob(pattern, path)

    def grep(self, pattern: str, path: str | None = None, *args: Any, **options: Any) -> Any:
        self._note(path or "/")
        return super().grep(pattern, path, *args, **options)


def library(root: Path, name: str = "tea") -> None:
    body = f"# {name}\n\n{SECRET}\n"
    write_files(root / "skills", {f"{name}/SKILL.md": skill_md("tea", body=body), f"{name}/notes.md": SECRET})
    (root / "linked").symlink_to(root / "skills")
    (root / "alias").symlink_to(root / "skills" / name)


def calls(path: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("ls", {"path": path}),
        ("read_file", {"file_path": path}),
        ("glob", {"pattern": "*", "path": path}),
        ("grep", {"pattern": "words", "path": path}),
        ("edit_file", {"file_path": path, "old_string": "no such text", "new_string": "other"}),
        ("write_file", {"file_path": path, "content": "other"}),
    ]


def test_a_path_means_what_the_file_tools_open(tmp_path: Path) -> None:
    """Over a table of spellings, for every file tool: the path is the file that the backend opened, links aside."""
    library(tmp_path)
    for spelling in SPELLINGS:
        for call in calls(spelling):
            backend = Watched(tmp_path)
            agent = create_deep_agent(ScriptedChatModel(replies=[call_tools(call), "Done."]), backend=backend)
            result = run("sync", agent)
            expected = (tmp_path / path_of_call(spelling).lstrip("/")).resolve()
            if ".." in spelling:
                assert not backend.opened
                assert SECRET not in str(tool_messages(result)[-1].content)
            else:
                assert set(backend.opened) == {expected}, (spelling, call)


def ask(mode: Mode, root: Path, extension: Any, *given: Any) -> str:
    """Return everything that the model read of calls."""
    backend = FilesystemBackend(root_dir=root, virtual_mode=True)
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[extension])
    model = ScriptedChatModel(replies=[call_tools(*given), "Done."])
    agent = create_deep_agent(model, backend=backend, middleware=[middleware], checkpointer=InMemorySaver())
    result = run(mode, agent, config={"configurable": {"thread_id": "1"}})
    return "\n".join(str(message.content) for message in tool_messages(result))


LOCK: dict[str, Any] = {"version": 1, "skills": {}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [SkillApproval, lambda: SkillLock(LOCK)], ids=["approval", "lock"])
def test_no_spelling_and_no_link_passes_a_guard(tmp_path: Path, mode: Mode, make: Any) -> None:
    """What nobody approved and no lock lists is read by no file tool, however its path is spelled."""
    library(tmp_path)
    shown = ask(mode, tmp_path, make(), *(("read_file", {"file_path": spelling}) for spelling in SPELLINGS))
    assert SECRET not in shown
    content = {"pattern": "words", "output_mode": "content"}
    for path in ("/", "/skills", "\\skills\\tea", "/linked", "/linked/tea", "/alias"):
        assert SECRET not in ask(mode, tmp_path, make(), ("grep", {**content, "path": path}))
    # A file beside the skills is nobody's.
    write_files(tmp_path, {"work/notes.md": "my own words"})
    assert "my own words" in ask(mode, tmp_path, make(), ("read_file", {"file_path": "\\work\\notes.md"}))
    assert "my own words" in ask(mode, tmp_path, make(), ("grep", {**content, "path": "/work"}))


@pytest.mark.parametrize("name", ["tea: 12", "tea:", "te\na", "te\n/a"])
def test_odd_directories_are_judged_in_what_a_search_shows(tmp_path: Path, name: str) -> None:
    """A colon or a newline in a directory's name ends no path."""
    library(tmp_path, name)
    for path in ("/", "/skills", "/linked", "/alias"):
        for how in ("content", "files_with_matches"):
            shown = ask(
                "sync", tmp_path, SkillApproval(), ("grep", {"pattern": "words", "path": path, "output_mode": how})
            )
            assert SECRET not in shown
            # Names alone show nothing that a human has to approve.
            assert "Error" in shown or "No matches" in shown or how != "content", (path, shown)
