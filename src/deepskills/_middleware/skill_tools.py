"""Tools that belong to skills: which are callable in a turn, and how their names are resolved."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphBubbleUp

from deepskills._catalog.catalog import INCLUDE_TOOLS, SkillEntry
from deepskills._io.plan import Ask, CallFailed, Plan
from deepskills._middleware.state import mark_of
from deepskills._types import SkillMetadata

logger = logging.getLogger("deepskills")


READ_TOOL = "read_file"
"""The tool that reads files; reading a `SKILL.md` by it discloses the skill's tools."""

DISCLOSED = "_skill_tools_disclosed"
"""State key: each skill tool that the latest model call was shown, and the name that stands for it."""

_DEFER_LOADING = "defer_loading"

resolved_tools: ContextVar[Mapping[str, Sequence[BaseTool]]] = ContextVar("resolved_tools", default={})  # noqa: B039
"""What the names of this model call stand for, resolved before deepagents asks."""


def answer_from_context(name: str, runtime: object) -> Sequence[BaseTool]:  # noqa: ARG001 - a resolver's signature
    """Resolve a name to what it was found to stand for; deepagents' class is given this as its resolver."""
    return resolved_tools.get().get(name, ())


@dataclass(frozen=True)
class Resolution:
    """What a name stands for, or why it could not be resolved."""

    tools: Sequence[BaseTool] = ()
    failure: str | None = None


class ToolSource:
    """Resolves tool names by the user's list or function; a function that fails costs its tools, not the run."""

    def __init__(self, tools: Sequence[BaseTool | Callable[..., Any]] | Callable[..., Any] | None) -> None:
        self._resolver: Callable[..., Any] | None = None
        self._by_name: dict[str, BaseTool] = {}
        if tools is None or isinstance(tools, Sequence):
            for entry in tools or ():
                made = entry if isinstance(entry, BaseTool) else tool(entry)
                self._by_name[made.name] = made
        else:
            self._resolver = tools

    def resolve(self, name: str, runtime: object) -> Resolution:
        """Resolve a name on a sync call."""
        if self._resolver is None:
            return self._listed(name)
        try:
            found = self._resolver(name, runtime)
        # Interrupts are LangGraph's.
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it becomes a failure
            return _failed(name, f"{type(error).__name__}: {error}")
        if inspect.isawaitable(found):
            # Closed, or Python warns that it was never awaited.
            if inspect.iscoroutine(found):
                found.close()
            return _failed(name, "it is async; run the agent with ainvoke or astream")
        return _checked(name, found)

    async def aresolve(self, name: str, runtime: object) -> Resolution:
        """Resolve a name on an async call."""
        if self._resolver is None:
            return self._listed(name)
        try:
            found = self._resolver(name, runtime)
            if inspect.isawaitable(found):
                found = await found
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it becomes a failure
            return _failed(name, f"{type(error).__name__}: {error}")
        return _checked(name, found)

    def _listed(self, name: str) -> Resolution:
        return Resolution([self._by_name[name]] if name in self._by_name else [])


def resolved(source: ToolSource, names: Sequence[str], runtime: Any) -> Plan[dict[str, Resolution]]:  # noqa: ANN401
    """Return what names stand for, resolved sync or async as the run is."""
    if not names:
        return {}

    async def aresolve() -> list[Resolution]:
        return await asyncio.gather(*(source.aresolve(name, runtime) for name in names))

    try:
        found = yield Ask(lambda: [source.resolve(name, runtime) for name in names], aresolve)
    except CallFailed as failure:
        return dict.fromkeys(names, Resolution(failure=failure.reason))
    return dict(zip(names, found, strict=True))


def _checked(name: str, found: object) -> Resolution:
    is_list = isinstance(found, Sequence) and not isinstance(found, str | bytes)
    if not is_list or not all(isinstance(item, BaseTool) for item in found):  # type: ignore[attr-defined]
        return _failed(name, f"it returned {type(found).__name__}, not a list of tools")
    tools: dict[str, BaseTool] = {}
    # The first of a name counts: a request with two tools of one name is refused by providers.
    for item in found:  # type: ignore[attr-defined]
        tools.setdefault(item.name, item)
    return Resolution(list(tools.values()))


def _failed(name: str, reason: str) -> Resolution:
    logger.error("The resolver of skill tools failed for %r: %s", name, reason)
    return Resolution(failure=reason)


def include_names(entry: SkillEntry) -> list[str]:
    """Return the names that a skill lists for its tools."""
    return entry.skill["metadata"].get(INCLUDE_TOOLS, "").replace(",", " ").split()


@dataclass(frozen=True)
class InUse:
    """The skills whose tools a model call may be shown."""

    loaded: list[SkillEntry] = field(default_factory=list)
    """Loaded, and not to be seen as pinned: their tools are bound to the call."""

    seen: list[SkillEntry] = field(default_factory=list)
    """Read by `read_file` or pinned, and not unloaded since: deepagents' way of disclosing them serves."""

    def shown_to_deepagents(self) -> list[SkillMetadata]:
        """Return the catalog as deepagents' class is to see it: the skills in `seen`, and no other."""
        return [_spelled(entry) for entry in self.seen]


def _spelled(entry: SkillEntry) -> SkillMetadata:
    """Return a skill whose tools are named as deepagents' class reads them: with spaces between."""
    further = {**entry.skill["metadata"], INCLUDE_TOOLS: " ".join(include_names(entry))}
    return {**entry.skill, "metadata": further}


def skills_in_use(
    messages: Sequence[AnyMessage], granting: Iterable[SkillEntry], disclosed: Iterable[SkillEntry] = ()
) -> InUse:
    """Tell whose tools a model call may be shown: skills in use whose grants count, and those disclosed by a read.

    Messages grant nothing here. They only tell which way a tool is shown: deepagents' class discloses the tools of what
    was pinned or read by messages, so a skill that has such a message is left to it.
    """
    loaded = {entry.name: entry for entry in granting if include_names(entry)}
    read = {entry.name: entry for entry in disclosed if include_names(entry) and entry.name not in loaded}
    if not loaded and not read:
        return InUse()
    # deepagents knows no unload: what its messages show after one would be disclosed again.
    seen = _last_seen(messages)
    unloads = _last_unloads(messages)
    use = InUse()
    for entry in (*loaded.values(), *read.values()):
        # Seen since it was last unloaded.
        if seen(entry) > unloads.get(entry.name, -1):
            use.seen.append(entry)
        else:
            use.loaded.append(entry)
    return use


def needed_names(use: InUse, tools: Iterable[BaseTool | dict[str, Any]]) -> list[str]:
    """Return every name that has to be resolved: not those of tools that the agent has itself."""
    own = {name_of(item) for item in tools}
    named = dict.fromkeys(name for entry in (*use.loaded, *use.seen) for name in include_names(entry))
    return [name for name in named if name not in own]


def _last_seen(messages: Sequence[AnyMessage]) -> Callable[[SkillEntry], int]:
    """Return where a skill was last read as a file or pinned; -1 for nowhere."""
    reads = _last_reads(messages)
    pins = {name: position for position, message in enumerate(messages) if (name := pinned_name(message)) is not None}
    return lambda entry: max(reads.get(tidy_path(entry.path), -1), pins.get(entry.name, -1))


def pinned_name(message: object) -> str | None:
    """Return the skill that a message pins."""
    extra = getattr(message, "additional_kwargs", {})
    skill = extra.get("skill") if extra.get("lc_source") == "pinned_skill" else None
    name = skill.get("name") if isinstance(skill, dict) else None
    return name if isinstance(name, str) else None


def _last_reads(messages: Sequence[AnyMessage]) -> dict[str, int]:
    """Return the position of the latest successful `read_file` of each path."""
    asked = {
        call["id"]: str(call["args"].get("file_path"))
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
        if call["name"] == READ_TOOL
    }
    return {
        tidy_path(asked[message.tool_call_id]): position
        for position, message in enumerate(messages)
        if isinstance(message, ToolMessage) and message.status != "error" and message.tool_call_id in asked
    }


def _last_unloads(messages: Sequence[AnyMessage]) -> dict[str, int]:
    return {
        mark["skill"]: position
        for position, message in enumerate(messages)
        if (mark := mark_of(message)) is not None and mark["event"] == "unload"
    }


def tidy_path(path: str) -> str:
    """Return a path as two spellings of it are compared."""
    return "/" + "/".join(part for part in path.replace("\\", "/").split("/") if part not in {"", "."})


def acceptance(model: object) -> Callable[[BaseTool], bool]:
    """Return which tools a model's provider takes; one that it refuses would fail the whole request."""
    # `bind_tools` and the like wrap the model.
    model = model.bound if isinstance(model, RunnableBinding) else model
    # By the module's name: a look must not import a package that is optional.
    if not any(base.__module__.startswith("langchain_anthropic.") for base in type(model).__mro__):
        return lambda _tool: True

    def accepts(item: BaseTool) -> bool:
        schema = convert_to_openai_tool(item)["function"].get("parameters", {})
        refused = [key for key in ("oneOf", "anyOf", "allOf") if key in schema]
        if refused:
            logger.warning(
                "Tool %r is withheld: its schema starts with %s, which Anthropic refuses", item.name, refused
            )
        return not refused

    return accepts


def bound(
    tools: Sequence[BaseTool | dict[str, Any]],
    use: InUse,
    resolved: Mapping[str, Sequence[BaseTool]],
    accepts: Callable[[BaseTool], bool],
) -> tuple[list[BaseTool | dict[str, Any]], dict[str, str]]:
    """Return the request's tools with those of loaded skills, and a record of what was added and for which name."""
    by_name = {name: item for item in tools if (name := name_of(item)) is not None}
    result = list(tools)
    record: dict[str, str] = {}
    for name in dict.fromkeys(n for entry in use.loaded for n in include_names(entry)):
        # A tool that the agent has itself is not resolved: its name is its own.
        produced = [by_name[name]] if name in by_name else resolved.get(name, ())
        for item in produced:
            present = by_name.get(name_of(item) or "")
            if present is None and isinstance(item, BaseTool):
                if item.name not in record and accepts(item):
                    result.append(item)
                    record[item.name] = name
            # Present but deferred: the provider would show it only after a search, and a skill in use needs it now.
            elif isinstance(present, BaseTool) and (present.extras or {}).get(_DEFER_LOADING) is True:
                extras = {key: value for key, value in (present.extras or {}).items() if key != _DEFER_LOADING}
                shown = present.model_copy(update={"extras": extras})
                result = [shown if other is present else other for other in result]
                by_name[present.name] = shown
    return result, record


def name_of(item: BaseTool | dict[str, Any]) -> str | None:
    """Return a tool's name; tools that a provider runs may have none."""
    if isinstance(item, BaseTool):
        return item.name
    function = item.get("function")
    name = item.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return str(name) if name else None


def disclosed(state: Mapping[str, Any]) -> dict[str, str]:
    """Return which skill tools the latest model call was shown."""
    record = state.get(DISCLOSED)
    if not isinstance(record, dict):
        return {}
    return {tool: name for tool, name in record.items() if isinstance(tool, str) and isinstance(name, str)}
