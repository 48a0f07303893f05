"""`SkillUsage`: every event recorded once beside the run, and what each skill cost, to the token."""

import asyncio
import copy
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, SummarizationMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from deepskills import CustomEvent, SkillForked, SkillsMiddleware
from deepskills.extensions import (
    JsonLinesRecorder,
    OpenTelemetryRecorder,
    SkillChecks,
    SkillForks,
    SkillScripts,
    SkillUsage,
    UsageEvent,
)
from deepskills.testing import ScriptedChatModel, call_tools
from support import MODES, Mode, disk, load, run, scaled, skill_md, unload, write_files

both_modes = pytest.mark.parametrize("mode", MODES)
NUMBERS = (
    "calls",
    "failed_calls",
    "model_calls",
    "tool_calls",
    "tokens_in",
    "tokens_out",
    "shared_tokens_in",
    "shared_tokens_out",
    "requests",
    "put_backs",
)


@tool
def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@tool
def fail(text: str) -> str:
    """Fail."""
    raise ToolException(f"no {text}")


fail.handle_tool_error = True
TOOLS: list[BaseTool] = [note, fail]


def says(message: AIMessage | str, given: int, made: int) -> AIMessage:
    """Return an answer for which the provider counted these tokens."""
    usage: Any = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    answer = AIMessage(message) if isinstance(message, str) else message
    return answer.model_copy(update={"usage_metadata": usage})


def library(root: Path, *names: str, **fields: Any) -> None:
    write_files(root, {f"skills/{name}/SKILL.md": skill_md(name, **fields) for name in names or ("alpha", "beta")})


def skills(root: Path, usage: SkillUsage, *more: Any, **options: Any) -> Any:
    return SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=[usage, *more], **options)


class Tracer(BaseCallbackHandler):
    """Sees the metadata of model calls, as tracers do."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, *, metadata: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        self.seen.append(((metadata or {}).get("skills"), (metadata or {}).get("mine")))


def costs(heard: Sequence[UsageEvent]) -> dict[str, dict[str, int]]:
    """Return the numbers of each cost event, by skill."""
    return {
        event.skill: {name: event.details[name] for name in NUMBERS if event.details[name]}
        for event in heard
        if event.type == "skill.cost"
    }


@both_modes
@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
def test_a_known_ledger_adds_up_to_the_token(mode: Mode, make: Any, tmp_path: Path) -> None:
    """Two skills, one unloaded in between, a failed tool and parallel calls: every call is credited, none twice."""
    library(tmp_path)
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    script = [
        says(call_tools(load("alpha")), 100, 10),  # nothing in use
        says(call_tools(("note", {"text": "x"}), ("fail", {"text": "y"}), load("beta")), 200, 20),  # alpha
        says(call_tools(("note", {"text": "z"}), unload("alpha")), 401, 41),  # alpha, beta
        says(call_tools(("fail", {"text": "w"})), 300, 30),  # beta
        says("Done.", 350, 35),  # beta
    ]
    model = ScriptedChatModel(replies=script)
    agent = make(model, tools=TOOLS, middleware=[skills(tmp_path, usage)])
    run(mode, agent)
    assert usage.flush(60)
    found = costs(heard)
    assert found["alpha"] == {
        "calls": 2 + 3 + 2,
        "failed_calls": 1,
        "model_calls": 2,
        "tool_calls": 5,
        "tokens_in": 200 + 401,
        "tokens_out": 20 + 41,
        "shared_tokens_in": 200 + 201,
        "shared_tokens_out": 20 + 21,
        "requests": 2,
    }
    assert found["beta"] == {
        "calls": 3 + 2 + 1,
        "failed_calls": 1,
        "model_calls": 3,
        "tool_calls": 3,
        "tokens_in": 401 + 300 + 350,
        "tokens_out": 41 + 30 + 35,
        "shared_tokens_in": 200 + 300 + 350,
        "shared_tokens_out": 20 + 30 + 35,
        "requests": 3,
    }
    assert sum(row["shared_tokens_in"] for row in found.values()) == 200 + 401 + 300 + 350
    assert sum(row["shared_tokens_out"] for row in found.values()) == 20 + 41 + 30 + 35
    [alpha] = [event for event in heard if event.type == "skill.cost" and event.skill == "alpha"]
    [loaded] = [event for event in heard if event.type == "skill.loaded" and event.skill == "alpha"]
    assert (alpha.source, alpha.digest, alpha.trigger) == (loaded.source, loaded.digest, loaded.trigger)
    assert alpha.details["estimated"] is False


@both_modes
def test_a_later_run_begins_again_and_spoiled_state_counts_nothing(mode: Mode, tmp_path: Path) -> None:
    """A thread's next run has costs of its own; what somebody wrote into the ledger in another shape is passed over."""
    library(tmp_path)
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    model = ScriptedChatModel(replies=[says(call_tools(load("alpha")), 9, 9), says("One.", 10, 1), says("Two.", 20, 2)])
    agent: Any = create_agent(model, middleware=[skills(tmp_path, usage)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    run(mode, agent, "go", config)
    spoiled = {"ledger": {"x": 3, "y": {"skill": "y", "calls": "many"}, "z": []}, "pending": {"calls": 7}}
    agent.update_state(config, {"skills_context": {"extension SkillUsage": spoiled}})
    run(mode, agent, "go on", config)
    assert usage.flush(60)
    rows = [(event.skill, event.details["tokens_in"]) for event in heard if event.type == "skill.cost"]
    assert rows == [("alpha", 10), ("y", 0), ("alpha", 20)]
    assert {event.thread_id for event in heard} == {"t"}
    assert "extension SkillUsage" not in agent.get_state(config).values["skills_context"]


@both_modes
def test_what_forks_cost_is_counted_where_it_happens(mode: Mode, tmp_path: Path) -> None:
    """A skill that runs in a sub-agent is credited with the calls there; the parent's are its own skills'."""
    library(tmp_path, "alpha")
    library(tmp_path, "digger", context="fork", body="Dig now.")
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    parent = [
        says(call_tools(load("alpha")), 1, 1),
        says(call_tools(load("digger")), 100, 10),
        says("Done.", 200, 20),
    ]
    child = [says(call_tools(("note", {"text": "x"})), 1000, 100), says("Found.", 2000, 200)]

    def reply(messages: list[BaseMessage]) -> AIMessage:
        first = next(message for message in messages if isinstance(message, HumanMessage))
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        return (child if "Dig now." in first.text else parent)[spoken]

    model = ScriptedChatModel(replies=reply)
    agent = create_deep_agent(model, tools=TOOLS, middleware=[skills(tmp_path, usage, SkillForks())])
    tracer = Tracer()
    run(mode, agent, "go", {"callbacks": [tracer]})
    assert usage.flush(60)
    found = costs(heard)
    assert (found["alpha"]["tokens_in"], found["alpha"]["tokens_out"]) == (300, 30)
    assert found["alpha"]["calls"] == 3  # two model calls, and the tool call that started the fork
    assert found["digger"] == {
        "calls": 3,
        "model_calls": 2,
        "tool_calls": 1,
        "tokens_in": 3000,
        "tokens_out": 300,
        "shared_tokens_in": 3000,
        "shared_tokens_out": 300,
        "requests": 2,
    }
    assert [names for names, _ in tracer.seen] == [None, ["alpha"], ["digger"], ["digger"], ["alpha"]]
    [forked] = [event for event in heard if event.type == "skill.forked"]
    assert (forked.skill, forked.details["agent"], forked.details["failed"]) == ("digger", "general-purpose", False)


@both_modes
@pytest.mark.filterwarnings("ignore:The feature `forked subagents` is in beta")
def test_a_fork_of_the_conversation_is_credited_to_what_it_took_along(mode: Mode, tmp_path: Path) -> None:
    """A sub-agent that continues the conversation uses its parent's skills: its calls count, in an event of its own."""
    library(tmp_path, "alpha")
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    task = ("task", {"description": "Continue.", "subagent_type": "twin"})

    def reply(messages: list[BaseMessage]) -> AIMessage:
        last = messages[-1]
        if isinstance(last, HumanMessage) and "Continue." in last.text:
            return says("Continued.", 5000, 500)
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        script = [says(call_tools(load("alpha")), 1, 1), says(call_tools(task), 100, 10), says("Done.", 200, 20)]
        return script[spoken]

    middleware = skills(tmp_path, usage)
    twin: Any = {"name": "twin", "description": "Goes on.", "mode": "fork", "middleware": [middleware]}
    agent = create_deep_agent(ScriptedChatModel(replies=reply), middleware=[middleware], subagents=[twin])
    run(mode, agent)
    assert usage.flush(60)
    rows = [(event.skill, event.details["tokens_in"]) for event in heard if event.type == "skill.cost"]
    assert rows == [("alpha", 5000), ("alpha", 300)]


@both_modes
def test_a_summary_costs_a_put_back(mode: Mode, tmp_path: Path) -> None:
    """After a summary the text stands in requests again: one put-back, and every request counted."""
    library(tmp_path, "alpha")
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    script = [says(call_tools(load("alpha")), 1, 1)]
    script += [says(call_tools(("note", {"text": "x"})), 10, 1) for _ in range(4)]
    model = ScriptedChatModel(replies=[*script, says("Done.", 10, 1)])
    summarizer = SummarizationMiddleware(
        ScriptedChatModel(replies=lambda _: AIMessage("Sum.")), trigger=("messages", 7), keep=("messages", 2)
    )
    agent = create_agent(model, tools=TOOLS, middleware=[summarizer, skills(tmp_path, usage)])
    run(mode, agent)
    assert usage.flush(60)
    put_backs = sum(event.type == "skill.reattached" for event in heard)
    assert put_backs >= 1
    assert costs(heard)["alpha"] == {
        "calls": 9,
        "model_calls": 5,
        "tool_calls": 4,
        "tokens_in": 50,
        "tokens_out": 5,
        "shared_tokens_in": 50,
        "shared_tokens_out": 5,
        "requests": 5,
        "put_backs": put_backs,
    }


@both_modes
def test_failed_model_calls_are_counted(mode: Mode, tmp_path: Path) -> None:
    """A call that other middleware tries again is a failed call and a good one; so is one without room for a text."""
    library(tmp_path, "alpha")
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    failures = {1: ValueError("busy"), 3: ContextOverflowError("too long")}
    calls: list[int] = []

    def reply(messages: list[BaseMessage]) -> AIMessage:
        calls.append(len(messages))
        if len(calls) - 1 in failures:
            raise failures[len(calls) - 1]
        return says(call_tools(load("alpha")), 1, 1) if len(calls) == 1 else says("Done.", 10, 1)

    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False, retry_on=(ValueError,))
    agent: Any = create_agent(
        ScriptedChatModel(replies=reply), middleware=[retry, skills(tmp_path, usage)], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    run(mode, agent, "go", config)
    lost = [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("Summed up."), HumanMessage("go on")]
    run(mode, agent, {"messages": lost}, config)
    assert usage.flush(60)
    rows = [event.details for event in heard if event.type == "skill.cost"]
    counted = [(row["model_calls"], row["failed_calls"], row["tokens_in"], row["requests"]) for row in rows]
    assert counted == [(2, 1, 10, 1), (2, 1, 10, 0)]


@both_modes
def test_failed_model_calls_are_counted_without_a_checkpointer(mode: Mode, tmp_path: Path) -> None:
    """Where nothing names the thread, the step does in which the call is tried again."""
    library(tmp_path, "alpha")
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)
    replies: list[Any] = [call_tools(load("alpha")), ValueError("busy"), "Done."]

    def reply(_messages: list[BaseMessage]) -> Any:
        said = replies.pop(0)
        if isinstance(said, ValueError):
            raise said
        return says(said, 1, 1)

    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False, retry_on=(ValueError,))
    run(mode, create_agent(ScriptedChatModel(replies=reply), middleware=[retry, skills(tmp_path, usage)]))
    assert usage.flush(60)
    [cost] = [event.details for event in heard if event.type == "skill.cost"]
    assert (cost["model_calls"], cost["failed_calls"]) == (2, 1)


ELSEWHERE = """
import sys
from pathlib import Path
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, interrupt
from deepskills import SkillsMiddleware
from deepskills.extensions import JsonLinesRecorder, SkillUsage
from deepskills.testing import ScriptedChatModel, call_tools
from support import disk, load
from extensions_usage import says

@tool
def ask(question: str) -> str:
    "Ask a human."
    return interrupt(question)

root, step = Path(sys.argv[1]), sys.argv[2]
usage = SkillUsage(JsonLinesRecorder(root / "usage" / "events.jsonl"))
middleware = SkillsMiddleware(backend=disk(root), sources=["/skills"], extensions=[usage])
first = [says(call_tools(load("alpha")), 1, 1), says(call_tools(("ask", {"question": "?"})), 70, 7)]
model = ScriptedChatModel(replies=first if step == "start" else [says("Done.", 300, 30)])
with SqliteSaver.from_conn_string(str(root / "threads.db")) as saver:
    agent = create_agent(model, tools=[ask], middleware=[middleware], checkpointer=saver)
    given = {"messages": [HumanMessage("go")]} if step == "start" else Command(resume="yes")
    agent.invoke(given, {"configurable": {"thread_id": "t"}})
"""
"""One step of a run, in a process of its own; what it records is written at its end without being asked."""


def test_a_resume_in_another_process_goes_on_counting(tmp_path: Path) -> None:
    """What was counted before an interrupt is in state: the process that ends the run tells of all of it."""
    library(tmp_path, "alpha")
    helper = "from test_usage import says\n__all__ = ['says']\n"
    write_files(tmp_path, {"helpers/extensions_usage.py": helper})
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(map(str, (tmp_path / "helpers", tests, tests / "extensions", *filter(None, sys.path))))
    for step in ("start", "resume"):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(tmp_path), step],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "usage" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["type"] for event in events] == ["skill.loaded", "skill.cost"]
    told = events[1]
    assert (told["tokens_in"], told["tokens_out"], told["calls"], told["tool_calls"]) == (370, 37, 3, 1)
    assert (told["thread_id"], told["skill"]) == ("t", "alpha")


def test_every_event_once_and_in_order_under_many_threads(tmp_path: Path) -> None:
    """Many conversations at once: each has its events, once, in the order in which they happened."""
    library(tmp_path)
    conversations = scaled(64, 200)
    heard: list[UsageEvent] = []
    usage = SkillUsage(heard.append)

    def reply(messages: list[BaseMessage]) -> AIMessage:
        spoken = sum(isinstance(message, AIMessage) for message in messages)
        turns = [call_tools(load("alpha"), load("beta")), call_tools(unload("alpha"))]
        return says(turns[spoken] if spoken < len(turns) else "Done.", 10, 1)

    agent: Any = create_agent(
        ScriptedChatModel(replies=reply), middleware=[skills(tmp_path, usage)], checkpointer=InMemorySaver()
    )

    def talk(number: int) -> None:
        run("sync", agent, "go", {"configurable": {"thread_id": f"t{number}"}})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(talk, range(conversations)))
    assert usage.flush(60)
    by_thread: dict[str | None, list[tuple[str, str]]] = {}
    for event in heard:
        by_thread.setdefault(event.thread_id, []).append((event.type, event.skill))
    assert set(by_thread) == {f"t{number}" for number in range(conversations)}
    loads = {("skill.loaded", "alpha"), ("skill.loaded", "beta")}
    for events in by_thread.values():
        assert set(events[:2]) == loads
        assert events[2:] == [("skill.unloaded", "alpha"), ("skill.cost", "alpha"), ("skill.cost", "beta")]


@both_modes
def test_a_recorder_that_fails_costs_the_run_nothing(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that raises, one that blocks, one whose look at the run fails: the run is the same, and the log says so."""
    library(tmp_path)
    turns = [call_tools(load("alpha")), "Done."]

    def result(usage: SkillUsage) -> list[str]:
        agent = create_agent(ScriptedChatModel(replies=list(turns)), middleware=[skills(tmp_path, usage)])
        return [str(message.text) for message in run(mode, agent)["messages"]]

    heard: list[str] = []
    expected = result(SkillUsage(lambda event: heard.append(event.type)))

    def raises(event: UsageEvent) -> None:
        raise OSError(event.type)

    failing = SkillUsage(raises)
    assert result(failing) == expected
    assert failing.flush(60)
    assert [record.message for record in caplog.records if "recorder" in record.message] == [
        "The recorder of skill events failed (1 times so far)"
    ]
    released = threading.Event()
    seen: list[str] = []

    def blocks(event: UsageEvent) -> None:
        released.wait()
        seen.append(event.type)

    blocked = SkillUsage(blocks, max_waiting=1)
    assert result(blocked) == expected
    assert result(blocked) == expected
    assert not blocked.flush(0)
    assert blocked.dropped >= 1
    assert any("Dropped events" in record.message for record in caplog.records)
    released.set()
    assert blocked.flush(60)
    assert len(seen) + blocked.dropped == 4

    class Curious:
        def __call__(self, event: UsageEvent) -> None:
            heard.append(event.type)

        def capture(self, runtime: Any) -> Any:
            raise KeyError(runtime)

    curious = SkillUsage(Curious())
    assert result(curious) == expected
    assert curious.flush(60)
    assert heard == ["skill.loaded", "skill.cost"] * 2


@both_modes
def test_recorders_may_be_async_and_take_batches(mode: Mode, tmp_path: Path) -> None:
    """An `async def` is awaited in the recorder's own thread; one with `record_batch` gets what waits at once."""
    library(tmp_path)
    heard: list[tuple[str, str]] = []

    async def record(event: UsageEvent) -> None:
        await asyncio.sleep(0)
        heard.append((event.type, threading.current_thread().name))

    class Batches:
        def __init__(self) -> None:
            self.batches: list[list[str]] = []
            self.go = threading.Event()

        def __call__(self, event: UsageEvent) -> None:
            raise AssertionError(event)

        async def record_batch(self, events: Sequence[UsageEvent]) -> None:
            self.go.wait()
            self.batches.append([event.type for event in events])

    batches = Batches()
    for recorder in (record, batches):
        usage = SkillUsage(recorder)
        agent = create_agent(
            ScriptedChatModel(replies=[call_tools(load("alpha"), load("nobody")), "Done."]),
            middleware=[skills(tmp_path, usage)],
        )
        run(mode, agent)
        if recorder is batches:
            batches.go.set()
        assert asyncio.run(usage.aflush(60))
    types = Counter(["skill.loaded", "skill.refused", "skill.cost"])
    assert Counter(kind for kind, _ in heard) == types
    assert {name for _, name in heard} <= {"deepskills-usage", "deepskills-loop"}
    assert Counter(kind for batch in batches.batches for kind in batch) == types
    assert len(batches.batches) <= 2


def test_an_idle_recorder_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends when nothing comes, a later event starts another, and an async recorder keeps its event loop."""
    monkeypatch.setattr("deepskills.extensions.usage.IDLE_SECONDS", 0.01)
    loops: list[Any] = []

    async def record(_: UsageEvent) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)

    others = set(threading.enumerate())
    usage = SkillUsage(record)
    for number in (1, 2):
        usage.on_event(CustomEvent({"type": "skill.loaded", "skill": "alpha"}), None)
        assert usage.flush(60)
        assert len(loops) == number
        for thread in set(threading.enumerate()) - others:
            thread.join(60)
        assert not [thread for thread in set(threading.enumerate()) - others if thread.name == "deepskills-usage"]
    assert loops[0] is loops[1]
    assert copy.deepcopy(usage) is usage


def test_mistakes_are_told_when_it_is_made() -> None:
    """What cannot be called, or a queue without room, raises at once."""
    with pytest.raises(TypeError, match="record must be a function"):
        SkillUsage("events.jsonl")  # type: ignore[arg-type]
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="max_waiting"):
            SkillUsage(print, max_waiting=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        JsonLinesRecorder("x", backups=0)
    with pytest.raises(ValueError, match="max_skills"):
        OpenTelemetryRecorder(max_skills=0)


def test_lines_of_json_rotate(tmp_path: Path) -> None:
    """Files stay within their size, none is cut within a line, the newest lines are kept in order."""
    file = tmp_path / "logs" / "usage.jsonl"
    usage = SkillUsage(JsonLinesRecorder(file, max_bytes=2_000, backups=2))
    hostile = "line\nbreak \ud800 周报"
    for number in range(60):
        event = {"type": "skill.loaded", "skill": hostile, "tokens": number, "odd": object(), "trigger": "model"}
        usage.on_event(CustomEvent(event), None)
    assert usage.flush(60)
    files = [file.with_name("usage.jsonl.2"), file.with_name("usage.jsonl.1"), file]
    assert sorted(tmp_path.glob("logs/*")) == sorted(files)
    assert all(part.stat().st_size <= 2_000 for part in files)
    rows = [json.loads(line) for part in files for line in part.read_text(encoding="utf-8").splitlines()]
    assert [row["tokens"] for row in rows] == list(range(60))[-len(rows) :]
    assert len(rows) > 10
    assert rows[-1]["skill"].startswith("line\nbreak ?")
    assert rows[-1]["time"].endswith("+00:00")


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the data points of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@both_modes
def test_opentelemetry_has_counters_histograms_and_spans(mode: Mode, tmp_path: Path) -> None:
    """Loads, refusals, put-backs, misses and scripts are counted; loads, scripts and forks are spans in their run's."""
    library(tmp_path, "alpha")
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    usage = SkillUsage(OpenTelemetryRecorder(meters, tracers))
    turns = [
        says(call_tools(load("alpha"), load("nobody")), 10, 1),
        says(call_tools(("run_skill_script", {"skill_name": "alpha", "script_name": "x.sh"})), 30, 3),
        says("Done.", 40, 4),
    ]
    write_files(tmp_path, {"skills/alpha/scripts/x.sh": "exit 3\n"})
    scripts = SkillScripts(runner=lambda *_: ExecuteResponse("no", 3))
    agent = create_agent(ScriptedChatModel(replies=turns), middleware=[skills(tmp_path, usage, scripts)])
    with tracers.get_tracer("app").start_as_current_span("request") as outer:
        run(mode, agent)
        for kind in ("reattached", "missed", "left_out"):
            usage.on_event(CustomEvent({"type": f"skill.{kind}", "skill": "alpha", "trigger": "system"}), None)
    usage.on_event(SkillForked(skill="alpha", agent="writer", failed=True, seconds=2.5, trigger="model"), None)
    assert usage.flush(60)
    found = points(reader)
    counted = {name: sum(point.value for point in found[name]) for name in found if hasattr(found[name][0], "value")}
    assert counted == {
        f"deepskills.skill.{name}": 1
        for name in ("loads", "refusals", "put_backs", "misses", "left_outs", "scripts", "forks")
    }
    [refused] = found["deepskills.skill.refusals"]
    assert refused.attributes["deepskills.reason"] == "unknown"
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in found["deepskills.skill.tokens"]}
    assert tokens == {"input": 70, "output": 7}
    [loaded] = found["deepskills.skill.loads"]
    by_name = {span.name: span for span in spans.get_finished_spans()}
    assert set(by_name) == {"request", "load_skill alpha", "run_skill_script alpha", "fork_skill alpha"}
    for name in ("load_skill alpha", "run_skill_script alpha"):
        span = by_name[name]
        assert span.attributes is not None
        assert span.parent is not None
        assert span.parent.span_id == outer.get_span_context().span_id
        for key in ("gen_ai.skill.name", "gen_ai.skill.source", "gen_ai.skill.digest"):
            assert span.attributes[key] == loaded.attributes[key]
    fork = by_name["fork_skill alpha"]
    assert fork.end_time is not None
    assert fork.start_time is not None
    assert fork.end_time - fork.start_time == 2_500_000_000
    assert not fork.status.is_ok
    assert not by_name["run_skill_script alpha"].status.is_ok


@both_modes
def test_metrics_tell_which_checks_passed_and_which_turns_left_some_open(mode: Mode, tmp_path: Path) -> None:
    """By skill, with the status of a check; an answer that was sent back is counted as well."""
    library(tmp_path, "alpha", checks=[{"called": "note"}, {"called": "fail"}])
    reader = InMemoryMetricReader()
    usage = SkillUsage(OpenTelemetryRecorder(MeterProvider([reader])))
    replies = [call_tools(load("alpha")), call_tools(("note", {"text": "a"})), "Early.", "Done."]
    middleware = skills(tmp_path, usage, SkillChecks(retries=1))
    run(mode, create_agent(ScriptedChatModel(replies=replies), tools=TOOLS, middleware=[middleware]))
    odd = {"type": "skill.checked", "skill": "alpha", "status": "x" * 999}
    usage.on_event(CustomEvent(odd), None)
    assert usage.flush(60)
    found = points(reader)
    checked = {point.attributes["deepskills.status"]: point.value for point in found["deepskills.skill.checks"]}
    assert checked == {"passed": 1, "open": 1}
    [unchecked] = found["deepskills.skill.unchecked"]
    assert (unchecked.attributes["gen_ai.skill.name"], unchecked.value) == ("alpha", 1)
    assert [point.value for point in found["deepskills.skill.sent_back"]] == [1]


def test_reasons_of_refusals_are_bounded(tmp_path: Path) -> None:
    """Each reason is a series of its own, up to a limit; whatever else an extension says is counted together."""
    reader = InMemoryMetricReader()
    usage = SkillUsage(OpenTelemetryRecorder(MeterProvider([reader])))
    for number in range(50):
        event = {"type": "skill.refused", "skill": str(tmp_path), "reason": f"because of {number}"}
        usage.on_event(CustomEvent(event), None)
    assert usage.flush(60)
    counted = {
        point.attributes["deepskills.reason"]: point.value for point in points(reader)["deepskills.skill.refusals"]
    }
    assert len(counted) == 31
    assert counted["(other)"] == 20


def test_attributes_are_bounded_in_number_and_length(tmp_path: Path) -> None:
    """Skills beyond the limit are counted together, and a name of any length becomes a short value."""
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    usage = SkillUsage(OpenTelemetryRecorder(MeterProvider([reader]), tracers, max_skills=3))
    for number in range(50):
        many = {f"field{place}": place for place in range(100)}
        event = {"type": "skill.loaded", "skill": f"{number}-{'x' * 999}\ud800", "trigger": "model", "tokens": 1}
        usage.on_event(CustomEvent({**event, **many, "source": str(tmp_path), "digest": "d"}), None)
    assert usage.flush(60)
    loads = points(reader)["deepskills.skill.loads"]
    assert sorted(point.value for point in loads) == [1, 1, 1, 47]
    assert {point.attributes["gen_ai.skill.name"] for point in loads if point.value == 47} == {"(other)"}
    for span in spans.get_finished_spans():
        assert span.attributes is not None
        assert len(span.attributes) < 10
        assert all(len(str(value)) <= 256 for value in span.attributes.values())


@both_modes
@pytest.mark.parametrize("extensions", [(), (SkillUsage(lambda _: None),)], ids=["alone", "with usage"])
@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
def test_tracers_see_the_skills_in_use(mode: Mode, make: Any, extensions: tuple[Any, ...], tmp_path: Path) -> None:
    """Each model call's metadata names the skills in use, beside what the application put there."""
    library(tmp_path)
    tracer = Tracer()
    model = ScriptedChatModel(replies=[call_tools(load("alpha"), load("beta")), call_tools(unload("alpha")), "Done."])
    middleware = SkillsMiddleware(backend=disk(tmp_path), sources=["/skills"], extensions=extensions)
    agent = make(model, middleware=[middleware])
    run(mode, agent, "go", {"callbacks": [tracer], "metadata": {"mine": 7}})
    assert tracer.seen == [(None, 7), (["alpha", "beta"], 7), (["beta"], 7)]
