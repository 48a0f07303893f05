"""Log lines of problems, skills that only users may start, and what is told of hidden skills."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deepskills import SkillExtension
from support import MODES, Conversation, Mode, load, skill_md, skills, write_files

both_modes = pytest.mark.parametrize("mode", MODES)


def plain(name: str) -> str:
    """Return a file whose name need not follow the rules."""
    return f"---\nname: {name}\ndescription: Does a thing.\n---\n"


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@both_modes
def test_a_problem_is_logged_once_per_process(mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many threads and agents find it; a file with another problem is logged again."""
    write_files(tmp_path, {"skills/a/SKILL.md": plain("A"), "skills/b/SKILL.md": "---\nname: b\n---\n"})
    for _ in range(3):
        Conversation(mode, skills(tmp_path)).say("done")
    lines = warned(caplog)
    assert len(lines) == len(set(lines)) == 3
    assert "name-invalid" in "".join(lines)
    assert "description-missing" in "".join(lines)
    write_files(tmp_path, {"skills/b/SKILL.md": "no frontmatter"})
    Conversation(mode, skills(tmp_path)).say("done")
    assert len(warned(caplog)) == 4


def test_many_problems_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More than twenty new problems of one discovery are counted by code in one line."""
    write_files(tmp_path, {f"skills/s{n}/SKILL.md": plain(f"S{n}!") for n in range(19)})
    write_files(tmp_path, {f"skills/b{n}/SKILL.md": "no frontmatter" for n in range(2)})
    talk = Conversation("sync", skills(tmp_path))
    talk.say("done")
    [line] = warned(caplog)
    assert "19 name-invalid" in line
    assert "2 no-frontmatter" in line
    assert len(talk.state["skills_problems"]) > 20
    Conversation("sync", skills(tmp_path)).say("done")
    assert len(warned(caplog)) == 1


@both_modes
def test_skills_that_nobody_can_start_are_told(mode: Mode, tmp_path: Path) -> None:
    """Without slash commands one warning counts them; the operator's `always` shows one in spite of its author."""
    fields: dict[str, Any] = {"disable-model-invocation": True}
    write_files(tmp_path, {f"skills/u{n}/SKILL.md": skill_md(f"u{n}", "Ships it.", **fields) for n in range(3)})
    write_files(tmp_path, {"skills/plain/SKILL.md": skill_md("plain")})
    talk = Conversation(mode, skills(tmp_path))
    talk.say("done")
    [found] = talk.state["skills_problems"]
    assert (found["code"], found["severity"]) == ("skills-user-only", "warning")
    assert " 3 " in found["message"]
    talk = Conversation(mode, skills(tmp_path, slash_commands=True))
    talk.say("done")
    assert talk.state["skills_problems"] == []

    def rule(skill: Any, _runtime: Any) -> Any:
        return "always" if skill["name"] == "u1" else "on"

    for visibility in ({"u1": "always"}, rule):
        talk = Conversation(mode, skills(tmp_path, visibility=visibility, extra_tools=["search_skills"]))
        refused, found_it = talk.call(load("u0"), ("search_skills", {"query": "ships"}))
        (loaded,) = talk.call(load("u1"))
        assert (refused.status, loaded.status, talk.loaded) == ("error", "success", ["u1"])
        assert found_it.text == "- **u1**: Ships it."
        assert " 2 " in talk.state["skills_problems"][0]["message"]
        assert "**u1**: Ships it." in talk.model.requests[0].system


class Hides(SkillExtension):
    """Hides one skill by its name, the way a tenant's rule would."""

    def visibility(self, skills: Sequence[Any], run: Any) -> Any:
        del run
        return {skill.name: "off" for skill in skills if skill.name == "secret-plan"}


@both_modes
def test_a_broken_file_of_a_hidden_skill_tells_nothing(mode: Mode, tmp_path: Path) -> None:
    """Visibility is asked by the directory's name: a broken file answers as if there were none."""
    write_files(tmp_path, {"skills/a/SKILL.md": skill_md("a"), "skills/bad/SKILL.md": "broken"})
    write_files(tmp_path, {"skills/secret-plan/SKILL.md": "no frontmatter"})

    def rule(skill: Any, _runtime: Any) -> Any:
        return "off" if skill["name"] == "secret-plan" else "on"

    def only_user(skill: Any, _runtime: Any) -> Any:
        return "user-only" if skill["name"] == "secret-plan" else "on"

    options: list[dict[str, Any]] = [
        {"visibility": {"secret-plan": "off"}},
        {"visibility": rule},
        {"visibility": only_user},
        {"extensions": [Hides()]},
    ]
    for chosen in options:
        talk = Conversation(mode, skills(tmp_path, extra_tools=["list_skill_assets"], **chosen))
        hidden, nothing, broken, files = talk.call(
            load("secret-plan"), load("secret-plam"), load("bad"), ("list_skill_assets", {"skill_name": "secret-plan"})
        )
        assert hidden.text.replace("secret-plan", "secret-plam") == nothing.text, chosen
        assert "no skill named" in files.text.lower(), chosen
        assert "no-frontmatter" in broken.text


@both_modes
def test_descriptions_of_name_only_skills_are_not_searched(mode: Mode, tmp_path: Path) -> None:
    """`search_skills` finds such a skill by its name, and by nothing that its description or tags say."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha", "Handles the zebra merger.", tags="unicorn")})
    write_files(tmp_path, {"skills/other/SKILL.md": skill_md("other", "Handles invoices.")})
    talk = Conversation(mode, skills(tmp_path, visibility={"alpha": "name-only"}, extra_tools=["search_skills"]))
    by_text, by_tag, by_name = talk.call(
        *(("search_skills", {"query": query}) for query in ("zebra merger", "unicorn", "alpha"))
    )
    assert "alpha" not in by_text.text.replace("zebra merger", "")
    assert "alpha" not in by_tag.text
    assert by_name.text == "- **alpha**"
