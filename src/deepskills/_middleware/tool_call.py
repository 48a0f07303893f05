"""One tool call with skills: a skill's own tools, and what extensions say of any call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.runtime import get_runtime
from langgraph.types import Command

from deepskills._catalog.entries import SkillEntry
from deepskills._io.plan import Plan
from deepskills._loading.turn import Unloaded, decide_unload
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import LoadedSkill, Refuse, SkillLoad, ToolResult, overrides
from deepskills._middleware.extension_calls import (
    after_tool,
    before_load,
    before_tool,
    tool_problems,
    with_changes,
)
from deepskills._middleware.run import Run, disclosed_skills
from deepskills._middleware.served import is_idle
from deepskills._middleware.skill_tools import (
    READ_TOOL,
    Resolution,
    ToolSource,
    disclosed,
    include_names,
    resolved,
    tidy_path,
)
from deepskills._middleware.state import merged
from deepskills._middleware.tools import turn_of
from deepskills._middleware.visibility import shelf_of
from deepskills._prompt.messages import call_refused, skill_tool_failed


class CallRun(Run):
    """A tool call's run: loads and unloads that stand before it in its turn count as done."""

    def __init__(self, settings: Settings, request: ToolCallRequest) -> None:
        super().__init__(settings, request.state, request.runtime)
        self._call = request.tool_call

    @property
    def loaded(self) -> list[LoadedSkill]:
        """The skills in use once the earlier calls of the turn are done."""
        found = {skill.entry.name: skill for skill in super().loaded}
        standing = self.thread.standing
        own = self._call
        for call in turn_of(self.state, own["id"], own["name"], own["args"]).earlier:
            if call.kind == "unload":
                outcome = decide_unload(call.name, standing)
                # What this very turn loads is not unloaded again here: its limits are assumed to hold, whatever becomes
                # of the calls.
                if isinstance(outcome, Unloaded):
                    found.pop(outcome.name, None)
            elif (entry := self.known_shelf.find_visible(call.name)) is not None:
                skill = LoadedSkill(entry, call.arguments, "model", 0, is_recent=True)
                found.setdefault(entry.name, self.limited(skill))
        return list(found.values())


@dataclass(frozen=True)
class ToolCall:
    """A call that may run, and who looks at its result."""

    request: ToolCallRequest
    run: Run
    is_judged: bool
    """Whether an extension looks at this call."""

    discloses: SkillEntry | None = None
    """The skill whose tools become callable if this call, a `read_file`, succeeds."""

    def reviewed(self, result: ToolResult) -> Plan[ToolResult]:
        """Return the call's result after the extensions have seen it."""
        # A failed read has shown nothing.
        if self.discloses is not None and isinstance(result, ToolMessage) and result.status != "error":
            known = {"disclosed": {self.discloses.name: self.discloses.digest}}
            result = _with_update(result, {"skills_context": known})
        if not self.is_judged:
            return result
        seen = yield from after_tool(self.request, result, self.run)
        if isinstance(seen, Refuse):
            return _refusal(self.request, seen, self.run)
        return _with_update(seen, merged(self.run.collected, tool_problems(self.run)))


def open_tool_call(request: ToolCallRequest, run: CallRun, source: ToolSource) -> Plan[ToolCall | ToolResult]:
    """Return a call that may run, with the tool it means; or the answer to one that may not."""
    settings = run.settings
    # Known without I/O, so that an agent whose extensions judge no calls pays nothing here.
    methods = ("before_tool", "after_tool")
    judging = [extension for extension in settings.extensions if not is_idle(extension, request, settings.own_tools)]
    is_judged = any(overrides(extension, method) for extension in judging for method in methods)
    if is_judged:
        yield from shelf_of(run)
        # Tools that a read disclosed are not of a skill in use: a policy judges them like any other.
        included = {name for entry in run.use.granting for name in include_names(entry)}
        run.tool_origins = disclosed(run.state)
        run.skill_tools = frozenset(tool for tool, name in run.tool_origins.items() if name in included)
        decision = yield from before_tool(request, run)
        if isinstance(decision, Refuse):
            return _refusal(request, decision, run)
    # After the judgement: a refused read discloses nothing.
    read = yield from _disclosing(request, run)
    name = yield from hidden_tool(request, run)
    if name is None:
        return ToolCall(request, run, is_judged, read)
    found = (yield from resolved(source, [name], get_runtime()))[name]
    return failed_call(request, found) or ToolCall(with_tool(request, found), run, is_judged, read)


def _disclosing(request: ToolCallRequest, run: Run) -> Plan[SkillEntry | None]:
    """Return the skill whose tools a `read_file` of its `SKILL.md` discloses, if every extension would let it load.

    Only a call that this hook sees counts: a pair of call and answer in the messages may be anybody's.
    """
    path = request.tool_call["args"].get("file_path")
    if request.tool_call["name"] != READ_TOOL or not isinstance(path, str):
        return None
    # Most agents have no skill with tools: the catalog tells that without asking anybody how visible skills are.
    catalog = yield from run.look.catalog(run.thread.catalog, run.state.get("skills_metadata"))
    read = tidy_path(path)
    entry = next((known for known in catalog.with_tools if tidy_path(known.path) == read), None)
    if entry is None or not entry.is_read or not (yield from shelf_of(run)).is_shown(entry):
        return None
    # Judged as a load would be. A skill that extensions refuse or answer otherwise brings no tools by a read either.
    load = SkillLoad(entry, "", "model", "", 0, (), run.runtime)
    decision = yield from before_load(load, run)
    return entry if decision is None else None


def _with_update(result: ToolResult, update: Mapping[str, Any]) -> ToolResult:
    """Return a tool's result with further changes of state."""
    if not update:
        return result
    if isinstance(result, ToolMessage):
        return Command(update=merged(update, {"messages": [result]}))
    # A list of pairs or an object, which LangGraph also takes: nothing of ours can be merged into it safely.
    if not isinstance(result.update, Mapping):
        return result
    return Command(graph=result.graph, update=merged(result.update, update), resume=result.resume, goto=result.goto)


def _refusal(request: ToolCallRequest, refused: Refuse, run: Run) -> ToolResult:
    return with_changes(_error(request, call_refused(refused.reason)), run)


def hidden_tool(request: ToolCallRequest, run: Run) -> Plan[str | None]:
    """Return the name that stands for the called tool, if it is a skill's and not the agent's own.

    State says which tools the model was shown; a caller may have written that, so a skill in use must name the tool.
    """
    # The agent's own tool of that name comes first.
    if request.tool is not None:
        return None
    name = disclosed(run.state).get(request.tool_call["name"])
    if name is None:
        return None
    yield from shelf_of(run)
    return name if name in included_names(run) else None


def included_names(run: Run) -> set[str]:
    """Return the names by which the skills in use, and those that were disclosed by a read, include tools."""
    return {name for entry in (*run.use.granting, *disclosed_skills(run)) for name in include_names(entry)}


def with_tool(request: ToolCallRequest, found: Resolution) -> ToolCallRequest:
    """Return the call with the tool it means; unchanged, it fails as unknown."""
    name = request.tool_call["name"]
    tool = next((tool for tool in found.tools if tool.name == name), None)
    return request.override(tool=tool) if tool is not None else request


def failed_call(request: ToolCallRequest, found: Resolution) -> ToolMessage | None:
    """Return what to answer when the tool could not be resolved."""
    if found.failure is None:
        return None
    return _error(request, skill_tool_failed(request.tool_call["name"], found.failure))


def _error(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")
