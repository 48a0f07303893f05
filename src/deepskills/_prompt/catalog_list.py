"""The list of skills in the prompt, whole or cut to a budget. Pure.

The lines of a catalog are made once; a list for one conversation replaces those of its loaded skills and joins. So a
call costs little, however many conversations and skills there are.
"""

from collections.abc import Iterable, Mapping, Sequence

from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.lookup import MAX_DESCRIPTION, full_description
from deepskills._files.inventory import summarize
from deepskills._format.frontmatter import as_text
from deepskills._prompt.fields import field_text, shown_name
from deepskills._types import ResourceMetadata

LOADED_STATUS = " [Loaded]"
"""Marks a loaded skill in the list."""

LIST_WITHHELD = "(The list of skills cannot be shown at the moment.)"
"""Stands in place of the list where what decides about it has failed."""

MIN_CAP = 12
"""Shortest common length of descriptions; with less they say nothing, and names stand alone."""

MAX_FIELD_LENGTH = 500
"""Longest licence, compatibility note or list of tools that the catalog shows."""

MAX_HINT_LENGTH = 100
"""Longest hint on arguments that the catalog shows."""

_ELLIPSIS = "..."

Loaded = Mapping[str, Sequence[ResourceMetadata]]
"""The loaded skills to mark, each with its files."""


class CatalogList:
    """The list of some skills of a catalog."""

    def __init__(self, entries: Sequence[SkillEntry], name_only: Iterable[str] = ()) -> None:
        without = frozenset(name_only)
        self._entries = entries
        self._places = {entry.name: place for place, entry in enumerate(entries)}
        self._heads = [f"- **{shown_name(entry.name)}**" for entry in entries]
        self._descriptions = ["" if entry.name in without else shown_description(entry) for entry in entries]
        self._tails = ["" if entry.name in without else _notes(entry) for entry in entries]
        self._hintless = [
            _line(head, "", text) + tail
            for head, text, tail in zip(self._heads, self._descriptions, self._tails, strict=True)
        ]
        self._whole = [f"{line}\n{load_hint(e)}" for line, e in zip(self._hintless, entries, strict=True)]
        self._whole_length = _length(self._whole)
        self._hintless_length = _length(self._hintless)
        self._lengths: dict[int, tuple[int, int]] = {}
        self._capped: tuple[int, list[str]] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._whole))

    def render(self, loaded: Loaded, budget: int | None = None, *, searchable: bool = False) -> str:
        """Return the list. Over a budget, hints go first, then descriptions shrink to a common cap; never a name."""
        marked = {self._places[name]: _resources_line(files) for name, files in loaded.items() if name in self._places}
        if budget is None:
            return _joined(self._whole, {place: self._marked(place, line) for place, line in marked.items()})
        changed = {place: self._marked(place, line) for place, line in marked.items()}
        if self._whole_length + _growth(self._whole, changed) <= budget:
            return _joined(self._whole, changed)
        note = shortened_line(len(self._entries), len(self._entries), searchable=searchable)
        if self._hintless_length + _growth(self._hintless, changed) + len(note) + 1 <= budget:
            return f"{_joined(self._hintless, changed)}\n{note}"
        return self._shortened(marked, budget, searchable=searchable)

    def _marked(self, place: int, resources: str) -> str:
        line = _line(self._heads[place], LOADED_STATUS, self._descriptions[place]) + self._tails[place]
        return f"{line}\n{resources}" if resources else line

    def _shortened(self, marked: Mapping[int, str], budget: int, *, searchable: bool) -> str:
        """Return the list with every description cut at the largest cap that fits; a cap of zero leaves names alone."""
        low, high = 0, max(map(len, self._descriptions), default=0)
        total = len(self._entries)
        while low < high:
            cap = (low + high + 1) // 2
            length, whole = self._measure(cap)
            length += sum(
                len(LOADED_STATUS) + (len(line) + 1 if line and cap >= MIN_CAP else 0) for line in marked.values()
            )
            if length + 1 + len(shortened_line(whole, total, searchable=searchable)) <= budget:
                low = cap
            else:
                high = cap - 1
        _, whole = self._measure(low)
        lines = self._capped_lines(low)
        changed = {place: self._marked_capped(place, low, line) for place, line in marked.items()}
        return f"{_joined(lines, changed)}\n{shortened_line(whole, total, searchable=searchable)}"

    def _measure(self, cap: int) -> tuple[int, int]:
        """Return how long the capped list is, and how many descriptions are whole in it."""
        if cap not in self._lengths:
            names = sum(map(len, self._heads)) + len(self._heads) - 1
            if cap < MIN_CAP:
                self._lengths[cap] = (names, 0)
            else:
                shown = [len(_cut(text, cap)) for text in self._descriptions]
                colons = 2 * sum(1 for length in shown if length)
                whole = sum(1 for text in self._descriptions if len(text) <= cap)
                self._lengths[cap] = (names + sum(shown) + colons, whole)
        return self._lengths[cap]

    def _capped_lines(self, cap: int) -> list[str]:
        if self._capped is None or self._capped[0] != cap:
            lines = [
                self._heads[place] if cap < MIN_CAP else _line(self._heads[place], "", _cut(text, cap))
                for place, text in enumerate(self._descriptions)
            ]
            self._capped = (cap, lines)
        return self._capped[1]

    def _marked_capped(self, place: int, cap: int, resources: str) -> str:
        if cap < MIN_CAP:
            return self._heads[place] + LOADED_STATUS
        line = _line(self._heads[place], LOADED_STATUS, _cut(self._descriptions[place], cap))
        return f"{line}\n{resources}" if resources else line


def _line(head: str, status: str, description: str) -> str:
    return f"{head}{status}: {description}" if description else f"{head}{status}"


def _length(lines: Sequence[str]) -> int:
    return sum(map(len, lines)) + max(0, len(lines) - 1)


def _growth(lines: Sequence[str], changed: Mapping[int, str]) -> int:
    return sum(len(text) - len(lines[place]) for place, text in changed.items())


def _joined(lines: Sequence[str], changed: Mapping[int, str]) -> str:
    if not changed:
        return "\n".join(lines)
    mixed = list(lines)
    for place, text in changed.items():
        mixed[place] = text
    return "\n".join(mixed)


def _cut(text: str, cap: int) -> str:
    """Return `text` in at most `cap` characters."""
    return text if len(text) <= cap else text[: cap - len(_ELLIPSIS)].rstrip() + _ELLIPSIS


def shown_description(entry: SkillEntry) -> str:
    """Return a description as the catalog shows it."""
    return field_text(full_description(entry), MAX_DESCRIPTION)


def _notes(entry: SkillEntry) -> str:
    """Return what stands behind a description: licence, compatibility and recommended tools."""
    skill = entry.skill
    notes = [
        f"{label}: {field_text(text, MAX_FIELD_LENGTH)}"
        for label, text in (("License", skill["license"]), ("Compatibility", skill["compatibility"]))
        if text
    ]
    text = f" ({', '.join(notes)})" if notes else ""
    if skill["allowed_tools"]:
        text += f"\n  -> Recommended tools: {field_text(', '.join(skill['allowed_tools']), MAX_FIELD_LENGTH)}"
    return text


def load_hint(entry: SkillEntry) -> str:
    """Return the line that tells how to load a skill."""
    hint = as_text(entry.frontmatter.get("argument-hint"))
    arguments = f" (arguments: {field_text(hint, MAX_HINT_LENGTH)})" if hint else ""
    return f'  -> Use `load_skill("{shown_name(entry.name)}")` to read full instructions{arguments}'


def _resources_line(resources: Iterable[ResourceMetadata]) -> str:
    summary = summarize(resources)
    return f"  -> Resources: {summary}" if summary else ""


def shortened_line(whole: int, total: int, *, searchable: bool) -> str:
    """Say how much of the catalog is shown, and how to see the rest."""
    found = "the rest" if whole < total else "one by its purpose"
    how = f"use `search_skills` to find {found}, and " if searchable else ""
    return f"({whole} of {total} descriptions are shown in full; {how}`load_skill` with a name to read a skill.)"
