"""The reference is complete: every public name, tool, argument, state key and event has its place there."""

import re
from pathlib import Path

from deepagents.backends import StateBackend

import deepskills
from deepskills import SkillsMiddleware, SkillsState, extensions, store
from deepskills.extensions import SkillScripts

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
NAMES = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
EXTRA_TOOLS = ["search_skills", "list_skill_assets", "load_skill_asset", "get_skill_script_path"]
IN_WORDS = {
    "SKILLS_SYSTEM_PROMPT",
    "SkillSource",
    "SkillsState",
    "SkillsStateUpdate",
    "Visibility",
    "DEFAULT_ALIASES",
    "Base",
}
"""Public names that pages explain in words: types of arguments, constants, and state, which has a table."""
ELSEWHERE = {
    "deepskills.store.SkillFormatError",
    "deepskills.store.SkillNotFoundError",
    "deepskills.store.SkillPathError",
}
"""Names that a module passes on from `deepskills`."""


def test_every_public_name_is_in_the_reference() -> None:
    """Each public class and function is rendered from its docstring."""
    shown = set(re.findall(r"^::: (\S+)", REFERENCE, flags=re.MULTILINE))
    public = {
        f"{module.__name__}.{name}"
        for module in (deepskills, extensions, store)
        for name in module.__all__
        if name not in IN_WORDS
    }
    assert public - shown - ELSEWHERE == set()


def test_every_tool_has_a_row_with_its_arguments() -> None:
    """The table of tools has each tool and, in the same row, each of its arguments."""
    skills = SkillsMiddleware(
        backend=StateBackend(), sources=["/skills"], extra_tools=EXTRA_TOOLS, extensions=[SkillScripts()]
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", NAMES, flags=re.MULTILINE))
    documented = {tool.name: set(re.findall(r"`(\w+)", rows.get(tool.name, ""))) for tool in skills.tools}
    assert documented == {tool.name: set(tool.args) for tool in skills.tools}


def test_every_state_key_has_a_row() -> None:
    """The tables of state have each key that skills add to an agent's state, except one of deepagents' own."""
    keys = {key for key in SkillsState.__annotations__ if key.startswith(("skill", "pinned"))}
    assert {key for key in keys if f"| `{key}` |" not in NAMES} == set()


def test_every_event_has_a_row() -> None:
    """The table of events has each type that the source emits, and no other."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    emitted = {f"skill.{kind}" for kind in re.findall(r'skill_event\(\s*"(\w+)"', source)}
    emitted |= set(re.findall(r'"type": "(skill\.\w+)"', source))
    assert set(re.findall(r"^\| `(skill\.\w+)` \|", NAMES, flags=re.MULTILINE)) == emitted
