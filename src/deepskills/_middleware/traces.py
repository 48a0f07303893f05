"""What happened to skills on a thread and leaves no other mark: refusals, unloads, files and tools used, who hid what.

`explain` reads these traces and nothing else acts on them. Most decisions leave a mark anyway (records, problems,
notes); what does not is written here, into sections of the private context that the reducer keeps small
(`merge_context`). A refusal changes no state, so its message carries the reason until the next hook runs.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._catalog.catalog import INCLUDE_TOOLS
from deepskills._catalog.discovery import Discovery
from deepskills._io.plan import parent
from deepskills._middleware.run import Run, VisibleCatalog
from deepskills._middleware.state import MARK, MAX_TRACED, Trace, newest_traces, read_mark
from deepskills._middleware.turn import LOAD_TOOL, UNLOAD_TOOL
from deepskills._skillmd.names import name_key
from deepskills._skillmd.text import one_line
from deepskills._skillmd.tools import tool_of_rule
from deepskills._types import MAX_SHOWN_NAME_LENGTH, SKILL_FILE

MAX_TEXT = 300
"""How much of a reason is kept."""

MAX_USES = 8
"""How many tools and files of a skill are kept."""

MAX_USE = 100
"""How much of a tool's or file's name is kept."""

PARTIAL = ""
"""Stands in `hidden` for the skills that there was no room for; no skill has an empty name."""

_NAMES_A_FILE = ("relative_path", "script_name")
"""The arguments by which tools of ours name a file of a skill."""

Call = tuple[Mapping[str, Any], ToolMessage]
"""A tool call and its answer."""


def make_trace(event: str, code: str | None = None, *, by: str = "", text: str = "") -> Trace:
    """Return what became of a skill, in few words."""
    values = {"event": event, "code": code, "by": by, "text": one_line(text)[:MAX_TEXT]}
    return cast("Trace", {key: value for key, value in values.items() if value})


def trace(name: str, event: str, code: str | None = None, *, by: str = "", text: str = "") -> dict[str, Any]:
    """Return the update that keeps what became of a skill."""
    made = make_trace(event, code, by=by, text=text)
    return {"skills_context": {"trail": {_key(name): made}}}


def _key(name: str) -> str:
    # What a model asks for may hold anything, and no more than a name's length of it.
    return one_line(name)[:MAX_SHOWN_NAME_LENGTH]


# Tool calls.


def find_calls(messages: Sequence[AnyMessage]) -> list[Call]:
    """Return the tool calls of a conversation that were answered, in the order of the answers."""
    asked = {call["id"]: call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}
    answers = (message for message in messages if isinstance(message, ToolMessage))
    return [(call, answer) for answer in answers if (call := asked.get(answer.tool_call_id)) is not None]


def _find_latest_turn(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """Return the model's newest message and what follows it."""
    for place in range(len(messages) - 1, -1, -1):
        if isinstance(messages[place], AIMessage):
            return messages[place:]
    return ()


def find_traces(calls: Iterable[Call]) -> dict[str, Trace | None]:
    """Return what calls did to skills, by name, the last of each; `None` for a load."""
    found: dict[str, Trace | None] = {}
    for call, answer in calls:
        asked = call["args"].get("skill_name")
        mark = read_mark(answer)
        if mark is not None:
            unloaded = make_trace("unloaded", by="model")
            found[mark["skill"]] = unloaded if mark["event"] == "unload" else None
        elif call["name"] == LOAD_TOOL and isinstance(asked, str):
            traced = _trace_load(answer)
            if traced is not None:
                found[_key(asked)] = traced
    return found


def _trace_load(answer: ToolMessage) -> Trace | None:
    given = answer.additional_kwargs.get(MARK)
    said = given if isinstance(given, Mapping) else {}
    if answer.status == "error":
        # Without a reason of ours another party refused it: a human, a policy, another middleware.
        code = said.get("reason") if said.get("event") == "refused" else None
        text = str(answer.text).removeprefix("Error: ")
        return make_trace("refused", str(code or "refused")[:MAX_USE], text=text)
    return make_trace("answered", text=str(answer.text)) if said.get("event") == "answered" else None


def observe_turn(run: Run) -> dict[str, Any]:
    """Return the update that keeps what the tool calls before this model call did to skills and used of them."""
    thread = run.thread
    # The usual first model call of a run: nothing was called.
    if not thread.given or not isinstance(thread.given[-1], ToolMessage):
        return {}
    calls = find_calls(_find_latest_turn(thread.given))
    kept = thread.section("trail")
    loaded = {name_key(name) for name in thread.loaded.names}
    trail = {
        name: traced
        for name, traced in find_traces(calls).items()
        if traced is not None and kept.get(name) != traced and name_key(name) not in loaded
    }
    known = thread.section("uses")
    uses = {
        name: [*known.get(name, ()), *new][:MAX_USES]
        for name in thread.loaded.names
        if (new := [use for use in find_uses(calls, name, run) if use not in known.get(name, ())])
        and len(known.get(name, ())) < MAX_USES
    }
    context = {key: value for key, value in (("trail", trail), ("uses", uses)) if value}
    return {"skills_context": context} if context else {}


def find_uses(calls: Iterable[Call], name: str, run: Run) -> list[str]:
    """Return the tools and files of a loaded skill that calls used."""
    record = run.thread.loaded.records[name]
    directory = parent(record["path"]).rstrip("/")
    files = [file["path"].removeprefix(f"{directory}/") for file in run.thread.resources.get(name, ())]
    tools = _tools_of(name, run)
    found: dict[str, None] = {}
    for call, answer in calls:
        if answer.status == "error" or call["name"] in (LOAD_TOOL, UNLOAD_TOOL):
            continue
        if call["name"] in tools:
            found[one_line(call["name"])[:MAX_USE]] = None
        for file in _files_of(call["args"], name, directory, files):
            found[one_line(file)[:MAX_USE]] = None
    return list(found)[:MAX_USES]


def _files_of(args: Mapping[str, Any], name: str, directory: str, files: Sequence[str]) -> Iterator[str]:
    asked = args.get("skill_name")
    if isinstance(asked, str):
        # A tool of ours, which names the skill and a file of it.
        if name_key(asked) == name_key(name):
            yield from (args[key] for key in _NAMES_A_FILE if isinstance(args.get(key), str))
        return
    texts = [value for value in args.values() if isinstance(value, str)]
    # The shell may know the directory by another path, but hardly by another name.
    own = directory.rpartition("/")[2]
    yield from (file for file in files if any(f"{own}/{file}" in text for text in texts))
    for text in texts:
        rest = text.removeprefix(f"{directory}/")
        if rest not in (text, SKILL_FILE, *files) and "\n" not in rest:
            yield rest


def _tools_of(name: str, run: Run) -> frozenset[str]:
    """Return the tools that a loaded skill names: its own, and those that it recommends."""
    record = run.thread.loaded.records[name]
    reading = run.settings.cache.readings.recall(record["path"], record["digest"])
    if reading is None or reading.metadata is None:
        return frozenset()
    own = reading.metadata["metadata"].get(INCLUDE_TOOLS, "").replace(",", " ").split()
    return frozenset({*own, *map(tool_of_rule, reading.metadata["allowed_tools"])})


# The start of a run.


def build_shadows_update(run: Run, found: Discovery) -> dict[str, Any]:
    """Return the update that keeps which skills another one of their name replaced."""
    by_path = {entry.path: entry.name for entry in found.catalog.entries}
    # By the path that the message quotes: problems are texts, and only this one names two files.
    new: dict[str, Any] = {}
    for override in found.shadowed[:MAX_TRACED]:
        winner = next((path for path in _find_quotes(override["message"]) if path in by_path), None)
        if winner is not None:
            new[override["path"]] = {"name": by_path[winner], "winner": winner}
    return _replace("shadowed", newest_traces("shadowed", new), run)


def _find_quotes(message: str) -> list[str]:
    return message.split("`")[1::2]


def build_hidden_update(run: Run) -> dict[str, Any]:
    """Return the update that keeps what was hidden where another process cannot find that out for this run."""
    if not run.settings.has_judges and not run.settings.varies_by_run:
        return {}
    view = run.known_view
    judged: dict[str, str] = {**view.broken_hidden, **view.hidden, **dict.fromkeys(view.always, "always")}
    new: dict[str, Any] = {}
    for name, how in itertools.islice(judged.items(), MAX_TRACED):
        by = view.judges.get(name)
        new[name] = {"how": how} if by is None else {"how": how, "by": by}
        code = _explain_hidden(name, view)
        if code is not None:
            new[name]["code"] = code
    kept = newest_traces("hidden", new)
    if len(kept) < len(judged):
        kept = newest_traces("hidden", {**new, PARTIAL: {"how": "partial"}})
    return _replace("hidden", kept, run)


def _explain_hidden(name: str, view: VisibleCatalog) -> str | None:
    if name in view.unjudged:
        return "extension-failed" if view.judges.get(name) else "visibility-failed"
    if name in view.unmatched:
        return "paths"
    entry = view.catalog.by_name.get(name)
    return "author" if entry is not None and entry.is_user_only else None


def _replace(section: str, new: Mapping[str, Any], run: Run) -> dict[str, Any]:
    known = run.thread.section(section)
    if known == new:
        return {}
    return {"skills_context": {section: {**dict.fromkeys(known), **new}}}
