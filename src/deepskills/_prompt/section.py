"""The skills section of the system prompt, rendered once for each state of things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deepskills._backend.cache import BoundedCache
from deepskills._catalog.catalog import Catalog
from deepskills._catalog.entries import SkillEntry, Visibility
from deepskills._catalog.sources import Source
from deepskills._prompt.catalog_list import CatalogList
from deepskills._prompt.template import render_empty, render_locations, render_warnings
from deepskills._types import ResourceMetadata

MAX_REMEMBERED_CHARACTERS = 64_000_000
"""How much text of sections and lists is remembered; an instance may serve many users at a time."""


@dataclass(frozen=True)
class SectionInput:
    """Everything the section depends on."""

    catalog: Catalog
    sources: Sequence[Source]
    errors: Sequence[str] = ()
    loaded: Mapping[str, Sequence[ResourceMetadata]] = field(default_factory=dict)
    hidden: Mapping[str, Visibility] = field(default_factory=dict)
    """Skills that are not simply visible."""

    replaced_list: str | None = None
    """What an extension shows in place of the list."""


class Section:
    """Renders the section from a template; an unchanged input costs a look-up."""

    def __init__(
        self, template: str, *, shows_loaded: bool, budget: int | None = None, searchable: bool = False
    ) -> None:
        self._template = template
        self._shows_loaded = shows_loaded
        self._budget = budget
        self._searchable = searchable
        self._lists: BoundedCache[tuple[object, ...], CatalogList] = BoundedCache(MAX_REMEMBERED_CHARACTERS, len)
        self._sections: BoundedCache[tuple[object, ...], str] = BoundedCache(MAX_REMEMBERED_CHARACTERS, len)

    def render(self, given: SectionInput) -> str:
        """Return the section's text; empty if there are skills and the model may see none of them."""
        hidden = tuple(sorted(given.hidden.items()))
        loaded = given.loaded if self._shows_loaded else {}
        marked = tuple((name, tuple(r["type"] for r in files)) for name, files in loaded.items())
        sources = tuple(given.sources)
        key = (given.catalog, hidden, marked, sources, tuple(given.errors), given.replaced_list)
        return self._sections.get_or_make(key, lambda: self._rendered(given, hidden, loaded))

    def _rendered(
        self,
        given: SectionInput,
        hidden: tuple[tuple[str, Visibility], ...],
        loaded: Mapping[str, Sequence[ResourceMetadata]],
    ) -> str:
        shown = visible(given.catalog, given.hidden)
        if given.catalog.entries and not shown:
            return ""
        if given.replaced_list is not None:
            skills = given.replaced_list
        elif not shown:
            skills = render_empty(given.sources)
        else:
            skills = self._list(given, hidden, shown).render(loaded, self._budget, searchable=self._searchable)
        return self._template.format(
            skills_locations=render_locations(given.sources),
            skills_load_warnings=render_warnings(given.errors),
            skills_list=skills,
        )

    def _list(
        self, given: SectionInput, hidden: tuple[tuple[str, Visibility], ...], shown: Sequence[SkillEntry]
    ) -> CatalogList:
        bare = [name for name, visibility in hidden if visibility == "name-only"]
        return self._lists.get_or_make((given.catalog, hidden), lambda: CatalogList(shown, bare))


def visible(catalog: Catalog, hidden: Mapping[str, Visibility]) -> Sequence[SkillEntry]:
    """Return the skills that the model may see."""
    if not hidden:
        return catalog.entries
    return [entry for entry in catalog.entries if hidden.get(entry.name, "on") in {"on", "name-only"}]
