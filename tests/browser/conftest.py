"""A real browser for tests of pages: Chromium of the system, without a window, driven by Playwright.

`open_page(source, width, ...)` opens a file, an address or a text of HTML and returns a page that keeps what went
wrong in `page.troubles`: requests that the page made, errors it logged. `screenshot(page, name)` keeps a picture in
`.cache/screenshots`, to be looked at.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_support import WIDE, OpenPage, Screenshot
from playwright.sync_api import Browser, Page, Request, sync_playwright

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / ".cache" / "screenshots"
CHROMIUM = "DEEPSKILLS_CHROMIUM"
"""Names the browser to use where it has another name."""

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Give a browser for all tests."""
    found = os.environ.get(CHROMIUM) or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found is not None, f"Chromium is missing. Install the package chromium, or name it in {CHROMIUM}."
    # Chromium's own sandbox does not start for root, as in containers.
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *sandbox])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Give a function that opens a page in a context of its own."""
    contexts: list[Any] = []

    def opened(source: str | Path, width: int = WIDE, *, dark: bool = False, javascript: bool = True) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
        )
        contexts.append(context)
        page: Any = context.new_page()
        page.troubles = []
        page.on("console", lambda message: page.troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("requestfailed", lambda request: page.troubles.extend(failures(request)))
        if isinstance(source, Path):
            page.goto(source.as_uri())
        elif source.lstrip().startswith("<"):
            page.set_content(source)
        else:
            page.goto(source)
        return page

    yield opened
    for context in contexts:
        context.close()


def failures(request: Request) -> list[str]:
    """Say which request failed and why.

    Except where the browser dropped it because the page was left: whether an icon or a check is still on its way then
    depends on how busy the machine is. A refused, unknown or blocked address has another reason.
    """
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url} ({request.failure})"]


@pytest.fixture
def screenshot() -> Screenshot:
    """Give a function that keeps a picture of a whole page."""

    def taken(page: Page, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        file = SCREENSHOTS / f"{name}.png"
        page.screenshot(path=file, full_page=True)
        return file

    return taken
