"""Applies the context decisions to the messages of a model request; the history in state is never edited."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AnyMessage, HumanMessage

from deepskills import _session as session
from deepskills._context import Carrier, Decisions, decide
from deepskills._lifecycle import Preparation, Prepared, Standing, prepare
from deepskills._plan import Plan
from deepskills._prompt import CHANGED_LEAD, context_notice, lost_notice
from deepskills._types import SkillMetadata

MAX_REMEMBERED_CHARACTERS = 32_000_000
"""How much text of loaded skills a middleware remembers."""

_OVERFLOW_SIGNS = ("context length", "context_length", "context window", "contextwindow", "prompt is too long")
_OVERFLOW_STATUS = frozenset({400, 413, 422})


class TextMemory:
    """The texts of loaded skills by path and digest; bounded, safe to share by threads."""

    def __init__(self, size: int = MAX_REMEMBERED_CHARACTERS) -> None:
        self._size = size
        self._held = 0
        self._lock = threading.Lock()
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, path: str, digest: str) -> str | None:
        """Return the text that was loaded from `path` when its file had `digest`."""
        with self._lock:
            text = self._texts.get((path, digest))
            if text is not None:
                self._texts.move_to_end((path, digest))
            return text

    def put(self, path: str, digest: str, text: str) -> None:
        """Remember a text; the longest unused go when there is too much."""
        with self._lock:
            self._held += len(text) - len(self._texts.pop((path, digest), ""))
            self._texts[path, digest] = text
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

    events: list[dict[str, Any]] = field(default_factory=list)
    """What the stream is told."""


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
    decisions = decide(carriers, standing, max_tokens)
    texts = yield from _texts(decisions.put_back, standing, state, memory, preparation)
    lost = [name for name in decisions.put_back if name not in texts]
    if lost:
        for name in lost:
            standing = standing.without(name)
        decisions = decide(carriers, standing, max_tokens)
    bare = _apply(messages, decisions, {}, lost)
    if not decisions.put_back:
        return Composition(bare, update=_update(state, [], standing, lost))
    return Composition(
        messages=_apply(messages, decisions, texts, lost),
        bare=bare,
        update=_update(state, decisions.put_back, standing, lost),
        events=[
            {"type": "skill.reattached", "skill": name, "tokens": standing.size(name)}
            for name in _newly_lost(state, decisions.put_back, standing)
        ],
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


def is_overflow(error: Exception) -> bool:
    """Whether a model refused a request for its length."""
    if isinstance(error, ContextOverflowError):
        return True
    text = str(error).lower()
    return getattr(error, "status_code", None) in _OVERFLOW_STATUS and any(sign in text for sign in _OVERFLOW_SIGNS)


def _texts(
    names: Sequence[str],
    standing: Standing,
    state: Mapping[str, Any],
    memory: TextMemory,
    preparation: Preparation,
) -> Plan[dict[str, str]]:
    """Return the text of each skill as it was loaded: from memory, from the history in state, else from its file."""
    texts: dict[str, str] = {}
    unread: list[SkillMetadata] = []
    for name in names:
        record = standing.records.get(name)
        if record is None:
            continue
        text = memory.get(record["path"], record["digest"]) or _from_history(name, record["digest"], state)
        if text is not None:
            texts[name] = text
            memory.put(record["path"], record["digest"], text)
        else:
            unread += [s for s in session.trusted_catalog(state) or () if s["name"] == name]
    if unread:
        prepared = yield from prepare(unread, preparation)
        for name, ready in prepared.items():
            if ready.failure is None:
                record = standing.records[name]
                texts[name] = _text_now(ready, record["digest"])
                memory.put(record["path"], record["digest"], texts[name])
    return texts


def _text_now(prepared: Prepared, digest: str) -> str:
    return prepared.block if prepared.digest == digest else CHANGED_LEAD + prepared.block


def _from_history(name: str, digest: str, state: Mapping[str, Any]) -> str | None:
    for message in reversed(state.get("messages") or ()):
        mark = session.mark_of(message)
        if mark is not None and mark.get("event") == "load" and mark["skill"] == name and mark.get("digest") == digest:
            text = session.carried_text(message, mark)
            if text is not None:
                return text
    return None


def _apply(
    messages: Sequence[AnyMessage], decisions: Decisions, texts: Mapping[str, str], lost: Sequence[str]
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
    place = 1 if result and _is_summary(result[0]) else 0
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
    state: Mapping[str, Any], put_back: Sequence[str], standing: Standing, lost: Sequence[str]
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
    if told:
        update["skills_reattached"] = told
    return update
