"""Draws `demo.svg`, the picture in the README, from what `make demo` prints: python docs/pictures/record_demo.py.

Left out are the texts that tools answer with, what the agent says before a call, and what is only cut short in the
terminal as well.
"""

import html
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "examples" / "demo.py"
GLYPHS: dict[str, str] = json.loads((HERE / "glyphs.json").read_text(encoding="utf-8"))["glyphs"]
"""Outlines of the characters that many machines have no font for, in a square of 1,000 units, the y axis upwards."""

WIDTH = 92
"""How many columns the terminal has."""

CELL, LINE, SIZE = 9.6, 22.0, 16
"""Width of a column, height of a line and size of the font, in pixels."""

PADDING, BAR = 22.0, 40.0
"""Room around the text, and the height of the window's title bar."""

STYLES = {
    "$": "command",
    "user:": "user",
    "skills found:": "state",
    "loaded now:": "state",
    "agent:": "agent",
    "agent calls": "call",
    "    | Error:": "refusal",
    "    |": "answer",
}
"""The class of a line, by how it starts."""

COLOURS = """
    text { font: 16px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d5d9e0 }
    .command, .user { font-weight: bold; fill: #ffffff }
    .state { fill: #8fd694 }
    .agent { font-weight: bold; fill: #79c0ff }
    .call { fill: #e3c06d }
    .refusal { fill: #ff8f85 }
    .answer { fill: #9aa2ae }
    g.state path { fill: #8fd694 }
    .title { font-weight: bold; fill: #9aa2ae }
"""


def transcript() -> list[tuple[str, str]]:
    """Return the class and the text of each line that the demo prints, the long ones wrapped at words."""
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, encoding="utf-8", check=True)  # noqa: S603 - our own script
    lines: list[tuple[str, str]] = [("command", "$ make demo")]
    style = ""
    for line in shorten(done.stdout):
        starts = (name for start, name in STYLES.items() if line.startswith(start))
        # The lines of one refusal belong together.
        style = style if style == "refusal" and line.startswith("    |") else next(starts, "")
        indent = "    | " if line.startswith("    |") else "      "
        lines += [
            (style, part)
            for part in textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
        ]
    return lines


def shorten(transcript: str) -> list[str]:
    """Return the lines of the transcript that the picture shows: who does what, and what is refused or sent back."""
    shown: list[str] = []
    for part in transcript.rstrip().split("\n\n"):
        lines = part.splitlines()
        calls = [line.replace("  calls", "agent calls", 1) for line in lines if line.startswith("  calls ")]
        if calls:
            shown += calls
        elif " answers (" not in lines[0]:
            shown += [line for line in lines if not line.endswith(("...", "|"))]
        elif lines[1].startswith("    | Error:"):
            shown += lines[1:]
    return shown


def draw(lines: list[tuple[str, str]]) -> str:
    """Return the lines as a picture of a terminal that looks the same on every machine."""
    width, height = WIDTH * CELL + 2 * PADDING, len(lines) * LINE + BAR + PADDING
    dots = "".join(
        f'<circle cx="{PADDING + 22 * place:g}" cy="{BAR / 2:g}" r="6.5" fill="{fill}"/>'
        for place, fill in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    body = [part for row, (style, line) in enumerate(lines) for part in _line(style, line, BAR + LINE * row + SIZE)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            "<title>What make demo prints</title>",
            f"<style>{COLOURS}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#1d2128"/>',
            dots,
            f'<text class="title" x="{width / 2:g}" y="{BAR / 2 + 5:g}" text-anchor="middle">make demo</text>',
            *body,
            "</svg>\n",
        ]
    )


def _line(style: str, line: str, baseline: float) -> Iterator[str]:
    """Yield a line's parts, each at its column and as wide as its cells, whatever font the viewer has."""
    column = 0
    for is_drawn, group in groupby(line, key=lambda character: character in GLYPHS):
        text = "".join(group)
        start = column + (0 if is_drawn else len(text) - len(text.lstrip()))
        column += cell_len(text)
        if is_drawn:
            yield from _outlines(style, text, start, baseline)
        elif text.strip():
            length = cell_len(text.strip()) * CELL
            yield (
                f'<text class="{style}" x="{PADDING + start * CELL:.1f}" y="{baseline:g}" textLength="{length:.1f}">'
                f"{html.escape(text.strip(), quote=False)}</text>"
            )


def _outlines(style: str, text: str, column: int, baseline: float) -> Iterator[str]:
    scale = 2 * CELL / 1000
    yield f'<g class="{style}" role="img" aria-label="{html.escape(text)}">'
    for place, character in enumerate(text):
        x = PADDING + (column + 2 * place) * CELL
        yield f'<path transform="translate({x:.1f} {baseline:g}) scale({scale:g} -{scale:g})" d="{GLYPHS[character]}"/>'
    yield "</g>"


def check(lines: list[tuple[str, str]]) -> None:
    """Refuse characters that some viewers would see as boxes.

    Raises:
        ValueError: If a character is neither Latin nor in `glyphs.json`.
    """
    unknown = sorted(set(re.findall(r"[^\x20-\x7e]", "".join(line for _, line in lines))) - set(GLYPHS))
    if unknown:
        raise ValueError(
            f"Add the outlines of {''.join(unknown)} to glyphs.json; not every machine has a font for them."
        )


if __name__ == "__main__":
    drawn = transcript()
    check(drawn)
    (HERE / "demo.svg").write_text(draw(drawn), encoding="utf-8")
