"""Reports what became of a load: to the log, the custom stream, the extensions, and the caller.

Every outcome passes `report`, once: it is worded, logged and streamed there and nowhere else.
"""

import asyncio
import hashlib
import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from deepskills._catalog.catalog import SkillEntry
from deepskills._io.cache import BoundedCache
from deepskills._io.drivers import await_if_needed
from deepskills._loading import budget as outcomes
from deepskills._middleware.config import Settings
from deepskills._middleware.events import SkillEvent, SkillLoaded, SkillRefused, SkillUnloaded
from deepskills._middleware.run import Run
from deepskills._middleware.traces import trace
from deepskills._prompt.messages import ToolAnswer, reply_to
from deepskills._skillmd.problems import SOURCE_ERRORS
from deepskills._skillmd.text import counted, one_line
from deepskills._types import LoadRecord, SkillProblem, Trigger

logger = logging.getLogger("deepskills")

MAX_LOGGED_LINES = 20
"""How many problems that are found together are logged one by one; more are one line with counts."""

MAX_REMEMBERED_PROBLEMS = 100_000
"""How many logged problems a process remembers."""


class EventFields(TypedDict):
    """What every event says of its skill."""

    skill: str
    source: str | None
    digest: str | None
    trigger: Trigger


def describe_skill(name: str, trigger: Trigger, known: LoadRecord | SkillEntry | None = None) -> EventFields:
    """Return what an event says of a skill, as its load or the catalog knows it; where neither does, it is `None`."""
    source, digest = (None, None)
    if isinstance(known, SkillEntry):
        source, digest = known.source, known.digest
    elif known is not None:
        source, digest = known.get("source"), known.get("digest")
    return {"skill": name, "source": source or None, "digest": digest or None, "trigger": trigger}


def emit(event: SkillEvent, run: Run) -> None:
    """Write an event to the stream and to every extension; one that fails is logged."""
    writer = getattr(run.runtime, "stream_writer", None)
    if writer is not None:
        writer(event.as_dict())
    for extension in run.settings.extensions:
        # A listener must not be able to stop a run.
        try:
            _let_hear(extension.on_event(event, run.runtime))
        except Exception:
            logger.exception("%s failed to hear an event", type(extension).__name__)


def _let_hear(value: object) -> None:
    """Let an `async def on_event` do its work: beside the run where there is an event loop, else before it goes on."""
    if not inspect.isawaitable(value):
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        await_if_needed(value)
        return

    async def hear() -> None:
        try:
            await value
        except Exception:
            logger.exception("An extension failed to hear an event")

    # The loop itself holds tasks only weakly.
    task = loop.create_task(hear())
    _hearing.add(task)
    task.add_done_callback(_hearing.discard)


_hearing: set["asyncio.Task[None]"] = set()


def report(
    outcome: outcomes.LoadOutcome, trigger: Trigger, run: Run, known: LoadRecord | SkillEntry | None = None
) -> ToolAnswer:
    """Word an outcome, log it and tell the stream and the extensions; `known` is what the event names."""
    reply = reply_to(outcome, run.budgets, lingers=run.lets_linger)
    _log(outcome, run.settings.budgets)
    match outcome:
        case outcomes.Loaded(ready):
            event: SkillEvent = SkillLoaded(
                **describe_skill(ready.name, trigger, known),
                tokens=ready.tokens,
                resources=len(ready.inventory.resources),
            )
        case outcomes.Unloaded(name, _, record):
            event = SkillUnloaded(**describe_skill(name, trigger, record))
        case outcomes.ToolsWithdrawn(name):
            event = SkillUnloaded(**describe_skill(name, trigger, known))
        # Nothing changed. An extension that answered reports that itself.
        case outcomes.AlreadyLoaded() | outcomes.Answered():
            return reply
        case _:
            entry = known if isinstance(known, SkillEntry) else getattr(outcome, "entry", None)
            name = entry.name if entry is not None else getattr(outcome, "asked", "")
            event = SkillRefused(**describe_skill(name, trigger, known or entry), reason=reply.reason or "")
    emit(event, run)
    return reply


def report_unload(name: str, reason: str, run: Run) -> None:
    """Tell that the middleware itself unloaded a skill, and why."""
    record = run.thread.loaded.records.get(name)
    run.collect(trace(name, "unloaded", reason, by="system"))
    emit(SkillUnloaded(**describe_skill(name, "system", record), reason=reason), run)


def _log(outcome: outcomes.LoadOutcome, budgets: outcomes.Budgets) -> None:
    match outcome:
        case outcomes.Loaded(ready, loaded):
            tokens, resources = counted(ready.tokens, "token"), counted(len(ready.inventory.resources), "resource")
            logger.info("Loaded skill %r: %s, %s, %s", ready.name, tokens, resources, _slots(loaded, budgets))
            if ready.inventory.failure:
                failure = one_line(ready.inventory.failure)
                logger.warning("Cannot list the files of skill %r: %s", ready.name, failure)
        case outcomes.Unloaded(name, loaded):
            logger.info("Unloaded skill %r: %s", name, _slots(loaded, budgets))
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


def _slots(loaded: outcomes.LoadedSkills, budgets: outcomes.Budgets) -> str:
    return f"{max(0, budgets.skills - len(loaded.names))}/{budgets.skills} slots left"


_logged: BoundedCache[bytes, bool] = BoundedCache(MAX_REMEMBERED_PROBLEMS, lambda _: 1)


def report_problems(run: Run) -> dict[str, Any]:
    """Return the update that adds what was found on the way to the thread's problems, and log it."""
    fresh = run.list_new_problems()
    log_problems(fresh, run.settings)
    return {"skills_problems": [*run.thread.problems, *fresh]} if fresh else {}


def log_problems(problems: Iterable[SkillProblem], settings: Settings) -> None:
    """Log problems: each once per process, many at a time as a single line with counts by code.

    A source that fails is logged each time it does: that is about this run, not about a file.
    """
    place = _place_of(settings.backend)
    # Middleware is often made for each request, so what was logged is remembered by the process.
    fresh = [found for found in problems if found["code"] in SOURCE_ERRORS or _is_first(found, place)]
    levels = [logging.ERROR if found["severity"] == "error" else logging.WARNING for found in fresh]
    if len(fresh) > MAX_LOGGED_LINES:
        counts = Counter(found["code"] for found in fresh)
        listed = ", ".join(f"{number} {code}" for code, number in sorted(counts.items()))
        logger.log(max(levels), "%d problems with skills, see `skills_problems`: %s", len(fresh), listed)
        return
    for found, level in zip(fresh, levels, strict=True):
        _log_problem(found, level)


def log_overrides(shadowed: Sequence[SkillProblem], settings: Settings) -> None:
    """Log which skills of earlier sources are overridden by later ones, each once per process."""
    place = _place_of(settings.backend)
    fresh = [found for found in shadowed if _is_first(found, place)]
    if len(fresh) > MAX_LOGGED_LINES:
        logger.info("%d skills are overridden by others of the same name in later sources", len(fresh))
        return
    for found in fresh:
        _log_problem(found, logging.INFO)


def _log_problem(found: SkillProblem, level: int) -> None:
    logger.log(level, "%s: %s: %s", one_line(found["path"]), found["code"], one_line(found["message"]))


def _is_first(found: SkillProblem, place: str) -> bool:
    """Whether a problem was not logged before; the message changes with what is wrong in the file."""
    # The place is part of the key: the same path on two backends is two files.
    text = "\0".join((place, found["path"], found["code"], found["message"]))
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if _logged.get(key) is not None:
        return False
    _logged.put(key, value=True)
    return True


def _place_of(backend: object) -> str:
    """Return what distinguishes a backend's files from another's: its directory on this machine, or the object."""
    # Backends for the same directory are one place, however many objects a process makes.
    root = getattr(backend, "cwd", None)
    return f"object:{id(backend)}" if root is None else f"local:{root}:{getattr(backend, 'virtual_mode', None)}"
