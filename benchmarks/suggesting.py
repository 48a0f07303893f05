"""Suggestions on labelled requests: how often the right skill is among the five, and how often silence is kept.

The requests are written as people write to an assistant, in English, Chinese and Japanese, and some are small talk.
They are in two halves: the ranker was tuned on `dev`; the misses on `frozen` were not looked at. The right skill lies
in a library of 10, 100, 1,000 or 10,000.
"""

import functools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distractors import distractors
from search import documents

from deepskills._catalog.ranking import Ranker
from deepskills._catalog.search import SearchDocument, SearchIndex
from deepskills._io.drivers import drive

DATA = Path(__file__).parent / "data" / "suggestions"
HALVES = ("dev", "frozen")
SIZES = (10, 100, 1_000, 10_000)
K = 5


@dataclass(frozen=True)
class Quality:
    """Shares of requests, from 0 to 1."""

    in_five: float
    first: float
    wrong_notes: float
    """How often something is suggested for small talk."""


def requests(half: str) -> list[dict[str, Any]]:
    """Return the labelled requests of one half; small talk expects nothing."""
    found: list[dict[str, Any]] = json.loads((DATA / f"{half}.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def libraries(size: int) -> list[list[SearchDocument]]:
    """Return libraries of a size that together hold every labelled skill: ten small ones, or a large one."""
    labelled = documents()
    if size >= len(labelled):
        return [labelled + distractors(size - len(labelled))]
    random.Random(5).shuffle(labelled)  # noqa: S311 - an order, not a secret
    padded = labelled + labelled[: -len(labelled) % size]
    return [padded[start : start + size] for start in range(0, len(padded), size)]


@functools.cache
def indexes(size: int) -> list[SearchIndex]:
    """Return the indexes of libraries of a size."""
    return list(map(SearchIndex, libraries(size)))


def quality(half: str, size: int, ranker: Ranker) -> Quality:
    """Return how good the suggestions are."""
    held = indexes(size)
    hits: list[list[str]] = []
    expected: list[str] = []
    notes: list[bool] = []
    for number, case in enumerate(requests(half)):
        if case["expect"] is None:
            notes.append(bool(drive(ranker.rank(held[number % len(held)], case["request"], K)).fitting))
            continue
        index = next(index for index in held if any(skill.name == case["expect"] for skill in index.documents))
        hits.append(drive(ranker.rank(index, case["request"], K)).fitting)
        expected.append(case["expect"])
    pairs = list(zip(expected, hits, strict=True))
    return Quality(
        in_five=sum(name in found for name, found in pairs) / len(pairs),
        first=sum(found[:1] == [name] for name, found in pairs) / len(pairs),
        wrong_notes=sum(notes) / len(notes),
    )
