"""Skills with `paths`: each is hidden until a tool call of the thread touches a file that its globs match.

Until then such a skill is as if only the user could start it. From then on it is visible for the rest of the thread.
For providers that cache prompts the section stays as it was: the skill is announced at the end of the tool's answer, in
requests only, and again at another message if that one is summarized away.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._catalog.catalog import Catalog, Visibility
from deepskills._middleware.run import Run
from deepskills._middleware.state import build_note_update, merge_updates
from deepskills._middleware.visibility import find_view
from deepskills._prompt.messages import suggestion_line, suggestion_note
from deepskills._skillmd.globs import matches, patterns_of

MAX_TOUCHED = 200
"""How many skills of a thread are brought in by paths."""

MAX_PATHS = 1_000
"""How many paths of one turn's calls are compared."""

_PATH_ARGUMENTS = frozenset({"file", "files", "filename", "paths"})


async def bring_in_touched(run: Run) -> dict[str, Any]:
    """Return the update that shows skills whose files the latest tool calls touched."""
    thread = run.thread
    known = thread.section("touched")
    if not known and not (thread.messages and isinstance(thread.messages[-1], ToolMessage)):
        return {}
    catalog = await run.scan.catalog()
    if not catalog.with_paths:
        return {}
    fresh = [name for name in _find_touched(catalog, thread.messages) if name not in known][: MAX_TOUCHED - len(known)]
    present = {message.id for message in thread.messages}
    lost = [name for name, message_id in known.items() if message_id not in present]
    anchor = thread.messages[-1].id if thread.messages else None
    if not (fresh or lost) or not anchor:
        return {}
    update: dict[str, Any] = {"skills_context": {"touched": dict.fromkeys([*fresh, *lost], anchor)}}
    if run.shows_loaded:
        return update
    view = await find_view(run)
    # What another rule hides is not announced either.
    hidden = {**view.hidden, **view.unmatched}
    lines = [
        suggestion_line(entry, shows_description=hidden.get(entry.name) != "name-only")
        for entry in catalog.with_paths
        if entry.name in {*fresh, *lost} and hidden.get(entry.name, "on") in {"on", "name-only"}
    ]
    return merge_updates(update, build_note_update(thread, anchor, "end", suggestion_note(lines))) if lines else update


def find_hidden_in_section(run: Run) -> Mapping[str, Visibility]:
    """Return what the section hides: skills that were announced in the conversation are not listed a second time."""
    view = run.known_view
    touched = run.thread.section("touched")
    if not touched or run.shows_loaded:
        return view.hidden
    return {**view.hidden, **{name: "user-only" for name in touched if view.hidden.get(name) != "off"}}


def _find_touched(catalog: Catalog, messages: Sequence[AnyMessage]) -> list[str]:
    paths = list(dict.fromkeys(_find_paths(messages)))[:MAX_PATHS]
    return [
        entry.name
        for entry in catalog.with_paths
        if paths and any(matches(patterns_of(entry.frontmatter["paths"]), path) for path in paths)
    ]


def _find_paths(messages: Sequence[AnyMessage]) -> Iterator[str]:
    """Yield the paths that the latest calls named, if they succeeded."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered |= {message.tool_call_id} if message.status != "error" else set()
            continue
        if not isinstance(message, AIMessage):
            return
        for call in message.tool_calls:
            if call["id"] in answered:
                for key, value in call["args"].items():
                    if key.endswith("path") or key in _PATH_ARGUMENTS:
                        yield from (item for item in (value if isinstance(value, list) else [value]) if _is_path(item))
        return


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value)
