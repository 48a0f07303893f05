"""The diagrams of the documentation, drawn by Mermaid as GitHub and the site draw them."""

import re
import tarfile
from pathlib import Path

import pytest
from browser_support import OpenPage

from support.npm import run_npm

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".cache" / "mermaid"
MERMAID = "mermaid@12.3.0"
DIAGRAMS = [
    (page.relative_to(ROOT).as_posix(), text)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for text in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
]


@pytest.fixture(scope="module")
def mermaid() -> Path:
    """Give Mermaid as one script."""
    script = PLACE / "package" / "dist" / "mermaid.min.js"
    if not script.exists():
        archive = PLACE / run_npm("pack", "--silent", MERMAID, place=PLACE).split()[-1]
        with tarfile.open(archive) as packed:
            packed.extract("package/dist/mermaid.min.js", PLACE, filter="data")
        archive.unlink()
    return script


def test_every_diagram_can_be_drawn(mermaid: Path, open_page: OpenPage) -> None:
    """Mermaid reads each diagram, and draws more than an error."""
    page = open_page("<html><body></body></html>")
    page.add_script_tag(path=mermaid)
    assert len(DIAGRAMS) > 7
    wrong = []
    for name, text in DIAGRAMS:
        drawn = page.evaluate(
            """async text => {
              try {
                document.body.innerHTML = (await mermaid.render("diagram", text)).svg;
                return document.querySelectorAll("svg text, svg foreignObject").length;
              } catch (error) {
                return error.message;
              }
            }""",
            text,
        )
        if not isinstance(drawn, int) or drawn < 3:
            wrong.append((name, drawn))
    assert wrong == []
