"""The page of `deepskills eval --html` in a real browser: on desk and phone, by day and by night, without scripts."""

from pathlib import Path
from typing import Any

import pytest
from browser_support import NARROW, WIDE, OpenPage, Screenshot, contrast, overflows
from evals_support import YES, grader, loader, tea_library

from deepskills import evals


@pytest.fixture(scope="module")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a page with everything on it: a library, a skill that was measured with a model, one that was ranked."""
    root = tmp_path_factory.mktemp("library")
    skill = tea_library(root)
    long = "x" * 300
    (skill / "evals" / "triggers.json").write_text(
        f'[{{"query": "Brew a pot of green tea.", "should_trigger": true}},'
        f'{{"query": "How long does oolong steep? {long}", "should_trigger": true}},'
        f'{{"query": "Fix the printer.", "should_trigger": false}},'
        f'{{"query": "Repair my printer please", "should_trigger": true}}]'
    )
    seen: list[str] = []

    def sometimes(query: str) -> bool:
        seen.append(query)
        return query in YES or ("oolong" in query and len(seen) % 2 == 0) or query == "Brew tea."

    measured = evals.evaluate(skill, loader(sometimes), grader=grader())
    ranked = evals.rank_triggers(skill)
    file = root / "report.html"
    file.write_text(evals.to_html([measured, ranked], evals.find_overlaps(root)), encoding="utf-8")
    return file


def widths(page: Any, selector: str) -> list[float]:
    """Return how much of each bar is filled, from 0 to 1."""
    found: list[float] = page.eval_on_selector_all(
        selector,
        """bars => bars.map(bar => [bar.firstElementChild, bar].map(part => part.getBoundingClientRect().width))
          .map(([part, whole]) => part / whole)""",
    )
    return [round(width, 2) for width in found]


def test_bars_and_transcripts(report_page: Path, open_page: OpenPage, screenshot: Screenshot) -> None:
    """Bars are as long as their numbers; a transcript opens by a click; the page makes no request of its own."""
    page: Any = open_page(report_page)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    assert requests == [report_page.as_uri()]
    assert page.troubles == []
    measured = page.locator("section").first
    assert measured.locator("h2").inner_text() == "tea"
    rows = measured.locator("> .row")
    assert [rows.nth(place).locator("span.soft").inner_text() for place in range(6)] == [
        "loads when it should",
        "rests when it should",
        "tasks with it",
        "tasks without it",
        "tokens with it",
        "tokens without it",
    ]
    tasks = widths(page, "section:first-of-type > .row > .bar")[2:]
    assert tasks == [1.0, 0.67, 1.0, 1.0]
    loads = widths(page, "section:first-of-type .query .bar")
    assert loads[0] == 1.0
    assert 0 < loads[1] < 1
    assert loads[2:] == [0.0, 0.0]
    tokens = widths(page, "section:first-of-type .task .bar")
    assert (tokens[2], tokens[6]) == (1.0, 0.5)  # the second task took half as many as the first
    run = measured.locator("details.run").last
    assert not run.locator("pre").first.is_visible()
    run.locator("summary").click()
    assert run.locator("pre").first.is_visible()
    assert measured.get_by_text("proves nothing: holds without the skill").first.is_visible()
    screenshot(page, "eval-1280-light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_readable_everywhere(
    report_page: Path, open_page: OpenPage, screenshot: Screenshot, width: int, scheme: str
) -> None:
    """Nothing sticks out, whatever the words; text stands out from what is behind it, by day and by night."""
    page: Any = open_page(report_page, width, dark=scheme == "dark")
    page.locator("details.run summary").first.click()
    assert overflows(page) == 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")
    for selector in ("h1", ".soft", ".card p", ".figure", ".tag.good", ".tag.bad", ".tag.mark", "pre", "summary"):
        assert contrast(page, selector) >= 4.5, selector
    size = page.evaluate("parseFloat(getComputedStyle(document.querySelector('.figure')).fontSize)")
    assert size >= 14
    bars = page.eval_on_selector_all(".bar", "bars => bars.map(bar => bar.getBoundingClientRect().width)")
    assert min(bars) >= 150
    screenshot(page, f"eval-{width}-{scheme}")


def test_without_javascript(report_page: Path, open_page: OpenPage) -> None:
    """All of it is there without scripts, and transcripts still unfold."""
    page: Any = open_page(report_page, NARROW, javascript=False)
    run = page.locator("details.run").first
    run.locator("summary").click()
    assert run.locator("pre").first.is_visible()
    assert page.locator(".overlap, .query, .task").count() >= 8
