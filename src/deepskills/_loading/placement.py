"""Decides where the texts of loaded skills go in a request: each text once, none of an unloaded skill.

A *carrier* is the message that brought a skill's text into the conversation, known by its id in the load's record.
What happens to carriers is not in our hands: a summary removes them, an eviction empties them, a reload leaves an
older one behind. For each request this module says which carriers keep their text, which show a one-line notice
instead, which get their text back in place, and which skills need a message of their own because their carrier is
gone.

Texts are put back newest first while there is room: the skill loaded last is the one the model is working with.
`_middleware/request.py` applies these decisions to messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._loading.budget import LoadedSkills

Reason: TypeAlias = Literal["unloaded", "superseded", "no_room", "undone", "withheld"]
"""Why a carrier shows a notice in the place of its text."""


@dataclass(frozen=True)
class Carrier:
    """A message that carries, or carried, a skill's text."""

    position: int
    skill: str
    message: str
    """The message's id."""

    is_lost: bool = False
    """Whether its text was evicted or cleared."""

    is_lingering: bool = False
    """Whether the skill was unloaded and its text stays until the prefix changes anyway."""

    is_undone: bool = False
    """Whether the load was taken back."""


@dataclass
class Decisions:
    """What to do with the messages of a request."""

    notices: dict[int, tuple[str, Reason]] = field(default_factory=dict)
    """Positions whose text gives way to a notice about the skill."""

    kept: list[int] = field(default_factory=list)
    """Positions whose text is there and stays."""

    restored: dict[int, str] = field(default_factory=dict)
    """Positions that get their skill's text back."""

    inserted: list[str] = field(default_factory=list)
    """Skills whose message is gone: their text comes back in a message of its own, in load order."""

    omitted: list[str] = field(default_factory=list)
    """Skills whose message is gone and for whose text there is no room."""

    @property
    def put_back(self) -> list[str]:
        """The skills whose text has to be recovered."""
        return [*self.restored.values(), *self.inserted]


def decide(
    carriers: Sequence[Carrier], loaded: LoadedSkills, max_tokens: int | None, free: int | None = None
) -> Decisions:
    """Decide what becomes of each carrier and what is put back, the newest first as far as there is room.

    `free` is how many tokens the request has left for what is put back, where that is known.
    """
    decisions = Decisions()
    # By message, not by skill: after a reload two messages carry the same skill, and the record names the current one.
    by_message = {carrier.message: carrier for carrier in carriers}
    own = {name: by_message.get(_message(loaded, name)) for name in loaded.names}
    kept = {carrier.message for carrier in own.values() if carrier is not None}
    # A carrier that is not the one of its skill's current load has served its time. A lingering one stays as it is: to
    # change it now would change the prefix of the request and cost the provider's cache.
    for carrier in carriers:
        if carrier.message not in kept and not carrier.is_lingering:
            reason: Reason = "superseded" if carrier.skill in own else "unloaded"
            decisions.notices[carrier.position] = (carrier.skill, "undone" if carrier.is_undone else reason)
    decisions.kept = [carrier.position for carrier in own.values() if carrier is not None and not carrier.is_lost]
    lost = [name for name, carrier in own.items() if carrier is None or carrier.is_lost]
    # What stays in the request takes its room first; only the rest can be put back.
    rooms = [room for room in (_room(loaded, set(lost), max_tokens), free) if room is not None]
    room = min(rooms, default=None)
    # Two passes: who fits is decided newest first, while the messages are placed in load order.
    fitting: set[str] = set()
    # An older, smaller text may still fit where a newer, larger one did not.
    for name in reversed(lost):
        if room is None or loaded.size(name) <= room:
            fitting.add(name)
            room = None if room is None else room - loaded.size(name)
    for name in lost:
        _place(decisions, name, own[name], fits=name in fitting)
    return decisions


def _message(loaded: LoadedSkills, name: str) -> str:
    record = loaded.records.get(name)
    return record.get("message", "") if record else ""


def _room(loaded: LoadedSkills, lost: set[str], max_tokens: int | None) -> int | None:
    if max_tokens is None:
        return None
    return max_tokens - sum(loaded.size(name) for name in loaded.names if name not in lost)


def _place(decisions: Decisions, name: str, carrier: Carrier | None, *, fits: bool) -> None:
    if carrier is None:
        (decisions.inserted if fits else decisions.omitted).append(name)
    elif fits:
        decisions.restored[carrier.position] = name
    else:
        decisions.notices[carrier.position] = (name, "no_room")
