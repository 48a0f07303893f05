"""The tools `load_skill` and `unload_skill`: calls to plans, outcomes to `Command`s and messages."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, BeforeValidator, Field

from deepskills._agent.events import skill_event, tell
from deepskills._agent.extending import before_load, first_refusal
from deepskills._agent.extension import Answer, Refuse, SkillLoad
from deepskills._agent.extension_run import tool_problems, with_changes
from deepskills._agent.preparing import Wanted, prepare_in_turn
from deepskills._agent.run import Run, Shelf, is_user_only
from deepskills._agent.settings import Settings
from deepskills._agent.skill_tools import include_names, was_seen
from deepskills._agent.thread import LINGERING
from deepskills._agent.turn_calls import LOAD_TOOL, UNLOAD_TOOL, Turn, turn_of
from deepskills._agent.updates import MARK, load_mark, load_update, merged, new_message_id, unload_mark, unload_update
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Plan
from deepskills._catalog.entries import SkillEntry
from deepskills._format.text import one_line
from deepskills._loading import outcomes
from deepskills._loading.budgets import Budgets
from deepskills._loading.turn import after_calls, decide_in_turn, decide_unload, record_of
from deepskills._prompt.answers import (
    ARGUMENTS_DESCRIPTION,
    LOAD_DESCRIPTION,
    NAME_DESCRIPTION,
    UNLOAD_DESCRIPTION,
    Reply,
    reply_to,
    tool_failed,
)
from deepskills._types import LoadRecord

logger = logging.getLogger("deepskills")

ToolResult = Command[Any] | ToolMessage


def _as_text(value: object) -> object:
    """Read what a model gives for no arguments as none."""
    return "" if value is None else value


class UnloadArguments(BaseModel):
    """Arguments of `unload_skill`."""

    skill_name: str = Field(description=NAME_DESCRIPTION)


class LoadArguments(UnloadArguments):
    """Arguments of `load_skill`."""

    arguments: Annotated[str, BeforeValidator(_as_text)] = Field(default="", description=ARGUMENTS_DESCRIPTION)


class SkillTools:
    """Makes the tools for one middleware."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def all(self) -> list[BaseTool]:
        """Return the tools."""
        return [
            self._tool(LOAD_TOOL, LOAD_DESCRIPTION, LoadArguments, self._load),
            self._tool(UNLOAD_TOOL, UNLOAD_DESCRIPTION, UnloadArguments, self._unload),
        ]

    def _tool(
        self, name: str, description: str, schema: type[BaseModel], plan: Callable[..., Plan[ToolResult]]
    ) -> BaseTool:
        """Return a tool whose sync and async calls perform the same plan."""
        settings = self._settings

        def call(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
            run = Run(settings, runtime.state, runtime)
            return settings.perform(_guarded(plan(run, skill_name, arguments), name, skill_name, run), runtime)

        async def acall(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
            run = Run(settings, runtime.state, runtime)
            return await settings.aperform(_guarded(plan(run, skill_name, arguments), name, skill_name, run), runtime)

        return StructuredTool.from_function(
            call, acall, name=name, description=description, args_schema=schema, infer_schema=False
        )

    def _load(self, run: Run, skill_name: str, arguments: str) -> Plan[ToolResult]:
        shelf = yield from shelf_of(run)
        entry = shelf.find(skill_name)
        if entry is None:
            return _refused(run, LOAD_TOOL, skill_name, (yield from shelf.not_found(skill_name)))
        turn = _turn(run, LOAD_TOOL, {"skill_name": skill_name, "arguments": arguments})
        permit = _permit(entry, turn, shelf, run)
        if shelf.visibility(entry) == "user-only":
            if permit is None:
                return _refused(run, LOAD_TOOL, entry.name, outcomes.UserOnly(entry))
            arguments = permit or arguments
        refused = yield from first_refusal("before_read", run, entry)
        if refused is not None:
            return _applied(run, LOAD_TOOL, outcomes.Refused(entry, refused.reason), entry)
        wanted = [*_wanted(turn, shelf), (entry, arguments)]
        prepared = yield from prepare_in_turn(turn.key, wanted, run, own=(entry.name, arguments))
        own, before, budgets = prepared[entry.name, arguments], run.thread.standing, run.settings.budgets
        if own.failure is None and is_user_only(own.entry) and permit is None:
            return _refused(run, LOAD_TOOL, entry.name, outcomes.UserOnly(entry))
        so_far = after_calls(turn.earlier, before, shelf.catalog, prepared, budgets)
        outcome = decide_in_turn(own, so_far, before, budgets)
        if isinstance(outcome, outcomes.Loaded | outcomes.OverBudget):
            decided = yield from _decided(own, run)
            if isinstance(decided, Answer):
                return _answered(run, own, decided)
            outcome = decided or outcome
        if isinstance(outcome, outcomes.AlreadyLoaded):
            outcome = _in_view_of(outcome, own, turn, run)
        return _applied(run, LOAD_TOOL, outcome, record_of(own) if own.digest else own.entry)

    def _unload(self, run: Run, skill_name: str, _arguments: str) -> Plan[ToolResult]:
        standing = run.thread.standing
        turn = _turn(run, UNLOAD_TOOL, {"skill_name": skill_name})
        if turn.earlier:
            shelf = yield from shelf_of(run)
            prepared = yield from prepare_in_turn(turn.key, _wanted(turn, shelf), run)
            budgets = run.settings.budgets
            standing = after_calls(turn.earlier, standing, shelf.catalog, prepared, budgets).standing
        outcome: outcomes.Outcome = decide_unload(skill_name, standing)
        entry = None
        if isinstance(outcome, outcomes.NotLoaded):
            entry = (yield from shelf_of(run)).find(skill_name)
            if entry is not None and include_names(entry) and was_seen(run.thread.messages, entry):
                outcome = outcomes.ToolsWithdrawn(entry.name)
        return _applied(run, UNLOAD_TOOL, outcome, entry)


def _turn(run: Run, tool: str, args: dict[str, Any]) -> Turn:
    """Return the turn of a call, known by its step in its run: ids of messages may be the same for several users."""
    turn = turn_of(run.state, run.runtime.tool_call_id, tool, args)
    checkpoint = getattr(getattr(run.runtime, "execution_info", None), "checkpoint_id", None)
    return replace(turn, key=(turn.key, checkpoint) if turn.key and checkpoint else None)


def _permit(entry: SkillEntry, turn: Turn, shelf: Shelf, run: Run) -> str | None:
    """Return the arguments of a start by the user that asks for one call of the model, or `None` without one.

    It lasts until the user's next message, and of the calls of one turn it is the first one's.
    """
    permitted = run.thread.permitted_arguments(entry.name)
    is_taken = any(call.kind == "load" and shelf.find(call.name) is entry for call in turn.earlier)
    return None if is_taken else permitted


def _wanted(turn: Turn, shelf: Shelf) -> list[Wanted]:
    """Return the skills that the loads earlier in a turn are about."""
    loads = [(shelf.find_visible(call.name), call.arguments) for call in turn.earlier if call.kind == "load"]
    return [(entry, arguments) for entry, arguments in loads if entry is not None]


def _decided(prepared: outcomes.Prepared, run: Run) -> Plan[Answer | outcomes.Refused | None]:
    """Ask the extensions about a load that the core would grant."""
    if not run.settings.extensions:
        return None
    load = SkillLoad(
        prepared.entry,
        prepared.arguments,
        "model",
        prepared.text,
        prepared.tokens,
        prepared.inventory.resources,
        run.runtime,
    )
    decision = yield from before_load(load, run)
    if isinstance(decision, Refuse):
        return outcomes.Refused(prepared.entry, decision.reason)
    return decision


def _in_view_of(outcome: outcomes.AlreadyLoaded, prepared: outcomes.Prepared, turn: Turn, run: Run) -> outcomes.Outcome:
    """Tell apart what stays loaded from before this turn from what only an earlier call of it may have loaded."""
    name = outcome.name
    unloads = [call.name for call in turn.earlier if call.kind == "unload"]
    stays = name in run.thread.standing.loaded and all(
        isinstance(decide_unload(asked, run.thread.standing), outcomes.NotLoaded)
        or decide_unload(asked, run.thread.standing).name != name  # type: ignore[union-attr]
        for asked in unloads
    )
    if stays:
        return replace(outcome, crowded=outcome.crowded or run.thread.is_left_out(name))
    if outcome.unchecked:
        return outcomes.Unreadable(prepared.entry, outcome.unchecked)
    return replace(outcome, by_sibling=True)


def _guarded(plan: Plan[ToolResult], tool: str, skill_name: str, run: Run) -> Plan[ToolResult]:
    """Turn what nobody foresaw into an error message; a tool never raises."""
    try:
        return (yield from plan)
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("%s failed for %r", tool, skill_name)
        return _message(run, tool, Reply(tool_failed(tool, skill_name, error), is_error=True))


def _refused(run: Run, tool: str, name: str, outcome: outcomes.Refusal) -> ToolResult:
    """Answer a call that names no skill which could be prepared."""
    reply = reply_to(outcome, run.settings.budgets)
    event = skill_event("refused", name, "model", getattr(outcome, "entry", None), reason=reply.reason)
    tell(event, run.runtime, run.settings.extensions)
    return with_changes(_message(run, tool, reply), run)


def _answered(run: Run, prepared: outcomes.Prepared, answer: Answer) -> ToolResult:
    """Answer a load as an extension does; nothing is loaded."""
    outcome = outcomes.Answered(prepared.entry, answer.text, answer.is_error)
    message = _message(run, LOAD_TOOL, reply_to(outcome, run.settings.budgets))
    permits = {"skills_context": {"permits": {prepared.name: None}}}
    return Command(
        update=merged({**answer.update}, permits, run.collected, tool_problems(run), {"messages": [message]})
    )


def _applied(run: Run, tool: str, outcome: outcomes.Outcome, known: LoadRecord | SkillEntry | None) -> ToolResult:
    """Log and stream an outcome, and return what it does to state and conversation; `known` is what events name."""
    settings, thread = run.settings, run.thread
    lingers = settings.unload_when == "cheap"
    reply = reply_to(outcome, settings.budgets, lingers=lingers)
    message = _message(run, tool, reply)
    _log(outcome, settings.budgets)
    match outcome:
        case outcomes.Loaded(ready):
            message.id = new_message_id()
            message.additional_kwargs[MARK] = load_mark(outcome)
            settings.memory.keep_text(reply.text)
            update = load_update(outcome, message, thread, "model")
            details = {"tokens": ready.tokens, "resources": len(ready.inventory.resources)}
            tell(skill_event("loaded", ready.name, "model", known, **details), run.runtime, settings.extensions)
            return Command(update=merged(update, run.collected, tool_problems(run)))
        case outcomes.Unloaded(name, _, record):
            message.additional_kwargs[MARK] = unload_mark(name)
            tell(skill_event("unloaded", name, "model", record), run.runtime, settings.extensions)
            update = unload_update([name], thread.standing, LINGERING if lingers else None)
            return Command(update=merged(update, {"messages": [message]}))
        case outcomes.ToolsWithdrawn(name):
            message.additional_kwargs[MARK] = unload_mark(name)
            tell(skill_event("unloaded", name, "model", known), run.runtime, settings.extensions)
        case outcomes.AlreadyLoaded():
            pass
        case _:
            entry = known if isinstance(known, SkillEntry) else getattr(outcome, "entry", None)
            name = entry.name if entry is not None else getattr(outcome, "asked", "")
            tell(skill_event("refused", name, "model", known, reason=reply.reason), run.runtime, settings.extensions)
    return with_changes(message, run)


def _message(run: Run, tool: str, reply: Reply) -> ToolMessage:
    return ToolMessage(
        content=reply.text,
        name=tool,
        tool_call_id=run.runtime.tool_call_id or "",
        status="error" if reply.is_error else "success",
    )


def _log(outcome: outcomes.Outcome, budgets: Budgets) -> None:
    match outcome:
        case outcomes.Loaded(prepared, standing):
            free = budgets.skills - len(standing.loaded)
            logger.info("Loaded skill %r: %d tokens, %d slots left", prepared.name, prepared.tokens, free)
            log_inventory(prepared)
        case outcomes.Unloaded(name, standing):
            logger.info("Unloaded skill %r: %d slots left", name, max(0, budgets.skills - len(standing.loaded)))
        case outcomes.OverBudget(entry, _, _, limit):
            logger.warning("Skill %r was not loaded: the limit on %s is reached", entry.name, limit)
        case outcomes.Unreadable(entry, reason):
            logger.error("Cannot read skill %r at %s: %s", entry.name, one_line(entry.path), one_line(reason))
        case outcomes.Refused(entry, reason):
            logger.warning("Skill %r was not loaded: %s", entry.name, one_line(reason))
        case outcomes.AlreadyLoaded(name, unchecked) if unchecked:
            logger.error("Cannot read the loaded skill %r again: %s", name, one_line(unchecked))
        case _:
            pass


def log_inventory(prepared: outcomes.Prepared) -> None:
    """Log that a skill's files could not be listed."""
    if prepared.inventory.failure:
        logger.warning("Cannot list the files of skill %r: %s", prepared.name, one_line(prepared.inventory.failure))
