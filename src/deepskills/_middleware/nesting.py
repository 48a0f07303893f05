"""An agent inside another graph's run: whether it takes slash commands, and what a parent's tool call passes on.

A node of an outer graph may hand the user's message on, or write one that a model made up, and a tool call's arguments
are always a model's words. These cannot be told apart from inside, so an agent takes slash commands only where it runs
by itself, unless the application says that its input is a user's (`slash_commands="always"`).

A fork starts with its parent's messages, or a summary of them, and without its parent's private state. What the parent
has loaded passes to it in this process, never by input or marks, which any client could write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from langchain_core.runnables import RunnableConfig

from deepskills._io.backends import CallInProgress, call_in_progress
from deepskills._middleware.extension import LoadedSkill
from deepskills._middleware.run import OuterCall, Run, outer_call, place_of
from deepskills._middleware.state import Thread, current_config
from deepskills._middleware.visibility import find_unseen_names
from deepskills._middleware.workarounds import has_outer_metadata


def is_own_graph() -> bool:
    """Whether `before_agent` is called by a node of a graph of one's own, not by the one that an agent has for it."""
    node = (current_config().get("metadata") or {}).get("langgraph_node")
    return isinstance(node, str) and not node.endswith(".before_agent")


TASK_TOOL = "task"
"""deepagents' tool that starts a sub-agent."""

_SUB_AGENT = "subagent"
"""What deepagents calls an agent that its `task` tool has started, in the configuration of its run."""


@contextmanager
def hand_over(tool_name: str, run: Run) -> Iterator[None]:
    """Let a sub-agent that starts inside, and backends, know what this agent has loaded."""
    outer = outer_call.get() or OuterCall()
    # Only `task`: an agent that another tool starts must not find what an outer `task` call left here.
    heirs = [(run.thread, run.settings.subagent_inherit == "inherit")] if tool_name == TASK_TOOL else []
    # Known only if an extension judges calls; without one there is nothing that could forbid.
    own = OuterCall(place_of(run.runtime), _find_limits(run), run.brought) if run.view is not None else outer
    inside = outer_call.set(replace(own, heirs=heirs))
    loaded = run.thread.loaded
    # Backends that serve skills read a file only while its skill is loaded; this is how they know.
    served = tuple(loaded.records[name] for name in loaded.names if "origin" in loaded.records[name])
    # Hidden names are computed on demand: only the store's backend asks for them, and few tools go there.
    call = call_in_progress.set(
        CallInProgress(
            run.runtime,
            loaded.names,
            served,
            hidden=lambda: run.perform(find_unseen_names(run)),
            ahidden=lambda: run.aperform(find_unseen_names(run)),
        )
    )
    try:
        yield
    finally:
        call_in_progress.reset(call)
        outer_call.reset(inside)


def _find_limits(run: Run) -> tuple[LoadedSkill, ...]:
    """Return what is in use here, before this turn or by now, as an agent that this call starts inherits it."""
    found = {id(skill): skill for skill in (*run.in_use.skills, *run.loaded)}
    return tuple(
        replace(skill, is_lost=True, is_inherited=True, is_recent=False, grants=False) for skill in found.values()
    )


def takes_slash_commands(run: Run) -> bool:
    """Whether a run's newest user message may start skills: by itself, or where the application says so."""
    return run.settings.slash_commands == "always" or not _is_nested(run.runtime.config)


def _is_nested(config: RunnableConfig) -> bool:
    """Whether an agent runs inside another graph's run, as far as LangGraph and deepagents tell.

    Nothing tells it of a graph of one's own that is called on the very thread of the graph around it.
    """
    own, metadata = config.get("configurable") or {}, config.get("metadata") or {}
    if outer_call.get() is not None or own.get("ls_agent_type") == _SUB_AGENT:
        return True
    # LangGraph joins the levels of nested graphs by "|".
    if "|" in str(metadata.get("langgraph_checkpoint_ns") or ""):
        return True
    # A thread of its own starts its levels again, and only metadata still shows the graph around it.
    if has_outer_metadata(metadata):
        return True
    thread, outer_thread = own.get("thread_id"), metadata.get("thread_id")
    return bool(thread and outer_thread) and str(thread) != str(outer_thread)


def take_over() -> tuple[Thread | None, bool]:
    """Return the thread of the parent that started this one by `task`, and whether its skills are passed on to all."""
    outer = outer_call.get()
    # Taken once: the sub-agent's own tool calls run in this context too, and must not find it again.
    return outer.heirs.pop() if outer is not None and outer.heirs else (None, False)


def is_continued(thread: Thread) -> bool:
    """Whether a sub-agent's thread continues its parent's conversation: a task alone is one message."""
    return len(thread.messages) > 1
