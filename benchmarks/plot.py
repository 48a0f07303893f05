"""Draws what a library costs against its size: `python benchmarks/plot.py` writes the pictures."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench import discover, ours, theirs
from deepagents.backends import FilesystemBackend
from library import write_library
from measure import seconds
from suggesting import SIZES as TOKEN_SIZES
from suggestion_rows import tokens

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 420, 80, 50, 30, 180
LABEL = 18
"""How far apart the names of two lines stand at least."""
COLOURS = {"deepagents": "#c2410c", "deepskills, first time": "#1d4ed8", "deepskills, second thread": "#0f766e"}
TOKEN_COLOURS = {"deepskills, full list": "#1d4ed8", "deepskills, suggestions": "#0f766e"}

Series = Mapping[str, Sequence[float]]
"""For each line of the plot, what is measured at each size."""


def measure() -> Series:
    """Return the median milliseconds of discovery at each size, everything in turns."""
    found: dict[str, list[float]] = {name: [] for name in COLOURS}
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            root = Path(directory) / str(size)
            write_library(root / "skills", size)
            backend = FilesystemBackend(root_dir=root)
            warm = ours(backend)
            discover(warm)
            runs: list[tuple[float, ...]] = []
            for _ in range(3 if size > 1_000 else 7):
                actions = (theirs(backend), ours(backend), warm)
                runs.append(tuple(1000 * seconds(partial(discover, middleware)) for middleware in actions))
            for name, times in zip(found, zip(*runs, strict=True), strict=True):
                found[name].append(median(times))
    return found


def draw(series: Series, sizes: Sequence[int] = SIZES, title: str = "milliseconds for one discovery") -> str:
    """Return the lines as SVG, both axes logarithmic."""
    values = [value for line in series.values() for value in line]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(size: float) -> float:
        return LEFT + (math.log10(size) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(milliseconds: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(milliseconds) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">{title}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">skills in the library</text>',
    ]
    for power in range(low, high + 1):
        height = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts += [
        f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size:,}</text>'
        for size in sizes
        if math.log10(size).is_integer()
    ]
    labels = spaced({name: y(line[-1]) + 4 for name, line in series.items()})
    for name, line in series.items():
        points = [f"{x(size):.1f},{y(value):.1f}" for size, value in zip(sizes, line, strict=True)]
        colour = {**COLOURS, **TOKEN_COLOURS}[name]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="{colour}"/>' for p in points]
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{labels[name]:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def spaced(heights: Mapping[str, float]) -> dict[str, float]:
    """Return heights of labels, from the top, moved down where two would stand on each other."""
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: heights[name]):
        placed[name] = max(heights[name], max(placed.values(), default=0.0) + LABEL)
    return placed


if __name__ == "__main__":
    (PICTURES / "library-size.svg").write_text(draw(measure()), encoding="utf-8")
    picture = draw(tokens(), TOKEN_SIZES, "tokens in the first request of a thread")
    (PICTURES / "tokens.svg").write_text(picture, encoding="utf-8")
