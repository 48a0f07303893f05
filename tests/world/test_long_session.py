"""A conversation that goes on and on, its history compacted on the way: nothing grows, nothing slows down."""

import gc
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver

from deepskills import SkillsMiddleware
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
