"""Decides on loads and unloads: what they cost, and whether there is room.

First the counting: `Budgets` are the limits, `LoadedSkills` is what is loaded under them. Tokens are estimated without
a tokenizer: a model's own is not known here, and counting must be quick on texts of ten megabytes. The estimate looks
at what tokenizers split texts by: words, numbers, punctuation, gaps and scripts.

Then the deciding: an outcome is a value, and `decide_load` is the budget rule. `_prompt/messages.py` words outcomes for
the model, `_middleware` applies them to state. How the calls of one turn see each other is in `_middleware/turn.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.lookup import Broken, Unknown
from deepskills._files.inventory import Inventory
from deepskills._skillmd.names import find_meant_name
from deepskills._types import LoadRecord

CHARACTERS_PER_TOKEN = 4
"""How many characters of plain English make one token: LangChain's approximate counter takes every text so."""

MESSAGE_TOKENS = 14
"""What a message costs besides its text: its role, the tool's name and a call's id."""

_HUNDREDTHS = {"letter": 7, "word": 68, "digit": 10, "number": 160, "signs": 90, "camel": 125, "gap": 90, "line": 25}
"""Hundredths of a token that parts of an ASCII text cost, fitted to o200k_base on prose, code, tables, JSON and base64.

A word, a number, a run of punctuation and a gap of several spaces cost once for being there, however long; `camel` is a
small letter before a capital one, where words break, as they do everywhere in base64.
"""

_SCRIPT_HUNDREDTHS = (
    (100, bytes([0x11, *range(0x2E, 0xA0), *range(0xAC, 0xD8), 0xF9, 0xFA, 0xFF])),
    (90, bytes(range(0xD8, 0xE0))),
    (40, bytes([0x0E])),
    (42, bytes([0x0F, 0x10, 0x17])),
    (220, bytes([0x12, 0x13])),
    (70, bytes(range(0x20, 0x2E))),
)
"""Hundredths of a token that one UTF-16 unit costs, with the high bytes it applies to.

In this order: Chinese, Japanese and Korean with their full-width signs; halves of surrogate pairs,
mostly emoji; Thai and Lao; Tibetan, Burmese, Georgian and Khmer; Ethiopic; signs such as dashes, arrows and
boxes. Any other character that is not ASCII, accented Latin letters, Cyrillic, Greek, Arabic and the scripts of India
among them, costs `_OTHER_HUNDREDTHS`.
"""

_OTHER_HUNDREDTHS = 30

_IDEOGRAPHIC_PLANES = (2, 3)
"""The planes beyond the first that hold nothing but ideographs, of one token each."""


def _table(**marks: Iterable[int]) -> bytes:
    """Return a table for `bytes.translate` that gives each byte the mark of its kind."""
    table = bytearray(b"x" * 256)
    for mark, characters in marks.items():
        for character in characters:
            table[character] = ord(mark)
    return bytes(table)


_SMALL, _CAPITAL, _DIGITS = range(ord("a"), ord("z") + 1), range(ord("A"), ord("Z") + 1), range(ord("0"), ord("9") + 1)
_LETTERS = (*_SMALL, *_CAPITAL)
_SIGNS = [code for code in range(33, 127) if code not in {*_LETTERS, *_DIGITS}]
# Bytes from 128 on belong to characters of other scripts. They go on with a word and begin none: "größe" is one.
_ABROAD = range(128, 256)
_CASES = _table(u=_CAPITAL, l=_SMALL)
_WORDS = _table(l=_LETTERS, o=_ABROAD)
_NUMBERS = _table(d=_DIGITS)
_PUNCTUATION = _table(p=_SIGNS)
_GAPS = _table(s=b" \t")


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as the answer to a call of `load_skill`.

    Within 30 % of o200k_base on prose in most languages, code, tables, JSON and base64, never below LangChain's
    approximate counter; a character of Chinese, Japanese or Korean is one token, which is more than most models take.
    """
    return count_text_tokens(text) + MESSAGE_TOKENS


def count_text_tokens(text: str) -> int:
    """Return about how many tokens `text` costs as a part of a message that is there anyway, such as the prompt."""
    # All work is done by `encode`, slicing, `translate` and `count`, which run in C: a loop in Python
    # is a hundred times slower.
    estimate = _count_ascii(text)
    wide = wide_cost = 0
    if not text.isascii():
        wide, wide_cost, other_cost = _count_scripts(text)
        estimate += other_cost
    least = (len(text) - wide) * 100 // CHARACTERS_PER_TOKEN
    return -(-(max(estimate, least) + wide_cost) // 100)


def _count_ascii(text: str) -> int:
    """Return the hundredths of a token that the ASCII characters of a text cost."""
    # A line break first, so that a run at the very start has a border to begin at.
    octets = b"\n" + text.encode("utf-8", "surrogatepass")
    cases, words, numbers = octets.translate(_CASES), octets.translate(_WORDS), octets.translate(_NUMBERS)
    counts = {
        "letter": words.count(b"l"),
        "word": words.count(b"xl"),
        "digit": numbers.count(b"d"),
        "number": numbers.count(b"xd"),
        "signs": octets.translate(_PUNCTUATION).count(b"xp"),
        "camel": cases.count(b"lu"),
        "gap": octets.translate(_GAPS).count(b"xss"),
        "line": octets.count(b"\n") - 1,
    }
    return sum(_HUNDREDTHS[part] * number for part, number in counts.items())


def _count_scripts(text: str) -> tuple[int, int, int]:
    """Return how many characters are Chinese, Japanese or Korean, and the hundredths that these and others cost."""
    units = text.encode("utf-16-be", "surrogatepass")
    high_bytes = units[::2]
    numbers = [len(high_bytes) - len(high_bytes.translate(None, block)) for _, block in _SCRIPT_HUNDREDTHS]
    costs = [cost * number for (cost, _), number in zip(_SCRIPT_HUNDREDTHS, numbers, strict=True)]
    # Accented letters share their high byte with ASCII, so what is left over is counted from the whole.
    others = len(high_bytes) - len(text.encode("ascii", "ignore")) - sum(numbers)
    wide = numbers[0]
    if len(high_bytes) > len(text):
        # There are surrogate pairs: rare ideographs among them are one token each.
        planes = text.encode("utf-32-be", "surrogatepass")[1::4]
        rare = sum(map(planes.count, _IDEOGRAPHIC_PLANES))
        wide += rare
        costs[1] -= 2 * rare * _SCRIPT_HUNDREDTHS[1][0]
    return wide, wide * 100, sum(costs[1:]) + others * _OTHER_HUNDREDTHS


# What is loaded.


ASSUMED = "(assumed)"
"""The digest of a load that an earlier call of the turn makes and that could not be read here."""


@dataclass(frozen=True)
class Budgets:
    """How much may be loaded at a time."""

    skills: int
    tokens: int | None


NO_LIMIT = Budgets(skills=1_000_000, tokens=None)
"""For what the user asks for: budgets count it and do not refuse it."""


@dataclass(frozen=True)
class LoadedSkills:
    """What is loaded: names in load order, and each load's record."""

    names: tuple[str, ...] = ()
    records: Mapping[str, LoadRecord] = field(default_factory=dict)
    lingering: int = 0
    """Tokens of unloaded skills whose text is still in the request."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Skills that are no longer loaded because their text could not be recovered, and that were not unloaded."""
        return tuple(name for name, record in self.records.items() if record.get("lost") and name not in self.names)

    @property
    def tokens(self) -> int:
        """What all loaded skills cost together."""
        return sum(map(self.size, self.names))

    @property
    def is_assumed(self) -> bool:
        """Whether it holds a load of this turn whose size is unknown."""
        return any(self.records[name]["digest"] == ASSUMED for name in self.names if name in self.records)

    def size(self, name: str) -> int:
        """What one loaded skill costs."""
        record = self.records.get(name)
        return record["tokens"] if record else 0

    def with_load(self, name: str, record: LoadRecord) -> "LoadedSkills":
        """Return what is loaded after a load."""
        # A newer text of a loaded skill keeps its place in load order.
        names = self.names if name in self.names else (*self.names, name)
        return LoadedSkills(names, {**self.records, name: record}, self.lingering)

    def without(self, names: Iterable[str]) -> "LoadedSkills":
        """Return what is loaded after unloads."""
        gone = set(names)
        records = {key: record for key, record in self.records.items() if key not in gone}
        return LoadedSkills(tuple(name for name in self.names if name not in gone), records, self.lingering)

    def is_crowded(self, budgets: Budgets) -> bool:
        """Whether there is no room beside what is loaded for the texts of unloaded skills."""
        return budgets.tokens is not None and self.tokens + self.lingering > budgets.tokens

    def is_over(self, budgets: Budgets) -> bool:
        """Whether more is loaded than there is room for."""
        return len(self.names) > budgets.skills or (budgets.tokens is not None and self.tokens > budgets.tokens)


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
    loaded: LoadedSkills
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
    loaded: LoadedSkills
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
    loaded: LoadedSkills


@dataclass(frozen=True)
class OverBudget:
    """No room for one more."""

    entry: SkillEntry
    needed: int
    loaded: LoadedSkills
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
LoadOutcome: TypeAlias = Loaded | AlreadyLoaded | Answered | Unloaded | ToolsWithdrawn | Refusal


# Deciding.


def decide_load(prepared: Prepared, loaded: LoadedSkills, budgets: Budgets) -> LoadOutcome:
    """Decide on one load, given what is loaded when it is its turn."""
    name = prepared.name
    is_loaded = name in loaded.names
    record = loaded.records.get(name) if is_loaded else None
    crowded = budgets.tokens is not None and loaded.tokens > budgets.tokens
    if prepared.failure is not None:
        # The text is in the conversation already, so the model can go on with it; only the check for a newer one
        # failed.
        if is_loaded and not is_other(prepared.arguments, record):
            return AlreadyLoaded(name, unchecked=prepared.failure, crowded=crowded)
        return Unreadable(prepared.entry, prepared.failure)
    # Without a record it is unknown which text is there, so it counts as an older one.
    is_changed = record is None or record["digest"] != prepared.digest
    if is_loaded and not is_changed and not is_other(prepared.arguments, record):
        return AlreadyLoaded(name, crowded=crowded)
    if not is_loaded and len(loaded.names) >= budgets.skills:
        return OverBudget(prepared.entry, prepared.tokens, loaded, "skills")
    # A newer text takes the place of the older one, so that one's cost does not count against it.
    others = loaded.tokens - (loaded.size(name) if is_loaded else 0)
    if budgets.tokens is not None and others + prepared.tokens > budgets.tokens:
        return OverBudget(prepared.entry, prepared.tokens, loaded, "tokens")
    after = loaded.with_load(name, record_of(prepared))
    return Loaded(prepared, after, updated=is_loaded and is_changed)


def decide_together(
    prepared: Prepared, required: Sequence[Prepared], loaded: LoadedSkills, budgets: Budgets
) -> tuple[LoadOutcome, list[Loaded]]:
    """Decide on a load with what it requires, all or none: its outcome, and the loads that come before it."""
    loads: list[Loaded] = []
    after = loaded
    for ready in required:
        outcome = decide_load(ready, after, budgets)
        if isinstance(outcome, Loaded):
            after = outcome.loaded
            loads.append(outcome)
        elif isinstance(outcome, OverBudget):
            return _over_together(prepared, required, loaded, outcome), []
        elif isinstance(outcome, Unreadable):
            return Unreadable(prepared.entry, outcome.reason, ready.name), []
    own = decide_load(prepared, after, budgets)
    if isinstance(own, OverBudget):
        return _over_together(prepared, required, loaded, own), []
    return own, loads if isinstance(own, Loaded | AlreadyLoaded) else []


def _over_together(
    prepared: Prepared, required: Sequence[Prepared], loaded: LoadedSkills, outcome: OverBudget
) -> OverBudget:
    along = [ready for ready in required if ready.name not in loaded.names]
    if not along:
        return outcome
    needed = prepared.tokens + sum(ready.tokens for ready in along)
    return OverBudget(prepared.entry, needed, loaded, outcome.limit, tuple(ready.name for ready in along))


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
    if prepared.entry.provided is not None:
        record["key"] = prepared.entry.provided.key
    if prepared.entry.origin is not None:
        record["origin"] = prepared.entry.origin
    return record


def decide_unload(asked: str, loaded: LoadedSkills) -> Unloaded | NotLoaded:
    """Decide on one unload, given what is loaded when it is its turn."""
    # Among what is loaded, not in the catalog: a skill that is hidden or gone can still be unloaded, and so can one
    # whose text was lost, because its limits hold until then.
    name = find_meant_name((*loaded.names, *loaded.lost), asked)
    if name is None:
        return NotLoaded(asked, loaded)
    record = loaded.records.get(name)
    # An assumed record was made up here, and must not reach an event.
    is_known = record is not None and record["digest"] != ASSUMED
    return Unloaded(name, loaded.without([name]), record if is_known else None)
