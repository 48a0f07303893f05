"""One instance and one agent, many conversations at once, while somebody edits the files underneath."""

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk, load, scaled, skill_md, unload, write_files
from support.world import blocks_in, check_pairs, check_whole, replayed, told, versions_in

SKILLS = [f"skill-{number:02}" for number in range(12)]
RUNS = scaled(2, 3)
TURNS = 2
THREADS = scaled(8, 200)
TASKS = scaled(12, 500)


def calls_of(number: int) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the calls of each turn that one conversation makes, by its number alone."""
    dice = random.Random(number)
    turns = []
    for _ in range(RUNS * TURNS):
        names = dice.sample(SKILLS, k=3)
        turns.append([(dice.choice((load, load, unload)))(name) for name in names])
    return turns


def expected(number: int) -> list[str]:
    """Return what a conversation has loaded in the end."""
    loaded: list[str] = []
    for name, arguments in (call for turn in calls_of(number) for call in turn):
        skill = arguments["skill_name"]
        if name == "unload_skill":
            loaded = [other for other in loaded if other != skill]
        elif skill not in loaded:
            loaded.append(skill)
    return loaded


def go_on(messages: list[BaseMessage]) -> AIMessage:
    """Go on with the calls of the conversation that these messages belong to; the model itself remembers nothing."""
    number = next(int(message.text) for message in messages if message.type == "human")
    assert blocks_in(messages) == sorted(replayed(m for m in messages if not str(m.text).startswith("[Skill")))
    said = sum(message.type == "ai" for message in messages)
    run, turn = divmod(said, TURNS + 1)
    if turn == TURNS:
        return AIMessage(f"Done with {number}.")
    return call_tools(*calls_of(number)[run * TURNS + turn])


def write_version(root: Path, name: str, version: int) -> None:
    """Put a version of a skill into its place in one step, as editors do."""
    target = root / "skills" / name / "SKILL.md"
    fresh = root / f"{name}.{threading.get_ident()}.tmp"
    fresh.write_text(skill_md(name, body=told(name, version)), encoding="utf-8")
    os.replace(fresh, target)  # noqa: PTH105 - the one step is the point


@contextmanager
def edits(root: Path) -> Iterator[None]:
    """Edit skills all the time, and let others come and go."""
    over = threading.Event()

    def keep_editing() -> None:
        dice, version = random.Random(0), 1
        while not over.wait(0.01):
            version += 1
            write_version(root, dice.choice(SKILLS), version)
            guest = root / "skills" / f"guest-{version % 5}"
            if guest.exists():
                shutil.rmtree(guest)
            else:
                write_files(guest, {"SKILL.md": skill_md(guest.name)})

    editor = threading.Thread(target=keep_editing)
    editor.start()
    try:
        yield
    finally:
        over.set()
        editor.join()


def crowd(root: Path) -> Any:
    """Return an agent whose one middleware serves every conversation and looks for skills at every run."""
    for name in SKILLS:
        write_files(root, {f"skills/{name}/scripts/run.py": ""})
        write_version(root, name, 1)
    middleware = SkillsMiddleware(
        backend=disk(root), sources=["/skills"], refresh="run", max_loaded_skills=len(SKILLS), max_loaded_tokens=None
    )
    model = ScriptedChatModel(replies=[go_on] * ((THREADS + TASKS) * RUNS * (TURNS + 1)))
    return create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())


def config_of(number: int) -> RunnableConfig:
    return {"configurable": {"thread_id": f"thread-{number}"}}


def given_to(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(str(number))]}


def check(agent: Any, number: int) -> None:
    """Assert that a conversation ended with what it asked for, all of it and nothing else."""
    state = agent.get_state(config_of(number)).values
    messages = state["messages"]
    assert messages[-1].text == f"Done with {number}."
    assert state["skills_loaded"] == expected(number)
    check_whole(state)
    check_pairs(messages)
    for name, resources in state["skill_resources"].items():
        assert [resource["path"] for resource in resources] == [f"/skills/{name}/scripts/run.py"]
    assert [skill["name"] for skill in state["skills_metadata"] if skill["name"] in SKILLS] == SKILLS
    asked = [call["args"]["skill_name"] for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    assert {name for name, _version in versions_in(messages)} <= set(asked)


def test_threads_do_not_mix(tmp_path: Path) -> None:
    """Conversations in threads of one process end with what each asked for, whatever the others and the editor do."""
    agent = crowd(tmp_path)

    def talk(number: int) -> None:
        for _ in range(RUNS):
            agent.invoke(given_to(number), config_of(number))

    with edits(tmp_path), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(talk, range(THREADS)))

    for number in range(THREADS):
        check(agent, number)


def test_tasks_do_not_mix(tmp_path: Path) -> None:
    """Conversations on one event loop end with what each asked for, whatever the others and the editor do."""
    agent = crowd(tmp_path)

    async def talk(number: int) -> None:
        for _ in range(RUNS):
            await agent.ainvoke(given_to(number), config_of(number))

    async def all_at_once() -> None:
        await asyncio.gather(*(talk(number) for number in range(TASKS)))

    with edits(tmp_path):
        asyncio.run(all_at_once())

    for number in range(TASKS):
        check(agent, number)
