"""The comparison table: each promise measured beside its reference, in one process and one run.

make bench                    the table
make bench ARGS="--json"      the same as JSON
make bench ARGS="--only routing"    the rows of one part, see `PARTS`

The table goes to standard output, progress to standard error.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from checking import checking_rows
from deepagents.backends import BackendProtocol, FilesystemBackend
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from footprint import EARLY, bytes_held, checkpoint_bytes, held_after_edits, held_after_refusals, import_ratio
from langchain.agents.middleware.types import ModelRequest
from langgraph.runtime import Runtime
from library import list_and_read, write_library
from locking import locking_rows
from measure import RUNS, Row, compare, markdown_table, seconds
from prompt_cache import CACHE_READ, CACHE_WRITE, TURNS, input_after_cache
from prompt_cache import measure as measure_prompt_cache
from routing import routing_rows
from scale import scale_rows
from search import quality, speed
from startup import startup_row
from suggestion_rows import suggestion_rows
from unloading import tokens_given_back

from deepskills import SkillsMiddleware, read_skill
from deepskills._catalog.catalog import SkillEntry
from deepskills._files.inventory import read_contents
from deepskills._io.drivers import adrive, side_by_side
from store import store_rows

SOURCES = ["/skills"]
DELAY = 0.02
FLOOR_RUNS = 9
"""How often discovery runs beside the bare calls of the backend."""
RUNTIME: Runtime[None] = Runtime()
ROUNDS_TOLERANCE = 0.9
"""How much of a round everything else may take."""


class SlowBackend(FilesystemBackend):
    """A backend that takes 20 ms a call and counts its calls."""

    calls = 0

    async def als(self, path: str) -> LsResult:
        self.calls += 1
        await asyncio.sleep(DELAY)
        return self.ls(path)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        self.calls += 1
        await asyncio.sleep(DELAY)
        return self.download_files(paths)


class OneFile(BackendProtocol):
    """A backend with one skill file."""

    def __init__(self, text: str) -> None:
        self._content = text.encode()

    def ls(self, path: str) -> LsResult:
        return LsResult(entries=[{"path": f"{path.rstrip('/')}/a/", "is_dir": True}])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path=path, content=self._content) for path in paths]


def ours(backend: BackendProtocol, sources: list[str] | None = None) -> SkillsMiddleware:
    return SkillsMiddleware(backend=backend, sources=sources or SOURCES)


def theirs(backend: BackendProtocol, sources: list[str] | None = None) -> Any:
    return DeepAgentsSkillsMiddleware(backend=backend, sources=sources or SOURCES)


def discover(middleware: Any) -> object:
    """Discover skills for a new thread."""
    return middleware.before_agent({"messages": []}, RUNTIME, {})


def discovery_rows(root: Path) -> Iterator[Row]:
    backend = FilesystemBackend(root_dir=root)
    upstream, warm = theirs(backend), ours(backend)
    fresh = [ours(backend) for _ in range(RUNS + FLOOR_RUNS)]

    def first() -> object:
        return discover(fresh.pop())

    def second() -> object:
        return discover(warm)

    def reference() -> object:
        return discover(upstream)

    def floor() -> object:
        return list_and_read(backend, SOURCES[0])

    second()
    ratio, their_time, our_time = compare(reference, first)
    yield Row(
        "discovery of 1,000 skills, first time",
        f"deepagents {their_time * 1000:.0f} ms",
        f"{our_time * 1000:.0f} ms, {ratio} faster",
        "3.5x",
        ratio.median >= 3.5,
        {"ratio": ratio.median},
    )
    ratio, their_time, our_time = compare(reference, second)
    yield Row(
        "the same, second thread",
        f"deepagents {their_time * 1000:.0f} ms",
        f"{our_time * 1000:.0f} ms, {ratio} faster",
        "6x",
        ratio.median >= 6,
        {"ratio": ratio.median},
    )
    for what, look, reach in (
        ("the same, against the backend's own ls + download", second, 1.3),
        ("discovery of 1,000 skills, first time, against the backend's own ls + download", first, 1.5),
    ):
        ratio, our_time, floor_time = compare(look, floor, FLOOR_RUNS)
        yield Row(
            what,
            f"floor {floor_time * 1000:.0f} ms",
            f"{our_time * 1000:.0f} ms, {ratio} the floor",
            f"at most {reach}x",
            ratio.median <= reach,
            {"ratio": ratio.median},
        )


def scaling_row(roots: dict[int, Path]) -> Row:
    times: dict[int, list[float]] = {count: [] for count in roots}
    for _ in range(5):
        for count, root in roots.items():
            times[count].append(seconds(partial(discover, ours(FilesystemBackend(root_dir=root)))) / count)
    cost = {count: statistics.median(found) for count, found in times.items()}
    spread = max(cost.values()) / min(cost.values())
    shown = ", ".join(f"{count:,}: {value * 1e6:.0f} us" for count, value in cost.items())
    return Row(
        "cost per skill, 100 to 10,000 skills",
        "itself",
        f"{shown} ({spread:.2f}x)",
        "within 1.3x",
        spread <= 1.3,
        {"spread": spread},
    )


def rounds_rows(root: Path) -> Iterator[Row]:
    sources = [f"/source-{number}" for number in range(5)]
    for number, source in enumerate(sources):
        write_library(root / source.strip("/"), 3 + number)
    backend = SlowBackend(root_dir=root)

    def discover(middleware: Any, *further: object) -> float:
        return seconds(lambda: asyncio.run(middleware.abefore_agent({"messages": []}, RUNTIME, *further)))

    their_time, our_time = discover(theirs(backend, sources), {}), discover(ours(backend, sources))
    yield Row(
        "async discovery, 5 sources, 20 ms a call",
        f"deepagents {their_time / DELAY:.1f} rounds",
        f"{our_time / DELAY:.1f} rounds",
        "two rounds",
        our_time / DELAY < 2 + ROUNDS_TOLERANCE,
        {"rounds": our_time / DELAY, "reference": their_time / DELAY},
    )
    middleware = ours(backend, sources)
    update = asyncio.run(middleware.abefore_agent({"messages": []}, RUNTIME))
    skills = update["skills_metadata"][:1] if update else []
    for directory in ("scripts", "references", "assets"):
        folder = root / Path(skills[0]["path"]).parent.relative_to("/") / directory
        folder.mkdir()
        (folder / "file.txt").write_text("x", encoding="utf-8")
    entries = [SkillEntry(skill, sources[0], "") for skill in skills]
    taken = seconds(
        lambda: asyncio.run(
            adrive(side_by_side(*(read_contents(entry, depth=1) for entry in entries)), lambda: backend)
        )
    )
    yield Row(
        "load_skill, 20 ms a call",
        "the rounds needed: 2",
        f"{taken / DELAY:.1f} rounds",
        "two rounds",
        taken / DELAY < 2 + ROUNDS_TOLERANCE,
        {"rounds": taken / DELAY},
    )


def prompt_row(root: Path) -> Row:
    backend = FilesystemBackend(root_dir=root)
    upstream, middleware = theirs(backend), ours(backend)
    their_state = upstream.before_agent({"messages": []}, RUNTIME, {})
    our_state = middleware.before_agent({"messages": []}, RUNTIME)

    def request(state: Any) -> ModelRequest[None]:
        return ModelRequest(model=None, messages=[], state={"messages": [], **state}, runtime=RUNTIME)  # type: ignore[arg-type]

    their_request, our_request = request(their_state), request(our_state)
    middleware.modify_request(our_request)
    ratio, their_time, our_time = compare(
        lambda: [upstream.modify_request(their_request) for _ in range(20)],
        lambda: [middleware.modify_request(our_request) for _ in range(20)],
    )
    return Row(
        "prompt section, 1,000 skills, unchanged",
        f"deepagents {their_time / 20 * 1e6:.0f} us",
        f"{our_time / 20 * 1e6:.0f} us, {ratio} faster",
        "10x",
        ratio.median >= 10,
        {"ratio": ratio.median},
    )


def conversation_rows() -> Iterator[Row]:
    table = measure_prompt_cache()
    kept = table["conversation"]["load"]
    yield Row(
        "request prefix kept after a load, `conversation`",
        f"deepagents {table['deepagents']['load']:.1%}",
        f"{kept:.1%}",
        "100 %",
        kept >= 1,
        {"kept": kept},
    )
    cheap, now, other = (table[label] for label in ("cheap", "conversation", "deepagents"))
    yield Row(
        'request prefix kept after an unload, `unload_when="cheap"`',
        f"`now` {now['unload']:.1%}",
        f"{cheap['unload']:.1%}",
        "100 %",
        cheap["unload"] >= 1,
        {"kept": cheap["unload"], "reference": now["unload"]},
    )
    yield Row(
        f"cost of {TURNS} turns with loads and unloads (cache write {CACHE_WRITE}, read {CACHE_READ}, plain 1)",
        f"deepagents, which unloads nothing, {other['cost']:,.0f}; `now` {now['cost']:,.0f}",
        f"`cheap` {cheap['cost']:,.0f}, {cheap['cost'] / now['cost']:.2f}x of `now`",
        "less than `now`",
        cheap["cost"] < now["cost"],
        {"cheap": cheap["cost"], "now": now["cost"], "reference": other["cost"]},
    )
    ours, theirs = input_after_cache()
    yield Row(
        f"input tokens after the provider's cache, {TURNS} turns, by default (what is cached counts {CACHE_READ})",
        f"deepagents {theirs:,.0f}",
        f"{ours:,.0f}, {ours / theirs:.2f}x",
        "at most 1.05x",
        ours <= 1.05 * theirs,
        {"ratio": ours / theirs},
    )
    back = tokens_given_back()
    yield Row("tokens back after unload", "what the load added", f"{back:.1%}", "95 %", back >= 0.95, {"back": back})


def hostile_row() -> Row:
    """Measure the frontmatter that costs deepagents most, at one size and at twice that size."""
    hostile: dict[str, Callable[[int], str]] = {
        "newlines": lambda size: "---\n" + "\n" * size,
        "brackets": lambda size: "---\nname: a\ndescription: b\nx: " + "[" * min(size, 400) + "\n---\n",
        "keys": lambda size: (
            "---\nname: a\ndescription: b\n" + "".join(f"k{i}: v\n" for i in range(size // 8)) + "---\n"
        ),
    }
    ours_worst = theirs_worst = growth = 0.0
    for make in hostile.values():
        small, large = make(4_000), make(8_000)
        mine = [_best(partial(_discover, ours, text)) for text in (small, large)]
        other = [_best(partial(_discover, theirs, text)) for text in (small, large)]
        ours_worst, theirs_worst = max(ours_worst, mine[1]), max(theirs_worst, other[1])
        growth = max(growth, other[1] / other[0])
    ten = 10 * 1024 * 1024
    floods = ("---\n" + "\n" * (ten - 8), "\n" * ten, "---\n" + "\n---x" * (ten // 5 - 2), "---\na: " + "x" * (ten - 9))
    largest = max(_best(partial(read_skill, text, path="/s/a/SKILL.md"), 2) for text in floods)
    # The most keys that frontmatter may have: what is kept of them is measured at discovery.
    largest = max(largest, _best(partial(_discover, ours, hostile["keys"](50_000)), 2))
    return Row(
        "largest time for any input of 10 MiB or less",
        f"deepagents {theirs_worst * 1000:.0f} ms at 8 KB, {growth:.1f}x for twice that",
        f"{ours_worst * 1000:.1f} ms at 8 KB, {largest * 1000:.0f} ms at 10 MiB",
        "linear, 250 ms",
        largest <= 0.25,
        {"largest": largest},
    )


def _discover(make: Callable[[BackendProtocol], Any], text: str) -> None:
    # The reference raises on hostile input; its time is what counts.
    with contextlib.suppress(Exception):
        make(OneFile(text)).before_agent({"messages": []}, RUNTIME, {})


def _best(action: Callable[[], object], runs: int = 3) -> float:
    return min(seconds(action) for _ in range(runs))


def footprint_rows(roots: dict[int, Path]) -> Iterator[Row]:
    """Measure what no promise is made about, so that everyone can see it."""
    mine, other = (bytes_held(make, roots[10_000]) for make in (ours, theirs))
    yield Row(
        "memory for 10,000 skills, one thread",
        f"deepagents {other / 1e6:.1f} MB",
        f"{mine / 1e6:.1f} MB, {mine / other:.1f}x (files that were read are remembered for other threads)",
        "at most 3x",
        mine <= 3 * other,
        {"bytes": mine, "reference": other},
    )
    other = bytes_held(theirs, roots[1_000])
    for what, (early, late) in (
        ("300 runs with an edit each, 2,000 skills", held_after_edits(ours, 2_000, 300)),
        ("80 runs with refused loads of 5 MB", held_after_refusals(ours, 5_000_000, 80)),
    ):
        yield Row(
            f"memory after {what}",
            f"after {EARLY} such runs {early / 1e6:.1f} MB; deepagents, one run, 1,000 skills {other / 1e6:.1f} MB",
            f"{late / 1e6:.1f} MB, {late / early:.2f}x",
            "at most 1.3x",
            late <= 1.3 * early,
            {"bytes": late, "early": early, "reference": other},
        )
    bare, mine, other = (checkpoint_bytes(make, roots[1_000]) for make in (None, ours, theirs))
    yield Row(
        "a checkpoint in SQLite, 1,000 skills",
        f"deepagents {(other - bare) / 1e3:.0f} KB",
        f"{(mine - bare) / 1e3:.0f} KB, {(mine - bare) / (other - bare):.2f}x",
        "at most 1.2x",
        mine - bare <= 1.2 * (other - bare),
        {"bytes": mine - bare, "reference": other - bare},
    )
    ratio, our_time, their_time = import_ratio()
    yield Row(
        "importing the middleware",
        f"deepagents alone {their_time * 1000:.0f} ms",
        f"{our_time * 1000:.0f} ms, {ratio} of that",
        "at most 1.3x",
        ratio.median <= 1.3,
        {"ratio": ratio.median},
    )
    yield startup_row()


def search_rows() -> Iterator[Row]:
    for half in ("dev", "frozen"):
        table = quality(half)
        mine = table["deepskills"]
        others = ", ".join(f"{name} {table[name]['first']:.0%}" for name in ("keyword count", "rank-bm25"))
        yield Row(
            f"search, right skill first / in five ({half} half of requests written here)",
            others,
            f"{mine['first']:.0%} / {mine['in five']:.0%}",
            "85 % / 96 %",
            mine["first"] >= 0.85 and mine["in five"] >= 0.96,
            {"first": mine["first"], "in five": mine["in five"]},
        )
    timing = speed(10_000)
    yield Row(
        "search in 10,000 skills, one query",
        f"rank-bm25 {timing['rank-bm25'] * 1000:.1f} ms",
        f"{timing['ours'] * 1000:.1f} ms (indexed once in {timing['indexing']:.1f} s)",
        "under 10 ms",
        timing["ours"] < 0.01,
        timing,
    )


def rows(only: str | None = None) -> Iterator[Row]:
    if only is not None:
        yield from PARTS[only]()
        return
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        roots = {count: base / f"library-{count}" for count in (100, 1_000, 10_000)}
        for count, root in roots.items():
            write_library(root / "skills", count)
        yield from discovery_rows(roots[1_000])
        yield scaling_row(roots)
        yield from rounds_rows(base / "slow")
        yield prompt_row(roots[1_000])
        yield from footprint_rows(roots)
        yield from scale_rows(roots[10_000])
    yield from conversation_rows()
    yield hostile_row()
    for part in PARTS.values():
        yield from part()


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "search": search_rows,
    "suggestions": suggestion_rows,
    "routing": routing_rows,
    "store": store_rows,
    "locking": locking_rows,
    "checks": checking_rows,
}
"""Parts that can be measured by themselves."""


def table(found: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    cells = [["what", "reference", "deepskills", "reach", ""], ["---"] * 5]
    cells += [[row.what, row.reference, row.measured, row.reach, "ok" if row.reached else "SHORT"] for row in found]
    return markdown_table(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure deepskills beside deepagents.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", choices=sorted(PARTS), help="measure one part")
    parser.add_argument("--routing", help="directory with public requests, see routing.py; else DEEPSKILLS_ROUTING")
    given = parser.parse_args()
    as_json = given.json
    if given.routing:
        os.environ["DEEPSKILLS_ROUTING"] = given.routing
    for name in ("deepskills", "deepagents"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # shadowed and hostile skills are part of the measure
    start = time.perf_counter()
    found = []
    for row in rows(given.only):
        print(f"{time.perf_counter() - start:4.0f} s  {row.what}", file=sys.stderr)
        found.append(row)
    if as_json:
        print(json.dumps([asdict(row) for row in found], indent=2))
        return 0
    print(table(found))
    short = [row.what for row in found if not row.reached]
    print(f"\n{len(found) - len(short)} of {len(found)} reached in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
