"""Calls that a person changed before they run."""

from collections.abc import Mapping

from langchain.agents.middleware.types import ToolCallRequest

_EDITED_CALLS = "hitl_edited_tool_calls"
"""Where LangChain's human review, in batched mode, keeps the changed calls until they run."""


def as_edited(request: ToolCallRequest) -> ToolCallRequest:
    """Return a call as it will run, also where the middleware that changes it stands behind ours."""
    edits = request.state.get(_EDITED_CALLS) if isinstance(request.state, Mapping) else None
    edited = edits.get(request.tool_call["id"]) if isinstance(edits, Mapping) else None
    if edited is None:
        return request
    return request.override(tool_call={**request.tool_call, "name": edited["name"], "args": edited["args"]})
