"""Fixtures and options of all folders. What tests import (agents, the fake backend, streams) is in `support`."""

import gc
import os
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from support.modes import MODES, SOAK, Mode, mode_by_turns


@pytest.fixture(params=MODES if SOAK else None)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Sync or async: by turns from case to case of a parametrized test, and both under `make soak`.

    `both_modes` takes precedence: a test that is marked with it runs in both each time.
    """
    if SOAK:
        found: Mode = request.param
        return found
    return mode_by_turns(request)


STARTS_MUCH = re.compile(
    r"\b(Conversation|create_agent|create_deep_agent|StateGraph|SkillsMiddleware|sqlalchemy|store_support|subprocess)\b"
)
"""In a module of tests: it runs agents, databases or processes."""


MEMORY_FOLDER = Path("/dev/shm")
MEMORY_NEEDED = 4 * 1024**3
"""Free bytes: the tests of a run write a small part of this."""


def pytest_configure() -> None:
    """Keep the tests' files in memory where there is room, and give older releases of LangGraph more threads.

    A commit of SQLite waits for the disk, 11 ms on ours, and there are thousands in a run; in memory it waits for
    nothing, and a killed process leaves the same files behind as on a disk.

    With older releases of LangGraph a sync run of many quick steps on few cores may hang: every thread that writes
    checkpoints waits for writes that wait for a thread. With more threads than a test has steps that cannot happen.
    """
    if os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free > MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))
    if tuple(int(part) for part in version("langgraph").split(".")[:3]) < (1, 2, 22):
        os.cpu_count = lambda: 60


STARTS_PROCESSES = re.compile(r"\b(subprocess|multiprocessing|uvicorn)\b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules that start processes first: the end of a run is then made of short tests, which workers can share."""
    first = {path: bool(STARTS_PROCESSES.search(path.read_text("utf-8"))) for path in {item.path for item in items}}
    items.sort(key=lambda item: not first[item.path])


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later garbage collection: it is most of the heap, and stays."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`, which `make check` uses."""
    parser.addoption("--quick", action="store_true", help="only modules that start no agent, database or process")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, under `--quick`, each module that starts much; its own text says so, so no list can go stale."""
    if (
        not config.getoption("--quick")
        or collection_path.suffix != ".py"
        or not collection_path.name.startswith("test_")
    ):
        return None
    return bool(STARTS_MUCH.search(collection_path.read_text(encoding="utf-8"))) or None
