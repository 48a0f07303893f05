"""Measures skills: whether requests load them, whether they help, and what they cost.

    from deepskills import evals

    def test_release_notes_is_loaded():
        assert evals.measure_triggers("skills/release-notes", agent).pass_rate >= 0.8

Every function takes the directory of a skill with `evals/triggers.json` and `evals/evals.json`. A model can be a chat
model, its `provider:name`, or your own agent with `SkillsMiddleware` (any compiled graph). Functions that call a model
have an async twin. Without a model, `rank_triggers` and `find_overlaps` take milliseconds and cost nothing.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from langchain_core.language_models import BaseChatModel

from deepskills._io.drivers import adrive, drive
from deepskills.evals.budget import Budget, Estimate, Journal, estimate
from deepskills.evals.evaluation import Conditions, Evaluation, Progress
from deepskills.evals.files import EvalError, EvalTask, SkillEvals, TriggerQuery, read_evals
from deepskills.evals.grading import Verdict
from deepskills.evals.library import EvalLibrary, LibraryReport, Overlap, StrPath, Taken, find_overlaps
from deepskills.evals.report import EvalReport, Rate, TaskResult, TriggerResult, to_html
from deepskills.evals.runs import LibraryCopy, Outcome, check_agent, is_model, resolve_model

__all__ = [
    "Estimate",
    "EvalError",
    "EvalOptions",
    "EvalReport",
    "EvalTask",
    "LibraryReport",
    "Outcome",
    "Overlap",
    "Progress",
    "Rate",
    "SkillEvals",
    "Taken",
    "TaskResult",
    "TriggerQuery",
    "TriggerResult",
    "Verdict",
    "aevaluate",
    "ameasure_tasks",
    "ameasure_triggers",
    "evaluate",
    "find_overlaps",
    "measure_tasks",
    "measure_triggers",
    "rank_triggers",
    "read_evals",
    "to_html",
]


class EvalOptions(TypedDict, total=False):
    """Options of an evaluation with a model."""

    sources: Iterable[StrPath]
    """Directories that hold the library; the directory that holds the skill by default."""

    grader: BaseChatModel | str | None
    """The model that judges expectations; by default the model itself. Required if you pass your own agent."""

    without: Any
    """For your own agent: the same agent without the skill, to compare tasks with."""

    runs: int
    """How often each query is run; 3 by default."""

    max_tokens: int | None
    """Where to stop; no limit by default."""

    max_steps: int
    """How many model calls a task may take; 20 by default."""

    timeout: float
    """Seconds after which a run is abandoned; 300 by default."""

    journal: StrPath | None
    """A file that records finished runs, to continue after an interruption; none by default."""

    on_start: Callable[[Estimate], None]
    """Called before the first run, with an estimate."""

    on_progress: Callable[[Progress], None]
    """Called after each run."""


def evaluate(skill: StrPath, model: Any = None, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure a skill: its queries, and its tasks with and without it; without a model, rank its queries.

    Raises:
        EvalError: If the skill or the model cannot be used.
    """
    with _Prepared(read_evals(skill), model, options) as prepared:
        return drive(prepared.evaluation.plan())


async def aevaluate(skill: StrPath, model: Any = None, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure a skill without blocking; see `evaluate`."""
    with _Prepared(read_evals(skill), model, options) as prepared:
        return await adrive(prepared.evaluation.plan())


def rank_triggers(skill: StrPath, *, sources: Iterable[StrPath] = ()) -> EvalReport:
    """Rank a skill's queries over its library, without a model: which skills would be suggested for each."""
    return evaluate(skill, None, sources=sources)


def measure_triggers(skill: StrPath, model: Any, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure how often a skill is loaded for each of its queries."""
    with _Prepared(replace(read_evals(skill), tasks=()), model, options) as prepared:
        return drive(prepared.evaluation.plan())


async def ameasure_triggers(skill: StrPath, model: Any, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure how often a skill is loaded for each of its queries, without blocking."""
    with _Prepared(replace(read_evals(skill), tasks=()), model, options) as prepared:
        return await adrive(prepared.evaluation.plan())


def measure_tasks(skill: StrPath, model: Any, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure a skill's tasks, with and without it."""
    with _Prepared(replace(read_evals(skill), triggers=()), model, options) as prepared:
        return drive(prepared.evaluation.plan())


async def ameasure_tasks(skill: StrPath, model: Any, **options: Unpack[EvalOptions]) -> EvalReport:  # noqa: ANN401
    """Measure a skill's tasks, with and without it, without blocking."""
    with _Prepared(replace(read_evals(skill), triggers=()), model, options) as prepared:
        return await adrive(prepared.evaluation.plan())


class _Prepared:
    """An evaluation with everything that it needs, for as long as it takes."""

    def __init__(self, evals: SkillEvals, model: Any, options: EvalOptions) -> None:  # noqa: ANN401
        runs = options.get("runs", 3)
        if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
            raise ValueError(f"runs must be a whole number of at least 1, got {runs!r}")
        self._evals = evals
        self._options = options
        self._held = ExitStack()
        self._library = EvalLibrary(options.get("sources", ()), evals.directory)
        journal = options.get("journal")
        self._journal = Journal(Path(journal) if journal is not None else None)
        conditions = None if model is None else self._conditions(model, runs)
        self.evaluation = Evaluation(evals, self._library, conditions, self._journal, Budget(options.get("max_tokens")))
        on_start = options.get("on_start")
        if conditions is not None and on_start is not None:
            compares, done = conditions.without is not None, self._journal.done
            on_start(estimate(evals, self._library.descriptions, runs, compares=compares, done=done))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _conditions(self, model: Any, runs: int) -> Conditions:  # noqa: ANN401 - a model or an agent
        given = self._options.get("grader")
        grader = resolve_model(given) if given is not None else None
        without = self._options.get("without")
        if is_model(model):
            chat = resolve_model(model)
            grader = grader or chat
            agent = self._agent(chat, self._library.skills)
            # A separate copy without the skill: hiding it would leave its files in reach.
            without = self._agent(chat, self._library.without(self._evals.name)) if self._evals.tasks else None
            name = model if isinstance(model, str) else _name(chat)
        else:
            for part in (model, without):
                if part is not None:
                    check_agent(part)
            agent, name = model, "an agent"
        if self._evals.tasks and grader is None:
            raise EvalError("Your own agent needs a grader for its tasks: pass grader= with a chat model.")
        return Conditions(
            agent=agent,
            without=without,
            grader=grader,
            model_name=name,
            grader_name=given if isinstance(given, str) else _name(grader) if grader is not None else None,
            runs=runs,
            max_steps=self._options.get("max_steps", 20),
            timeout=self._options.get("timeout", 300),
            on_progress=self._options.get("on_progress"),
        )

    def _agent(self, model: BaseChatModel, skills: Any) -> Any:  # noqa: ANN401 - skills' metadata, a compiled graph
        copy = LibraryCopy(skills)
        self._held.callback(copy.close)
        return copy.agent(model)


def _name(model: BaseChatModel) -> str:
    for attribute in ("model_name", "model"):
        found = getattr(model, attribute, None)
        if isinstance(found, str) and found:
            return found
    return type(model).__name__
