"""Before each model call: evicted texts return, loads without room are undone, what users ask for is loaded."""

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import ToolMessage

from deepskills._agent.composing import read_again
from deepskills._agent.discovery import log_problems
from deepskills._agent.events import skill_event, tell
from deepskills._agent.losses import is_evicted
from deepskills._agent.run import Run
from deepskills._agent.thread import UNDONE
from deepskills._agent.updates import current_step, merged, unload_update
from deepskills._agent.user_loads import user_loads
from deepskills._backend.calls import Plan
from deepskills._loading.turn import loads_to_undo
from deepskills._types import LoadRecord

logger = logging.getLogger("deepskills")


def before_model_call(run: Run) -> Plan[dict[str, Any] | None]:
    """Return what changes in state before the model is called, or `None` if nothing does."""
    update = merged((yield from _restored(run)), _undone(run))
    update = merged(update, (yield from user_loads(run)))
    waiting = run.thread.section("problems")
    fresh = run.new_problems()
    log_problems(fresh)
    noted = []
    if waiting:
        known = {(found["path"], found["code"], found["message"]) for found in (*run.thread.problems, *fresh)}
        noted = [p for p in waiting.values() if (p["path"], p["code"], p["message"]) not in known]
        update = merged(update, {"skills_context": {"problems": dict.fromkeys(waiting)}})
    if fresh or noted:
        update["skills_problems"] = [*run.thread.problems, *noted, *fresh]
    return merged(update, run.collected) or None


def _restored(run: Run) -> Plan[dict[str, Any]]:
    """Return texts that were evicted in the turn of their load to their messages, so that every guard sees them.

    Hooks that stand before this one have seen the stub alone: then the step starts over.
    """
    thread = run.thread
    own = {record["message"]: name for name, record in thread.standing.records.items() if record.get("message")}
    evicted = {
        own[message.id]: message
        for message in (thread.messages if own else ())
        if message.id in own
        and isinstance(message, ToolMessage)
        and is_evicted(message)
        and not thread.section("texts").get(message.id, {}).get("restored")
    }
    if not evicted:
        return {}
    found = yield from _texts_of(list(evicted), run)
    restored = [evicted[name].model_copy(update={"content": text}) for name, (text, _record) in found.items()]
    records = {name: record for name, (_text, record) in found.items()}
    texts = {m.id: {**thread.section("texts").get(m.id or "", {}), "restored": True} for m in restored}
    update: dict[str, Any] = {
        "messages": restored,
        "skills_context": {"texts": texts},
        "skills_load_records": records,
    }
    starts_over = any(current_step() > record.get("step", 0) + 1 > 1 for record in records.values())
    return {} if not restored else {**update, "jump_to": "model"} if starts_over else update


def _texts_of(names: Sequence[str], run: Run) -> Plan[dict[str, tuple[str, LoadRecord]]]:
    """Return the texts of these loads from memory, else from their files; what nobody can read is left out."""
    standing = run.thread.standing
    known = {name: run.settings.memory.text(standing.records[name].get("text", "")) for name in names}
    found = {name: (text, standing.records[name]) for name, text in known.items() if text is not None}
    unread = [name for name, text in known.items() if text is None and not standing.records[name].get("edited")]
    read = yield from read_again(unread, standing, run)
    return found | {name: text for name, text in read.items() if not isinstance(text, str)}


def _undone(run: Run) -> dict[str, Any]:
    """Take back loads that relied on an unload which another middleware refused; all others no longer rely on any."""
    standing = run.thread.standing
    names = loads_to_undo(standing, run.settings.budgets)
    settled: dict[str, Any] = {
        name: {key: value for key, value in record.items() if key != "relies_on"}
        for name, record in standing.records.items()
        if "relies_on" in record and name not in names
    }
    update = {"skills_load_records": settled} if settled else {}
    if not names:
        return update
    for name in names:
        logger.warning("Unloaded skill %r: the unload that was to make room for it was refused", name)
        event = skill_event("unloaded", name, "system", standing.records.get(name), reason="no_room")
        tell(event, run.runtime, run.settings.extensions)
    return merged(update, unload_update(names, standing, UNDONE))
