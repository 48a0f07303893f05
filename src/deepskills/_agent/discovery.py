"""The start of a run: when skills are discovered, what that changes in state, and who is told."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from deepskills._agent.adoption import adopted, upgraded
from deepskills._agent.events import skill_event, tell
from deepskills._agent.extending import at
from deepskills._agent.handover import is_started_by_a_model
from deepskills._agent.run import Run, Shelf
from deepskills._agent.state import SkillsStateUpdate
from deepskills._agent.thread import Thread, is_answered
from deepskills._agent.updates import merged, note_update, unload_update
from deepskills._agent.user_loads import command_word, first_line
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Plan
from deepskills._backend.work import apart
from deepskills._catalog.catalog import Catalog, row_count
from deepskills._catalog.discovery import SOURCE_ERRORS, Discovery, source_errors
from deepskills._errors import SkillsError
from deepskills._format.problems import problem, quoted
from deepskills._format.text import one_line
from deepskills._loading.budgets import Standing
from deepskills._prompt.notices import gone_notice
from deepskills._types import SkillProblem

logger = logging.getLogger("deepskills")

MAX_KNOWN_COMMANDS = 100
"""How many messages with slash commands a thread knows again."""

_RETRIED = SOURCE_ERRORS | {"skill-unreadable"}


def current_catalog(run: Run) -> Catalog | None:
    """Return the thread's catalog if it can be used as it is, else `None`."""
    settings = run.settings
    if settings.varies_by_run:
        return None
    catalog = settings.memory.catalogs.believed(run.thread.catalog)
    if catalog is None or not catalog.is_copied_in(run.state.get("skills_metadata")):
        return None
    if not catalog.is_of(settings.fixed_sources or ()):
        return None
    return None if any(found["code"] in _RETRIED for found in run.thread.problems) else catalog


def needs_start(run: Run, catalog: Catalog | None) -> bool:
    """Whether the start of a run has anything to do."""
    settings = run.settings
    return bool(
        catalog is None
        or settings.extensions
        or run.thread.malformed
        or settings.slash_commands
        or (settings.visibility is not None and run.thread.standing.loaded)
    )


def start(run: Run) -> Plan[SkillsStateUpdate | None]:
    """Find the skills of this run, if the thread's are not current, and return what changes in state.

    Raises:
        SkillsError: If `strict` is set and a source or a skill has an error.
    """
    memory, thread = run.settings.memory, run.thread
    size = row_count(thread.catalog)
    catalog = yield from apart(lambda: current_catalog(run), size)
    if not needs_start(run, catalog):
        return None
    found = None
    if catalog is None:
        known = yield from apart(lambda: memory.catalogs.claimed(thread.catalog), size)
        found = yield from run.look.discover(known)
    shelf = yield from shelf_of(run, found)
    update: dict[str, Any] = {}
    if found is not None:
        update = yield from _discovered(run, found, shelf)
    hidden = [name for name in thread.standing.loaded if shelf.hidden.get(name) == "off"]
    gone = _gone(thread.standing, found) if found is not None else []
    update = merged(update, _taken_away(run, list(dict.fromkeys([*gone, *hidden]))))
    if run.settings.slash_commands:
        update = merged(update, _noticed_message(thread))
    yield from at("at_start", run)
    update = merged(update, run.collected)
    problems = _problems(run, found, gone)
    if problems is not None:
        update["skills_problems"] = problems
        update["skills_load_errors"] = source_errors(problems)
    if run.settings.strict and found is not None:
        _raise_errors(found.problems)
    return _changes(run.state, update)


def _discovered(run: Run, found: Discovery, shelf: Shelf) -> Plan[dict[str, Any]]:
    """Return what a look at the sources writes."""
    thread, catalog = run.thread, found.catalog
    logger.info("Discovered %d skills from %s", len(catalog.entries), _counted(len(catalog.sources)))
    update: dict[str, Any] = {"skills_catalog": catalog.record}
    if not catalog.is_copied_in(run.state.get("skills_metadata")):
        update["skills_metadata"] = catalog.copy_skills()
    if thread.is_new:
        update |= yield from adopted(run, shelf)
    elif thread.catalog is None:
        update |= upgraded(thread)
    return update


def _counted(sources: int) -> str:
    return "1 source" if sources == 1 else f"{sources} sources"


def _gone(standing: Standing, found: Discovery) -> list[str]:
    """Return the loaded skills that a successful listing no longer has, or has at another path.

    A file that is there and cannot be used, perhaps half saved, takes nothing away.
    """
    gone = []
    for name in standing.loaded:
        entry, record = found.catalog.by_name.get(name), standing.records[name]
        if entry is not None and entry.path == record["path"]:
            continue
        is_unsure = record["path"] in found.unusable or not found.unsure.isdisjoint(_sources_of(record, found))
        if not is_unsure:
            gone.append(name)
    return gone


def _sources_of(record: Mapping[str, Any], found: Discovery) -> Iterable[str]:
    """Return the source that gave a loaded skill; for a load of an older version, any may have."""
    source = record.get("source")
    return [source] if source else [known.path for known in found.catalog.sources]


def _taken_away(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return the update that unloads skills which are no longer there for this run, and tell of it."""
    if not names:
        return {}
    thread = run.thread
    for name in names:
        logger.info("Unloaded skill %r: it is no longer available", name)
        event = skill_event("unloaded", name, "system", thread.standing.records.get(name), reason="gone")
        tell(event, run.runtime, run.settings.extensions)
    anchor = thread.user_message or (thread.messages[-1] if thread.messages else None)
    note = note_update(thread, anchor.id, "before", gone_notice(names)) if anchor is not None and anchor.id else {}
    return merged(unload_update(names), note)


def _noticed_message(thread: Thread) -> dict[str, Any]:
    """Return the update that has the user's newest message looked at for slash commands, once.

    Others may take newer messages away, so a command is known again by its id, and by an answer that follows it.
    """
    message = thread.user_message if not is_started_by_a_model() else None
    if message is None or not message.id:
        return {}
    seen, commands = thread.section("run"), thread.section("commands")
    if message.id in commands or message.id in (seen.get("seen"), seen.get("message")) or is_answered(thread, message):
        return {}
    update: dict[str, dict[str, Any]] = {"run": {"message": message.id, "seen": message.id}}
    if command_word(first_line(message)):
        oldest = list(commands)[: max(0, len(commands) + 1 - MAX_KNOWN_COMMANDS)]
        update["commands"] = {**dict.fromkeys(oldest), message.id: True}
    return {"skills_context": update}


def _problems(run: Run, found: Discovery | None, gone: Sequence[str]) -> list[SkillProblem] | None:
    """Return the thread's problems as of now, or `None` if they stay; those that are new are logged."""
    records = run.thread.standing.records
    reported = [problem("state", "state-malformed", key=key) for key in dict.fromkeys(run.thread.malformed)]
    fresh = [*reported, *run.new_problems()]
    if found is None:
        log_problems(fresh)
        return [*run.thread.problems, *fresh] if fresh else None
    vanished = [problem(records[name]["path"], "skill-gone", name=quoted(name)) for name in gone]
    problems = [*found.problems, *vanished, *fresh]
    known = {(p["path"], p["code"], p["message"]) for p in run.thread.problems}
    log_problems([p for p in problems if (p["path"], p["code"], p["message"]) not in known])
    return problems


def log_problems(problems: Iterable[SkillProblem]) -> None:
    """Log problems, one line each."""
    for found in problems:
        level = logging.ERROR if found["severity"] == "error" else logging.WARNING
        logger.log(level, "%s: %s: %s", one_line(found["path"]), found["code"], one_line(found["message"]))


def _changes(state: Mapping[str, Any], update: dict[str, Any]) -> SkillsStateUpdate | None:
    """Return `update` unless state holds all of it already."""
    if all(key in state and state[key] == value for key, value in update.items()):
        return None
    return cast("SkillsStateUpdate", update)


def _raise_errors(problems: Sequence[SkillProblem]) -> None:
    errors = [f"{p['path']}: {p['code']}: {p['message']}" for p in problems if p["severity"] == "error"]
    if errors:
        raise SkillsError("\n".join(errors))
