"""The skills section of the system prompt, rendered once for each state of things. Pure, save for what it remembers."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepskills._catalog.sources import Source
from deepskills._prompt.catalog_list import Listed, render_list
from deepskills._prompt.wording import render_empty, render_locations, render_warnings
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

    def __init__(
        self, template: str, *, shows_loaded: bool, budget: int | None = None, searchable: bool = False
    ) -> None:
        self._template = template
        self._shows_loaded = shows_loaded
        self._budget = budget
        self._searchable = searchable
        self._lock = threading.Lock()
        self._sections: deque[tuple[SectionInput, str]] = deque(maxlen=REMEMBERED_SECTIONS)

    def __deepcopy__(self, memo: dict[int, object]) -> "Section":
        """Return an empty one: what is remembered is not part of what a copy is for."""
        return Section(
            self._template, shows_loaded=self._shows_loaded, budget=self._budget, searchable=self._searchable
        )

    def render(self, given: SectionInput) -> str:
        """Return the section's text."""
        given = self._snapshot(given)
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

    def _snapshot(self, given: SectionInput) -> SectionInput:
        """Return what the section shows of its input, in lists that nobody else can change."""
        return SectionInput(
            skills=list(given.skills),
            sources=list(given.sources),
            errors=list(given.errors),
            loaded=list(given.loaded) if self._shows_loaded else [],
            resources={name: list(files) for name, files in given.resources.items()} if self._shows_loaded else {},
        )

    def _list(self, given: SectionInput) -> str:
        if not given.skills:
            return render_empty(given.sources)
        listed = Listed(given.skills, frozenset(given.loaded), given.resources)
        return render_list(listed, self._budget, searchable=self._searchable)
