"""The file that type checkers accept uses every public name, and does what it says."""

import ast
import re
from pathlib import Path

import typing_api

import deepskills
from deepskills import SkillsManager, generate_skill_md

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_used() -> None:
    """A name that is exported without being shown to the type checkers is missing here."""
    tree = ast.parse(Path(typing_api.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "deepskills"]
    imported = {alias.name for node in imports for alias in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported & used == set(deepskills.__all__)


def test_the_code_of_the_readme_is_among_it() -> None:
    """Type checkers see the README's agent as a reader copies it, and the list that the page on migrating shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("```python\n")[2].partition("```")[0]
    checked = Path(typing_api.__file__).read_text(encoding="utf-8")
    lines = [line for line in shown.splitlines() if line and not line.startswith(("from ", "# "))]
    assert len(lines) > 3
    lines.append("middleware: list[AgentMiddleware[Any, Any, Any]] = [TodoListMiddleware(), skills]")
    migrating = (ROOT / "docs" / "how-to" / "migrate.md").read_text(encoding="utf-8")
    assert lines[-1] in migrating
    assert [line for line in lines if line not in checked] == []
    question = re.search(r"class Question.*?\n\n\nquestion: Question = \{.*?\n\}\n", migrating, flags=re.DOTALL)
    assert question is not None
    assert [line for line in question[0].splitlines() if line.strip() not in checked] == []


def test_what_the_type_checkers_accept_also_runs(tmp_path: Path) -> None:
    """Files, errors and agents behave as the annotations say."""
    assert typing_api.files(tmp_path) == ["# PDF forms\n", "pdf-forms"]
    said, state = typing_api.agents(tmp_path)
    assert said[-1] == "Done."
    assert "pdf-forms" in state
    refused, absent, missing = typing_api.errors(SkillsManager.from_directory(tmp_path / "skills"))
    assert (refused[:8], absent[:7], missing[:9]) == ("refused:", "absent:", "no skill:")


def test_pages_say_which_context_a_middleware_is_for(tmp_path: Path) -> None:
    """Where a page passes `context_schema`, its middleware names that class, as type checkers want it."""
    (tmp_path / "ada" / "skills" / "notes").mkdir(parents=True)
    (tmp_path / "ada" / "skills" / "notes" / "SKILL.md").write_text(generate_skill_md("notes", "Takes notes."))
    assert "- **notes**" in typing_api.per_user(tmp_path)
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "context_schema=Context" in page.read_text("utf-8")]
    assert len(pages) > 5
    assert [page.name for page in pages if "[Context](" not in page.read_text(encoding="utf-8")] == []
