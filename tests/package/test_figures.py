"""Figures of the documentation: each names the command that prints it, and stands in what that command printed.

`docs/benchmarks.md` has the table of `make bench`. Any other page shows such figures in a table that begins with
"measured", whose rows begin as theirs do. What no clock decides is measured here again.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import conversation_rows
from checking import checking_rows
from measure import Row
from suggesting import SIZES
from suggestion_rows import tokens, written_turns_row

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables of a text."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


PRINTED = rows_of(BENCHMARKS.read_text(encoding="utf-8"))[2:]
NUMBER = re.compile(r"\d[\d,.]*\d|\d")
TABLE = re.compile(r"^\| (?:measured|实测) \|.*\n(?:\|.*\n)+", flags=re.MULTILINE)
TRANSLATED = ROOT / "README.zh-CN.md"


WITH_FIGURES = [page for page in PAGES if page != TRANSLATED and TABLE.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", WITH_FIGURES, ids=named)
def test_figures_of_a_page_are_those_that_were_measured(page: Path) -> None:
    """Each row of such a table begins a row that `make bench` printed, and its numbers stand there."""
    text = page.read_text(encoding="utf-8")
    for found in TABLE.finditer(text):
        assert "`make bench`" in text[: found.start()]
        for what, *cells in rows_of(found[0])[2:]:
            printed = [row for row in PRINTED if row[0].startswith(what)]
            assert printed, what
            assert [cell for cell in cells if not any(is_from(cell, source) for source in printed[0][1:3])] == [], what


def test_figures_of_a_translation_are_those_of_the_original() -> None:
    """Row by row, the numbers of a translated table are the numbers of the table that it translates."""
    tables = []
    for page in (ROOT / "README.md", TRANSLATED):
        [table] = TABLE.findall(page.read_text(encoding="utf-8"))
        tables.append([[sorted(set(NUMBER.findall(cell))) for cell in cells] for cells in rows_of(table)])
    assert tables[0] == tables[1]


def is_from(cell: str, source: str) -> bool:
    """Whether all numbers of a cell stand in a cell that was printed, those with a slash between them side by side."""
    pairs = re.findall(r"[\d,.]+(?: / [\d,.]+)+", cell)
    return set(NUMBER.findall(cell)) <= set(NUMBER.findall(source)) and all(pair in source for pair in pairs)


MEASURED = re.compile(
    r"\b\d[\d.,]* ?%(?!\w)|\d ms\b|\dx\b|\d times (?:faster|slower)|\d of 10 cases|\d s of CPU|\d tokens\b"
)
HELD_ELSEWHERE = {
    "docs/concepts/context.md": ("test_the_table_of_prompt_caches_is_what_the_script_prints", "prompt_cache.py"),
    "docs/concepts/skills.md": ("tests/loading/test_budget.py", "within 30 %"),
    "docs/zh/concepts.md": ("tests/loading/test_budget.py", "30 %"),
    "docs/how-to/measure-your-skills.md": ("the code of the page asserts them", "(0.51, 1.0)"),
    "docs/cli.md": ("its commands print them in `test_pages.py`", "tokens"),
}
"""Pages with figures that `make bench` does not print: what holds them, and what stands beside them."""


def test_every_measured_figure_is_held() -> None:
    """No figure stands outside of a table that is compared, except on pages where something else compares it."""
    silent = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        _, beside = HELD_ELSEWHERE.get(named(page), ("", None))
        if page != BENCHMARKS and (beside is None or beside not in text):
            prose = re.sub(r"^```.*?^```", "", TABLE.sub("", text), flags=re.DOTALL | re.MULTILINE)
            silent += [(named(page), figure) for figure in MEASURED.findall(prose)]
    assert silent == []


def test_the_page_counts_its_rows() -> None:
    """How many rows there are, and how many are reached, is said as the table shows it."""
    text = BENCHMARKS.read_text(encoding="utf-8")
    public = [row for row in PRINTED if "public" in row[0]]
    own = [row for row in PRINTED if "public" not in row[0]]
    reached, of_public = ([row for row in rows if row[-1] == "ok"] for rows in (own, public))
    said = " ".join(text.partition("| what |")[0].split())
    assert f"Of the {len(own)} rows that need no further data, {len(reached)} are reached" in said
    assert f"of those {len(public)} rows, {len(of_public)} are reached" in said


def measured_again() -> Iterator[Row]:
    """Measure the rows that no clock decides, and whose libraries are small."""
    yield from conversation_rows()
    yield from checking_rows()
    yield written_turns_row()


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(measured_again())


def assert_alike(shown: str, measured: str) -> None:
    """Two texts differ in nothing but numbers, and those by a twentieth at most: other releases have other prompts."""
    assert NUMBER.sub("N", shown) == NUMBER.sub("N", measured)
    numbers = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (shown, measured)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05)


def test_what_no_clock_decides_is_still_so(rows: list[Row]) -> None:
    """Tokens, costs and shares that are measured now are those of the page."""
    printed = {row[0]: row for row in PRINTED}
    assert len(rows) > 7
    for row in rows:
        assert_alike(" | ".join(printed[row.what][1:3]), f"{row.reference} | {row.measured}")


def test_tokens_by_size_are_still_so() -> None:
    """What a first request costs at the two smaller sizes is what the page and its picture show."""
    [row] = [row for row in PRINTED if row[0].startswith("tokens per request")]
    shown = [int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)", " ".join(row[1:3]).replace(", ", "; "))]
    lines = [shown[:4], shown[4:8], shown[8:]]
    again = tokens(SIZES[:2])
    assert [line[:2] for line in lines] == [pytest.approx(line, rel=0.05) for line in again.values()]
    plot: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "plot.py"))
    drawn = plot["draw"](dict(zip(again, lines, strict=True)), SIZES, "tokens in the first request of a thread")
    assert (ROOT / "docs" / "pictures" / "tokens.svg").read_text(encoding="utf-8") == drawn


def test_the_table_of_prompt_caches_is_what_the_script_prints() -> None:
    """Each row that `python benchmarks/prompt_cache.py` prints stands on the page that names it."""
    text = (ROOT / "docs" / "concepts" / "context.md").read_text(encoding="utf-8")
    assert "`python benchmarks/prompt_cache.py`" in text
    script: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "prompt_cache.py"))
    shown = {row[0]: row for row in rows_of(text.replace("`", ""))}
    head, _, *rows = rows_of(script["table"](script["measure"]()))
    for row in (head, *rows):
        assert_alike(" | ".join(shown[row[0]]), " | ".join(row))


def test_what_is_promised_is_what_the_tests_do() -> None:
    """The two columns of counts in `promises.md` are the short and the long form in the test that the row names."""
    rows = rows_of((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    promises = [row for row in rows if len(row) == 4 and "test_" in row[1]]
    assert len(promises) == 7
    for _, how, short, long in promises:
        [file] = re.findall(r"`(test_\w+\.py)`", how)
        text = (ROOT / "tests" / "world" / file).read_text(encoding="utf-8")
        scaled = {
            (int(one), int(other.replace("_", ""))) for one, other in re.findall(r"scaled\((\d+), ([\d_]+)\)", text)
        }
        # Each thread of runs goes once through `invoke` and once through `ainvoke`.
        modes = 2 if "both_modes" in text and "runs" in short else 1
        counts = zip(NUMBER.findall(short), NUMBER.findall(long), strict=True)
        for one, other in counts:
            assert (int(one) // modes, int(other.replace(",", "")) // modes) in scaled, (file, one, other)
