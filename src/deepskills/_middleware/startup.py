"""The start of a run: when skills are discovered, what that changes in state, and what is reported.

A thread may start with loads: those that its messages show, and a parent's. Marks on messages are claims, because
callers can write them. A claim counts only if the message's text is the very block that the skill's file gives with the
arguments claimed; sizes and files come from that reading.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from langchain_core.messages import AnyMessage

from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._catalog.discovery import Discovery, format_source_errors
from deepskills._catalog.lookup import find_required
from deepskills._errors import SkillsError
from deepskills._io.backends import with_virtual_hint
from deepskills._io.plan import in_worker
from deepskills._loading.budget import record_of
from deepskills._middleware.commands import command_word, first_line
from deepskills._middleware.extension_calls import call_extensions
from deepskills._middleware.loading import Key, LoadRequest, load, prepare, take_away
from deepskills._middleware.nesting import is_continued, take_over, takes_slash_commands
from deepskills._middleware.reporting import log_overrides, log_problems
from deepskills._middleware.run import Run, VisibleCatalog, is_of, is_started_by_user, key_of_problem
from deepskills._middleware.state import (
    Mark,
    SkillsStateUpdate,
    Thread,
    is_answered,
    merge_updates,
    read_mark,
)
from deepskills._middleware.traces import build_hidden_update, build_shadows_update
from deepskills._middleware.visibility import find_view
from deepskills._prompt.messages import CHANGED_LEAD, UPDATED_LEAD, block_opening, without_requirements
from deepskills._skillmd.problems import OF_ONE_RUN, SOURCE_ERRORS, listed, problem, quoted
from deepskills._skillmd.text import counted
from deepskills._types import LoadRecord, SkillProblem

logger = logging.getLogger("deepskills")


MAX_CLAIMS = 200
"""How many claims of a conversation are looked into, the newest first."""

MAX_CLAIMED_LOADS = 24
"""How many different loads are prepared to be compared with claims."""

MAX_CLAIMED_ARGUMENTS = 20_000
"""How many characters the arguments of all claimed loads may take together."""


@dataclass(frozen=True)
class _Claim:
    """What a message says it did to a loaded skill."""

    message: AnyMessage
    mark: Mark

    @property
    def key(self) -> Key:
        return self.mark["skill"], self.mark.get("arguments", "")


async def adopt_loads(run: Run) -> dict[str, Any]:
    """Return what is loaded on a thread that starts: what its parent hands over, or what its messages prove."""
    parent, passes_on = take_over()
    # A fork's messages hold the texts already, and only the records are missing. Any other sub-agent has to load them.
    if parent is not None and is_continued(run.thread):
        return _inherit(parent, run.known_view)
    # Written even if empty: on a new thread users find these keys.
    empty: dict[str, Any] = {"skills_loaded": [], "skill_resources": {}}
    if parent is not None and (passes_on or run.settings.subagent_inherit == "inherit"):
        return merge_updates(empty, await _load_again(parent, run))
    # Marks on messages are claims, which any caller can write: they only tell which files are worth comparing with.
    claims = _find_claims(run.thread.messages)
    prepared = await prepare(_choose_claimed(claims, run), run)
    records: dict[str, LoadRecord] = {}
    texts: dict[str, Any] = {}
    for claim in claims:
        (name, _), ready, text = claim.key, prepared.get(claim.key), str(claim.message.text)
        # An unload needs no proof: to believe it grants nothing.
        if claim.mark["event"] == "unload":
            records.pop(name, None)
        # Word for word: otherwise any text could be passed off as a skill by a mark.
        elif ready is not None and ready.failure is None and _strip_leads(text) == ready.block:
            texts[claim.message.id or ""] = {"skill": name}
            # To the end: the newest load decides the order.
            records.pop(name, None)
            # Not "user", and of no turn: a claim must not earn what a user's own start earns (`run.py`).
            records[name] = {
                **record_of(ready),
                "text": run.settings.cache.keep_text(text),
                "message": claim.message.id or "",
                "trigger": "system",
                "turn": "",
            }
    resources = {name: prepared[name, record["arguments"]].inventory.resources for name, record in records.items()}
    context = {"records": records, "texts": texts}
    return {"skills_loaded": list(records), "skill_resources": resources, "skills_context": context}


def _choose_claimed(claims: Sequence[_Claim], run: Run) -> list[LoadRequest]:
    """Return the loads that claims may be about, by what costs nothing to compare; the newest come first.

    A user can send messages with any claims, and each load costs a file, a text and its size.
    """
    requests: dict[Key, LoadRequest] = {}
    room = MAX_CLAIMED_ARGUMENTS
    for claim in reversed(claims):
        entry = run.known_view.find(claim.mark["skill"])
        if claim.key in requests or entry is None or not _may_be_true(claim, entry, run):
            continue
        _, arguments = claim.key
        # Arguments are filled into texts, so they count before anything is prepared.
        room -= len(arguments)
        if room < 0 or len(requests) == MAX_CLAIMED_LOADS:
            break
        requests[claim.key] = LoadRequest(entry, arguments, "system")
    return list(requests.values())


def _may_be_true(claim: _Claim, entry: SkillEntry, run: Run) -> bool:
    """Whether a claim is of a load, names the file that is there, and its text begins as the file's block does."""
    digest = claim.mark.get("digest")
    # Where the catalog's digest is not one of a file (a provider with versions of its own), it says nothing here.
    if digest is not None and digest != entry.digest and run.settings.cache.readings.recall(entry.path, entry.digest):
        return False
    begins_so = _strip_leads(str(claim.message.text)).startswith(f"{block_opening(entry)}\n")
    return begins_so and entry.name == claim.mark["skill"] and claim.mark["event"] == "load"


def _inherit(parent: Thread, view: VisibleCatalog) -> dict[str, Any]:
    """Return what a fork takes over from its parent, as far as it may see the skills."""
    records = parent.loaded.records
    names = [name for name in parent.loaded.names if (entry := view.find(name)) and is_of(entry, records[name])]
    # These keep the requests of a fork the same as its parent's. What waits or was permitted stays the parent's.
    kept = {key: parent.section(key) for key in ("texts", "notes", "disclosed")}
    return {
        "skills_loaded": names,
        "skill_resources": {name: parent.resources.get(name, []) for name in names},
        "skills_context": {"records": {name: records[name] for name in (*names, *parent.loaded.lost)}, **kept},
    }


async def _load_again(parent: Thread, run: Run) -> dict[str, Any]:
    """Load what a parent has loaded for a sub-agent that knows nothing of it, within the sub-agent's own budgets."""
    view, records = run.known_view, parent.loaded.records
    requests = [
        LoadRequest(entry, records[name].get("arguments", ""), "system")
        for name in parent.loaded.names
        if (entry := view.find(name)) is not None
        # A skill that only users may start is passed on if a user has started it.
        and (view.is_shown(entry) or is_started_by_user(records[name]))
    ]
    update = merge_updates(*(done.update for done in (await load(requests, run)).values()))
    # Of no turn: it earns nothing here that a load of this agent's own earns.
    made: dict[str, Any] = update.get("skills_context", {}).get("records", {})
    own = {name: {**record, "turn": ""} for name, record in made.items()}
    return merge_updates(update, {"skills_context": {"records": own}})


def _strip_leads(text: str) -> str:
    return without_requirements(text.removeprefix(UPDATED_LEAD).removeprefix(CHANGED_LEAD))


def _find_claims(messages: Sequence[AnyMessage]) -> list[_Claim]:
    """Return what messages say they did to the loaded skills, in order."""
    claims: list[_Claim] = []
    for message in reversed(messages):
        mark = read_mark(message)
        if mark is not None:
            claims.append(_Claim(message, mark))
        if len(claims) >= MAX_CLAIMS:
            break
    return claims[::-1]


# The start itself.


MAX_KNOWN_COMMANDS = 100
"""How many messages with slash commands a thread remembers."""

_RETRIED = SOURCE_ERRORS | {"skill-unreadable"}


def current_catalog(run: Run) -> Catalog | None:
    """Return the thread's catalog if it can be used as it is, except for what failed, else `None`."""
    settings = run.settings
    # Another user may resume the thread.
    if settings.varies_by_run:
        return None
    catalog = settings.cache.catalogs.recognize(run.thread.catalog)
    # By a copy that differs a caller asks to look again, and so by `None`.
    if catalog is None or not catalog.is_copied_in(run.state.get("skills_metadata")):
        return None
    return catalog if catalog.is_of(settings.fixed_sources or ()) else None


def needs_start(run: Run, catalog: Catalog | None) -> bool:
    """Whether the start of a run has anything to do."""
    settings = run.settings
    # The usual start of a run has nothing to do, and must not cost a look at sources or rules.
    return bool(
        catalog is None
        or settings.extensions
        or run.thread.malformed
        or any(known["code"] in OF_ONE_RUN for known in run.thread.problems)
        or settings.slash_commands
        or (settings.visibility is not None and run.thread.loaded.names)
    )


async def start(run: Run) -> SkillsStateUpdate | None:
    """Find the skills of this run, if the thread's are not current, and return what changes in state.

    Raises:
        SkillsError: If `strict` is set, and a source is missing or a source or a skill has an error.
    """
    thread = run.thread
    copy = run.state.get("skills_metadata")
    # Compared entry by entry with the copy in state; with thousands of skills that takes its time.
    catalog = await in_worker(lambda: current_catalog(run), len(copy) if isinstance(copy, list) else 0)
    failed = frozenset(p["path"] for p in thread.problems if p["code"] in _RETRIED and catalog is not None)
    if not failed and not needs_start(run, catalog):
        return None
    found = None
    if catalog is None or failed:
        # The entries known so far go in: a source that fails now keeps those that it gave before.
        found = await run.scan.look(failed)
        located = [with_virtual_hint(each, run.settings.fixed_backend) for each in found.problems]
        found = replace(found, problems=located)
    await find_view(run, found)
    update = await _discover(run, found) if found is not None else {}
    # Only after the shelf: what leaves depends on what was found and on how visible it is now.
    gone = [name for name, reason in run.in_use.leaving.items() if reason == "gone"]
    update = merge_updates(update, take_away(run, list(run.in_use.leaving)), build_hidden_update(run))
    if run.settings.slash_commands:
        update = merge_updates(update, _notice_commands(run))
    # Last, so that extensions see what is in use after discovery and unloads.
    await call_extensions("at_start", run)
    update = merge_updates(update, run.collected)
    problems = _list_problems(run, found, gone)
    if problems is not None:
        update["skills_problems"] = problems
        update["skills_load_errors"] = format_source_errors(problems)
    # After everything was logged: the exception names the errors, and the log has the warnings as well.
    if run.settings.strict and found is not None:
        _raise_errors(found.problems)
    return _drop_unchanged(run.state, update)


async def _discover(run: Run, found: Discovery) -> dict[str, Any]:
    """Return what a look at the sources writes."""
    thread, catalog = run.thread, found.catalog
    skills, sources = counted(len(catalog.entries), "skill"), counted(len(catalog.sources), "source")
    logger.info("Discovered %s from %s", skills, sources)
    log_overrides(found.shadowed, run.settings)
    update: dict[str, Any] = {"skills_catalog": catalog.record, **build_shadows_update(run, found)}
    if not catalog.is_copied_in(run.state.get("skills_metadata")):
        update["skills_metadata"] = catalog.copy_skills()
    if thread.is_new:
        update = merge_updates(update, await adopt_loads(run))
    return update


def _notice_commands(run: Run) -> dict[str, Any]:
    """Return the update that has the slash commands of the user's newest message carried out, once.

    Others may take newer messages away, so a command is known again by its id, and by an answer that follows it.
    """
    thread, commands, message = run.thread, run.thread.section("commands"), run.thread.user_message
    # Those of a run that ended before its first model call wait no longer.
    update: dict[str, bool | None] = {
        known: True for known, is_done in commands.items() if not is_done and known != thread.turn
    }
    if message is not None and message.id and _is_new_command(message, run):
        # The oldest leave, so that a thread that lives for years stays small.
        oldest = list(commands)[: max(0, len(commands) + 1 - MAX_KNOWN_COMMANDS)]
        update |= {**dict.fromkeys(oldest), message.id: False}
    return {"skills_context": {"commands": update}} if update else {}


def _is_new_command(message: AnyMessage, run: Run) -> bool:
    if not command_word(first_line(message)) or message.id in run.thread.section("commands"):
        return False
    return takes_slash_commands(run) and not is_answered(run.thread, message)


def _list_problems(run: Run, found: Discovery | None, gone: Sequence[str]) -> list[SkillProblem] | None:
    """Return the thread's problems as of now, or `None` if they stay; those that are new are logged."""
    if found is None:
        fresh = run.list_new_problems()
        log_problems(fresh, run.settings)
        kept = [known for known in run.thread.problems if known["code"] not in OF_ONE_RUN]
        return [*kept, *fresh] if fresh or len(kept) < len(run.thread.problems) else None
    records = run.thread.loaded.records
    vanished = [problem(records[name]["path"], "skill-gone", name=quoted(name)) for name in gone]
    judged = [*find_out_of_reach(run), *_find_hidden_requirements(run.known_view)]
    problems = [*found.problems, *vanished, *run.list_problems(), *judged]
    known = {key_of_problem(problem) for problem in run.thread.problems}
    log_problems((problem for problem in problems if key_of_problem(problem) not in known), run.settings)
    return problems


def find_out_of_reach(run: Run) -> list[SkillProblem]:
    """Return the one problem about skills that only a user may start, while no user can."""
    if run.settings.slash_commands:
        return []
    view = run.known_view
    names = [
        entry.name
        for name, visibility in view.hidden.items()
        if visibility == "user-only" and (entry := view.catalog.by_name.get(name)) is not None and entry.is_user_only
    ]
    return [problem("slash_commands", "skills-user-only", count=len(names), names=listed(names))] if names else []


def _find_hidden_requirements(view: VisibleCatalog) -> list[SkillProblem]:
    """Return the problems of skills that require what is hidden from the model; discovery reports what is missing."""
    if not view.hidden:
        return []
    return [
        problem(entry.path, "requires-missing", names=listed(hidden))
        for entry in view.visible
        if (
            hidden := [
                written
                for written, found in find_required(entry, view.catalog.find)
                if found is not None and not view.is_shown(found)
            ]
        )
    ]


def _drop_unchanged(state: Mapping[str, Any], update: dict[str, Any]) -> SkillsStateUpdate | None:
    """Return `update` unless state holds all of it already."""
    # Nothing is written where nothing changed: a write costs a checkpoint.
    if all(key in state and state[key] == value for key, value in update.items()):
        return None
    return cast("SkillsStateUpdate", update)


def _raise_errors(problems: Sequence[SkillProblem]) -> None:
    # A source that is missing is a warning elsewhere: not every user has skills of their own.
    errors = [
        f"{p['path']}: {p['code']}: {p['message']}"
        for p in problems
        if p["severity"] == "error" or p["code"] == "source-missing"
    ]
    if errors:
        raise SkillsError("\n".join(errors))
