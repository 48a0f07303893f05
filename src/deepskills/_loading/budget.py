"""Counts the tokens that loaded skills cost, and holds the limits on how much may be loaded at a time.

Tokens are estimated without a tokenizer: a model's own is not known here, and counting must be quick on texts of ten
megabytes. The estimate follows LangChain's approximate counter, except for Chinese, Japanese and Korean, which that
one takes for a quarter of what they cost.

`Budgets` are the limits, `Standing` is what is loaded under them. The rule itself is in `turn.py` (`decide_load`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
