"""Acts before each model call: evicted texts return, loads without room are undone, what was asked for is loaded.

Evicted texts are restored in state first, because every `before_model` hook behind this one (guards, summarizers) must
see them. Then come loads that relied on a refused unload, what users and extensions asked for, and what changed on the
backend. All of them decide on the state before this step; their updates are merged in this order, so that a skill which
is undone and asked for again ends up loaded.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage

from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._io.plan import Plan
from deepskills._loading import budget as outcomes
from deepskills._loading.budget import LoadedSkills
from deepskills._middleware.commands import load_for_user
from deepskills._middleware.loading import LoadRequest, load, take_away
from deepskills._middleware.reporting import log_problems, report_unload
from deepskills._middleware.request import is_evicted, read_again
from deepskills._middleware.run import Run, is_of, is_started_by_user, key_of_problem
from deepskills._middleware.state import (
    UNDONE,
    apply_update,
    build_unload_update,
    current_step,
    forget_gone,
    merge_updates,
)
from deepskills._middleware.touched import bring_in_touched
from deepskills._middleware.traces import observe_turn
from deepskills._middleware.turn import loads_to_undo
from deepskills._middleware.visibility import find_view
from deepskills._prompt.messages import word_changed_notice
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import LoadRecord

logger = logging.getLogger("deepskills")


async def before_model_call(run: Run) -> dict[str, Any] | None:
    """Return what changes in state before the model is called, or `None` if nothing does."""
    update = merge_updates(forget_gone(run.thread), observe_turn(run), await _restore(run), _undo_loads(run))
    update = merge_updates(update, await load_for_user(run), await _reload_changed(run))
    update = merge_updates(update, await bring_in_touched(run))
    # Tool calls of one turn cannot write the list of problems itself: two writes of a key without a reducer raise.
    # They leave theirs in the context, and this hook, which runs alone, moves them.
    waiting = run.thread.section("problems")
    fresh = run.list_new_problems()
    log_problems(fresh, run.settings)
    reported = []
    if waiting:
        known = {key_of_problem(found) for found in (*run.thread.problems, *fresh)}
        reported = [found for found in waiting.values() if key_of_problem(found) not in known]
        update = merge_updates(update, {"skills_context": {"problems": dict.fromkeys(waiting)}})
    if fresh or reported:
        update["skills_problems"] = [*run.thread.problems, *reported, *fresh]
    return merge_updates(update, run.collected) or None


async def start_alone(run: Run, start: Plan[Any]) -> dict[str, Any] | None:
    """Start a run in a graph of one's own, which may have no node for `before_model`.

    What the user asked for by a pin or a slash command, and what extensions asked for at the start, is loaded right
    away: a published recipe has a node for `before_agent` alone, and there it would otherwise never happen.
    """
    update = await start or {}
    more = await before_model_call(Run(run.settings, apply_update(run.state, update), run.runtime)) or {}
    # Nothing ran before this that would have to run again.
    more.pop("jump_to", None)
    return merge_updates(update, more) or None


async def _restore(run: Run) -> dict[str, Any]:
    """Return texts that were evicted in the turn of their load to their messages, so that every guard sees them.

    Hooks that run before this one have seen only the stub. If there are any, the step starts over.
    """
    thread = run.thread
    own = {record["message"]: name for name, record in thread.loaded.records.items() if record.get("message")}
    evicted = {
        own[message.id]: message
        for message in (thread.messages if own else ())
        if message.id in own
        # Only tool results are replaced in state: of a user's message deepagents evicts the copy in the request.
        and isinstance(message, ToolMessage)
        and is_evicted(message)
        # Once, or a hook that evicts it again would make the step start over forever.
        and not thread.section("texts").get(message.id, {}).get("restored")
    }
    if not evicted:
        return {}
    found = await _find_texts(list(evicted), run)
    restored = [evicted[name].model_copy(update={"content": text}) for name, (text, _record) in found.items()]
    records = {name: record for name, (_text, record) in found.items()}
    texts = {m.id: {**thread.section("texts").get(m.id or "", {}), "restored": True} for m in restored}
    update: dict[str, Any] = {"messages": restored, "skills_context": {"texts": texts, "records": records}}
    # Steps are numbered: a tool runs in one, and this hook in the next if it comes first. If the number is higher,
    # other hooks have run in between and seen only the stub. A record without a step (0) says nothing.
    starts_over = any(current_step() > record.get("step", 0) + 1 > 1 for record in records.values())
    return {} if not restored else {**update, "jump_to": "model"} if starts_over else update


async def _find_texts(names: Sequence[str], run: Run) -> dict[str, tuple[str, LoadRecord]]:
    """Return the texts of these loads from memory, else from their files; what cannot be read is left out."""
    loaded = run.thread.loaded
    known = {name: run.settings.cache.text(loaded.records[name].get("text", "")) for name in names}
    found = {name: (text, loaded.records[name]) for name, text in known.items() if text is not None}
    # The file would bring back what another middleware has changed in the text.
    unread = [name for name, text in known.items() if text is None and not loaded.records[name].get("edited")]
    read = await read_again(unread, loaded, run)
    return found | {name: text for name, text in read.items() if not isinstance(text, str)}


async def _reload_changed(run: Run) -> dict[str, Any]:
    """Load what changed on the backend while it was loaded, and what state calls loaded without a load of ours.

    Both pass the same checks as a call by the model: visibility, extensions and budgets. What is refused is unloaded,
    because its old text would stand beside a description that is no longer its own, or there would be no text at all.
    """
    thread = run.thread
    if not thread.loaded.names and not thread.unbacked:
        return {}
    catalog = await run.scan.catalog()
    edited = _find_edited(thread.loaded, catalog)
    if not edited and not thread.unbacked:
        return {}
    await find_view(run)
    requests, refused = _find_reloads(edited, run)
    unbacked, unknown = _find_unbacked(run)
    updates = [_remove_unbacked(run, name, "no skill of that name is visible") for name in unknown]
    for name, done in (await load([*requests, *unbacked], run)).items():
        match done.outcome:
            case outcomes.Loaded():
                updates.append(done.update)
            case _ if name in thread.unbacked:
                updates.append(_remove_unbacked(run, name, "its load was refused"))
            case outcomes.AlreadyLoaded(_, None):
                # Only the catalog's digest is another one: the text is the same.
                listed = {**thread.loaded.records[name], "listed": edited[name].digest}
                updates.append({"skills_context": {"records": {name: listed}}})
            case outcomes.AlreadyLoaded() | outcomes.Unreadable():
                # Perhaps half saved: what is loaded stays, and the next step tries again.
                pass
            case _:
                refused.append(name)
    return merge_updates(*updates, take_away(run, refused, word_changed_notice(refused)) if refused else {})


def _find_edited(loaded: LoadedSkills, catalog: Catalog) -> dict[str, SkillEntry]:
    """Return the loaded skills whose file differs from the one that the catalog had at the load."""
    found: dict[str, SkillEntry] = {}
    for name in loaded.names:
        entry, record = catalog.by_name.get(name), loaded.records[name]
        # Not an edit: `Run.in_use` deals with a skill that is gone, out of reach, or another one of that name.
        if entry is None or not entry.is_read or not is_of(entry, record):
            continue
        # `listed` is the catalog's digest at the load: a provider may have versions of its own.
        if entry.digest not in (record.get("listed"), record["digest"]):
            found[name] = entry
    return found


def _find_reloads(edited: Mapping[str, SkillEntry], run: Run) -> tuple[list[LoadRequest], list[str]]:
    """Return the requests for changed files, with the arguments of their loads, and the names that are refused."""
    requests, refused = [], []
    for name, entry in edited.items():
        record = run.thread.loaded.records[name]
        if name in run.in_use.leaving or name in run.in_use.withheld:
            continue
        if run.known_view.is_shown(entry) or is_started_by_user(record):
            requests.append(LoadRequest(entry, record.get("arguments", ""), "system"))
        else:
            refused.append(name)
    return requests, refused


def _find_unbacked(run: Run) -> tuple[list[LoadRequest], list[str]]:
    """Return the requests for names that state calls loaded without a load of ours, and the names that no skill has."""
    requests, unknown = [], []
    view, found = run.known_view, run.scan.found
    is_unsure = found is not None and not found.is_complete
    for name in run.thread.unbacked:
        # Judged as if the model had asked: a name that an application wrote grants no more than that.
        known = view.find_visible(name)
        # Under its own spelling only: the name in state must be the one of the record that the load will write.
        if known is not None and known.name == name:
            requests.append(LoadRequest(known, "", "system"))
        # Whether it is there, and may be seen, is not always known: then the next step tries again.
        elif name not in view.unjudged and not (is_unsure and name not in view.catalog.by_name):
            unknown.append(name)
    return requests, unknown


def _remove_unbacked(run: Run, name: str, reason: str) -> dict[str, Any]:
    """Return the update that removes a name which state called loaded, and report it."""
    run.problems.append(problem("skills_loaded", "load-unknown", name=quoted(name), reason=reason))
    report_unload(name, "gone", run)
    return build_unload_update([name])


def _undo_loads(run: Run) -> dict[str, Any]:
    """Undo loads that relied on an unload which another middleware refused; the others no longer rely on any."""
    loaded = run.thread.loaded
    names = loads_to_undo(loaded, run.budgets)
    settled: dict[str, Any] = {
        name: {key: value for key, value in record.items() if key != "relies_on"}
        for name, record in loaded.records.items()
        if "relies_on" in record and name not in names
    }
    update: dict[str, Any] = {"skills_context": {"records": settled}} if settled else {}
    if not names:
        return update
    for name in names:
        logger.warning("Unloaded skill %r: the unload that was to make room for it was refused", name)
        report_unload(name, "no_room", run)
    return merge_updates(update, build_unload_update(names, loaded, UNDONE))
