"""The calls of one turn of the model: which come before a call, and what was made of them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._loading.turn import SkillCall

LOAD_TOOL = "load_skill"
UNLOAD_TOOL = "unload_skill"
_KINDS: dict[str, Any] = {LOAD_TOOL: "load", UNLOAD_TOOL: "unload"}


@dataclass(frozen=True)
class Turn:
    """A call's turn: what calls of it are known by, and the loads and unloads before this call."""

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
    made = [edits.get(call["id"] or "", call) if call["id"] else call for call in message.tool_calls]
    ids = [call["id"] for call in message.tool_calls]
    places = [place for place, known in enumerate(ids) if known == call_id]
    before = range(places[0]) if len(places) == 1 else _all_but(made, places, name, args)
    earlier = [
        SkillCall(_KINDS[call["name"]], asked, _text(call["args"].get("arguments")))
        for place in before
        if (call := made[place])["name"] in _KINDS
        and isinstance(asked := call["args"].get("skill_name"), str)
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
    given = {key: value for key, value in args.items() if key != "runtime"}
    own = next((p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)), places[-1])
    alike = {p for p in places if made[p]["name"] == name and _same(made[p]["args"], given)} | {own}
    return [place for place in range(len(made)) if place not in alike]


def _same(asked: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return all(asked.get(key, "") == value for key, value in given.items())
