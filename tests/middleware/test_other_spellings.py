"""Who may start a skill, as other clients spell it: in the catalog, at a load, and on the command line."""

from pathlib import Path

import pytest
from deepagents.backends import StateBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain_core.messages import HumanMessage

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, skill_md, state_files, write_files

FORBIDS = "policy:\n  allow_implicit_invocation: false\n"

USERS_ALONE: dict[str, dict[str, str]] = {
    "codex": {"SKILL.md": skill_md("codex"), "agents/openai.yaml": FORBIDS},
    "opencode": {"SKILL.md": skill_md("opencode", metadata={"opencode/autoinvoke": "false"})},
    "opencode-bool": {
        "SKILL.md": "---\nname: opencode-bool\ndescription: D.\nmetadata:\n  opencode/autoinvoke: false\n---\nText.\n"
    },
}
"""Skills that only a user may start, each by its client's spelling."""

FOR_ALL: dict[str, dict[str, str]] = {
    "allows": {
        "SKILL.md": skill_md("allows", metadata={"opencode/autoinvoke": "true"}),
        "agents/openai.yaml": "policy:\n  allow_implicit_invocation: true\n",
    },
    "silent": {"SKILL.md": skill_md("silent"), "agents/openai.yaml": "interface:\n  display_name: Silent\n"},
    "broken": {"SKILL.md": skill_md("broken"), "agents/openai.yaml": b"\xff\xfe\x00policy: [".decode("latin-1")},
    "folder": {"SKILL.md": skill_md("folder"), "agents/openai.yaml/x": "not a file"},
}


def files_of(*groups: dict[str, dict[str, str]]) -> dict[str, str]:
    return {
        f"skills/{name}/{path}": text
        for group in groups
        for name, files in group.items()
        for path, text in files.items()
    }


@both_modes
@pytest.mark.parametrize("depth", [1, 2])
def test_the_model_neither_sees_nor_loads_what_another_client_keeps_from_it(
    mode: Mode, depth: int, tmp_path: Path
) -> None:
    """Codex' file and OpenCode's key count as `disable-model-invocation`; a user's slash command still works."""
    write_files(tmp_path, files_of(USERS_ALONE, FOR_ALL))
    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], slash_commands=True, max_depth=depth)
    talk = Conversation(mode, skills)
    answers = [str(answer.text) for answer in talk.call(*(load(name) for name in USERS_ALONE), load("allows"))]
    section = talk.model.requests[0].system
    assert [name for name in (*USERS_ALONE, *FOR_ALL) if f"**{name}**" in section] == list(FOR_ALL)
    assert ["Only the user can start" in answer for answer in answers] == [True, True, True, False]
    talk.say(given="/codex")
    assert "codex" in talk.loaded


@both_modes
def test_a_backend_without_a_local_disk_is_asked_at_the_load(mode: Mode) -> None:
    """Where no listing showed the file, the load reads it, and refuses the model."""
    files = {f"/{path}": text for path, text in files_of(USERS_ALONE, FOR_ALL).items() if "folder" not in path}
    skills = SkillsMiddleware(backend=StateBackend(), sources=["/skills"])
    talk = Conversation(mode, FilesystemMiddleware(backend=StateBackend()), skills)
    given = {"messages": [HumanMessage("go")], "files": state_files(files)}
    calls = call_tools(load("codex"), load("allows"))
    answers = [str(answer.text) for answer in talk.say(calls, given=given)]
    assert ["Only the user can start" in answer for answer in answers] == [True, False]


def test_a_slash_key_that_says_no_keeps_a_skill_out_of_menus(tmp_path: Path) -> None:
    """OpenCode's `slash: false` counts as `user-invocable: false`."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a", slash=False), "skills/b/SKILL.md": skill_md("b")})
    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], slash_commands=True)
    talk = Conversation("sync", skills)
    talk.say(given="/a")
    talk.say(given="/b")
    assert talk.loaded == ["b"]


def test_a_change_of_the_file_alone_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """The text is the same, so only the file beside it tells; a new run lists by what it says now."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a"), "skills/b/SKILL.md": skill_md("b")})
    skills = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], refresh="run")
    talk = Conversation("sync", skills)
    seen = []
    for files in ({}, {"skills/a/agents/openai.yaml": FORBIDS}, {"skills/a/agents/openai.yaml": "policy: {}"}):
        write_files(tmp_path, files)
        talk.say()
        seen.append("**a**" in talk.model.requests[-1].system)
    assert seen == [True, False, True]
