"""What passes from an agent to one that a tool call of it starts, in this process, never by input or marks.

A fork starts with its parent's messages, or a summary of them, and without its parent's private state. What a tool call
gives to an agent as its first message was written by a model: it is not a user's word.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langgraph.config import get_config

from deepskills._agent.thread import Thread

TASK_TOOL = "task"
"""deepagents' tool that starts a sub-agent."""

_SUB_AGENT = "subagent"
"""What deepagents calls an agent that its `task` tool has started, in the configuration of its run."""

_TOOLS_NODE = "tools"
"""The node in which LangChain's agents run tools; an agent below it was started by a tool, whoever's."""


class _Parent:
    """What a parent has loaded; the first sub-agent that starts may take it."""

    def __init__(self, thread: Thread) -> None:
        self.thread: Thread | None = thread


_parent: ContextVar[_Parent | None] = ContextVar("deepskills_parent", default=None)
_in_tool_call: ContextVar[bool] = ContextVar("deepskills_in_tool_call", default=False)


@contextmanager
def handing_over(tool_name: str, state: Mapping[str, Any]) -> Iterator[None]:
    """Let a sub-agent that starts inside know what this agent has loaded."""
    inside = _in_tool_call.set(True)
    parent = _parent.set(_Parent(Thread.of(state)) if tool_name == TASK_TOOL else None)
    try:
        yield
    finally:
        _parent.reset(parent)
        _in_tool_call.reset(inside)


def is_started_by_a_model() -> bool:
    """Whether this agent runs inside a tool call of another, so that no message of it is a user's own."""
    if _in_tool_call.get():
        return True
    try:
        config = get_config()
    except RuntimeError:
        return False
    metadata = config.get("metadata") or {}
    places = [metadata.get(key) for key in ("checkpoint_ns", "langgraph_checkpoint_ns")]
    steps = [step.partition(":")[0] for place in places if isinstance(place, str) for step in place.split("|")]
    return _TOOLS_NODE in steps or (config.get("configurable") or {}).get("ls_agent_type") == _SUB_AGENT


def taken_over(thread: Thread) -> Thread | None:
    """Return the parent's thread if this one is new and continues its conversation: a task alone is one message."""
    parent = _parent.get()
    if parent is None:
        return None
    found, parent.thread = parent.thread, None
    return found if len(thread.messages) > 1 else None
