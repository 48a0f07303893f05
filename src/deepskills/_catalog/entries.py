"""Entries of a catalog: a skill, where it comes from, and what of its frontmatter is acted on. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from deepskills._types import SkillMetadata

Visibility: TypeAlias = Literal["on", "name-only", "user-only", "off"]
"""How visible a skill is in a run, from everything to nothing."""

STRICTNESS: dict[str, int] = {"on": 0, "name-only": 1, "user-only": 2, "off": 3}
"""Visibilities in order; the strictest of several counts."""


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """One skill of a catalog."""

    skill: SkillMetadata
    """What the model is told of it."""

    source: str
    """Path of the source that gave it."""

    digest: str
    """Digest of its `SKILL.md` as discovery read it."""

    frontmatter: Mapping[str, Any] = field(default_factory=dict)
    """Frontmatter that the library or an extension acts on: text, lists and mappings, bounded in size."""

    sha256: str = ""
    """SHA-256 of its `SKILL.md` as this process read it, 64 hexadecimal digits; empty if only a summary was read."""

    is_read: bool = True
    """Whether this process has read the file; if not, nobody can tell what the skill allows, forbids or asks for."""

    @property
    def name(self) -> str:
        """The skill's name."""
        return self.skill["name"]

    @property
    def path(self) -> str:
        """Backend path of its `SKILL.md`."""
        return self.skill["path"]

    @property
    def description(self) -> str:
        """What the skill does and when to use it."""
        return self.skill["description"]
