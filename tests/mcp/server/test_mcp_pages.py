"""The documentation of skills over MCP runs, and so does the example."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("skills-from-mcp.md", "serve-skills-over-mcp.md")


@pytest.mark.parametrize("page", PAGES)
def test_code_on_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in a directory that holds the example skills."""
    shutil.copytree(ROOT / "examples" / "skills", tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"^```python(?: [^\n]*)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), names)


def test_the_example_runs() -> None:
    """It shows both skills, asks before code runs, and takes no for an answer."""
    script = ROOT / "examples" / "skills_over_mcp.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in (
        "- **release-notes**",
        "- **team:release-notes** [MCP server 'team'",
        "a human is asked",
        "Not on this",
    ):
        assert part in done.stdout
