"""Fixtures for pytest: write `from deepskills.fixtures import skills_gate` in a `conftest.py` or a test."""

from collections.abc import Callable
from typing import Any

import pytest

from deepskills.testing import gate_findings


@pytest.fixture
def skills_gate() -> Callable[..., Any]:
    """Give `gate_findings`: what `deepskills gate` finds in directories of skills, to assert that it is nothing."""
    return gate_findings
