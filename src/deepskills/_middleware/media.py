"""Keeps media of skills from ending a conversation with a model that does not take them.

`load_skill_asset` answers with an image, an audio or a PDF block, which stays in the history and goes out with every
later request. Where the model's profile says that it does not take one, a line stands in its place, in the request
alone: another model may take it. Profiles are incomplete and sometimes wrong, so a request with such blocks that was
refused is sent once more without them, and if that succeeds the line takes their place in state too. An error that the
provider gave no status may be one of the moment: it costs no image more than the request. Only answers of our own tool
are touched: what users sent is theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage

from deepskills._middleware.chat_models import is_overflow, profile_of, refusal_status
from deepskills._prompt.messages import word_media_left_out
from deepskills._prompt.section import ASSET_TOOL

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "image": ("image_inputs", "image_tool_message"),
    "audio": ("audio_inputs",),
    "file": ("pdf_inputs", "pdf_tool_message"),
}
"""The fields of a profile that say whether a block is taken in a tool's answer, by the block's type."""

_OTHER_REASONS = frozenset({401, 402, 403, 407, 408, 409, 425, 429})
"""Refusals for the sake of the caller or the moment, not of what was sent."""

_CLIENT_ERRORS = (ValueError, TypeError, NotImplementedError)
"""What a provider's class raises for a block that it cannot write."""


def _is_media(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in _FIELDS


def find_media_messages(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Return the answers of `load_skill_asset` that hold media."""
    return [
        message
        for message in messages
        if isinstance(message, ToolMessage)
        and message.name == ASSET_TOOL
        and isinstance(message.content, list)
        and any(map(_is_media, message.content))
    ]


def _leave_out(message: ToolMessage, profile: Mapping[str, Any] | None) -> ToolMessage:
    """Return a message with a line for each block that a profile rules out; for all without a profile."""
    blocks: list[Any] = [
        {"type": "text", "text": word_media_left_out(str(block.get("mime_type") or block["type"]))}
        if isinstance(block, dict)
        and _is_media(block)
        and (profile is None or any(profile.get(name) is False for name in _FIELDS[block["type"]]))
        else block
        for block in message.content
    ]
    if blocks == message.content:
        return message
    # One text is what every provider takes; some refuse lists.
    is_text = all(isinstance(block, dict) and block.get("type") == "text" for block in blocks)
    content: Any = "\n".join(block["text"] for block in blocks) if is_text else blocks
    return message.model_copy(update={"content": content})


def fit_media(messages: list[AnyMessage], model: object) -> list[AnyMessage]:
    """Return a request's messages without the media of skills that the model's profile rules out."""
    profile = profile_of(model)
    found = {id(message): _leave_out(message, profile) for message in find_media_messages(messages)} if profile else {}
    return [found.get(id(message), message) for message in messages] if found else messages


def leave_out_media(messages: Sequence[AnyMessage]) -> tuple[list[AnyMessage], list[ToolMessage]]:
    """Return messages without any media of skills, and those of them that were changed."""
    found = {id(message): _leave_out(message, None) for message in find_media_messages(messages)}
    return [found.get(id(message), message) for message in messages], list(found.values())


def may_refuse_media(error: Exception) -> bool:
    """Whether a model call may have failed because of what was sent, and not for its length."""
    if is_overflow(error):
        return False
    status = refusal_status(error)
    if status is None:
        return isinstance(error, _CLIENT_ERRORS)
    return 400 <= status < 500 and status not in _OTHER_REASONS  # noqa: PLR2004 - HTTP
