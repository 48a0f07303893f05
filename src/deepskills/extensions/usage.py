"""Records which skills are used and what they cost: every event as a typed value, without slowing the run.

Events are put into a queue, which takes no longer than an append; one thread of our own passes them to the recorder in
order. What skills cost is counted in graph state, so that it survives a resume in another process, and is reported in
one `skill.cost` event per skill at the end of a run.
"""

import asyncio
import atexit
import inspect
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from deepskills import ModelCallReport, SkillExtension, SkillRun
from deepskills.extensions._cost import Ledger, Origin, pending_calls, tokens_of
from deepskills.extensions.forks import running_forks

logger = logging.getLogger("deepskills")

MAX_WAITING = 10_000
"""How many events can wait for the recorder; more are dropped, counted and logged."""

MAX_BATCH = 500
"""How many events a recorder with `record_batch` gets at once."""

IDLE_SECONDS = 5.0
"""How long the recorder's thread waits for an event before it ends; the next event starts another."""

EXIT_SECONDS = 2.0
"""How long the process waits at its end for events that are not recorded yet."""

MAX_FAILED_THREADS = 1_000
"""How many threads' failed model calls are remembered until a call succeeds."""

LOGGED_EVERY = 1_000
"""How many failures of a recorder there are per log line."""

_ORIGIN = frozenset({"type", "skill", "source", "digest", "trigger"})
_LEDGER = "ledger"
_PENDING = "pending"


@dataclass(frozen=True)
class UsageEvent:
    """One event about a skill."""

    type: str
    """Such as `skill.loaded`."""

    skill: str
    source: str | None
    digest: str | None
    trigger: str | None

    details: Mapping[str, Any] = field(default_factory=dict)
    """The event's other fields, such as `tokens`."""

    thread_id: str | None = None
    """The conversation, if the graph has a checkpointer."""

    run_id: str | None = None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When it happened."""

    captured: Any = field(default=None, compare=False, repr=False)
    """What the recorder's `capture` returned in the run."""

    def as_dict(self) -> dict[str, Any]:
        """Return the event as plain data: its fields and details on one level, the time as ISO 8601."""
        named = {"type": self.type, "skill": self.skill, **self.details}
        origin = {"source": self.source, "digest": self.digest, "trigger": self.trigger}
        return {
            **named,
            **origin,
            "thread_id": self.thread_id,
            "run_id": self.run_id,
            "time": self.time.isoformat(timespec="milliseconds"),
        }


Record: TypeAlias = Callable[[UsageEvent], Awaitable[None] | None]
"""Takes an event, sync or async."""


class SkillUsage(SkillExtension):
    """Records every event about skills, and what each skill cost, without slowing the run.

    `record` is called in its own thread, one event after the other: one that raises, blocks or is slow costs the run
    nothing. It may be `def` or `async def`. A callable object may also have `record_batch(events)`, which then gets up
    to 500 events at once, and `capture(runtime)`, which is called in the run itself, must be quick, and whose result
    becomes `event.captured`.

    At the end of a run there is an event `skill.cost` for each skill that was in use: calls, tokens, requests,
    put-backs.

    Args:
        record: Takes each event. Ready ones: `JsonLinesRecorder`, `OpenTelemetryRecorder`, and
            `deepskills.store.StoreRecorder`.
        max_waiting: How many events may wait for `record`; more are dropped, and logged.

    Raises:
        TypeError: If `record` cannot be called.
        ValueError: If `max_waiting` is below 1.
    """

    def __init__(self, record: Record, *, max_waiting: int = MAX_WAITING) -> None:
        if not callable(record):
            raise TypeError(f"record must be a function of an event, got {record!r}")
        if not isinstance(max_waiting, int) or isinstance(max_waiting, bool) or max_waiting < 1:
            raise ValueError(f"max_waiting must be a whole number of at least 1, got {max_waiting!r}")
        self._queue = _Queue(record, max_waiting)
        self._capture: Callable[[Any], Any] | None = getattr(record, "capture", None)
        self._failed: OrderedDict[tuple[str, str], list[list[Origin]]] = OrderedDict()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillUsage":
        """Return the same object: events of copies of an agent go to one recorder, in order."""
        return self

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all events so far are recorded; return whether they are, within `timeout` seconds."""
        return self._queue.flush(timeout)

    async def aflush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as `flush` has it
        """Wait until all events so far are recorded, without blocking."""
        return await asyncio.to_thread(self.flush, timeout)

    @property
    def dropped(self) -> int:
        """How many events were dropped because too many were waiting."""
        return self._queue.dropped

    def on_event(self, event: Mapping[str, Any], runtime: Any) -> None:  # noqa: ANN401 - LangGraph's runtime
        """Put an event into the queue."""
        captured = None
        if self._capture is not None:
            try:
                # In the run itself: what is current there, such as a tracing span, is gone in the recorder's thread.
                captured = self._capture(runtime)
            except Exception:
                logger.exception("The recorder of skill events failed to look at the run")
        thread_id, run_id, _place = _whereabouts(runtime)
        details = {key: value for key, value in event.items() if key not in _ORIGIN}
        self._queue.put(
            UsageEvent(
                type=str(event.get("type", "")),
                skill=str(event.get("skill", "")),
                source=event.get("source"),
                digest=event.get("digest"),
                trigger=event.get("trigger"),
                details=MappingProxyType(details),
                thread_id=thread_id,
                run_id=run_id,
                captured=captured,
            )
        )

    def call_metadata(self, run: SkillRun) -> Mapping[str, Any]:
        """Return the skills in use, for tracers such as LangSmith."""
        origins = _in_use(run)
        if not origins:
            return {}
        return {
            "skills": [origin.skill for origin in origins],
            "skill_digests": {origin.skill: origin.digest for origin in origins},
        }

    def after_model(self, report: ModelCallReport, run: SkillRun) -> None:
        """Credit a model call, and the tool calls of the previous turn, to the skills in use."""
        origins = _in_use(run)
        if report.response is None:
            self._keep_failure(origins, run)
            return
        ledger = self._ledger(run)
        if origins:
            request = report.request
            sent = [str(message.text) for message in request.messages]
            if request.system_message is not None:
                sent.append(str(request.system_message.text))
            tokens = tokens_of(sent, report.response.result)
            # A skill that runs in a sub-agent is the task there, so its text is in every request.
            shown = report.shown.union(entry.name for entry in running_forks())
            ledger.model_call(origins, tokens, shown, report.put_back)
        _keep(run, _LEDGER, ledger.kept)
        _keep(run, _PENDING, pending_calls(origins, report.response.result))

    def at_end(self, run: SkillRun) -> None:
        """Report what each skill has cost since its last event, and begin again."""
        for event in self._ledger(run).events():
            run.emit(event)
        _keep(run, _LEDGER, None)
        _keep(run, _PENDING, None)

    def _ledger(self, run: SkillRun) -> Ledger:
        """Return the thread's ledger, including all calls that have ended since."""
        ledger = Ledger(run.memory.get(_LEDGER))
        ledger.tool_calls(run.memory.get(_PENDING), run.state.get("messages") or ())
        place = _place(run)
        with self._lock:
            failed = self._failed.pop(place, []) if place is not None else []
        for origins in failed:
            ledger.failed_model_call(origins)
        return ledger

    def _keep_failure(self, origins: list[Origin], run: SkillRun) -> None:
        """Remember a failed model call until the next successful one: a failed step of a graph writes no state.

        If conversations cannot be told apart, state has to do: the call counts if the same step tries again.
        """
        place = _place(run)
        if not origins:
            return
        # In memory, this conversation cannot be told from another.
        if place is None:
            ledger = self._ledger(run)
            ledger.failed_model_call(origins)
            _keep(run, _LEDGER, ledger.kept)
            _keep(run, _PENDING, None)
            return
        with self._lock:
            self._failed.setdefault(place, []).append(origins)
            self._failed.move_to_end(place)
            while len(self._failed) > MAX_FAILED_THREADS:
                self._failed.popitem(last=False)


def _in_use(run: SkillRun) -> list[Origin]:
    """Return the skills in use: the loaded ones, and those in whose sub-agents this run takes place."""
    found = {
        loaded.entry.name: Origin(
            loaded.entry.name, loaded.entry.source or None, loaded.entry.digest or None, loaded.trigger
        )
        for loaded in run.loaded
        if not loaded.is_lost
    }
    for entry in running_forks():
        found.setdefault(entry.name, Origin(entry.name, entry.source or None, entry.digest or None, "model"))
    return list(found.values())


def _keep(run: SkillRun, key: str, value: Any) -> None:  # noqa: ANN401 - plain data
    """Change what the thread remembers; nothing is written if nothing changed."""
    if value is not None or key in run.memory:
        run.remember(key, value)


def _whereabouts(runtime: Any) -> tuple[str | None, str | None, str]:  # noqa: ANN401 - LangGraph's runtime
    """Return the thread, the run, and the place of the agent in its graph."""
    info = getattr(runtime, "execution_info", None)
    config = getattr(runtime, "config", None)
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    known = configurable if isinstance(configurable, Mapping) else {}
    thread = getattr(info, "thread_id", None) or known.get("thread_id")
    run = getattr(info, "run_id", None) or known.get("run_id")
    place = getattr(info, "checkpoint_ns", None) or known.get("checkpoint_ns") or ""
    return (str(thread) if thread else None), (str(run) if run else None), str(place).rpartition("|")[0]


def _place(run: SkillRun) -> tuple[str, str] | None:
    """Return a value that identifies the conversation; `None` if there is none."""
    thread, run_id, place = _whereabouts(run.runtime)
    known = thread or run_id
    return (known, place) if known else None


class _Queue:
    """Passes events to a recorder, in order, in its own thread."""

    def __init__(self, record: Record, max_waiting: int) -> None:
        self._record = record
        self._batch: Callable[[Sequence[UsageEvent]], Awaitable[None] | None] | None = getattr(
            record, "record_batch", None
        )
        self._max_waiting = max_waiting
        self._failures = 0
        self.dropped = 0
        self._begin()
        atexit.register(_flush_at_exit, weakref.ref(self))

    def _begin(self) -> None:
        """Start empty: in a forked process, the parent records what was waiting."""
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[UsageEvent] = deque()
        self._taken = 0
        self._done = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, event: UsageEvent) -> None:
        """Add an event; never waits for the recorder."""
        if self._process != os.getpid():
            self._begin()
        with self._changed:
            if len(self._waiting) >= self._max_waiting:
                # Dropped rather than waited for: a slow recorder must never slow a run.
                self.dropped += 1
                is_first = self.dropped % LOGGED_EVERY == 1
            else:
                is_first = False
                self._waiting.append(event)
                self._taken += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="deepskills-usage", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if is_first:
            logger.warning("Dropped events of skill use (%d so far): %d wait", self.dropped, self._max_waiting)

    def flush(self, timeout: float | None) -> bool:
        """Wait until all events added so far are recorded."""
        if self._process != os.getpid():
            return True
        with self._changed:
            wanted = self._taken
            return self._changed.wait_for(lambda: self._done >= wanted, timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._waiting), IDLE_SECONDS):
                    # An application that creates a recorder for every request must not accumulate threads.
                    self._thread = None
                    return
                size = min(len(self._waiting), MAX_BATCH if self._batch is not None else 1)
                events = [self._waiting.popleft() for _ in range(size)]
            self._record_all(events)
            with self._changed:
                self._done += len(events)
                self._changed.notify_all()

    def _record_all(self, events: Sequence[UsageEvent]) -> None:
        try:
            result = self._batch(events) if self._batch is not None else self._record(events[0])
            if inspect.isawaitable(result):
                self._own_loop().run_until_complete(_awaited(result))
        except Exception:
            self._failures += 1
            # A recorder that is down fails for every event; one line in a thousand says enough.
            if self._failures % LOGGED_EVERY == 1:
                logger.exception("The recorder of skill events failed (%d times so far)", self._failures)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Return one event loop for all events: what a recorder opens on it, such as a connection, stays usable."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop


async def _awaited(result: Awaitable[None]) -> None:
    await result


def _flush_at_exit(reference: "weakref.ref[_Queue]") -> None:
    queue = reference()
    if queue is not None:
        started = time.monotonic()
        if not queue.flush(EXIT_SECONDS):
            logger.warning("Events of skill use were not recorded within %.1f s", time.monotonic() - started)
