"""`unload_skill`: room is made, and what was unloaded can be loaded again."""

from pathlib import Path
from typing import Any

import pytest

from deepskills import SkillsMiddleware
from deepskills.testing import call_tools
from support import Conversation, Mode, both_modes, disk, load, loaded_in, skill_md, unload, write_files
from support.agents import loaded_state


def talk(mode: Mode, root: Path, **options: Any) -> Conversation:
    """Return a conversation about the skills `alpha`, which has a script, and `beta`."""
    write_files(
        root,
        {
            "skills/alpha/SKILL.md": skill_md("alpha"),
            "skills/alpha/scripts/run.py": "print()",
            "skills/beta/SKILL.md": skill_md("beta"),
        },
    )
    return Conversation(mode, SkillsMiddleware(backend=disk(root), sources=["/skills"], **options))


@both_modes
def test_unloading_removes_every_trace_from_state(mode: Mode, tmp_path: Path) -> None:
    """An unload takes the skill's name, its resources and its record; other skills keep theirs."""
    conversation = talk(mode, tmp_path)
    conversation.call(load("alpha"))
    conversation.call(load("beta"))

    [answer] = conversation.call(unload("alpha"))

    assert answer.status == "success"
    assert answer.name == "unload_skill"
    assert "alpha" in answer.text
    assert conversation.state["skills_loaded"] == ["beta"]
    assert conversation.state["skill_resources"] == {"beta": []}
    assert list(conversation.state["skills_context"]["records"]) == ["beta"]


@pytest.mark.parametrize("asked", ["alpha", "ALPHA", "Alpha"])
def test_a_loaded_name_is_found_in_any_case(mode: Mode, tmp_path: Path, asked: str) -> None:
    """The model may write the name in another case."""
    conversation = talk(mode, tmp_path)
    conversation.call(load("alpha"))

    [answer] = conversation.call(unload(asked))

    assert answer.status == "success"
    assert conversation.loaded == []


@both_modes
def test_the_answer_says_what_is_free_now(mode: Mode, tmp_path: Path) -> None:
    """The answer counts free slots and free tokens, what else is loaded taken into account."""
    conversation = talk(mode, tmp_path, max_loaded_skills=3, max_loaded_tokens=5_000)
    conversation.call(load("alpha"))
    conversation.call(load("beta"))
    kept = conversation.state["skills_context"]["records"]["beta"]["tokens"]

    [first] = conversation.call(unload("alpha"))
    [second] = conversation.call(unload("beta"))

    assert "2 of 3 skills" in first.text
    assert f"{5_000 - kept:,} of 5,000 tokens" in first.text
    assert "3 of 3 skills" in second.text
    assert "5,000 of 5,000 tokens" in second.text


@both_modes
def test_without_a_token_limit_the_answer_counts_slots_alone(mode: Mode, tmp_path: Path) -> None:
    """Where tokens have no limit, none are said to be free."""
    conversation = talk(mode, tmp_path, max_loaded_tokens=None)
    conversation.call(load("alpha"))

    [answer] = conversation.call(unload("alpha"))

    assert "10 of 10 skills" in answer.text
    assert "token" not in answer.text


@pytest.mark.parametrize(
    ("loaded", "asked"),
    [([], "alpha"), (["beta"], "alpha"), (["beta"], "no-such-skill"), (["alpha", "beta"], "gamma")],
    ids=["nothing-loaded", "another-loaded", "unknown", "two-loaded"],
)
def test_what_is_not_loaded_cannot_be_unloaded(mode: Mode, tmp_path: Path, loaded: list[str], asked: str) -> None:
    """Unloading what is not loaded is an error that lists what is, and changes nothing."""
    conversation = talk(mode, tmp_path)
    conversation.say(*(call_tools(load(name)) for name in loaded))
    before = loaded_state(conversation.state)

    [answer] = conversation.call(unload(asked))

    assert answer.status == "error"
    assert asked in answer.text
    for name in loaded:
        assert f"{name} ({before['records'][name]['tokens']} tokens)" in answer.text
    assert loaded_state(conversation.state) == before


@both_modes
def test_a_second_load_finds_resources_anew(mode: Mode, tmp_path: Path) -> None:
    """Loaded again, a skill brings its text and the files that lie there now."""
    conversation = talk(mode, tmp_path)
    conversation.call(load("alpha"))
    conversation.call(unload("alpha"))
    write_files(tmp_path, {"skills/alpha/references/added.md": "new"})
    (tmp_path / "skills/alpha/scripts/run.py").unlink()

    [answer] = conversation.call(load("alpha"))

    assert answer.status == "success"
    assert "Instructions of alpha." in answer.text
    assert conversation.loaded == ["alpha"]
    assert conversation.state["skill_resources"]["alpha"] == [
        {"path": "/skills/alpha/references/added.md", "type": "reference", "skill_name": "alpha"}
    ]


@both_modes
def test_a_skill_loaded_again_is_last_in_load_order(mode: Mode, tmp_path: Path) -> None:
    """Load order is the order of the loads that still hold."""
    conversation = talk(mode, tmp_path)

    conversation.say(*(call_tools(call) for call in (load("alpha"), load("beta"), unload("alpha"), load("alpha"))))

    assert conversation.loaded == ["beta", "alpha"]


@both_modes
def test_the_next_model_call_shows_the_hint_again(mode: Mode, tmp_path: Path) -> None:
    """After an unload the catalog entry is what it was before the load."""
    conversation = talk(mode, tmp_path)

    conversation.say(call_tools(load("alpha")), call_tools(unload("alpha")))

    before, while_loaded, after = (request.system for request in conversation.model.requests)
    assert loaded_in(while_loaded) == ["alpha"]
    assert 'Use `load_skill("alpha")` to read full instructions' in after
    assert after == before


@both_modes
def test_unloading_reads_no_file(mode: Mode, tmp_path: Path) -> None:
    """A skill whose files are gone can still be unloaded."""
    conversation = talk(mode, tmp_path)
    conversation.call(load("alpha"))
    (tmp_path / "skills").rename(tmp_path / "elsewhere")

    [answer] = conversation.call(unload("alpha"))

    assert answer.status == "success"
    assert conversation.loaded == []


@both_modes
def test_a_slot_that_was_freed_can_be_taken(mode: Mode, tmp_path: Path) -> None:
    """With one slot, skills can be loaded one after another for as long as each is unloaded first."""
    conversation = talk(mode, tmp_path, max_loaded_skills=1)

    calls = (load("alpha"), load("beta"), unload("alpha"), load("beta"))
    answers = conversation.say(*(call_tools(call) for call in calls))

    assert [answer.status for answer in answers] == ["success", "error", "success", "success"]
    assert conversation.loaded == ["beta"]
