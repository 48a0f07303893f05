"""The provider, the way and the kind of agent of a test, and its stub."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from providers_support import IN_STREAM, PROVIDERS, Talk

WAYS = ("sync", "async", "streamed")
KINDS = ("deep", "plain")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with every provider in all six ways; with each of its errors for what is too long, if it asks."""
    if "talk" not in metafunc.fixturenames:
        return
    cases = [*product(PROVIDERS, WAYS, KINDS)]
    if "which" not in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=["-".join(case) for case in cases])
        return
    each = [
        (case, which)
        for case in cases
        for which, (status, _, _) in enumerate(PROVIDERS[case[0]].overflows)
        if case[1] == "streamed" or status != IN_STREAM
    ]
    metafunc.parametrize(("case", "which"), each, ids=[f"{'-'.join(case)}-{which}" for case, which in each])


@pytest.fixture
def talk(case: tuple[str, str, str], tmp_path: Path) -> Iterator[Callable[..., Talk]]:
    """Return a function that starts a conversation; at the end no request must have been refused."""
    made: list[Talk] = []

    def start(**options: Any) -> Talk:
        name, how, kind = case
        made.append(Talk(options.pop("provider", name), how, kind, tmp_path, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()
    assert [refusal for each in made for refusal in each.stub.refusals] == []
