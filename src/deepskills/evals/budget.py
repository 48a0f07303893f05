"""The cost of an evaluation: an estimate beforehand, a limit on tokens, and a journal to resume from."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepskills._loading.budget import count_text_tokens
from deepskills._skillmd.text import counted
from deepskills.evals.files import SkillEvals
from deepskills.evals.runs import Outcome

AGENT_TOKENS = 6_000
"""About how many tokens a deep agent's request takes in addition to skills and conversation: its prompt and tools."""

TASK_CALLS = 4
"""How many model calls a task is assumed to need."""

ANSWER_TOKENS = 400
"""About how long an answer is."""

MAX_JOURNAL_BYTES = 50_000_000
"""A larger journal is not read."""


@dataclass(frozen=True)
class Estimate:
    """What an evaluation is expected to cost, without what the journal already has."""

    runs: int
    """How many runs of an agent."""

    gradings: int
    """How many questions to the grader."""

    calls: int
    """About how many model calls, at least one for each."""

    tokens: int
    """About how many tokens in and out."""

    def __str__(self) -> str:
        parts = f"{counted(self.runs, 'agent run')} and {counted(self.gradings, 'grading')}"
        return f"{parts}: about {self.calls:,} model calls and {self.tokens:,} tokens."


def estimate(evals: SkillEvals, library: Sequence[str], runs: int, *, compares: bool, done: frozenset[str]) -> Estimate:
    """Return an estimate of the cost, for a library with these descriptions.

    A run for a query that should load the skill ends with the load, after one call; others take a second call.
    """
    # The catalog writes about 25 tokens around a description.
    request = AGENT_TOKENS + sum(count_text_tokens(text) + 25 for text in library) + ANSWER_TOKENS
    counts = {"runs": 0, "gradings": 0, "calls": 0, "tokens": 0}

    def add(key: str, what: str, calls: int, tokens: int) -> None:
        if key not in done:
            counts[what] += 1
            counts["calls"] += calls
            counts["tokens"] += tokens

    for place, query in enumerate(evals.triggers):
        for number in range(runs):
            calls = 1 if query.should_trigger else 2
            add(trigger_key(place, number), "runs", calls, calls * (request + count_text_tokens(query.query)))
    text = count_text_tokens(evals.text)
    for task in evals.tasks:
        for side in ("with", "without") if compares else ("with",):
            own = count_text_tokens(task.prompt) + (text if side == "with" else 0)
            add(task_key(task.id, side), "runs", TASK_CALLS, TASK_CALLS * (request + own))
            # The grader sees a task and its result, no library and no tools: little compared with the agent's requests.
            add(grade_key(task.id, side), "gradings", 1, 4 * ANSWER_TOKENS)
    return Estimate(**counts)


def trigger_key(place: int, number: int) -> str:
    """Name one run of a query in the journal."""
    return f"trigger {place} {number}"


def task_key(task_id: str, side: str) -> str:
    """Name the run of a task in the journal."""
    return f"task {side} {task_id}"


def grade_key(task_id: str, side: str) -> str:
    """Name the grading of a task in the journal."""
    return f"grade {side} {task_id}"


class Budget:
    """Counts tokens against a limit."""

    def __init__(self, max_tokens: int | None) -> None:
        self._limit = max_tokens
        self.used = 0

    @property
    def left(self) -> int | None:
        """How many tokens are left; `None` for any number."""
        return None if self._limit is None else max(0, self._limit - self.used)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left == 0

    def take(self, tokens: int) -> None:
        """Count tokens."""
        self.used += tokens


class Journal:
    """The outcomes so far, kept in a file line by line, so that an evaluation can continue where it was interrupted.

    Failures are not kept: they are tried again. A line that cannot be read, such as the last one of a killed process,
    is skipped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Outcome] = {}
        if path is not None and path.exists() and path.stat().st_size <= MAX_JOURNAL_BYTES:
            for line in path.read_bytes().splitlines():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            self._known[str(entry["key"])] = Outcome.from_dict(entry["outcome"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return

    @property
    def done(self) -> frozenset[str]:
        """The keys of finished runs."""
        return frozenset(self._known)

    def get(self, key: str) -> Outcome | None:
        """Return the outcome of a finished run."""
        return self._known.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        """Keep the outcome of a run."""
        self._known[key] = outcome
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"key": key, "outcome": outcome.as_dict()}, ensure_ascii=False)
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                # A half-written line of a killed process must not swallow this one.
                file.write(f"\n{line}\n")

    def remove(self) -> None:
        """Forget everything: the evaluation is complete."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def journal_path(evals: SkillEvals, settings: Mapping[str, Any]) -> Path:
    """Return the default path of an evaluation's journal: each skill text and setting has its own."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parts = {
        "directory": str(evals.directory),
        "text": evals.text,
        "triggers": [[item.query, item.should_trigger] for item in evals.triggers],
        "tasks": [[task.id, task.prompt, task.expectations, sorted(task.files)] for task in evals.tasks],
        **settings,
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return Path(home) / "deepskills" / "evals" / f"{digest}.jsonl"
