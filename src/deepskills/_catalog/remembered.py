"""A catalog as it was last seen: where each skill lies, and which new files would change that. Pure."""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deepskills._catalog.ranking import Library
from deepskills._catalog.search import Document
from deepskills._catalog.sources import Source, parent
from deepskills._format.text import is_text
from deepskills._types import SKILL_FILE, SkillMetadata, SkillProblem

TAG_FIELDS = ("tags", "keywords", "triggers")
"""Metadata whose words a skill is found by."""

_LOSERS = frozenset({"skill-shadowed", "skill-duplicate"})


@dataclass(frozen=True)
class Remembered:
    """What a look at all sources found, and when."""

    skills: Sequence[SkillMetadata]
    problems: Sequence[SkillProblem]
    sources: Sequence[Source]
    tags: Mapping[str, str]
    seen: float = field(default_factory=time.monotonic)

    def is_younger_than(self, seconds: float) -> bool:
        """Whether the look was that recent."""
        return time.monotonic() - self.seen < seconds

    def named(self, name: str) -> SkillMetadata | None:
        """Return the skill of that name: exactly, or in another case."""
        return self._by_name.get(name) or self._by_folded_name.get(name.casefold())

    @functools.cached_property
    def _by_name(self) -> dict[str, SkillMetadata]:
        return {skill["name"]: skill for skill in self.skills}

    @functools.cached_property
    def _by_folded_name(self) -> dict[str, SkillMetadata]:
        return {skill["name"].casefold(): skill for skill in reversed(self.skills)}

    @functools.cached_property
    def library(self) -> Library:
        """The skills as a search takes them."""
        return Library(document_of(skill, self.tags.get(skill["path"], "")) for skill in self.skills)

    @functools.cached_property
    def _losers(self) -> frozenset[str]:
        return frozenset(found["path"] for found in self.problems if found["code"] in _LOSERS)

    def rivals(self, skill: SkillMetadata) -> list[str]:
        """Return where a skill of the same name would usually lie if it had come since, in each source."""
        folder = parent(skill["path"]).rpartition("/")[2]
        folders = {name for name in (folder, skill["name"]) if _may_be_folder(name)}
        paths = [
            f"{source.path.rstrip('/')}/{name}/{SKILL_FILE}" for source in self.sources for name in sorted(folders)
        ]
        return [path for path in dict.fromkeys(paths) if path != skill["path"] and path not in self._losers]


def document_of(skill: SkillMetadata, tags: str) -> Document:
    """Return what is searched of a skill: its metadata, and further words that its file gives."""
    own = " ".join(skill["metadata"].get(name, "") for name in TAG_FIELDS)
    return Document(skill["name"], skill["description"], f"{own} {tags}".strip())


def _may_be_folder(name: str) -> bool:
    return bool(name) and is_text(name) and not name.startswith(".") and not set(name) & set("/\\\x00")
