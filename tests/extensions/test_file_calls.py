"""Which file a tool call means: guards judge the very file that deepagents' file tools open."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
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


def library(root: Path, name: str = "tea") -> None:
    body = f"# {name}\n\n{SECRET}\n"
    write_files(root / "skills", {f"{name}/SKILL.md": skill_md("tea", body=body), f"{name}/notes.md": SECRET})
    (root / "linked").symlink_to(root / "skills")
    (root / "alias").symlink_to(root / "skills" / name)


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
