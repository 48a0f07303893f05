"""The one bridge from sync code to an event loop: async work of sync callers, and work that belongs to one loop.

Database connections and sessions of servers are tied to the loop that opened them, and a coroutine of a user's needs
some loop. So sync callers hand their work to one loop of the process, in a daemon thread: the end of the process does
not wait for it. It starts at its first use, and again in a forked process, which has none of its parent's threads.

Work runs as a task in the caller's copied context, so that LangGraph's runtime, its interrupts and tracing pass
through. A caller on the loop itself would wait for itself forever, and so would one in a thread for which a task of
the loop waits without awaiting, as the threads of a sync agent do. So a task's context names the bridges that may be
blocked by it. For work that any loop can do there is a second bridge behind the first, and so on; work that belongs to
this very loop fails with a clear error.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

ResultT = TypeVar("ResultT")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, ResultT]]
"""Makes a coroutine, on the loop that runs it."""

TURN_SECONDS = 1.0
"""How long a loop that the caller's own task may block is waited for."""

_blocked: ContextVar[frozenset["Bridge"]] = ContextVar("blocked", default=frozenset())
"""The bridges whose tasks this context belongs to, from the outermost to the innermost."""


class Bridge:
    """Runs coroutines on one event loop, for callers in any thread.

    Args:
        loop: Somebody else's loop, which is used while it runs; by default a loop of our own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Lock()
        self._given = loop
        self._own: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: Bridge | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this loop."""
        try:
            return asyncio.get_running_loop() is (self._given or self._own)
        except RuntimeError:
            return False

    @property
    def is_running(self) -> bool:
        """Whether the loop can do work now; one of our own always can."""
        return self._given is None or self._given.is_running()

    def run(self, work: Work[ResultT], seconds: float | None = None) -> ResultT:
        """Return the result of `work`; the caller's thread waits for it.

        Raises:
            RuntimeError: If the caller runs on the loop, and would wait for itself.
            TimeoutError: If `work` takes longer than `seconds`; it is cancelled then.
        """
        if self.is_current or (self in _blocked.get() and not self.takes_turn_within(TURN_SECONDS)):
            raise RuntimeError("a sync call from the event loop that has to do its work would wait for itself")
        done = self._hand_over(work)
        try:
            return done.result(seconds)
        except BaseException:
            # Late, or this thread was interrupted: nobody waits for the work any more.
            done.cancel()
            raise

    def run_anywhere(self, work: Work[ResultT]) -> ResultT:
        """Return the result of `work`, which any loop can do: also for a caller that runs on this one."""
        if not self.is_current and self not in _blocked.get():
            return self.run(work)
        with self._lock:
            if self._next is None:
                self._next = Bridge()
        return self._next.run_anywhere(work)

    async def arun(self, work: Work[ResultT]) -> ResultT:
        """Return the result of `work` without blocking the caller's loop."""
        return await work() if self.is_current else await asyncio.wrap_future(self._hand_over(work))

    def start(self, work: Work[object]) -> None:
        """Start `work` without waiting for it."""
        self._hand_over(work)

    def takes_turn_within(self, seconds: float) -> bool:
        """Whether the loop does anything within that time, or is blocked, perhaps by the caller of this thread."""
        turned = threading.Event()
        self._running_loop().call_soon_threadsafe(turned.set)
        return turned.wait(seconds)

    def _hand_over(self, work: Work[ResultT]) -> Future[ResultT]:
        loop = self._running_loop()
        done: Future[ResultT] = Future()

        async def settle() -> None:
            # Of the task's own context, which everything inherits that it starts.
            _blocked.set(_blocked.get() | {self})
            # Everything: an exception that left the task, such as `SystemExit`, would end the loop for all.
            try:
                result = await work()
            except asyncio.CancelledError:
                done.cancel()
                raise
            # The one who waited may have given up at this very moment.
            except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
                with contextlib.suppress(InvalidStateError):
                    done.set_exception(error)
            else:
                with contextlib.suppress(InvalidStateError):
                    done.set_result(result)

        def begin() -> None:
            # Scheduling keeps the caller's context; a reference is kept, because a loop holds tasks only weakly.
            task = loop.create_task(settle())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            done.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None)

        loop.call_soon_threadsafe(begin)
        return done

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None or self._process != os.getpid():
                self._process = os.getpid()
                self._own = asyncio.new_event_loop()
                threading.Thread(target=self._own.run_forever, name="deepskills-loop", daemon=True).start()
            return self._own


bridge = Bridge()
"""The bridge of the process."""


def is_bridged() -> bool:
    """Whether the caller runs as a task on the loop of a bridge: on behalf of sync code."""
    return any(held.is_current for held in _blocked.get())


@contextlib.contextmanager
def awaiting() -> Iterator[None]:
    """Say that the caller, on a bridge's loop, awaits what is started in here: meanwhile the loop can work for it."""
    token = _blocked.set(frozenset(held for held in _blocked.get() if not held.is_current))
    try:
        yield
    finally:
        _blocked.reset(token)
