"""Sync and async by turns: tests of many cases run each of them in one mode, and in both under `make soak`."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

from support import MODES, SOAK, Mode

CaseT = TypeVar("CaseT")


@pytest.fixture(name="mode", params=MODES if SOAK else None)
def mode_by_turns(request: pytest.FixtureRequest) -> Mode:
    """Return the mode for this case of a parametrized test, the other one than for the case before it.

    Where a test has several parameters, each value of each meets both modes.
    """
    if SOAK:
        mode: Mode = request.param
        return mode
    parameters = [mark.args[0] for mark in request.node.iter_markers("parametrize")]
    assert parameters, "a test without parameters runs in both modes: pytest.mark.parametrize('mode', MODES)"
    first_names = [names.split(",")[0] if isinstance(names, str) else names[0] for names in parameters]
    return MODES[sum(request.node.callspec.indices[name] for name in first_names) % 2]


def share_of(mode: Mode, cases: Iterable[CaseT]) -> Sequence[CaseT]:
    """Return the cases that this mode runs: every second one, the other mode the rest; all under `make soak`."""
    listed = list(cases)
    return listed if SOAK else listed[MODES.index(mode) :: len(MODES)]
