"""What passes from an agent to one that a tool call of it starts, in this process, never by input or marks.

A fork starts with its parent's messages, or a summary of them, and without its parent's private state. What a tool call
gives to an agent as its first message was written by a model: it is not a user's word.

What a thread starts with: loads that its messages show, a parent's loads, and loads of an older version.

Marks on messages are claims, for callers can write them. A claim counts only if the message's text is the very block
that the skill's file gives with the arguments claimed; sizes and files come from that reading.

The start of a run: when skills are discovered, what that changes in state, and who is told.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.config import get_config

from deepskills._catalog.catalog import Catalog
from deepskills._catalog.discovery import SOURCE_ERRORS, Discovery, source_errors
from deepskills._errors import SkillsError
from deepskills._io.plan import Plan, apart
from deepskills._io.served import loads_in_use
from deepskills._loading.turn import record_of
from deepskills._middleware.commands import command_word, first_line
from deepskills._middleware.extension_calls import at
from deepskills._middleware.loading import Wish, prepare, take_away
from deepskills._middleware.reporting import log_problems
from deepskills._middleware.run import Run, Shelf, is_user_only
from deepskills._middleware.state import (
    MARK,
    SkillsStateUpdate,
    Thread,
    fingerprint,
    is_answered,
    merged,
)
from deepskills._middleware.visibility import shelf_of
from deepskills._prompt.messages import CHANGED_LEAD, UPDATED_LEAD
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._types import LoadRecord, SkillProblem

logger = logging.getLogger("deepskills")


TASK_TOOL = "task"
"""deepagents' tool that starts a sub-agent."""

_SUB_AGENT = "subagent"
"""What deepagents calls an agent that its `task` tool has started, in the configuration of its run."""

_TOOLS_NODE = "tools"
"""The node in which LangChain's agents run tools; an agent below it was started by a tool, whoever's."""


class _Parent:
    """What a parent has loaded; the first sub-agent that starts may take it."""

    def __init__(self, thread: Thread) -> None:
        self.thread: Thread | None = thread


_parent: ContextVar[_Parent | None] = ContextVar("deepskills_parent", default=None)
_in_tool_call: ContextVar[bool] = ContextVar("deepskills_in_tool_call", default=False)


@contextmanager
def handing_over(tool_name: str, state: Mapping[str, Any]) -> Iterator[None]:
    """Let a sub-agent that starts inside know what this agent has loaded."""
    inside = _in_tool_call.set(True)
    parent = _parent.set(_Parent(Thread.of(state)) if tool_name == TASK_TOOL else None)
    loads = loads_in_use.set(_served_loads(state))
    try:
        yield
    finally:
        loads_in_use.reset(loads)
        _parent.reset(parent)
        _in_tool_call.reset(inside)


def _served_loads(state: Mapping[str, Any]) -> tuple[LoadRecord, ...]:
    """Return the loads of skills that were served from elsewhere, for the backends that hold them."""
    if not state.get("skills_loaded"):
        return ()
    standing = Thread.of(state).standing
    return tuple(standing.records[name] for name in standing.loaded if "origin" in standing.records[name])


def is_started_by_a_model() -> bool:
    """Whether this agent runs inside a tool call of another, so that no message of it is a user's own."""
    if _in_tool_call.get():
        return True
    try:
        config = get_config()
    except RuntimeError:
        return False
    metadata = config.get("metadata") or {}
    places = [metadata.get(key) for key in ("checkpoint_ns", "langgraph_checkpoint_ns")]
    steps = [step.partition(":")[0] for place in places if isinstance(place, str) for step in place.split("|")]
    return _TOOLS_NODE in steps or (config.get("configurable") or {}).get("ls_agent_type") == _SUB_AGENT


def taken_over(thread: Thread) -> Thread | None:
    """Return the parent's thread if this one is new and continues its conversation: a task alone is one message."""
    parent = _parent.get()
    if parent is None:
        return None
    found, parent.thread = parent.thread, None
    return found if len(thread.messages) > 1 else None


# What a thread starts with: loads that its messages show, a parent's loads, and loads of an older version.
#
# Marks on messages are claims, for callers can write them. A claim counts only if the message's text is the very block
# that the skill's file gives with the arguments claimed; sizes and files come from that reading.


MAX_CLAIMS = 200
"""How many claims of a conversation are looked into, the newest first."""


@dataclass(frozen=True)
class _Claim:
    message: AnyMessage
    skill: str
    arguments: str
    is_load: bool


def adopted(run: Run, shelf: Shelf) -> Plan[dict[str, Any]]:
    """Return what is loaded on a thread that starts: what its parent hands over, or what its messages prove."""
    parent = taken_over(run.thread)
    if parent is not None:
        return _inherited(parent, shelf)
    empty: dict[str, Any] = {"skills_loaded": [], "skill_resources": {}, "skills_load_records": {}}
    claims = _claims(run.thread.messages)
    if not claims:
        return empty
    entries = {claim.skill: shelf.catalog.by_name.get(claim.skill) for claim in claims}
    wished = [
        Wish(entry, claim.arguments, "system")
        for claim in claims
        if claim.is_load and (entry := entries[claim.skill]) is not None and shelf.visibility(entry) != "off"
    ]
    prepared = yield from prepare(wished, run)
    records: dict[str, LoadRecord] = {}
    resources: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for claim in claims:
        if not claim.is_load:
            records.pop(claim.skill, None)
            continue
        ready = prepared.get((claim.skill, claim.arguments))
        text = str(claim.message.text)
        if ready is None or ready.failure is not None or _bare(text) != ready.block:
            continue
        run.settings.memory.keep_text(text)
        texts[claim.message.id or ""] = {"skill": claim.skill}
        resources[claim.skill] = ready.inventory.resources
        records.pop(claim.skill, None)
        records[claim.skill] = {
            **record_of(ready),
            "text": fingerprint(text),
            "message": claim.message.id or "",
            "trigger": "system",
            "turn": "",
        }
    return {
        "skills_loaded": list(records),
        "skill_resources": {name: resources[name] for name in records},
        "skills_load_records": records,
        "skills_context": {"texts": texts},
    }


def _inherited(parent: Thread, shelf: Shelf) -> dict[str, Any]:
    """Return what a fork takes over from its parent, as far as it may see the skills."""
    records = parent.standing.records
    names = [
        name
        for name in parent.standing.loaded
        if (entry := shelf.catalog.by_name.get(name)) is not None
        and entry.path == records[name]["path"]
        and shelf.visibility(entry) != "off"
    ]
    return {
        "skills_loaded": names,
        "skill_resources": {name: parent.resources.get(name, []) for name in names},
        "skills_load_records": {name: records[name] for name in names},
        "skills_context": {"texts": parent.section("texts"), "notes": parent.section("notes")},
    }


def _bare(text: str) -> str:
    return text.removeprefix(UPDATED_LEAD).removeprefix(CHANGED_LEAD)


def _claims(messages: Sequence[AnyMessage]) -> list[_Claim]:
    """Return what messages say they did to the loaded skills, in order."""
    claims: list[_Claim] = []
    for message in reversed(messages):
        mark: Any = message.additional_kwargs.get(MARK)
        if not isinstance(mark, dict) or not isinstance(mark.get("skill"), str):
            continue
        arguments = mark.get("arguments", "")
        if mark.get("event") in {"load", "unload"} and isinstance(arguments, str):
            claims.append(_Claim(message, mark["skill"], arguments, mark["event"] == "load"))
        if len(claims) == MAX_CLAIMS:
            break
    return claims[::-1]


def _is_made_by_a_load(message: AnyMessage) -> bool:
    return isinstance(message, ToolMessage) or message.additional_kwargs.get("lc_source") == "pinned_skill"


def upgraded(thread: Thread) -> dict[str, Any]:
    """Return the records of loads that an older version made, with the messages that carry their texts.

    A message carries a load if it is of the kind that loads make; the text that the record knows counts before a mark.
    """
    by_text: dict[str, str] = {}
    texts: dict[str, Any] = {}
    for claim in _claims(thread.messages):
        if claim.is_load and claim.message.id and _is_made_by_a_load(claim.message):
            texts[claim.message.id] = {"skill": claim.skill}
            by_text[fingerprint(str(claim.message.text))] = claim.message.id
            by_text[f"{claim.skill}:{claim.message.additional_kwargs[MARK].get('digest')}"] = claim.message.id
    records: dict[str, LoadRecord] = {}
    for name in thread.standing.loaded:
        record = thread.standing.records[name]
        if record.get("message"):
            continue
        message = by_text.get(record.get("text", "")) or by_text.get(f"{name}:{record['digest']}")
        records[name] = {**record, "message": message or "", "arguments": "", "trigger": "model"}
    return {"skills_load_records": records, "skills_context": {"texts": texts}} if records or texts else {}


# The start of a run: when skills are discovered, what that changes in state, and who is told.


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
    thread = run.thread
    copy = run.state.get("skills_metadata")
    catalog = yield from apart(lambda: current_catalog(run), len(copy) if isinstance(copy, list) else 0)
    if not needs_start(run, catalog):
        return None
    found = None
    if catalog is None:
        found = yield from run.look.discover((yield from run.look.claimed(thread.catalog, copy)))
        run.look.started(thread.catalog, found)
    shelf = yield from shelf_of(run, found)
    update: dict[str, Any] = {}
    if found is not None:
        update = yield from _discovered(run, found, shelf)
    gone = [name for name, reason in run.use.leaving.items() if reason == "gone"]
    update = merged(update, take_away(run, list(run.use.leaving)))
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
        log_problems(fresh, run.settings.backend)
        return [*run.thread.problems, *fresh] if fresh else None
    fresh += _out_of_reach(run)
    vanished = [problem(records[name]["path"], "skill-gone", name=quoted(name)) for name in gone]
    problems = [*found.problems, *vanished, *fresh]
    known = {(p["path"], p["code"], p["message"]) for p in run.thread.problems}
    new = [p for p in problems if (p["path"], p["code"], p["message"]) not in known]
    log_problems(new, run.settings.backend)
    return problems


def _out_of_reach(run: Run) -> list[SkillProblem]:
    """Return the one problem that tells of skills which only a user may start, while no user can."""
    if run.settings.slash_commands:
        return []
    shelf = run.known_shelf
    names = [
        entry.name
        for name, visibility in shelf.hidden.items()
        if visibility == "user-only" and (entry := shelf.catalog.by_name.get(name)) is not None and is_user_only(entry)
    ]
    return [problem("slash_commands", "skills-user-only", count=len(names), names=listed(names))] if names else []


def _changes(state: Mapping[str, Any], update: dict[str, Any]) -> SkillsStateUpdate | None:
    """Return `update` unless state holds all of it already."""
    if all(key in state and state[key] == value for key, value in update.items()):
        return None
    return cast("SkillsStateUpdate", update)


def _raise_errors(problems: Sequence[SkillProblem]) -> None:
    errors = [f"{p['path']}: {p['code']}: {p['message']}" for p in problems if p["severity"] == "error"]
    if errors:
        raise SkillsError("\n".join(errors))
