"""What a model reads of suggested skills: the note at the end of a message, and the line in place of the list."""

from collections.abc import Iterable

from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.lookup import full_description
from deepskills._prompt.fields import field_text, shown_name

MAX_SUGGESTED_DESCRIPTION = 500
"""How much of a description a note shows."""

NOTE_HEADING = (
    "[Note from the skills system, not from the user: these skills may fit this message. "
    "If one does, call `load_skill` with its name before you start; if none does, ignore this note.]"
)
"""Opens the note at the end of a user's message."""

LIST_REPLACED = (
    "There {are} {count} {skills}. They are not listed here: skills that may fit are suggested at the end of a user's "
    "message, and `search_skills` finds any other by what it is for. Load one by `load_skill` with its name."
)
"""Stands in the section in place of the list of skills."""


def suggestion_line(entry: SkillEntry, *, shows_description: bool = True) -> str:
    """Return the line of one skill in a note."""
    name = f"- **{shown_name(entry.name)}**"
    return f"{name}: {field_text(full_description(entry), MAX_SUGGESTED_DESCRIPTION)}" if shows_description else name


def suggestion_note(lines: Iterable[str]) -> str:
    """Return the note that holds these lines."""
    return "\n".join([NOTE_HEADING, *lines])


def replaced_list(count: int) -> str:
    """Return what stands in place of a list of so many skills."""
    one = count == 1
    return LIST_REPLACED.format(are="is" if one else "are", count=f"{count:,}", skills="skill" if one else "skills")
