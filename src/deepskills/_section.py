"""The skills section of the system prompt, rendered once for each state of things. Pure, save for what it remembers."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepskills._prompt import render_empty, render_entry, render_loaded_entry, render_locations, render_warnings
from deepskills._sources import Source
from deepskills._types import ResourceMetadata, SkillMetadata

REMEMBERED_SECTIONS = 16
"""How many sections are remembered; an instance may serve many users at a time."""


@dataclass(frozen=True)
class SectionInput:
    """Everything the section depends on."""

    skills: Sequence[SkillMetadata]
    sources: Sequence[Source]
    errors: Sequence[str]
    loaded: Sequence[str]
    resources: Mapping[str, list[ResourceMetadata]]


class Section:
    """Renders the section from a template; an unchanged input costs a comparison."""

    def __init__(self, template: str, *, shows_loaded: bool) -> None:
        self._template = template
        self._shows_loaded = shows_loaded
        self._lock = threading.Lock()
        self._entries: deque[tuple[list[SkillMetadata], list[str]]] = deque(maxlen=REMEMBERED_SECTIONS)
        self._sections: deque[tuple[SectionInput, str]] = deque(maxlen=REMEMBERED_SECTIONS)

    def render(self, given: SectionInput) -> str:
        """Return the section's text."""
        if not self._shows_loaded:
            given = SectionInput(given.skills, given.sources, given.errors, (), {})
        with self._lock:
            remembered = next((text for known, text in self._sections if known == given), None)
        if remembered is not None:
            return remembered
        text = self._template.format(
            skills_locations=render_locations(given.sources),
            skills_load_warnings=render_warnings(given.errors),
            skills_list=self._list(given),
        )
        with self._lock:
            self._sections.appendleft((given, text))
        return text

    def _list(self, given: SectionInput) -> str:
        if not given.skills:
            return render_empty(given.sources)
        loaded = set(given.loaded)
        return "\n".join(
            render_loaded_entry(skill, given.resources.get(skill["name"], ())) if skill["name"] in loaded else entry
            for skill, entry in zip(given.skills, self._plain_entries(list(given.skills)), strict=True)
        )

    def _plain_entries(self, skills: list[SkillMetadata]) -> list[str]:
        """Return each skill's entry as it stands while not loaded."""
        with self._lock:
            remembered = next((entries for known, entries in self._entries if known == skills), None)
        if remembered is not None:
            return remembered
        entries = [render_entry(skill) for skill in skills]
        with self._lock:
            self._entries.appendleft((skills, entries))
        return entries
