"""What suggestions bring and cost: the right skill among five, silence for small talk, tokens per request."""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from library import list_and_read, write_library
from measure import Row, compare, seconds
from minilm import load_minilm
from suggesting import HALVES, SIZES, Quality, libraries, quality, requests
from turns import TURNS, turns_row

from deepskills import SkillsManager, SkillsMiddleware, generate_skill_md
from deepskills._catalog.ranking import Ranker
from deepskills._loading.budget import count_tokens
from deepskills.extensions import SkillSuggestions
from deepskills.testing import ScriptedChatModel

FOREVER = 3_600.0


def suggestion_rows() -> Iterator[Row]:
    yield from _quality_rows("words", Ranker(), 0.94)
    model = load_minilm()
    if model is not None:
        yield from _quality_rows("words and MiniLM", Ranker(model, seconds=FOREVER), 0.98)
    yield token_row()
    yield written_turns_row()
    yield from manager_rows()


def _quality_rows(how: str, ranker: Ranker, reach: float) -> Iterator[Row]:
    for half in HALVES:
        found = {size: quality(half, size, ranker) for size in SIZES}
        yield Row(
            f"suggestions by {how}, right skill in five / first ({half} half of requests written here)",
            f"{len(requests(half))} requests in three languages",
            _listed(found, lambda one: f"{one.in_five:.0%} / {one.first:.0%}"),
            f"{reach:.0%} in five",
            min(one.in_five for one in found.values()) >= reach,
            {str(size): one.in_five for size, one in found.items()},
        )
        yield Row(
            f"suggestions by {how}, notes for small talk ({half} half of requests written here)",
            "none is right",
            _listed(found, lambda one: f"{one.wrong_notes:.0%}"),
            "under 10 %",
            max(one.wrong_notes for one in found.values()) < 0.1,
            {str(size): one.wrong_notes for size, one in found.items()},
        )


def _listed(found: dict[int, Quality], show: Callable[[Quality], str]) -> str:
    return ", ".join(f"{size:,}: {show(one)}" for size, one in found.items())


def tokens(sizes: Sequence[int] = SIZES) -> dict[str, list[int]]:
    """Return the median tokens of a first request over a library of each size, for each way to show it."""
    asked = [case["request"] for case in requests("dev") if case["expect"]][:5]
    found: dict[str, list[int]] = {"deepagents": [], "deepskills, full list": [], "deepskills, suggestions": []}
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            for document in libraries(max(size, 100))[0][:size]:
                directory = Path(name) / "skills" / document.name.lower()
                directory.mkdir(parents=True)
                text = generate_skill_md(document.name.lower(), document.description)
                (directory / "SKILL.md").write_text(text, encoding="utf-8")
            backend = FilesystemBackend(root_dir=name, virtual_mode=True)
            given: dict[str, Any] = {"backend": backend, "sources": ["/skills"]}
            ways = {
                "deepagents": DeepAgentsSkillsMiddleware(**given),
                "deepskills, full list": SkillsMiddleware(**given),
                "deepskills, suggestions": SkillsMiddleware(**given, extensions=[SkillSuggestions(catalog="none")]),
            }
            for way, middleware in ways.items():
                several = asked if way == "deepskills, suggestions" else asked[:1]  # the lists depend on no request
                found[way].append(round(statistics.median(_sent(middleware, request) for request in several)))
    return found


def _sent(middleware: Any, request: str) -> int:
    model = ScriptedChatModel(replies=[])
    create_agent(model, middleware=[middleware]).invoke({"messages": [HumanMessage(request)]})
    return count_tokens(model.requests[0].text)


def token_row() -> Row:
    found = tokens()

    def shown(way: str) -> str:
        return ", ".join(f"{size:,}: {count:,}" for size, count in zip(SIZES, found[way], strict=True))

    mine = found["deepskills, suggestions"]
    return Row(
        "tokens per request, 10 to 10,000 skills",
        f"deepagents {shown('deepagents')}; our full list {shown('deepskills, full list')}",
        f"with suggestions {shown('deepskills, suggestions')}",
        "flat",
        max(mine) <= 1.5 * min(mine),
        {str(size): count for size, count in zip(SIZES, mine, strict=True)},
    )


def written_turns_row() -> Row:
    """Measure a conversation of the requests written here."""
    library = [(document.name.lower(), document.description) for document in libraries(1_000)[0]]
    asked = [case["request"] for case in requests("dev") if case["expect"]]
    return turns_row("1,000 skills", library, asked[:TURNS])


def manager_rows() -> Iterator[Row]:
    """Measure a manager of 10,000 skills beside bare reads of the same backend."""
    with tempfile.TemporaryDirectory() as name:
        write_library(Path(name) / "skills", 10_000)
        backend = FilesystemBackend(root_dir=name, virtual_mode=True)
        manager = SkillsManager(backend=backend, sources=["/skills"], max_age=FOREVER)
        manager.search_skills("contracts")
        path = "/skills/skill-04242/SKILL.md"
        bare = _median(partial(backend.download_files, [path]))
        content = _median(partial(manager.get_skill_content, "skill-04242"))
        query = "contracts of kind 77"
        search = _median(partial(manager.search_skills, query))
        looking = SkillsManager(backend=backend, sources=["/skills"])
        looking.search_skills(query)
        ratio, looked, floor = compare(
            partial(looking.search_skills, query), partial(list_and_read, backend, "/skills"), 5
        )
    yield Row(
        "manager of 10,000 skills, `get_skill_content`",
        f"a bare read {bare * 1e6:.0f} us",
        f"{content * 1e6:.0f} us, {content / bare:.1f}x",
        "at most 3x",
        content <= 3 * bare,
        {"ratio": content / bare},
    )
    yield Row(
        "manager of 10,000 skills, `search_skills` with `max_age`",
        "itself",
        f"{search * 1000:.1f} ms",
        "under 10 ms",
        search < 0.01,
        {"seconds": search},
    )
    yield Row(
        "manager of 10,000 skills, `search_skills` that looks every time",
        f"the backend's own ls + download {floor * 1000:.0f} ms",
        f"{looked * 1000:.0f} ms, {ratio} the floor",
        "at most 1.3x",
        ratio.median <= 1.3,
        {"ratio": ratio.median},
    )


def _median(action: Callable[[], object]) -> float:
    return statistics.median(seconds(action) for _ in range(50))
