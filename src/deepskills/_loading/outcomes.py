"""What a call of `load_skill` or `unload_skill` comes to, as values. `_prompt` words them and `_agent` applies them."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.lookup import Broken, Unknown
from deepskills._files.inventory import Inventory
from deepskills._loading.budgets import Standing
from deepskills._types import LoadRecord


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
    """What was kept of its load."""


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


@dataclass(frozen=True)
class Unreadable:
    """The file could not be read."""

    entry: SkillEntry
    reason: str


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

__all__ = [
    "AlreadyLoaded",
    "Answered",
    "Broken",
    "Loaded",
    "NotLoaded",
    "Outcome",
    "OverBudget",
    "Prepared",
    "Refusal",
    "Refused",
    "ToolsWithdrawn",
    "Unknown",
    "Unloaded",
    "Unreadable",
    "UserOnly",
]
