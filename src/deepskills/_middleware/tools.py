"""The tools of the middleware: load and unload a skill, and for some agents search skills, list and read their files.

A call of any of them performs one plan, sync or async, and never raises: what went wrong is its answer. `_TOOLS` at the
end names them all.

Each call of `load_skill` and `unload_skill` decides as if the calls before it in its turn had happened (`turn.py`).
So it reads what those read, and calls of one turn share their readings: each file is read by one of them.
"""

import base64
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, BeforeValidator, Field

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import check_known, find_index, not_found_error
from deepskills._errors import SkillFormatError, SkillsError
from deepskills._files.assets import MAX_MEDIA_BYTES, kind_of, list_assets, text_of
from deepskills._io.plan import LARGE, Attempt, Failed, Plan, WaitFor, in_worker, together
from deepskills._loading import budget
from deepskills._loading.budget import Prepared
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import ToolResult
from deepskills._middleware.extension_calls import find_judged_script, read_judged_asset, search_by_extensions
from deepskills._middleware.loading import Bundle, Key, LoadRequest, admit, make_bundle, prepare, settle, tool_message
from deepskills._middleware.reporting import report
from deepskills._middleware.run import Run
from deepskills._middleware.state import LINGERING, MARK, build_unload_update, make_unload_mark, merge_updates
from deepskills._middleware.turn import (
    LOAD_TOOL,
    UNLOAD_TOOL,
    Turn,
    TurnSoFar,
    after_calls,
    decide_in_turn,
    turn_of,
)
from deepskills._middleware.visibility import find_view
from deepskills._prompt import messages as words
from deepskills._skillmd.text import harmless_body

logger = logging.getLogger("deepskills")


Content: TypeAlias = str | list[str | dict[Any, Any]]
"""What a tool answers: text, or content blocks."""

MAX_RESULTS = 50
"""How many results of a search are shown at most."""


# What models give.


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


class UnloadArguments(BaseModel):
    """Arguments of `unload_skill`."""

    skill_name: str = Field(description=words.NAME_DESCRIPTION)


def _as_text(value: object) -> object:
    """Read what a model gives for no arguments as none."""
    # Some models send `null` for a parameter that they leave out.
    return "" if value is None else value


class LoadArguments(UnloadArguments):
    """Arguments of `load_skill`."""

    arguments: Annotated[str, BeforeValidator(_as_text)] = Field(default="", description=words.ARGUMENTS_DESCRIPTION)


# Making tools.


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of extra tools, each once.

    Raises:
        ValueError: If one is not an extra tool.
    """
    if isinstance(names, str):
        raise ValueError(f"extra_tools must be a sequence of names, got the single name {names!r}")  # noqa: TRY004
    if not isinstance(names, Iterable):
        raise ValueError(f"extra_tools must be a sequence of names, got {names!r}")  # noqa: TRY004
    names = list(names)
    known = [name for name in _TOOLS if name not in {LOAD_TOOL, UNLOAD_TOOL}]
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        raise ValueError(f"extra_tools has no {', '.join(map(repr, unknown))}; choose from {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def make_tool(name: str, settings: Settings) -> BaseTool:
    """Return one of the tools; its sync and async calls perform the same plan."""
    schema, plan = _TOOLS[name]

    def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolResult:  # noqa: ANN401 - checked by the schema
        run = Run(settings, runtime.state, runtime)
        return run.perform(_answer(name, plan(run, **arguments), run, arguments))

    async def acall(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolResult:  # noqa: ANN401 - checked by the schema
        run = Run(settings, runtime.state, runtime)
        return await run.aperform(_answer(name, plan(run, **arguments), run, arguments))

    return StructuredTool.from_function(
        call, acall, name=name, description=words.DESCRIPTIONS[name], args_schema=schema, infer_schema=False
    )


async def _answer(
    name: str, plan: Plan[Content | dict[str, Any]], run: Run, arguments: Mapping[str, Any]
) -> ToolResult:
    """Turn what a plan gives, an answer's content or a whole update, or what it raised, into the tool's result."""
    message = ToolMessage("", name=name, tool_call_id=run.runtime.tool_call_id or "", status="error")
    update: dict[str, Any] = {"messages": [message]}
    try:
        found = await plan
    except GraphBubbleUp:
        raise
    except SkillsError as error:
        # It may name files and skills, whose names are strangers' texts.
        message.content = words.word_refusal(str(error))
    except Exception as error:
        logger.exception("%s failed", name)
        message.content = words.tool_failed(name, error, str(arguments.get("skill_name", "")))
    else:
        if isinstance(found, dict):
            update = found
        else:
            message.content, message.status = found, "success"
    whole = merge_updates(update, run.collected, run.problems_update())
    [answer] = whole["messages"]
    # A plain message where nothing changes in state; but LangGraph's tool node turns blocks of audio into JSON text,
    # unless they come in a `Command`.
    return answer if whole.keys() == {"messages"} and isinstance(answer.content, str) else Command(update=whole)


# `load_skill` and `unload_skill`.


async def _load(run: Run, skill_name: str, arguments: str = "") -> dict[str, Any]:
    view = await find_view(run)
    entry = view.find(skill_name)
    if entry is None:
        return _refuse(await view.not_found(skill_name), run)
    turn = _find_turn(run, LOAD_TOOL, {"skill_name": skill_name, "arguments": arguments})
    permit = _find_permit(entry, turn, run)
    if view.visibility(entry) == "user-only":
        if permit is None:
            return _refuse(budget.UserOnly(entry), run)
        # The user's arguments win over the model's: the user started it, the model only carries it out.
        arguments = permit or arguments
    bundle = make_bundle(LoadRequest(entry, arguments), run, _find_staying(turn, run))
    refused = await admit(bundle, run)
    if refused is not None:
        return (await settle(bundle, Prepared(entry, arguments), refused, run, LOAD_TOOL)).update
    # The predecessors' files are read too: what they cost decides what is left.
    prepared, so_far = await _play_turn(turn, run, bundle)
    own, required = bundle.pick(prepared)
    # The file may have become the user's alone since it was listed.
    is_kept_from_models = own.entry.is_user_only and entry.name not in view.always
    if own.failure is None and is_kept_from_models and permit is None:
        return _refuse(budget.UserOnly(entry), run)
    outcome, loads = decide_in_turn(own, so_far, run.thread.loaded, run.budgets, required)
    if isinstance(outcome, budget.AlreadyLoaded) and run.thread.is_left_out(outcome.name):
        outcome = replace(outcome, crowded=True)
    return (await settle(bundle, own, outcome, run, LOAD_TOOL, loads=loads)).update


async def _unload(run: Run, skill_name: str) -> dict[str, Any]:
    thread, loaded = run.thread, run.thread.loaded
    turn = _find_turn(run, UNLOAD_TOOL, {"skill_name": skill_name})
    # Without predecessors an unload needs no catalog and no I/O, so it works while the source is down.
    if turn.earlier:
        await find_view(run)
        _, so_far = await _play_turn(turn, run)
        loaded = so_far.loaded
    outcome: budget.LoadOutcome = budget.decide_unload(skill_name, loaded)
    entry = None
    # Perhaps it was only read by `read_file`, which discloses tools without loading anything.
    if isinstance(outcome, budget.NotLoaded):
        entry = (await find_view(run)).find(skill_name)
        if entry is not None and entry.name in thread.section("disclosed"):
            outcome = budget.ToolsWithdrawn(entry.name)
    message = tool_message(run, UNLOAD_TOOL, report(outcome, "model", run, entry))
    update: dict[str, Any] = {"messages": [message]}
    if isinstance(outcome, budget.Unloaded | budget.ToolsWithdrawn):
        message.additional_kwargs[MARK] = make_unload_mark(outcome.name)
        # Both kinds of unload take disclosed tools away; a skill can be loaded and read as a file.
        update["skills_context"] = {"disclosed": {outcome.name: None}}
    if isinstance(outcome, budget.Unloaded):
        lingers = LINGERING if run.lets_linger else None
        update = merge_updates(update, build_unload_update([outcome.name], thread.loaded, lingers))
    return update


def _refuse(outcome: budget.Refusal, run: Run) -> dict[str, Any]:
    """Answer a load of a skill that could not be prepared."""
    reply = report(outcome, "model", run, getattr(outcome, "entry", None))
    return {"messages": [tool_message(run, LOAD_TOOL, reply)]}


def _find_turn(run: Run, tool: str, args: dict[str, Any]) -> Turn:
    """Return the turn of a call, identified by its step in its run: two agents of it may use the same message ids."""
    turn = turn_of(run.state, run.runtime.tool_call_id, tool, args)
    checkpoint = getattr(run.runtime.execution_info, "checkpoint_id", None)
    return replace(turn, key=(turn.key, checkpoint) if turn.key else None)


def _find_permit(entry: SkillEntry, turn: Turn, run: Run) -> str | None:
    """Return the arguments of a user's start that permits one call by the model; `None` if there is none.

    It lasts until the user's next message, and only the first call of a turn gets it.
    """
    # The permit is for one start. Calls run in parallel and all see it, so only the first of the turn takes it.
    is_taken = any(call.kind == "load" and run.known_view.find(call.name) is entry for call in turn.earlier)
    return None if is_taken else run.thread.find_permitted_arguments(entry.name)


def _find_staying(turn: Turn, run: Run) -> Sequence[str]:
    """Return the loaded skills that no earlier call of the turn may have unloaded."""
    return () if any(call.kind == "unload" for call in turn.earlier) else run.thread.loaded.names


async def _play_turn(turn: Turn, run: Run, bundle: Bundle | None = None) -> tuple[dict[Key, Prepared], TurnSoFar]:
    """Return the readings that a call and those before it need, and what is loaded once the earlier ones are done."""
    earlier: list[str | Bundle] = []
    for call in turn.earlier:
        if call.kind == "unload":
            earlier.append(call.name)
        elif (entry := run.known_view.find_visible(call.name)) is not None:
            found = make_bundle(LoadRequest(entry, call.arguments), run, _find_staying(turn, run))
            earlier += [found] if found.refusal is None else []
    bundles = [found for found in (*earlier, bundle) if isinstance(found, Bundle)]
    prepared = await _prepare_in_turn(turn.key, [each for found in bundles for each in found.all], run)
    calls = [found if isinstance(found, str) else found.pick(prepared) for found in earlier]
    return prepared, after_calls(calls, run.thread.loaded, run.budgets)


async def _prepare_in_turn(turn: Hashable, requests: Sequence[LoadRequest], run: Run) -> dict[Key, Prepared]:
    """Prepare what calls of one turn need, each file read by one of them."""
    # Which calls belong together is not known, so each reads for itself.
    if turn is None or run.invocation is None:
        return await prepare(requests, run)
    # Once for each: a second claim of the same reading would make a call wait for itself.
    distinct = {request.key: request for request in requests}
    claims = {key: run.invocation.claim(turn, (asked.entry.path, asked.arguments)) for key, asked in distinct.items()}
    mine = {key: future for key, (future, is_mine) in claims.items() if is_mine}
    result: dict[Key, Prepared] = {}
    try:
        result = await prepare([distinct[key] for key in mine], run)
    # Even when this call is cancelled or interrupted: the others must not wait for a reading that never comes. Nor does
    # a failure count for them, as an outage may be over: each reads for itself.
    finally:
        for key, future in mine.items():
            if key in result and result[key].failure is None:
                future.set_result(result[key])
            else:
                future.set_exception(LookupError("the call that was to read this could not"))
    others = [(key, future) for key, (future, is_mine) in claims.items() if not is_mine]
    if not others:
        return result
    # Only now, after our own readings are delivered: two calls that waited for each other first would never end.
    replies = await together(*(Attempt(WaitFor(future)) for _, future in others))
    shared = {key: reply for (key, _), reply in zip(others, replies, strict=True) if not isinstance(reply, Failed)}
    unread = [distinct[key] for key, _ in others if key not in shared]
    return {**result, **shared, **await prepare(unread, run)}


# The extra tools.


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
    entry, loaded = view.find(skill_name), run.thread.loaded.names
    # Loaded counts as well: a user may have started a skill that the model cannot see.
    if entry is None or not (view.is_shown(entry) or entry.name in loaded):
        missing = await view.not_found(skill_name)
        raise not_found_error(missing, list(view.problems), words.TRIED_AGAIN)
    # The catalog's path may be as old as the thread; it is checked before it is read.
    refusals = await run.scan.refusals([entry])
    if refusals:
        raise SkillsError(words.unreadable(skill_name, refusals[entry.name]))
    return entry, view.find_closed_below(entry, loaded)


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


_TOOLS: dict[str, tuple[type[BaseModel], Callable[..., Plan[Any]]]] = {
    LOAD_TOOL: (LoadArguments, _load),
    UNLOAD_TOOL: (UnloadArguments, _unload),
    "search_skills": (SearchArguments, _search_skills),
    "list_skill_assets": (SkillArguments, _list_assets),
    "load_skill_asset": (AssetArguments, _read_asset),
    "get_skill_script_path": (ScriptArguments, _find_script_path),
}
"""The tools by name: the arguments, and the plan that answers a call with content or with a whole update."""
