"""The one dialect: how calls are asked for, what a failure does, and what becomes of a plan that is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from deepagents.backends import FilesystemBackend
from langchain_core.embeddings import Embeddings
from langgraph.errors import GraphInterrupt

from deepskills import SkillsError
from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import (
    Ask,
    Attempt,
    Call,
    CallFailed,
    CallFunction,
    Execute,
    Failed,
    ListDirectory,
    Pause,
    Plan,
    ResultT,
    Work,
    WriteFiles,
    call_method,
    together,
    unwrap,
)
from support import MODES, Mode, by_hand

both_modes = pytest.mark.parametrize("mode", MODES)

HANGS = 60.0
"""How long a call hangs that never answers: longer than any test waits."""


def perform(mode: Mode, plan: Plan[ResultT], *given: Any) -> ResultT:
    return drive(plan, *given) if mode == "sync" else asyncio.run(adrive(plan, *given))


def fail() -> object:
    raise ValueError("mine")


async def afail() -> object:
    raise ValueError("mine")


FAILING: dict[str, Callable[[], Call[Any]]] = {
    "function": lambda: CallFunction(fail),
    "async function": lambda: CallFunction(afail),
    "exit": lambda: CallFunction(exit, (3,)),
    "work": lambda: Work(fail),
    "extension": lambda: Ask(fail, afail),
    "backend": lambda: ListDirectory("/nowhere/at/all"),
    "shell": lambda: Execute("true"),
    "late": lambda: CallFunction(threading.Event().wait, (HANGS,), seconds=0.01),
    "no method": lambda: call_method(object(), "missing", seconds=None),
}


@both_modes
@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_is_raised_where_it_was_asked_for(mode: Mode, kind: str) -> None:
    """Every kind of call: alone and in a round it raises inside the plan; as an attempt it is a value."""
    seen: list[CallFailed] = []

    async def plan() -> Failed:
        try:
            await FAILING[kind]()
        except CallFailed as failure:
            seen.append(failure)
        try:
            await together(Work(lambda: "fine"), FAILING[kind]())
        except CallFailed as failure:
            seen.append(failure)
        failed: Failed = await Attempt(FAILING[kind]())
        fine, again = await together(Work(lambda: "fine"), Attempt(FAILING[kind]()))
        assert (fine, again) == ("fine", failed)
        return failed

    failed = perform(mode, plan(), FilesystemBackend)
    assert [failure.failed for failure in seen] == [failed] * 2
    assert isinstance(seen[0], SkillsError)
    assert str(seen[0]) == failed.reason
    assert (seen[0].timed_out, isinstance(seen[0].__cause__, TimeoutError)) == (kind == "late",) * 2
    if kind in {"function", "async function", "work", "extension"}:
        assert failed.reason == "ValueError: mine"
        assert isinstance(seen[0].error, ValueError)
    if kind == "exit":
        assert failed.reason == "RuntimeError: it called exit(3)"


@both_modes
def test_a_failure_that_nobody_handles_ends_the_plan(mode: Mode) -> None:
    """Of a round all calls are made, the first failure in order is raised, and no failure passes for an answer."""
    made: list[int] = []

    def note(number: int) -> None:
        made.append(number)
        raise LookupError(str(number))

    async def plan() -> None:
        await together(*(CallFunction(note, (number,), seconds=None) for number in range(3)))
        raise AssertionError

    with pytest.raises(CallFailed, match="LookupError: 0"):
        perform(mode, plan())
    assert sorted(made) == [0, 1, 2]


@both_modes
def test_what_our_own_code_raises_can_be_had_as_it_is(mode: Mode) -> None:
    """A sub-plan gives back the exception itself, for code that has its own kinds of errors."""
    with pytest.raises(ValueError, match="mine"):
        perform(mode, unwrap(Work(fail)))


@both_modes
def test_no_broad_except_in_a_plan_catches_an_interrupt(mode: Mode) -> None:
    """LangGraph's exceptions close the plan: it sees no exception, and makes no further call."""
    seen: list[str] = []

    def interrupt() -> object:
        raise GraphInterrupt

    async def ainterrupt() -> object:
        raise GraphInterrupt

    for call in (Ask(interrupt, ainterrupt), CallFunction(interrupt), Work(interrupt)):

        async def plan(call: Call[Any] = call) -> None:
            try:
                await Attempt(call)
            except Exception:  # noqa: BLE001 - what the test is about
                seen.append("caught")
            finally:
                seen.append("closed")
            seen.append("went on")

        with pytest.raises(GraphInterrupt):
            perform(mode, plan())
    assert seen == ["closed"] * 3


# A user's functions and objects.


@both_modes
def test_functions_may_be_sync_or_async(mode: Mode) -> None:
    """Functions, async ones, those that return a coroutine, and objects that are called, from sync and async runs."""

    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        return value

    def returns_a_coroutine(value: int) -> Any:
        return answer(value)

    class Asked:
        async def __call__(self, value: int) -> int:
            return await answer(value)

    async def plan() -> list[int]:
        functions: list[Any] = [lambda value: value, answer, returns_a_coroutine, Asked()]
        replies: tuple[int, ...] = await together(
            *(
                CallFunction(function, (place,), seconds=seconds)
                for place, function in enumerate(functions)
                for seconds in (None, HANGS)
            )
        )
        return list(replies)

    assert perform(mode, plan()) == [0, 0, 1, 1, 2, 2, 3, 3]

    async def sync_in_a_loop() -> list[int]:
        return drive(plan())

    assert asyncio.run(sync_in_a_loop()) == [0, 0, 1, 1, 2, 2, 3, 3]


class Twins:
    """An object with a method and its async twin."""

    def look(self, *given: object, **named: object) -> object:
        return ("sync", given, named)

    async def alook(self, *given: object, **named: object) -> object:
        return ("async", given, named)


class Plain(Embeddings):
    """Embeddings whose async methods are LangChain's own, which wait for a pool's thread."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.threads.append(threading.current_thread().name)
        return [float(len(text))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@both_modes
def test_methods_are_called_by_the_twin_that_fits(mode: Mode) -> None:
    """An async run uses an object's own async twin; LangChain's default one would leave threads behind."""
    plain = Plain()

    async def plan() -> list[Any]:
        found = await call_method(Twins(), "look", 1, seconds=HANGS, limit=2)
        vectors = await together(
            call_method(plain, "embed_query", "abc", seconds=HANGS),
            call_method(plain, "embed_documents", ["a", "bc"], seconds=HANGS),
        )
        return [found, *vectors]

    assert perform(mode, plan()) == [(mode, (1,), {"limit": 2}), [3.0], [[1.0], [2.0]]]
    assert set(plain.threads) == {"deepskills-work"}


@both_modes
def test_a_pause_lets_another_thread_finish(mode: Mode) -> None:
    """A plan may wait for what another thread makes, a little at a time."""
    made: list[str] = []
    threading.Timer(0.05, lambda: made.append("made")).start()

    async def plan() -> int:
        pauses = 0
        while not made:
            await Pause(0.01)
            pauses += 1
        return pauses

    assert perform(mode, plan()) > 0


@both_modes
def test_a_plan_without_a_backend_says_so(mode: Mode) -> None:
    """A call that needs a backend fails where the driver was given none."""

    async def plan() -> Any:
        return await Attempt(ListDirectory("/"))

    assert perform(mode, plan()) == Failed("RuntimeError: this plan was given no backend")


# Cancellation.


class Sandbox:
    """A backend whose calls take until they are released, and that remembers what happened in which order."""

    def __init__(self) -> None:
        self.released, self.started = asyncio.Event(), asyncio.Event()
        self.events: list[str] = []

    async def als(self, path: str) -> Any:
        if path == "/clean-up":
            self.events.append("cleaned up")
            return []
        self.started.set()
        return await asyncio.sleep(HANGS)

    async def aupload_files(self, files: Any) -> Any:
        self.started.set()
        await self.released.wait()
        self.events.append("written")
        return [type("Answer", (), {"path": path, "error": None}) for path, _content in files]

    async def adownload_files(self, _paths: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
def test_a_cancelled_plan_cleans_up(*, settles: bool, swallows: bool) -> None:
    """The plan is told, its clean-up is made, and the cancellation goes on even if the plan keeps it."""

    async def cancelled() -> list[str]:
        backend = Sandbox()

        async def plan() -> str:
            try:
                await (WriteFiles((("/a", b""),), settles=settles) if settles else ListDirectory("/hangs"))
            except asyncio.CancelledError:
                backend.events.append("told")
                await Attempt(ListDirectory("/clean-up"))
                if not swallows:
                    raise
            return "went on"

        task = asyncio.create_task(adrive(plan(), lambda: backend))
        await backend.started.wait()
        task.cancel()
        asyncio.get_running_loop().call_later(0.02, backend.released.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return backend.events

    written = ["written"] if settles else []
    assert asyncio.run(cancelled()) == [*written, "told", "cleaned up"]


def test_a_clean_up_that_fails_does_not_hold_the_cancellation_up(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong while a plan cleans up is logged, and the run is cancelled."""

    async def cancelled() -> None:
        backend = Sandbox()

        async def plan() -> None:
            try:
                await ListDirectory("/hangs")
            finally:
                await Execute("rm -rf /tmp/x")

        task = asyncio.create_task(adrive(plan(), lambda: backend))
        await backend.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert "clean-up of a cancelled run failed: CallFailed" in caplog.text


def test_a_plan_can_be_performed_by_hand() -> None:
    """A test answers calls by a function; failures follow the same rule."""

    async def plan() -> list[object]:
        first = await ListDirectory("/a")
        try:
            await ListDirectory("/b")
        except CallFailed as failure:
            return [first, failure.reason, await together()]
        raise AssertionError

    def answer(call: Call[Any]) -> object:
        assert isinstance(call, ListDirectory)
        return "listing" if call.path == "/a" else Failed("gone")

    result, rounds = by_hand(plan(), answer)
    assert result == ["listing", "gone", ()]
    assert rounds == [(ListDirectory("/a"),), (ListDirectory("/b"),), ()]
