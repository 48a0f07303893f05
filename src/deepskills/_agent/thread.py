"""A thread's private state about skills, read with suspicion: what has the wrong shape is set aside.

`skills_context` has these sections:

- `texts`: by message id, every message that brought a skill's text in, with the skill's name and, for one that left in
  a special way, its `state` (`lingering` until the prefix changes anyway, `undone`).
- `told`: by skill, the digest for which a put-back was told, or `LEFT_OUT`.
- `notes`: by message id, texts to show `before` the message and at its `end`, in requests only.
- `loads`: by skill, loads that wait for the next model call, with `arguments` and `trigger`.
- `permits`: skills that the model may load once although only the user may start them, with the user's `arguments`
  and the `turn`: the user's message until whose successor that holds.
- `run`: `message`, the user's newest message, until its slash commands are done; `seen`, the newest looked at.
- `commands`: messages that began with a slash and were looked at, so that none starts a skill twice.
- `problems`: problems that tool calls found, until the next model call.
- `prefix`: what the latest request began with, to tell when it changes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from deepskills._loading.budgets import Standing
from deepskills._types import LoadRecord, ResourceMetadata, SkillProblem

LEFT_OUT = "(left out)"
"""Stands in `told` for a skill whose text the model had no room for."""

LINGERING = "lingering"
UNDONE = "undone"

_RECORD_KEYS = LoadRecord.__annotations__.keys()
# Compared, not looked up: what a caller wrote may not be hashable.
_RESOURCE_TYPES = ("script", "reference", "asset", "other")
_TRIGGERS = ("model", "user", "pin", "system")
_TEXT_STATES = (None, LINGERING, UNDONE)


@dataclass
class Thread:
    """What a thread's state says of skills, in the right shapes."""

    messages: Sequence[AnyMessage]
    standing: Standing
    resources: dict[str, list[ResourceMetadata]]
    context: dict[str, dict[str, Any]]
    catalog: object
    """The catalog as state has it, whoever wrote it."""

    malformed: list[str] = field(default_factory=list)
    """Keys of state that had the wrong shape."""

    known_problems: object = None
    """The problems as state has them; there may be one for each of thousands of skills."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Thread":
        """Read a thread's state."""
        malformed: list[str] = []
        context = _context(state.get("skills_context"), malformed)
        standing = _standing(state, context, malformed)
        return cls(
            messages=state.get("messages") or (),
            standing=standing,
            resources=_resources(state.get("skill_resources"), malformed),
            context=context,
            catalog=state.get("skills_catalog"),
            malformed=malformed,
            known_problems=state.get("skills_problems"),
        )

    @property
    def is_new(self) -> bool:
        """Whether nothing was discovered or loaded on this thread yet."""
        return self.catalog is None and not self.standing.loaded

    @cached_property
    def problems(self) -> list[SkillProblem]:
        """Everything that is wrong with sources and skills, looked at only where it is needed."""
        return _problems(self.known_problems, self.malformed)

    def section(self, name: str) -> dict[str, Any]:
        """Return one section of the context."""
        return self.context.get(name) or {}

    def text_state(self, message_id: str) -> str:
        """Return what became of a text that was brought in by a message; empty for nothing special."""
        return str(self.section("texts").get(message_id, {}).get("state") or "")

    def is_left_out(self, name: str) -> bool:
        """Whether the latest request went out without a loaded skill's text because the model had no room."""
        return bool(self.section("told").get(name) == LEFT_OUT)

    @property
    def user_message(self) -> AnyMessage | None:
        """The user's newest message."""
        return newest_user_message(self.messages)

    @property
    def turn(self) -> str:
        """What the user's turn is known by: the id of the newest message; empty if there is none."""
        user = self.user_message
        return (user.id or "") if user is not None else ""

    def permitted_arguments(self, name: str) -> str | None:
        """Return the arguments of a start that the user asked for in this turn, or `None` where none was asked for."""
        permit = self.section("permits").get(name)
        return str(permit["arguments"]) if permit is not None and permit["turn"] == self.turn else None


def newest_user_message(messages: Sequence[AnyMessage]) -> AnyMessage | None:
    """Return the newest message that a user wrote: not a summary, a pin or a message of this library."""
    return next((message for message in reversed(messages) if is_users_own(message)), None)


def is_answered(thread: Thread, message: AnyMessage) -> bool:
    """Whether the model has spoken after a message."""
    later = itertools.takewhile(lambda known: known is not message, reversed(thread.messages))
    return any(isinstance(known, AIMessage) for known in later)


def is_users_own(message: AnyMessage) -> bool:
    """Whether a user wrote a message: it is not a summary, a pin or a message of this library."""
    return isinstance(message, HumanMessage) and not message.additional_kwargs.get("lc_source")


def _standing(state: Mapping[str, Any], context: Mapping[str, Any], malformed: list[str]) -> Standing:
    loaded, records = state.get("skills_loaded") or (), state.get("skills_load_records") or {}
    if not isinstance(loaded, list | tuple) or not all(isinstance(name, str) for name in loaded):
        malformed.append("skills_loaded")
        loaded = ()
    if not isinstance(records, dict):
        malformed.append("skills_load_records")
        records = {}
    good = {name: record for name, record in records.items() if isinstance(name, str) and _is_record(record)}
    if len(good) < len(records):
        malformed.append("skills_load_records")
    texts = context.get("texts", {}).values()
    lingering = sum(text.get("tokens", 0) for text in texts if text.get("state") == LINGERING)
    return Standing(tuple(name for name in loaded if name in good), good, lingering)


def _is_record(record: object) -> bool:
    if not isinstance(record, dict) or not record.keys() <= _RECORD_KEYS:
        return False
    texts = ("path", "digest", "text", "message", "source", "arguments", "turn")
    relied = record.get("relies_on", [])
    return (
        {"path", "digest", "tokens"} <= record.keys()
        and all(isinstance(record.get(key, ""), str) for key in texts)
        and all(isinstance(record.get(key, 0), int) and record.get(key, 0) >= 0 for key in ("tokens", "step"))
        and record.get("trigger", "model") in _TRIGGERS
        and isinstance(relied, list)
        and all(isinstance(name, str) for name in relied)
    )


def _resources(value: object, malformed: list[str]) -> dict[str, list[ResourceMetadata]]:
    if value is None:
        return {}
    if isinstance(value, dict):
        good = {name: files for name, files in value.items() if isinstance(name, str) and _are_resources(files)}
        if len(good) == len(value):
            return good
    else:
        good = {}
    malformed.append("skill_resources")
    return good


def _are_resources(files: object) -> bool:
    keys = ResourceMetadata.__annotations__.keys()
    return isinstance(files, list) and all(
        isinstance(item, dict)
        and item.keys() == keys
        and all(isinstance(text, str) for text in item.values())
        and item["type"] in _RESOURCE_TYPES
        for item in files
    )


def _problems(value: object, malformed: list[str]) -> list[SkillProblem]:
    items = value if isinstance(value, list) else []
    good = [item for item in items if _is_problem(item)]
    if len(good) < len(items) or (value is not None and not isinstance(value, list)):
        malformed.append("skills_problems")
    return good


def _is_problem(item: object) -> bool:
    keys = SkillProblem.__annotations__.keys()
    return isinstance(item, dict) and item.keys() == keys and all(isinstance(text, str) for text in item.values())


def _context(value: object, malformed: list[str]) -> dict[str, dict[str, Any]]:
    if value is None:
        return {}
    items = value if isinstance(value, dict) else {}
    good: dict[str, dict[str, Any]] = {}
    is_whole = isinstance(value, dict)
    for section, values in items.items():
        checked = _CHECKS.get(section)
        if checked is None or not isinstance(values, dict):
            is_whole = False
            continue
        good[section] = {key: item for key, item in values.items() if isinstance(key, str) and checked(item)}
        is_whole &= len(good[section]) == len(values)
    if not is_whole:
        malformed.append("skills_context")
    return good


def _is_text_entry(item: object) -> bool:
    if not isinstance(item, dict) or not isinstance(item.get("skill"), str):
        return False
    tokens = item.get("tokens", 0)
    is_known = item.keys() <= {"skill", "state", "tokens", "restored"} and item.get("state") in _TEXT_STATES
    return is_known and isinstance(tokens, int) and tokens >= 0


def _is_note(item: object) -> bool:
    return (
        isinstance(item, dict)
        and item.keys() <= {"before", "end"}
        and all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in item.values())
    )


def _is_load(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("arguments"), str) and item.get("trigger") in _TRIGGERS


def _is_text(item: object) -> bool:
    return isinstance(item, str)


def _are_text(item: dict[str, Any]) -> bool:
    return all(isinstance(value, str) for value in item.values())


_CHECKS = {
    "texts": _is_text_entry,
    "told": _is_text,
    "notes": _is_note,
    "loads": _is_load,
    "permits": lambda item: isinstance(item, dict) and item.keys() == {"arguments", "turn"} and _are_text(item),
    "commands": lambda item: item is True,
    "run": _is_text,
    "prefix": _is_text,
    "problems": _is_problem,
}
