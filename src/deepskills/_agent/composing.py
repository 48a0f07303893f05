"""Composes the messages of a request: every loaded skill's text once, no unloaded skill's, notes in their places.

How a lost text is put back: `losses` tells what was lost, `placement` decides where it goes and what fits, `_recalled`
recovers it, `step` restores a text that was evicted before guards saw it. The history in state stays as it is here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from deepskills._agent.extending import change_text
from deepskills._agent.extension import SkillLoad
from deepskills._agent.losses import is_evicted, is_lost, shielded
from deepskills._agent.preparing import prepare
from deepskills._agent.run import Run
from deepskills._agent.thread import LEFT_OUT, LINGERING, UNDONE, Thread
from deepskills._agent.updates import fingerprint, merged, unload_update, without_lingering
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Failed, Plan
from deepskills._loading.budgets import Standing
from deepskills._loading.placement import Carrier, Decisions, decide
from deepskills._prompt.notices import CHANGED_LEAD, context_notice, lost_notice
from deepskills._types import LoadRecord


@dataclass(frozen=True)
class Composition:
    """The messages to send, and what follows from them."""

    messages: list[AnyMessage]
    bare: list[AnyMessage] | None = None
    """The messages without what was put back, for a model that has no room for it; `None` if nothing was."""

    update: dict[str, Any] = field(default_factory=dict)
    """What changes in state."""

    put_back: list[str] = field(default_factory=list)
    """The skills whose text was put back."""

    reattached: dict[str, LoadRecord] = field(default_factory=dict)
    """Those of them whose loss was not told yet."""

    lost: dict[str, str] = field(default_factory=dict)
    """The skills whose text could not be recovered, each with the reason."""

    shown: frozenset[str] = frozenset()
    """The skills whose text stands in the messages."""

    def without_put_back(self) -> "Composition":
        """Return what goes out to a model that had no room for what was put back."""
        left_out = {"skills_context": {"told": dict.fromkeys(self.put_back, LEFT_OUT)}}
        shown = self.shown.difference(self.put_back)
        update = merged(self.update, left_out)
        return Composition(self.bare or self.messages, update=update, lost=self.lost, shown=shown)

    def seen_in(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `state` without the skills that were lost."""
        if not self.lost:
            return state
        loaded = [name for name in state.get("skills_loaded") or () if name not in self.lost]
        return {**state, "skills_loaded": loaded}


def compose(messages: Sequence[AnyMessage], run: Run, *, prefix_changes: bool = False) -> Plan[Composition]:
    """Return the request's messages; `prefix_changes` says that texts which linger may leave now."""
    thread = run.thread
    carriers = carriers_of(messages, thread)
    if not carriers and not thread.standing.loaded:
        return Composition(_noted(list(messages), thread))
    off = [name for name in thread.standing.loaded if run.is_off(name)]
    standing = _with_edits(messages, carriers, thread.standing.without(off), run)
    texts: dict[str, str] = {}
    lost: dict[str, str] = {}
    decisions = decide(carriers, standing, run.settings.budgets.tokens)
    while missing := [name for name in decisions.put_back if name not in texts]:
        recalled = yield from _recalled(missing, standing, run)
        for name, found in recalled.items():
            if isinstance(found, str):
                lost[name] = found
                standing = standing.without([name])
            else:
                texts[name], record = found
                standing = standing.with_load(name, record)
        decisions = decide(carriers, standing, run.settings.budgets.tokens)
    put_back = decisions.put_back
    shown = {carrier.skill for carrier in carriers if carrier.position in decisions.kept}
    standing = _seen(standing, [name for name in standing.loaded if name in shown or name in put_back])
    newly = [name for name in put_back if thread.section("told").get(name) != standing.records[name]["digest"]]
    update = _update(thread, put_back, newly, standing, [*lost, *off])
    if newly or lost or prefix_changes or standing.is_crowded(run.settings.budgets):
        gone = without_lingering(thread)
        if gone:
            update = merged(update, {"skills_context": {"texts": gone}})
            carriers = [_settled(carrier) for carrier in carriers]
            decisions = decide(carriers, standing, run.settings.budgets.tokens)
    bare = _noted(_applied(messages, decisions, {}, lost), thread)
    return Composition(
        messages=_noted(_applied(messages, decisions, texts, lost), thread) if put_back else bare,
        bare=bare if put_back else None,
        update=update,
        put_back=put_back,
        reattached={name: standing.records[name] for name in newly},
        lost=lost,
        shown=frozenset({carrier.skill for carrier in carriers if carrier.position in decisions.kept}.union(put_back)),
    )


def carriers_of(messages: Sequence[AnyMessage], thread: Thread) -> list[Carrier]:
    """Return the messages that brought skills into the conversation, as private state knows them."""
    known = {message: text["skill"] for message, text in thread.section("texts").items()}
    for name in thread.standing.loaded:
        message = thread.standing.records[name].get("message")
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


def _settled(carrier: Carrier) -> Carrier:
    return Carrier(carrier.position, carrier.skill, carrier.message, carrier.is_lost, is_undone=carrier.is_undone)


def _with_edits(messages: Sequence[AnyMessage], carriers: Sequence[Carrier], standing: Standing, run: Run) -> Standing:
    """Take over texts that others changed in place: what was hidden stays hidden when the text is put back later."""
    for carrier in carriers:
        record = standing.records.get(carrier.skill)
        if carrier.is_lost or record is None or record.get("message") != carrier.message:
            continue
        text, memory = str(messages[carrier.position].text), run.settings.memory
        # A text that this process has seen survives its file, whichever process loaded it.
        if memory.text(record.get("text", "")) == text or memory.keep_text(text) == record.get("text"):
            continue
        standing = standing.with_load(carrier.skill, _left_as(text, record, run))
    return standing


def _recalled(names: Sequence[str], standing: Standing, run: Run) -> Plan[dict[str, tuple[str, LoadRecord] | str]]:
    """Return the text of each skill as it was left: from the history in state, from memory, else from its file.

    State comes first, for a guard may have changed the text there in this very step. Where the text cannot be
    recovered, the reason stands in its place.
    """
    found: dict[str, tuple[str, LoadRecord] | str] = {}
    unread = []
    history = {message.id: message for message in run.thread.messages if message.id is not None}
    for name in names:
        record = standing.records[name]
        message = history.get(record.get("message", ""))
        known = _from_history(record, message)
        if known is None and _is_unseen(record, message, run):
            found[name] = "it was taken away before any request held it, so that nobody can tell what guards did to it"
        elif known is None and (known := run.settings.memory.text(record.get("text", ""))) is None:
            if record.get("edited") or _is_edited(record, message):
                found[name] = "others had changed the text, and only the file's own could be read"
            else:
                unread.append(name)
        if known is not None:
            found[name] = yield from _changed(name, known, _left_as(known, record, run), run)
    found |= yield from read_again(unread, standing, run)
    return found


def read_again(names: Sequence[str], standing: Standing, run: Run) -> Plan[dict[str, tuple[str, LoadRecord] | str]]:
    """Return the text of each skill from its file, with the arguments of its load, or why it cannot be read.

    A file that has changed since gives its present text, which says so, and the record that goes with it.
    """
    if not names:
        return {}
    catalog = (yield from shelf_of(run)).catalog
    entries = {name: entry for name in names if (entry := catalog.by_name.get(name)) is not None}
    wanted = [(entry, standing.records[name].get("arguments", "")) for name, entry in entries.items()]
    prepared = yield from prepare(wanted, run, "system")
    found: dict[str, tuple[str, LoadRecord] | str] = dict.fromkeys(names, "it is no longer in the catalog")
    for (name, _arguments), ready in prepared.items():
        record = standing.records[name]
        if ready.failure is not None:
            found[name] = ready.failure
            continue
        text = ready.block if ready.digest == record["digest"] else CHANGED_LEAD + ready.block
        key = run.settings.memory.keep_text(text)
        found[name] = text, {**record, "tokens": ready.tokens, "text": key}
    return found


def _changed(name: str, text: str, record: LoadRecord, run: Run) -> Plan[tuple[str, LoadRecord] | str]:
    """Return a text that is put back, after extensions have seen it again."""
    if run.settings.extensions:
        catalog = (yield from shelf_of(run)).catalog
        entry = catalog.by_name.get(name)
        if entry is not None:
            load = SkillLoad(entry, record.get("arguments", ""), "system", text, record["tokens"], (), run.runtime)
            changed = yield from change_text(load, run)
            if isinstance(changed, Failed):
                return changed.reason
            text = changed
    run.settings.memory.keep_text(text)
    return text, record


def _from_history(record: LoadRecord, message: AnyMessage | None) -> str | None:
    """Return the text that a message in state holds; where others changed it for requests alone, state's is not it."""
    if message is None or is_lost(message):
        return None
    text = str(message.text)
    return None if record.get("edited") and fingerprint(text) != record.get("text") else text


def _is_unseen(record: LoadRecord, message: AnyMessage | None, run: Run) -> bool:
    """Whether a text left state in the step of its load, after guards may have changed it there."""
    if message is not None:
        was_restored = run.thread.section("texts").get(message.id or "", {}).get("restored")
        return is_evicted(message) and "step" in record and not was_restored
    return "step" in record


def _left_as(text: str, record: LoadRecord, run: Run) -> LoadRecord:
    """Return the record of a load whose text is as others left it."""
    if fingerprint(text) == record.get("text"):
        return record
    return {**record, "text": run.settings.memory.keep_text(text), "edited": True}


def _is_edited(record: LoadRecord, message: AnyMessage | None) -> bool:
    return message is not None and not is_lost(message) and fingerprint(str(message.text)) != record.get("text")


def _seen(standing: Standing, names: Iterable[str]) -> Standing:
    """Return the standing in which these loads were in a request: guards have had their look at them."""
    for name in names:
        record = standing.records[name]
        if "step" in record:
            kept: Any = {key: value for key, value in record.items() if key != "step"}
            standing = standing.with_load(name, kept)
    return standing


def _applied(
    messages: Sequence[AnyMessage], decisions: Decisions, texts: Mapping[str, str], lost: Iterable[str]
) -> list[AnyMessage]:
    """Return the messages with notices and texts in place; a skill without a text gets a notice."""
    result = list(messages)
    for position, (name, reason) in decisions.notices.items():
        result[position] = _emptied(result[position], context_notice(name, reason))
    for position, name in decisions.restored.items():
        text = texts.get(name) or context_notice(name, "no_room")
        result[position] = result[position].model_copy(update={"content": text})
    for position in (*decisions.restored, *decisions.kept):
        result[position] = shielded(result[position])
    front = [_message(texts.get(name) or context_notice(name, "no_room")) for name in decisions.inserted]
    front += [_message(context_notice(name, "no_room")) for name in decisions.omitted]
    front += [_message(lost_notice(name)) for name in lost]
    if not front:
        return result
    place = 0
    while place < len(result) and isinstance(result[place], SystemMessage):
        place += 1
    if place < len(result) and is_summary(result[place]):
        place += 1
    return [*result[:place], *front, *result[place:]]


def _emptied(message: AnyMessage, notice: str) -> AnyMessage:
    """Return a message whose text gave way to a notice; it no longer counts as a pin."""
    extra = {key: value for key, value in message.additional_kwargs.items() if key not in {"lc_source", "skill"}}
    return message.model_copy(update={"content": notice, "additional_kwargs": extra})


def _message(text: str) -> HumanMessage:
    return HumanMessage(text, additional_kwargs={"lc_source": "deepskills"})


def is_summary(message: AnyMessage) -> bool:
    """Whether a message sums up what was removed before it."""
    return message.additional_kwargs.get("lc_source") == "summarization"


def _noted(messages: list[AnyMessage], thread: Thread) -> list[AnyMessage]:
    """Return the messages with the notes of this thread in their places."""
    notes = thread.section("notes")
    if not notes:
        return messages
    result: list[AnyMessage] = []
    for message in messages:
        note = notes.get(message.id or "")
        if note is None:
            result.append(message)
            continue
        result += [_message(text) for text in note.get("before", ())]
        ends = note.get("end", ())
        result.append(_with_end(message, "\n\n".join(ends)) if ends else message)
    return result


def _with_end(message: AnyMessage, note: str) -> AnyMessage:
    """Return a message with a note at its end, whatever its content is made of."""
    content = message.content
    if isinstance(content, str):
        return message.model_copy(update={"content": f"{content}\n\n{note}"})
    return message.model_copy(update={"content": [*content, {"type": "text", "text": note}]})


def _update(
    thread: Thread, put_back: Sequence[str], newly: Sequence[str], standing: Standing, lost: Iterable[str]
) -> dict[str, Any]:
    told: dict[str, str | None] = {name: standing.records[name]["digest"] for name in newly}
    noted = thread.section("told")
    told |= {name: None for name, digest in noted.items() if digest == LEFT_OUT and name not in put_back}
    before = thread.standing.records
    changed = {
        name: standing.records[name] for name in standing.loaded if standing.records.get(name) != before.get(name)
    }
    update: dict[str, Any] = unload_update(lost) if lost else {}
    if told:
        update = merged(update, {"skills_context": {"told": told}})
    if changed:
        update = merged(update, {"skills_load_records": changed})
    return update
