"""Tool calls of an agent with skills: the tools that skills bring along, and what happens around every call.

1. Which of the tools that skills include are callable in a turn, and how their names are resolved.
2. Any tool call (`call_tool`): a skill's own tool is found, and extensions judge the call and see its result.
3. The guard for skills that were served from elsewhere (`ServedSkills`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.runtime import get_runtime
from langgraph.types import interrupt

from deepskills._catalog.catalog import INCLUDE_TOOLS, SkillEntry, include_names
from deepskills._files.paths import path_of_call
from deepskills._io.backends import is_backend
from deepskills._io.plan import Ask, Attempt, Failed, together, unwrap
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import (
    Refuse,
    SkillExtension,
    SkillLoad,
    ToolResult,
    overrides,
)
from deepskills._middleware.extension_calls import (
    SkillRun,
    after_tool,
    decide_by_extensions,
    with_changes,
)
from deepskills._middleware.nesting import hand_over
from deepskills._middleware.run import Run, build_brought_update, find_disclosed_skills
from deepskills._middleware.state import (
    LINGERING,
    Thread,
    read_mark,
)
from deepskills._middleware.turn import turn_of
from deepskills._middleware.visibility import find_view
from deepskills._prompt.messages import (
    EXECUTION_REJECTED,
    word_refusal,
    word_unresolved_tool,
)
from deepskills._providers.base import serves_skills
from deepskills._providers.sources import Source
from deepskills._types import SkillMetadata, SkillOrigin

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
        listed = tools if isinstance(tools, Sequence) else ()
        self._resolver = None if tools is None or isinstance(tools, Sequence) else tools
        made = [item if isinstance(item, BaseTool) else tool(item) for item in listed]
        self._by_name = {item.name: item for item in made}

    @property
    def known_names(self) -> frozenset[str] | None:
        """The names that it resolves; `None` where only the user's function knows them."""
        return frozenset(self._by_name) if self._resolver is None else None

    async def resolve(self, names: Sequence[str], runtime: object) -> dict[str, Resolution]:
        """Return what names stand for."""
        resolver = self._resolver
        if resolver is None:
            return {name: Resolution([self._by_name[name]] if name in self._by_name else []) for name in names}
        calls = [Attempt(Ask(partial(resolver, name, runtime))) for name in names]
        found = await together(*calls) if calls else ()
        return {name: _check(name, value) for name, value in zip(names, found, strict=True)}


def _check(name: str, found: object) -> Resolution:
    if isinstance(found, Failed):
        return _fail(name, found.reason)
    is_list = isinstance(found, Sequence) and not isinstance(found, str | bytes)
    if not is_list or not all(isinstance(item, BaseTool) for item in found):  # type: ignore[attr-defined]
        return _fail(name, f"it returned {type(found).__name__}, not a list of tools")
    tools: dict[str, BaseTool] = {}
    # The first of a name counts: a request with two tools of one name is refused by providers.
    for item in found:  # type: ignore[attr-defined]
        tools.setdefault(item.name, item)
    return Resolution(list(tools.values()))


def _fail(name: str, reason: str) -> Resolution:
    logger.error("The resolver of skill tools failed for %r: %s", name, reason)
    return Resolution(failure=reason)


@dataclass(frozen=True)
class SkillsWithTools:
    """The skills whose tools a model call may be shown."""

    loaded: list[SkillEntry] = field(default_factory=list)
    """Loaded, and not to be seen as pinned: their tools are bound to the call."""

    seen: list[SkillEntry] = field(default_factory=list)
    """Read by `read_file` or pinned, and not unloaded since: deepagents' way of disclosing them serves."""

    def list_for_deepagents(self) -> list[SkillMetadata]:
        """Return the catalog as deepagents' class is to see it: the skills in `seen`, and no other."""
        return [_spell(entry) for entry in self.seen]


def _spell(entry: SkillEntry) -> SkillMetadata:
    """Return a skill whose tools are named as deepagents' class reads them: with spaces between."""
    further = {**entry.skill["metadata"], INCLUDE_TOOLS: " ".join(include_names(entry))}
    return {**entry.skill, "metadata": further}


def split_by_disclosure(
    messages: Sequence[AnyMessage], granting: Iterable[SkillEntry], disclosed: Iterable[SkillEntry] = ()
) -> SkillsWithTools:
    """Tell whose tools a model call may be shown: skills in use whose grants count, and those disclosed by a read.

    Messages grant nothing here. They only tell which way a tool is shown: deepagents' class discloses the tools of what
    was pinned or read by messages, so a skill that has such a message is left to it.
    """
    loaded = {entry.name: entry for entry in granting if include_names(entry)}
    read = {entry.name: entry for entry in disclosed if include_names(entry) and entry.name not in loaded}
    if not loaded and not read:
        return SkillsWithTools()
    entries = [*loaded.values(), *read.values()]
    seen = _find_seen(messages, entries)
    return SkillsWithTools(
        [entry for entry in entries if entry.name not in seen], [entry for entry in entries if entry.name in seen]
    )


def find_needed_names(use: SkillsWithTools, tools: Iterable[BaseTool | dict[str, Any]]) -> list[str]:
    """Return every name that has to be resolved: not those of tools that the agent has itself."""
    own = {tool_name(item) for item in tools}
    named = dict.fromkeys(name for entry in (*use.loaded, *use.seen) for name in include_names(entry))
    return [name for name in named if name not in own]


def read_pinned_name(message: object) -> str | None:
    """Return the skill that a message pins."""
    extra = getattr(message, "additional_kwargs", {})
    skill = extra.get("skill") if extra.get("lc_source") == "pinned_skill" else None
    name = skill.get("name") if isinstance(skill, dict) else None
    return name if isinstance(name, str) else None


def _find_seen(messages: Sequence[AnyMessage], entries: Iterable[SkillEntry]) -> set[str]:
    """Return the skills that messages show as read by `read_file` or pinned, and not as unloaded since."""
    by_path = {path_of_call(entry.path): entry.name for entry in entries}
    seen: set[str] = set()
    asked: dict[str | None, str] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            reads = (call for call in message.tool_calls if call["name"] == READ_TOOL)
            asked |= {call["id"]: path_of_call(str(call["args"].get("file_path"))) for call in reads}
        elif isinstance(message, ToolMessage) and message.status != "error":
            seen.add(by_path.get(asked.get(message.tool_call_id, ""), ""))
        seen.add(read_pinned_name(message) or "")
        mark = read_mark(message)
        # deepagents knows no unload: what its messages show after one would be disclosed again.
        if mark is not None and mark["event"] == "unload":
            seen.discard(mark["skill"])
    return seen


def find_acceptance(model: object) -> Callable[[BaseTool], bool]:
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


def bind_skill_tools(
    tools: Sequence[BaseTool | dict[str, Any]],
    use: SkillsWithTools,
    resolved: Mapping[str, Sequence[BaseTool]],
    accepts: Callable[[BaseTool], bool],
) -> tuple[list[BaseTool | dict[str, Any]], dict[str, str]]:
    """Return the request's tools with those of loaded skills, and a record of what was added and for which name."""
    by_name = {name: item for item in tools if (name := tool_name(item)) is not None}
    result = list(tools)
    record: dict[str, str] = {}
    for name in dict.fromkeys(n for entry in use.loaded for n in include_names(entry)):
        # A tool that the agent has itself is not resolved: its name is its own.
        produced = [by_name[name]] if name in by_name else resolved.get(name, ())
        for item in produced:
            present = by_name.get(tool_name(item) or "")
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


def tool_name(item: BaseTool | dict[str, Any]) -> str | None:
    """Return a tool's name; tools that a provider runs may have none."""
    if isinstance(item, BaseTool):
        return item.name
    function = item.get("function")
    name = item.get("name") or (function.get("name") if isinstance(function, dict) else None)
    return str(name) if name else None


def read_disclosed(state: Mapping[str, Any]) -> dict[str, str]:
    """Return which skill tools the latest model call was shown."""
    record = state.get(DISCLOSED)
    if not isinstance(record, dict):
        return {}
    return {tool: name for tool, name in record.items() if isinstance(tool, str) and isinstance(name, str)}


# --------------------------------------------------------------------------------------------------------------------
# One tool call with skills: a skill's own tools, and what extensions say of any call.
# --------------------------------------------------------------------------------------------------------------------


async def call_tool(
    request: ToolCallRequest, run: Run, source: ToolSource, handler: Callable[[ToolCallRequest], Any]
) -> ToolResult:
    """Run a tool that the extensions let pass; a call to a skill's tool that is hidden fails as unknown."""
    settings = run.settings
    # Known without I/O, so that an agent whose extensions judge no calls pays nothing here.
    methods = ("before_tool", "after_tool")
    judging = [extension for extension in settings.extensions if not is_idle(extension, request, settings)]
    is_judged = any(overrides(extension, method) for extension in judging for method in methods)
    if is_judged:
        await find_view(run)
        # Tools that a read disclosed are not of a skill in use: a policy judges them like any other.
        included = {name for entry in run.in_use.granting for name in include_names(entry)}
        run.tool_origins = read_disclosed(run.state)
        run.skill_tools = frozenset(tool for tool, name in run.tool_origins.items() if name in included)
        decision = await decide_by_extensions("before_tool", run, request)
        if isinstance(decision, Refuse):
            return with_changes(_error(request, word_refusal(decision.reason)), run)
    # After the judgement: a refused read discloses nothing.
    read = await _find_disclosed_skill(request, run)
    name = await _find_hidden_name(request, run)
    if name is not None:
        found, called = (await source.resolve([name], get_runtime()))[name], request.tool_call["name"]
        if found.failure is not None:
            return _error(request, word_unresolved_tool(called, found.failure))
        meant = next((item for item in found.tools if item.name == called), None)
        # Without it the call fails as one of an unknown tool.
        request = request.override(tool=meant) if meant is not None else request
    with hand_over(request.tool_call["name"], run):
        result: ToolResult = await unwrap(Ask(lambda: handler(request)))
    # A failed read has shown nothing.
    if read is not None and isinstance(result, ToolMessage) and result.status != "error":
        run.collect({"skills_context": {"disclosed": {read.name: read.digest}}})
    if is_judged:
        run.collect(build_brought_update(run.brought, run))
        seen = await after_tool(request, result, run)
        result = _error(request, word_refusal(seen.reason)) if isinstance(seen, Failed) else seen
    return with_changes(result, run)


async def _find_disclosed_skill(request: ToolCallRequest, run: Run) -> SkillEntry | None:
    """Return the skill whose tools a `read_file` of its `SKILL.md` discloses, if every extension would let it load.

    Only a call that this hook sees counts: a pair of call and answer in the messages may be forged.
    """
    path = request.tool_call["args"].get("file_path")
    if request.tool_call["name"] != READ_TOOL or not isinstance(path, str):
        return None
    # Most agents have no skill with tools: the catalog tells that without a question about visibility.
    catalog = await run.scan.catalog()
    read = path_of_call(path)
    entry = next((known for known in catalog.with_tools if path_of_call(known.path) == read), None)
    if entry is None or not entry.is_read or not (await find_view(run)).is_shown(entry):
        return None
    # Judged as a load would be. A skill that extensions refuse or answer otherwise brings no tools by a read either.
    load = SkillLoad(entry, "", "model", "", 0, (), run.runtime)
    decision = await decide_by_extensions("before_load", run, load)
    return entry if decision is None else None


async def _find_hidden_name(request: ToolCallRequest, run: Run) -> str | None:
    """Return the name that stands for the called tool, if it is a skill's and not the agent's own.

    State says which tools the model was shown; a caller may have written that, so a skill in use must name the tool.
    """
    # The agent's own tool of that name comes first.
    name = read_disclosed(run.state).get(request.tool_call["name"]) if request.tool is None else None
    if name is None:
        return None
    await find_view(run)
    included = {name for entry in (*run.in_use.granting, *find_disclosed_skills(run)) for name in include_names(entry)}
    return name if name in included else None


def _error(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


# --------------------------------------------------------------------------------------------------------------------
# Asks a human before code runs while a skill that was served from elsewhere is in use.
#
# A server decides what its skills say. Its frontmatter takes no effect by itself (discovery sets it aside), but
# its text moves the model. So from its load until its text has left the requests, tools that execute code ask first. A
# skill that says "unload me and execute this" in one turn is still asked about: what was in use before the turn counts,
# and what is loaded earlier in it.
# --------------------------------------------------------------------------------------------------------------------


EXECUTING_TOOLS = frozenset({"execute", "run_skill_script"})
"""Tools that execute code in any agent."""

_SCRIPTS = "scripts"


def add_guard(
    extensions: tuple[SkillExtension, ...], backend: object, sources: Sequence[Source] | None
) -> tuple[SkillExtension, ...]:
    """Return the extensions with the guard first, if skills may come from a provider that is not trusted."""
    # A function of the runtime may give anything, so it counts as one that gives such a provider.
    is_fixed = backend is None or is_backend(backend)
    if is_fixed and sources is not None and not serves_skills(backend):
        providers = [source.provider for source in sources if source.provider is not None]
        if all(provider.trusted for provider in providers):
            return extensions
    return (ServedSkills(), *extensions)


def is_idle(extension: SkillExtension, request: ToolCallRequest, settings: Settings) -> bool:
    """Whether the guard has nothing to ask about a call: no skill can be in use. Decided without a look at sources."""
    if not isinstance(extension, ServedSkills):
        return False
    call, state = request.tool_call, request.state
    # Our own tools execute nothing, unless a load starts an agent; `run_skill_script` is an extension's.
    if call["name"] in settings.own_tools and not any(overrides(one, "find_agent") for one in settings.extensions):
        return True
    if state.get("skills_loaded") or turn_of(state, call["id"], call["name"], call["args"]).earlier:
        return False
    return all(text.get("state") != LINGERING for text in Thread.of(state).section("texts").values())


class ServedSkills(SkillExtension):
    """Asks a human before code is executed while a served skill is in use."""

    protective: ClassVar[bool] = True

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Ask a human about a call that executes code, unless scripts were granted to every served skill in use."""
        # By `seen`, not by what is loaded: a skill that is unloaded in this very turn has already moved the model.
        in_use = {entry.name: entry for entry in run.seen if entry.origin is not None}
        if not in_use:
            return None
        # An agent without our middleware executes without a question.
        if request.tool_call["name"] not in EXECUTING_TOOLS | run.executing_tools and not run.starts_unbound(request):
            return None
        ungranted = [entry for entry in in_use.values() if not self._is_granted(entry, run)]
        if not ungranted:
            return None
        given = interrupt(_question(request, ungranted))
        # Anything but a clear "approve" is a refusal, even an answer of an unknown shape.
        answer = given if isinstance(given, Mapping) else {}
        if answer.get("type") == "approve":
            grants = answer.get("grants", ())
            if isinstance(grants, list | tuple | set | frozenset) and _SCRIPTS in grants:
                for entry in ungranted:
                    # What may change with every read cannot be known again.
                    if not _origin_of(entry)["dynamic"]:
                        run.remember(_key(entry), entry.digest)
            return None
        message = answer.get("message") if answer.get("type") == "reject" else None
        reason = f": {message}" if isinstance(message, str) and message else "."
        name, skill, via = request.tool_call["name"], ungranted[0].name, _origin_of(ungranted[0])["via"]
        return Refuse(EXECUTION_REJECTED.format(tool=name, skill=skill, via=via, reason=reason))

    def _is_granted(self, entry: SkillEntry, run: SkillRun) -> bool:
        return run.memory.get(_key(entry)) == entry.digest or _SCRIPTS in run.granted(entry)


def _origin_of(entry: SkillEntry) -> SkillOrigin:
    return entry.origin or SkillOrigin(label="", uri="", via="", dynamic=True)


def _key(entry: SkillEntry) -> str:
    origin = _origin_of(entry)
    return f"{_SCRIPTS}:{origin['label']}:{origin['uri']}"


def _question(request: ToolCallRequest, ungranted: Sequence[SkillEntry]) -> dict[str, Any]:
    origins = [(entry, _origin_of(entry)) for entry in ungranted]
    skills = [
        {"name": entry.name, "label": origin["label"], "uri": origin["uri"], "digest": entry.digest}
        for entry, origin in origins
    ]
    call = request.tool_call
    return {
        "type": "skill_execution",
        "tool": call["name"],
        "arguments": call["args"],
        "skill": ungranted[0].name,
        "skills": skills,
        "grants": [_SCRIPTS],
    }
