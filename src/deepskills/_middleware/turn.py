"""The calls of one turn: which they are, and how each decides as if those before it had happened.

Theory of operation
-------------------

A model may make several calls in one turn: `unload_skill("a")`, `load_skill("b")`, `load_skill("c")`. LangGraph runs
them at the same time, each with the state from before the turn, and merges their updates afterwards. No call knows
what the others will do. Left alone, each would find room for one more skill, and together they would overrun the
budget.

So each call plays the turn through by itself. The order of calls in the model's message is the one thing all of them
see alike; a call therefore assumes that the calls before it have happened (`after_calls`), and decides on that basis
(`decide_in_turn`). The same pure functions decide in every call, on the same state and the same files, so the calls
agree without talking to each other: the outcome is as if they had run one after another.

Five things can break the agreement, and each has its rule:

* *A file cannot be read here, but perhaps in the call it belongs to* (an outage that ends in between). Its size is
  unknown, so the load is assumed to be granted and to take all the room that is left (`ASSUMED`). A later call may be
  refused although a serial run would have granted it; the budget is never overrun. A file that does not exist is not
  assumed to appear.
* *An unload before us gives room and then does not happen*, because a human rejected it or another middleware
  answered it. A load that needs that room says so in its record (`Loaded.relies_on`), and the next step takes it back
  if the other skill is still loaded and there is no room for both (`loads_to_undo`, newest first).
* *A load brings along what it requires* (`load_requires=True`). It is one decision, all or none (`decide_together`),
  and playing it through takes the sizes of all of it.
* *The same skill is loaded twice in a turn.* The second call finds it loaded by the first and answers `AlreadyLoaded`
  with `by_sibling`, since the text is in another answer of the same turn.
* *A file changes while the calls run.* Then they would decide on different texts. So calls of one turn share what
  they read (`_prepare_in_turn` in `_middleware/tools.py`).

A call that is executed again after an interrupt sees the same message and the same state: LangGraph applies the
answers of a turn together. So it decides as it did before.

Pins, slash commands and extensions come through the same functions with `NO_LIMIT` or with budgets, one after
another.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._io.plan import is_missing_error
from deepskills._loading.budget import (
    ASSUMED,
    AlreadyLoaded,
    Budgets,
    Loaded,
    LoadedSkills,
    LoadOutcome,
    Prepared,
    Unloaded,
    Unreadable,
    decide_together,
    decide_unload,
)
from deepskills._types import LoadRecord

# Which calls a turn has, and which of them come before a call.


@dataclass(frozen=True)
class SkillCall:
    """A call of `load_skill` or `unload_skill` in the turn of the model."""

    kind: Literal["load", "unload"]
    name: str
    arguments: str = ""


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
    edited counts as edited; LangChain keeps the edits beside the messages. Of calls
    that share an id, the one with these arguments is meant.
    """
    message, answered = _turn_message(state.get("messages") or (), call_id)
    if message is None:
        return Turn()
    edits = _edits(state.get("hitl_edited_tool_calls"))
    # A human's edit replaces the call that will run, while the message keeps the one that the model made.
    made = [edits.get(call["id"] or "", call) if call["id"] else call for call in message.tool_calls]
    ids = [call["id"] for call in message.tool_calls]
    places = [place for place, known in enumerate(ids) if known == call_id]
    # Of calls that share an id, the one with these arguments is meant. If that is unclear, the last: a call that counts
    # too many as earlier claims too little room rather than too much.
    own = next((place for place in places if _is_same(made[place], name, args)), places[-1])
    earlier = [
        SkillCall(_KINDS[call["name"]], asked, _text(call["args"].get("arguments")))
        for place, call in enumerate(made[:own])
        if call["name"] in _KINDS
        and isinstance(asked := call["args"].get("skill_name"), str)
        # With shared ids an answer may belong to any of the calls, so none counts as answered.
        and (ids[place] not in answered or len(places) > 1)
    ]
    return Turn((message.id, len(ids)) if message.id else None, earlier)


def _edits(value: object) -> dict[str, Any]:
    """Return the calls that a human edited, by id; what is not a call is set aside."""
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


def _is_same(call: Any, name: str, args: Mapping[str, Any]) -> bool:  # noqa: ANN401 - a call of the model's message
    # LangGraph injects `runtime`; the model's message does not have it.
    given = {key: value for key, value in args.items() if key != "runtime"}
    return bool(call["name"] == name) and all(call["args"].get(key, "") == value for key, value in given.items())


# Deciding behind other calls.


@dataclass(frozen=True)
class TurnSoFar:
    """What is loaded once the earlier calls of the turn are done, and which of them gave room back."""

    loaded: LoadedSkills
    unloaded: tuple[str, ...] = ()


PreparedLoad: TypeAlias = tuple[Prepared, Sequence[Prepared]]
"""A load and those of what it requires and brings along."""


def after_calls(calls: Sequence[str | PreparedLoad], loaded: LoadedSkills, budgets: Budgets) -> TurnSoFar:
    """Return what is loaded once the earlier calls of the same turn are done: names to unload, and loads.

    Every call of a turn plays its predecessors through in this way.
    """
    before = set(loaded.names)
    unloaded: list[str] = []
    for call in calls:
        if isinstance(call, str):
            outcome: LoadOutcome = decide_unload(call, loaded)
            if isinstance(outcome, Unloaded):
                loaded = outcome.loaded
                # What this very turn had loaded gives back only its own room, so no other load relies on it.
                unloaded += [outcome.name] if outcome.name in before else []
            continue
        ready, required = call
        outcome, loads = decide_together(ready, required, loaded, budgets)
        if isinstance(outcome, Loaded):
            loaded = outcome.loaded
        elif loads:
            loaded = loads[-1].loaded
        # Refused for any other reason here, it is refused in its own call too: the same functions decide there.
        elif _may_be_granted(outcome) and len(loaded.names) < budgets.skills:
            # Its size is unknown: assume the worst, so that the calls behind it cannot overrun the budget.
            room = 0 if budgets.tokens is None else max(0, budgets.tokens - loaded.tokens)
            for each in required:
                if each.name not in loaded.names:
                    loaded = loaded.with_load(each.name, _assume(each, 0))
            loaded = loaded.with_load(ready.name, _assume(ready, room))
    return TurnSoFar(loaded, tuple(unloaded))


def _assume(prepared: Prepared, tokens: int) -> LoadRecord:
    return LoadRecord(path=prepared.entry.path, digest=ASSUMED, tokens=tokens)


def _may_be_granted(outcome: LoadOutcome) -> bool:
    """Whether a load that failed here may be readable to its own call: an outage may be over, a missing file is not."""
    return isinstance(outcome, Unreadable) and not is_missing_error(outcome.reason)


def decide_in_turn(
    prepared: Prepared, so_far: TurnSoFar, before: LoadedSkills, budgets: Budgets, required: Sequence[Prepared] = ()
) -> tuple[LoadOutcome, list[Loaded]]:
    """Decide on a load behind other calls of its turn, and record which of their unloads it relies on.

    Returns its outcome, and the loads of what it requires, which come before it.
    """
    outcome, loads = decide_together(prepared, required, so_far.loaded, budgets)
    name = prepared.name
    if isinstance(outcome, AlreadyLoaded) and so_far.loaded.records.get(name) != before.records.get(name):
        # An earlier call loads it, as far as is known here; where the file cannot be read, that is not known.
        if outcome.unchecked:
            return Unreadable(prepared.entry, outcome.unchecked), []
        outcome = replace(outcome, by_sibling=True)
    all_loads = [*loads, *([outcome] if isinstance(outcome, Loaded) else [])]
    if not all_loads or not so_far.unloaded:
        return outcome, loads
    # Would there be room had none of the unloads happened? Then the load relies on none of them.
    kept = all_loads[-1].loaded
    own = {load.prepared.name for load in all_loads}
    for name in so_far.unloaded:
        if name not in own and name in before.records and name not in kept.names:
            kept = kept.with_load(name, before.records[name])
    if not kept.is_over(budgets):
        return outcome, loads
    relying = [replace(load, relies_on=so_far.unloaded) for load in loads]
    return replace(outcome, relies_on=so_far.unloaded) if isinstance(outcome, Loaded) else outcome, relying


def loads_to_undo(loaded: LoadedSkills, budgets: Budgets) -> list[str]:
    """Return the loads that relied on an unload which did not happen, as far as there is no room for them."""
    undone: list[str] = []
    # Newest first: an older load was there when the room was still its own.
    for name in reversed(loaded.names):
        record = loaded.records.get(name)
        relied = record.get("relies_on", ()) if record else ()
        if any(other in loaded.names for other in relied) and loaded.is_over(budgets):
            undone.append(name)
            loaded = loaded.without([name])
    return undone
