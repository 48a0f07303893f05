"""Search quality on a labelled set, and search speed, beside a keyword count and `rank-bm25`.

The set has two halves. The ranker was tuned on `dev`; `frozen` was written apart and not looked at before.
"""

import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rank_bm25 import BM25Okapi

from deepskills._catalog.search import SearchDocument, SearchIndex

DATA = Path(__file__).parent / "data" / "search"
HALVES = ("dev", "frozen")

Ranker = Callable[[str], list[str]]


def load(name: str) -> list[dict[str, Any]]:
    """Return one file of the labelled set."""
    found: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


def documents() -> list[SearchDocument]:
    """Return the skills of the labelled set."""
    return [SearchDocument(skill["name"], skill["description"], skill["tags"]) for skill in load("skills")]


def plain_words(text: str) -> list[str]:
    """Split text as a plain ranker would: words, and single characters of scripts without spaces."""
    return re.findall(r"[a-z0-9]+|[\u3040-\u30ff\u4e00-\u9fff]", text.lower())


def keyword_count(skills: Sequence[SearchDocument]) -> Ranker:
    """Return a ranker that counts how often the words of a query occur."""
    texts = [plain_words(f"{d.name} {d.description} {d.tags}") for d in skills]

    def rank(query: str) -> list[str]:
        words = set(plain_words(query))
        scores = [sum(word in words for word in text) for text in texts]
        return _best(skills, scores)

    return rank


def rank_bm25(skills: Sequence[SearchDocument]) -> Ranker:
    """Return a ranker that uses the package `rank-bm25`."""
    index = BM25Okapi([plain_words(f"{d.name} {d.description} {d.tags}") for d in skills])
    return lambda query: _best(skills, list(index.get_scores(plain_words(query))))


def deepskills(skills: Sequence[SearchDocument]) -> Ranker:
    """Return our ranker."""
    return SearchIndex(skills).search


def _best(skills: Sequence[SearchDocument], scores: Sequence[float]) -> list[str]:
    order = sorted(range(len(skills)), key=lambda position: (-scores[position], position))
    return [skills[position].name for position in order[:5] if scores[position] > 0]


RANKERS = {"keyword count": keyword_count, "rank-bm25": rank_bm25, "deepskills": deepskills}


def quality(half: str) -> dict[str, dict[str, float]]:
    """Return, for each ranker, how often the right skill is first, among five, and nothing found for nothing."""
    skills = documents()
    cases = load(half)
    results = {}
    for name, make in RANKERS.items():
        rank = make(skills)
        answers = [(case["expect"], rank(case["query"])) for case in cases]
        labelled = [(expect, found) for expect, found in answers if expect is not None]
        empty = [found for expect, found in answers if expect is None]
        results[name] = {
            "first": sum(found[:1] == [expect] for expect, found in labelled) / len(labelled),
            "in five": sum(expect in found[:5] for expect, found in labelled) / len(labelled),
            "nothing": sum(not found for found in empty) / len(empty),
        }
    return results


def speed(count: int) -> dict[str, float]:
    """Return the seconds to index `count` skills and the median seconds of a query, ours and of `rank-bm25`."""
    base = documents()
    skills = [
        SearchDocument(f"{d.name}-{number}", f"{d.description} Variant {number}.", d.tags)
        for number in range(count // len(base) + 1)
        for d in base
    ][:count]
    queries = [case["query"] for case in load("dev")][:40]
    start = time.perf_counter()
    ours = deepskills(skills)
    indexing = time.perf_counter() - start
    theirs = rank_bm25(skills)
    ours(queries[0])
    timings: dict[str, list[float]] = {"ours": [], "rank-bm25": []}
    for query in queries:
        for name, rank in (("ours", ours), ("rank-bm25", theirs)):
            start = time.perf_counter()
            rank(query)
            timings[name].append(time.perf_counter() - start)
    return {"indexing": indexing, **{name: statistics.median(values) for name, values in timings.items()}}
