"""Counts what skills cost on a thread, in a ledger of plain data that is kept in graph state. Pure.

A call is credited to the skills that were in use when the model was asked: a model call to those of its request, a tool
call to those of the request that asked for it. Each of them is credited with the whole call, because without it the
call would not have been the same; the `shared_` tokens divide a call evenly instead, so that they add up over skills
to what the provider counted.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from deepskills._loading.budget import count_text_tokens

COUNTS = (
    "calls",
    "failed_calls",
    "model_calls",
    "tool_calls",
    "tokens_in",
    "tokens_out",
    "tokens_cached",
    "shared_tokens_in",
    "shared_tokens_out",
    "requests",
    "put_backs",
)
"""The numbers of a row."""

MAX_ROWS = 200
"""How many skills a ledger holds between two runs, because it is kept in state."""


@dataclass(frozen=True)
class Origin:
    """A skill that calls are credited to, as events name it."""

    skill: str
    source: str | None
    digest: str | None
    trigger: str

    @property
    def key(self) -> str:
        """The ledger's key: another content is another row."""
        return f"{self.skill}\n{self.digest or ''}"


@dataclass(frozen=True)
class Tokens:
    """The tokens of one model call."""

    given: int = 0
    made: int = 0
    cached: int = 0
    is_estimated: bool = False


class Ledger:
    """Rows by skill and content."""

    def __init__(self, kept: object = None) -> None:
        """Read the ledger from state; anything of another shape is skipped."""
        self.rows: dict[str, dict[str, Any]] = {}
        for key, row in kept.items() if isinstance(kept, Mapping) else ():
            if isinstance(key, str) and isinstance(row, Mapping) and isinstance(row.get("skill"), str):
                self.rows[key] = {
                    "skill": row["skill"],
                    **{name: _number(row.get(name)) for name in COUNTS},
                    "estimated": row.get("estimated") is True,
                    **{name: _text(row.get(name)) for name in ("source", "digest")},
                    "trigger": _text(row.get("trigger")) or "system",
                }

    @property
    def kept(self) -> dict[str, Any] | None:
        """The ledger as state keeps it; `None` if it is empty."""
        return dict(list(self.rows.items())[:MAX_ROWS]) or None

    def model_call(
        self, origins: Sequence[Origin], tokens: Tokens, shown: Collection[str], put_back: Collection[str]
    ) -> None:
        """Credit a model call that was answered."""
        shares_in, shares_out = shares(tokens.given, len(origins)), shares(tokens.made, len(origins))
        for place, origin in enumerate(origins):
            row = self._row(origin)
            _add(row, calls=1, model_calls=1, tokens_in=tokens.given, tokens_out=tokens.made)
            _add(row, tokens_cached=tokens.cached, shared_tokens_in=shares_in[place])
            _add(row, shared_tokens_out=shares_out[place], requests=origin.skill in shown)
            _add(row, put_backs=origin.skill in put_back)
            row["estimated"] = row["estimated"] or tokens.is_estimated

    def failed_model_call(self, origins: Iterable[Origin]) -> None:
        """Credit a model call that raised."""
        for origin in origins:
            _add(self._row(origin), calls=1, model_calls=1, failed_calls=1)

    def tool_calls(self, pending: object, messages: Iterable[AnyMessage]) -> None:
        """Credit the tool calls of the previous turn, from what the conversation now says about them."""
        if not isinstance(pending, Mapping) or not isinstance(pending.get("calls"), list):
            return
        calls = {call for call in pending["calls"] if isinstance(call, str)}
        answers = {
            message.tool_call_id: message
            for message in messages
            if isinstance(message, ToolMessage) and message.tool_call_id in calls
        }
        # Read from the conversation at the next model call: tools run in parallel, perhaps in another process.
        failed = sum(message.status == "error" for message in answers.values())
        origins = pending.get("origins")
        for origin in origins if isinstance(origins, list) else ():
            if isinstance(origin, list | tuple) and len(origin) == 4 and isinstance(origin[0], str):  # noqa: PLR2004
                row = self._row(Origin(origin[0], _text(origin[1]), _text(origin[2]), str(origin[3])))
                _add(row, calls=len(calls), tool_calls=len(calls), failed_calls=failed)

    def events(self) -> list[dict[str, Any]]:
        """Return one event for each skill and content."""
        return [{"type": "skill.cost", **row} for row in self.rows.values()]

    def _row(self, origin: Origin) -> dict[str, Any]:
        named = {"source": origin.source, "digest": origin.digest, "trigger": origin.trigger}
        empty = {"skill": origin.skill, **dict.fromkeys(COUNTS, 0), "estimated": False, **named}
        return self.rows.setdefault(origin.key, empty)


def pending_calls(origins: Iterable[Origin], messages: Iterable[object]) -> dict[str, Any] | None:
    """Return the tool calls in an answer and the skills to credit; `None` if there are none."""
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    owners = [[origin.skill, origin.source, origin.digest, origin.trigger] for origin in origins]
    return {"calls": [call for call in asked if call], "origins": owners} if asked and owners else None


def shares(whole: int, parts: int) -> list[int]:
    """Divide a number evenly into whole numbers that add up to it; the first take what is left over."""
    if parts == 0:
        return []
    each, left = divmod(whole, parts)
    return [each + (place < left) for place in range(parts)]


def tokens_of(sent: Iterable[str], answered: Iterable[object]) -> Tokens:
    """Return the tokens of a call: as the provider counted them, or else an estimate from the texts."""
    messages = [message for message in answered if isinstance(message, AIMessage)]
    # Either all counted or all estimated: a sum of both would be neither.
    if messages and all(message.usage_metadata for message in messages):
        used: list[Mapping[str, Any]] = [message.usage_metadata or {} for message in messages]
        details = [_mapping(usage.get("input_token_details")) for usage in used]
        return Tokens(
            given=sum(_number(usage.get("input_tokens")) for usage in used),
            made=sum(_number(usage.get("output_tokens")) for usage in used),
            cached=sum(_number(detail.get("cache_read")) for detail in details),
        )
    calls = [str(call["args"]) for message in messages for call in message.tool_calls]
    made = sum(map(count_text_tokens, [*(str(message.text) for message in messages), *calls]))
    return Tokens(sum(map(count_text_tokens, sent)), made, is_estimated=True)


def _add(row: dict[str, Any], **numbers: int) -> None:
    for name, number in numbers.items():
        row[name] += int(number)


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
