"""Who may start a skill, as other clients spell it: in the catalog, at a load, and on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from deepagents.backends.protocol import GlobResult
from deepagents.middleware.filesystem import FilesystemMiddleware
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from deepskills import InlineBackend, InlineSkill, SkillsMiddleware
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


REMOTE = files_of(USERS_ALONE, {name: files for name, files in FOR_ALL.items() if name != "folder"})
"""The same as the files of a backend that holds text."""


def in_memory() -> tuple[Any, dict[str, str]]:
    """Return an agent's own files, which come with its input."""
    return StateBackend(), {f"/{path}": text for path, text in REMOTE.items()}


def in_a_store() -> tuple[Any, dict[str, str]]:
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("files",))
    backend.upload_files([(f"/{path}", text.encode()) for path, text in REMOTE.items()])
    return backend, {}


def mounted() -> tuple[Any, dict[str, str]]:
    return CompositeBackend(default=StateBackend(), routes={"/skills/": in_a_store_below()}), {}


def in_a_store_below() -> StoreBackend:
    backend = StoreBackend(store=InMemoryStore(), namespace=lambda _runtime: ("files",))
    backend.upload_files([(path.removeprefix("skills"), text.encode()) for path, text in REMOTE.items()])
    return backend


def written_in_python() -> tuple[Any, dict[str, str]]:
    files = {"agents/openai.yaml": FORBIDS}
    skills = [InlineSkill(name, "D.", "Text.") for name in ("allows", "silent", "broken")]
    skills += [InlineSkill("codex", "D.", "Text.", files)]
    skills += [
        InlineSkill(name, "D.", "Text.", metadata={"opencode/autoinvoke": "false"})
        for name in USERS_ALONE
        if name != "codex"
    ]
    return CompositeBackend(default=StateBackend(), routes={"/skills/": InlineBackend(skills)}), {}


@both_modes
@pytest.mark.parametrize("make", [in_memory, in_a_store, mounted, written_in_python])
def test_backends_without_a_local_disk_are_asked(make: Callable[[], tuple[Any, dict[str, str]]], mode: Mode) -> None:
    """Where no listing shows the file, it is read with the skills: what is the user's alone is not listed at all."""
    backend, files = make()
    skills = SkillsMiddleware(backend=backend, sources=["/skills"])
    talk = Conversation(mode, FilesystemMiddleware(backend=backend), skills)
    given = {"messages": [HumanMessage("go")], "files": state_files(files)}
    calls = call_tools(load("codex"), load("allows"))
    answers = [str(answer.text) for answer in talk.say(calls, given=given)]
    assert ["Only the user can start" in answer for answer in answers] == [True, False]
    section = talk.model.requests[0].system
    assert [name for name in (*USERS_ALONE, *FOR_ALL) if f"**{name}**" in section] == ["allows", "silent", "broken"]


@both_modes
def test_a_backend_that_cannot_search_costs_no_skill(mode: Mode) -> None:
    """Then the file is found at the load, where a listing shows it, and the model is refused."""

    class Plain(StoreBackend):
        def glob(self, pattern: str, path: str | None = None) -> GlobResult:
            raise NotImplementedError

    backend = Plain(store=InMemoryStore(), namespace=lambda _runtime: ("files",))
    backend.upload_files([(f"/{path}", text.encode()) for path, text in REMOTE.items()])
    talk = Conversation(mode, SkillsMiddleware(backend=backend, sources=["/skills"]))
    answers = [str(answer.text) for answer in talk.call(load("codex"), load("silent"))]
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
