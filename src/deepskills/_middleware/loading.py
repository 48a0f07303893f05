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

The tool `load_skill` (`tools.py`) answers in a `ToolMessage`, where the model reads refusals too. All others put a
message of their own into the conversation, and their refusals become problems, because there is no call to answer.
"""

import logging
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import MAX_BROUGHT, find_required, order_loads
from deepskills._files.inventory import SkillContents, read_contents, without_closed
from deepskills._io.drivers import side_by_side
from deepskills._io.plan import Attempt, CallFunction, Failed, in_worker, parent
from deepskills._loading import budget
from deepskills._loading.arguments import argument_names, fill_in
from deepskills._loading.budget import LoadedSkills, Prepared, count_tokens, record_of
from deepskills._middleware.extension import Answer, Refuse, SkillLoad
from deepskills._middleware.extension_calls import change_text, decide_by_extensions
from deepskills._middleware.reporting import report, report_unload
from deepskills._middleware.run import Run
from deepskills._middleware.state import (
    MARK,
    build_load_update,
    build_note_update,
    build_unload_update,
    make_load_mark,
    merge_updates,
    new_message_id,
)
from deepskills._middleware.traces import trace
from deepskills._middleware.visibility import find_view
from deepskills._prompt import messages as words
from deepskills._prompt.messages import ToolAnswer
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

    def budgets(self, run: Run) -> budget.Budgets:
        """Return the budgets that count for it."""
        return run.budgets if self.is_limited else budget.NO_LIMIT


@dataclass(frozen=True)
class LoadResult:
    """What became of a request: the one result of a load."""

    outcome: budget.LoadOutcome
    update: dict[str, Any] = field(default_factory=dict)
    """What changes in state, the message that carries the text or the answer included."""

    loaded: LoadedSkills | None = None
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

    def pick(self, prepared: Mapping[Key, Prepared]) -> tuple[Prepared, list[Prepared]]:
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
        return [(written, found.name if found is not None else None) for written, found in find_required(entry, find)]

    found = order_loads(request.entry.name, resolve)
    if found.missing:
        return Bundle(request, refusal=words.word_required_missing(found.missing))
    along = [name for name in found.order if name != request.entry.name and name not in loaded]
    if found.is_cut or len(along) > MAX_BROUGHT:
        return Bundle(request, refusal=words.word_required_too_many(MAX_BROUGHT))
    entries = [view.catalog.by_name[name] for name in along]
    return Bundle(request, tuple(replace(request, entry=entry, arguments="") for entry in entries))


async def load(requests: Sequence[LoadRequest], run: Run) -> dict[str, LoadResult]:
    """Load skills in messages of their own, one after the other, and return by name what became of each."""
    loaded = run.thread.loaded
    bundles = await _make_bundles(requests, run)
    refused: dict[str, budget.Refused] = {}
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
            outcome, loads = budget.decide_together(ready, required, loaded, request.budgets(run))
            done = await settle(bundle, ready, outcome, run, loads=loads)
        settled[request.entry.name] = done
        # Each request is decided with those before it granted, so that together they keep to the budget.
        loaded = done.loaded or loaded
    return settled


async def _make_bundles(requests: Sequence[LoadRequest], run: Run) -> list[Bundle]:
    """Return the bundles of requests; what one requires and another one asks for comes by its own, first."""
    if not run.settings.load_requires or not requests:
        return [Bundle(request) for request in requests]
    await find_view(run)
    by_name = {request.entry.name: request for request in requests}
    bundles = {name: make_bundle(request, run, run.thread.loaded.names) for name, request in by_name.items()}
    asked = [each.entry.name for bundle in bundles.values() for each in bundle.all if each.entry.name in by_name]
    return [
        replace(bundle, required=tuple(each for each in bundle.required if each.entry.name not in by_name))
        for bundle in (bundles[name] for name in dict.fromkeys(asked))
    ]


async def admit(bundle: Bundle, run: Run) -> budget.Refused | None:
    """Ask the extensions whether the files of a load may be read; the refusal of one is the outcome of all."""
    own = bundle.request.entry
    if bundle.refusal is not None:
        return budget.Refused(own, bundle.refusal)
    for request in bundle.all if run.settings.extensions else ():
        refused = await decide_by_extensions("before_read", run, request.entry)
        if isinstance(refused, Refuse):
            name, reason = request.entry.name, refused.reason
            is_own = request is bundle.request
            return budget.Refused(own, reason if is_own else words.word_required_refused(name, reason))
    return None


async def settle(
    bundle: Bundle,
    ready: Prepared,
    outcome: budget.LoadOutcome,
    run: Run,
    tool: str | None = None,
    *,
    loads: Sequence[budget.Loaded] = (),
) -> LoadResult:
    """Let the extensions judge a load that could happen, and return what it does to state and conversation.

    `loads` are the loads of what it requires. `tool` names the tool whose call is answered; without one each text goes
    into a message of its own.
    """
    request = bundle.request
    # A load that is already there, unreadable or refused is not worth a human's time. One without room is still asked
    # about, because an extension may answer it otherwise (a fork needs no room).
    if isinstance(outcome, budget.Loaded | budget.OverBudget):
        decision = await judge(request, ready, run)
        if isinstance(decision, Answer):
            return _apply_answer(request, ready, decision, run, tool)
        if isinstance(decision, Refuse):
            outcome = budget.Refused(ready.entry, decision.reason)
    along: list[tuple[budget.Loaded, ToolAnswer]] = []
    if isinstance(outcome, budget.Loaded | budget.AlreadyLoaded):
        refusal = await _check_requirements(request, loads, run)
        if refusal is not None:
            outcome, loads = budget.Refused(ready.entry, refusal), ()
        # The same news in the order of the loads: what is required is loaded first.
        along = [(done, report(done, request.trigger, run, record_of(done.prepared))) for done in loads]
    if isinstance(outcome, budget.Loaded):
        outcome = await _name_requirements(outcome, run)
    reply = report(outcome, request.trigger, run, record_of(ready) if ready.digest else ready.entry)
    done = [*along, *([(outcome, reply)] if isinstance(outcome, budget.Loaded) else [])]
    if done:
        loaded = done[-1][0].loaded
        return LoadResult(outcome, _place_texts(done, reply, request.trigger, run, tool), loaded)
    if tool is not None:
        return LoadResult(outcome, {"messages": [tool_message(run, tool, reply)]})
    if not isinstance(outcome, budget.AlreadyLoaded):
        _record_refusal(outcome, reply, request.entry, run)
    return LoadResult(outcome)


def _record_refusal(outcome: budget.LoadOutcome, reply: ToolAnswer, entry: SkillEntry, run: Run) -> None:
    """Record why a load that has no call to answer did not happen."""
    # What a model reads begins with "Error: "; a problem has its own form.
    reason = getattr(outcome, "reason", reply.text.removeprefix("Error: ").rstrip("."))
    code = "skill-refused"
    if isinstance(outcome, budget.Unreadable):
        code = "skill-unreadable"
        reason = words.word_required_refused(outcome.required, reason) if outcome.required else reason
    run.problems.append(problem(entry.path, code, reason=reason))
    run.collect(trace(entry.name, "refused", reply.reason, text=reason))


def _place_texts(
    done: Sequence[tuple[budget.Loaded, ToolAnswer]], reply: ToolAnswer, trigger: Trigger, run: Run, tool: str | None
) -> dict[str, Any]:
    """Return the update of loads: a call is answered with its skill's text, any other text has a message of its own.

    What a call's skill requires waits until all calls of the turn are answered, as providers want answers together.
    """
    updates: list[dict[str, Any]] = []
    for loaded, own in done:
        # Before any other middleware can touch a message: memory has each text as it was loaded.
        run.settings.cache.keep_text(own.text)
        waits = tool is not None and own is not reply
        if tool is None or waits:
            message: AnyMessage = build_pin(loaded.prepared.entry, own.text)
        else:
            message = tool_message(run, tool, own)
        # Ids are ours, so that records and messages agree before LangGraph has seen either.
        message.id = new_message_id()
        message.additional_kwargs[MARK] = make_load_mark(loaded.prepared.name, record_of(loaded.prepared))
        updates.append(build_load_update(loaded, message, run.thread, trigger, waits=waits))
    if tool is not None and done[-1][1] is not reply:
        # The skill itself was loaded before.
        updates.append({"messages": [tool_message(run, tool, reply)]})
    return merge_updates(*updates)


async def _check_requirements(request: LoadRequest, loads: Sequence[budget.Loaded], run: Run) -> str | None:
    """Return why a skill may not be loaded because of one that it requires; `None` if all may."""
    for done in loads:
        entry = done.prepared.entry
        if request.trigger == "model" and entry.is_user_only and entry.name not in run.known_view.always:
            # The file may have become the user's alone since it was listed.
            return words.word_required_refused(entry.name, "only the user can start it.")
        decision = await judge(replace(request, entry=entry, arguments=""), done.prepared, run)
        if isinstance(decision, Refuse):
            return words.word_required_refused(entry.name, decision.reason)
        if isinstance(decision, Answer):
            return words.word_required_refused(entry.name, "it is not loaded as text. Load it first, by itself.")
    return None


async def _name_requirements(outcome: budget.Loaded, run: Run) -> budget.Loaded:
    """Return a load that names what it requires and is not loaded."""
    entry = outcome.prepared.entry
    if "requires" not in entry.skill["metadata"]:
        return outcome
    view = await find_view(run)
    required = find_required(entry, view.find_visible)
    unmet = [found.name for _, found in required if found is not None and found.name not in outcome.loaded.names]
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
    outcome = budget.Answered(ready.entry, answer.text, answer.is_error)
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
    return LoadResult(outcome, merge_updates({**answer.update}, permits, {"messages": messages} if messages else {}))


def tool_message(run: Run, tool: str, reply: ToolAnswer) -> ToolMessage:
    """Return the answer to a call of one of our tools."""
    return ToolMessage(
        content=reply.text,
        name=tool,
        tool_call_id=run.runtime.tool_call_id or "",
        status="error" if reply.is_error else "success",
        # The reason of a refusal, which changes no state, for the hook that runs next (`observe_turn`).
        additional_kwargs={MARK: {"event": "refused", "reason": reply.reason}} if reply.reason is not None else {},
    )


def build_pin(entry: SkillEntry, text: str) -> HumanMessage:
    """Return a message that pins a skill, marked as deepagents' class marks it."""
    about = {"name": entry.name, "path": entry.path, "description": entry.description}
    return HumanMessage(text, additional_kwargs={"lc_source": "pinned_skill", "skill": about})


def take_away(run: Run, names: Sequence[str], notice: str | None = None) -> dict[str, Any]:
    """Return the update that unloads skills which this run may no longer use, and tell of it.

    The model reads it before the user's newest message, in requests only: a message in state behind the user's would
    hide that one from guards which look at the last message.
    """
    if not names:
        return {}
    thread = run.thread
    # The model read of a lost text when it was lost; only the limits of its skill end now.
    present = [name for name in names if name in thread.loaded.names]
    if not present:
        return build_unload_update(names)
    for name in present:
        logger.info("Unloaded skill %r: it is no longer available", name)
        report_unload(name, "gone", run)
    anchor = thread.user_message or (thread.messages[-1] if thread.messages else None)
    text = notice or words.word_gone_notice(present)
    note = build_note_update(thread, anchor.id, "before", text) if anchor is not None and anchor.id else {}
    return merge_updates(build_unload_update(names), note)


# Reading.


async def prepare(requests: Sequence[LoadRequest], run: Run) -> dict[Key, Prepared]:
    """Read the text and list the files of several skills: two rounds, however many they are."""
    if not requests:
        return {}
    entries = {request.entry.name: request.entry for request in requests}
    # Trust first: no path is read, not even listed, that does not lie under a current source.
    refusals = await run.scan.refusals(list(entries.values()))
    allowed = [entry for name, entry in entries.items() if name not in refusals]
    depth = run.settings.resource_depth
    read = await side_by_side(*(run.scan.read(entry, read_contents(entry, depth)) for entry in allowed))
    contents = {entry.name: found for entry, found in zip(allowed, read, strict=True)}
    result: dict[Key, Prepared] = {}
    for request in requests:
        entry, arguments = request.entry, request.arguments
        if entry.name in refusals:
            result[request.key] = Prepared(entry, arguments, failure=refusals[entry.name])
        elif request.key not in result:
            result[request.key] = await _prepare_one(request, contents[entry.name], run)
    return result


async def _prepare_one(request: LoadRequest, contents: SkillContents, run: Run) -> Prepared:
    entry, arguments = request.entry, request.arguments
    text = contents.text
    if contents.failure is not None:
        return Prepared(entry, arguments, failure=contents.failure)
    view = await find_view(run)
    # Files of a hidden skill that lies inside this one are not listed: its path alone would reveal it.
    inventory = without_closed(contents.inventory, parent(entry.path), view.find_closed_below(entry, loaded=()))
    shell = contents.shell_directory
    readings, content = run.settings.cache.readings, contents.file.content or b""
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
        lambda: words.skill_block(entry, changed, inventory, shell, run.settings.file_names()), len(changed) // 64
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
