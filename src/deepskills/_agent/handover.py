"""What a fork takes over from its parent: handed over in this process around the `task` call, never by input or marks.

A fork starts with its parent's messages, or a summary of them, and without its parent's private state.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from deepskills._agent.thread import Thread

TASK_TOOL = "task"
"""deepagents' tool that starts a sub-agent."""


class _Parent:
    """What a parent has loaded; the first sub-agent that starts may take it."""

    def __init__(self, thread: Thread) -> None:
        self.thread: Thread | None = thread


_parent: ContextVar[_Parent | None] = ContextVar("deepskills_parent", default=None)


@contextmanager
def handing_over(tool_name: str, state: Mapping[str, Any]) -> Iterator[None]:
    """Let a sub-agent that starts inside know what this agent has loaded."""
    if tool_name != TASK_TOOL:
        yield
        return
    token = _parent.set(_Parent(Thread.of(state)))
    try:
        yield
    finally:
        _parent.reset(token)


def taken_over(thread: Thread) -> Thread | None:
    """Return the parent's thread if this one is new and continues its conversation: a task alone is one message."""
    parent = _parent.get()
    if parent is None:
        return None
    found, parent.thread = parent.thread, None
    return found if len(thread.messages) > 1 else None
