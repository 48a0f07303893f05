"""Which texts were lost: those that other middleware evicted or cleared, by the signs it leaves. All else is intent."""

from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

_EVICTED_RESULT = "Tool result too large, the result of this tool call"
_EVICTED_MESSAGE = "Message content too large and was saved to the filesystem at:"
_CLEARED = {"cleared": True}


def is_lost(message: AnyMessage) -> bool:
    """Whether a message that carried a skill's text was evicted or cleared."""
    return is_evicted(message) or _is_cleared(message)


def is_evicted(message: AnyMessage) -> bool:
    """Whether the filesystem middleware put a stub in the place of a message's text."""
    text = str(message.text)
    if isinstance(message, ToolMessage):
        return text.startswith(_EVICTED_RESULT)
    return isinstance(message, HumanMessage) and text.startswith(_EVICTED_MESSAGE)


def _is_cleared(message: AnyMessage) -> bool:
    editing: Any = message.response_metadata.get("context_editing")
    return isinstance(editing, dict) and bool(editing.get("cleared"))


def shielded(message: AnyMessage) -> AnyMessage:
    """Return a message that context editing further in passes over: it takes it for one that it has cleared."""
    if not isinstance(message, ToolMessage):
        return message
    metadata = {**message.response_metadata, "context_editing": _CLEARED}
    return message.model_copy(update={"response_metadata": metadata})
