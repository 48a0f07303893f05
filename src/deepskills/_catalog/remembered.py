"""A catalog as it was last seen: how long ago, and which new files would change whose name is whose. Pure."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from deepskills._catalog.catalog import Catalog
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._format.text import is_text
from deepskills._types import SKILL_FILE, SkillProblem

_LOSERS = frozenset({"skill-shadowed", "skill-duplicate"})


@dataclass(frozen=True)
class Remembered:
    """What a look at all sources found, and when."""

    catalog: Catalog
    problems: Sequence[SkillProblem]
    seen: float = field(default_factory=time.monotonic)

    def is_younger_than(self, seconds: float) -> bool:
        """Whether the look was that recent."""
        return time.monotonic() - self.seen < seconds

    @cached_property
    def _losers(self) -> frozenset[str]:
        return frozenset(found["path"] for found in self.problems if found["code"] in _LOSERS)

    def rivals(self, entry: SkillEntry) -> list[str]:
        """Return where a skill of the same name would usually lie if it had come since, in each source."""
        folder = parent(entry.path).rpartition("/")[2]
        folders = sorted({name for name in (folder, entry.name) if _may_be_folder(name)})
        sources = [source.path.rstrip("/") for source in self.catalog.sources]
        paths = dict.fromkeys(f"{source}/{name}/{SKILL_FILE}" for source in sources for name in folders)
        return [path for path in paths if path != entry.path and path not in self._losers]


def _may_be_folder(name: str) -> bool:
    return bool(name) and is_text(name) and not name.startswith(".") and not set(name) & set("/\\\x00")
