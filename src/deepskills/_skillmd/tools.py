"""The tools that skills' files name: those of skills themselves, and deepagents' under other clients' names."""

from collections.abc import Mapping

SCRIPT_TOOL = "run_skill_script"
"""The tool that runs a skill's script: a skill can allow it only for its own scripts."""

OWN_TOOLS = frozenset(
    {
        "load_skill",
        "unload_skill",
        "search_skills",
        "load_skill_asset",
        "list_skill_assets",
        "get_skill_script_path",
    }
)
"""The tools with which skills themselves are used."""

DEFAULT_ALIASES: Mapping[str, str] = {
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "ls",
    "Bash": "execute",
    "Task": "task",
    "TodoWrite": "write_todos",
}
"""The names in deepagents of another client's tools."""


def tool_of_rule(rule: str) -> str:
    """Return the tool that a rule names: `Bash(git add:*)` is `Bash`, and says what it may be called with."""
    return rule.partition("(")[0].strip()
