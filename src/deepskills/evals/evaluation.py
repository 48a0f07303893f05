"""The plan of an evaluation: which runs and gradings to make, in which order, and when to stop.

Pure except for its journal: it yields runs and questions, and is sent their outcomes. Ranking comes first, because it
costs nothing; then queries, then tasks with the skill and without it, each graded right after its run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from deepskills.evals.budget import Budget, Journal, grade_key, task_key, trigger_key
from deepskills.evals.files import EvalTask, SkillEvals
from deepskills.evals.grading import Verdict, question, verdicts
from deepskills.evals.library import EvalLibrary
from deepskills.evals.report import EvalReport, TaskResult, TriggerResult
from deepskills.evals.runs import AgentRun, Outcome, Question, Request, make_run

TRIGGER_STEPS = 4
"""How many model calls a query may take to load its skill; a model that has not loaded it by then will not."""

MAX_FAILURES = 5
"""How many failed runs in a row stop an evaluation: the next would fail too, and may cost money."""

_KEPT = frozenset({"done", "loaded", "over-steps"})
"""Outcomes that a journal keeps; others are tried again."""


@dataclass(frozen=True)
class Progress:
    """One step of an evaluation, as it is shown while it runs."""

    done: int
    total: int
    label: str
    outcome: Outcome
    tokens: int
    """Used so far."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of an evaluation."""

    agent: Any
    """The agent with the library."""

    without: Any = None
    """The same agent without the skill; `None` to compare nothing."""

    grader: BaseChatModel | None = None
    model_name: str = ""
    grader_name: str | None = None
    runs: int = 3
    max_steps: int = 20
    timeout: float = 300
    on_progress: Callable[[Progress], None] | None = None


class _StoppedError(Exception):
    """The evaluation must stop."""


@dataclass
class Evaluation:
    """One evaluation under way."""

    evals: SkillEvals
    library: EvalLibrary
    conditions: Conditions | None
    journal: Journal = field(default_factory=Journal)
    budget: Budget = field(default_factory=lambda: Budget(None))

    _done: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    """How many runs failed in a row."""

    _had_failure: bool = field(default=False, init=False)

    async def plan(self) -> EvalReport:
        """Measure the skill."""
        triggers = [
            TriggerResult(self.evals.name, item.query, item.should_trigger, tuple(self.library.rank(item.query)))
            for item in self.evals.triggers
        ]
        tasks: list[TaskResult] = []
        stopped = None
        if self.conditions is not None:
            compares = 2 if self.conditions.without is not None else 1
            self._total = len(triggers) * self.conditions.runs + len(self.evals.tasks) * compares * 2
            # Filled in place, like `tasks`: a plan that is stopped returns nothing, but its results so far count.
            measured: list[TriggerResult] = []
            try:
                await self._triggers(self.conditions, triggers, measured)
                await self._tasks(self.conditions, tasks)
            except _StoppedError as stop:
                stopped = str(stop)
            # With a model, results with only a ranking are queries that were never run.
            triggers = measured
            # Kept as long as anything has to be tried again.
            if stopped is None and not self._had_failure:
                self.journal.remove()
        return EvalReport(
            self.evals,
            len(self.library.skills),
            self.conditions.model_name if self.conditions else None,
            self.conditions.grader_name if self.conditions else None,
            tuple(triggers),
            tuple(tasks),
            self.budget.used,
            stopped,
        )

    async def _triggers(
        self, conditions: Conditions, ranked: list[TriggerResult], measured: list[TriggerResult]
    ) -> None:
        for place, (item, result) in enumerate(zip(self.evals.triggers, ranked, strict=True)):
            outcomes: list[Outcome] = []
            try:
                for number in range(conditions.runs):
                    request = AgentRun(
                        conditions.agent,
                        item.query,
                        stop_at_load=self.evals.name,
                        max_steps=min(TRIGGER_STEPS, conditions.max_steps),
                        timeout=conditions.timeout,
                        max_tokens=self.budget.left,
                    )
                    outcomes.append(await self._find_or_make(trigger_key(place, number), request, item.query))
            finally:
                # A query that was stopped halfway counts with the runs it had.
                if outcomes:
                    measured.append(replace(result, outcomes=tuple(outcomes)))

    async def _tasks(self, conditions: Conditions, tasks: list[TaskResult]) -> None:
        for task in self.evals.tasks:
            outcome, judged = await self._task(conditions, task, "with", conditions.agent)
            if conditions.without is None:
                tasks.append(TaskResult(task, outcome, verdicts=judged))
                continue
            try:
                other, others = await self._task(conditions, task, "without", conditions.without)
            except _StoppedError:
                # The run with the skill is done and paid for, so it is shown without its counterpart.
                tasks.append(TaskResult(task, outcome, verdicts=judged))
                raise
            tasks.append(TaskResult(task, outcome, other, judged, others))

    async def _task(
        self,
        conditions: Conditions,
        task: EvalTask,
        side: str,
        agent: Any,  # noqa: ANN401 - a compiled graph
    ) -> tuple[Outcome, tuple[Verdict, ...]]:
        request = AgentRun(
            agent,
            task.prompt,
            files=task.files,
            max_steps=conditions.max_steps,
            timeout=conditions.timeout,
            max_tokens=self.budget.left,
        )
        label = f"task {task.id} {side} the skill"
        outcome = await self._find_or_make(task_key(task.id, side), request, label)
        # Nothing to grade; the step that grading would have been counts as done.
        if outcome.status not in _KEPT:
            self._done += 1
            return outcome, (Verdict(None, f"the run ended early: {outcome.error}"),) * len(task.expectations)
        if conditions.grader is None:
            return outcome, ()
        asked = Question(conditions.grader, question(task, outcome), conditions.timeout)
        key = grade_key(task.id, side)
        answer = await self._find_or_make(key, asked, f"{label}: grading")
        judged = verdicts(answer, task.expectations)
        return outcome, tuple(judged)

    async def _find_or_make(self, key: str, request: Request, label: str) -> Outcome:
        """Return the outcome of a run, from the journal or by making it.

        Raises:
            _StoppedError: If it must not be made, or was the last one possible.
        """
        # First: what is known costs nothing, even when the budget is spent.
        known = self.journal.get(key)
        if known is not None:
            self._done += 1
            return known
        if self.budget.is_spent:
            raise _StoppedError(self._spent())
        outcome = await make_run(request)
        self._done += 1
        self.budget.take(outcome.tokens)
        if outcome.status in _KEPT:
            self.journal.put(key, outcome)
        if self.conditions is not None and self.conditions.on_progress is not None:
            self.conditions.on_progress(Progress(self._done, self._total, label, outcome, self.budget.used))
        # After the journal and the progress, so that even the run that exceeded the budget is shown.
        if outcome.status == "over-budget":
            raise _StoppedError(self._spent())
        if outcome.status in _KEPT:
            self._failures = 0
        else:
            self._had_failure = True
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise _StoppedError(f"{self._failures} runs in a row failed, the last with: {outcome.error}")
        return outcome

    def _spent(self) -> str:
        return (
            f"the budget is used up ({self.budget.used:,} tokens, {self._done} of {self._total} steps done). Run it "
            "again, with a higher --max-tokens if necessary; it continues from there."
        )
