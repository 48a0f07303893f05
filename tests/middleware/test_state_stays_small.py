"""What a thread keeps stays small, whatever callers name and however many messages come and go."""

from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage, RemoveMessage

from deepskills import SkillsMiddleware
from support import Conversation, Mode, both_modes, disk, skill_md, write_files


def skills(root: Path, **options: Any) -> SkillsMiddleware:
    write_files(root, {"skills/alpha/SKILL.md": skill_md("alpha", body="Text of alpha.")})
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], **options)


@both_modes
def test_unknown_pins_are_cut(mode: Mode, tmp_path: Path) -> None:
    """Neither a checkpoint nor a problem holds a name of a megabyte; a good pin beside it works."""
    talk = Conversation(mode, skills(tmp_path))
    long = "x" * 1_000_000
    pins = [long, {"name": long, "more": long}, [long], {"name": "alpha", "arguments": [long]}]
    talk.say(given={"messages": [HumanMessage("go")], "pinned_skills": pins})
    assert talk.loaded == ["alpha"]
    kept = ("pinned_skills", "skills_problems", "skills_context")
    for snapshot in talk.agent.get_state_history(talk.config):
        assert len(str([snapshot.values.get(key) for key in kept])) < 5_000
    assert any(found["code"] == "pin-unknown" for found in talk.state["skills_problems"])


@both_modes
def test_records_of_messages_that_are_gone_are_dropped(mode: Mode, tmp_path: Path) -> None:
    """Texts and notes of removed messages go; those of messages that are there, and of loads, stay."""
    talk = Conversation(mode, skills(tmp_path, slash_commands=True))
    talk.say(given={"messages": [HumanMessage("/alpha", id="first")]})
    own = talk.state["skills_context"]["records"]["alpha"]["message"]
    gone = [f"gone-{number}" for number in range(500)]
    sections = {
        "texts": {name: {"skill": "alpha"} for name in gone},
        "notes": {name: {"before": ["Once."]} for name in [*gone, "first"]},
    }
    talk.agent.update_state(talk.config, {"skills_context": sections, "messages": [RemoveMessage(own)]})
    talk.say()
    context = talk.state["skills_context"]
    assert list(context["texts"]) == [own]
    assert list(context["notes"]) == ["first"]
    assert talk.loaded == ["alpha"]
    assert talk.model.requests[-1].text.count("Text of alpha.") == 1
