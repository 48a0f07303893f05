"""`unload_when="cheap"`: an unload frees its slot at once, its text leaves when the prefix changes anyway."""

from pathlib import Path
from typing import Any

from deepagents.middleware.summarization import SummarizationMiddleware as DeepAgentsSummarization
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import HumanMessage

from deepskills import SkillsMiddleware
from support import Conversation, Mode, both_modes, disk, load, skill_md, unload, write_files

LONG = 2_000


def talk(mode: Mode, root: Path, *others: Any, **options: Any) -> Conversation:
    """Return a conversation with three skills of some 500 tokens and cheap unloading; `others` stand before ours."""
    write_files(root, {f"skills/{n}/SKILL.md": skill_md(n, body=f"{n} rule. " * (LONG // 8)) for n in ("a", "b", "c")})
    settings = {"loaded_status": "conversation", "unload_when": "cheap", **options}
    return Conversation(mode, *others, SkillsMiddleware(backend=disk(root), sources=["/skills"], **settings))


def shown(conversation: Conversation) -> list[str]:
    """Return the skills whose whole text is in the latest request."""
    text = conversation.model.requests[-1].text
    return [name for name in ("a", "b", "c") if f"{name} rule. {name} rule." in text]


@both_modes
def test_state_and_events_are_those_of_an_unload(mode: Mode, tmp_path: Path) -> None:
    """The slot is free at once and the answer says that the text no longer applies; the request only grows."""
    chat = talk(mode, tmp_path)
    chat.call(load("a"))
    before = [message.text for message in chat.model.requests[-1].messages]
    [answer] = chat.call(unload("a"))
    after = [message.text for message in chat.model.requests[-1].messages]
    assert "no longer applies" in answer.text
    assert chat.loaded == []
    assert after[: len(before)] == before
    assert shown(chat) == ["a"]


@both_modes
def test_the_text_leaves_when_a_load_needs_its_tokens(mode: Mode, tmp_path: Path) -> None:
    """Lingering text counts until a load needs the room; then it leaves for good, and budgets hold."""
    chat = talk(mode, tmp_path, max_loaded_tokens=1_500)
    chat.call(load("a"), load("b"))
    chat.call(unload("a"))
    assert shown(chat) == ["a", "b"]
    [answer] = chat.call(load("c"))
    assert answer.status == "success"
    assert shown(chat) == ["b", "c"]
    chat.say("Fine.")
    assert shown(chat) == ["b", "c"]
    assert "text removed here" in chat.model.requests[-1].text


@both_modes
def test_budgets_hold_however_a_text_comes_in(mode: Mode, tmp_path: Path) -> None:
    """What lingers leaves for a load in the turn of its unload, and for a pin, as for a load that comes later."""
    chat = talk(mode, tmp_path, max_loaded_tokens=1_500)
    chat.call(load("a"), load("b"))
    answers = chat.call(unload("a"), load("c"))
    assert [answer.status for answer in answers] == ["success", "success"]
    assert shown(chat) == ["b", "c"]

    chat = talk(mode, tmp_path, max_loaded_tokens=1_500)
    chat.call(load("a"), load("b"))
    chat.call(unload("a"))
    chat.say(given={"messages": [HumanMessage("go")], "pinned_skills": ["c"]})
    assert shown(chat) == ["b", "c"]


@both_modes
def test_the_text_leaves_with_a_changed_section(mode: Mode, tmp_path: Path) -> None:
    """A catalog that changes breaks the prefix anyway, so what lingers goes with it and does not return."""
    chat = talk(mode, tmp_path, refresh="run")
    chat.call(load("a"))
    chat.call(unload("a"))
    assert shown(chat) == ["a"]
    write_files(tmp_path, {"skills/d/SKILL.md": skill_md("d")})
    chat.say("Fine.")
    assert shown(chat) == []
    chat.say("Fine.")
    assert shown(chat) == []


@both_modes
def test_a_summary_takes_lingering_texts_along(mode: Mode, tmp_path: Path) -> None:
    """After a summary no text of an unloaded skill is in a request, and no loaded one is missing."""
    summary = SummarizationMiddleware(model=_summarizer(), trigger=("messages", 12), keep=("messages", 4))
    chat = talk(mode, tmp_path, summary)
    chat.call(load("a"), load("b"))
    chat.call(unload("a"))
    assert shown(chat) == ["a", "b"]
    for _ in range(6):
        chat.say("Fine.")
    assert shown(chat) == ["b"]


@both_modes
def test_a_summary_that_leaves_the_history_takes_lingering_texts_along(mode: Mode, tmp_path: Path) -> None:
    """Summaries of deepagents change the request alone and have no id: each is noticed, also one of the same words."""
    backend = disk(tmp_path)
    summary = DeepAgentsSummarization(_summarizer(), backend=backend, trigger=("messages", 14), keep=("messages", 8))
    chat = talk(mode, tmp_path, summary)
    for name in ("a", "b"):
        chat.call(load(name))
        chat.call(unload(name))
        assert name in shown(chat)
        before = _first_kept(chat)
        while _first_kept(chat) == before:
            chat.say("Fine.")
        assert shown(chat) == []


def _first_kept(chat: Conversation) -> Any:
    """Return where the latest request begins behind a summary."""
    messages = [message for message in chat.model.requests[-1].messages if message.type != "system"]
    return messages[1].id if messages[0].additional_kwargs.get("lc_source") == "summarization" else None


@both_modes
def test_what_discovery_unloads_leaves_at_once(mode: Mode, tmp_path: Path) -> None:
    """Only `unload_skill` is deferred: a skill whose file vanished is gone from the next request."""
    chat = talk(mode, tmp_path, refresh="run")
    chat.call(load("a"))
    (tmp_path / "skills/a/SKILL.md").unlink()
    chat.say("Fine.")
    assert shown(chat) == []
    assert chat.loaded == []


@both_modes
def test_a_reload_supersedes_what_lingers(mode: Mode, tmp_path: Path) -> None:
    """Loaded again, the skill counts as loaded by its new text."""
    chat = talk(mode, tmp_path)
    chat.call(load("a"))
    chat.call(unload("a"))
    [answer] = chat.call(load("a"))
    assert "<skill_content" in answer.text
    assert chat.loaded == ["a"]


def _summarizer() -> Any:
    from deepskills.testing import ScriptedChatModel  # noqa: PLC0415 - the summary's own model

    return ScriptedChatModel(replies=lambda _messages: "A summary.")
