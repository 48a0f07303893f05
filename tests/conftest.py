"""Fixtures and options of all folders. What tests import (agents, the fake backend, streams) is in `support`."""

import os
import re
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


def pytest_configure() -> None:
    """Give executors more threads on older releases of LangGraph.

    There, a sync run of many quick steps on few cores may hang: every thread that writes checkpoints waits for writes
    that wait for a thread. With more threads than a test has steps that cannot happen.
    """
    if tuple(int(part) for part in version("langgraph").split(".")[:3]) < (1, 2, 22):
        os.cpu_count = lambda: 60


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
