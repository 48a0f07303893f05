"""The right skill for real public requests: search and suggestions on a data set that is given by its path.

The set is other people's text and not part of this project. Name the directory that holds it, with `pool.jsonl.gz` and
`queries_dev.jsonl`, by `DEEPSKILLS_ROUTING` or `--routing`; without it there are no rows. A line of the pool is a skill
(`id`, `name`, `description`, `tags`, `body`), one of the queries a request: `query`, `relevant` (ids that are right),
`forbidden` (of near misses, ids that are wrong), `kind` (`a`, `b`, `c`, `e` real requests, `c-` near misses, `d` small
talk), `language`.
"""

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from measure import Row
from minilm import load_minilm
from turns import TURNS, turns_row

from deepskills._catalog.ranking import Ranker
from deepskills._catalog.search import SearchDocument, SearchIndex, beginning_of
from deepskills._io.drivers import drive

SIZES = (100, 1_000, 10_000)
GOALS = {100: (83, 91, 75, 90, 45), 1_000: (70, 83, 80, 85, 26), 10_000: (57, 73, 60, 80, 26)}
"""By size, in percent: right skill first, in five, shown in a note, small talk left alone, near misses shown"""

REAL = frozenset("abce")


def directory() -> Path | None:
    """Return where the data set lies, if it was given."""
    given = os.environ.get("DEEPSKILLS_ROUTING")
    return Path(given) if given else None


def half_of(query: dict[str, Any]) -> str:
    """Return the half of a request, by its skill: weights and thresholds were tuned on `tuned`."""
    key = [*query["gold"], *query["forbidden"], query["id"]][0]
    return "tuned" if random.Random(key).random() < 0.5 else "reported"  # noqa: S311 - an order, not a secret


def libraries(
    pool: Sequence[dict[str, Any]], queries: Sequence[dict[str, Any]], size: int
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return libraries of a size, each with the requests whose skills it holds; all have the small talk."""
    if size >= len(pool):
        yield list(pool), list(queries)
        return
    order = random.Random(f"{size}")  # noqa: S311 - an order, not a secret
    by_id = {skill["id"]: skill for skill in pool}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for query in queries:
        if query["kind"] != "d":
            groups.setdefault(tuple(query["gold"] or query["forbidden"]), []).append(query)
    keys = list(groups)
    order.shuffle(keys)
    talk = [query for query in queries if query["kind"] == "d"]
    each = max(1, size // 5)
    for start in range(0, len(keys), each):
        part = keys[start : start + each]
        held = {name for key in part for name in key}
        others = [skill["id"] for skill in pool if skill["id"] not in held]
        held.update(order.sample(others, max(0, size - len(held))))
        asked = [query for key in part for query in groups[key]]
        yield [by_id[name] for name in sorted(held)], [*asked, *talk]


class Named(str):
    """The name of a skill of the pool, which has many skills of one name: it knows whose it is."""

    __slots__ = ("skill_id",)
    skill_id: str

    def __new__(cls, name: str, skill_id: str) -> Self:
        self = super().__new__(cls, name)
        self.skill_id = skill_id
        return self


def ids_of(names: Sequence[str]) -> list[str]:
    """Return the ids of found skills."""
    return [name.skill_id for name in names if isinstance(name, Named)]


def read_set(root: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the skills of the pool and the requests."""
    with gzip.open(root / "pool.jsonl.gz", "rt", encoding="utf-8") as lines:
        pool = [json.loads(line) for line in lines]
    return pool, [json.loads(line) for line in (root / "queries_dev.jsonl").read_text(encoding="utf-8").splitlines()]


def measured(ranker: Ranker, root: Path, size: int) -> dict[str, Counter[str]]:
    """Return what was counted, by half, kind and language group."""
    pool, queries = read_set(root)
    counts: dict[str, Counter[str]] = {}
    for skills, asked in libraries(pool, queries, size):
        index = SearchIndex(
            [
                SearchDocument(
                    Named(skill["name"], skill["id"]), skill["description"], skill["tags"], beginning_of(skill["body"])
                )
                for skill in skills
            ]
        )
        for query in asked:
            found = ids_of(drive(ranker.search(index, query["query"], 5)).names)
            fitting = ids_of(drive(ranker.rank(index, query["query"], 5)).fitting)
            right = [skill_id in query["relevant"] for skill_id in found]
            groups = [query["kind"], *(["real"] if query["kind"] in REAL else [])]
            if query["kind"] in REAL and query["language"] != "en":
                groups.append("not English")
            for group in groups:
                count = counts.setdefault(f"{half_of(query)} {group}", Counter())
                count.update(
                    asked=1,
                    first=any(right[:1]),
                    five=any(right),
                    noted=not set(fitting).isdisjoint(query["relevant"]),
                    silent=not fitting,
                    forbidden=not set(fitting).isdisjoint(query["forbidden"]),
                )
    return counts


def routing_rows(root: Path | None = None) -> Iterator[Row]:
    """Return the rows of the public data set, if it was given."""
    found = root or directory()
    if found is None:
        return
    yield public_turns_row(found)
    ways = {"words": Ranker()}
    model = load_minilm()
    if model is not None:
        ways["words and MiniLM"] = Ranker(model, seconds=3_600)
    for how, ranker in ways.items():
        for size in SIZES:
            yield _row(how, size, measured(ranker, found, size))


def public_turns_row(root: Path) -> Row:
    """Measure a conversation of public requests over the first public library of 1,000 that holds their skills."""
    skills, asked = next(libraries(*read_set(root), 1_000))
    real = [query["query"] for query in asked if query["kind"] in REAL]
    library = [(skill["name"], skill["description"]) for skill in skills]
    return turns_row("1,000 public skills and requests", library, real[:TURNS])


def _row(how: str, size: int, counts: dict[str, Counter[str]]) -> Row:
    first, five, noted, silent, forbidden = GOALS[size]
    share = _shares(counts, "reported")
    both = _shares(counts, "tuned", "reported")
    kinds = ", ".join(
        f"{group.removeprefix('reported ')} {_percent(count, 'first'):.0f}/{_percent(count, 'five'):.0f}"
        for group, count in sorted(counts.items())
        if group.startswith("reported ") and group.removeprefix("reported ") in {*REAL, "not English"}
    )
    return Row(
        f"real public requests by {how}, {size:,} skills: first / in five, in the note, small talk silent, "
        "near misses shown",
        f"one half, in view when weights were chosen; {kinds}; both halves {_shown(both)}",
        _shown(share),
        f"{first} / {five}, {noted}, {silent}, at most {forbidden} %",
        share["first"] >= first
        and share["five"] >= five
        and share["noted"] >= noted
        and share["silent"] >= silent
        and share["forbidden"] <= forbidden,
        share,
    )


def _shares(counts: dict[str, Counter[str]], *halves: str) -> dict[str, float]:
    """Return how often the right skill is found, small talk left alone, and a near miss shown, in percent."""
    whats = {"first": "real", "five": "real", "noted": "real", "silent": "d", "forbidden": "c-"}
    return {
        what: _percent(sum((counts.get(f"{half} {kind}", Counter()) for half in halves), Counter[str]()), what)
        for what, kind in whats.items()
    }


def _shown(share: dict[str, float]) -> str:
    found = f"{share['first']:.0f} / {share['five']:.0f}"
    return f"{found}, {share['noted']:.0f}, {share['silent']:.0f}, {share['forbidden']:.0f} %"


def _percent(count: Counter[str], what: str) -> float:
    return 100 * count[what] / max(count["asked"], 1)
