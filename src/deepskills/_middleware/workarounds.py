"""What LangChain and deepagents have no way to ask for: each workaround, its reason, and what would end it.

Everything else in the middleware uses public interfaces. What is here looks at frames, closures, classes, contexts and
private names of others, so each function gives up quietly where a release below us is built in another way.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.config import var_child_runnable_config

MAX_FRAMES = 4
"""How far above a middleware's name the call of `create_deep_agent` is looked for."""


def conflict_in_deep_agent(own: DeepAgentsSkillsMiddleware[Any, Any], kind: type) -> str | None:
    """Return what is wrong with the call of `create_deep_agent` that asks for a middleware's name right now.

    Empty if nothing is wrong; `None` if another function asks. `kind` is the class whose instances exclude each other.

    Reason: deepagents replaces middleware by name. Of two it keeps the last, and it drops what `skills=` would have
    made, both without a word; nothing of either is left when the first hook runs. So the arguments are read from the
    frame of the call, while it compares names.

    Ends when deepagents refuses two middlewares of one name, and `skills=` beside one of them.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - the caller is the property, whose caller is deepagents
    for _ in range(MAX_FRAMES):
        if frame.f_code.co_name == "create_deep_agent":
            return _conflict(own, kind, frame.f_locals.get("middleware"), frame.f_locals.get("skills"))
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _conflict(own: DeepAgentsSkillsMiddleware[Any, Any], kind: type, given: object, skills: object) -> str:
    ours: list[Any] = [other for other in given if isinstance(other, kind)] if isinstance(given, Sequence) else []
    # That of a sub-agent is asked here too, and is no rival of its parent's.
    if not any(other is own for other in ours):
        return ""
    count = len({id(other) for other in ours})
    if count > 1:
        return (
            f"create_deep_agent was given {count} SkillsMiddleware and keeps only the last. Pass one, with all sources "
            "in its `sources`; a CompositeBackend brings several backends together."
        )
    # deepagents itself puts the list of a middleware's sources into this variable where `skills` was left out. An empty
    # list, perhaps of a configuration, has nothing that could vanish.
    if not skills or any(skills is other.sources for other in ours):
        return ""
    sources = list(skills) if isinstance(skills, Iterable) and not isinstance(skills, str) else [skills]
    # Both lists, so that the line can be copied as it stands.
    both = ", ".join(map(repr, dict.fromkeys([*sources, *own.sources])))
    return (
        f"create_deep_agent was given skills={skills!r} beside a SkillsMiddleware, and ignores the former. Leave "
        f"`skills` out and write SkillsMiddleware(backend=..., sources=[{both}])."
    )


def identify_invocation(runtime: object) -> object | None:
    """Return what is the same object for every hook and tool of one invocation of a graph; `None` outside of one.

    Reason: the hooks of one run share what it has seen of its sources, and a resumed run has to look again. LangGraph
    makes a stream writer for each invocation, also for a resume, and hands it to every hook and tool.

    Ends when a runtime names its invocation.
    """
    return getattr(runtime, "stream_writer", None)


def provider_of(model: BaseChatModel) -> str:
    """Return a chat model's provider as LangChain names it; empty if it is not known.

    Reason: providers differ in what they cache and refuse, and only what a model gives tracers names its provider.

    Ends when a chat model has a public name for that.
    """
    try:
        provider = model._get_ls_params().get("ls_provider")  # noqa: SLF001 - see above
    except Exception:  # noqa: BLE001 - a class of the user's own
        return ""
    return provider if isinstance(provider, str) else ""


@contextlib.contextmanager
def add_call_metadata(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Give the model call that is made inside further metadata, for tracers.

    Reason: a middleware cannot pass a configuration on with a request. LangChain calls the model with the configuration
    of the run that it finds in the context.

    Ends when a model request takes metadata.
    """
    if not metadata:
        yield
        return
    config = var_child_runnable_config.get() or {}
    token = var_child_runnable_config.set({**config, "metadata": {**(config.get("metadata") or {}), **metadata}})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


_OF_A_GRAPH = frozenset({"thread_id", "checkpoint_ns", "ls_integration"})
"""Metadata that a graph has from its configuration, before its first step."""


def has_outer_metadata(metadata: Mapping[str, Any]) -> bool:
    """Whether the metadata of a step holds a step of a graph around it.

    Reason: a graph that is called on a thread of its own inside another graph's run has a configuration like any
    other, and no trace of that run but its metadata. LangGraph writes the keys of a step last. The step around leaves
    them in the metadata that the inner graph starts with, so there they stand before the inner graph's own.

    Ends when LangGraph tells a graph's parent.
    """
    keys = list(metadata)
    own = keys.index("langgraph_checkpoint_ns") if "langgraph_checkpoint_ns" in keys else len(keys)
    return not _OF_A_GRAPH.isdisjoint(keys[own:])


def workspace_of(tools: Iterable[object]) -> object | None:
    """Return the backend on which the agent's file tools work; `None` if that is not known.

    Reason: the section must not send the model to read files that its file tools cannot see, and the skills' backend
    need not be theirs. deepagents makes the tools' functions inside a method of its middleware, whose backend they use.

    Ends when a tool, a request or a runtime tells the agent's backend.
    """
    for tool in tools:
        if getattr(tool, "name", None) != "read_file":
            continue
        for owner in _closure(tool).values():
            if isinstance(owner, FilesystemMiddleware):
                return getattr(owner, "backend", None)
    return None


STARTS_AGENT = frozenset({"task", "start_async_task", "update_async_task"})
"""deepagents' tools that start an agent or tell one more; all but the first are about agents elsewhere."""


def middleware_of_sub_agent(task: object, kind: object) -> list[object]:
    """Return the middleware of the sub-agent that deepagents' tool `task` starts; empty if that is not known.

    Reason: what skills in use forbid holds in a sub-agent only if it has our middleware, and a call says no more than
    its name. deepagents keeps the graphs of its sub-agents in a variable of the tool's function; LangChain makes the
    first steps of a graph of its middleware's methods.

    Ends when deepagents tells a sub-agent's middleware.
    """
    graphs = _closure(task).get("subagent_graphs")
    return middleware_of_agent(graphs.get(kind) if isinstance(graphs, Mapping) and isinstance(kind, str) else None)


def middleware_of_agent(agent: object) -> list[object]:
    """Return the middleware of a compiled agent, configured or not; empty if that is not known.

    Reason, and end: as for `middleware_of_sub_agent`.
    """
    return owners_of_steps(getattr(agent, "bound", agent))


def owners_of_steps(graph: object) -> list[object]:
    """Return the objects whose methods a compiled graph has as steps, in order, such as middleware.

    Reason, and end: as for `middleware_of_sub_agent`.
    """
    nodes = getattr(graph, "nodes", None)
    steps = [getattr(node, "bound", None) for node in nodes.values()] if isinstance(nodes, Mapping) else []
    owners = (getattr(_function_of(step), "__self__", None) for step in steps)
    return [owner for owner in owners if owner is not None]


MAX_WRAPPERS = 1_000
"""How many functions around a model call are looked through."""


def owners_of_wrappers(graph: object) -> list[object]:
    """Return the middleware whose `wrap_model_call` an agent of LangChain has, the outermost first.

    Reason: a diagnosis from outside has to know in which order an agent's middleware stands. `create_agent` makes
    one function of all of them, each half of it a variable of the next.

    Ends when LangChain tells an agent's middleware.
    """
    start = _closure_of_model(graph)
    waiting = [start.get("wrap_model_call_handler") or start.get("awrap_model_call_handler")]
    found: list[object] = []
    for _ in range(MAX_WRAPPERS):
        if not waiting:
            break
        function = waiting.pop()
        owner = getattr(function, "__self__", None)
        if owner is not None:
            found += [owner] if owner not in found else []
            continue
        cells = _closure(function)
        inner = getattr(function, "__wrapped__", None)
        names = ("outer", "inner", "single_handler")
        # The last is looked at first.
        waiting += [cells[name] for name in reversed(names) if name in cells] if inner is None else [inner]
    return found


def model_of_agent(graph: object) -> object | None:
    """Return the chat model of an agent of LangChain; `None` if that is not known.

    Reason: what caches prompts, and how much fits, depends on the model, and an agent does not tell it from outside.

    Ends when LangChain tells an agent's model.
    """
    return _closure_of_model(graph).get("model")


def _closure_of_model(graph: object) -> dict[str, Any]:
    nodes = getattr(graph, "nodes", None)
    return _closure(getattr(nodes.get("model"), "bound", None)) if isinstance(nodes, Mapping) else {}


def _function_of(given: object) -> object:
    """Return the function of a tool or a step, sync or async; a function itself stays."""
    names = ("func", "afunc", "coroutine")
    return next((own for name in names if (own := getattr(given, name, None)) is not None), given)


def _closure(given: object) -> dict[str, Any]:
    """Return the variables of a function, of that of a tool or of that of a step, by name."""
    function = _function_of(given)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable that was never assigned
            found[name] = cell.cell_contents
    return found


def give_hooks(middleware: object, hooks: type) -> None:
    """Give one instance the hooks of a class, which other instances of its own class do not have.

    Reason: LangChain looks at a middleware's class to see which hooks it has, and each hook costs every run a step of
    the graph, with a checkpoint. So only instances that need a hook may have it. A subclass that is chosen when the
    instance is made would not do: subclasses of users decide later, in their own `__init__`.

    Ends when LangChain looks at the instance.
    """
    middleware.__class__ = _with_hooks(type(middleware), hooks)  # type: ignore[arg-type]  # to mypy classes have no hash


@cache
def _with_hooks(own: type, hooks: type) -> type:
    # Copied, not inherited: a second base would give another layout, to which Python lets no instance change.
    methods = {name: value for name, value in vars(hooks).items() if not name.startswith("__")}
    return type(own.__name__, (own,), {"__module__": own.__module__, **methods})
