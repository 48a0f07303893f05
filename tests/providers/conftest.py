"""The provider, the way and the kind of agent of a test, and its stub."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from providers_support import PROVIDERS, Talk

WAYS = (
    ("sync", "deep"),
    ("async", "plain"),
    ("streamed", "deep"),
    ("async", "deep"),
    ("streamed", "plain"),
    ("sync", "plain"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with every provider; all six ways for a test marked so, else two that change from test to test."""
    if "talk" not in metafunc.fixturenames:
        return
    names = list(PROVIDERS)
    start = sum(map(ord, metafunc.function.__name__)) % len(WAYS)
    every = metafunc.definition.get_closest_marker("every_way") is not None
    cases = [
        (name, *WAYS[(start + place + step) % len(WAYS)])
        for place, name in enumerate(names)
        for step in range(6 if every else 2)
    ]
    metafunc.parametrize("case", cases, ids=["-".join(case) for case in cases])


@pytest.fixture
def talk(case: tuple[str, str, str], tmp_path: Path) -> Iterator[Callable[..., Talk]]:
    """Return a function that starts a conversation; at the end no request must have been refused."""
    made: list[Talk] = []

    def start(**options: Any) -> Talk:
        name, how, kind = case
        made.append(Talk(options.pop("provider", name), how, options.pop("kind", kind), tmp_path, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()
    assert [refusal for each in made for refusal in each.stub.refusals] == []
