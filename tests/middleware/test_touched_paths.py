"""`paths`: a skill is listed once a tool call of the thread touched a file that its globs match, and stays."""

from pathlib import Path
from typing import Any

import pytest
from deepagents.middleware.filesystem import FilesystemMiddleware

from deepskills import SkillsMiddleware
from support import Conversation, Mode, both_modes, disk, load, skill_md, write_files

NOTE = "- **forms**"


def talk_to(mode: Mode, root: Path, **options: Any) -> Conversation:
    write_files(
        root,
        {
            "skills/forms/SKILL.md": skill_md("forms", "Fills forms.", paths=["src/**/*.html", "*.form"]),
            "skills/other/SKILL.md": skill_md("other"),
            "src/app/pages/start.html": "<form>",
            "notes.txt": "Nothing.",
        },
    )
    skills = SkillsMiddleware(backend=disk(root), sources=["/skills"], extra_tools=["search_skills"], **options)
    return Conversation(mode, FilesystemMiddleware(backend=disk(root)), skills)


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"file_path": path}


@both_modes
def test_a_skill_is_listed_once_a_matching_file_was_touched(mode: Mode, tmp_path: Path) -> None:
    """Before, the model neither sees nor loads it; afterwards it is in the section of every run."""
    talk = talk_to(mode, tmp_path, loaded_status="system_prompt")
    [refused, _, found] = talk.call(load("forms"), read("/notes.txt"), ("search_skills", {"query": "forms"}))
    assert "Only the user can start" in str(refused.text)
    assert "No skill matches" in str(found.text)
    talk.call(read("/src/app/missing.html"))
    assert all("**forms**" not in request.system for request in talk.model.requests)
    talk.call(read("/src/app/pages/start.html"))
    talk.call(load("forms"))
    assert "**forms**" in talk.model.requests[-1].system
    assert talk.loaded == ["forms"]
    assert not any(NOTE in str(m.text) for m in talk.model.requests[-1].messages if m.type != "system")


@both_modes
def test_a_cached_prefix_stays_and_the_conversation_announces_the_skill(mode: Mode, tmp_path: Path) -> None:
    """With `loaded_status="conversation"` the section never changes; the tool's answer has a note, always the same."""
    talk = talk_to(mode, tmp_path, loaded_status="conversation")
    talk.say()
    talk.call(read("/src/app/pages/start.html"))
    talk.call(read("/src/app/pages/start.html"))
    talk.call(load("forms"))
    assert talk.loaded == ["forms"]
    assert len({request.system for request in talk.model.requests}) == 1
    assert "**forms**" not in talk.model.requests[-1].system
    noted = [[str(m.text) for m in request.messages if NOTE in str(m.text)] for request in talk.model.requests]
    assert noted[:2] == [[], []]
    assert {len(texts) for texts in noted[2:]} == {1}
    assert len({texts[0] for texts in noted[2:]}) == 1
    assert not any(NOTE in str(message.text) for message in talk.state["messages"]), "in requests only"


def test_a_user_starts_it_at_any_time(tmp_path: Path) -> None:
    """A slash command needs no file."""
    talk = talk_to("sync", tmp_path, slash_commands=True)
    talk.say(given="/forms")
    assert talk.loaded == ["forms"]


@pytest.mark.parametrize("visibility", ["off", "user-only"])
def test_paths_show_nothing_that_a_rule_hides(visibility: Any, tmp_path: Path) -> None:
    """What the operator hides stays hidden, whatever is touched."""
    talk = talk_to("sync", tmp_path, loaded_status="conversation", visibility={"forms": visibility})
    talk.call(read("/src/app/pages/start.html"))
    talk.call(load("forms"))
    assert talk.loaded == []
    assert not any(NOTE in str(m.text) for request in talk.model.requests for m in request.messages)
