"""Before each model call: evicted texts return, loads without room are undone, what users ask for is loaded."""

import logging
from typing import Any

from langchain_core.messages import ToolMessage

from deepskills._agent.discovery import log_problems
from deepskills._agent.events import skill_event, tell
from deepskills._agent.losses import is_evicted
from deepskills._agent.run import Run
from deepskills._agent.thread import UNDONE
from deepskills._agent.updates import current_step, merged, unload_update
from deepskills._agent.user_loads import user_loads
from deepskills._backend.calls import Plan
from deepskills._loading.turn import loads_to_undo

logger = logging.getLogger("deepskills")


def before_model_call(run: Run) -> Plan[dict[str, Any] | None]:
    """Return what changes in state before the model is called, or `None` if nothing does."""
    update = merged(_restored(run), _undone(run))
    update = merged(update, (yield from user_loads(run)))
    waiting = run.thread.section("problems")
    fresh = run.new_problems()
    log_problems(fresh)
    known = {(found["path"], found["code"], found["message"]) for found in (*run.thread.problems, *fresh)}
    noted = [p for p in waiting.values() if (p["path"], p["code"], p["message"]) not in known]
    if waiting:
        update = merged(update, {"skills_context": {"problems": dict.fromkeys(waiting)}})
    if fresh or noted:
        update["skills_problems"] = [*run.thread.problems, *noted, *fresh]
    return merged(update, run.collected) or None


def _restored(run: Run) -> dict[str, Any]:
    """Return texts that were evicted in the turn of their load to their messages, so that every guard sees them.

    Hooks that stand before this one have seen the stub alone: then the step starts over.
    """
    thread = run.thread
    own = {record["message"]: record for record in thread.standing.records.values() if record.get("message")}
    restored = []
    starts_over = False
    for message in thread.messages if own else ():
        record = own.get(message.id or "")
        if record is None or not isinstance(message, ToolMessage) or not is_evicted(message):
            continue
        text = run.settings.memory.text(record.get("text", ""))
        if text is None or thread.section("texts").get(message.id or "", {}).get("restored"):
            continue
        restored.append(message.model_copy(update={"content": text}))
        starts_over |= current_step() > record.get("step", 0) + 1 > 1
    if not restored:
        return {}
    texts = {m.id: {**thread.section("texts").get(m.id or "", {}), "restored": True} for m in restored}
    update: dict[str, Any] = {"messages": restored, "skills_context": {"texts": texts}}
    return {**update, "jump_to": "model"} if starts_over else update


def _undone(run: Run) -> dict[str, Any]:
    """Take back loads that relied on an unload which another middleware refused."""
    standing = run.thread.standing
    names = loads_to_undo(standing, run.settings.budgets)
    if not names:
        return {}
    for name in names:
        logger.warning("Unloaded skill %r: the unload that was to make room for it was refused", name)
        event = skill_event("unloaded", name, "system", standing.records.get(name), reason="no_room")
        tell(event, run.runtime, run.settings.extensions)
    return unload_update(names, standing, UNDONE)
