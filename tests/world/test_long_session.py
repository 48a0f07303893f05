"""A conversation that goes on and on, its history compacted on the way: nothing grows, nothing slows down."""

import gc
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from deepagents.backends.protocol import BackendProtocol, FileDownloadResponse, LsResult
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver

from deepskills import SkillsMiddleware
from deepskills._catalog.catalog import Readings
from deepskills._middleware.config import Memory
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk, load, scaled, skill_md, unload, write_files
from support.world import check_whole, told, versions_in

TURNS = scaled(27, 300)
WINDOW = TURNS // 5
"""How many turns at the beginning and at the end are compared."""

LOOK = TURNS // 6
"""How many turns lie between two looks at the memory."""

WARM_UP = 18
"""By then every skill was there in every version, the history was compacted, and what is remembered is complete."""

SKILLS = [f"skill-{number}" for number in range(6)]
VERSIONS = 3
GROWTH = 400_000
"""How many bytes the last turns may hold beyond the early ones; a leak of 10 KB a turn is more in the short form."""


class LongSession:
    """One thread in an SQLite file, summarized when it gets long, with skills that are edited, loaded and unloaded."""

    def __init__(self, root: Path, saver: SqliteSaver) -> None:
        self.root = root
        self.model = ScriptedChatModel(replies=[])
        self.config: RunnableConfig = {"configurable": {"thread_id": "long"}}
        summarizer = ScriptedChatModel(replies=[], fallback="What was said so far.")
        middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"], refresh="run", max_loaded_skills=3)
        compaction: Any = SummarizationMiddleware(summarizer, trigger=("messages", 24), keep=("messages", 8))
        self.summarizer = summarizer
        self.agent: Any = create_agent(self.model, middleware=[compaction, middleware], checkpointer=saver)

    def turn(self, number: int) -> None:
        """Edit a skill, load it again, and unload the one of three turns ago."""
        name, version = SKILLS[number % len(SKILLS)], number // len(SKILLS) % VERSIONS
        body = told(name, version) + "\n" + "Word by word. " * 200
        write_files(self.root, {f"skills/{name}/SKILL.md": skill_md(name, body=body)})
        self.model.requests.clear()
        self.summarizer.requests.clear()
        self.model.replies = [call_tools(unload(SKILLS[(number - 3) % len(SKILLS)]), load(name))]
        self.agent.invoke({"messages": [HumanMessage(f"Turn {number}")]}, self.config, durability="exit")

    def check(self, number: int) -> None:
        """Assert that the last three skills are there, in their latest versions, each once."""
        expected = [(SKILLS[n % len(SKILLS)], n // len(SKILLS) % VERSIONS) for n in range(number - 2, number + 1)]
        values = self.agent.get_state(self.config).values
        check_whole(values)
        assert values["skills_loaded"] == [name for name, _version in expected]
        assert versions_in(self.model.requests[-1].messages) == sorted(expected)
        assert len(values["messages"]) < 40


def test_memory_and_time_per_turn_stay_flat(tmp_path: Path) -> None:
    """Late turns of a long, compacted conversation hold no more memory and take no more time than early ones."""
    seconds: list[float] = []
    held: list[int] = []
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver:
        saver.conn.execute("PRAGMA synchronous=OFF")
        session = LongSession(tmp_path, saver)
        for number in range(WARM_UP):
            session.turn(number)
        # What other tests left is not looked at again and again.
        gc.freeze()
        tracemalloc.start()
        try:
            for number in range(WARM_UP, WARM_UP + TURNS):
                began = time.process_time()
                session.turn(number)
                seconds.append(time.process_time() - began)
                session.check(number)
                if number % LOOK == 0:
                    gc.collect()
                    held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            gc.unfreeze()
    looks = len(held) // 3
    assert statistics.median(held[-looks:]) < statistics.median(held[:looks]) + GROWTH
    assert statistics.median(seconds[-WINDOW:]) < 3 * statistics.median(seconds[:WINDOW])


def test_remembered_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a middleware remembers of texts stays within its size, however many are loaded, the newest being kept."""
    monkeypatch.setattr("deepskills._middleware.config.MAX_TEXT_BYTES", 10 * 1_400)
    memory = Memory()
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
