"""Composes the messages of each model call: every loaded skill's text once, no unloaded skill's, notes in their places.

Theory of operation
-------------------

A load puts a skill's text into one message, its *carrier*, and the carrier's id into a private record. From then on
the conversation is not ours alone. Before the next request

* a summary may have removed the carrier: deepagents' from the request only, LangChain's from state;
* the filesystem middleware may have evicted the text: a stub that names a file stands in its place;
* context editing may have cleared it, or clear it further in, after this module has run;
* a guard may have changed it: redacted a name, cut a paragraph, emptied it;
* the skill may have been unloaded or loaded again, or be out of bounds for the user who resumed the run.

One rule tells these apart: **only a known loss is made good.** A carrier that is gone, or that bears the sign which
eviction and clearing leave, lost its text to housekeeping, and the text is put back. Any other change is
intended. It stands, however large, and it is what is put back if that text is lost later.

`compose` takes these steps, and numbers them:

1. Find the carriers by the ids in private state, never by marks or content, which callers can write.
2. Leave out what this run may not use, and take over what others changed in place.
3. Decide what is kept, replaced by a notice or put back, newest first within the budget (`_loading/placement.py`).
4. Recover the texts to put back: from the history in state, else from memory, else from the file. Their real cost is
   known only now, so step 3 is repeated until nothing is missing.
5. Let go of texts that lingered to keep the prefix stable, if the prefix changes anyway.
6. Apply the decisions to copies of the messages, and add the notes.

Two rules hold throughout. The history in state is never edited here: updates concern private records alone, and the one
edit of history (a text evicted in the turn of its load) is made in `before_model.py`, where guards can still see it.
And the bytes are the same from call to call: texts go back into their own messages, or right behind a leading summary,
and notes are tied to message ids, so that provider prompt caches hold.

If the model refuses the request for its length, it is tried once more without what was put back, and if it refuses
media of a skill, without those (`call_model`). Each call is made twice at most.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from deepskills._catalog.catalog import include_names
from deepskills._errors import SkillsError
from deepskills._io.backends import describe, refuses_writes, shows_other_files
from deepskills._io.drivers import await_if_needed
from deepskills._io.plan import Ask, Attempt, Failed, in_worker, unwrap_reply
from deepskills._loading.budget import LoadedSkills, Prepared, count_text_tokens
from deepskills._loading.placement import Carrier, Decisions, decide
from deepskills._middleware.chat_models import facts_of, fit_order, is_overflow, refusal_status
from deepskills._middleware.end import asks_at_end, record_answer
from deepskills._middleware.events import SkillLeftOut, SkillReattached, SkillUnloaded
from deepskills._middleware.extension import ModelCallReport, Refuse, SkillLoad
from deepskills._middleware.extension_calls import (
    SkillRun,
    call_extensions,
    change_request,
    change_text,
    describe_to_tracers,
    describe_unusable,
    fail,
)
from deepskills._middleware.loading import LoadRequest, judge, prepare, take_away
from deepskills._middleware.media import find_media_messages, fit_media, leave_out_media, may_refuse_media
from deepskills._middleware.reporting import describe_skill, emit, report_problems
from deepskills._middleware.run import Run, VisibleCatalog, find_disclosed_skills, is_started_by_user
from deepskills._middleware.state import (
    LEFT_OUT,
    LINGERING,
    UNDONE,
    Thread,
    build_loss_update,
    drop_lingering,
    fingerprint,
    merge_updates,
    remove_key,
)
from deepskills._middleware.tool_calls import (
    DISCLOSED,
    SkillsWithTools,
    ToolSource,
    bind_skill_tools,
    find_acceptance,
    find_needed_names,
    resolved_tools,
    split_by_disclosure,
    tool_name,
)
from deepskills._middleware.touched import find_hidden_in_section
from deepskills._middleware.traces import trace
from deepskills._middleware.turn import LOAD_TOOL, UNLOAD_TOOL
from deepskills._middleware.visibility import find_view
from deepskills._middleware.workarounds import workspace_of
from deepskills._prompt.messages import CHANGED_LEAD, word_lost_notice, word_notice
from deepskills._prompt.section import LIST_WITHHELD, Section, SectionInput, select_spoken_tools
from deepskills._skillmd.problems import problem
from deepskills._skillmd.text import one_line
from deepskills._types import LoadRecord, ResourceMetadata

logger = logging.getLogger("deepskills")


# The openings of deepagents' stubs. Its template goes on with a file's path and a preview, which differ from call to
# call.
_EVICTED_RESULT = "Tool result too large, the result of this tool call"
_EVICTED_MESSAGE = "Message content too large and was saved to the filesystem at:"
_CLEARED = {"cleared": True}


def is_lost(message: AnyMessage) -> bool:
    """Whether a message that carried a skill's text was evicted or cleared."""
    return is_evicted(message) or _is_cleared(message)


def is_evicted(message: AnyMessage) -> bool:
    """Whether the filesystem middleware put a stub in the place of a message's text."""
    text = str(message.text)
    # Only carriers are asked about, so this sentence means nothing in any other message.
    if isinstance(message, ToolMessage):
        return text.startswith(_EVICTED_RESULT)
    return isinstance(message, HumanMessage) and text.startswith(_EVICTED_MESSAGE)


def _is_cleared(message: AnyMessage) -> bool:
    editing: Any = message.response_metadata.get("context_editing")
    return isinstance(editing, dict) and bool(editing.get("cleared"))


def shield(message: AnyMessage) -> AnyMessage:
    """Return a message that context editing further in will skip, because it looks cleared already."""
    # Context editing touches tool results alone.
    if not isinstance(message, ToolMessage):
        return message
    metadata = {**message.response_metadata, "context_editing": _CLEARED}
    return message.model_copy(update={"response_metadata": metadata})


# Composing the messages. The numbers are the steps in the theory above.


@dataclass(frozen=True)
class Composition:
    """The messages to send, and what follows from them."""

    messages: list[AnyMessage]
    """With keys for messages that their host gave no id: extensions know messages by them. `finalize` removes them."""

    bare: list[AnyMessage] | None = None
    """The messages without what was put back, for a model that has no room for it; `None` if nothing was."""

    update: dict[str, Any] = field(default_factory=dict)
    """What changes in state."""

    put_back: list[str] = field(default_factory=list)
    """The skills whose text was put back."""

    reattached: dict[str, LoadRecord] = field(default_factory=dict)
    """Those of them whose loss was not reported yet."""

    left_out: dict[str, LoadRecord] = field(default_factory=dict)
    """The skills whose text is lost and for which there is no room, where that was not reported yet."""

    size: int = 0
    """What the messages cost together with what was put back, where a refusal for length would need it."""

    lost: dict[str, str] = field(default_factory=dict)
    """The skills whose text could not be recovered, each with the reason."""

    def without_put_back(self, loaded: LoadedSkills, reported: Mapping[str, str]) -> "Composition":
        """Return what goes out to a model that had no room for what was put back."""
        left_out = {"skills_context": {"reported": dict.fromkeys(self.put_back, LEFT_OUT)}}
        shown = [name for name in self.shown if name not in self.put_back]
        update = merge_updates(self.update, left_out)
        newly = {name: loaded.records[name] for name in self.put_back if reported.get(name) != LEFT_OUT}
        return Composition(
            self.bare or self.messages, update=update, left_out={**self.left_out, **newly}, lost=self.lost, shown=shown
        )

    shown: list[str] = field(default_factory=list)
    """The loaded skills whose text is in the messages: the section marks these as loaded, and no others."""


async def compose(messages: Sequence[AnyMessage], run: Run, *, prefix_changes: bool = False) -> Composition:
    """Return the request's messages; `prefix_changes` says that texts which linger may leave now."""
    thread = run.thread
    # 1. Carriers, by id.
    messages = thread.add_keys(messages)
    carriers = find_carriers(messages, thread)
    if not carriers and not thread.loaded.names:
        return Composition(_note(list(messages), thread.section("notes")))
    budget = run.budgets.tokens
    # What the model refused for its length is tried again only in a request that is smaller, and by enough that another
    # word more or less in the user's message makes no difference.
    before = _measure(messages) if run.model.refused is not None else 0
    room = None if run.model.refused is None else run.model.refused * 19 // 20 - before
    # 2. What this run may not use leaves here too: a resumed run has no start that would have taken it away.
    leaving, withheld = run.in_use.leaving, run.in_use.withheld
    loaded = _take_over_edits(messages, carriers, thread.loaded.without([*leaving, *withheld]), run)
    texts: dict[str, str] = {}
    lost: dict[str, str] = {}
    # 3. and 4. Decide and recover, in turns.
    decisions = decide(carriers, loaded, budget, room)
    # A text that is recovered may cost more or less than the one that was lost, and one that cannot be recovered costs
    # nothing, so what fits is decided again until nothing more is missing. Each round recovers at least one text or
    # gives one up, so it ends.
    while missing := [name for name in decisions.put_back if name not in texts]:
        recalled = await _recall(missing, loaded, run)
        for name, found in recalled.items():
            if isinstance(found, str):
                lost[name] = found
                loaded = loaded.without([name])
            else:
                texts[name], record = found
                loaded = loaded.with_load(name, record)
        decisions = decide(carriers, loaded, budget, room)
    put_back = decisions.put_back
    kept = {carrier.skill for carrier in carriers if carrier.position in decisions.kept}
    shown = [name for name in loaded.names if name in kept or name in put_back]
    # From here on guards have had their look at these texts.
    loaded = _mark_seen(loaded, shown)
    # A loss is one event and one line of log, not one per call: `reported` keeps the digest that was reported.
    known = thread.section("reported")
    newly = [name for name in put_back if known.get(name) != loaded.records[name]["digest"]]
    waiting = [name for name in loaded.names if name not in shown and name not in lost]
    left_out = {name: loaded.records[name] for name in waiting if known.get(name) != LEFT_OUT}
    reported: dict[str, str | None] = {name: loaded.records[name]["digest"] for name in newly}
    reported |= dict.fromkeys(left_out, LEFT_OUT)
    # A text that stands in the request again may be lost a second time, which is another event.
    reported |= {name: None for name, mark in known.items() if mark == LEFT_OUT and name not in {*waiting, *newly}}
    update = merge_updates(
        {"skills_context": {"reported": reported}} if reported else {}, _build_update(thread, loaded, lost)
    )
    # Skills that are gone for this run leave in the same update, so that no later hook finds their records.
    update = merge_updates(update, take_away(run, list(leaving)))
    if newly or lost or prefix_changes or loaded.is_crowded(run.budgets):
        # 5. The prefix changes in any case, or the room is needed: texts of unloaded skills that lingered for the sake
        # of prompt caches have no reason to stay.
        gone = drop_lingering(thread)
        if gone:
            update = merge_updates(update, {"skills_context": {"texts": gone}})
            carriers = [replace(carrier, is_lingering=False) for carrier in carriers]
            decisions = decide(carriers, loaded, budget, room)
    # Without its record the skill looks unloaded to `decide`, which is not so: it stays loaded and its limits hold.
    for position, (name, _reason) in decisions.notices.items():
        if name in withheld:
            decisions.notices[position] = (name, "withheld")
    # 6. Both forms are made now: a second try after an overflow must not read or decide again.
    # What this very update says of skills that are gone stands in this request already, as it does at a run's start.
    notes = {**thread.section("notes"), **update.get("skills_context", {}).get("notes", {})}
    bare = _note(_apply_update(messages, decisions, {}, lost), notes)
    whole = _note(_apply_update(messages, decisions, texts, lost), notes) if put_back else bare
    return Composition(
        messages=whole,
        bare=bare if put_back else None,
        update=update,
        put_back=put_back,
        reattached={name: loaded.records[name] for name in newly},
        left_out=left_out,
        size=(before or _measure(messages)) + sum(map(loaded.size, put_back)) if put_back else 0,
        lost=lost,
        shown=shown,
    )


def finalize(messages: list[AnyMessage], model: object, run: Run) -> list[AnyMessage]:
    """Return messages as they go out: without the keys that only this library knows, and as the model takes them."""
    return fit_order(fit_media([remove_key(message) for message in messages], model), run.model.provider)


def find_carriers(messages: Sequence[AnyMessage], thread: Thread) -> list[Carrier]:
    """Return the messages that brought skills into the conversation, as private state knows them."""
    # Texts of unloaded skills are carriers too: a notice has to take their place. Records come last, because they
    # are the authority.
    known = {message: text["skill"] for message, text in thread.section("texts").items()}
    for name in thread.loaded.names:
        message = thread.loaded.records[name].get("message")
        if message:
            known[message] = name
    if not known:
        return []
    return [
        Carrier(
            position,
            known[message.id],
            message.id,
            is_lost=is_lost(message),
            is_lingering=(state := thread.text_state(message.id)) == LINGERING,
            is_undone=state == UNDONE,
        )
        for position, message in enumerate(messages)
        if message.id is not None and message.id in known
    ]


def _take_over_edits(
    messages: Sequence[AnyMessage], carriers: Sequence[Carrier], loaded: LoadedSkills, run: Run
) -> LoadedSkills:
    """Take over texts that others changed in place: what was hidden stays hidden when the text is put back later."""
    for carrier in carriers:
        record = loaded.records.get(carrier.skill)
        # A lost text says nothing, and an older carrier of a reloaded skill is not the one that the record describes.
        if carrier.is_lost or record is None or record.get("message") != carrier.message:
            continue
        text, cache = str(messages[carrier.position].text), run.settings.cache
        # A text that this process has seen survives its file, whichever process loaded it.
        # The first comparison is the cheap one: nothing is hashed while the text is the one in memory.
        if cache.text(record.get("text", "")) == text or cache.keep_text(text) == record.get("text"):
            continue
        loaded = loaded.with_load(carrier.skill, _leave_as(text, record, run))
    return loaded


async def _recall(names: Sequence[str], loaded: LoadedSkills, run: Run) -> dict[str, tuple[str, LoadRecord] | str]:
    """Return the text of each skill as it was left: from the history in state, from memory, else from its file.

    State comes first, because a guard may have changed the text there in this very step. Where the text cannot be
    recovered, the reason stands in its place.
    """
    found: dict[str, tuple[str, LoadRecord] | str] = {}
    unread = []
    history = {message.id: message for message in run.thread.messages if message.id is not None}
    for name in names:
        record = loaded.records[name]
        message = history.get(record.get("message", ""))
        known = _find_in_history(record, message)
        # Memory has the text as it was loaded, which may be what a guard removed from state in that very step.
        if known is None and _is_unseen(record, message, run):
            found[name] = "it was taken away before any request held it, so that it is unknown what guards did to it"
        elif known is None and (known := run.settings.cache.text(record.get("text", ""))) is None:
            # The file has the author's words, not what a guard left of them: better no text than that one.
            if record.get("edited") or _is_edited(record, message):
                found[name] = "others had changed the text, and only the file's own could be read"
            else:
                unread.append(name)
        # Extensions judge what is put back like a first load (`change_text`): a rule may have changed since.
        if known is not None:
            found[name] = await _change(name, known, _leave_as(known, record, run), run)
    found |= await read_again(unread, loaded, run)
    return found


async def read_again(names: Sequence[str], loaded: LoadedSkills, run: Run) -> dict[str, tuple[str, LoadRecord] | str]:
    """Return the text of each skill from its file, with the arguments of its load, or why it cannot be read.

    The file that was loaded was judged then. One that has changed since is judged like any other load: it may be for
    users only by now. It gives its present text, which says so, and the record that goes with it.
    """
    if not names:
        return {}
    view = await find_view(run)
    records = loaded.records
    entries = {name: entry for name in names if (entry := view.catalog.by_name.get(name)) is not None}
    requests = [LoadRequest(entry, records[name].get("arguments", ""), "system") for name, entry in entries.items()]
    prepared = await prepare(requests, run)
    # What no request was made for is missing from the catalog.
    found: dict[str, tuple[str, LoadRecord] | str] = {name: _explain_absence(records[name], view) for name in names}
    for request in requests:
        ready, name = prepared[request.key], request.entry.name
        if ready.failure is not None:
            found[name] = ready.failure
            continue
        text = ready.block
        if ready.digest != records[name]["digest"]:
            if ready.entry.origin is not None:
                # What was loaded was approved, if anything was; what the server sends now was not.
                found[name] = "its server has changed it since it was loaded"
                continue
            refusal = await _word_changed_refusal(request, ready, records[name], view, run)
            if refusal is not None:
                found[name] = refusal
                continue
            text = CHANGED_LEAD + text
        key = run.settings.cache.keep_text(text)
        found[name] = text, {**records[name], "tokens": ready.tokens, "text": key}
    return found


def _explain_absence(record: LoadRecord, view: VisibleCatalog) -> str:
    """Return why a loaded skill is missing from the catalog."""
    places = (record["path"], record.get("source", ""))
    reasons = [found["message"] for found in view.problems if found["path"] in places and found["severity"] == "error"]
    return reasons[0] if reasons else "it is no longer in the catalog"


async def _word_changed_refusal(
    request: LoadRequest, ready: Prepared, record: LoadRecord, view: VisibleCatalog, run: Run
) -> str | None:
    """Return why the text of a file that changed since its load must not come in; `None` if it may."""
    if (ready.entry.is_user_only or not view.is_shown(request.entry)) and not is_started_by_user(record):
        return "its file has changed, and only the user may start it now"
    decision = await judge(request, ready, run)
    if isinstance(decision, Refuse):
        return f"its file has changed, and the new text was refused: {decision.reason}"
    return None if decision is None else "its file has changed, and it is no longer loaded as text"


async def _change(name: str, text: str, record: LoadRecord, run: Run) -> tuple[str, LoadRecord] | str:
    """Return a text to put back, after extensions have seen it again."""
    if run.settings.extensions:
        catalog = (await find_view(run)).catalog
        entry = catalog.by_name.get(name)
        if entry is not None:
            load = SkillLoad(entry, record.get("arguments", ""), "system", text, record["tokens"], (), run.runtime)
            changed = await change_text(load, run)
            if isinstance(changed, Failed):
                return changed.reason
            text = changed
    # Kept for the next call: one loss is at most one read in a process.
    run.settings.cache.keep_text(text)
    return text, record


def _find_in_history(record: LoadRecord, message: AnyMessage | None) -> str | None:
    """Return the text of a message in state; `None` if it was lost, or if others changed it for requests only."""
    if message is None or is_lost(message):
        return None
    text = str(message.text)
    # `edited` says that the text last seen in a request differed from what was loaded. If state still has another one,
    # the change was made for requests alone and cannot be found there.
    return None if record.get("edited") and fingerprint(text) != record.get("text") else text


def _is_unseen(record: LoadRecord, message: AnyMessage | None, run: Run) -> bool:
    """Whether a text left state in the step of its load, after guards may have changed it there."""
    if message is not None:
        # A text that was restored in state has passed every guard since (`before_model.py`).
        was_restored = run.thread.section("texts").get(message.id or "", {}).get("restored")
        return is_evicted(message) and "step" in record and not was_restored
    return "step" in record


def _leave_as(text: str, record: LoadRecord, run: Run) -> LoadRecord:
    """Return the record of a load whose text is as others left it."""
    if fingerprint(text) == record.get("text"):
        return record
    return {**record, "text": run.settings.cache.keep_text(text), "edited": True}


def _is_edited(record: LoadRecord, message: AnyMessage | None) -> bool:
    return message is not None and not is_lost(message) and fingerprint(str(message.text)) != record.get("text")


def _mark_seen(loaded: LoadedSkills, names: Iterable[str]) -> LoadedSkills:
    """Return what is loaded after these loads were in a request: guards have seen them by now."""
    for name in names:
        record = loaded.records[name]
        # While a record has its `step`, no request has held the text: see `_is_unseen`.
        if "step" in record:
            kept: Any = {key: value for key, value in record.items() if key != "step"}
            loaded = loaded.with_load(name, kept)
    return loaded


def _apply_update(
    messages: Sequence[AnyMessage], decisions: Decisions, texts: Mapping[str, str], lost: Iterable[str]
) -> list[AnyMessage]:
    """Return the messages with notices and texts in place; a skill without a text gets a notice."""
    result = list(messages)
    for position, (name, reason) in decisions.notices.items():
        result[position] = _empty(result[position], word_notice(name, reason))
    for position, name in decisions.restored.items():
        # The same decisions serve the form without put-backs, which has no texts.
        text = texts.get(name) or word_notice(name, "no_room")
        result[position] = result[position].model_copy(update={"content": text})
    # Kept ones as well: context editing further in would clear them after we have counted on them.
    for position in (*decisions.restored, *decisions.kept):
        result[position] = shield(result[position])
    front = [_make_message(texts.get(name) or word_notice(name, "no_room")) for name in decisions.inserted]
    front += [_make_message(word_notice(name, "no_room")) for name in decisions.omitted]
    front += [_make_message(word_lost_notice(name)) for name in lost]
    if not front:
        return result
    # Behind system messages, which providers want first, and behind a summary, which tells what came before.
    place = 0
    while place < len(result) and isinstance(result[place], SystemMessage):
        place += 1
    if place < len(result) and is_summary(result[place]):
        place += 1
    return [*result[:place], *front, *result[place:]]


def _empty(message: AnyMessage, notice: str) -> AnyMessage:
    """Return a message whose text gave way to a notice; it no longer counts as a pin."""
    # A notice that still looked like a pin would be taken for one by deepagents.
    extra = {key: value for key, value in message.additional_kwargs.items() if key not in {"lc_source", "skill"}}
    return message.model_copy(update={"content": notice, "additional_kwargs": extra})


def _make_message(text: str) -> HumanMessage:
    return HumanMessage(text, additional_kwargs={"lc_source": "deepskills"})


def is_summary(message: AnyMessage) -> bool:
    """Whether a message sums up what was removed before it."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def _note(messages: list[AnyMessage], notes: Mapping[str, Any]) -> list[AnyMessage]:
    """Return the messages with the notes of their thread in their places."""
    if not notes:
        return messages
    result: list[AnyMessage] = []
    for message in messages:
        note = notes.get(message.id or "")
        if note is None:
            result.append(message)
            continue
        # Before the user's message and never behind it: guards look at the last message.
        result += [_make_message(text) for text in note.get("before", ())]
        ends = note.get("end", ())
        result.append(_with_end(message, "\n\n".join(ends)) if ends else message)
    return result


def _with_end(message: AnyMessage, note: str) -> AnyMessage:
    """Return a message with a note at its end, for every kind of content."""
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{note}"})
    # Images and other blocks stay untouched.
    return message.model_copy(update={"content": [*content, {"type": "text", "text": note}]})


def _measure(messages: Sequence[AnyMessage]) -> int:
    """Return about how many tokens messages cost: all that changes from request to request."""
    calls = [call["args"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return sum(count_text_tokens(str(message.text)) for message in messages) + count_text_tokens(str(calls))


def _build_update(thread: Thread, loaded: LoadedSkills, lost: Iterable[str]) -> dict[str, Any]:
    """Return the update for records that changed, and for texts that are lost for good."""
    before = thread.loaded.records
    changed = {name: loaded.records[name] for name in loaded.names if loaded.records.get(name) != before.get(name)}
    # A text that cannot be recovered means that the skill is not loaded: a record without a text would say `[Loaded]`
    # of nothing.
    update: dict[str, Any] = build_loss_update(lost, thread.loaded) if lost else {}
    return merge_updates(update, {"skills_context": {"records": changed}}) if changed else update


# One model call with skills: the request that goes out, a second try, and what comes back into state.


_SUMMARIZED = "_summarization_event"
"""State key of deepagents' summarization: what it has summed up, in requests alone."""

section_in_use: ContextVar[str | None] = ContextVar("deepskills_section", default=None)
"""The skills section of the model call that is being made, rendered before deepagents' class asks for it."""


async def compose_with_section(
    messages: Sequence[AnyMessage], run: Run, template: Section | None
) -> tuple[Composition, str]:
    """Return the messages of a request, and the section that goes with them."""
    await find_view(run)
    prefix: dict[str, str] = {}
    changes = False
    # Comparing prefixes costs a rendering, so only those pay who let texts linger for the sake of caches.
    if run.lets_linger:
        prefix = _describe_prefix(messages, (await _render_off_loop(template, run, run.thread.loaded.names)))
        before = run.thread.section("prefix")
        changes = bool(before) and before != prefix
    composed = await compose(messages, run, prefix_changes=changes)
    if prefix and run.thread.section("prefix") != prefix:
        composed.update.update(merge_updates(composed.update, {"skills_context": {"prefix": prefix}}))
    # Rendered after composing: the section must say `[Loaded]` of those texts alone that are in the request.
    return composed, await _render_off_loop(template, run, composed.shown)


async def prepare_messages(
    run: Run, template: Section | None, model: object
) -> tuple[list[AnyMessage], dict[str, Any]]:
    """Return what a graph of one's own sends to a model, and the update of state that goes with it."""
    run.model = facts_of(model, run.thread)
    composed, section = await compose_with_section(run.state["messages"], run, template)
    report_composition(composed, run)
    facts = run.model.update_from(run.thread.model)
    update = merge_updates(composed.update, run.collected, facts, report_problems(run))
    messages = finalize(composed.messages, model, run)
    if not section:
        return messages, update
    first = messages[0] if messages else None
    if isinstance(first, SystemMessage):
        return [append_section(first, section), *messages[1:]], update
    return [SystemMessage(section), *messages], update


def append_section(message: SystemMessage | None, section: str) -> SystemMessage:
    """Return a system message with the section at its end."""
    # Content blocks, not text: a host's cache marks on its blocks would be lost in a string.
    blocks: list[Any] = list(message.content_blocks) if message is not None else []
    text = f"\n\n{section}" if blocks else section
    return SystemMessage(content_blocks=[*blocks, {"type": "text", "text": text}])


async def _render_off_loop(section: Section | None, run: Run, loaded: Sequence[str]) -> str:
    """Return the skills section; a large one is rendered off the event loop."""
    return await in_worker(lambda: render_section(section, run, loaded), len(run.known_view.catalog.entries))


def _describe_prefix(messages: Sequence[AnyMessage], section: str) -> dict[str, str]:
    """Return what a request begins with: the section, and a summary if there is one.

    deepagents' summaries have no id, and two may have the same text: the message that follows tells them apart.
    """
    begins = list(itertools.islice((item for item in messages if not isinstance(item, SystemMessage)), 2))
    summary = ""
    if begins and is_summary(begins[0]):
        summary = " ".join(message.id or fingerprint(str(message.text)) for message in begins)
    return {"section": fingerprint(section), "summary": summary}


def render_section(section: Section | None, run: Run, loaded: Sequence[str]) -> str:
    """Return the skills section as a run shows it, `loaded` being marked as such; empty if it is left out."""
    return section.render(build_section_input(run, loaded)) if section is not None else ""


def build_section_input(run: Run, loaded: Sequence[str]) -> SectionInput:
    """Return what the section of a run depends on."""
    view, settings = run.known_view, run.settings
    resources: Mapping[str, list[ResourceMetadata]] = run.thread.resources
    marked = loaded if run.shows_loaded else ()
    errors = run.state.get("skills_load_errors")
    # Fixed sources are shown as configured, even before or without a discovery that worked.
    sources = settings.fixed_sources if settings.fixed_sources is not None else view.catalog.sources
    shown = view.sources_to_show(sources)
    # A function may give each run another backend; what it would give is not asked for a sentence.
    own = settings.fixed_backend
    space = run.workspace if run.workspace is not None else own
    paths = [source.path for source in shown]
    is_elsewhere = own is not None and space is not own
    return SectionInput(
        catalog=view.catalog,
        sources=shown,
        errors=[error for error in errors if isinstance(error, str)] if isinstance(errors, list) else [],
        loaded={name: resources.get(name, []) for name in marked},
        hidden=find_hidden_in_section(run),
        replaced_list=_replace_list(run),
        tools=run.agent_tools,
        out_of_reach=frozenset(path for path in paths if is_elsewhere and shows_other_files(own, space, path)),
        read_only=frozenset(path for path in paths if space is not None and refuses_writes(space, path)),
    )


def _replace_list(run: Run) -> str | None:
    """Return what an extension shows in place of the list of skills."""
    for extension in run.settings.extensions:
        try:
            text: str | None = await_if_needed(extension.catalog_list(run.known_view.visible))
            reason = None if text is None or isinstance(text, str) else describe_unusable(text)
        except Exception as error:  # noqa: BLE001 - an extension may raise anything
            reason = describe(error)
        if reason is not None:
            fail(SkillRun(run, extension), "catalog_list", reason)
            # An extension that protects may replace the list to hide it, so a failure must not show what it would have
            # hidden.
            text = LIST_WITHHELD if extension.protective else None
        if text is not None:
            return str(text)
    return None


ModelResult: TypeAlias = ModelResponse[Any] | ExtendedModelResponse[Any]
"""What a model call gives."""


async def call_model(
    request: ModelRequest[Any],
    run: Run,
    template: Section | None,
    source: ToolSource,
    hook: Callable[..., Any],
    handler: Callable[..., Any],
) -> ExtendedModelResponse[Any]:
    """Make one model call with skills: the section, the text of each loaded one, and the tools of those in use.

    `hook` is that of deepagents' class, which adds section and tools, and calls what it is given in its turn. If the
    call fails, it is made once more without what the model had no room for or does not take.
    """
    # deepagents has summarized, and the request does not begin with its summary: our hook runs before its, so what we
    # put back would be summarized away again.
    if isinstance(run.state.get(_SUMMARIZED), dict) and not any(map(is_summary, request.messages[:2])):
        run.problems.append(problem("middleware", "middleware-order"))
    run.model = facts_of(request.model, run.thread)
    run.agent_tools = select_spoken_tools(getattr(tool, "name", None) for tool in request.tools)
    run.workspace = workspace_of(request.tools)
    composed, section = await compose_with_section(request.messages, run, template)
    # A skill whose text was lost just now no longer brings its tools.
    granting = [entry for entry in run.in_use.granting if entry.name not in composed.lost]
    use = split_by_disclosure(composed.messages, granting, find_disclosed_skills(run))
    found = await source.resolve(find_needed_names(use, request.tools), request.runtime)
    call = _ModelCall(
        request, run, template, composed, section, use, {name: each.tools for name, each in found.items()}
    )

    def send(changed: ModelRequest[Any]) -> Any:  # noqa: ANN401 - the response, or what gives it
        # Extensions come last, behind deepagents' hook, so that they judge the tools which really go out.
        return run.perform_inside(call.send(changed, handler))

    with call.in_context():
        response = await Attempt(Ask(lambda: hook(call.build_request(), send)))
        again = call.second_request(response.error) if isinstance(response, Failed) else None
        if again is not None:
            # Once: if even that is refused, the call fails as it would without us.
            response = await Attempt(Ask(lambda: hook(again, send)))
    return call.finish(unwrap_reply(response))


@dataclass
class _ModelCall:
    """One model call."""

    request: ModelRequest[Any]
    run: Run
    template: Section | None
    composed: Composition
    section: str
    use: SkillsWithTools
    resolved: Mapping[str, Sequence[BaseTool]]
    replaced: list[ToolMessage] = field(default_factory=list)
    """Messages whose media the model refused."""

    went_out: list[AnyMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        request, run = self.request, self.run
        tools, self.record = bind_skill_tools(request.tools, self.use, self.resolved, find_acceptance(request.model))
        thread, unused = run.thread, set[str | None]()
        if not run.known_view.visible:
            # Skills exist, and none for the model: offering the tool would only reveal that something is hidden.
            if run.known_view.catalog.entries:
                unused.add(LOAD_TOOL)
            # Nothing to load, and nothing to unload: not even tools of a skill that was read as a file.
            if not thread.loaded.names and not thread.section("disclosed"):
                unused |= {LOAD_TOOL, UNLOAD_TOOL}
        # The one call of a skill that only the user could start.
        if thread.section("permits"):
            unused.discard(LOAD_TOOL)
        self.tools = [item for item in tools if tool_name(item) not in unused]

    @contextmanager
    def in_context(self) -> Iterator[None]:
        """Answer deepagents' questions for tools and for the section from what was found for this call."""
        tools, section = resolved_tools.set(self.resolved), section_in_use.set(self.section)
        try:
            yield
        finally:
            resolved_tools.reset(tools)
            section_in_use.reset(section)

    def build_request(self) -> ModelRequest[Any]:
        """Return the request with every loaded skill's text and tools."""
        # deepagents' hook reads this key to find skill tools. It gets only skills that may use theirs, whatever a
        # caller wrote there.
        state: Any = {**self.request.state, "skills_metadata": self.use.list_for_deepagents()}
        return self.request.override(messages=self.composed.messages, tools=self.tools, state=state)

    def second_request(self, error: BaseException | None) -> ModelRequest[Any] | None:
        """Return the request to make after one that failed, without what the model had no room for or does not take."""
        run = self.run
        if not isinstance(error, Exception):
            return None
        if self.composed.bare is not None and is_overflow(error):
            sizes = [size for size in (run.model.refused, self.composed.size) if size is not None]
            run.model = replace(run.model, refused=min(sizes))
            # From now on the call is one without the texts that were put back.
            self.composed = self.composed.without_put_back(run.thread.loaded, run.thread.section("reported"))
            self.section = render_section(self.template, run, self.composed.shown)
            section_in_use.set(self.section)
            return self.build_request()
        if find_media_messages(self.went_out) and may_refuse_media(error):
            messages, changed = leave_out_media(self.composed.messages)
            # State keeps what no provider has refused, and never has what others changed for the request alone.
            if refusal_status(error) is not None:
                in_state = {message.id: message for message in leave_out_media(run.thread.messages)[1]}
                self.replaced = [in_state[message.id] for message in changed if message.id in in_state]
            if changed:
                return self.build_request().override(messages=messages)
        return None

    async def send(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> ModelResult:
        """Call the handler with the request as extensions change it, and show them how that ended.

        Raises:
            SkillsError: If an extension that protects failed.
        """
        run = self.run
        # The state that was made up for deepagents' hook stays inside: extensions and inner hooks see the real one.
        request = request.override(state=self.request.state)
        # Tools that a read disclosed are not of a skill in use: a policy judges them like any other.
        included = {name for entry in run.in_use.granting for name in include_names(entry)}
        run.tool_origins = {tool: name for tool, name in self.record.items() if name in included}
        run.skill_tools = frozenset(run.tool_origins)
        changed = await change_request(request, run)
        if isinstance(changed, Failed):
            raise SkillsError(changed.reason)
        if changed.model is not request.model:
            changed = self._for_model(changed)
        self.went_out = finalize(changed.messages, changed.model, run)
        outgoing = changed.override(messages=self.went_out)
        with describe_to_tracers(run):
            # An interrupt passes by: it is not an end, and the same call is made again when the run resumes.
            response: Any = await Attempt(Ask(lambda: handler(outgoing)))
        error: Any = response.error if isinstance(response, Failed) else None
        inner = None if isinstance(response, Failed) else _bare_response(response)
        shown, put_back = frozenset(self.composed.shown), frozenset(self.composed.reattached)
        await call_extensions("after_model", run, ModelCallReport(outgoing, inner, error, shown, put_back))
        result: ModelResult = unwrap_reply(response)
        return result

    def _for_model(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return a request whose section is that for the model which an extension chose."""
        run, section = self.run, self.section
        run.model = facts_of(request.model, run.thread)
        self.section = render_section(self.template, run, self.composed.shown)
        message = request.system_message
        if message is None or self.section == section:
            return request
        blocks: list[Any] = [
            {**block, "text": block["text"].removesuffix(section) + self.section}
            if block["type"] == "text" and block["text"].endswith(section)
            else block
            for block in message.content_blocks
        ]
        return request.override(system_message=SystemMessage(content_blocks=blocks))

    def finish(self, response: ModelResult) -> ExtendedModelResponse[Any]:
        """Return the response with what this call changes in state, and report what became of lost texts."""
        run, composed, inner = self.run, self.composed, _bare_response(response)
        report_composition(composed, run)
        command = response.command if isinstance(response, ExtendedModelResponse) else None
        before = command.update if command is not None and isinstance(command.update, dict) else {}
        # Sorted: the same tools give the same checkpoint, in whichever order they were found.
        record = dict(sorted({**before.get(DISCLOSED, {}), **self.record}.items()))
        update = merge_updates(
            before,
            composed.update,
            run.model.update_from(run.thread.model),
            {"messages": self.replaced} if self.replaced else {},
            run.collected,
            report_problems(run),
            record_answer(inner) if asks_at_end(run.settings.extensions) else {},
        )
        return ExtendedModelResponse(model_response=inner, command=Command(update={**update, DISCLOSED: record}))


def _bare_response(response: ModelResult) -> ModelResponse[Any]:
    return response.model_response if isinstance(response, ExtendedModelResponse) else response


def report_composition(composed: Composition, run: Run) -> None:
    """Log and stream which texts were put back, and which could not be recovered."""
    for name, record in composed.reattached.items():
        logger.info("Put the text of skill %r back into the request", name)
        emit(SkillReattached(**describe_skill(name, "system", record), tokens=record["tokens"]), run)
    for name, record in composed.left_out.items():
        logger.warning("Left the text of skill %r out of the request: there is no room for it", name)
        emit(SkillLeftOut(**describe_skill(name, "system", record), tokens=record["tokens"]), run)
    for name, reason in composed.lost.items():
        logger.error("Unloaded skill %r: its text was lost and its file could not be read: %s", name, one_line(reason))
        before = run.thread.loaded.records.get(name)
        run.collect(trace(name, "unloaded", "lost", by="system", text=reason))
        emit(SkillUnloaded(**describe_skill(name, "system", before), reason=reason), run)
