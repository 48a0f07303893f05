"""An image of a skill and a model that does not take it: the turn is answered, and so is every later one."""

import base64
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, skill_md, write_files

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 40
ASSET = ("load_skill_asset", {"skill_name": "alpha", "relative_path": "assets/logo.png"})


class RefusalError(Exception):
    """What a provider's client raises; with status 200 for what came in a stream."""

    def __init__(self, status_code: int) -> None:
        super().__init__("Image input is not supported.")
        self.status_code = status_code
        self.body = {"type": "invalid_request_error"} if status_code == 200 else None


class Blind(ScriptedChatModel):
    """Refuses requests with an image."""

    status: int = 400
    refused: int = 0

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if any(isinstance(message.content, list) and "image" in str(message.content) for message in messages):
            self.refused += 1
            raise RefusalError(self.status) if self.status else ValueError("No generations found in stream.")
        return super()._generate(messages, stop, run_manager, **kwargs)


def talk(mode: Mode, root: Path, model: ScriptedChatModel) -> Conversation:
    """Return a conversation about a skill with an image."""
    write_files(root, {"skills/alpha/SKILL.md": skill_md("alpha"), "skills/alpha/assets/logo.png": PNG})
    middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"], extra_tools=["load_skill_asset"])
    return Conversation(mode, middleware, model=model)


def answers(conversation: Conversation) -> list[Any]:
    """Return what state says that the tool answered."""
    messages = conversation.state["messages"]
    return [message.content for message in messages if isinstance(message, ToolMessage) and message.name == ASSET[0]]


@both_modes
@pytest.mark.parametrize("status", [400, 200])
def test_a_refused_image_is_left_out_and_stays_out(mode: Mode, tmp_path: Path, status: int) -> None:
    """One refusal, an answer in the same turn, and a line in the image's place from then on."""
    model = Blind(replies=[], status=status)
    conversation = talk(mode, tmp_path, model)
    conversation.say(call_tools(load("alpha")), call_tools(ASSET), "Seen.")
    assert model.refused == 1
    assert conversation.state["messages"][-1].text == "Seen."
    [left] = answers(conversation)
    assert "image/png is left out" in left
    conversation.say("Well.")
    assert model.refused == 1


@both_modes
def test_a_profile_keeps_an_image_out_of_the_request_alone(mode: Mode, tmp_path: Path) -> None:
    """State keeps it for a model that takes it."""
    model = Blind(replies=[], profile={"image_tool_message": False})
    conversation = talk(mode, tmp_path, model)
    conversation.say(call_tools(load("alpha")), call_tools(ASSET), "Seen.")
    assert model.refused == 0
    assert "image/png is left out" in model.requests[-1].text
    [kept] = answers(conversation)
    assert kept[0]["type"] == "image"


@both_modes
def test_an_error_that_tells_no_status_costs_no_image_in_state(mode: Mode, tmp_path: Path) -> None:
    """It may have been one of the moment; the turn is answered all the same."""
    model = Blind(replies=[], status=0)
    conversation = talk(mode, tmp_path, model)
    conversation.say(call_tools(load("alpha")), call_tools(ASSET), "Seen.")
    assert model.refused == 1
    assert conversation.state["messages"][-1].text == "Seen."
    [kept] = answers(conversation)
    assert kept[0]["type"] == "image"


def attempts(mode: Mode, root: Path, status: int, given: Any = "go") -> int:
    model = Blind(replies=[], status=status)
    conversation = talk(mode, root, model)
    try:
        conversation.say(call_tools(load("alpha")), call_tools(ASSET), given=given)
    except RefusalError:
        return model.refused
    return -model.refused


@both_modes
def test_other_refusals_and_the_users_own_media_fail_as_they_would(mode: Mode, tmp_path: Path) -> None:
    """A key that is wrong or a limit of requests is no word on an image, and a user's image is the user's."""
    assert [attempts(mode, tmp_path, status) for status in (401, 403, 429, 500)] == [1, 1, 1, 1]
    block = {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}
    assert attempts(mode, tmp_path, 400, {"messages": [HumanMessage([block])]}) == 1
