"""Who hears what became of a load: the log, the custom stream, the extensions, and the model's or the user's answer.

Every outcome passes `report`, once: it is worded, logged and told there and nowhere else.
"""

import logging
from collections.abc import Mapping
from typing import Any

from deepskills._catalog.entries import SkillEntry
from deepskills._loading import turn as outcomes
from deepskills._loading.budget import Budgets
from deepskills._middleware.extension import SkillExtension
from deepskills._middleware.run import Run
from deepskills._prompt.messages import Reply, reply_to
from deepskills._skillmd.text import one_line
from deepskills._types import LoadRecord, Trigger

logger = logging.getLogger("deepskills")


def skill_event(
    kind: str, name: str, trigger: Trigger, known: LoadRecord | SkillEntry | None = None, **details: object
) -> dict[str, Any]:
    """Return an event about a skill, as its load or the catalog knows it; where neither does, both are `None`."""
    origin: Mapping[str, Any] = known if isinstance(known, dict) else {}
    if isinstance(known, SkillEntry):
        origin = {"source": known.source, "digest": known.digest}
    origin = {"source": origin.get("source") or None, "digest": origin.get("digest") or None, "trigger": trigger}
    return {"type": f"skill.{kind}", "skill": name, **details, **origin}


def tell(event: Mapping[str, Any], runtime: Any, extensions: tuple[SkillExtension, ...]) -> None:  # noqa: ANN401
    """Write an event to the stream and to every extension; one that fails is logged."""
    writer = getattr(runtime, "stream_writer", None)
    if writer is not None:
        writer(dict(event))
    for extension in extensions:
        try:
            extension.on_event(event, runtime)
        except Exception:
            logger.exception("%s failed to hear an event", type(extension).__name__)


def report(
    outcome: outcomes.Outcome, trigger: Trigger, run: Run, known: LoadRecord | SkillEntry | None = None
) -> Reply:
    """Word an outcome, log it and tell the stream and the extensions; `known` is what the event names."""
    settings = run.settings
    reply = reply_to(outcome, settings.budgets, lingers=settings.unload_when == "cheap")
    _log(outcome, settings.budgets)
    match outcome:
        case outcomes.Loaded(ready):
            details = {"tokens": ready.tokens, "resources": len(ready.inventory.resources)}
            event = skill_event("loaded", ready.name, trigger, known, **details)
        case outcomes.Unloaded(name, _, record):
            event = skill_event("unloaded", name, trigger, record)
        case outcomes.ToolsWithdrawn(name):
            event = skill_event("unloaded", name, trigger, known)
        case outcomes.AlreadyLoaded() | outcomes.Answered():
            return reply
        case _:
            entry = known if isinstance(known, SkillEntry) else getattr(outcome, "entry", None)
            name = entry.name if entry is not None else getattr(outcome, "asked", "")
            event = skill_event("refused", name, trigger, known or entry, reason=reply.reason)
    tell(event, run.runtime, settings.extensions)
    return reply


def report_unload(name: str, reason: str, run: Run) -> None:
    """Tell that the middleware itself unloaded a skill, and why."""
    record = run.thread.standing.records.get(name)
    tell(skill_event("unloaded", name, "system", record, reason=reason), run.runtime, run.settings.extensions)


def _log(outcome: outcomes.Outcome, budgets: Budgets) -> None:
    match outcome:
        case outcomes.Loaded(ready, standing):
            free = max(0, budgets.skills - len(standing.loaded))
            logger.info("Loaded skill %r: %d tokens, %d slots left", ready.name, ready.tokens, free)
            if ready.inventory.failure:
                logger.warning("Cannot list the files of skill %r: %s", ready.name, one_line(ready.inventory.failure))
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
