"""Loads as values: the entry of a skill, the record of its load, and what is loaded."""

from typing import Any

from deepskills import SkillMetadata
from deepskills._catalog.catalog import SkillEntry
from deepskills._loading.budget import LoadedSkills
from deepskills._types import LoadRecord


def entry_of(name: str) -> SkillEntry:
    """Return the entry of a skill below `/skills`."""
    metadata = SkillMetadata(
        path=f"/skills/{name}/SKILL.md",
        name=name,
        description="Does a thing.",
        license=None,
        compatibility=None,
        metadata={},
        allowed_tools=[],
    )
    return SkillEntry(metadata, "/skills", "digest")


def record_of_load(name: str, digest: str = "old", tokens: int = 100, **further: Any) -> LoadRecord:
    """Return the record of a load."""
    made: LoadRecord = {"path": entry_of(name).path, "digest": digest, "tokens": tokens}
    made.update(further)  # type: ignore[typeddict-item]
    return made


def loaded_skills(**sizes: int) -> LoadedSkills:
    """Return what is loaded: these skills, each at its size, in this order."""
    return LoadedSkills(tuple(sizes), {name: record_of_load(name, tokens=size) for name, size in sizes.items()})
