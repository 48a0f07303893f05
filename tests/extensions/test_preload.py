"""Preload: skills that a thread starts with."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent

from deepskills import SkillsMiddleware
from deepskills.extensions import Preload
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, skill_md, unload, write_files


def library(root: Path, *names: str, **options: Any) -> SkillsMiddleware[Any, Any]:
    for name in ("alpha", "beta"):
        write_files(root, {f"/skills/{name}/SKILL.md": skill_md(name)})
    write_files(root, {"/skills/deploy/SKILL.md": skill_md("deploy", disable_model_invocation="true")})
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=[Preload(names)], **options)


@both_modes
def test_a_thread_starts_with_the_named_skills(mode: Mode, tmp_path: Path) -> None:
    """The first request has the text, the skill counts as loaded, and it is not loaded twice."""
    talk = Conversation(mode, library(tmp_path, "ALPHA", "alpha"))
    talk.say()
    assert talk.loaded == ["alpha"]
    assert talk.model.requests[0].text.count("Instructions of alpha.") == 1
    talk.say()
    assert talk.model.requests[-1].text.count("Instructions of alpha.") == 1


@both_modes
def test_an_unload_stands(mode: Mode, tmp_path: Path) -> None:
    """What was unloaded is not loaded again at the next run."""
    talk = Conversation(mode, library(tmp_path, "alpha"))
    talk.call(unload("alpha"))
    talk.say()
    assert talk.loaded == []
    talk.call(load("alpha"))
    assert talk.loaded == ["alpha"]


@both_modes
def test_what_the_model_may_not_see_is_a_problem(mode: Mode, tmp_path: Path) -> None:
    """A skill for the user alone, one that is off and an unknown one are not loaded, and said to be so once."""
    middleware = library(tmp_path, "deploy", "beta", "nope", "alpha", visibility={"beta": "off"})
    talk = Conversation(mode, middleware)
    talk.say()
    talk.say()
    assert talk.loaded == ["alpha"]
    assert "Instructions of deploy" not in talk.model.requests[-1].text
    problems = [p["path"] for p in talk.state["skills_problems"] if p["code"] == "preload-unavailable"]
    assert sorted(problems) == ["beta", "deploy", "nope"]


@both_modes
def test_a_declared_sub_agent_starts_with_its_skills(mode: Mode, tmp_path: Path) -> None:
    """Each task of a sub-agent with its own middleware begins loaded; its parent does not."""
    model = ScriptedChatModel(
        replies=[
            call_tools(("task", {"description": "Do one.", "subagent_type": "helper"})),
            "One.",
            call_tools(("task", {"description": "Do two.", "subagent_type": "helper"})),
            "Two.",
            "Done.",
        ]
    )
    helper: Any = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "Help.",
        "middleware": [library(tmp_path, "alpha")],
    }
    run(mode, create_deep_agent(model, subagents=[helper]))
    shown = ["Instructions of alpha." in request.text for request in model.requests]
    assert shown == [False, True, False, True, False]


def test_a_single_name_has_to_stand_in_a_list() -> None:
    """A text would be taken letter by letter."""
    with pytest.raises(ValueError, match="list of names"):
        Preload("alpha")
