"""Applies the context decisions to the messages of a model request; the history in state is never edited."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from deepskills._agent import session
from deepskills._backend.plan import Plan
from deepskills._loading.decisions import Preparation, Prepared, Standing, prepare
from deepskills._loading.placement import Carrier, Decisions, decide
from deepskills._prompt.wording import CHANGED_LEAD, context_notice, lost_notice
from deepskills._types import LoadRecord, SkillMetadata

MAX_REMEMBERED_CHARACTERS = 32_000_000
"""How much text of loaded skills a middleware remembers."""

LEFT_OUT = ""
"""Stands in `skills_reattached` for a skill whose text the model had no room for."""

_OVERFLOW_SIGNS = (
    *(f"context{gap}{noun}" for gap in (" ", "_", "") for noun in ("length", "window", "size", "limit")),
    "prompt is too long",
    "tokens exceed",
)
_OVERFLOW_STATUS = frozenset({400, 413, 422})


class TextMemory:
    """The texts of loaded skills by fingerprint; bounded, safe to share by threads."""

    def __init__(self, size: int = MAX_REMEMBERED_CHARACTERS) -> None:
        self._size = size
        self._held = 0
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, str] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> "TextMemory":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return TextMemory(self._size)

    def get(self, fingerprint: str) -> str | None:
        """Return the text that has this fingerprint."""
        with self._lock:
            text = self._texts.get(fingerprint)
            if text is not None:
                self._texts.move_to_end(fingerprint)
            return text

    def put(self, text: str) -> None:
        """Remember a text; the longest unused go when there is too much."""
        key = session.fingerprint(text)
        with self._lock:
            self._held += len(text) - len(self._texts.pop(key, ""))
            self._texts[key] = text
            while self._held > self._size and len(self._texts) > 1:
                self._held -= len(self._texts.popitem(last=False)[1])


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

    reattached: dict[str, int] = field(default_factory=dict)
    """Those of them whose loss was not told yet, each with what it costs."""

    lost: dict[str, str] = field(default_factory=dict)
    """The skills whose text could not be had again, each with the reason."""

    def without_put_back(self) -> "Composition":
        """Return what goes out to a model that had no room for what was put back."""
        left_out = {**self.update.get("skills_reattached", {}), **dict.fromkeys(self.put_back, LEFT_OUT)}
        update = {**self.update, "skills_reattached": left_out}
        return Composition(self.bare or self.messages, update=update, lost=self.lost)

    def seen_in(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `state` without the skills that were lost."""
        if not self.lost:
            return state
        loaded = [name for name in state.get("skills_loaded") or () if name not in self.lost]
        return {**state, "skills_loaded": loaded}


def compose(
    messages: Sequence[AnyMessage],
    state: Mapping[str, Any],
    max_tokens: int | None,
    memory: TextMemory,
    preparation: Preparation,
) -> Plan[Composition]:
    """Return the request's messages with every loaded skill's text once and no unloaded skill's."""
    carriers = carriers_of(messages)
    standing = session.standing(state)
    if not carriers and not standing.loaded:
        return Composition(list(messages))
    standing = _with_edits(messages, carriers, standing, memory)
    texts: dict[str, str] = {}
    lost: dict[str, str] = {}
    decisions = decide(carriers, standing, max_tokens)
    while missing := [name for name in decisions.put_back if name not in texts]:
        recalled = yield from _recall(missing, standing, state, memory, preparation)
        for name in missing:
            found = recalled[name]
            if isinstance(found, str):
                lost[name] = found
                standing = standing.without(name)
            else:
                texts[name], record = found
                standing = standing.with_load(name, record)
        decisions = decide(carriers, standing, max_tokens)
    bare = _apply(messages, decisions, {}, lost)
    put_back = decisions.put_back
    return Composition(
        messages=_apply(messages, decisions, texts, lost) if put_back else bare,
        bare=bare if put_back else None,
        update=_update(state, put_back, standing, lost),
        put_back=put_back,
        reattached={name: standing.size(name) for name in _newly_lost(state, put_back, standing)},
        lost=lost,
    )


def carriers_of(messages: Sequence[AnyMessage]) -> list[Carrier]:
    """Return the messages that brought skills into the conversation."""
    carriers = []
    for position, message in enumerate(messages):
        mark = session.mark_of(message)
        if mark is not None and mark.get("event") == "load":
            intact = session.carried_text(message, mark) is not None
            carriers.append(Carrier(position, mark["skill"], str(mark.get("digest")), intact))
    return carriers


def _with_edits(
    messages: Sequence[AnyMessage], carriers: Sequence[Carrier], standing: Standing, memory: TextMemory
) -> Standing:
    """Take over texts that others changed in place: what was hidden stays hidden when the text is put back later."""
    for carrier in carriers:
        record = standing.records.get(carrier.skill)
        mark = session.mark_of(messages[carrier.position])
        if not carrier.intact or mark is None or record is None or record["digest"] != carrier.digest:
            continue
        text = session.carried_text(messages[carrier.position], mark)
        if text is None or session.fingerprint(text) in {mark.get("text"), record.get("text")}:
            continue
        memory.put(text)
        edited = LoadRecord(**{**record, "text": session.fingerprint(text), "edited": True})
        standing = standing.with_load(carrier.skill, edited)
    return standing


def is_left_out(state: Mapping[str, Any], name: str) -> bool:
    """Whether the latest request went out without the text of a loaded skill because the model had no room."""
    return (state.get("skills_reattached") or {}).get(name) == LEFT_OUT


def is_overflow(error: Exception) -> bool:
    """Whether a model refused a request for its length."""
    if isinstance(error, ContextOverflowError):
        return True
    text = str(error).lower()
    return getattr(error, "status_code", None) in _OVERFLOW_STATUS and any(sign in text for sign in _OVERFLOW_SIGNS)


def _recall(
    names: Sequence[str],
    standing: Standing,
    state: Mapping[str, Any],
    memory: TextMemory,
    preparation: Preparation,
) -> Plan[dict[str, tuple[str, LoadRecord] | str]]:
    """Return the text of each skill as it was loaded: from memory, from the history in state, else from its file.

    A file that has changed since gives its present text, which says so, and the record that goes with it. Where the
    text cannot be had, the reason stands in its place.
    """
    found: dict[str, tuple[str, LoadRecord] | str] = dict.fromkeys(names, "it is no longer in the catalog")
    unread: list[SkillMetadata] = []
    for name in names:
        record = standing.records.get(name)
        if record is None:
            continue
        text = memory.get(record.get("text", "")) or _from_history(name, record, state)
        if text is not None:
            memory.put(text)
            found[name] = (text, record)
        elif record.get("edited"):
            found[name] = "others had changed the text, and only the file's own could be had"
        else:
            catalog = (yield from session.shelf_of(state, preparation)).skills
            unread += [skill for skill in catalog if skill["name"] == name]
    prepared = (yield from prepare(unread, preparation)) if unread else {}
    for name, ready in prepared.items():
        if ready.failure is not None:
            found[name] = ready.failure
            continue
        text, now = _present(ready, standing.records[name])
        memory.put(text)
        found[name] = (text, now)
    return found


def _present(prepared: Prepared, record: LoadRecord) -> tuple[str, LoadRecord]:
    """Return a skill's present text and its record, which keeps the digest that its own message is known by."""
    text = prepared.block if prepared.digest == record["digest"] else CHANGED_LEAD + prepared.block
    now = LoadRecord(
        path=record["path"], digest=record["digest"], tokens=prepared.tokens, text=session.fingerprint(text)
    )
    return text, now


def _from_history(name: str, record: LoadRecord, state: Mapping[str, Any]) -> str | None:
    """Return the text that a message in state holds; where others changed it for requests alone, state's is not it."""
    for message in reversed(state.get("messages") or ()):
        mark = session.mark_of(message)
        if (
            mark is None
            or mark.get("event") != "load"
            or (mark["skill"], mark.get("digest")) != (name, record["digest"])
        ):
            continue
        text = session.carried_text(message, mark)
        if text is not None and not (record.get("edited") and session.fingerprint(text) != record.get("text")):
            return text
    return None


def _apply(
    messages: Sequence[AnyMessage], decisions: Decisions, texts: Mapping[str, str], lost: Iterable[str]
) -> list[AnyMessage]:
    """Return the messages with notices and texts in place; a skill without a text gets a notice."""
    result = list(messages)
    for position, (name, reason) in decisions.notices.items():
        result[position] = _emptied(result[position], context_notice(name, reason))
    for position, name in decisions.restored.items():
        text = texts.get(name) or context_notice(name, "no_room")
        result[position] = _with_content(result[position], text)
    front = [_inserted(name, texts.get(name)) for name in decisions.inserted]
    front += [_inserted(name, None) for name in decisions.omitted]
    front += [HumanMessage(lost_notice(name), additional_kwargs={"lc_source": "deepskills"}) for name in lost]
    place = 0
    while place < len(result) and isinstance(result[place], SystemMessage):
        place += 1
    if place < len(result) and _is_summary(result[place]):
        place += 1
    return [*result[:place], *front, *result[place:]]


def _with_content(message: AnyMessage, text: str) -> AnyMessage:
    return message.model_copy(update={"content": text})


def _emptied(message: AnyMessage, notice: str) -> AnyMessage:
    """Return a message whose text gave way to a notice; it no longer counts as a pin."""
    extra = {key: value for key, value in message.additional_kwargs.items() if key not in {"lc_source", "skill"}}
    return message.model_copy(update={"content": notice, "additional_kwargs": extra})


def _inserted(name: str, text: str | None) -> HumanMessage:
    return HumanMessage(text or context_notice(name, "no_room"), additional_kwargs={"lc_source": "deepskills"})


def _is_summary(message: AnyMessage) -> bool:
    return message.additional_kwargs.get("lc_source") == "summarization"


def _newly_lost(state: Mapping[str, Any], names: Sequence[str], standing: Standing) -> list[str]:
    """Return the skills whose loss has not been told yet."""
    told = state.get("skills_reattached") or {}
    return [name for name in names if told.get(name) != standing.records[name]["digest"]]


def _update(
    state: Mapping[str, Any], put_back: Sequence[str], standing: Standing, lost: Iterable[str]
) -> dict[str, Any]:
    update: dict[str, Any] = {}
    told: dict[str, str | None] = {
        name: standing.records[name]["digest"] for name in _newly_lost(state, put_back, standing)
    }
    if lost:
        update["skills_loaded"] = {"unload": list(lost)}
        update["skill_resources"] = dict.fromkeys(lost)
        update["skills_load_records"] = dict.fromkeys(lost)
        told.update(dict.fromkeys(lost))
    noted = state.get("skills_reattached") or {}
    told.update({name: None for name, digest in noted.items() if digest == LEFT_OUT and name not in put_back})
    if told:
        update["skills_reattached"] = told
    before = state.get("skills_load_records") or {}
    changed = {
        name: standing.records[name] for name in standing.loaded if standing.records.get(name) != before.get(name)
    }
    if changed:
        update["skills_load_records"] = {**update.get("skills_load_records", {}), **changed}
    return update
