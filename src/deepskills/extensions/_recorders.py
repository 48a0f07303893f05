"""Recorders for `SkillUsage`: lines of JSON in rotating files, and OpenTelemetry."""

import json
import logging
import sys
import weakref
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from deepskills.extensions.usage import UsageEvent

MAX_VALUE_CHARACTERS = 256
"""How many characters of a text become the value of an attribute."""

MAX_SKILLS = 1_000
"""How many skills metrics distinguish; the others are counted together."""

OTHER = "(other)"
"""The name under which metrics count skills beyond the limit."""

_COUNTERS = {
    "skill.loaded": ("deepskills.skill.loads", "Skills loaded"),
    "skill.unloaded": ("deepskills.skill.unloads", "Skills unloaded"),
    "skill.refused": ("deepskills.skill.refusals", "Loads and unloads refused"),
    "skill.reattached": ("deepskills.skill.put_backs", "Lost texts put back"),
    "skill.missed": ("deepskills.skill.misses", "Runs that loaded nothing although one skill clearly fitted"),
    "skill.script": ("deepskills.skill.scripts", "Scripts run"),
    "skill.forked": ("deepskills.skill.forks", "Skills run in sub-agents"),
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
        self._known: set[tuple[Any, ...]] = set()

    def capture(self, runtime: Any) -> Any:  # noqa: ANN401, ARG002 - LangGraph's runtime, OpenTelemetry's context
        """Return the context of the run, so that spans have their parent."""
        return self._current_context()

    def __call__(self, event: UsageEvent) -> None:
        """Record one event."""
        origin = _origin(event)
        counted = self._bounded(origin)
        if event.type in self._counters:
            self._counters[event.type].add(1, {**counted, "deepskills.trigger": _value(event.trigger)})
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

    def _bounded(self, origin: Mapping[str, str]) -> Mapping[str, str]:
        """Return a skill's attributes for metrics, limited because each new name would be a new series."""
        key = tuple(origin.items())
        if key not in self._known:
            if len(self._known) >= self._max_skills:
                return {"gen_ai.skill.name": OTHER}
            self._known.add(key)
        return origin


def _origin(event: UsageEvent) -> dict[str, str]:
    known = {"name": event.skill, "source": event.source, "digest": event.digest}
    return {f"gen_ai.skill.{key}": str(_value(value)) for key, value in known.items() if value}


def _value(value: object) -> str | int | float | bool:
    if isinstance(value, bool | int | float):
        return value
    return str(value)[:MAX_VALUE_CHARACTERS].encode(errors="replace").decode()


def _number(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
