"""Fixtures of all folders. What tests import (agents, the fake backend, streams) is in `support`."""

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
