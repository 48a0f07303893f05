"""One tool call with skills: a skill's own tools, and what extensions say of any call."""

from collections.abc import Mapping
from typing import Any

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from deepskills._agent.extending import after_tool, before_tool, overrides, tool_problems
from deepskills._agent.extension import LoadedSkill, Refuse, ToolResult
from deepskills._agent.run import Run, usable
from deepskills._agent.settings import Settings
from deepskills._agent.skill_tools import Resolution, disclosed, include_names, skills_in_use
from deepskills._agent.turn_calls import turn_of
from deepskills._agent.updates import merged
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Plan
from deepskills._loading.outcomes import Unloaded
from deepskills._loading.turn import decide_unload
from deepskills._prompt.answers import call_refused, skill_tool_failed


class CallRun(Run):
    """A tool call's run: loads and unloads that stand before it in its turn count as done."""

    def __init__(self, run: Run, request: ToolCallRequest) -> None:
        super().__init__(run.settings, run.state, run.runtime)
        call = request.tool_call
        self._turn = turn_of(run.state, call["id"], call["name"], call["args"])

    @property
    def loaded(self) -> list[LoadedSkill]:
        """The skills in use once the earlier calls of the turn are done."""
        found = {skill.entry.name: skill for skill in super().loaded}
        standing = self.thread.standing
        for call in self._turn.earlier:
            if call.kind == "unload":
                outcome = decide_unload(call.name, standing)
                if isinstance(outcome, Unloaded):
                    found.pop(outcome.name, None)
            elif (entry := self.known_shelf.find_visible(call.name)) is not None:
                found.setdefault(entry.name, LoadedSkill(entry, call.arguments, "model", 0, is_recent=True))
        return list(found.values())


def judges_calls(run: Run) -> bool:
    """Whether any extension looks at tool calls."""
    return any(
        overrides(extension, method)
        for extension in run.settings.extensions
        for method in ("before_tool", "after_tool")
    )


def judged(request: ToolCallRequest, run: Run) -> Plan[ToolResult | None]:
    """Return the answer to a call that an extension refuses, or `None` if it may run."""
    yield from shelf_of(run)
    included = included_names(run)
    run.skill_tools = frozenset(tool for tool, name in disclosed(run.state).items() if name in included)
    decision = yield from before_tool(request, run)
    return _refusal(request, decision, run) if isinstance(decision, Refuse) else None


def reviewed(request: ToolCallRequest, result: ToolResult, run: Run) -> Plan[ToolResult]:
    """Return a call's result after the extensions have seen it."""
    seen = yield from after_tool(request, result, run)
    if isinstance(seen, Refuse):
        return _refusal(request, seen, run)
    update = merged(run.collected, tool_problems(run))
    if not update:
        return seen
    if isinstance(seen, ToolMessage):
        return Command(update=merged(update, {"messages": [seen]}))
    given = seen.update if isinstance(seen.update, Mapping) else None
    if given is None:
        return seen
    return Command(graph=seen.graph, update=merged(given, update), resume=seen.resume, goto=seen.goto)


def _refusal(request: ToolCallRequest, refused: Refuse, run: Run) -> ToolResult:
    message = _error(request, call_refused(refused.reason))
    update = merged(run.collected, tool_problems(run))
    return Command(update=merged(update, {"messages": [message]})) if update else message


def hidden_tool(request: ToolCallRequest, settings: Settings) -> Plan[str | None]:
    """Return the name that stands for the called tool, if it is a skill's and not the agent's own.

    State says which tools the model was shown; a caller may have written that, so a skill in use must name the tool.
    """
    if request.tool is not None:
        return None
    state: Any = request.state
    name = disclosed(state).get(request.tool_call["name"])
    if name is None:
        return None
    run = Run(settings, state, request.runtime)
    yield from shelf_of(run)
    return name if name in included_names(run) else None


def included_names(run: Run) -> set[str]:
    """Return the names by which the skills in use include tools."""
    use = skills_in_use(run.thread.messages, usable(run), run.thread.standing.loaded)
    return {name for entry in (*use.loaded, *use.seen) for name in include_names(entry)}


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
