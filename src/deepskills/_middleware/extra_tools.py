"""The tools for agents without file tools or with large libraries: search a catalog, list and read a skill's files."""

import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, Field

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import check_known, find_index, not_found_error
from deepskills._errors import SkillFormatError, SkillsError
from deepskills._files.assets import MAX_MEDIA_BYTES, kind_of, list_assets, text_of
from deepskills._io.plan import LARGE, Plan, in_worker
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import ToolResult
from deepskills._middleware.extension_calls import (
    find_judged_script,
    read_judged_asset,
    search_by_extensions,
    with_changes,
)
from deepskills._middleware.run import Run
from deepskills._middleware.visibility import find_view
from deepskills._prompt import messages as words
from deepskills._skillmd.text import harmless_body

logger = logging.getLogger("deepskills")


Content: TypeAlias = str | list[str | dict[Any, Any]]
"""What a tool answers: text, or content blocks."""

MAX_RESULTS = 50
"""How many results of a search are shown at most."""


class SearchArguments(BaseModel):
    """Arguments of `search_skills`."""

    query: str = Field(description=words.QUERY)
    n: int = Field(default=5, description=words.RESULTS)


class SkillArguments(BaseModel):
    """Arguments of `list_skill_assets`."""

    skill_name: str = Field(description=words.SKILL_NAME)


class AssetArguments(SkillArguments):
    """Arguments of `load_skill_asset`."""

    relative_path: str = Field(description=words.RELATIVE_PATH)


class ScriptArguments(SkillArguments):
    """Arguments of `get_skill_script_path`."""

    script_name: str = Field(description=words.SCRIPT_NAME)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        ValueError: If one is not an extra tool.
    """
    if isinstance(names, str):
        raise ValueError(f"extra_tools must be a sequence of names, got the single name {names!r}")  # noqa: TRY004
    if not isinstance(names, Iterable):
        raise ValueError(f"extra_tools must be a sequence of names, got {names!r}")  # noqa: TRY004
    names = list(names)
    unknown = [name for name in names if not isinstance(name, str) or name not in _TOOLS]
    if unknown:
        raise ValueError(f"extra_tools has no {', '.join(map(repr, unknown))}; choose from {', '.join(_TOOLS)}")
    return tuple(dict.fromkeys(names))


def make_extra_tool(name: str, settings: Settings) -> BaseTool:
    """Return one of the extra tools; its sync and async calls perform the same plan."""
    schema, plan = _TOOLS[name]

    def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolResult:  # noqa: ANN401 - checked by the schema
        run = Run(settings, runtime.state, runtime)
        return run.perform(_answer(name, plan(run, **arguments), run))

    async def acall(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolResult:  # noqa: ANN401 - checked by the schema
        run = Run(settings, runtime.state, runtime)
        return await run.aperform(_answer(name, plan(run, **arguments), run))

    return StructuredTool.from_function(
        call, acall, name=name, description=words.DESCRIPTIONS[name], args_schema=schema, infer_schema=False
    )


async def _search_skills(run: Run, query: str, n: int = 5) -> str:
    view = await find_view(run)
    # A source that is down must not look like a library without skills.
    check_known(view.visible, view.problems, words.TRIED_AGAIN)
    limit = max(1, min(n, MAX_RESULTS))
    found = await search_by_extensions(query, limit, run, view)
    if found is None:
        catalog = view.catalog
        hidden = {name for name, how in view.hidden.items() if how in {"user-only", "off"}}
        bare = frozenset(name for name, how in view.hidden.items() if how == "name-only")
        # To make an index takes long, so never on the event loop.
        names = await in_worker(lambda: find_index(catalog.entries, bare).search(query, limit, hidden), LARGE)
        found = [catalog.by_name[name] for name in names]
    if not found:
        # Nothing was found, perhaps because the source that has it is down.
        check_known(found, view.problems, words.TRIED_AGAIN)
        return words.word_nothing_found(query)
    return words.format_found_skills(found, frozenset(view.hidden))


async def _list_assets(run: Run, skill_name: str) -> str:
    entry, closed = await _find_skill(run, skill_name)
    assets = await run.scan.read(entry, list_assets(entry.skill, run.settings.asset_directories, closed))
    if not assets.paths and not assets.notes:
        return words.no_files(entry.name)
    return harmless_body("\n".join([*(f"- {path}" for path in assets.paths), *assets.notes]))


async def _read_asset(run: Run, skill_name: str, relative_path: str) -> Content:
    entry, closed = await _find_skill(run, skill_name)
    content = await read_judged_asset(run, entry, relative_path, run.settings.asset_directories, closed)
    return _show_content(content, relative_path)


async def _find_script_path(run: Run, skill_name: str, script_name: str) -> str:
    entry, closed = await _find_skill(run, skill_name)
    return await find_judged_script(run, entry, script_name, closed)


async def _find_skill(run: Run, skill_name: str) -> tuple[SkillEntry, list[str]]:
    """Return a visible or loaded skill, and the directories in it of skills the model may not read."""
    view = await find_view(run)
    entry, loaded = view.find(skill_name), run.thread.standing.loaded
    # Loaded counts as well: a user may have started a skill that the model cannot see.
    if entry is None or not (view.is_shown(entry) or entry.name in loaded):
        missing = await view.not_found(skill_name)
        raise not_found_error(missing, list(view.problems), words.TRIED_AGAIN)
    # The catalog's path may be as old as the thread; it is checked before it is read.
    refusals = await run.scan.refusals([entry])
    if refusals:
        raise SkillsError(words.unreadable(skill_name, refusals[entry.name]))
    return entry, view.closed_below(entry, loaded)


_TOOLS: dict[str, tuple[type[BaseModel], Callable[..., Plan[Content]]]] = {
    "search_skills": (SearchArguments, _search_skills),
    "list_skill_assets": (SkillArguments, _list_assets),
    "load_skill_asset": (AssetArguments, _read_asset),
    "get_skill_script_path": (ScriptArguments, _find_script_path),
}
"""The extra tools by name: the arguments, and the plan that answers a call."""


def _show_content(content: bytes, path: str) -> Content:
    """Return a file as a model can take it: text, a content block of its kind, or what is known of it."""
    text = text_of(content)
    if text is not None:
        return harmless_body(text)
    kind = kind_of(content)
    # Other binary files, and what is too large for a message, are described instead.
    if kind.media is None or len(content) > MAX_MEDIA_BYTES:
        limit = MAX_MEDIA_BYTES if kind.media else None
        raise SkillFormatError(words.word_binary_file(path, kind.mime_type, len(content), limit))
    encoded = base64.b64encode(content).decode("ascii")
    return [{"type": kind.media, "base64": encoded, "mime_type": kind.mime_type}]


async def _answer(name: str, plan: Plan[Content], run: Run) -> ToolResult:
    """Turn a plan's text, or what it raised, into the tool's answer."""
    message = ToolMessage("", name=name, tool_call_id=run.runtime.tool_call_id or "", status="error")
    try:
        message.content = await plan
        message.status = "success"
    except GraphBubbleUp:
        raise
    except SkillsError as error:
        # It may name files and skills, whose names are strangers' texts.
        message.content = words.word_refusal(str(error))
    except Exception as error:
        logger.exception("%s failed", name)
        message.content = words.tool_failed(name, error)
    # LangGraph's tool node turns blocks of audio into JSON text, unless they come in a `Command`.
    return with_changes(message if isinstance(message.content, str) else Command(update={"messages": [message]}), run)
