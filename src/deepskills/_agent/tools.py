"""The tools `load_skill` and `unload_skill`: calls to plans, outcomes to `Command`s and messages."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from deepskills._agent import session
from deepskills._agent.access import Look
from deepskills._agent.request import TextMemory, is_left_out
from deepskills._agent.settings import Settings
from deepskills._agent.skill_tools import include_names, was_seen
from deepskills._backend.plan import Plan
from deepskills._loading import decisions as life
from deepskills._prompt.answers import Answer, answer
from deepskills._prompt.wording import field_text
from deepskills._types import SkillMetadata

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")
ToolResult = Command[Any] | ToolMessage

LOAD_DESCRIPTION = """Load a skill: bring its full instructions and the list of its files into the conversation.

Call this before you start on a task that a listed skill fits, then follow the instructions."""

_USUAL_ID = "call_" + "x" * 25
"""As long as the ids that providers give to tool calls, which are part of what a message costs."""

UNLOAD_DESCRIPTION = (
    """Unload a skill whose work is done, to make room for others. It can be loaded again at any time."""
)


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as the answer to a call of `load_skill`."""
    return count_tokens_approximately([ToolMessage(text, name=session.LOAD_TOOL, tool_call_id=_USUAL_ID)])


class SkillTools:
    """Makes the tools for one middleware."""

    def __init__(self, settings: Settings, memory: TextMemory) -> None:
        self._settings = settings
        self._memory = memory

    def all(self) -> list[BaseTool]:
        """Return the tools."""
        return [
            self._tool(session.LOAD_TOOL, LOAD_DESCRIPTION, self._load),
            self._tool(session.UNLOAD_TOOL, UNLOAD_DESCRIPTION, self._unload),
        ]

    def _tool(
        self, name: str, description: str, plan: Callable[[str, "ToolRuntime[Any, Any]"], Plan[ToolResult]]
    ) -> BaseTool:
        """Return a tool whose sync and async calls perform the same plan."""
        settings = self._settings

        def call(skill_name: str, runtime: ToolRuntime[Any, Any]) -> ToolResult:
            guarded = _guarded(plan(skill_name, runtime), name, skill_name, runtime)
            return settings.perform(guarded, runtime)

        async def acall(skill_name: str, runtime: ToolRuntime[Any, Any]) -> ToolResult:
            guarded = _guarded(plan(skill_name, runtime), name, skill_name, runtime)
            return await settings.aperform(guarded, runtime)

        return StructuredTool.from_function(call, acall, name=name, description=description)

    def _load(self, skill_name: str, runtime: "ToolRuntime[Any, Any]") -> Plan[ToolResult]:
        state: Mapping[str, Any] = runtime.state
        budgets = self._settings.budgets
        how = preparation(self._settings, runtime)
        shelf = yield from session.shelf_of(state, how)
        catalog = shelf.skills
        skill = life.find_skill(catalog, skill_name)
        if skill is None:
            refusal = life.not_found(catalog, shelf.problems, skill_name)
            return _apply(session.LOAD_TOOL, refusal, budgets, runtime)
        calls = session.earlier_calls(state, runtime.tool_call_id)
        prepared = yield from life.prepare(_skills_of(calls, catalog, skill), how)
        before = session.standing(state)
        standing = life.after_calls(calls, before, catalog, prepared, budgets)
        outcome = life.decide_load(prepared[skill["name"]], standing, budgets)
        if isinstance(outcome, life.AlreadyLoaded):
            stays = skill["name"] in before.loaded and not any(
                call.kind == "unload" and life.find_skill([skill], call.name) for call in calls
            )
            outcome = _in_view_of(outcome, skill, state, stays=stays)
        result = _apply(session.LOAD_TOOL, outcome, budgets, runtime)
        if isinstance(outcome, life.Loaded):
            self._memory.put(answer(outcome, budgets).text)
        return result

    def _unload(self, skill_name: str, runtime: "ToolRuntime[Any, Any]") -> Plan[ToolResult]:
        state: Mapping[str, Any] = runtime.state
        budgets = self._settings.budgets
        standing = session.standing(state)
        calls = session.earlier_calls(state, runtime.tool_call_id)
        if calls:
            how = preparation(self._settings, runtime)
            catalog = (yield from session.shelf_of(state, how)).skills
            prepared = yield from life.prepare(_skills_of(calls, catalog), how)
            standing = life.after_calls(calls, standing, catalog, prepared, budgets)
        outcome = life.decide_unload(skill_name, standing)
        if isinstance(outcome, life.NotLoaded):
            skill = life.find_skill(session.trusted_catalog(state) or [], skill_name)
            if skill is not None and include_names(skill) and was_seen(state.get("messages") or (), skill):
                outcome = life.ToolsWithdrawn(skill["name"])
        return _apply(session.UNLOAD_TOOL, outcome, budgets, runtime)


def _in_view_of(
    outcome: life.AlreadyLoaded, skill: SkillMetadata, state: Mapping[str, Any], *, stays: bool
) -> life.Outcome:
    """Tell apart what stays loaded from before this turn from what only an earlier call of it may have loaded."""
    if stays:
        return replace(outcome, crowded=outcome.crowded or is_left_out(state, outcome.name))
    if outcome.unchecked:
        return life.Unreadable(skill, outcome.unchecked)
    return replace(outcome, by_sibling=True)


def preparation(settings: Settings, runtime: object) -> life.Preparation:
    """Return how skills of this run are read: only from where its sources are."""
    look = Look(settings, runtime)
    return life.Preparation(
        settings.resource_depth, count_tokens, look.may_read, look.learn, look.discover, look.why_not
    )


def _skills_of(
    calls: list[life.SkillCall], catalog: list[SkillMetadata], *further: SkillMetadata
) -> list[SkillMetadata]:
    """Return the skills that the loads among `calls` are about, and `further` ones, each once."""
    asked = [life.find_skill(catalog, call.name) for call in calls if call.kind == "load"]
    return list({skill["name"]: skill for skill in (*asked, *further) if skill is not None}.values())


def _guarded(plan: Plan[ToolResult], tool: str, skill_name: str, runtime: "ToolRuntime[Any, Any]") -> Plan[ToolResult]:
    """Turn what nobody foresaw into an error message; a tool never raises."""
    try:
        return (yield from plan)
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("%s failed for %r", tool, skill_name)
        text = f"Error: {tool} failed for '{field_text(skill_name, 128)}' ({type(error).__name__}). Work without it."
        return _message(tool, Answer(text, is_error=True), runtime)


def _apply(tool: str, outcome: life.Outcome, budgets: life.Budgets, runtime: "ToolRuntime[Any, Any]") -> ToolResult:
    """Log and stream an outcome, and return what it does to state and conversation."""
    _log(outcome, budgets)
    reply = answer(outcome, budgets)
    if reply.event is not None:
        runtime.stream_writer(reply.event)
    message = _message(tool, reply, runtime)
    if isinstance(outcome, life.Loaded):
        return Command(update=_load_update(outcome, message))
    if isinstance(outcome, life.Unloaded):
        return Command(update=_unload_update(outcome.name, message))
    if isinstance(outcome, life.ToolsWithdrawn):
        message.additional_kwargs[session.MARK] = {"event": "unload", "skill": outcome.name}
    return message


def _load_update(outcome: life.Loaded, message: ToolMessage) -> dict[str, Any]:
    prepared, name = outcome.prepared, outcome.prepared.skill["name"]
    message.additional_kwargs[session.MARK] = session.load_mark(prepared, message.text)
    return {
        "skills_loaded": [name],
        "skill_resources": {name: prepared.inventory.resources},
        "skills_load_records": {name: session.load_record(prepared, message.text)},
        "skills_reattached": {name: None},
        "messages": [message],
    }


def _unload_update(name: str, message: ToolMessage) -> dict[str, Any]:
    message.additional_kwargs[session.MARK] = {"event": "unload", "skill": name}
    return {
        "skills_loaded": {"unload": [name]},
        "skill_resources": {name: None},
        "skills_load_records": {name: None},
        "skills_reattached": {name: None},
        "messages": [message],
    }


def _message(tool: str, reply: Answer, runtime: "ToolRuntime[Any, Any]") -> ToolMessage:
    return ToolMessage(
        content=reply.text,
        name=tool,
        tool_call_id=runtime.tool_call_id or "",
        status="error" if reply.is_error else "success",
    )


def _log(outcome: life.Outcome, budgets: life.Budgets) -> None:
    match outcome:
        case life.Loaded(prepared, standing):
            name, free = prepared.skill["name"], budgets.skills - len(standing.loaded)
            logger.info("Loaded skill %r: %d tokens, %d slots left", name, prepared.tokens, free)
            if prepared.inventory.failure:
                logger.warning("Cannot list the files of skill %r: %s", name, prepared.inventory.failure)
        case life.Unloaded(name, standing):
            logger.info("Unloaded skill %r: %d slots left", name, max(0, budgets.skills - len(standing.loaded)))
        case life.OverBudget(skill, _, _, limit):
            logger.warning("Skill %r was not loaded: the limit on %s is reached", skill["name"], limit)
        case life.Unreadable(skill, reason):
            logger.error("Cannot read skill %r at %s: %s", skill["name"], skill["path"], reason)
        case life.AlreadyLoaded(name, unchecked) if unchecked:
            logger.error("Cannot read the loaded skill %r again: %s", name, unchecked)
        case _:
            pass
