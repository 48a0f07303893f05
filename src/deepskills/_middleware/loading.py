"""The one way in: every load of a skill, by the model, the user, an extension or the middleware itself.

A load is a `LoadRequest`. Requests come from the tool `load_skill`, from pins and slash commands, from extensions, from
a file that changed while its skill was loaded, and from names that an application wrote into `skills_loaded`. Each
passes the same stations, in this order:

0. **Gather** (`make_bundle`): with `load_requires`, what a skill requires and is not loaded comes along. Each of those
   skills passes all stations itself; the outcome is one, all or none.
1. **Admit** (`admit`, `before_read` of the extensions): may the skill's file be read for a load at all? Texts that are
   put back were admitted at their loads, and are judged by `change_text` when they are read again.
2. **Read** (`prepare`): the file is read and its other files are listed, two rounds however many requests there are;
   arguments are filled in, extensions may change the text, its cost is counted. Texts that are put back from their
   files come by here too.
3. **Budget** (`decide_together` in `_loading/budget.py`): is there room beside what is loaded?
4. **Judge** (`before_load` of the extensions): may it happen, or is it answered in another way? They are asked only
   about loads that could happen, and about those without room, because an answer takes none.
5. **Settle** (`settle`): the outcome is worded, logged and reported once (`reporting.report`), and becomes an update of
   state with the message that carries the text.

The tools `load_skill` and `unload_skill` are at the end of this module. They answer in a `ToolMessage`, where the model
reads refusals too. All others put a message of their own into the conversation, and their refusals become problems,
because there is no call to answer.
"""

import logging
import math
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Annotated, Any

from langchain.tools import ToolRuntime
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, BeforeValidator, Field

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import MAX_BROUGHT, order_loads, required_by
from deepskills._files.inventory import Contents, read_contents, without_closed
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import (
    Attempt,
    CallFunction,
    Failed,
    Plan,
    WaitFor,
    in_worker,
    is_missing_error,
    parent,
    together,
)
from deepskills._loading import budget as outcomes
from deepskills._loading.arguments import argument_names, fill_in
from deepskills._loading.budget import (
    NO_LIMIT,
    Budgets,
    LoadedSkills,
    Prepared,
    count_tokens,
    decide_together,
    decide_unload,
    record_of,
)
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import (
    Answer,
    Refuse,
    SkillLoad,
    ToolResult,
)
from deepskills._middleware.extension_calls import (
    change_text,
    decide_by_extensions,
)
from deepskills._middleware.reporting import report, report_unload
from deepskills._middleware.run import Run
from deepskills._middleware.state import (
    LINGERING,
    MARK,
    load_mark,
    load_update,
    merged,
    new_message_id,
    note_update,
    parts_of,
    unload_mark,
    unload_update,
)
from deepskills._middleware.traces import trace
from deepskills._middleware.turn import (
    LOAD_TOOL,
    UNLOAD_TOOL,
    PreparedLoad,
    Turn,
    TurnSoFar,
    after_calls,
    decide_in_turn,
    turn_of,
)
from deepskills._middleware.visibility import find_view
from deepskills._prompt.messages import (
    ARGUMENTS_DESCRIPTION,
    LOAD_DESCRIPTION,
    NAME_DESCRIPTION,
    NEXT_TEXT,
    UNLOAD_DESCRIPTION,
    Reply,
    skill_block,
    tool_failed,
    word_gone_notice,
    word_required_missing,
    word_required_refused,
    word_required_too_many,
)
from deepskills._skillmd.keys import INVOCATION_FILE
from deepskills._skillmd.problems import problem
from deepskills._types import SkillMetadata, Trigger

logger = logging.getLogger("deepskills")

CHANGED_SINCE_LISTED = "its frontmatter is not what its provider listed; nothing of it is used"
"""Why a skill that is not trusted cannot be loaded."""

Key = tuple[str, str]
"""A skill's name and arguments."""


@dataclass(frozen=True)
class LoadRequest:
    """A skill to load, as the model, the user, an extension or the middleware asks for it."""

    entry: SkillEntry
    arguments: str = ""
    trigger: Trigger = "model"
    is_limited: bool = True
    """Whether budgets may refuse it; what the user asks for they only count."""

    @property
    def key(self) -> Key:
        """What the request is known by."""
        return self.entry.name, self.arguments

    def budgets(self, run: Run) -> Budgets:
        """Return the budgets that count for it."""
        return run.budgets if self.is_limited else NO_LIMIT


@dataclass(frozen=True)
class LoadResult:
    """What became of a request: the one result of a load."""

    outcome: outcomes.Outcome
    update: dict[str, Any] = field(default_factory=dict)
    """What changes in state, the message that carries the text or the answer included."""

    standing: LoadedSkills | None = None
    """What is loaded now; `None` if that has not changed."""


@dataclass(frozen=True)
class Bundle:
    """A request with those for the skills that come along, because it requires them and they are not loaded."""

    request: LoadRequest
    required: tuple[LoadRequest, ...] = ()
    refusal: str | None = None
    """Why none of it is loaded; `None` if nothing speaks against it so far."""

    @property
    def all(self) -> tuple[LoadRequest, ...]:
        """Every request of it, in the order of loading."""
        return (*self.required, self.request)

    def pick(self, prepared: Mapping[Key, Prepared]) -> PreparedLoad:
        """Return what was prepared of it."""
        return prepared[self.request.key], [prepared[each.key] for each in self.required]


def make_bundle(request: LoadRequest, run: Run, loaded: Container[str]) -> Bundle:
    """Return a request with what has to come along; `loaded` are the skills that stay loaded until then."""
    if not run.settings.load_requires:
        return Bundle(request)
    view = run.known_view
    # A load by the model may only bring in skills that the model can see; a user's start brings what only users start.
    find = view.find if request.trigger in {"user", "pin"} else view.find_visible

    def resolve(name: str) -> list[tuple[str, str | None]]:
        entry = view.catalog.by_name[name]
        return [(written, found.name if found is not None else None) for written, found in required_by(entry, find)]

    found = order_loads(request.entry.name, resolve)
    if found.missing:
        return Bundle(request, refusal=word_required_missing(found.missing))
    along = [name for name in found.order if name != request.entry.name and name not in loaded]
    if found.is_cut or len(along) > MAX_BROUGHT:
        return Bundle(request, refusal=word_required_too_many(MAX_BROUGHT))
    entries = [view.catalog.by_name[name] for name in along]
    return Bundle(request, tuple(replace(request, entry=entry, arguments="") for entry in entries))


async def load(requests: Sequence[LoadRequest], run: Run) -> dict[str, LoadResult]:
    """Load skills in messages of their own, one after the other, and return by name what became of each."""
    standing = run.thread.standing
    bundles = await _make_bundles(requests, run)
    refused: dict[str, outcomes.Refused] = {}
    # In their order, one after the other: an extension may interrupt, and LangGraph matches answers by position.
    for bundle in bundles:
        refusal = await admit(bundle, run)
        if refusal is not None:
            refused[bundle.request.entry.name] = refusal
    ready_for = [request for bundle in bundles if bundle.request.entry.name not in refused for request in bundle.all]
    prepared = await prepare(ready_for, run)
    settled: dict[str, LoadResult] = {}
    for bundle in bundles:
        request = bundle.request
        refusal = refused.get(request.entry.name)
        if refusal is not None:
            done = await settle(bundle, Prepared(request.entry, request.arguments), refusal, run)
        else:
            ready, required = bundle.pick(prepared)
            outcome, loads = decide_together(ready, required, standing, request.budgets(run))
            done = await settle(bundle, ready, outcome, run, loads=loads)
        settled[request.entry.name] = done
        # Each request is decided with those before it granted, so that together they keep to the budget.
        standing = done.standing or standing
    return settled


async def _make_bundles(requests: Sequence[LoadRequest], run: Run) -> list[Bundle]:
    """Return the bundles of requests; what one requires and another one asks for comes by its own, first."""
    if not run.settings.load_requires or not requests:
        return [Bundle(request) for request in requests]
    await find_view(run)
    by_name = {request.entry.name: request for request in requests}
    bundles = {name: make_bundle(request, run, run.thread.standing.loaded) for name, request in by_name.items()}
    asked = [each.entry.name for bundle in bundles.values() for each in bundle.all if each.entry.name in by_name]
    return [
        replace(bundle, required=tuple(each for each in bundle.required if each.entry.name not in by_name))
        for bundle in (bundles[name] for name in dict.fromkeys(asked))
    ]


async def admit(bundle: Bundle, run: Run) -> outcomes.Refused | None:
    """Ask the extensions whether the files of a load may be read; the refusal of one is the outcome of all."""
    own = bundle.request.entry
    if bundle.refusal is not None:
        return outcomes.Refused(own, bundle.refusal)
    for request in bundle.all if run.settings.extensions else ():
        refused = await decide_by_extensions("before_read", run, request.entry)
        if isinstance(refused, Refuse):
            name, reason = request.entry.name, refused.reason
            return outcomes.Refused(own, reason if request is bundle.request else word_required_refused(name, reason))
    return None


async def settle(
    bundle: Bundle,
    ready: Prepared,
    outcome: outcomes.Outcome,
    run: Run,
    tool: str | None = None,
    *,
    loads: Sequence[outcomes.Loaded] = (),
) -> LoadResult:
    """Let the extensions judge a load that could happen, and return what it does to state and conversation.

    `loads` are the loads of what it requires. `tool` names the tool whose call is answered; without one each text goes
    into a message of its own.
    """
    request = bundle.request
    # A load that is already there, unreadable or refused is not worth a human's time. One without room is still asked
    # about, because an extension may answer it otherwise (a fork needs no room).
    if isinstance(outcome, outcomes.Loaded | outcomes.OverBudget):
        decision = await judge(request, ready, run)
        if isinstance(decision, Answer):
            return _apply_answer(request, ready, decision, run, tool)
        if isinstance(decision, Refuse):
            outcome = outcomes.Refused(ready.entry, decision.reason)
    along: list[tuple[outcomes.Loaded, Reply]] = []
    if isinstance(outcome, outcomes.Loaded | outcomes.AlreadyLoaded):
        refusal = await _check_requirements(request, loads, run)
        if refusal is not None:
            outcome, loads = outcomes.Refused(ready.entry, refusal), ()
        # The same news in the order of the loads: what is required is loaded first.
        along = [(done, report(done, request.trigger, run, record_of(done.prepared))) for done in loads]
    if isinstance(outcome, outcomes.Loaded):
        outcome = await _name_requirements(outcome, run)
    reply = report(outcome, request.trigger, run, record_of(ready) if ready.digest else ready.entry)
    done = [*along, *([(outcome, reply)] if isinstance(outcome, outcomes.Loaded) else [])]
    if done:
        standing = done[-1][0].standing
        return LoadResult(outcome, _build_load_update(done, reply, request.trigger, run, tool), standing)
    if tool is not None:
        return LoadResult(outcome, {"messages": [tool_message(run, tool, reply)]})
    if not isinstance(outcome, outcomes.AlreadyLoaded):
        _record_refusal(outcome, reply, request.entry, run)
    return LoadResult(outcome)


def _record_refusal(outcome: outcomes.Outcome, reply: Reply, entry: SkillEntry, run: Run) -> None:
    """Record why a load that has no call to answer did not happen."""
    # What a model reads begins with "Error: "; a problem has its own form.
    reason = getattr(outcome, "reason", reply.text.removeprefix("Error: ").rstrip("."))
    code = "skill-refused"
    if isinstance(outcome, outcomes.Unreadable):
        code = "skill-unreadable"
        reason = word_required_refused(outcome.required, reason) if outcome.required else reason
    run.problems.append(problem(entry.path, code, reason=reason))
    run.collect(trace(entry.name, "refused", reply.reason, text=reason))


def _build_load_update(
    done: Sequence[tuple[outcomes.Loaded, Reply]], reply: Reply, trigger: Trigger, run: Run, tool: str | None
) -> dict[str, Any]:
    """Return the update of loads: each text in a message of its own, or all in the one that answers a call."""
    # Before any other middleware can touch a message: memory has each text as it was loaded. Ids are ours, so that
    # records and messages agree before LangGraph has seen either.
    for _, own in done:
        run.settings.memory.keep_text(own.text)
    if tool is None:
        return merged(*(_build_pin_update(loaded, own.text, trigger, run) for loaded, own in done))
    texts = [own.text for _, own in done]
    if done[-1][1] is not reply:
        # The skill itself was loaded before; the answer says so behind what came along.
        texts.append(reply.text)
    answer = tool_message(run, tool, replace(reply, text=NEXT_TEXT.join(texts)))
    answer.id = new_message_id()
    marks = [load_mark(loaded) for loaded, _ in done]
    answer.additional_kwargs[MARK] = {**marks[0], "along": marks[1:]} if len(marks) > 1 else marks[0]
    parts = parts_of(answer, len(texts), is_lost=False) if len(texts) > 1 else [answer]
    updates = [load_update(loaded, part, run.thread, trigger) for (loaded, _), part in zip(done, parts, strict=False)]
    return {**merged(*updates), "messages": [answer]}


def _build_pin_update(loaded: outcomes.Loaded, text: str, trigger: Trigger, run: Run) -> dict[str, Any]:
    message = _build_pin(loaded.prepared, text)
    message.id = new_message_id()
    message.additional_kwargs[MARK] = load_mark(loaded)
    return load_update(loaded, message, run.thread, trigger)


async def _check_requirements(request: LoadRequest, loads: Sequence[outcomes.Loaded], run: Run) -> str | None:
    """Return why a skill may not be loaded because of one that it requires; `None` if all may."""
    for done in loads:
        entry = done.prepared.entry
        if request.trigger == "model" and entry.is_user_only and entry.name not in run.known_view.always:
            # The file may have become the user's alone since it was listed.
            return word_required_refused(entry.name, "only the user can start it.")
        decision = await judge(replace(request, entry=entry, arguments=""), done.prepared, run)
        if isinstance(decision, Refuse):
            return word_required_refused(entry.name, decision.reason)
        if isinstance(decision, Answer):
            return word_required_refused(entry.name, "it is not loaded as text. Load it first, by itself.")
    return None


async def _name_requirements(outcome: outcomes.Loaded, run: Run) -> outcomes.Loaded:
    """Return a load that names what it requires and is not loaded."""
    entry = outcome.prepared.entry
    if "requires" not in entry.skill["metadata"]:
        return outcome
    view = await find_view(run)
    required = required_by(entry, view.find_visible)
    unmet = [found.name for _, found in required if found is not None and found.name not in outcome.standing.loaded]
    absent = [written for written, found in required if found is None]
    return replace(outcome, unmet=tuple(unmet), absent=tuple(absent))


async def judge(request: LoadRequest, ready: Prepared, run: Run) -> Refuse | Answer | None:
    """Ask the extensions about a load that the core would grant."""
    if not run.settings.extensions:
        return None
    about = SkillLoad(
        ready.entry,
        ready.arguments,
        request.trigger,
        ready.text,
        ready.tokens,
        ready.inventory.resources,
        run.runtime,
    )
    return await decide_by_extensions("before_load", run, about)


def _apply_answer(request: LoadRequest, ready: Prepared, answer: Answer, run: Run, tool: str | None) -> LoadResult:
    """Return what an extension's answer changes: nothing is loaded."""
    outcome = outcomes.Answered(ready.entry, answer.text, answer.is_error)
    reply = report(outcome, request.trigger, run)
    permits: dict[str, Any] = {}
    messages: list[AnyMessage] = []
    if tool is not None:
        # The call that a permit was for has been made.
        permits = {"skills_context": {"permits": {ready.name: None}}}
        messages = [tool_message(run, tool, reply)]
        if not answer.is_error:
            messages[0].additional_kwargs[MARK] = {"event": "answered"}
    else:
        if answer.permits_call:
            permit = {"arguments": ready.arguments, "turn": run.thread.turn}
            permits = {"skills_context": {"permits": {ready.name: permit}}}
        if answer.text:
            # With `lc_source` it cannot be taken for the user's own words, for a slash command or for the newest
            # message.
            source = {"lc_source": "deepskills"}
            messages = [HumanMessage(answer.text, id=new_message_id(), additional_kwargs=source)]
    return LoadResult(outcome, merged({**answer.update}, permits, {"messages": messages} if messages else {}))


def tool_message(run: Run, tool: str, reply: Reply) -> ToolMessage:
    """Return the answer to a call of one of our tools."""
    return ToolMessage(
        content=reply.text,
        name=tool,
        tool_call_id=run.runtime.tool_call_id or "",
        status="error" if reply.is_error else "success",
        # The reason of a refusal, which changes no state, for the hook that runs next (`observe_turn`).
        additional_kwargs={MARK: {"event": "refused", "reason": reply.reason}} if reply.reason is not None else {},
    )


def _build_pin(ready: Prepared, text: str) -> HumanMessage:
    """Return a message that pins a skill, marked as deepagents' class marks it."""
    entry = ready.entry
    about = {"name": entry.name, "path": entry.path, "description": entry.description}
    return HumanMessage(text, additional_kwargs={"lc_source": "pinned_skill", "skill": about})


def take_away(run: Run, names: Sequence[str], note: str | None = None) -> dict[str, Any]:
    """Return the update that unloads skills which this run may no longer use, and tell of it.

    The model reads it before the user's newest message, in requests only: a message in state behind the user's would
    hide that one from guards which look at the last message.
    """
    if not names:
        return {}
    thread = run.thread
    # The model read of a lost text when it was lost; only the limits of its skill end now.
    present = [name for name in names if name in thread.standing.loaded]
    if not present:
        return unload_update(names)
    for name in present:
        logger.info("Unloaded skill %r: it is no longer available", name)
        report_unload(name, "gone", run)
    anchor = thread.user_message or (thread.messages[-1] if thread.messages else None)
    text = note or word_gone_notice(present)
    noted = note_update(thread, anchor.id, "before", text) if anchor is not None and anchor.id else {}
    return merged(unload_update(names), noted)


# Reading.


async def prepare(requests: Sequence[LoadRequest], run: Run) -> dict[Key, Prepared]:
    """Read the text and list the files of several skills: two rounds, however many they are."""
    distinct = {request.key: request for request in requests}
    if not distinct:
        return {}
    # Trust first: no path is read, not even listed, that does not lie under a current source.
    refusals = await run.scan.refusals([request.entry for request in distinct.values()])
    result = {
        key: Prepared(request.entry, request.arguments, failure=refusals[request.entry.name])
        for key, request in distinct.items()
        if request.entry.name in refusals
    }
    allowed = {request.entry.name: request.entry for request in distinct.values() if request.entry.name not in refusals}
    if not allowed:
        return result
    depth = run.settings.resource_depth
    plans = [run.scan.read(entry, read_contents(entry, depth)) for entry in allowed.values()]
    read = dict(zip(allowed, await side_by_side(*plans), strict=True))
    for key, request in distinct.items():
        if key not in result:
            result[key] = await _prepare_one(request, read[request.entry.name], run)
    return result


async def prepare_in_turn(
    turn: Hashable, requests: Sequence[LoadRequest], run: Run, own: Key | None = None
) -> dict[Key, Prepared]:
    """Prepare what calls of one turn need, each file read by one of them; of `own` no other call's failure counts."""
    # Which calls belong together is not known, so each reads for itself.
    if turn is None or run.invocation is None:
        return await prepare(requests, run)
    # Once for each: a second claim of the same reading would make a call wait for itself.
    distinct = {request.key: request for request in requests}
    claims = {key: run.invocation.claim(turn, (asked.entry.path, asked.arguments)) for key, asked in distinct.items()}
    mine = {key: future for key, (future, is_mine) in claims.items() if is_mine}
    try:
        result = await prepare([distinct[key] for key in mine], run)
        for key, future in mine.items():
            future.set_result(result[key])
    # Even when this call is cancelled or interrupted: the others must not wait for a reading that never comes.
    finally:
        _abandon(mine.values())
    others = {key: future for key, (future, is_mine) in claims.items() if not is_mine}
    if others:
        # Only now, after our own readings are delivered: two calls that waited for each other first would never end.
        replies = await together(*(Attempt(WaitFor(future)) for future in others.values()))
        lost = [
            key
            for key, reply in zip(others, replies, strict=True)
            # Its own file decides about the call, and a sibling's outage may be over. A predecessor's failure is
            # assumed to be granted (`after_calls`).
            if isinstance(reply, Failed) or (key == own and _is_worth_another_try(reply))
        ]
        result |= {key: reply for key, reply in zip(others, replies, strict=True) if not isinstance(reply, Failed)}
        result |= await prepare([distinct[key] for key in lost], run)
    return result


def _is_worth_another_try(prepared: Prepared) -> bool:
    return prepared.failure is not None and not is_missing_error(prepared.failure)


def _abandon(futures: Any) -> None:  # noqa: ANN401 - futures of readings
    """End the waiting for what was not delivered; the calls that wait read for themselves."""
    for future in futures:
        if not future.done():
            future.set_exception(LookupError("the call that was to read this ended before"))


async def _prepare_one(request: LoadRequest, contents: Contents, run: Run) -> Prepared:
    entry, arguments = request.entry, request.arguments
    text = contents.text
    if contents.failure is not None:
        return Prepared(entry, arguments, failure=contents.failure)
    view = await find_view(run)
    # Files of a hidden skill that lies inside this one are not listed: its path alone would reveal it.
    inventory = without_closed(contents.inventory, parent(entry.path), view.closed_below(entry, loaded=()))
    shell = contents.shell_directory
    readings, content = run.settings.memory.readings, contents.file.content or b""
    # What a served skill asks for was set aside when it was listed; its text says the same, and grants nothing.
    is_served = entry.origin is not None
    if is_served and not await run.scan.is_as_listed(entry, content):
        return Prepared(entry, arguments, failure=CHANGED_SINCE_LISTED)
    read = readings.read_once if is_served else readings.read
    reading = read(entry.path, content, contents.invocation)
    names, directory, session = (
        argument_names(reading.frontmatter.get("arguments")),
        shell or (parent(entry.path) if entry.has_directory else "."),
        str((run.runtime.config.get("configurable") or {}).get("thread_id") or ""),
    )
    # A large file is not filled in on the event loop: a user can send messages that claim loads of it.
    size = (len(text) + len(arguments)) // 64
    filled = await in_worker(
        lambda: fill_in(text, arguments, names=names, skill_dir=directory, session_id=session), size
    )
    # The entry as the file says it now: an extension has to judge what will be loaded, not what was listed.
    present = replace(entry, sha256=reading.sha256)
    if reading.metadata is not None and not is_served:
        skill = SkillMetadata(**{**reading.metadata, "name": entry.name})
        present = replace(present, skill=skill, frontmatter=reading.frontmatter)
    # What the file beside it forbids holds, whether that was read now or when skills were listed.
    if INVOCATION_FILE in entry.frontmatter or INVOCATION_FILE in reading.frontmatter:
        present = replace(present, frontmatter={**present.frontmatter, INVOCATION_FILE: "user-only"})
    load = SkillLoad(present, arguments, request.trigger, filled, 0, inventory.resources, run.runtime)
    changed = (await change_text(load, run)) if run.settings.extensions else filled
    if isinstance(changed, Failed):
        return Prepared(entry, arguments, failure=changed.reason)
    # Escaping goes through the whole text; as above, 64 characters count as one item of work.
    block = await in_worker(
        lambda: skill_block(entry, changed, inventory, shell, run.settings.file_names()), len(changed) // 64
    )
    tokens = await _count_cost(block, run)
    digest = entry.digest if is_served else reading.digest
    return Prepared(present, arguments, block, inventory, digest, tokens, text=changed)


async def _count_cost(text: str, run: Run) -> int:
    """Return what a text costs by the user's counter; where that gives no number, by the default one."""
    counter = run.settings.token_counter
    if counter is count_tokens:
        return count_tokens(text)
    value = await Attempt(CallFunction(counter, (text,)))
    if isinstance(value, Failed):
        reason = value.reason
    else:
        # `True` counts as a number in Python; `nan` and infinity would spoil every sum.
        is_number = not isinstance(value, bool) and isinstance(value, Real)
        if is_number and 0 <= value < math.inf:
            count: int = math.ceil(value)
            return count
        reason = f"it returned {value!r}"
    run.problems.append(problem("token_counter", "token-counter-failed", reason=reason))
    return count_tokens(text)


# The tools `load_skill` and `unload_skill`: calls to plans, outcomes to `Command`s and messages.


def _as_text(value: object) -> object:
    """Read what a model gives for no arguments as none."""
    # Some models send `null` for a parameter that they leave out.
    return "" if value is None else value


class UnloadArguments(BaseModel):
    """Arguments of `unload_skill`."""

    skill_name: str = Field(description=NAME_DESCRIPTION)


class LoadArguments(UnloadArguments):
    """Arguments of `load_skill`."""

    arguments: Annotated[str, BeforeValidator(_as_text)] = Field(default="", description=ARGUMENTS_DESCRIPTION)


def make_tools(settings: Settings) -> list[BaseTool]:
    """Return the tools `load_skill` and `unload_skill` for one middleware."""
    return [
        _make_tool(settings, LOAD_TOOL, LOAD_DESCRIPTION, LoadArguments, _load),
        _make_tool(settings, UNLOAD_TOOL, UNLOAD_DESCRIPTION, UnloadArguments, _unload),
    ]


def _make_tool(
    settings: Settings, name: str, description: str, schema: type[BaseModel], plan: Callable[..., Plan[ToolResult]]
) -> BaseTool:
    """Return a tool whose sync and async calls perform the same plan."""

    def call(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
        run = Run(settings, runtime.state, runtime)
        return run.perform(_guard(plan(run, skill_name, arguments), name, skill_name, run))

    async def acall(skill_name: str, runtime: ToolRuntime[Any, Any], arguments: str = "") -> ToolResult:
        run = Run(settings, runtime.state, runtime)
        return await run.aperform(_guard(plan(run, skill_name, arguments), name, skill_name, run))

    # Both tools share these functions; the explicit schema keeps `arguments` out of `unload_skill`'s.
    return StructuredTool.from_function(
        call, acall, name=name, description=description, args_schema=schema, infer_schema=False
    )


async def _load(run: Run, skill_name: str, arguments: str) -> ToolResult:
    view = await find_view(run)
    entry = view.find(skill_name)
    if entry is None:
        return _refuse(run, await view.not_found(skill_name))
    turn = _find_turn(run, LOAD_TOOL, {"skill_name": skill_name, "arguments": arguments})
    permit = _find_permit(entry, turn, run)
    if view.visibility(entry) == "user-only":
        if permit is None:
            return _refuse(run, outcomes.UserOnly(entry))
        # The user's arguments win over the model's: the user started it, the model only carries it out.
        arguments = permit or arguments
    request = LoadRequest(entry, arguments)
    bundle = make_bundle(request, run, _find_staying(turn, run))
    refused = await admit(bundle, run)
    if refused is not None:
        settled = await settle(bundle, Prepared(entry, arguments), refused, run, LOAD_TOOL)
        return _build_result(settled.update, run)
    # The predecessors' files are read too: what they cost decides what is left.
    prepared, so_far = await _play_turn(turn, run, bundle)
    own, required = bundle.pick(prepared)
    # The file may have become the user's alone since it was listed.
    is_kept_from_models = own.entry.is_user_only and entry.name not in view.always
    if own.failure is None and is_kept_from_models and permit is None:
        return _refuse(run, outcomes.UserOnly(entry))
    outcome, loads = decide_in_turn(own, so_far, run.thread.standing, run.budgets, required)
    if isinstance(outcome, outcomes.AlreadyLoaded):
        outcome = _compare_with_turn(outcome, own, turn, run)
    settled = await settle(bundle, own, outcome, run, LOAD_TOOL, loads=loads)
    return _build_result(settled.update, run)


async def _unload(run: Run, skill_name: str, _arguments: str) -> ToolResult:
    thread, standing = run.thread, run.thread.standing
    turn = _find_turn(run, UNLOAD_TOOL, {"skill_name": skill_name})
    # Without predecessors an unload needs no catalog and no I/O, so it works while the source is down.
    if turn.earlier:
        await find_view(run)
        _, so_far = await _play_turn(turn, run)
        standing = so_far.standing
    outcome: outcomes.Outcome = decide_unload(skill_name, standing)
    entry = None
    # Perhaps it was only read by `read_file`, which discloses tools without loading anything.
    if isinstance(outcome, outcomes.NotLoaded):
        entry = (await find_view(run)).find(skill_name)
        if entry is not None and entry.name in thread.section("disclosed"):
            outcome = outcomes.ToolsWithdrawn(entry.name)
    message = tool_message(run, UNLOAD_TOOL, report(outcome, "model", run, entry))
    update: dict[str, Any] = {"messages": [message]}
    if isinstance(outcome, outcomes.Unloaded | outcomes.ToolsWithdrawn):
        message.additional_kwargs[MARK] = unload_mark(outcome.name)
        # Both kinds of unload take disclosed tools away; a skill can be loaded and read as a file.
        update["skills_context"] = {"disclosed": {outcome.name: None}}
    if isinstance(outcome, outcomes.Unloaded):
        lingers = LINGERING if run.lets_linger else None
        update = merged(update, unload_update([outcome.name], thread.standing, lingers))
    return _build_result(update, run)


def _find_turn(run: Run, tool: str, args: dict[str, Any]) -> Turn:
    """Return the turn of a call, identified by its step in its run: two agents of it may use the same message ids."""
    turn = turn_of(run.state, run.runtime.tool_call_id, tool, args)
    checkpoint = getattr(run.runtime.execution_info, "checkpoint_id", None)
    return replace(turn, key=(turn.key, checkpoint) if turn.key else None)


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
    own = bundle.request.key if bundle is not None else None
    prepared = await prepare_in_turn(turn.key, [each for found in bundles for each in found.all], run, own)
    calls = [found if isinstance(found, str) else found.pick(prepared) for found in earlier]
    return prepared, after_calls(calls, run.thread.standing, run.budgets)


def _find_permit(entry: SkillEntry, turn: Turn, run: Run) -> str | None:
    """Return the arguments of a user's start that permits one call by the model; `None` if there is none.

    It lasts until the user's next message, and only the first call of a turn gets it.
    """
    # The permit is for one start. Calls run in parallel and all see it, so only the first of the turn takes it.
    is_taken = any(call.kind == "load" and run.known_view.find(call.name) is entry for call in turn.earlier)
    return None if is_taken else run.thread.permitted_arguments(entry.name)


def _find_staying(turn: Turn, run: Run) -> Sequence[str]:
    """Return the loaded skills that no earlier call of the turn may have unloaded."""
    return () if any(call.kind == "unload" for call in turn.earlier) else run.thread.standing.loaded


def _compare_with_turn(outcome: outcomes.AlreadyLoaded, prepared: Prepared, turn: Turn, run: Run) -> outcomes.Outcome:
    """Tell apart what stays loaded from before this turn from what only an earlier call of it may have loaded."""
    name, before = outcome.name, run.thread.standing
    # An unload earlier in the turn makes the load from before irrelevant, even if a sibling then loads it again.
    unloads = (decide_unload(call.name, before) for call in turn.earlier if call.kind == "unload")
    gone = {unload.name for unload in unloads if isinstance(unload, outcomes.Unloaded)}
    if name in before.loaded and name not in gone:
        return replace(outcome, crowded=outcome.crowded or run.thread.is_left_out(name))
    # Loaded by a sibling, as far as we know, but the file could not be read here, so it is unknown whether the text is
    # there.
    if outcome.unchecked:
        return outcomes.Unreadable(prepared.entry, outcome.unchecked)
    return replace(outcome, by_sibling=True)


async def _guard(plan: Plan[ToolResult], tool: str, skill_name: str, run: Run) -> ToolResult:
    """Turn an unexpected failure into an error message; a tool never raises."""
    try:
        return await plan
    except GraphBubbleUp:
        raise
    except Exception as error:
        logger.exception("%s failed for %r", tool, skill_name)
        return tool_message(run, tool, Reply(tool_failed(tool, error, skill_name), is_error=True))


def _refuse(run: Run, outcome: outcomes.Refusal) -> ToolResult:
    """Answer a load of a skill that could not be prepared."""
    reply = report(outcome, "model", run, getattr(outcome, "entry", None))
    return _build_result({"messages": [tool_message(run, LOAD_TOOL, reply)]}, run)


def _build_result(update: dict[str, Any], run: Run) -> ToolResult:
    """Return a call's result with what extensions asked to change, and the problems that were found on the way."""
    whole = merged(update, run.collected, run.problems_update())
    # Where nothing changes in state, as in most refusals, the answer is a plain message.
    if whole.keys() == {"messages"}:
        [message] = whole["messages"]
        answer: ToolMessage = message
        return answer
    return Command(update=whole)
