"""Draws what `make demo` prints as `demo.svg`, the picture in the README: python docs/pictures/record_demo.py."""

import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "examples" / "demo.py"
WIDTH = 112
STYLES = {
    "$": "bold white",
    "user:": "bold",
    "skills found:": "green",
    "loaded now:": "green",
    "agent:": "bold cyan",
    "  calls": "yellow",
    "    | Error:": "red",
    "    |": "bright_black",
}
"""How a line looks, by how it starts."""


def transcript() -> list[str]:
    """Return the lines that the demo prints, the long ones wrapped."""
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, encoding="utf-8", check=True)  # noqa: S603 - our own script
    lines = []
    for line in done.stdout.rstrip().splitlines():
        indent = "    | " if line.startswith("    |") else "      "
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=indent, drop_whitespace=False) or [""]
    return lines


def draw(lines: list[str]) -> str:
    """Return the lines as a picture of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for line in ["$ make demo", *lines]:
        style = next((style for start, style in STYLES.items() if line.startswith(start)), "")
        console.print(Text(line, style=style), soft_wrap=True)
    drawn = console.export_svg(title="make demo", unique_id="demo")
    return re.sub(r" *@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL)  # a picture fetches nothing


if __name__ == "__main__":
    (HERE / "demo.svg").write_text(draw(transcript()), encoding="utf-8")
