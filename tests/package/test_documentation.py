"""What the documentation says is true: its code runs, its links lead somewhere, its tables are complete."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepskills._format.problems import PROBLEMS
from deepskills.testing import ScriptedChatModel

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODEL = '"anthropic:claude-sonnet-4-5"'
"""How the documentation names a model; here a scripted one takes its place."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Return what stands between fences of that language on a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python on a page runs from top to bottom, in a directory that holds the example skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"scripted_model": ScriptedChatModel(replies=[]), "__file__": str(tmp_path / "agent.py")}
    for block in blocks(page, "python"):
        exec(compile(block.replace(MODEL, "scripted_model"), named(page), "exec"), names)


def commands(page: Path) -> list[tuple[str, str]]:
    """Return each command behind a `$` on a page, with what it is said to print."""
    found = []
    for block in re.findall(
        r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    ):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


COMMANDS = [(named(page), *command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command", "printed"), COMMANDS, ids=[command for _, command, _ in COMMANDS])
def test_commands_print_what_the_page_says(page: str, command: str, printed: str, tmp_path: Path) -> None:
    """A command with its output on a page prints that; numbers of tokens may differ, as paths do."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "examples" / "skills")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path), "LANG": "C.UTF-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, (page, done.stderr)
    expected = printed.replace("/home/me/project", str(tmp_path))
    assert re.sub(r"\d+ tokens", "N tokens", done.stdout) == re.sub(r"\d+ tokens", "N tokens", expected)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_yaml_on_the_page_is_yaml(page: Path) -> None:
    """Configuration on a page can be read."""
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block), dict)


def test_the_agent_of_the_readme_has_skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent in the README, in under twenty lines, shows its model the skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    [block] = blocks(ROOT / "README.md", "python")
    assert len(block.splitlines()) < 20
    model = ScriptedChatModel(replies=[])
    exec(compile(block.replace(MODEL, "model"), "README.md", "exec"), {"model": model})
    assert "- **release-notes**" in model.requests[0].system


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
