"""The tools `load_skill` and `unload_skill`: calls become plans, outcomes become `Command`s and messages.

How the calls of one turn see each other is decided in `_loading/turn.py`, which opens with the theory. This module
supplies the facts: which calls stand before a call in the model's message (`turn_of`), leaving out those that were
already answered and taking those that a human edited as edited. Each call reads the files of its predecessors as well
as its own, because it has to know what they cost; calls of one turn share these readings (`prepare_in_turn`).
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, BeforeValidator, Field

from deepskills._catalog.entries import SkillEntry
from deepskills._io.plan import Plan
from deepskills._loading import turn as outcomes
from deepskills._loading.turn import SkillCall, after_calls, decide_in_turn, decide_unload
from deepskills._middleware.config import Settings
from deepskills._middleware.extension_calls import tool_problems
from deepskills._middleware.loading import Bundle, Wish, admit, bundle_of, prepare_in_turn, settle, tool_message
from deepskills._middleware.reporting import report
from deepskills._middleware.run import Run, Shelf
from deepskills._middleware.state import (
    LINGERING,
    MARK,
    merged,
    unload_mark,
    unload_update,
)
from deepskills._middleware.visibility import shelf_of
from deepskills._prompt.messages import (
    ARGUMENTS_DESCRIPTION,
    LOAD_DESCRIPTION,
    NAME_DESCRIPTION,
    UNLOAD_DESCRIPTION,
    Reply,
    tool_failed,
)

logger = logging.getLogger("deepskills")


LOAD_TOOL = "load_skill"
UNLOAD_TOOL = "unload_skill"
_KINDS: dict[str, Any] = {LOAD_TOOL: "load", UNLOAD_TOOL: "unload"}


@dataclass(frozen=True)
class Turn:
    """A call's turn: a key that its calls share, and the loads and unloads before this call."""

    key: Hashable = None
    earlier: Sequence[SkillCall] = ()


def turn_of(state: Mapping[str, Any], call_id: str | None, name: str, args: Mapping[str, Any]) -> Turn:
    """Return the turn of a call, with the loads and unloads that stand before it and are not answered yet.

    An answer that is there already was given in the place of a call, as when a human rejected it. A call that a human
    edited counts as edited; LangChain keeps the edits beside the messages. Calls that share an id cannot be told apart
    by it: then the one with these arguments is meant, and every other one counts as earlier.
    """
    message, answered = _turn_message(state.get("messages") or (), call_id)
    if message is None:
        return Turn()
    edits = _edits(state.get("hitl_edited_tool_calls"))
    # A human's edit replaces the call that will run, while the message keeps the one that the model made.
    made = [edits.get(call["id"] or "", call) if call["id"] else call for call in message.tool_calls]
    ids = [call["id"] for call in message.tool_calls]
    places = [place for place, known in enumerate(ids) if known == call_id]
    # The position is what all calls of a turn agree on; without one of its own, a call assumes that all others come
    # first, so that it claims too little room rather than too much.
    before = range(places[0]) if len(places) == 1 else _all_but(made, places, name, args)
    earlier = [
        SkillCall(_KINDS[call["name"]], asked, _text(call["args"].get("arguments")))
        for place in before
        if (call := made[place])["name"] in _KINDS
        and isinstance(asked := call["args"].get("skill_name"), str)
        # With shared ids an answer may belong to any of the calls, so none counts as answered.
        and (ids[place] not in answered or len(places) > 1)
    ]
    return Turn((message.id, len(ids)) if message.id else None, earlier)


def _edits(value: object) -> dict[str, Any]:
    """Return the calls that a human edited, by id; what is not a call, whoever wrote it, is set aside."""
    items = value if isinstance(value, Mapping) else {}
    return {
        call_id: call
        for call_id, call in items.items()
        if isinstance(call, Mapping) and isinstance(call.get("name"), str) and isinstance(call.get("args"), Mapping)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _turn_message(messages: Sequence[AnyMessage], call_id: str | None) -> tuple[AIMessage | None, set[str]]:
    """Return the model's message that makes a call, and the calls that were answered since."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls):
            return message, answered
    return None, answered


def _all_but(made: Sequence[Any], places: Sequence[int], name: str, args: Mapping[str, Any]) -> list[int]:
    """Return every call of a turn except the one that is meant: the first with this name and these arguments."""
    # LangGraph injects `runtime`; the model's message does not have it.
    given = {key: value for key, value in args.items() if key != "runtime"}
    own = next((p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)), places[-1])
    # Exact twins are left out on both sides. If each counted the other as earlier, neither would load the skill.
    alike = {p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)} | {own}
    return [place for place in range(len(made)) if place not in alike]


def _same(asked: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return all(asked.get(key, "") == value for key, value in given.items())


# The tools `load_skill` and `unload_skill`: calls to plans, outcomes to `Command`s and messages.


ToolResult = Command[Any] | ToolMessage


def _as_text(value: object) -> object:
    """Read what a model gives for no arguments as none."""
    # Some models send `null` for a parameter that they leave out.
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
            return run.perform(_guarded(plan(run, skill_name, arguments), name, skill_name, run))

        async def acall(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
            run = Run(settings, runtime.state, runtime)
            return await run.aperform(_guarded(plan(run, skill_name, arguments), name, skill_name, run))

        # Both tools share these functions; the explicit schema keeps `arguments` out of `unload_skill`'s.
        return StructuredTool.from_function(
            call, acall, name=name, description=description, args_schema=schema, infer_schema=False
        )

    def _load(self, run: Run, skill_name: str, arguments: str) -> Plan[ToolResult]:
        shelf = yield from shelf_of(run)
        entry = shelf.find(skill_name)
        if entry is None:
            return _refused(run, (yield from shelf.not_found(skill_name)))
        turn = _turn(run, LOAD_TOOL, {"skill_name": skill_name, "arguments": arguments})
        permit = _permit(entry, turn, shelf, run)
        if shelf.visibility(entry) == "user-only":
            if permit is None:
                return _refused(run, outcomes.UserOnly(entry))
            # The user's arguments win over the model's: the user started it, the model only carries it out.
            arguments = permit or arguments
        wish = Wish(entry, arguments)
        bundle = bundle_of(wish, shelf, run, _staying(turn, run))
        refused = yield from admit(bundle, run)
        if refused is not None:
            settled = yield from settle(bundle, outcomes.Prepared(entry, arguments), refused, run, LOAD_TOOL)
            return _result(settled.update, run)
        # The predecessors' files are read too: what they cost decides what is left (`after_calls`).
        earlier = _wished(turn, shelf, run)
        wishes = [each for other in (*earlier, bundle) for each in other.all]
        prepared = yield from prepare_in_turn(turn.key, wishes, run, own=wish.key)
        own, before, budgets = prepared[wish.key], run.thread.standing, run.settings.budgets
        # The file may have become the user's alone since it was listed.
        is_kept_from_models = own.entry.is_user_only and entry.name not in shelf.always
        if own.failure is None and is_kept_from_models and permit is None:
            return _refused(run, outcomes.UserOnly(entry))
        so_far = after_calls(turn.earlier, before, shelf.catalog, prepared, budgets, _along(earlier))
        required = [prepared[each.key] for each in bundle.required]
        outcome, loads = decide_in_turn(own, so_far, before, budgets, required)
        if isinstance(outcome, outcomes.AlreadyLoaded):
            outcome = _in_view_of(outcome, own, turn, run)
        settled = yield from settle(bundle, own, outcome, run, LOAD_TOOL, loads=loads)
        return _result(settled.update, run)

    def _unload(self, run: Run, skill_name: str, _arguments: str) -> Plan[ToolResult]:
        thread, standing = run.thread, run.thread.standing
        turn = _turn(run, UNLOAD_TOOL, {"skill_name": skill_name})
        # Without predecessors an unload needs no catalog and no I/O, so it works while the source is down.
        if turn.earlier:
            shelf = yield from shelf_of(run)
            earlier = _wished(turn, shelf, run)
            wishes = [each for bundle in earlier for each in bundle.all]
            prepared = yield from prepare_in_turn(turn.key, wishes, run)
            budgets, along = run.settings.budgets, _along(earlier)
            standing = after_calls(turn.earlier, standing, shelf.catalog, prepared, budgets, along).standing
        outcome: outcomes.Outcome = decide_unload(skill_name, standing)
        entry = None
        update: dict[str, Any] = {}
        # Perhaps it was only read by `read_file`, which discloses tools without loading anything.
        if isinstance(outcome, outcomes.NotLoaded):
            entry = (yield from shelf_of(run)).find(skill_name)
            if entry is not None and entry.name in thread.section("disclosed"):
                outcome = outcomes.ToolsWithdrawn(entry.name)
        message = tool_message(run, UNLOAD_TOOL, report(outcome, "model", run, entry))
        if isinstance(outcome, outcomes.Unloaded | outcomes.ToolsWithdrawn):
            message.additional_kwargs[MARK] = unload_mark(outcome.name)
            # Both kinds of unload take disclosed tools away; a skill can be loaded and read as a file.
            update = {"skills_context": {"disclosed": {outcome.name: None}}}
        if isinstance(outcome, outcomes.Unloaded):
            lingers = LINGERING if run.settings.unload_when == "cheap" else None
            update = merged(update, unload_update([outcome.name], thread.standing, lingers))
        return _result(merged(update, {"messages": [message]}), run)


def _turn(run: Run, tool: str, args: dict[str, Any]) -> Turn:
    """Return the turn of a call, identified by its step in its run: message ids may repeat between users."""
    turn = turn_of(run.state, run.runtime.tool_call_id, tool, args)
    # Without a checkpoint there is nothing that tells two runs with the same message ids apart, so readings are not
    # shared.
    checkpoint = getattr(getattr(run.runtime, "execution_info", None), "checkpoint_id", None)
    return replace(turn, key=(turn.key, checkpoint) if turn.key and checkpoint else None)


def _permit(entry: SkillEntry, turn: Turn, shelf: Shelf, run: Run) -> str | None:
    """Return the arguments of a user's start that permits one call by the model; `None` if there is none.

    It lasts until the user's next message, and only the first call of a turn gets it.
    """
    permitted = run.thread.permitted_arguments(entry.name)
    # The permit is for one start. Calls run in parallel and all see it, so only the first of the turn takes it.
    is_taken = any(call.kind == "load" and shelf.find(call.name) is entry for call in turn.earlier)
    return None if is_taken else permitted


def _wished(turn: Turn, shelf: Shelf, run: Run) -> list[Bundle]:
    """Return the loads earlier in a turn, each with what it brings along; those that are refused are left out."""
    loads = [(shelf.find_visible(call.name), call.arguments) for call in turn.earlier if call.kind == "load"]
    staying = _staying(turn, run)
    wished = [bundle_of(Wish(entry, arguments), shelf, run, staying) for entry, arguments in loads if entry is not None]
    return [bundle for bundle in wished if bundle.refusal is None]


def _along(bundles: Sequence[Bundle]) -> dict[str, list[str]]:
    """Return by skill which others its load brings along."""
    return {bundle.wish.entry.name: [each.entry.name for each in bundle.required] for bundle in bundles}


def _staying(turn: Turn, run: Run) -> Sequence[str]:
    """Return the loaded skills that no earlier call of the turn may have unloaded."""
    return () if any(call.kind == "unload" for call in turn.earlier) else run.thread.standing.loaded


def _in_view_of(outcome: outcomes.AlreadyLoaded, prepared: outcomes.Prepared, turn: Turn, run: Run) -> outcomes.Outcome:
    """Tell apart what stays loaded from before this turn from what only an earlier call of it may have loaded."""
    name = outcome.name
    # An unload earlier in the turn makes the load from before irrelevant, even if a sibling then loads it again.
    unloads = [call.name for call in turn.earlier if call.kind == "unload"]
    stays = name in run.thread.standing.loaded and all(
        isinstance(decide_unload(asked, run.thread.standing), outcomes.NotLoaded)
        or decide_unload(asked, run.thread.standing).name != name  # type: ignore[union-attr]
        for asked in unloads
    )
    if stays:
        return replace(outcome, crowded=outcome.crowded or run.thread.is_left_out(name))
    # Loaded by a sibling, as far as we know, but the file could not be read here: nobody can promise that the text is
    # there.
    if outcome.unchecked:
        return outcomes.Unreadable(prepared.entry, outcome.unchecked)
    return replace(outcome, by_sibling=True)


def _guarded(plan: Plan[ToolResult], tool: str, skill_name: str, run: Run) -> Plan[ToolResult]:
    """Turn an unexpected failure into an error message; a tool never raises."""
    try:
        return (yield from plan)
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("%s failed for %r", tool, skill_name)
        return tool_message(run, tool, Reply(tool_failed(tool, skill_name, error), is_error=True))


def _refused(run: Run, outcome: outcomes.Refusal) -> ToolResult:
    """Answer a load of a skill that could not be prepared."""
    reply = report(outcome, "model", run, getattr(outcome, "entry", None))
    return _result({"messages": [tool_message(run, LOAD_TOOL, reply)]}, run)


def _result(update: dict[str, Any], run: Run) -> ToolResult:
    """Return a call's result with what extensions asked to change, and the problems that were found on the way."""
    whole = merged(update, run.collected, tool_problems(run))
    # Where nothing changes in state, as in most refusals, the answer is a plain message.
    if whole.keys() == {"messages"}:
        [message] = whole["messages"]
        answer: ToolMessage = message
        return answer
    return Command(update=whole)
