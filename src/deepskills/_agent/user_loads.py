"""Loads that a user or the middleware asks for: pins, slash commands, and what extensions start.

They stand in the conversation as messages of their own. Budgets count them and do not refuse them.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.types import Overwrite

from deepskills._agent.events import skill_event, tell
from deepskills._agent.extending import before_load, first_refusal
from deepskills._agent.extension import Answer, Refuse, SkillLoad
from deepskills._agent.preparing import prepare
from deepskills._agent.run import Run, Shelf, is_user_invocable
from deepskills._agent.thread import is_users_own
from deepskills._agent.tools import log_inventory
from deepskills._agent.updates import MARK, load_mark, load_update, merged, new_message_id
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Plan
from deepskills._catalog.catalog import folded
from deepskills._catalog.entries import SkillEntry
from deepskills._format.problems import problem, quoted
from deepskills._format.text import one_line
from deepskills._loading.budgets import NO_LIMIT, Standing
from deepskills._loading.outcomes import Loaded, Prepared, Unreadable
from deepskills._loading.turn import decide_load, record_of
from deepskills._prompt.answers import reply_to
from deepskills._types import MAX_SHOWN_NAME_LENGTH, Trigger

logger = logging.getLogger("deepskills")

MAX_STACKED = 6
"""How many slash commands one message may start with."""

MAX_PIN_PROBLEMS = 50
"""How many unknown pins are named, each in a problem of its own."""

MAX_COMMAND_LENGTH = 1 + MAX_SHOWN_NAME_LENGTH
"""Longest slash command: no name is longer."""

_WORD = re.compile(r"/[^\s/]+(?=\s|\Z)")
_NEXT_WORD = re.compile(r" [^\s/]+(?=\s|\Z)")


@dataclass(frozen=True)
class Wish:
    """A skill that somebody wants loaded."""

    entry: SkillEntry
    arguments: str
    trigger: Trigger


def user_loads(run: Run) -> Plan[dict[str, Any]]:
    """Return the update that loads what pins, slash commands and extensions ask for; empty if nothing does."""
    pins, loads = run.state.get("pinned_skills"), run.thread.section("loads")
    message = run.thread.section("run").get("message")
    if not pins and not loads and not message:
        return {}
    shelf = yield from shelf_of(run)
    wishes = [*_pinned(pins, shelf, run), *_waiting(loads, shelf, run)]
    if message:
        wishes += _commanded(message, shelf, run)
    update: dict[str, Any] = {"skills_context": {"loads": dict.fromkeys(loads), "run": {"message": None}}}
    if pins:
        update["pinned_skills"] = Overwrite([])
    # One load per skill: what is asked for last counts, such as a slash command; no arguments never replace some.
    by_name: dict[str, Wish] = {}
    for wish in wishes:
        if wish.arguments or not by_name.get(wish.entry.name, wish).arguments:
            by_name[wish.entry.name] = wish
    wishes = yield from _readable(list(by_name.values()), run)
    wanted = [(wish.entry, wish.arguments) for wish in wishes]
    prepared = yield from prepare(wanted, run, triggers={wish.entry.name: wish.trigger for wish in wishes})
    standing = run.thread.standing
    for wish in wishes:
        standing, change = yield from _load(wish, prepared[wish.entry.name, wish.arguments], standing, run)
        update = merged(update, change)
    return update


def _readable(wishes: list[Wish], run: Run) -> Plan[list[Wish]]:
    """Return the wishes whose skills may be read; what an extension refuses is reported."""
    found = []
    for wish in wishes:
        refused = yield from first_refusal("before_read", run, wish.entry)
        if refused is None:
            found.append(wish)
        else:
            event = skill_event("refused", wish.entry.name, wish.trigger, wish.entry, reason="refused")
            tell(event, run.runtime, run.settings.extensions)
            run.problems.append(problem(wish.entry.path, "skill-refused", reason=refused.reason))
    return found


def _pinned(pins: object, shelf: Shelf, run: Run) -> Iterator[Wish]:
    """Yield the skills that are to be pinned; unknown names become problems."""
    unknown = []
    for item in pins if isinstance(pins, list) else ():
        given: Mapping[str, Any] = item if isinstance(item, Mapping) else {"name": item}
        name, arguments = str(given.get("name")), given.get("arguments")
        entry = shelf.find(name)
        if entry is None:
            unknown.append(name)
        else:
            yield Wish(entry, str(arguments) if isinstance(arguments, str | int | float) else "", "pin")
    unknown = list(dict.fromkeys(unknown))
    for name in unknown[:MAX_PIN_PROBLEMS]:
        run.problems.append(problem(name, "pin-unknown", name=quoted(name)))
    if len(unknown) > MAX_PIN_PROBLEMS:
        more = f"{len(unknown) - MAX_PIN_PROBLEMS} more names"
        run.problems.append(problem("pinned_skills", "pin-unknown", name=more))


def _waiting(loads: Mapping[str, Any], shelf: Shelf, run: Run) -> Iterator[Wish]:
    """Yield the skills that extensions asked for; never one that only the user may start."""
    for name, load in loads.items():
        entry = shelf.find_visible(name)
        if entry is None:
            run.problems.append(problem(name, "pin-unknown", name=quoted(name)))
        else:
            yield Wish(entry, load["arguments"], load["trigger"])


def _commanded(message_id: str, shelf: Shelf, run: Run) -> list[Wish]:
    """Return the skills that the user's newest message starts with slash commands."""
    message = next((known for known in run.thread.messages if known.id == message_id), None)
    if message is None or not is_users_own(message):
        return []
    rest = first_line(message)
    entries: list[SkillEntry] = []
    while len(entries) < MAX_STACKED and (found := _command(rest, shelf)) is not None:
        entry, rest = found
        entries.append(entry)
    if len(entries) < MAX_STACKED and (name := command_word(rest)):
        _report_if_broken(name, shelf, run)
    return [Wish(entry, rest, "user") for entry in entries]


def _command(line: str, shelf: Shelf) -> tuple[SkillEntry, str] | None:
    """Return the skill that a line starts with, and the rest of it; a name of several words counts if no shorter does.

    Only what is spelled as the name is a command, in any case: marks around it, which tools overlook, are text.
    """
    word = _WORD.match(line)
    while word is not None and word.end() <= MAX_COMMAND_LENGTH:
        name = line[1 : word.end()]
        entry = shelf.find(name)
        if entry is not None and folded(entry.name) == folded(name) and is_user_invocable(entry):
            return entry, line[word.end() :].strip()
        word = _NEXT_WORD.match(line, word.end())
    return None


def _report_if_broken(name: str, shelf: Shelf, run: Run) -> None:
    """Tell the user that a command names a skill whose file is broken."""
    found = shelf.broken(name)
    if found is None:
        return
    run.problems.append(found.problem)
    logger.error("The slash command /%s was not started: %s", one_line(name), one_line(found.problem["message"]))
    tell(skill_event("refused", name, "user", reason="unreadable"), run.runtime, run.settings.extensions)


def command_word(line: str) -> str:
    """Return the word that a line has as a slash command; empty if it has none."""
    word = _WORD.match(line)
    return line[1 : word.end()] if word is not None and word.end() <= MAX_COMMAND_LENGTH else ""


def first_line(message: AnyMessage) -> str:
    """Return the first line of a message's first text."""
    return first_text(message).lstrip().partition("\n")[0].rstrip()


def first_text(message: AnyMessage) -> str:
    """Return the first text of a message, beside whatever else its content holds."""
    if isinstance(message.content, str):
        return message.content
    for block in message.content:
        if isinstance(block, str):
            return block
        if block.get("type") == "text":
            return str(block.get("text") or "")
    return ""


def _load(wish: Wish, prepared: Prepared, standing: Standing, run: Run) -> Plan[tuple[Standing, dict[str, Any]]]:
    """Return what is loaded after one wish, and what changes in state."""
    outcome = decide_load(prepared, standing, NO_LIMIT)
    if isinstance(outcome, Unreadable):
        event = skill_event("refused", prepared.name, wish.trigger, wish.entry, reason="unreadable")
        tell(event, run.runtime, run.settings.extensions)
        run.problems.append(problem(wish.entry.path, "skill-unreadable", reason=outcome.reason))
        return standing, {}
    if not isinstance(outcome, Loaded):
        return standing, {}
    decision = yield from _decision(wish, prepared, run)
    if isinstance(decision, Refuse):
        event = skill_event("refused", prepared.name, wish.trigger, record_of(prepared), reason="refused")
        tell(event, run.runtime, run.settings.extensions)
        run.problems.append(problem(wish.entry.path, "skill-refused", reason=decision.reason))
        return standing, {}
    if isinstance(decision, Answer):
        return standing, _answered(prepared, decision, run)
    logger.info("Loaded skill %r (%s): %d tokens", prepared.name, wish.trigger, prepared.tokens)
    log_inventory(prepared)
    text = reply_to(outcome, NO_LIMIT).text
    run.settings.memory.keep_text(text)
    message = _message(prepared, text, load_mark(outcome))
    details = {"tokens": prepared.tokens, "resources": len(prepared.inventory.resources)}
    event = skill_event("loaded", prepared.name, wish.trigger, record_of(prepared), **details)
    tell(event, run.runtime, run.settings.extensions)
    return outcome.standing, load_update(outcome, message, run.thread, wish.trigger)


def _decision(wish: Wish, prepared: Prepared, run: Run) -> Plan[Refuse | Answer | None]:
    if not run.settings.extensions:
        return None
    load = SkillLoad(
        prepared.entry,
        prepared.arguments,
        wish.trigger,
        prepared.text,
        prepared.tokens,
        prepared.inventory.resources,
        run.runtime,
    )
    return (yield from before_load(load, run))


def _answered(prepared: Prepared, answer: Answer, run: Run) -> dict[str, Any]:
    """Return what an extension's answer changes: a message for the model, and perhaps leave to call once."""
    permit = {"arguments": prepared.arguments, "turn": run.thread.turn}
    permits = {"skills_context": {"permits": {prepared.name: permit}}} if answer.permits_call else {}
    source = {"lc_source": "deepskills"}
    messages = [HumanMessage(answer.text, id=new_message_id(), additional_kwargs=source)] if answer.text else []
    return merged({**answer.update}, permits, {"messages": messages} if messages else {})


def _message(prepared: Prepared, text: str, mark: dict[str, Any]) -> HumanMessage:
    """Return the message that pins a skill, marked as deepagents' class marks it and as we mark loads."""
    entry = prepared.entry
    return HumanMessage(
        text,
        id=new_message_id(),
        additional_kwargs={
            "lc_source": "pinned_skill",
            "skill": {"name": entry.name, "path": entry.path, "description": entry.description},
            MARK: mark,
        },
    )
