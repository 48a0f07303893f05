"""One model call with skills: the request that goes out, a second try, and what comes back into state."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic

from langchain.agents.middleware.types import (
    ContextT,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ResponseT,
    ToolCallRequest,
)
from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills._agent.request import Composition, is_overflow
from deepskills._agent.skill_tools import (
    DISCLOSED,
    InUse,
    Resolution,
    acceptance,
    bound,
    disclosed,
    resolved_tools,
    shown_to_deepagents,
)
from deepskills._format.text import one_line
from deepskills._prompt.wording import field_text

logger = logging.getLogger("deepskills")


class Turn(Generic[ContextT]):
    """What one model call needs to know of skills."""

    def __init__(
        self,
        request: ModelRequest[ContextT],
        composed: Composition,
        use: InUse,
        resolutions: Mapping[str, Resolution],
    ) -> None:
        self._request = request
        self._composed = composed
        self._use = use
        self._resolved = {name: found.tools for name, found in resolutions.items()}
        self._tools, self._record = bound(request.tools, use, self._resolved, acceptance(request.model))

    @contextmanager
    def resolving(self) -> Iterator[None]:
        """Answer deepagents' questions for tools from what was resolved for this turn."""
        token = resolved_tools.set(self._resolved)
        try:
            yield
        finally:
            resolved_tools.reset(token)

    def original(self, request: ModelRequest[ContextT]) -> ModelRequest[ContextT]:
        """Return a request with the state as it is; only deepagents' class is to see another."""
        return request.override(state=self._request.state)

    def request(self) -> ModelRequest[ContextT]:
        """Return the request with every loaded skill's text and tools."""
        return self._with(self._composed.messages)

    def bare_request(self) -> ModelRequest[ContextT]:
        """Return the request without the texts that were put back; from now on the turn is one without them."""
        self._composed = self._composed.without_put_back()
        return self._with(self._composed.messages)

    def may_retry(self, error: Exception) -> bool:
        """Whether the model had no room for what was put back."""
        return self._composed.bare is not None and is_overflow(error)

    def finish(
        self, response: ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]
    ) -> ExtendedModelResponse[ResponseT]:
        """Return the response with what this turn changes in state, and tell what became of lost texts."""
        tell(self._composed, self._request.runtime.stream_writer)
        command = response.command if isinstance(response, ExtendedModelResponse) else None
        before = command.update if command is not None and isinstance(command.update, dict) else {}
        record = dict(sorted({**before.get(DISCLOSED, {}), **self._record}.items()))
        inner = response.model_response if isinstance(response, ExtendedModelResponse) else response
        update = {**before, **self._composed.update, DISCLOSED: record}
        return ExtendedModelResponse(model_response=inner, command=Command(update=update))

    def _with(self, messages: list[AnyMessage]) -> ModelRequest[ContextT]:
        state: Any = self._composed.seen_in(self._request.state)
        request = self._request.override(messages=messages, state=state)
        if not (self._use.loaded or self._use.seen or self._use.hidden):
            return request
        shown = shown_to_deepagents(state.get("skills_metadata") or (), self._use)
        seen_by_deepagents: Any = {**state, "skills_metadata": shown}
        return request.override(tools=self._tools, state=seen_by_deepagents)


def tell(composed: Composition, write: Callable[[Any], None]) -> None:
    """Log and stream which texts were put back, and which could not be had again."""
    for name, tokens in composed.reattached.items():
        logger.info("Put the text of skill %r back into the request", name)
        write({"type": "skill.reattached", "skill": name, "tokens": tokens})
    for name, reason in composed.lost.items():
        logger.error("Unloaded skill %r: its text was lost and its file could not be read: %s", name, one_line(reason))
        write({"type": "skill.unloaded", "skill": name, "reason": reason})


def hidden_tool(request: ToolCallRequest) -> str | None:
    """Return the name that stands for the called tool, if it is a skill's and not the agent's own."""
    if request.tool is not None:
        return None
    return disclosed(request.state).get(request.tool_call["name"])


def with_tool(request: ToolCallRequest, found: Resolution) -> ToolCallRequest:
    """Return the call with the tool it means; unchanged, it fails as unknown."""
    name = request.tool_call["name"]
    tool = next((tool for tool in found.tools if tool.name == name), None)
    return request.override(tool=tool) if tool is not None else request


def failed_call(request: ToolCallRequest, found: Resolution) -> ToolMessage | None:
    """Return what to answer when the tool could not be had."""
    if found.failure is None:
        return None
    name = request.tool_call["name"]
    text = f"Error: the tool '{name}' could not be had: {field_text(found.failure, 300)}. Work without it."
    return ToolMessage(text, name=name, tool_call_id=request.tool_call["id"] or "", status="error")
