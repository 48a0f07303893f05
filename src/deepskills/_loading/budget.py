"""Decides on loads and unloads: what they cost, and whether there is room.

First the counting: `Budgets` are the limits, `Standing` is what is loaded under them. Tokens are estimated without a
tokenizer: a model's own is not known here, and counting must be quick on texts of ten megabytes. The estimate follows
LangChain's approximate counter, except for Chinese, Japanese and Korean, which that one takes for a quarter of what
they cost.

Then the deciding: an outcome is a value, and `decide_load` is the budget rule. `_prompt/messages.py` words outcomes for
the model, `_middleware` applies them to state. How the calls of one turn see each other is in `_middleware/turn.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import Broken, Unknown
from deepskills._files.inventory import Inventory
from deepskills._skillmd.names import meant_name
from deepskills._types import LoadRecord

CHARACTERS_PER_TOKEN = 4
"""How many characters of most scripts make one token, as LangChain's approximate counter has it."""

MESSAGE_TOKENS = 3
"""What a message costs besides its characters, as LangChain's approximate counter has it."""

MESSAGE_CHARACTERS = len("tool") + len("load_skill") + len("call_") + 25
"""The characters around a text that answers `load_skill`: its role, its name and a call's id of the usual length."""

_WIDE_BLOCKS = bytes([0x11, *range(0x2E, 0xA0), *range(0xAC, 0xD8), 0xF9, 0xFA, 0xFF])
"""High bytes of the UTF-16 units that write Chinese, Japanese and Korean, full-width punctuation included."""

_IDEOGRAPHIC_PLANES = (2, 3)
"""The planes beyond the first that hold nothing but ideographs."""


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as the answer to a call of `load_skill`.

    A character of Chinese, Japanese or Korean is one token; the rest counts as LangChain's approximate counter does.
    """
    return _count(text, MESSAGE_CHARACTERS) + MESSAGE_TOKENS


def count_text_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as a part of a message that is there anyway, such as the prompt."""
    return _count(text, 0)


def _count(text: str, further_characters: int) -> int:
    wide = _count_wide(text)
    return wide + -(-(len(text) - wide + further_characters) // CHARACTERS_PER_TOKEN)


def _count_wide(text: str) -> int:
    """Return how many characters are Chinese, Japanese or Korean; no Python step per character."""
    if text.isascii():
        return 0
    # All work is done by `encode`, slicing and `translate`, which run in C: a loop in Python is a hundred times slower.
    high_bytes = text.encode("utf-16-be", "surrogatepass")[::2]
    wide = len(high_bytes) - len(high_bytes.translate(None, _WIDE_BLOCKS))
    if len(high_bytes) > len(text):
        # There are surrogate pairs: rare ideographs among them are one token each as well.
        planes = text.encode("utf-32-be", "surrogatepass")[1::4]
        wide += sum(map(planes.count, _IDEOGRAPHIC_PLANES))
    return wide


# What is loaded.


class Assumed:
    """The digest of a load that an earlier call of the turn makes and that could not be read here."""

    DIGEST = "(assumed)"


@dataclass(frozen=True)
class Budgets:
    """How much may be loaded at a time."""

    skills: int
    tokens: int | None


NO_LIMIT = Budgets(skills=1_000_000, tokens=None)
"""For what the user asks for: budgets count it and do not refuse it."""


@dataclass(frozen=True)
class Standing:
    """What is loaded: names in load order, and each load's record."""

    loaded: tuple[str, ...] = ()
    records: Mapping[str, LoadRecord] = field(default_factory=dict)
    lingering: int = 0
    """Tokens of unloaded skills whose text is still in the request."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Skills that are no longer loaded because their text could not be recovered, and that nobody has unloaded."""
        return tuple(name for name, record in self.records.items() if record.get("lost") and name not in self.loaded)

    @property
    def tokens(self) -> int:
        """What all loaded skills cost together."""
        return sum(map(self.size, self.loaded))

    @property
    def is_assumed(self) -> bool:
        """Whether it holds a load of this turn whose size is unknown."""
        return any(self.records[name]["digest"] == Assumed.DIGEST for name in self.loaded if name in self.records)

    def size(self, name: str) -> int:
        """What one loaded skill costs."""
        record = self.records.get(name)
        return record["tokens"] if record else 0

    def with_load(self, name: str, record: LoadRecord) -> "Standing":
        """Return the standing after a load."""
        # A newer text of a loaded skill keeps its place in load order.
        loaded = self.loaded if name in self.loaded else (*self.loaded, name)
        return Standing(loaded, {**self.records, name: record}, self.lingering)

    def without(self, names: Iterable[str]) -> "Standing":
        """Return the standing after unloads."""
        gone = set(names)
        records = {key: record for key, record in self.records.items() if key not in gone}
        return Standing(tuple(name for name in self.loaded if name not in gone), records, self.lingering)

    def is_crowded(self, budgets: Budgets) -> bool:
        """Whether there is no room beside what is loaded for the texts of unloaded skills."""
        return budgets.tokens is not None and self.tokens + self.lingering > budgets.tokens

    def is_over(self, budgets: Budgets) -> bool:
        """Whether more is loaded than there is room for."""
        return len(self.loaded) > budgets.skills or (budgets.tokens is not None and self.tokens > budgets.tokens)


# What may become of a load or an unload.


@dataclass(frozen=True)
class Prepared:
    """A skill's text and files, ready to be loaded; `failure` says why there are none."""

    entry: SkillEntry
    arguments: str = ""
    block: str = ""
    """The text that enters the conversation."""

    inventory: Inventory = field(default_factory=Inventory)
    digest: str = ""
    tokens: int = 0
    failure: str | None = None
    text: str = ""
    """The instructions alone, as an extension may have changed them."""

    @property
    def name(self) -> str:
        """The skill's name."""
        return self.entry.name


@dataclass(frozen=True)
class Loaded:
    """The skill's text goes into the conversation."""

    prepared: Prepared
    standing: Standing
    updated: bool = False
    """Whether it was loaded before, with an older text."""

    relies_on: tuple[str, ...] = ()
    """Skills whose unload earlier in the turn made room for it."""

    unmet: tuple[str, ...] = ()
    """Skills that it requires and that are not loaded."""

    absent: tuple[str, ...] = ()
    """Names that it requires and that no skill has which may be loaded here."""


@dataclass(frozen=True)
class AlreadyLoaded:
    """Nothing to do: the text is there and is the current one."""

    name: str
    unchecked: str | None = None
    """Why the file could not be compared with what is loaded."""

    by_sibling: bool = False
    """Whether an earlier call of the same turn loads it, as far as this one can tell."""

    crowded: bool = False
    """Whether more is loaded than there is room for, so that the text may be left out of requests."""


@dataclass(frozen=True)
class Answered:
    """An extension answered the load in another way; nothing is loaded."""

    entry: SkillEntry
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Unloaded:
    """The skill's room is free again."""

    name: str
    standing: Standing
    record: LoadRecord | None = field(default=None, compare=False)
    """The record of its load, if it is a real one."""


@dataclass(frozen=True)
class ToolsWithdrawn:
    """The skill was only read as a file; it gives back the tools that came with it."""

    name: str


@dataclass(frozen=True)
class NotLoaded:
    """Nothing to unload."""

    asked: str
    standing: Standing


@dataclass(frozen=True)
class OverBudget:
    """No room for one more."""

    entry: SkillEntry
    needed: int
    standing: Standing
    limit: Literal["skills", "tokens"]
    along: tuple[str, ...] = ()
    """Skills that it requires and that would have been loaded with it; `needed` is the cost of all."""


@dataclass(frozen=True)
class Unreadable:
    """The file could not be read."""

    entry: SkillEntry
    reason: str
    required: str = ""
    """The skill that `entry` requires whose file it is; empty for its own."""


@dataclass(frozen=True)
class UserOnly:
    """Only the user may start this skill."""

    entry: SkillEntry


@dataclass(frozen=True)
class Refused:
    """An extension refused the load."""

    entry: SkillEntry
    reason: str


Refusal: TypeAlias = Unknown | Broken | NotLoaded | OverBudget | Unreadable | UserOnly | Refused
Outcome: TypeAlias = Loaded | AlreadyLoaded | Answered | Unloaded | ToolsWithdrawn | Refusal


# Deciding.


def decide_load(prepared: Prepared, standing: Standing, budgets: Budgets) -> Outcome:
    """Decide on one load, given what is loaded when it is its turn."""
    name = prepared.name
    is_loaded = name in standing.loaded
    record = standing.records.get(name) if is_loaded else None
    crowded = budgets.tokens is not None and standing.tokens > budgets.tokens
    if prepared.failure is not None:
        # The text is in the conversation already, so the model can go on with it; only the check for a newer one
        # failed.
        if is_loaded and not is_other(prepared.arguments, record):
            return AlreadyLoaded(name, unchecked=prepared.failure, crowded=crowded)
        return Unreadable(prepared.entry, prepared.failure)
    # Without a record nobody knows which text is there, so it counts as an older one.
    is_changed = record is None or record["digest"] != prepared.digest
    if is_loaded and not is_changed and not is_other(prepared.arguments, record):
        return AlreadyLoaded(name, crowded=crowded)
    if not is_loaded and len(standing.loaded) >= budgets.skills:
        return OverBudget(prepared.entry, prepared.tokens, standing, "skills")
    # A newer text takes the place of the older one, so that one's cost does not count against it.
    others = standing.tokens - (standing.size(name) if is_loaded else 0)
    if budgets.tokens is not None and others + prepared.tokens > budgets.tokens:
        return OverBudget(prepared.entry, prepared.tokens, standing, "tokens")
    after = standing.with_load(name, record_of(prepared))
    return Loaded(prepared, after, updated=is_loaded and is_changed)


def decide_together(
    prepared: Prepared, required: Sequence[Prepared], standing: Standing, budgets: Budgets
) -> tuple[Outcome, list[Loaded]]:
    """Decide on a load with what it requires, all or none: its outcome, and the loads that come before it."""
    loads: list[Loaded] = []
    after = standing
    for ready in required:
        outcome = decide_load(ready, after, budgets)
        if isinstance(outcome, Loaded):
            after = outcome.standing
            loads.append(outcome)
        elif isinstance(outcome, OverBudget):
            return _over_together(prepared, required, standing, outcome), []
        elif isinstance(outcome, Unreadable):
            return Unreadable(prepared.entry, outcome.reason, ready.name), []
    own = decide_load(prepared, after, budgets)
    if isinstance(own, OverBudget):
        return _over_together(prepared, required, standing, own), []
    return own, loads if isinstance(own, Loaded | AlreadyLoaded) else []


def _over_together(
    prepared: Prepared, required: Sequence[Prepared], standing: Standing, outcome: OverBudget
) -> OverBudget:
    along = [ready for ready in required if ready.name not in standing.loaded]
    if not along:
        return outcome
    needed = prepared.tokens + sum(ready.tokens for ready in along)
    return OverBudget(prepared.entry, needed, standing, outcome.limit, tuple(ready.name for ready in along))


def is_other(arguments: str, record: LoadRecord | None) -> bool:
    """Whether a load asks for other arguments than the previous one; none means the same again."""
    return bool(arguments.strip()) and record is not None and record.get("arguments", "") != arguments


def record_of(prepared: Prepared) -> LoadRecord:
    """Return what state keeps of a load, before its message is known."""
    record = LoadRecord(
        path=prepared.entry.path,
        source=prepared.entry.source,
        listed=prepared.entry.digest,
        digest=prepared.digest,
        tokens=prepared.tokens,
        arguments=prepared.arguments,
    )
    if prepared.entry.origin is not None:
        record["origin"] = prepared.entry.origin
    return record


def decide_unload(asked: str, standing: Standing) -> Unloaded | NotLoaded:
    """Decide on one unload, given what is loaded when it is its turn."""
    # Among what is loaded, not in the catalog: a skill that is hidden or gone can still be unloaded, and so can one
    # whose text was lost, because its limits hold until then.
    name = meant_name((*standing.loaded, *standing.lost), asked)
    if name is None:
        return NotLoaded(asked, standing)
    record = standing.records.get(name)
    # An assumed record was made up here, and must not reach an event.
    is_known = record is not None and record["digest"] != Assumed.DIGEST
    return Unloaded(name, standing.without([name]), record if is_known else None)
