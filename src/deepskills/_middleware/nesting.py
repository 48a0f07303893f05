"""An agent inside another graph's run: whether a message is the user's, and what a parent's tool call passes on.

A node of an outer graph may hand the user's message on, or write one that a model made up. Names of nodes tell nothing.
So the input of the outermost graph is remembered while it runs, and a message counts as the user's if that held it.
LangChain calls a handler for every run with the id of the run above it. Ours does nothing but follow that tree, and
keeps only digests of those texts of an input that start with a slash.

What a tool call gives to an agent as its first message was written by a model: it is not a user's word. A fork starts
with its parent's messages, or a summary of them, and without its parent's private state. What the parent has loaded
passes to it in this process, never by input or marks, which anybody could write.
"""

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langchain_core.tracers.context import register_configure_hook
from langgraph.config import get_config

from deepskills._io.backends import CallInProgress, call_in_progress, loads_in_use
from deepskills._middleware.commands import first_text
from deepskills._middleware.run import Run
from deepskills._middleware.state import Thread, fingerprint
from deepskills._middleware.visibility import unseen_names

MAX_RUNS = 20_000
"""How many runs are followed at a time; the input of older ones is forgotten."""

MAX_VALUES = 5_000
"""How many values of an input are looked at."""

MAX_LEVELS = 8
"""How deep an input is looked into."""

_STEP = "graph:step:"
"""How LangGraph tags the run of a node, which is how the run above it is known to be a graph's."""

_USERS = frozenset({"user", "human"})
_OTHERS = frozenset({"assistant", "ai", "system", "developer", "tool", "function", "remove", "AIMessageChunk"})


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a run stands."""

    graphs: int
    """How many graphs it runs inside of."""

    commands: frozenset[str] | None
    """What the outermost graph's input held, by id and by digest; `None` if nobody knows."""


class _Follower(BaseCallbackHandler):
    """Knows, for every run, the input of the outermost graph that it belongs to."""

    # Called on the spot: in async runs LangChain would take a thread of its pool for each event.
    run_inline = True
    # Only chains matter, and a handler that does not ignore the rest is called for every token.
    ignore_llm = ignore_retry = ignore_agent = ignore_retriever = ignore_chat_model = ignore_custom_event = True

    def __init__(self) -> None:
        self._places: OrderedDict[UUID, _Place] = OrderedDict()
        self._lock = threading.Lock()

    def on_chain_start(
        self,
        serialized: Any,  # noqa: ANN401, ARG002
        inputs: Any,  # noqa: ANN401
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **_kwargs: Any,  # noqa: ANN401
    ) -> None:
        above = self.place(parent_run_id)
        is_node = any(tag.startswith(_STEP) for tag in tags or ())
        if above is None and parent_run_id is not None:
            place = _Place(2, None)  # The run above began before anybody looked.
        elif above is not None and (is_node or above.graphs):
            place = _Place(above.graphs + is_node, above.commands)
        # The outermost run: its input is what users wrote.
        else:
            place = _Place(0, _commands_in(inputs))
        with self._lock:
            self._places[run_id] = place
            # Runs that are abandoned never end, so their entries leave by age.
            while len(self._places) > MAX_RUNS:
                self._places.popitem(last=False)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_kwargs: Any) -> None:  # noqa: ANN401, ARG002
        self._forget(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_kwargs: Any) -> None:  # noqa: ANN401, ARG002
        self._forget(run_id)

    def _forget(self, run_id: UUID) -> None:
        with self._lock:
            self._places.pop(run_id, None)

    def place(self, run_id: UUID | None) -> _Place | None:
        """Return where a run stands; `None` if nobody knows."""
        with self._lock:
            return self._places.get(run_id) if run_id is not None else None


_follower = _Follower()
_following: ContextVar[_Follower | None] = ContextVar("deepskills_follower", default=_follower)


# A second registration would call the handler twice.
@functools.cache
def follow_runs() -> None:
    """Have every run of this process followed from now on; once is enough."""
    register_configure_hook(_following, inheritable=True)


def is_own_graph() -> bool:
    """Whether `before_agent` is called by a node of somebody's own graph, not by the one that an agent has for it."""
    try:
        node = (get_config().get("metadata") or {}).get("langgraph_node")
    except RuntimeError:
        return False
    return isinstance(node, str) and not node.endswith(".before_agent")


def is_handed_on(message: AnyMessage, *, in_tool_call: bool) -> bool:
    """Whether a message is not the user's own: this agent runs inside another graph, whose input did not hold it."""
    place, is_inside = _here()
    # An agent that runs by itself: whatever its input holds is the user's.
    if not in_tool_call and not is_inside and (place is None or place.graphs <= 1):
        return False
    known = place.commands if place is not None and place.graphs > 1 else None
    # Inside another graph, and nobody knows its input: a message that cannot be proved is not the user's.
    if known is None:
        return True
    return not known.intersection(_keys(message.id, first_text(message)))


def _here() -> tuple[_Place | None, bool]:
    """Return the place of the calling hook, and whether LangGraph says that its graph is inside another."""
    try:
        config = get_config()
    except RuntimeError:
        return None, False
    place = _follower.place(getattr(config.get("callbacks"), "parent_run_id", None))
    namespace = (config.get("metadata") or {}).get("langgraph_checkpoint_ns")
    # LangGraph joins the levels of nested graphs by "|". It is a second sign, for hosts that replace callbacks.
    return place, isinstance(namespace, str) and "|" in namespace


def _keys(message_id: str | None, text: str) -> Iterator[str]:
    if message_id:
        yield f"id:{message_id}"
    # A command may have white space before it, and a node may have stripped it on the way.
    yield f"text:{fingerprint(text.strip())}"


def _commands_in(inputs: object) -> frozenset[str]:
    """Return the texts of an input that start with a slash, and their messages' ids, from user messages only."""
    found: set[str] = set()
    waiting: list[tuple[object, int]] = [(inputs, 0)]
    # Bounded in number and depth: an input may be a whole database, and this runs before every graph.
    for _ in range(MAX_VALUES):
        if not waiting:
            break
        value, level = waiting.pop()
        message_id = None
        if isinstance(value, HumanMessage):
            message_id, value = value.id, first_text(value)
        elif isinstance(value, Mapping) and _role(value) in _USERS and level < MAX_LEVELS:
            message_id = value.get("id")
            content = value.get("content")
            if not isinstance(content, str):
                waiting.append((content, level + 1))
            value = content
        if isinstance(value, str):
            if value.lstrip().startswith("/"):
                found.update(_keys(message_id if isinstance(message_id, str) else None, value))
        elif level < MAX_LEVELS:
            waiting.extend((part, level + 1) for part in _parts(value))
    return frozenset(found)


def _role(value: Mapping[Any, Any]) -> object:
    role = value.get("role") or value.get("type")
    return role if isinstance(role, str) else None


def _parts(value: object) -> list[Any]:
    """Return what a value of an input holds; nothing of a message that is not a user's."""
    if isinstance(value, BaseMessage):
        return []
    if isinstance(value, Mapping):
        # A user's message was looked into by the caller, and nothing in another's counts.
        return [] if _role(value) in _OTHERS | _USERS else list(value.values())[:MAX_VALUES]
    if isinstance(value, list | tuple):
        is_pair = len(value) == 2 and all(isinstance(part, str) for part in value)  # noqa: PLR2004
        if is_pair and value[0] in _OTHERS:
            return []
        # From the end: the newest messages are looked at first, and they are what a run is about.
        return list(value[-MAX_VALUES:])
    fields = getattr(value, "__dict__", None)
    return list(fields.values())[:MAX_VALUES] if isinstance(fields, dict) else []


# Handing over from a parent to the agent that one of its tool calls starts.


TASK_TOOL = "task"
"""deepagents' tool that starts a sub-agent."""

_SUB_AGENT = "subagent"
"""What deepagents calls an agent that its `task` tool has started, in the configuration of its run."""


class _Parent:
    """What a parent has loaded; the first sub-agent that starts may take it."""

    def __init__(self, thread: Thread, *, passes_on: bool) -> None:
        self.thread: Thread | None = thread
        self.passes_on = passes_on
        """Whether a sub-agent that does not continue the conversation takes it as well."""


_parent: ContextVar[_Parent | None] = ContextVar("deepskills_parent", default=None)
_in_tool_call: ContextVar[bool] = ContextVar("deepskills_in_tool_call", default=False)


@contextmanager
def handing_over(tool_name: str, run: Run) -> Iterator[None]:
    """Let a sub-agent that starts inside, and backends, know what this agent has loaded."""
    inside = _in_tool_call.set(True)
    passes_on = run.settings.subagent_inherit == "inherit"
    # `None` for every other tool: an agent that such a tool starts must not find what an outer `task` call left here.
    parent = _parent.set(_Parent(run.thread, passes_on=passes_on) if tool_name == TASK_TOOL else None)
    standing = run.thread.standing
    # Backends that serve skills read a file only while its skill is loaded; this is how they know.
    served = tuple(standing.records[name] for name in standing.loaded if "origin" in standing.records[name])
    loads = loads_in_use.set(served)
    # Hidden names are computed on demand: only the store's backend asks for them, and few tools go there.
    call = call_in_progress.set(
        CallInProgress(
            run.runtime,
            standing.loaded,
            hidden=lambda: run.perform(unseen_names(run)),
            ahidden=lambda: run.aperform(unseen_names(run)),
        )
    )
    try:
        yield
    finally:
        call_in_progress.reset(call)
        loads_in_use.reset(loads)
        _parent.reset(parent)
        _in_tool_call.reset(inside)


def is_users_word(message: AnyMessage, run: Run) -> bool:
    """Whether a message is the user's own, and not what a model or a node of an outer graph gave this agent to do."""
    if run.settings.slash_commands == "always":
        return True
    kind = (run.runtime.config.get("configurable") or {}).get("ls_agent_type")
    return not is_handed_on(message, in_tool_call=_in_tool_call.get() or kind == _SUB_AGENT)


def taken_over() -> tuple[Thread | None, bool]:
    """Return the thread of the parent that started this one by `task`, and whether its skills are passed on to all."""
    parent = _parent.get()
    if parent is None:
        return None, False
    # Taken once: the sub-agent's own tool calls run in this context too, and must not find it again.
    found, parent.thread = parent.thread, None
    return found, parent.passes_on


def is_continued(thread: Thread) -> bool:
    """Whether a sub-agent's thread continues its parent's conversation: a task alone is one message."""
    return len(thread.messages) > 1
