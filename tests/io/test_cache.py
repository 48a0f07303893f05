"""The cache that everything remembered lies in: bounded by weight, shared by threads, empty in copies."""

import copy
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends.protocol import BackendProtocol, FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.runtime import Runtime

from deepskills import SkillsMiddleware, generate_skill_md
from deepskills._catalog import catalog as catalogs
from deepskills._catalog import catalog as entries
from deepskills._catalog.catalog import Readings
from deepskills._io.cache import ENTRY_BYTES, BoundedCache, size_of
from deepskills._middleware import config
from deepskills._middleware.config import SharedCache
from deepskills._prompt import section
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk, load, skill_md, tool_messages, write_files


def test_the_least_recently_used_goes_first() -> None:
    """A cache never holds more than its weight, and a look at a value keeps it."""
    cache: BoundedCache[str, int] = BoundedCache(3, lambda _: 1)
    for key in "abc":
        cache.put(key, ord(key))
    assert cache.get("a") == ord("a")
    cache.put("d", 0)
    assert [cache.get(key) for key in "abcd"] == [97, None, 99, 0]
    assert len(cache) == 3


def test_values_have_weight() -> None:
    """The total weight is bounded; one value that is too heavy is not kept, and costs no other."""
    cache: BoundedCache[str, str] = BoundedCache(10, len)
    cache.put("a", "x" * 4)
    cache.put("b", "x" * 6)
    cache.put("huge", "x" * 11)
    assert (cache.get("a"), cache.get("b"), cache.get("huge")) == ("x" * 4, "x" * 6, None)
    cache.put("c", "x")
    assert (cache.get("a"), len(cache)) == (None, 2)
    for _ in range(100):
        cache.put("c", "xx")
    assert (cache.get("b"), cache.get("c")) == ("x" * 6, "xx")
    cache.put("c", "x" * 11)
    assert cache.get("c") is None


def test_what_is_missing_is_made_once_and_outside_the_lock() -> None:
    """A value is made when it is missing; while that takes its time, the cache serves others."""
    cache: BoundedCache[str, int] = BoundedCache(3, lambda _: 1)
    assert [cache.get_or_make("a", lambda: 1), cache.get_or_make("a", lambda: 2)] == [1, 1]

    def make() -> int:
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(cache.get, "a").result(timeout=60)
        return (found or 0) + 1

    assert cache.get_or_make("b", make) == 2


def test_threads_that_miss_at_once_make_one() -> None:
    """Eight threads that ask for what is not there wait for the first, which makes it; a failure holds nobody."""
    cache: BoundedCache[str, int] = BoundedCache(3, lambda _: 1)
    made: list[int] = []
    start, second = threading.Barrier(8), threading.Event()

    def make() -> int:
        made.append(1)
        if len(made) > 1:
            second.set()
        second.wait(0.2)
        return len(made)

    def ask(_: int) -> int:
        start.wait()
        return cache.get_or_make("a", make)

    def fail() -> int:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - our own
        cache.get_or_make("a", fail)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [1] * 8
    assert made == [1]


def test_what_is_too_heavy_to_keep_is_made_for_each() -> None:
    """Threads that wait for a value which is not kept make it in turn: none waits for ever, and none goes without."""
    cache: BoundedCache[str, str] = BoundedCache(3, len)
    made: list[int] = []
    start = threading.Barrier(4)

    def make() -> str:
        made.append(1)
        return "too heavy"

    def ask(_: int) -> str:
        start.wait()
        return cache.get_or_make("a", make)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["too heavy"] * 4
    assert len(made) == 4
    assert len(cache) == 0


def test_a_copy_is_empty_and_bounded_alike() -> None:
    """A deep copy remembers nothing, shares nothing, and keeps the same bounds."""
    cache: BoundedCache[str, str] = BoundedCache(10, len)
    cache.put("a", "x" * 10)
    twin = copy.deepcopy(cache)
    assert (len(twin), len(cache)) == (0, 1)
    twin.put("b", "x" * 11)
    twin.put("c", "x" * 10)
    assert (twin.get("b"), twin.get("c"), cache.get("c")) == (None, "x" * 10, None)


def test_threads_share_it() -> None:
    """Many threads that look, make and replace at once never see another key's value or overfill it."""
    cache: BoundedCache[int, int] = BoundedCache(50, lambda _: 1)
    start = threading.Barrier(8)
    wrong: list[int] = []

    def work() -> None:
        start.wait()
        for number in range(2_000):
            key = number % 70
            if cache.get_or_make(key, lambda key=key: key) != key:  # type: ignore[misc]
                wrong.append(key)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 50


def test_sizes_count_everything_that_is_kept() -> None:
    """Texts by their real width, containers with all that is in them, keys as well as values."""
    assert size_of("x" * 1_000) > 1_000
    assert size_of("周" * 1_000) > 2_000
    assert size_of("🎉" * 1_000) > 4_000
    nested = {"key" * 100: ["x" * 500, ("y" * 500, {"z" * 500: b"0" * 500})]}
    assert size_of(nested) > 300 + 2_000
    assert size_of([nested, nested]) > 2 * size_of(nested)
    cache: BoundedCache[str, str] = BoundedCache(10 * (ENTRY_BYTES + 2_000))
    for number in range(100):
        cache.put(f"{number:04}" * 230, "x" * 950)
    assert 9 <= len(cache) <= 10


# What a process holds, however long it serves strangers. Bounds are made small, so that a short run passes them often.

SMALL = 200_000


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Every bound is small; gives a function that tells how many bytes are held now."""
    for module in (entries, catalogs, config, section):
        for name in vars(module):
            if name.startswith("MAX_") and name.endswith("_BYTES"):
                monkeypatch.setattr(module, name, SMALL)

    def bytes_held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    yield bytes_held
    tracemalloc.stop()


def ran(middleware: SkillsMiddleware, *calls: tuple[str, dict[str, Any]]) -> Any:
    """Run an agent on a new thread."""
    model = ScriptedChatModel(replies=[call_tools(*calls)] if calls else ["Hello."])
    return create_agent(model, middleware=[middleware]).invoke({"messages": [HumanMessage("go")]})


def test_refused_loads_leave_no_texts_behind(held: Callable[[], int], tmp_path: Path) -> None:
    """A text that is too large to be loaded is not kept, however often a model asks for it."""
    write_files(tmp_path, {"skills/huge/SKILL.md": skill_md("huge", body="x" * 50_000)})
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], max_loaded_tokens=10)
    [answer] = tool_messages(ran(middleware, load("huge")))
    assert answer.status == "error"
    start = held()
    for _ in range(20):
        ran(middleware, load("huge"))
    # Each reading holds the text twice, filled in and as a block: without a bound, 2 MB.
    assert held() - start < 4 * SMALL


def test_files_weigh_what_they_hold(held: Callable[[], int]) -> None:
    """Metadata, tools and frontmatter count as a description does: whatever part is large, what is kept is bounded."""
    large = "y" * 20_000
    fields: list[dict[str, Any]] = [
        {"metadata": {"note": large}},
        {"metadata": {f"key-{number}": "y" * 200 for number in range(50)}},
        {"license": large},
        {"compatibility": "y" * 400},
        {"allowed-tools": [f"Tool{number}" for number in range(800)]},
        {"when_to_use": "y" * 8_000},
    ]
    readings = entries.Readings()
    start = held()
    for number in range(120):
        text = generate_skill_md("alpha", f"Edit {number}.", "Body.", fields[number % len(fields)])
        readings.read(f"/skills/s-{number}/SKILL.md", text.encode())
    assert held() - start < 2 * SMALL


def test_edits_of_a_large_library_do_not_add_up(held: Callable[[], int], tmp_path: Path) -> None:
    """With a file changed before every run, old catalogs go, and so does all that was worked out from them."""
    description = ("Does a thing that takes many words to say. " * 10).strip()
    write_files(tmp_path, {f"skills/s-{n}/SKILL.md": skill_md(f"s-{n}", description) for n in range(30)})
    middleware = SkillsMiddleware(
        backend=disk(tmp_path), sources=["/skills"], refresh="run", visibility={"s-1*": "name-only"}
    )
    edited = tmp_path / "skills/s-0/SKILL.md"
    growth: list[int] = []
    for number in range(45):
        edited.write_text(skill_md("s-0", description=f"Edit {number}."), encoding="utf-8")
        state: Any = {"messages": []}
        state |= middleware.before_agent(state, Runtime()) or {}
        assert f"Edit {number}." in middleware.skills_section(state)
        if number % 15 == 14:
            growth.append(held())
    # With its section a catalog of this size takes about 80 kB: without bounds, 15 runs hold 1.2 MB more.
    assert growth[2] - growth[1] < SMALL


def test_remembered_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a middleware remembers of texts stays within its size, however many are loaded, the newest being kept."""
    monkeypatch.setattr("deepskills._middleware.config.MAX_TEXT_BYTES", 10 * 1_400)
    memory = SharedCache()
    texts = [f"{number:04}" * 250 for number in range(1_000)]
    keys = [memory.keep_text(text) for text in texts]

    kept = [number for number, (key, text) in enumerate(zip(keys, texts, strict=True)) if memory.text(key) == text]

    assert kept == list(range(990, 1_000))


def test_remembered_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a middleware remembers of parsed files stops growing at its size, however often files change."""
    monkeypatch.setattr("deepskills._catalog.catalog.MAX_REMEMBERED_BYTES", 50 * 2_000)
    readings = Readings()
    contents = [skill_md("alpha", description=f"Edit {number}.").encode() for number in range(400)]
    held = []
    tracemalloc.start()
    try:
        for number, content in enumerate(contents):
            readings.read(f"/skills/s-{number % 200}/SKILL.md", content)
            if number in {199, 399}:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    assert held[1] < held[0] + 50_000


class Edited(BackendProtocol):
    """Keeps skills with much metadata; each look finds some of them edited."""

    def __init__(self, skills: int, edits: int) -> None:
        self._edits = edits
        self._versions = [0] * skills
        self._looks = 0

    def ls(self, path: str) -> LsResult:  # noqa: ARG002 - there is one source
        for number in range(self._edits):
            self._versions[(self._looks + number) % len(self._versions)] += 1
        self._looks += self._edits
        return LsResult(entries=[{"path": f"/skills/s-{n}/", "is_dir": True} for n in range(len(self._versions))])

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        found = []
        for path in paths:
            number = int(path.split("-")[1].partition("/")[0])
            mark = f"{self._versions[number]}x"
            text = f"---\nname: s-{number}\ndescription: Edit {mark * 300}\nmetadata:\n  owner: {mark * 10_000}\n---\n"
            found.append(FileDownloadResponse(path, text.encode()))
        return found


@pytest.mark.parametrize("edits", [1, 10])
def test_what_old_versions_of_skills_take_is_bounded(edits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with an edit of one file or of all keep no more than the bounds, with all that a request is made of."""
    bounds = {"_catalog.catalog.MAX_REMEMBERED_BYTES": 500_000, "_catalog.catalog.MAX_CATALOG_BYTES": 500_000}
    bounds |= {"_prompt.section.MAX_REMEMBERED_BYTES": 200_000}
    for name, most in bounds.items():
        monkeypatch.setattr(f"deepskills.{name}", most)
    middleware = SkillsMiddleware(backend=Edited(10, edits), sources=["/skills"], refresh="run")
    agent: Any = create_agent(ScriptedChatModel(replies=lambda _messages: AIMessage("Done.")), middleware=[middleware])
    held = []
    tracemalloc.start()
    try:
        for number in range(30):
            agent.invoke({"messages": [("user", "Go.")]})
            if number in {3, 29}:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < sum(bounds.values()) + 500_000
