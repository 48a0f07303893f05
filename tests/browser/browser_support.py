"""What tests of pages share besides the browser: widths, and what makes a page readable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from playwright.sync_api import Page

WIDE, NARROW = 1280, 400
"""The widths at which pages are looked at: a desk and a phone."""

OpenPage: TypeAlias = Callable[..., Any]
Screenshot: TypeAlias = Callable[[Any, str], Path]


def overflows(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


def contrast(page: Page, selector: str) -> float:
    """Return the contrast between the text of the first such element and what lies behind it, as WCAG counts it."""
    found: float = page.evaluate(
        """selector => {
          const element = document.querySelector(selector);
          const parts = colour => colour.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
            .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          let behind = element;
          const isClear = item => (parts(getComputedStyle(item).backgroundColor)[3] ?? 1) === 0;
          while (behind && isClear(behind)) behind = behind.parentElement;
          const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
            .map(colour => light(parts(colour))).sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05);
        }""",
        selector,
    )
    return found
