"""Methods of extensions that are `async def`: awaited in async runs, and tasks on one loop in sync runs."""

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command, interrupt

from deepskills import Refuse, SkillExtension, SkillLoad, SkillRun, SkillsError, SkillsMiddleware
from deepskills.testing import ScriptedChatModel, call_tools
from support import Conversation, Mode, both_modes, disk, load, run, skill_md, write_files

ASKER: ContextVar[str] = ContextVar("asker", default="nobody")


def library(root: Path) -> None:
    """Write two skills with files."""
    write_files(
        root,
        {
            "skills/alpha/SKILL.md": skill_md("alpha", license="MIT"),
            "skills/alpha/a.txt": "file a",
            "skills/alpha/b.txt": "file b",
            "skills/beta/SKILL.md": skill_md("beta"),
        },
    )


def skills(root: Path, *extensions: SkillExtension, **options: Any) -> SkillsMiddleware:
    """Return middleware over the library."""
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=extensions, **options)


@both_modes
def test_what_a_run_reads_is_awaited_as_anything_else(mode: Mode, tmp_path: Path) -> None:
    """`gather`, `wait_for`, task groups and tasks take what a run gives, in sync and in async runs."""
    library(tmp_path)
    seen: list[Any] = []

    class Reads(SkillExtension):
        async def before_load(self, load: SkillLoad, run: SkillRun) -> None:
            entry = load.entry
            seen.append(await asyncio.gather(run.read_file(entry, "a.txt"), run.read_file(entry, "b.txt")))
            seen.append(sorted((await asyncio.wait_for(run.manifest(entry), 60)).files))
            async with asyncio.TaskGroup() as group:
                task = group.create_task(run.directory(entry))
            seen.append(task.result().endswith("alpha"))
            try:
                await run.read_file(entry, "../beta/SKILL.md")
            except SkillsError as error:
                seen.append("refused" if ".." in str(error) else str(error))

    talk = Conversation(mode, skills(tmp_path, Reads()))
    talk.call(load("alpha"))
    assert talk.loaded == ["alpha"]
    assert seen == [[b"file a", b"file b"], ["SKILL.md", "a.txt", "b.txt"], True, "refused"]


@both_modes
def test_a_plain_method_is_told_to_be_async(mode: Mode, tmp_path: Path) -> None:
    """What reads says in a `def` method what to write; properties work there, and license needs no declaration."""
    library(tmp_path)
    licenses: list[Any] = []

    class Plain(SkillExtension):
        def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
            licenses.append({entry.name: entry.frontmatter.get("license") for entry in run.skills})
            return None if run.read_file(load.entry, "a.txt") else Refuse("it is empty")

    talk = Conversation(mode, skills(tmp_path, Plain()))
    [answer] = talk.call(load("alpha"))
    assert "`async def`" in answer.text
    assert (answer.status, talk.loaded) == ("error", [])
    assert licenses == [{"alpha": "MIT", "beta": None}]


def test_a_sync_run_calls_its_backend_off_the_loop(tmp_path: Path) -> None:
    """An async method sees the caller's context on one loop; the backend's sync methods run in other threads."""
    library(tmp_path)
    backend: Any = disk(tmp_path)
    threads: list[tuple[str, str, str]] = []
    plain = backend.download_files

    def download_files(paths: list[str]) -> Any:
        threads.append(("backend", threading.current_thread().name, ASKER.get()))
        return plain(paths)

    backend.download_files = download_files

    class Reads(SkillExtension):
        async def before_load(self, load: SkillLoad, run: SkillRun) -> None:
            threads.clear()
            await run.read_file(load.entry, "a.txt")
            threads.append(("hook", threading.current_thread().name, ASKER.get()))

    ASKER.set("me")
    model = ScriptedChatModel(replies=[call_tools(load("alpha")), "Done."])
    middleware = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=[Reads()])
    seen: list[Any] = []

    async def inside_a_loop() -> None:
        create_agent(model, middleware=[middleware]).invoke({"messages": [HumanMessage("go")]})
        seen.extend(threads)

    asyncio.run(inside_a_loop())
    assert {where for where, name, _ in seen if name == "deepskills-loop"} == {"hook"}
    assert "backend" in {where for where, _, _ in seen}
    assert {asker for _, _, asker in seen} == {"me"}


@both_modes
def test_an_async_method_asks_a_human(mode: Mode, tmp_path: Path) -> None:
    """`interrupt` passes out of an async method, and its answer comes back at the resume."""
    library(tmp_path)

    class Asks(SkillExtension):
        async def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
            await run.read_file(load.entry, "a.txt")
            first, second = interrupt("first?"), interrupt("second?")
            return None if (first, second) == ("yes", "sure") else Refuse("a human said no")

    model = ScriptedChatModel(replies=[call_tools(load("alpha")), "Done."])
    agent = create_agent(model, middleware=[skills(tmp_path, Asks())], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "one"}}
    run(mode, agent, "go", config)
    for answer in ("yes", "sure"):
        [asked] = agent.get_state(config).interrupts
        assert asked.value == {"yes": "first?", "sure": "second?"}[answer]
        if mode == "sync":
            agent.invoke(Command(resume=answer), config)
        else:
            asyncio.run(agent.ainvoke(Command(resume=answer), config))
    assert agent.get_state(config).values["skills_loaded"] == ["alpha"]


@both_modes
def test_methods_may_run_other_agents(mode: Mode, tmp_path: Path) -> None:
    """An async method that runs a sync agent, whose extension is async and runs another, comes to an end."""
    library(tmp_path)
    told: list[str] = []

    class Nested(SkillExtension):
        def __init__(self, level: int) -> None:
            self.level = level

        async def before_load(self, load: SkillLoad, run: SkillRun) -> None:
            await run.read_file(load.entry, "a.txt")
            told.append(f"{self.level} {load.entry.name}")
            if self.level < 3:
                # Two calls in one turn: LangGraph runs them in threads of its own.
                replies = [call_tools(load_alpha, load_alpha), "Done."]
                inner = create_agent(
                    ScriptedChatModel(replies=replies), middleware=[skills(tmp_path, Nested(self.level + 1))]
                )
                inner.invoke({"messages": [HumanMessage("go")]})
            told.append(f"{self.level} ended")

    load_alpha = load("alpha")
    done: list[str] = []

    def talk() -> None:
        conversation = Conversation(mode, skills(tmp_path, Nested(1)))
        conversation.call(load("alpha"))
        done.extend(conversation.loaded)

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    thread.join(60)
    assert done == ["alpha"]
    assert told[0] == "1 alpha"
    assert told[-1] == "1 ended"
    assert "3 ended" in told


@both_modes
def test_an_async_judge_is_asked_about_what_an_async_method_reads(mode: Mode, tmp_path: Path) -> None:
    """Both run on the same loop in a sync run, so that a lock or a client of theirs may be shared."""
    library(tmp_path)
    loops: list[Any] = []

    class Judges(SkillExtension):
        async def before_file(self, file: Any, run: SkillRun) -> Refuse | None:  # noqa: ARG002
            loops.append(asyncio.get_running_loop())
            return Refuse("not this one") if file.path == "b.txt" else None

    class Reads(SkillExtension):
        async def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | None:
            loops.append(asyncio.get_running_loop())
            await run.read_file(load.entry, "a.txt")
            try:
                await run.read_file(load.entry, "b.txt")
            except SkillsError as error:
                return Refuse(str(error))
            return None

    [answer] = Conversation(mode, skills(tmp_path, Judges(), Reads())).call(load("alpha"))
    assert "not this one" in answer.text
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


@both_modes
def test_an_async_tool_works_in_every_run(mode: Mode, tmp_path: Path) -> None:
    """A tool of an extension that is only `async def` is called by sync runs too, and reads by its run."""
    library(tmp_path)

    class Brings(SkillExtension):
        def tools(self, host: SkillsMiddleware) -> list[BaseTool]:
            @tool
            async def first_file(name: str, runtime: ToolRuntime[Any, Any]) -> str:
                """Return a file."""
                found = await host.arun_for(self, runtime.state, runtime)
                [entry] = [entry for entry in found.visible if entry.name == name]
                return (await found.read_file(entry, "a.txt")).decode()

            return [first_file]

    [answer] = Conversation(mode, skills(tmp_path, Brings())).call(("first_file", {"name": "alpha"}))
    assert (answer.text, answer.status) == ("file a", "success")


def test_a_cancelled_run_cancels_its_method(tmp_path: Path) -> None:
    """Cancelling an async run ends the method that it waits for."""
    library(tmp_path)
    ended: list[str] = []

    class Waits(SkillExtension):
        async def before_load(self, load: SkillLoad, run: SkillRun) -> None:  # noqa: ARG002
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    async def talk() -> None:
        model = ScriptedChatModel(replies=[call_tools(load("alpha"))])
        agent = create_agent(model, middleware=[skills(tmp_path, Waits())])
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("go")]}))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())
    assert ended == ["cancelled"]
