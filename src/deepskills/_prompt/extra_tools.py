"""What the model reads of the extra tools: descriptions of tools and arguments, and their answers. Pure."""

from collections.abc import Sequence

from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.lookup import MAX_DESCRIPTION, full_description
from deepskills._prompt.fields import field_text, shown_name

DESCRIPTIONS = {
    "search_skills": "Search all skills by what they are for. Use it when the list of skills is long or cut short.",
    "list_skill_assets": "List the files of a skill: its scripts, references and assets.",
    "load_skill_asset": "Read a text file of a skill.",
    "get_skill_script_path": "Get the path by which a script of a skill can be run.",
}
"""The extra tools by name."""

QUERY = "What the skill should be about, in a few words."
RESULTS = "How many results to show."
SKILL_NAME = "The skill's name."
RELATIVE_PATH = "Path relative to the skill, such as `references/guide.md`."
SCRIPT_NAME = "Path relative to the skill's `scripts/` directory."

TRIED_AGAIN = "it is tried again at the next run"
"""When an agent looks again at a source that failed."""


def found_skills(entries: Sequence[SkillEntry], name_only: frozenset[str]) -> str:
    """Return the results of a search."""
    return "\n".join(_result(entry, shows_description=entry.name not in name_only) for entry in entries)


def _result(entry: SkillEntry, *, shows_description: bool) -> str:
    head = f"- **{shown_name(entry.name)}**"
    return f"{head}: {field_text(full_description(entry), MAX_DESCRIPTION)}" if shows_description else head


def nothing_found(query: str) -> str:
    """Say that no skill fits."""
    return f"No skill matches '{field_text(query, 200)}'. Try other words, or work without a skill."


def no_files(name: str) -> str:
    """Say that a skill has no files."""
    return f"The skill '{shown_name(name)}' has no files besides its instructions."


def unreadable(name: str, reason: str) -> str:
    """Say that a skill cannot be read."""
    return f"The skill '{shown_name(name)}' cannot be read: {reason}."


def failed(tool: str, error: Exception) -> str:
    """Say that a tool failed in a way that nobody expected."""
    return f"Error: {tool} failed ({type(error).__name__}). Work without it."
