"""Changes of a thread's state: the one place that builds what a load, an unload or a notice writes."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from langchain_core.messages import AnyMessage
from langgraph.config import get_config

from deepskills._agent.thread import LINGERING, Thread
from deepskills._loading.budgets import Standing
from deepskills._loading.outcomes import Loaded
from deepskills._loading.turn import record_of
from deepskills._types import LoadRecord, Trigger

MARK = "deepskills"
"""Key in a message's `additional_kwargs` that says what the message did to the loaded skills: a claim, not a proof."""


def fingerprint(text: str) -> str:
    """Return the digest by which a message's text is known again."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def new_message_id() -> str:
    """Return the id of a message that carries a skill's text."""
    return f"skill-{uuid4()}"


def current_step() -> int:
    """Return the number of LangGraph's current step; 0 outside a graph."""
    try:
        step = get_config().get("metadata", {}).get("langgraph_step")
    except RuntimeError:
        return 0
    return step if isinstance(step, int) else 0


def session_id(runtime: object) -> str:
    """Return the id of the thread that a run belongs to; empty if it has none."""
    config = getattr(runtime, "config", None)
    if config is None:
        try:
            config = get_config()
        except RuntimeError:
            return ""
    return str((config.get("configurable") or {}).get("thread_id") or "")


def load_mark(outcome: Loaded) -> dict[str, Any]:
    """Return the mark of a message that brings a skill in."""
    prepared = outcome.prepared
    return {"event": "load", "skill": prepared.name, "arguments": prepared.arguments, "digest": prepared.digest}


def unload_mark(name: str) -> dict[str, Any]:
    """Return the mark of a message that takes a skill away."""
    return {"event": "unload", "skill": name}


def load_update(outcome: Loaded, message: AnyMessage, thread: Thread, trigger: Trigger) -> dict[str, Any]:
    """Return the update of a load whose text `message` carries."""
    prepared, name = outcome.prepared, outcome.prepared.name
    record: LoadRecord = {
        **record_of(prepared),
        "text": fingerprint(str(message.text)),
        "message": message.id or "",
        "trigger": trigger,
        "turn": thread.turn,
    }
    step = current_step()
    if step:
        record["step"] = step
    if outcome.relies_on:
        record["relies_on"] = list(outcome.relies_on)
    return {
        "skills_loaded": [name],
        "skill_resources": {name: prepared.inventory.resources},
        "skills_load_records": {name: record},
        "skills_context": {
            "texts": {message.id or "": {"skill": name}},
            "told": {name: None},
            "loads": {name: None},
            "permits": {name: None},
        },
        "messages": [message],
    }


def unload_update(names: Iterable[str], standing: Standing | None = None, state: str | None = None) -> dict[str, Any]:
    """Return the update that takes skills away; `state` says what becomes of their texts, if not the usual."""
    gone = list(names)
    context: dict[str, Any] = {"told": dict.fromkeys(gone)}
    if state is not None and standing is not None:
        context["texts"] = {
            message: {"skill": name, "state": state, "tokens": standing.size(name)}
            for name in gone
            if name in standing.records and (message := standing.records[name].get("message"))
        }
    return {
        "skills_loaded": {"unload": gone},
        "skill_resources": dict.fromkeys(gone),
        "skills_load_records": dict.fromkeys(gone),
        "skills_context": context,
    }


def without_lingering(thread: Thread) -> dict[str, Any]:
    """Return the `texts` of unloaded skills as of now gone from requests."""
    texts = thread.section("texts")
    return {key: {"skill": text["skill"]} for key, text in texts.items() if text.get("state") == LINGERING}


def note_update(thread: Thread, message_id: str, place: str, text: str) -> dict[str, Any]:
    """Return the update that shows a text at a message, in every request while the message is there."""
    note = thread.section("notes").get(message_id, {})
    shown = note.get(place, [])
    if text in shown:
        return {}
    return {"skills_context": {"notes": {message_id: {**note, place: [*shown, text]}}}}


def merged(*updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return several updates as one: messages add up, mappings merge as their reducers would, else the later wins."""
    result: dict[str, Any] = {}
    for update in updates:
        for key, value in update.items():
            before = result.get(key)
            if before is None:
                result[key] = value
            elif key == "messages":
                result[key] = [*before, *value]
            elif key == "skills_loaded":
                result[key] = _merged_names(before, value)
            elif key in _TWO_LEVELS:
                sections = dict.fromkeys([*before, *value])
                result[key] = {name: {**(before.get(name) or {}), **(value.get(name) or {})} for name in sections}
            elif isinstance(before, dict):
                result[key] = {**before, **value}
            else:
                result[key] = value
    return result


_TWO_LEVELS = frozenset({"skills_context", "skills_extensions"})


def _merged_names(before: Any, value: Any) -> Any:  # noqa: ANN401 - a list, or what to unload and load
    """Return two updates of `skills_loaded` as one; the second comes after the first."""
    first = before if isinstance(before, dict) else {"unload": [], "load": before}
    second = value if isinstance(value, dict) else {"unload": [], "load": value}
    loads = [name for name in first.get("load", []) if name not in second["unload"]]
    merged_names = {
        "unload": [*first["unload"], *second["unload"]],
        "load": [*loads, *second.get("load", [])],
    }
    return merged_names if merged_names["unload"] else merged_names["load"]
