"""Records which skills are used and what they cost: every event as a typed value, without slowing the run.

Events are put into a queue, which takes no longer than an append; one thread of our own passes them to the recorder
in order. What skills cost is counted in graph state, so that it survives a resume in another process, and is reported
in one `skill.cost` event per skill at the end of a run.
"""

import asyncio
import atexit
import inspect
import json
import logging
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from deepskills import ModelCallReport, SkillCost, SkillEvent, SkillExtension, SkillRun
from deepskills._io.bridge import bridge
from deepskills._loading.budget import count_text_tokens
from deepskills.extensions._shared import as_mapping
from deepskills.extensions.forks import running_forks

# --------------------------------------------------------------------------------------------------------------------
# Counts what skills cost on a thread, in a ledger of plain data that is kept in graph state. Pure.
#
# A call is credited to the skills that were in use when the model was asked: a model call to those of its request, a
# tool call to those of the request that asked for it. Each of them is credited with the whole call, because without it
# the call would not have been the same; the `shared_` tokens divide a call evenly instead, so that they add up over
# skills to what the provider counted.
# --------------------------------------------------------------------------------------------------------------------


COUNTS = (
    "calls",
    "failed_calls",
    "model_calls",
    "tool_calls",
    "tokens_in",
    "tokens_out",
    "tokens_cached",
    "shared_tokens_in",
    "shared_tokens_out",
    "requests",
    "put_backs",
)
"""The numbers of a row."""

MESSAGE_FRAME_TOKENS = 4
"""What a message costs besides its text."""

MAX_ROWS = 200
"""How many skills a ledger holds between two runs, because it is kept in state."""


@dataclass(frozen=True)
class Origin:
    """A skill that calls are credited to, as events name it."""

    skill: str
    source: str | None
    digest: str | None
    trigger: str

    @property
    def key(self) -> str:
        """The ledger's key: another content is another row."""
        return f"{self.skill}\n{self.digest or ''}"


@dataclass(frozen=True)
class Tokens:
    """The tokens of one model call."""

    given: int = 0
    made: int = 0
    cached: int = 0
    is_estimated: bool = False


class Ledger:
    """Rows by skill and content."""

    def __init__(self, kept: object = None) -> None:
        """Read the ledger from state; anything of another shape is skipped."""
        self.rows: dict[str, dict[str, Any]] = {}
        for key, row in as_mapping(kept).items():
            if isinstance(key, str) and isinstance(row, Mapping) and isinstance(row.get("skill"), str):
                self.rows[key] = {
                    "skill": row["skill"],
                    **{name: _number(row.get(name)) for name in COUNTS},
                    "estimated": row.get("estimated") is True,
                    **{name: _text(row.get(name)) for name in ("source", "digest")},
                    "trigger": _text(row.get("trigger")) or "system",
                }

    @property
    def kept(self) -> dict[str, Any] | None:
        """The ledger as state keeps it; `None` if it is empty."""
        return dict(list(self.rows.items())[:MAX_ROWS]) or None

    def model_call(
        self, origins: Sequence[Origin], tokens: Tokens, shown: Collection[str], put_back: Collection[str]
    ) -> None:
        """Credit a model call that was answered."""
        shares_in, shares_out = shares(tokens.given, len(origins)), shares(tokens.made, len(origins))
        for place, origin in enumerate(origins):
            row = self._row(origin)
            _add(row, calls=1, model_calls=1, tokens_in=tokens.given, tokens_out=tokens.made)
            _add(row, tokens_cached=tokens.cached, shared_tokens_in=shares_in[place])
            _add(row, shared_tokens_out=shares_out[place], requests=origin.skill in shown)
            _add(row, put_backs=origin.skill in put_back)
            row["estimated"] = row["estimated"] or tokens.is_estimated

    def credit_failed_call(self, origins: Iterable[Origin]) -> None:
        """Credit a model call that raised."""
        for origin in origins:
            _add(self._row(origin), calls=1, model_calls=1, failed_calls=1)

    def tool_calls(self, pending: object, messages: Iterable[AnyMessage]) -> None:
        """Credit the tool calls of the previous turn, from what the conversation now says about them."""
        calls, keys = (_texts(as_mapping(pending).get(name)) for name in ("calls", "rows"))
        answers = {
            message.tool_call_id: message
            for message in messages
            if isinstance(message, ToolMessage) and message.tool_call_id in calls
        }
        # Read from the conversation at the next model call: tools run in parallel, perhaps in another process.
        failed = sum(message.status == "error" for message in answers.values())
        # The model call that made them was credited to the same rows.
        for row in [self.rows[key] for key in keys if key in self.rows]:
            _add(row, calls=len(calls), tool_calls=len(calls), failed_calls=failed)

    def events(self) -> list[SkillCost]:
        """Return one event for each skill and content."""
        return [SkillCost(**row) for row in self.rows.values()]

    def _row(self, origin: Origin) -> dict[str, Any]:
        named = {"source": origin.source, "digest": origin.digest, "trigger": origin.trigger}
        empty = {"skill": origin.skill, **dict.fromkeys(COUNTS, 0), "estimated": False, **named}
        return self.rows.setdefault(origin.key, empty)


def pending_calls(origins: Iterable[Origin], messages: Iterable[object]) -> dict[str, Any] | None:
    """Return the tool calls in an answer and the rows to credit; `None` if there are none."""
    asked = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    keys = [origin.key for origin in origins]
    return {"calls": [call for call in asked if call], "rows": keys} if asked and keys else None


def shares(whole: int, parts: int) -> list[int]:
    """Divide a number evenly into whole numbers that add up to it; the first take what is left over."""
    if parts == 0:
        return []
    each, left = divmod(whole, parts)
    return [each + (place < left) for place in range(parts)]


def tokens_of(request: ModelRequest[Any], answered: Iterable[object]) -> Tokens:
    """Return the tokens of a call: as the provider counted them, or else an estimate of the whole request."""
    messages = [message for message in answered if isinstance(message, AIMessage)]
    used: list[Mapping[str, Any]] = [message.usage_metadata or {} for message in messages]
    # Either all counted or all estimated: a sum of both would be neither. No request has no tokens, but some servers
    # say so in streams.
    if used and all(_number(usage.get("input_tokens")) for usage in used):
        details = [as_mapping(usage.get("input_token_details")) for usage in used]
        return Tokens(
            given=sum(_number(usage.get("input_tokens")) for usage in used),
            made=sum(_number(usage.get("output_tokens")) for usage in used),
            cached=sum(_number(detail.get("cache_read")) for detail in details),
        )
    made = sum(map(_message_tokens, messages))
    system = [request.system_message] if request.system_message is not None else []
    given = sum(map(_message_tokens, [*system, *request.messages]))
    return Tokens(given + sum(map(_tool_tokens, request.tools)), made, is_estimated=True)


def _message_tokens(message: AnyMessage) -> int:
    """Return about what a message costs, the calls in it included."""
    calls = [(call["name"], call["args"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []
    text = json.dumps(calls, ensure_ascii=False, default=str) if calls else ""
    return count_text_tokens(str(message.text)) + count_text_tokens(text) + MESSAGE_FRAME_TOKENS


def _tool_tokens(tool: Any) -> int:  # noqa: ANN401 - what the host gave: a tool, a function, a provider's own
    """Return about what a tool's definition costs."""
    try:
        shape = tool if isinstance(tool, dict) else convert_to_openai_tool(tool)
    except Exception:  # noqa: BLE001 - a tool of the user's own; the model was asked, so it cannot be all wrong
        return 0
    return count_text_tokens(json.dumps(shape, ensure_ascii=False, default=str))


def _add(row: dict[str, Any], **numbers: int) -> None:
    for name, number in numbers.items():
        row[name] += int(number)


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(values: object) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


# --------------------------------------------------------------------------------------------------------------------
# The extension: events into a queue, and one thread that passes them to the recorder.
# --------------------------------------------------------------------------------------------------------------------


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

    def on_event(self, event: SkillEvent, runtime: Any) -> None:  # noqa: ANN401 - LangGraph's runtime
        """Put an event into the queue."""
        captured = None
        if self._capture is not None:
            try:
                # In the run itself: what is current there, such as a tracing span, is gone in the recorder's thread.
                captured = self._capture(runtime)
            except Exception:
                logger.exception("The recorder of skill events failed to look at the run")
        thread_id, run_id, _step = _whereabouts(runtime)
        known = event.as_dict()
        details = {key: value for key, value in known.items() if key not in _ORIGIN}
        self._queue.put(
            UsageEvent(
                type=event.type,
                skill=event.skill,
                source=known.get("source"),
                digest=known.get("digest"),
                trigger=known.get("trigger"),
                details=MappingProxyType(details),
                thread_id=thread_id,
                run_id=run_id,
                captured=captured,
            )
        )

    def call_metadata(self, run: SkillRun) -> Mapping[str, Any]:
        """Return also the skills in whose sub-agents this call is made; the others are in the metadata anyway."""
        if not running_forks():
            return {}
        origins = _in_use(run)
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
            tokens = tokens_of(report.request, report.response.result)
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
            ledger.credit_failed_call(origins)
        return ledger

    def _keep_failure(self, origins: list[Origin], run: SkillRun) -> None:
        """Remember a failed model call until the next successful one: a failed step of a graph writes no state."""
        place = _place(run)
        # Without any of these, this conversation could not be distinguished from another.
        if not origins or place is None:
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
    """Return the thread, the run, and the step of the graph, with the steps of the graphs around it."""
    info = getattr(runtime, "execution_info", None)
    config = getattr(runtime, "config", None)
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    known = configurable if isinstance(configurable, Mapping) else {}
    thread = getattr(info, "thread_id", None) or known.get("thread_id")
    run = getattr(info, "run_id", None) or known.get("run_id")
    place = getattr(info, "checkpoint_ns", None) or known.get("checkpoint_ns") or ""
    return (str(thread) if thread else None), (str(run) if run else None), str(place)


def _place(run: SkillRun) -> tuple[str, str] | None:
    """Return a value that identifies the conversation, or at least the step of it; `None` if there is none."""
    thread, run_id, step = _whereabouts(run.runtime)
    known = thread or run_id
    if known is None:
        return ("", step) if step else None
    return known, step.rpartition("|")[0]


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
                bridge.run_anywhere(lambda: _wait_for(result))
        except Exception:
            self._failures += 1
            # A recorder that is down fails for every event; one line in a thousand says enough.
            if self._failures % LOGGED_EVERY == 1:
                logger.exception("The recorder of skill events failed (%d times so far)", self._failures)


async def _wait_for(result: Awaitable[None]) -> None:
    await result


def _flush_at_exit(reference: "weakref.ref[_Queue]") -> None:
    queue = reference()
    if queue is not None:
        started = time.monotonic()
        if not queue.flush(EXIT_SECONDS):
            logger.warning("Events of skill use were not recorded within %.1f s", time.monotonic() - started)


# --------------------------------------------------------------------------------------------------------------------
# Recorders for `SkillUsage`: lines of JSON in rotating files, and OpenTelemetry.
# --------------------------------------------------------------------------------------------------------------------


MAX_VALUE_CHARACTERS = 256
"""How many characters of a text become the value of an attribute."""

MAX_SKILLS = 1_000
"""How many skills metrics distinguish; the others are counted together."""

OTHER = "(other)"
"""The name under which metrics count skills, and reasons, beyond the limit."""

MAX_REASONS = 30
"""How many reasons of refusals metrics distinguish; ours are few, but extensions may give any."""

_COUNTERS = {
    "skill.loaded": ("deepskills.skill.loads", "Skills loaded"),
    "skill.unloaded": ("deepskills.skill.unloads", "Skills unloaded"),
    "skill.refused": ("deepskills.skill.refusals", "Loads and unloads refused"),
    "skill.reattached": ("deepskills.skill.put_backs", "Lost texts put back"),
    "skill.left_out": ("deepskills.skill.left_outs", "Lost texts for which there was no room"),
    "skill.missed": ("deepskills.skill.misses", "Runs that loaded nothing although one skill clearly fitted"),
    "skill.script": ("deepskills.skill.scripts", "Scripts run"),
    "skill.forked": ("deepskills.skill.forks", "Skills run in sub-agents"),
    "skill.checked": ("deepskills.skill.checks", "Checks of skills that passed, or are open again"),
    "skill.unchecked": ("deepskills.skill.unchecked", "Turns that ended while checks of the skill were open"),
    "skill.sent_back": ("deepskills.skill.sent_back", "Answers that an extension sent back"),
}
"""The counter for each type of event."""

_SPANS = {"skill.loaded": "load_skill", "skill.script": "run_skill_script", "skill.forked": "fork_skill"}
"""The events that become spans, and the names of the spans."""

_DETAILS = ("reason", "script", "exit_code", "tokens", "resources", "agent", "failed")
"""The fields of an event that become attributes of its span."""


class JsonLinesRecorder:
    """Writes each event as a line of JSON, to a file that is rotated when it is full.

    The full file is renamed to `NAME.1`, the one before it to `NAME.2`, and so on. One process writes one file.

    Args:
        path: The file; its directory is created if it is missing.
        max_bytes: The size at which the file is full.
        backups: How many full files are kept.

    Raises:
        ValueError: If a number is below 1.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = 10_000_000, backups: int = 5) -> None:
        if max_bytes < 1 or backups < 1:
            raise ValueError(f"max_bytes and backups must be at least 1, got {max_bytes} and {backups}")
        self._directory = Path(path).parent
        self._file = _RotatingFile(
            path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", delay=True, errors="replace"
        )
        # Closed when the recorder is garbage-collected or the process ends.
        weakref.finalize(self, self._file.close)

    def __call__(self, event: UsageEvent) -> None:
        """Write one event."""
        # Each time, because the directory may be cleaned up while the process runs.
        self._directory.mkdir(parents=True, exist_ok=True)
        line = json.dumps(event.as_dict(), ensure_ascii=False, default=str)
        self._file.handle(logging.LogRecord("deepskills.usage", logging.INFO, "", 0, line, None, None))


class _RotatingFile(RotatingFileHandler):
    """A file of lines whose failures reach the caller; `logging` would print them and continue."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - the standard library's
        """Let the failure reach the caller."""
        error = sys.exception()
        if error is not None:
            raise error


class OpenTelemetryRecorder:
    """Counts events in OpenTelemetry metrics, and makes spans of loads, scripts and forks.

    Spans are children of the span that is current in the run. Metrics and spans carry `gen_ai.skill.name`,
    `gen_ai.skill.source` and `gen_ai.skill.digest`.

    Args:
        meter_provider: Where metrics go; the global one if left out.
        tracer_provider: Where spans go; the global one if left out.
        max_skills: How many skills metrics distinguish; the others are counted under the name `(other)`.

    Raises:
        ModuleNotFoundError: If the extra `otel` is not installed.
        ValueError: If `max_skills` is below 1.
    """

    def __init__(
        self,
        meter_provider: Any = None,  # noqa: ANN401 - of a package that may not be there
        tracer_provider: Any = None,  # noqa: ANN401 - of a package that may not be there
        *,
        max_skills: int = MAX_SKILLS,
    ) -> None:
        if max_skills < 1:
            raise ValueError(f"max_skills must be at least 1, got {max_skills}")
        try:
            from opentelemetry import context, metrics, trace  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "OpenTelemetryRecorder needs opentelemetry-api. Install it with: pip install 'deepskills[otel]'",
                name=error.name,
            ) from error
        self._current_context = context.get_current
        meter = metrics.get_meter("deepskills", meter_provider=meter_provider)
        self._tracer = trace.get_tracer("deepskills", tracer_provider=tracer_provider)
        self._counters = {
            kind: meter.create_counter(name, unit="{event}", description=text)
            for kind, (name, text) in _COUNTERS.items()
        }
        self._tokens = meter.create_histogram(
            "deepskills.skill.tokens", unit="{token}", description="Tokens of model calls while a skill was in use"
        )
        self._sizes = meter.create_histogram(
            "deepskills.skill.load.tokens", unit="{token}", description="Tokens of the texts that were loaded"
        )
        self._error = trace.StatusCode.ERROR
        self._max_skills = max_skills
        self._known: set[object] = set()
        self._reasons: set[object] = set()

    def capture(self, runtime: Any) -> Any:  # noqa: ANN401, ARG002 - LangGraph's runtime, OpenTelemetry's context
        """Return the context of the run, so that spans have their parent."""
        return self._current_context()

    def __call__(self, event: UsageEvent) -> None:
        """Record one event."""
        origin = _origin(event)
        counted = self._limit_attributes(origin)
        if event.type in self._counters:
            further = {"deepskills.trigger": _value(event.trigger)}
            if event.type == "skill.refused":
                reason = str(_value(event.details.get("reason") or ""))
                further["deepskills.reason"] = reason if _admit(reason, self._reasons, MAX_REASONS) else OTHER
            if event.type == "skill.checked":
                further["deepskills.status"] = "passed" if event.details.get("status") == "passed" else "open"
            self._counters[event.type].add(1, {**counted, **further})
        if event.type == "skill.loaded":
            self._sizes.record(_number(event.details.get("tokens")), counted)
        if event.type == "skill.cost":
            for kind, key in (("input", "tokens_in"), ("output", "tokens_out")):
                self._tokens.record(_number(event.details.get(key)), {**counted, "gen_ai.token.type": kind})
        if event.type in _SPANS:
            self._span(event, origin)

    def _span(self, event: UsageEvent, origin: Mapping[str, str]) -> None:
        # The span is created after the fact, with the times of the event.
        ended = int(event.time.timestamp() * 1e9)
        seconds = event.details.get("seconds")
        took = int(seconds * 1e9) if isinstance(seconds, int | float) else 0
        details = {
            f"deepskills.{key}": _value(event.details[key]) for key in _DETAILS if event.details.get(key) is not None
        }
        known = {"deepskills.trigger": event.trigger, "gen_ai.conversation.id": event.thread_id}
        further = {key: _value(value) for key, value in known.items() if value is not None}
        span = self._tracer.start_span(
            f"{_SPANS[event.type]} {origin['gen_ai.skill.name']}",
            context=event.captured,
            attributes={**origin, **details, **further},
            start_time=ended - took,
        )
        if event.details.get("failed") is True or event.details.get("exit_code") not in (None, 0):
            span.set_status(self._error)
        span.end(ended)

    def _limit_attributes(self, origin: Mapping[str, str]) -> Mapping[str, str]:
        """Return a skill's attributes for metrics, limited because each new name would be a new series."""
        is_kept = _admit(tuple(origin.items()), self._known, self._max_skills)
        return origin if is_kept else {"gen_ai.skill.name": OTHER}


def _admit(value: object, known: set[object], limit: int) -> bool:
    """Whether a value has a series of its own: one of the first so many."""
    if len(known) < limit:
        known.add(value)
    return value in known


def _origin(event: UsageEvent) -> dict[str, str]:
    known = {"name": event.skill, "source": event.source, "digest": event.digest}
    return {f"gen_ai.skill.{key}": str(_value(value)) for key, value in known.items() if value}


def _value(value: object) -> str | int | float | bool:
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:MAX_VALUE_CHARACTERS].encode(errors="replace").decode()
