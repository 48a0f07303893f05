"""What whole runs cost at 10,000 skills, beside deepagents' class, in CPU: a busy machine matters less."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.middleware.filesystem import FilesystemMiddleware
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from measure import Row

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools

RUNS = 5
MESSAGES = 2_000
REACH = 1.3
Make = Callable[[], Any]


def cpu(action: Callable[[], object]) -> float:
    """Return the seconds of CPU that one run takes."""
    gc.collect()
    start = time.process_time()
    action()
    return time.process_time() - start


class Talk:
    """A conversation with an agent that has a long history."""

    def __init__(self, middleware: Any, backend: FilesystemBackend, messages: int) -> None:
        self.model = ScriptedChatModel(replies=[])
        files = FilesystemMiddleware(backend=backend)
        self.agent: Any = create_agent(self.model, middleware=[files, middleware], checkpointer=InMemorySaver())
        history: list[AnyMessage] = [HumanMessage(f"Question {n}.") for n in range(messages // 2)]
        history += [AIMessage(f"Answer {n}.") for n in range(messages // 2)]
        self.run("t", [*history, HumanMessage("Go.")])

    def run(self, thread: str, messages: list[AnyMessage] | None = None, *replies: Any, **further: Any) -> float:
        """Return the CPU of one run in which the model gives these replies."""
        self.model.replies = [*["-"] * len(self.model.requests), *replies]
        given = {"messages": messages or [HumanMessage("Go on.")], **further}
        return cpu(lambda: self.agent.invoke(given, {"configurable": {"thread_id": thread}}))


def scale_rows(root: Path) -> Iterator[Row]:
    """Measure runs over the 10,000 skills below `root`."""
    backend = FilesystemBackend(root_dir=root, virtual_mode=True)

    def ours() -> Talk:
        skills = SkillsMiddleware(backend=backend, sources=["/skills"], max_loaded_skills=200, max_loaded_tokens=None)
        return Talk(skills, backend, MESSAGES)

    def theirs() -> Talk:
        return Talk(DeepAgentsSkillsMiddleware(backend=backend, sources=["/skills"]), backend, MESSAGES)

    mine, other = ours(), theirs()
    yield _row("a run with one model call", [other.run("t") for _ in range(RUNS)], [mine.run("t") for _ in range(RUNS)])
    reads = [call_tools(("read_file", {"file_path": f"/skills/skill-{n:05d}/SKILL.md"})) for n in range(RUNS)]
    loads = [call_tools(("load_skill", {"skill_name": f"skill-{n:05d}"})) for n in range(RUNS)]
    yield _row(
        "a run with one load",
        [other.run("t", None, call) for call in reads],
        [mine.run("t", None, call) for call in loads],
    )
    mine, other = ours(), theirs()
    turns = [range(first, first + 20) for first in range(0, 20 * RUNS, 20)]
    many = [[("read_file", {"file_path": f"/skills/skill-{n:05d}/SKILL.md"}) for n in turn] for turn in turns]
    named = [[("load_skill", {"skill_name": f"SKILL-{n:05d}"}) for n in turn] for turn in turns]
    yield _row(
        "20 loads in one turn, in another case",
        [other.run("t", None, call_tools(*calls)) for calls in many],
        [mine.run("t", None, call_tools(*calls)) for calls in named],
    )
    pins = [f"unknown-{n}" for n in range(200)]
    yield _row(
        "200 unknown names in `pinned_skills`",
        [other.run("t", pinned_skills=pins) for _ in range(3)],
        [mine.run("t", pinned_skills=pins) for _ in range(3)],
    )
    mine, other = ours(), theirs()
    for talk in (mine, other):
        for number in range(17):
            talk.run(f"c{number}", None, *([loads[number % 5]] if talk is mine else []))
    yield _row(
        "a model call in each of 17 conversations",
        [statistics.mean(other.run(f"c{n}") for n in range(17))],
        [statistics.mean(mine.run(f"c{n}") for n in range(17))],
    )


def _row(what: str, theirs: list[float], mine: list[float]) -> Row:
    reference, measured = statistics.median(theirs) * 1000, statistics.median(mine) * 1000
    ratio = measured / reference
    return Row(
        f"{what}, 10,000 skills, 2,000 messages",
        f"deepagents {reference:.0f} ms CPU",
        f"{measured:.0f} ms CPU, {ratio:.2f}x",
        f"at most {REACH}x",
        ratio <= REACH,
        {"ratio": ratio},
    )
