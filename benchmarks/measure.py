"""How the benchmarks measure: everything beside its reference, interleaved, in one process."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RUNS = 7
"""How often both sides of a comparison run, in turns."""


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, beside what, and what it should reach."""

    what: str
    reference: str
    measured: str
    reach: str
    reached: bool
    numbers: dict[str, float]


@dataclass(frozen=True)
class Ratio:
    """How many times faster one thing is than another: the median of paired runs, and their spread."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1f}x ({self.low:.1f} to {self.high:.1f})"


def seconds(action: Callable[[], object]) -> float:
    """Return how long one run takes."""
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compare(
    reference: Callable[[], object], ours: Callable[[], object], runs: int = RUNS
) -> tuple[Ratio, float, float]:
    """Run both in turns and return how many times faster ours is, and the median seconds of each."""
    pairs = [(seconds(reference), seconds(ours)) for _ in range(runs)]
    ratios = sorted(theirs / mine for theirs, mine in pairs)
    return (
        Ratio(statistics.median(ratios), ratios[0], ratios[-1]),
        statistics.median(theirs for theirs, _ in pairs),
        statistics.median(mine for _, mine in pairs),
    )


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the first the heading and the second the rule, as an aligned Markdown table."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(f"| {line} |" for line in lines)
