"""The section says only what is so in the agent it is shown in."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import BackendProtocol, CompositeBackend, LocalShellBackend, StateBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from deepagents.middleware.skills import SKILLS_SYSTEM_PROMPT as DEEPAGENTS_PROMPT
from langchain.agents import create_agent
from langchain_core.tools import tool

from deepskills import InlineBackend, SkillsMiddleware
from deepskills.extensions import SkillSuggestions
from deepskills.testing import ScriptedChatModel
from support import MODES, Conversation, Mode, disk, run, skill_md, write_files
from support.providers import DictProvider

both_modes = pytest.mark.parametrize("mode", MODES)


@tool
def read_file(file_path: str) -> str:
    """Read a file."""
    return file_path


def shown(
    mode: Mode, root: Path, *, tools: Any = (), is_deep: bool = False, workspace: Any = None, **options: Any
) -> str:
    """Return the section that an agent is shown; a deep agent's file tools work on the skills' backend unless told."""
    options.setdefault("sources", ["/skills"])
    options.setdefault("backend", disk(root))
    middleware = SkillsMiddleware(**options)
    model = ScriptedChatModel(replies=[])
    if is_deep:
        run(mode, create_deep_agent(model, middleware=[middleware], backend=workspace or disk(root)))
    else:
        run(mode, create_agent(model, tools=list(tools), middleware=[middleware]))
    return model.requests[0].system.partition("## Skills")[2]


@both_modes
def test_files_are_spoken_of_where_a_tool_reads_them(mode: Mode, tmp_path: Path) -> None:
    """Paths and files stand in the section of an agent that can read them, and in no other."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    nothing = shown(mode, tmp_path)
    assert "/skills" not in nothing
    assert "file" not in nothing
    assert "\n3. If no skill fits" in nothing
    assets = shown(mode, tmp_path, extra_tools=["load_skill_asset"])
    assert "`load_skill_asset`" in assets
    assert "full path" not in assets
    for section in (shown(mode, tmp_path, tools=[read_file]), shown(mode, tmp_path, is_deep=True)):
        assert "**Skills**: `/skills`\n" in section
        assert "names its files by full path" in section
        assert "higher priority" not in section


@both_modes
def test_creating_is_spoken_of_where_the_model_can_write(mode: Mode, tmp_path: Path) -> None:
    """Without skills, only a model that has `write_file` is told where to create them."""
    assert "Create them in `/skills`" in shown(mode, tmp_path, is_deep=True)
    assert "(No skills yet.)" in shown(mode, tmp_path, tools=[read_file])


@both_modes
def test_creating_is_not_spoken_of_where_writing_is_refused(mode: Mode, tmp_path: Path) -> None:
    """Read-only backends, mounted or alone, are no place for new skills; beside them, only the others are named."""

    class Unwritable(BackendProtocol):
        def ls(self, path: str) -> LsResult:
            del path
            return LsResult(entries=[])

        def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
            return [FileDownloadResponse(path=path, error="file_not_found") for path in paths]

    for part in (InlineBackend([]), Unwritable()):
        both = CompositeBackend(default=disk(tmp_path), routes={"/inl/": part})
        alone = shown(mode, tmp_path, is_deep=True, backend=both, workspace=both, sources=["/inl/"])
        assert "(No skills yet.)" in alone
        mixed = shown(mode, tmp_path, is_deep=True, backend=both, workspace=both, sources=["/inl/", "/skills"])
        assert "(No skills yet. Create them in `/skills`.)" in mixed
    inline = InlineBackend([])
    assert "(No skills yet.)" in shown(mode, tmp_path, is_deep=True, backend=inline, workspace=inline, sources=["/"])


@both_modes
def test_without_skills_there_is_no_talk_of_a_list(mode: Mode, tmp_path: Path) -> None:
    """An empty catalog leaves where skills live and that there are none, in deep and plain agents."""
    for is_deep, where, end in (
        (True, "**Skills**: `/skills`", "(No skills yet. Create them in `/skills`.)"),
        (False, None, "(No skills yet.)"),
    ):
        section = shown(mode, tmp_path, is_deep=is_deep)
        words = section.partition("\n\n## ")[0].strip().splitlines()
        assert words[1:5] == (["", where, "", end] if where else ["", end])
        assert not any(word in "\n".join(words[:5]) for word in ("list", "Below", "Available", "description"))
        assert "**Working with skills:**" not in section
        assert "{" not in section.partition(end)[0]


@both_modes
def test_files_are_not_promised_where_the_file_tools_work_elsewhere(mode: Mode, tmp_path: Path) -> None:
    """Skills on a disk, file tools in state: the section names `load_skill_asset`, or says what cannot be read."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a"), "empty/x": "", "other/x": ""})
    on_disk = disk(tmp_path)
    elsewhere: list[Any] = [StateBackend(), disk(tmp_path / "other"), InlineBackend([])]
    elsewhere.append(CompositeBackend(default=on_disk, routes={"/skills/": StateBackend()}))
    for workspace in elsewhere:
        alone = shown(mode, tmp_path, is_deep=True, workspace=workspace)
        assert "your file tools work in another place and cannot open them" in alone
        assert ("full path" in alone, "/skills`" in alone) == (False, False)
    assets = shown(mode, tmp_path, is_deep=True, workspace=StateBackend(), extra_tools=["load_skill_asset"])
    assert ("`load_skill_asset`" in assets, "full path" in assets, "another place" in assets) == (True, False, False)
    empty = shown(mode, tmp_path, is_deep=True, workspace=StateBackend(), sources=["/empty"])
    assert "(No skills yet.)" in empty
    # The same place by another instance or another route, and places that nobody can compare, are as ever.
    whole = shown(mode, tmp_path, is_deep=True, workspace=on_disk, backend=on_disk)
    same: list[Any] = [disk(tmp_path), LocalShellBackend(root_dir=tmp_path, virtual_mode=True)]
    same.append(CompositeBackend(default=StateBackend(), routes={"/skills/": disk(tmp_path / "skills")}))
    for workspace in same:
        section = shown(mode, tmp_path, is_deep=True, workspace=workspace)
        assert "names its files by full path" in section
        assert section.partition("\n\n## ")[0] == whole.partition("\n\n## ")[0]
    assert "full path" in shown(mode, tmp_path, is_deep=True, workspace=StateBackend(), backend=lambda _: on_disk)


@both_modes
def test_without_a_list_there_is_no_talk_of_one(mode: Mode, tmp_path: Path) -> None:
    """With `catalog="none"` the section speaks of no list but to say that there is none."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    section = shown(mode, tmp_path, extensions=[SkillSuggestions(catalog="none")])
    said = [line for line in section.splitlines() if "list" in line or "Below" in line or "Available" in line]
    assert said == [line for line in section.splitlines() if line.startswith("There is 1 skill.")]


def test_a_template_may_leave_warnings_out(tmp_path: Path) -> None:
    """Warnings then follow the list."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})

    class Failing(type(disk(tmp_path))):  # type: ignore[misc]
        def ls(self, path: str) -> Any:
            if path == "/bad":
                raise OSError("denied")
            return super().ls(path)

    backend = Failing(tmp_path, virtual_mode=True)
    template = "FROM {skills_locations}\n{skills_list}\nEND"
    talk = Conversation("sync", SkillsMiddleware(backend=backend, sources=["/skills", "/bad"], system_prompt=template))
    talk.say("done")
    section = talk.model.requests[0].system
    assert section.index("**a**") < section.index("<skill_load_warnings>") < section.index("END")
    assert "denied" in section


@both_modes
def test_deepagents_prompt_is_true(mode: Mode, tmp_path: Path) -> None:
    """The prompt of deepagents tells the model to read the path in the list: the list shows it."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a")})
    section = shown(mode, tmp_path, is_deep=True, system_prompt=DEEPAGENTS_PROMPT)
    assert "path shown in the skill list above" in section
    assert "`/skills/a/SKILL.md`" in section
    assert "SKILL.md" not in shown(mode, tmp_path, is_deep=True)


def test_a_provider_shows_no_directories() -> None:
    """Where sources are no directories, the section names them and nothing else of them."""
    for skills, expected in (({"a": {"SKILL.md": skill_md("a")}}, "**a**"), ({}, "(No skills yet.)")):
        model = ScriptedChatModel(replies=[])
        middleware: SkillsMiddleware = SkillsMiddleware(sources=[DictProvider(skills)])
        run("sync", create_deep_agent(model, middleware=[middleware]))
        section = model.requests[0].system.partition("## Skills")[2].partition("\n## ")[0]
        assert expected in section
        assert "**Hub Skills**\n" in section
        assert not any(word in section for word in ("skill://", "full path", "director"))
