"""Loads that a user or the middleware asks for: pins, slash commands, and what extensions start.

They stand in the conversation as messages of their own. Budgets count them and do not refuse them.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.types import Overwrite

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import closest_names
from deepskills._io.plan import in_worker
from deepskills._middleware.events import SkillRefused
from deepskills._middleware.loading import LoadRequest, build_pin, load
from deepskills._middleware.reporting import describe_skill, emit
from deepskills._middleware.run import Run, VisibleCatalog
from deepskills._middleware.state import MARK, is_users_own, make_load_mark, merge_updates
from deepskills._middleware.visibility import find_view
from deepskills._skillmd.names import name_key
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._skillmd.text import one_line
from deepskills._types import MAX_SHOWN_NAME_LENGTH

logger = logging.getLogger("deepskills")


MAX_STACKED = 6
"""How many slash commands one message may start with."""

MAX_PIN_PROBLEMS = 50
"""How many unknown pins are named, each in a problem of its own."""

MAX_HINTS = 5
"""Up to how many of them the closest names are looked for: each is compared with the whole library."""

MAX_COMMAND_LENGTH = 1 + MAX_SHOWN_NAME_LENGTH
"""Longest slash command: no name is longer."""

# No slash inside: `/etc/hosts` is a path.
_WORD = re.compile(r"/[^\s/]+(?=\s|\Z)")
_NEXT_WORD = re.compile(r" [^\s/]+(?=\s|\Z)")


async def load_for_user(run: Run) -> dict[str, Any]:
    """Return the update that loads what pins, slash commands and extensions ask for; empty if nothing does."""
    pins, loads = run.state.get("pinned_skills"), run.thread.section("loads")
    waiting = [message for message, is_done in run.thread.section("commands").items() if not is_done]
    # Nothing asked for: no look at the sources.
    if not pins and not loads and not waiting:
        return {}
    await find_view(run)
    unknown: list[str] = []
    requests = [*_find_pins(pins, run, unknown), *_find_waiting(loads, run, unknown)]
    await _report_unknown(unknown, run)
    for message in waiting:
        requests += _find_commands(message, run)
    # Cleared in any case: a refusal is reported once and not tried before every model call.
    cleared = {"loads": dict.fromkeys(loads), "commands": dict.fromkeys(waiting, True)}
    update: dict[str, Any] = {"skills_context": cleared}
    if pins:
        # The reducer of pins adds up, so only an overwrite empties the list.
        update["pinned_skills"] = Overwrite([])
    # One load per skill: what is asked for last counts, such as a slash command; no arguments never replace some.
    by_name: dict[str, LoadRequest] = {}
    for request in requests:
        if request.arguments or not by_name.get(request.entry.name, request).arguments:
            by_name[request.entry.name] = request
    settled = await load(list(by_name.values()), run)
    required = _place_required(loads, run)
    return merge_updates(
        update, {"messages": required} if required else {}, *(done.update for done in settled.values())
    )


def _place_required(loads: Mapping[str, Any], run: Run) -> list[AnyMessage]:
    """Return the texts of skills that a call of the model loaded because another one requires them."""
    messages: list[AnyMessage] = []
    for name, waiting in loads.items():
        entry, record = run.known_view.catalog.by_name.get(name), run.thread.loaded.records.get(name)
        # Not of a skill that was unloaded meanwhile, or loaded again.
        if "message" in waiting and entry and record and record.get("message") == waiting["message"]:
            pin = build_pin(entry, waiting["text"])
            pin.id = waiting["message"]
            pin.additional_kwargs[MARK] = make_load_mark(name, record)
            messages.append(pin)
    return messages


def _find_pins(pins: object, run: Run, unknown: list[str]) -> Iterator[LoadRequest]:
    """Yield the skills that are to be pinned; unknown names are added to `unknown`."""
    # What is not a list asks for nothing.
    for item in pins if isinstance(pins, list) else ():
        given: Mapping[str, Any] = item if isinstance(item, Mapping) else {"name": item}
        if "not_a_list" in given:
            kind, example = str(given["not_a_list"]), repr(given.get("name"))
            run.problems.append(problem("pinned_skills", "pins-not-a-list", kind=kind, name=example))
            continue
        name, arguments = str(given.get("name")), given.get("arguments")
        entry = run.known_view.find(name)
        if entry is None:
            unknown.append(name)
        else:
            given_arguments = str(arguments) if isinstance(arguments, str | int | float) else ""
            yield LoadRequest(entry, given_arguments, "pin", is_limited=False)


def _find_waiting(loads: Mapping[str, Any], run: Run, unknown: list[str]) -> Iterator[LoadRequest]:
    """Yield the skills that extensions asked for, never one that only the user may start; others go to `unknown`."""
    for name, waiting in loads.items():
        if "message" in waiting:
            continue
        entry = run.known_view.find_visible(name)
        if entry is None:
            unknown.append(name)
        else:
            yield LoadRequest(entry, waiting["arguments"], waiting["trigger"], is_limited=False)


async def _report_unknown(asked: Iterable[str], run: Run) -> None:
    """Report the names that no skill has, with the closest names that there are where they are few."""
    unknown = list(dict.fromkeys(name[:MAX_SHOWN_NAME_LENGTH] for name in asked))
    if not unknown:
        return
    known = [entry.name for entry in run.known_view.visible]
    # More are no slips but names of another library, and to compare them all takes longer than the run.
    hinted = unknown if len(unknown) <= MAX_HINTS else []
    closest = await in_worker(lambda: {name: closest_names(known, name) for name in hinted}, len(hinted) * len(known))
    for name in unknown[:MAX_PIN_PROBLEMS]:
        hint = f" (did you mean {listed(closest[name])}?)" if closest.get(name) else ""
        run.problems.append(problem(name, "pin-unknown", name=f"{quoted(name)}{hint}"))
    if len(unknown) > MAX_PIN_PROBLEMS:
        more = f"{len(unknown) - MAX_PIN_PROBLEMS} more names"
        run.problems.append(problem("pinned_skills", "pin-unknown", name=more))


def _find_commands(message_id: str, run: Run) -> list[LoadRequest]:
    """Return the skills that the user's newest message starts with slash commands."""
    message = next((each for each in run.thread.messages if each.id == message_id), None)
    # Another middleware may have replaced the message since the run began.
    if message is None or not is_users_own(message):
        return []
    rest = first_line(message)
    entries: list[SkillEntry] = []
    while len(entries) < MAX_STACKED and (found := _find_command(rest, run.known_view)) is not None:
        entry, rest = found
        entries.append(entry)
    # The next word may be a command whose skill is broken, and the user should know.
    if len(entries) < MAX_STACKED and (name := command_word(rest)):
        _report_if_broken(name, run)
    return [LoadRequest(entry, rest, "user", is_limited=False) for entry in entries]


def _find_command(line: str, view: VisibleCatalog) -> tuple[SkillEntry, str] | None:
    """Return the skill that a line starts with, and the rest of it; a name of several words counts if no shorter does.

    Only what is spelled as the name is a command, in any case: marks around it, which tools overlook, are text.
    """
    word = _WORD.match(line)
    while word is not None and word.end() <= MAX_COMMAND_LENGTH:
        name = line[1 : word.end()]
        entry = view.find(name)
        if entry is not None and name_key(entry.name) == name_key(name) and entry.is_user_invocable:
            return entry, line[word.end() :].strip()
        word = _NEXT_WORD.match(line, word.end())
    return None


def _report_if_broken(name: str, run: Run) -> None:
    """Tell the user that a command names a skill whose file is broken."""
    found = run.known_view.find_broken(name)
    if found is None:
        return
    run.problems.append(found.problem)
    logger.error("The slash command /%s was not started: %s", one_line(name), one_line(found.problem["message"]))
    emit(SkillRefused(**describe_skill(name, "user"), reason="unreadable"), run)


def command_word(line: str) -> str:
    """Return the name in the slash command that a line starts with; empty if it starts with none."""
    word = _WORD.match(line)
    return line[1 : word.end()] if word is not None and word.end() <= MAX_COMMAND_LENGTH else ""


def first_line(message: AnyMessage) -> str:
    """Return the first line of a message's first text."""
    return first_text(message).lstrip().partition("\n")[0].rstrip()


def first_text(message: AnyMessage) -> str:
    """Return the first text of a message, beside anything else in its content."""
    if isinstance(message.content, str):
        return message.content
    for block in message.content:
        if isinstance(block, str):
            return block
        if block.get("type") == "text":
            return str(block.get("text") or "")
    return ""
