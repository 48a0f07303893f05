"""Skills of the store in use: edits while they are loaded, and another user who resumes an interrupted run."""

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.types import Command, interrupt
from store_support import Sessions, draft, seed, with_service

from deepskills.store import DatabaseSkillAdapter, SkillUpdate
from deepskills.testing import call_tools
from support import Conversation, Mode, load, loaded_in


@pytest.fixture
def kind() -> str:
    """What is tested here is the same on every database."""
    return "sqlite"


@tool
def ask() -> str:
    """Ask a human."""
    return str(interrupt("May I?"))


def user_of_context(runtime: Any) -> str:
    user: str = runtime.context["user"]
    return user


def test_an_edited_skill_is_loaded_again(mode: Mode, any_sessions: Sessions) -> None:
    """The new text takes the old one's place with its arguments."""
    (skill,) = seed(any_sessions, "alice", draft("one", content="Old words for <$ARGUMENTS>.\n"))
    talk = Conversation(mode, DatabaseSkillAdapter(user_id="alice", db_session_factory=any_sessions))
    talk.call(("load_skill", {"skill_name": "one", "arguments": "x y"}))
    assert "Old words for <x y>" in talk.model.requests[-1].text
    edit = SkillUpdate(content="New words for <$ARGUMENTS>.\n")
    with_service(any_sessions, lambda service: service.update_skill(skill.id, edit, "alice"))
    [event] = talk.stream("ok")
    assert (event["type"], event["skill"], event["trigger"]) == ("skill.loaded", "one", "system")
    request = talk.model.requests[-1]
    assert "Old words" not in request.text
    assert request.text.count("New words for <x y>") == 1
    assert loaded_in(request.system) == ["one"]
    assert talk.stream("ok") == []


def test_whoever_resumes_sees_their_own_skills(mode: Mode, any_sessions: Sessions) -> None:
    """Another user's answer to an interrupt shows their own catalog, and no text of the first user's skills."""
    seed(any_sessions, "ada", draft("adas", content="SECRET of ada"), draft("same", content="SECRET of ada too"))
    seed(any_sessions, "bob", draft("bobs", content="Words of bob"), draft("same", content="Other words of bob"))
    adapter: Any = DatabaseSkillAdapter(user_id=user_of_context, db_session_factory=any_sessions)
    talk = Conversation(mode, adapter, tools=[ask])
    talk.say(call_tools(load("adas"), load("same")), call_tools(("ask", {})), context={"user": "ada"})
    assert "SECRET of ada" in talk.model.requests[-1].text
    seen = len(talk.model.requests)
    talk.say(call_tools(load("adas"), load("bobs")), given=Command(resume="yes"), context={"user": "bob"})
    requests = talk.model.requests[seen:]
    assert len(requests) == 2
    for request in requests:
        assert "SECRET" not in request.text
        assert "adas" not in request.system
        assert "**bobs**" in request.system
    assert "Words of bob" in requests[-1].text
    assert "adas" not in talk.loaded
