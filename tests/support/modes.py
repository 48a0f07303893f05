"""Sync and async: which tests run in both, and which by turns; and how long the long form of a test lasts."""

import os
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

import pytest

CaseT = TypeVar("CaseT")
ScaledT = TypeVar("ScaledT")

SOAK = os.environ.get("DEEPSKILLS_SOAK") == "1"
"""Whether the long form was asked for."""

CASE = os.environ.get("CASE", "")
"""Names the cases of a table to run alone: those whose text holds it."""

Mode: TypeAlias = Literal["sync", "async"]
MODES: tuple[Mode, Mode] = ("sync", "async")

both_modes = pytest.mark.parametrize("mode", MODES)
"""Marks a test that runs once sync and once async."""


def scaled(short: ScaledT, long: ScaledT) -> ScaledT:
    """Return what counts for the form that runs: `short` inside the ordinary tests, `long` under `make soak`."""
    return long if SOAK else short


def mode_by_turns(request: pytest.FixtureRequest) -> Mode:
    """Return the mode for one case of a parametrized test: the mode that the case before it did not have.

    Where a test has several parameters, each value of each meets both modes. The root `conftest.py` makes this the
    fixture `mode`, which a test has that asks for `mode` and is not marked with `both_modes`.
    """
    parameters = [mark.args[0] for mark in request.node.iter_markers("parametrize")]
    assert parameters, "a test without parameters runs in both modes: mark it with both_modes"
    first_names = [names.split(",")[0] if isinstance(names, str) else names[0] for names in parameters]
    return MODES[sum(request.node.callspec.indices[name] for name in first_names) % 2]


def share_of(mode: Mode, cases: Iterable[CaseT]) -> Sequence[CaseT]:
    """Return the cases that this mode runs: every second one, the other mode the rest; all under `make soak`."""
    listed = list(cases)
    return listed if SOAK else picked(listed) if CASE else listed[MODES.index(mode) :: len(MODES)]


def picked(cases: Iterable[CaseT]) -> Sequence[CaseT]:
    """Return the cases of a table that one test goes through: all, or by `CASE=...` those that were asked for.

    Starting an agent for each case as a test of its own would make the tests several times slower.
    """
    return [case for case in cases if CASE in repr(case)]
