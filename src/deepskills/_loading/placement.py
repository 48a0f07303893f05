"""What a request must hold of loaded skills: each text once, none of those unloaded. Pure decisions.

A *carrier* is a message that brought a skill's text into the conversation. Summaries remove carriers, other middleware
empties or shortens them; the decisions here say what becomes of each, and what has to be put back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._loading.decisions import Standing

Reason: TypeAlias = Literal["unloaded", "superseded", "no_room"]
"""Why a carrier shows a notice in the place of its text."""


@dataclass(frozen=True)
class Carrier:
    """A message that carries, or carried, a skill's text."""

    position: int
    skill: str
    digest: str
    intact: bool
    """Whether the whole text is still in it."""


@dataclass
class Decisions:
    """What to do with the messages of a request."""

    notices: dict[int, tuple[str, Reason]] = field(default_factory=dict)
    """Positions whose text gives way to a notice about the skill."""

    restored: dict[int, str] = field(default_factory=dict)
    """Positions that get their skill's text back."""

    inserted: list[str] = field(default_factory=list)
    """Skills whose message is gone: their text comes back in a message of its own, in load order."""

    omitted: list[str] = field(default_factory=list)
    """Skills whose message is gone and for whose text there is no room."""

    @property
    def put_back(self) -> list[str]:
        """The skills whose text has to be had from elsewhere."""
        return [*self.restored.values(), *self.inserted]


def decide(carriers: Sequence[Carrier], standing: Standing, max_tokens: int | None) -> Decisions:
    """Decide what becomes of each carrier and what is put back, the newest first as far as there is room."""
    decisions = Decisions()
    own = {name: _own_carrier(name, carriers, standing) for name in standing.loaded}
    for carrier in carriers:
        if carrier.skill not in own:
            decisions.notices[carrier.position] = (carrier.skill, "unloaded")
        elif own[carrier.skill] is not carrier:
            decisions.notices[carrier.position] = (carrier.skill, "superseded")
    lost = [name for name, carrier in own.items() if carrier is None or not carrier.intact]
    room = _room(standing, set(lost), max_tokens)
    fitting: set[str] = set()
    for name in reversed(lost):
        if room is None or standing.size(name) <= room:
            fitting.add(name)
            room = None if room is None else room - standing.size(name)
    for name in lost:
        _place(decisions, name, own[name], fits=name in fitting)
    return decisions


def _own_carrier(name: str, carriers: Sequence[Carrier], standing: Standing) -> Carrier | None:
    """Return the latest message that carries the text which is loaded now."""
    record = standing.records.get(name)
    matching = (c for c in reversed(carriers) if c.skill == name and (record is None or c.digest == record["digest"]))
    return next(matching, None)


def _room(standing: Standing, lost: set[str], max_tokens: int | None) -> int | None:
    if max_tokens is None:
        return None
    return max_tokens - sum(standing.size(name) for name in standing.loaded if name not in lost)


def _place(decisions: Decisions, name: str, carrier: Carrier | None, *, fits: bool) -> None:
    if carrier is None:
        (decisions.inserted if fits else decisions.omitted).append(name)
    elif fits:
        decisions.restored[carrier.position] = name
    else:
        decisions.notices[carrier.position] = (name, "no_room")
