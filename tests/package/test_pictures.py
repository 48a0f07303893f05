"""The pictures in the documentation show what is there now."""

import html
import itertools
import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_examples import printed_by

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def test_the_demo_is_drawn_as_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The picture in the README holds each step of the demo and what was refused; parallel calls end in any order."""
    transcript = printed_by("demo", monkeypatch, capsys)
    recorder: dict[str, Any] = runpy.run_path(str(PICTURES / "record_demo.py"))
    steps = Counter(" ".join(recorder["shorten"](transcript)).split())
    assert {"agent:", "loaded", "sent", "Error:"} <= set(steps)
    picture = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>(.*?)</text>|aria-label=\"(.*?)\"", picture)
    drawn = Counter(html.unescape(" ".join(" ".join(parts) for parts in texts)).split())
    assert drawn - steps == Counter(["make", "demo", "$", "make", "demo"])
    assert steps - drawn == Counter()


def test_the_demo_shows_no_boxes() -> None:
    """Only Latin text needs a font of the viewer's; every other character is drawn as an outline."""
    picture = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture)
    assert [text for text in texts if not text.isascii()] == []
    assert picture.count("<path") == len("周报")


def test_a_character_without_outline_is_refused() -> None:
    """Whoever puts another script into the demo hears that its outlines are missing."""
    recorder: dict[str, Any] = runpy.run_path(str(PICTURES / "record_demo.py"))
    recorder["check"]([("", "周报 and more")])
    with pytest.raises(ValueError, match="outlines of é語"):
        recorder["check"]([("", "é語")])


def test_what_the_demo_shows_fits_the_picture() -> None:
    """No line runs out of the window, and none of a refusal is cut."""
    picture = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    [width] = re.findall(r'viewBox="0 0 ([\d.]+) ', picture)
    ends = [
        float(x) + float(length) for x, length in re.findall(r'x="([\d.]+)" y="[\d.]+" textLength="([\d.]+)"', picture)
    ]
    assert max(ends) < float(width)
    refusal = html.unescape(" ".join(re.findall(r'<text class="refusal"[^>]*>\| (.*?)</text>', picture)))
    assert refusal.startswith("Error: The skill 'incident-review'")
    assert refusal.endswith(".")


def test_the_plot_can_be_drawn() -> None:
    """Every point of every line stands in the plot, the dearest highest."""
    plot: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "plot.py"))
    series = {name: [1.0 * rank, 10.0 * rank, 100.0 * rank] for rank, name in enumerate(plot["COLOURS"], start=1)}
    drawn = plot["draw"](series, (10, 100, 1_000))
    assert drawn.count("<circle") == 9
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', drawn)]
    assert heights[0] > heights[3] > heights[6]
    assert heights[0] > heights[1] > heights[2]


def test_what_a_conversation_costs_is_drawn_as_it_runs() -> None:
    """Six requests, in which skills come and go; the picture in the documentation is of this conversation."""
    drawing: dict[str, Any] = runpy.run_path(str(PICTURES / "draw_cost.py"))
    requests = [drawing["parts"](request) for request in drawing["conversation"]()]
    assert [request["release-notes"] > 0 for request in requests] == [False, True, True, True, True, False]
    assert [request["csv-report"] > 0 for request in requests] == [False, False, False, True, True, True]
    drawn = drawing["draw"](requests)
    picture = (PICTURES / "skill-cost.svg").read_text(encoding="utf-8")
    assert drawn.count("<title>") == picture.count("<title>") == 24
    assert re.sub(r"[\d.,]+", "", drawn) == re.sub(r"[\d.,]+", "", picture)


def test_names_of_lines_that_meet_stay_readable() -> None:
    """Lines that end at the same height have their names below each other."""
    plot: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "plot.py"))
    drawn = plot["draw"]({name: [1.0, 10.0, 100.0] for name in plot["COLOURS"]}, (10, 100, 1_000))
    names = [float(y) for y in re.findall(r'y="([\d.]+)" fill="#', drawn)]
    assert [round(after - before) for before, after in itertools.pairwise(names)] == [plot["LABEL"]] * 2
    for picture in PICTURES.glob("*.svg"):
        shown = [float(y) for y in re.findall(r'y="([\d.]+)" fill="#', picture.read_text(encoding="utf-8"))]
        assert all(after - before > 15 for before, after in itertools.pairwise(sorted(shown))), picture.name


def test_no_picture_fetches_anything() -> None:
    """A picture names no address but that of its format."""
    for picture in PICTURES.glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"http://www.w3.org/2000/svg"}
