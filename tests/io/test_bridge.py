"""The one bridge from sync code to an event loop: contexts, failures, interrupts, and callers on the loop itself."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langgraph.errors import GraphInterrupt

from deepskills._io.bridge import Bridge

mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


def test_work_runs_in_a_copy_of_the_callers_context() -> None:
    """What the caller set is seen on the loop, and what the work sets stays there."""
    bridge = Bridge()

    async def work() -> tuple[str, str]:
        seen = mark.get()
        mark.set("changed")
        return seen, threading.current_thread().name

    mark.set("mine")
    assert bridge.run(work) == ("mine", "deepskills-loop")
    assert mark.get() == "mine"


@pytest.mark.parametrize("error", [ValueError("mine"), GraphInterrupt(), SystemExit(3), KeyboardInterrupt()])
def test_what_work_raises_reaches_the_caller_alone(error: BaseException) -> None:
    """Even what would end a loop; the next caller is served as before."""
    bridge = Bridge()

    async def fail() -> None:
        raise error

    async def fine() -> str:
        return "fine"

    with pytest.raises(type(error)):
        bridge.run(fail)
    assert bridge.run(fine) == "fine"


def test_late_work_is_cancelled() -> None:
    """A caller that gives up leaves nothing running."""
    bridge, ended = Bridge(), threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        bridge.run(hang, 0.01)
    assert ended.wait(60)


def test_a_caller_on_the_loop_is_told() -> None:
    """It would wait for itself: work of that loop is refused, work of any loop is done by another."""
    bridge = Bridge()

    async def inner() -> str:
        return threading.current_thread().name

    async def refused() -> None:
        bridge.run(inner)

    async def served() -> str:
        return bridge.run_anywhere(inner)

    with pytest.raises(RuntimeError, match="wait for itself"):
        bridge.run(refused)
    assert bridge.run(served) == "deepskills-loop"


def test_many_callers_share_one_loop() -> None:
    """Sync callers of many threads and async ones of other loops get their own results, on one thread."""
    bridge = Bridge()

    async def work(number: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return number, threading.get_ident()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: bridge.run(lambda: work(number)), range(50)))
    found.append(asyncio.run(bridge.arun(lambda: work(50))))
    assert [number for number, _ in found] == list(range(51))
    assert len({thread for _, thread in found}) == 1


def test_the_loop_of_another() -> None:
    """A bridge to somebody else's loop uses that one, as long as it runs."""
    loop = asyncio.new_event_loop()
    bridge = Bridge(loop)
    assert not bridge.is_running
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def where() -> int:
        return threading.get_ident()

    try:
        assert bridge.run(where) == thread.ident
        assert bridge.takes_turn_within(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
