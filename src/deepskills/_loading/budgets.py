"""What is loaded and what it costs. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from deepskills._types import LoadRecord


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
    def tokens(self) -> int:
        """What all loaded skills cost together."""
        return sum(map(self.size, self.loaded))

    @property
    def is_assumed(self) -> bool:
        """Whether it holds a load of this turn whose size cannot be told."""
        return any(self.records[name]["digest"] == Assumed.DIGEST for name in self.loaded if name in self.records)

    def size(self, name: str) -> int:
        """What one loaded skill costs."""
        record = self.records.get(name)
        return record["tokens"] if record else 0

    def with_load(self, name: str, record: LoadRecord) -> "Standing":
        """Return the standing after a load."""
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
