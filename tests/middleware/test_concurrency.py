"""One instance, many runs at once: no thread sees another's skills, and the event loop is never held up."""

import asyncio
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError, blockbuster_ctx
from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import LsResult
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.sqlite.aio import AsyncSqliteStore

from deepskills import SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import FakeBackend, disk, load, loaded_in, scaled, skill_md, tool_messages, unload, write_files

RUNS = scaled(16, 50)


def name_of(number: int) -> str:
    return f"skill-{number:02}"


def plan_of(number: int) -> list[AIMessage]:
    """Return what the model does in one run: load its own skill and its neighbour's, then let go of the latter."""
    own, neighbour = name_of(number), name_of((number + 1) % RUNS)
    return [call_tools(load(own), load(neighbour)), call_tools(unload(neighbour)), AIMessage(f"Done with {own}.")]


def by_the_users_number(messages: list[BaseMessage]) -> AIMessage:
    """Go on with the plan of the run that these messages belong to; the model itself remembers nothing."""
    number = next(int(message.text) for message in messages if message.type == "human")
    return plan_of(number)[sum(message.type == "ai" for message in messages)]


def crowd(root: Path) -> Any:
    """Return an agent whose one middleware serves every run."""
    files = {f"skills/{name_of(number)}/SKILL.md": skill_md(name_of(number)) for number in range(RUNS)}
    scripts = {f"skills/{name_of(number)}/scripts/{number}.py": "" for number in range(RUNS)}
    write_files(root, {**files, **scripts})
    backend = FakeBackend(root, delay=0.002)
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], max_loaded_skills=2)
    model = ScriptedChatModel(replies=[by_the_users_number] * (RUNS * 3))
    return create_agent(model, middleware=[middleware], checkpointer=InMemorySaver())


def config_of(number: int) -> RunnableConfig:
    return {"configurable": {"thread_id": f"thread-{number}"}}


def given_to(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(str(number))]}


def check(agent: Any, number: int, result: dict[str, Any]) -> None:
    """Assert that a run has its own skill, all of it and nothing else."""
    own = name_of(number)
    own_answer, neighbours_answer, unloaded = tool_messages(result)
    assert f"Instructions of {own}." in own_answer.text
    assert f"Instructions of {name_of((number + 1) % RUNS)}." in neighbours_answer.text
    assert unloaded.status == "success"
    assert result["messages"][-1].text == f"Done with {own}."
    state = agent.get_state(config_of(number)).values
    assert state["skills_loaded"] == [own]
    assert state["skill_resources"] == {
        own: [{"path": f"/skills/{own}/scripts/{number}.py", "type": "script", "skill_name": own}]
    }
    assert list(state["skills_context"]["records"]) == [own]
    assert len(state["skills_metadata"]) == RUNS


def test_one_instance_serves_many_threads(tmp_path: Path) -> None:
    """Runs in as many threads of the process load different skills through one instance without a mix-up."""
    agent = crowd(tmp_path)

    with ThreadPoolExecutor(RUNS) as pool:
        results = list(pool.map(lambda number: agent.invoke(given_to(number), config_of(number)), range(RUNS)))

    for number, result in enumerate(results):
        check(agent, number, result)


def test_one_instance_serves_many_tasks(tmp_path: Path) -> None:
    """Many runs on one event loop load different skills through one instance without a mix-up."""
    agent = crowd(tmp_path)

    async def all_at_once() -> Any:
        return await asyncio.gather(*(agent.ainvoke(given_to(number), config_of(number)) for number in range(RUNS)))

    for number, result in enumerate(asyncio.run(all_at_once())):
        check(agent, number, result)


def test_nothing_of_ours_blocks_the_event_loop(tmp_path: Path) -> None:
    """Discovery, loads, refusals and unloads under `ainvoke` wait for files without holding up the loop."""
    files = {f"skills/{name}/SKILL.md": skill_md(name) for name in ("alpha", "beta", "gamma")}
    write_files(tmp_path, {**files, "skills/alpha/scripts/run.py": "", "skills/alpha/references/guide.md": ""})
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], max_loaded_skills=2)
    calls = [load("alpha"), load("beta"), load("zzz"), unload("alpha"), load("beta"), load("beta")]
    model = ScriptedChatModel(replies=[call_tools(call) for call in calls])
    agent: Any = create_agent(model, middleware=[middleware])

    async def watched() -> Any:
        with blockbuster_ctx("deepskills"):
            return await agent.ainvoke({"messages": [HumanMessage("go")], "pinned_skills": ["gamma"]})

    result = asyncio.run(watched())

    outcomes = [message.status for message in tool_messages(result)]
    assert outcomes == ["success", "error", "error", "success", "success", "success"]
    assert loaded_in(model.requests[-1].system) == ["beta", "gamma"]


def test_the_watch_on_the_event_loop_works(tmp_path: Path) -> None:
    """A backend that does block in its async methods is caught, and costs its own listing alone."""

    class Blocking(FilesystemBackend):
        async def als(self, path: str) -> LsResult:
            time.sleep(0.001)  # noqa: ASYNC251 - the very fault
            return self.ls(path)

    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    middleware = SkillsMiddleware(backend=Blocking(root_dir=tmp_path, virtual_mode=True), sources=["/skills"])
    agent: Any = create_agent(ScriptedChatModel(replies=[]), middleware=[middleware], checkpointer=InMemorySaver())

    async def watched() -> None:
        with blockbuster_ctx("deepskills"):
            await agent.ainvoke({"messages": [HumanMessage("go")]}, config_of(1))

    asyncio.run(watched())

    [error] = agent.get_state(config_of(1)).values["skills_load_errors"]
    assert BlockingError.__name__ in error


class Turns:
    """Turns of an event loop that somebody in another thread waits for: a loop that is held up has none."""

    def __init__(self) -> None:
        self._has_turned = threading.Event()
        self.awaited: list[bool] = []
        """Whether the loop turned, for each time that somebody waited."""

    def wait(self) -> None:
        """Wait until the event loop has turned twice: the first turn may have been under way."""
        for _ in range(2):
            self._has_turned.clear()
            self.awaited.append(self._has_turned.wait(30))

    async def run_beside(self, work: Awaitable[Any]) -> None:
        """Turn, beside work on the same loop, until that is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self._has_turned.set()
            await asyncio.sleep(0.001)
        await task


@pytest.mark.parametrize("build", [create_agent, create_deep_agent], ids=["create_agent", "create_deep_agent"])
def test_the_event_loop_runs_on_while_a_backend_is_slow(tmp_path: Path, build: Any) -> None:
    """While a backend takes its time for a call, other tasks on the loop go on."""
    turns = Turns()

    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha"), "skills/alpha/scripts/run.py": ""})
    middleware = SkillsMiddleware(
        backend=FakeBackend(tmp_path, rules=dict.fromkeys(("ls", "download_files"), lambda _asked: turns.wait())),
        sources=["/skills"],
    )
    model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
    agent = build(model, middleware=[middleware])

    asyncio.run(turns.run_beside(agent.ainvoke({"messages": [HumanMessage("go")]})))

    assert loaded_in(model.requests[-1].system) == ["alpha"]
    assert len(turns.awaited) >= 8
    assert all(turns.awaited)


@pytest.mark.parametrize("what", ["sources", "backend"])
def test_the_event_loop_runs_on_while_a_users_function_is_slow(tmp_path: Path, what: str) -> None:
    """Functions for sources and backend may take their time under `ainvoke`; other tasks go on."""
    write_files(tmp_path, {"skills/alpha/SKILL.md": skill_md("alpha")})
    threads: set[str] = set()
    turns = Turns()

    def slow(given: Any) -> Any:
        def function(_runtime: Any) -> Any:
            threads.add(threading.current_thread().name)
            turns.wait()
            return given

        return function

    options: dict[str, Any] = {"sources": ["/skills"], "backend": disk(tmp_path)}
    middleware = SkillsMiddleware(**{**options, what: slow(options[what])})
    model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
    agent: Any = create_agent(model, middleware=[middleware])

    asyncio.run(turns.run_beside(agent.ainvoke({"messages": [HumanMessage("go")]})))

    assert loaded_in(model.requests[-1].system) == ["alpha"]
    assert threading.main_thread().name not in threads
    assert len(turns.awaited) >= 4
    assert all(turns.awaited)


@pytest.mark.parametrize("what", ["sources", "backend"])
def test_a_users_function_may_ask_an_async_store(tmp_path: Path, what: str) -> None:
    """A store that refuses to be asked on its own event loop answers functions for sources and backend."""
    write_files(tmp_path, {"acme/alpha/SKILL.md": skill_md("alpha")})

    def sources(runtime: Any) -> list[str]:
        return [item.value["path"] for item in runtime.store.search(("tenants",))]

    def backend(runtime: Any) -> FilesystemBackend:
        assert runtime.store.get(("tenants",), "acme") is not None
        return disk(tmp_path)

    options: dict[str, Any] = {"sources": sources if what == "sources" else ["/acme"]}
    options["backend"] = backend if what == "backend" else disk(tmp_path)

    async def with_a_store() -> Any:
        async with AsyncSqliteStore.from_conn_string(":memory:") as store:
            await store.setup()
            await store.aput(("tenants",), "acme", {"path": "/acme"})
            model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
            agent: Any = create_agent(model, middleware=[SkillsMiddleware(**options)], store=store)
            return await agent.ainvoke({"messages": [HumanMessage("go")]})

    [answer] = tool_messages(asyncio.run(with_a_store()))
    assert answer.status == "success"
