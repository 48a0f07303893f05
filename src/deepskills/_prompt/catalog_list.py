"""The list of skills in the prompt, whole or cut to a budget. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepskills._prompt.wording import (
    entry_head,
    entry_lines,
    load_hint,
    resources_line,
    shortened_line,
    shown_description,
)
from deepskills._types import ResourceMetadata, SkillMetadata

LOADED_STATUS = " [Loaded]"
"""Marks a loaded skill in the list."""

MIN_CAP = 12
"""Shortest common length of descriptions; with less they say nothing, and names stand alone."""

_ELLIPSIS = "..."


@dataclass(frozen=True)
class Listed:
    """The skills to list, and what is loaded of them."""

    skills: Sequence[SkillMetadata]
    loaded: frozenset[str]
    resources: Mapping[str, list[ResourceMetadata]]

    def status(self, skill: SkillMetadata) -> str:
        """Return the mark behind a skill's name."""
        return LOADED_STATUS if skill["name"] in self.loaded else ""

    def tail(self, skill: SkillMetadata) -> list[str]:
        """Return the line about the resources of a loaded skill."""
        if skill["name"] not in self.loaded:
            return []
        line = resources_line(self.resources.get(skill["name"], ()))
        return [line] if line else []


def render_list(listed: Listed, budget: int | None, *, searchable: bool = False) -> str:
    """Return the list. Over a budget, hints go first, then descriptions shrink to a common cap; a name never goes."""
    text = "\n".join(line for skill in listed.skills for line in _whole_entry(listed, skill))
    if budget is None or len(text) <= budget:
        return text
    without_hints = _with_note(_hintless(listed), len(listed.skills), listed, searchable=searchable)
    if len(without_hints) <= budget:
        return without_hints
    return _shortened(listed, budget, searchable=searchable)


def _whole_entry(listed: Listed, skill: SkillMetadata) -> list[str]:
    hint = [] if skill["name"] in listed.loaded else [load_hint(skill)]
    return [*entry_lines(skill, listed.status(skill)), *listed.tail(skill), *hint]


def _hintless(listed: Listed) -> list[str]:
    return [
        line for skill in listed.skills for line in (*entry_lines(skill, listed.status(skill)), *listed.tail(skill))
    ]


def _with_note(lines: list[str], whole: int, listed: Listed, *, searchable: bool) -> str:
    return "\n".join([*lines, shortened_line(whole, len(listed.skills), searchable=searchable)])


def _shortened(listed: Listed, budget: int, *, searchable: bool) -> str:
    """Return the list with every description cut at the largest cap that fits; a cap of zero leaves names alone."""
    descriptions = [shown_description(skill) for skill in listed.skills]
    low, high = 0, max(map(len, descriptions))
    best = _capped(listed, descriptions, 0, searchable=searchable)
    while low < high:
        cap = (low + high + 1) // 2
        text = _capped(listed, descriptions, cap, searchable=searchable)
        if len(text) <= budget:
            low, best = cap, text
        else:
            high = cap - 1
    return best


def _capped(listed: Listed, descriptions: Sequence[str], cap: int, *, searchable: bool) -> str:
    lines: list[str] = []
    whole = 0
    for skill, description in zip(listed.skills, descriptions, strict=True):
        head = f"{entry_head(skill)}{listed.status(skill)}"
        if cap < MIN_CAP:
            lines.append(head)
            continue
        shown = _cut(description, cap)
        whole += shown == description
        lines += [f"{head}: {shown}", *listed.tail(skill)]
    return _with_note(lines, whole, listed, searchable=searchable)


def _cut(text: str, cap: int) -> str:
    """Return `text` in at most `cap` characters."""
    return text if len(text) <= cap else text[: cap - len(_ELLIPSIS)].rstrip() + _ELLIPSIS
