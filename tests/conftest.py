"""Fixtures and options of all folders. What tests import (agents, the fake backend, streams) is in `support`."""

import re
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
