"""What the documentation says is true: its code runs, its links lead somewhere, its tables are complete."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from deepskills._problems import PROBLEMS
from deepskills.testing import ScriptedChatModel

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = '"anthropic:claude-sonnet-4-5"'
"""How the documentation names a model; here a scripted one takes its place."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if python_blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python on a page runs from top to bottom, in a directory that holds the example skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"scripted_model": ScriptedChatModel(replies=[])}
    for block in python_blocks(page):
        exec(compile(block.replace(MODEL, "scripted_model"), named(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link on a page names a file that is there."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_problem_code_is_explained() -> None:
    """Troubleshooting has a row for each code, with the right severity, and none for a code that is not there."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, flags=re.MULTILINE))
    assert rows.keys() == PROBLEMS.keys()
    assert {code: severity for code, severity in rows.items() if severity != "strict"} == {
        code: PROBLEMS[code][0] for code, severity in rows.items() if severity != "strict"
    }


def test_readme_names_the_two_commands() -> None:
    """A newcomer finds `make demo` and `make test` in the README, and both are in the Makefile."""
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
