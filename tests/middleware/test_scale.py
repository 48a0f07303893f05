"""Scale, by counts and ratios: calls of a turn, unknown pins, many conversations, an event loop that is never held."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import BackendProtocol, FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime
from test_discovery_agents import grows_in_proportion

from deepskills import SkillsMiddleware
from deepskills._catalog import lookup
from deepskills._catalog.catalog import Readings
from deepskills._middleware.run import Run
from deepskills._prompt import section
from deepskills.testing import ScriptedChatModel, call_tools
from support import FakeBackend, Mode, both_modes, load, run, scaled, skill_md, tool_messages, write_files

MANY = scaled(150, 400)
TURN = 20
LIBRARY = 2_000
LONGEST_HOLD = 0.6
"""How long the event loop may be held at a time, in CPU: by how long parsing this library takes here and now."""


class Shelves(BackendProtocol):
    """A large library in memory."""

    def __init__(self) -> None:
        self.files = {f"/skills/{n}/SKILL.md": skill_md(n, f"Does {n}.").encode() for n in names(LIBRARY)}

    def ls(self, path: str) -> LsResult:
        """List the source, or the one file of a skill."""
        if path == "/skills":
            return LsResult(entries=[{"path": f"/skills/{name}", "is_dir": True} for name in names(LIBRARY)])
        return LsResult(entries=[{"path": f"{path.rstrip('/')}/SKILL.md"}])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files."""
        return [FileDownloadResponse(path=path, content=self.files[path]) for path in paths]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library of many skills."""
    root = tmp_path_factory.mktemp("many")
    write_files(root, {f"skills/skill-{n:05d}/SKILL.md": skill_md(f"skill-{n:05d}", f"Does {n}.") for n in range(MANY)})
    return root


async def watched(work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Return what `work` gives, and the longest CPU time of this thread between two turns of the event loop."""
    longest = 0.0
    is_over = False

    async def watch() -> None:
        nonlocal longest
        before = time.thread_time()
        while not is_over:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    watcher = asyncio.create_task(watch())
    result = await work()
    is_over = True
    await watcher
    return result, longest


def names(count: int) -> list[str]:
    return [f"skill-{n:05d}" for n in range(count)]


@both_modes
@pytest.mark.parametrize("spelling", [str, str.upper])
def test_loads_of_one_turn_share_what_they_read(mode: Mode, spelling: Callable[[str], str], many: Path) -> None:
    """Twenty loads in one turn make at most two backend calls each, in any case of letters."""
    backend = FakeBackend(many)
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], max_loaded_skills=TURN)
    model = ScriptedChatModel(replies=["Hello.", call_tools(*[load(spelling(name)) for name in names(TURN)])])
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    run(mode, agent, "go", config)
    before = len(backend.calls)
    result = run(mode, agent, "load", config)
    assert [answer.status for answer in tool_messages(result)] == ["success"] * TURN
    assert len(backend.calls) - before <= 2 * TURN


def test_a_large_library_leaves_the_loop_free() -> None:
    """The first look, loads in any case, unknown names and pins, a search and a second thread hold it for moments."""
    shelves = Shelves()
    # Whatever else the machine does makes a hold look longer, never shorter: the shortest of some tries counts.
    tries = (longest_hold_by_parsing(shelves) for _ in range(5))
    assert any(held < LONGEST_HOLD for held in tries)


def longest_hold_by_parsing(shelves: Shelves) -> float:
    """Return the longest time that runs on a large library held the event loop, by that of parsing all of it."""
    options: dict[str, Any] = {
        "sources": ["/skills"],
        "max_loaded_skills": TURN,
        "extra_tools": ["search_skills"],
        "visibility": {"skill-*9": "off"},
    }
    middleware = SkillsMiddleware(backend=shelves, **options)
    model = ScriptedChatModel(
        replies=[
            "Hello.",
            call_tools(*[load(name.upper()) for name in names(TURN)]),
            call_tools(*[load(f"skil-{n:05d}x") for n in range(TURN)]),
            call_tools(("search_skills", {"query": "does 399"})),
        ]
    )
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    # As another process, which has read nothing yet.
    again = create_agent(model, middleware=[SkillsMiddleware(backend=shelves, **options)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    pins = [f"nope-{n}" for n in range(200)]

    async def longest_hold(to: Any, given: Any, where: Any) -> float:
        _, longest = await watched(lambda: to.ainvoke({"messages": [HumanMessage("go")], **given}, where))
        return longest

    async def runs() -> tuple[Any, float]:
        held = [
            await longest_hold(agent, {}, config),
            await longest_hold(agent, {"pinned_skills": pins}, config),
            await longest_hold(agent, {}, {"configurable": {"thread_id": "second"}}),
        ]
        state = (await agent.aget_state(config)).values
        await again.aupdate_state(config, state)
        return state["skills_loaded"], max(*held, await longest_hold(again, {}, config))

    gc.disable()
    try:
        loaded, longest = asyncio.run(runs())
        readings = Readings()
        started = time.thread_time()
        for path, content in shelves.files.items():
            readings.read(path, content)
        parsing = time.thread_time() - started
    finally:
        gc.enable()
    assert len(loaded) == TURN - 2
    return longest / parsing


@both_modes
def test_unknown_pins_cost_a_look_each(mode: Mode, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred unknown pins compare no names with the catalog, and leave a bounded number of problems."""
    compared: list[str] = []
    closest = lookup.closest_names

    def counted(known: Any, asked: str) -> list[str]:
        compared.append(asked)
        return closest(known, asked)

    monkeypatch.setattr(lookup, "closest_names", counted)
    backend = FakeBackend(many)
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"])
    model = ScriptedChatModel(replies=[])
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    given = {"messages": [HumanMessage("go")], "pinned_skills": [f"nope-{n}" for n in range(200)]}
    run(mode, agent, given, config)
    problems = agent.get_state(config).values["skills_problems"]
    assert compared == []
    assert len(problems) == 51
    assert "150 more names" in problems[-1]["message"]
    before = len(backend.calls)
    run(mode, agent, {**given, "messages": [HumanMessage("again")]}, config)
    assert len(backend.calls) == before
    assert len(agent.get_state(config).values["skills_problems"]) == 51


def test_many_conversations_render_one_section(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventeen conversations at once, each with another skill loaded, render their list once and stay remembered."""
    rendered: list[int] = []
    original: Any = section.CatalogList

    class Counted(original):  # type: ignore[misc]
        """Counts how often the list is made."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            rendered.append(1)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(section, "CatalogList", Counted)
    middleware = SkillsMiddleware(
        backend=FilesystemBackend(root_dir=many, virtual_mode=True), sources=["/skills"], catalog_budget=50_000
    )

    def reply(messages: Any) -> Any:
        last = messages[-1]
        return call_tools(load(str(last.text))) if last.type == "human" and str(last.text).startswith("skill") else "ok"

    model = ScriptedChatModel(replies=reply)
    agent = create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())

    async def talk() -> None:
        for text in (names(17), ["go on"] * 17):
            await asyncio.gather(
                *(
                    agent.ainvoke({"messages": [HumanMessage(text[n])]}, {"configurable": {"thread_id": str(n)}})
                    for n in range(17)
                )
            )

    asyncio.run(talk())
    assert len(model.requests) == 17 * 3
    assert len(rendered) == 1
    assert len({request.system for request in model.requests[-17:]}) == 17


def test_problems_of_many_skills_grow_in_proportion(tmp_path: Path) -> None:
    """A later run over skills with a warning each costs in proportion: four times the skills, not sixteen times."""

    def later_run(count: int) -> Callable[[], float]:
        root = tmp_path / str(count)
        write_files(
            root, {f"skills/s-{n}/SKILL.md": f"---\nname: S_{n}\ndescription: D.\n---\nText.\n" for n in range(count)}
        )
        middleware = SkillsMiddleware(
            backend=FilesystemBackend(root_dir=root, virtual_mode=True), sources=["/skills"], refresh="run"
        )
        agent = create_agent(ScriptedChatModel(replies=[]), middleware=[middleware], checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        run("sync", agent, "go", config)

        def seconds() -> float:
            started = time.process_time()
            run("sync", agent, "again", config)
            return time.process_time() - started

        return seconds

    assert grows_in_proportion(later_run(100), later_run(400), 4)


def test_a_request_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """What a call knows of its run goes with the call: cycles would stay until a collection looks at the whole heap."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    middleware = SkillsMiddleware(backend=FilesystemBackend(root_dir=tmp_path, virtual_mode=True), sources=["/skills"])
    state: Any = {"messages": []}
    state |= middleware.before_agent(state, Runtime()) or {}
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert "alpha" in middleware.skills_section(state)
        left = [found for found in gc.get_objects() if isinstance(found, Run) and found.state is state]
    finally:
        gc.enable()
    assert left == []
