"""The report of an evaluation, with its metrics: as values, as plain data and as a table with bars."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from deepskills._skillmd.text import counted
from deepskills.evals.files import EvalTask, SkillEvals
from deepskills.evals.grading import Verdict
from deepskills.evals.library import LibraryReport, shorten
from deepskills.evals.runs import Outcome

BAR = 20
"""The width of a bar."""

_Z = 1.959964
"""95 % of cases are within this many standard deviations."""


@dataclass(frozen=True)
class Rate:
    """A part of a total, with its confidence interval."""

    part: int
    whole: int

    @property
    def share(self) -> float | None:
        """The share; `None` if the total is 0."""
        return self.part / self.whole if self.whole else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the share (Wilson's)."""
        if not self.whole:
            return 0.0, 1.0
        share, n, z2 = self.part / self.whole, self.whole, _Z * _Z
        middle = share + z2 / (2 * n)
        spread = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        return max(0.0, (middle - spread) / (1 + z2 / n)), min(1.0, (middle + spread) / (1 + z2 / n))

    def as_dict(self) -> dict[str, Any]:
        """Return the rate as plain data."""
        low, high = self.interval
        return {
            "part": self.part,
            "whole": self.whole,
            "share": self.share,
            "low": round(low, 3),
            "high": round(high, 3),
        }

    def __str__(self) -> str:
        if self.share is None:
            return "not measured"
        low, high = self.interval
        return f"{self.part} of {self.whole}  {self.share:4.0%}  (95 % sure: {low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class TriggerResult:
    """The result of one query."""

    skill: str
    query: str
    should_trigger: bool
    ranked: tuple[str, ...]
    """The skills that would be suggested, best first."""

    outcomes: tuple[Outcome, ...] = ()
    """The runs with a model."""

    @property
    def rank(self) -> int | None:
        """Where the skill ranks, from 1; `None` if it is not among the suggestions."""
        return self.ranked.index(self.skill) + 1 if self.skill in self.ranked else None

    @property
    def is_ranked_right(self) -> bool:
        """Whether the skill ranks first if it should, and does not if it should not."""
        return (self.rank == 1) is self.should_trigger

    @property
    def loads(self) -> Rate:
        """How often the skill was loaded."""
        return Rate(sum(self.skill in outcome.loaded for outcome in self.outcomes), len(self.outcomes))

    @property
    def right(self) -> Rate:
        """How many runs were right or, without runs, whether the rank is. A failed run is not right."""
        if not self.outcomes:
            return Rate(int(self.is_ranked_right), 1)
        return Rate(sum(map(self._is_right, self.outcomes)), len(self.outcomes))

    def _is_right(self, outcome: Outcome) -> bool:
        if self.should_trigger:
            return self.skill in outcome.loaded
        return self.skill not in outcome.loaded and outcome.status in {"done", "over-steps"}

    @property
    def instead(self) -> tuple[str, ...]:
        """The skills that were loaded, or rank before it, instead of this one."""
        if self.outcomes:
            loaded = dict.fromkeys(name for outcome in self.outcomes for name in outcome.loaded)
            return tuple(name for name in loaded if name != self.skill)
        return self.ranked[: self.rank - 1] if self.rank else self.ranked

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "query": self.query,
            "should_trigger": self.should_trigger,
            "right": self.right.share,
            "rank": self.rank,
            "ranked": list(self.ranked),
            "instead": list(self.instead),
            "loads": self.loads.as_dict() if self.outcomes else None,
            "runs": [outcome.as_dict() for outcome in self.outcomes],
        }


@dataclass(frozen=True)
class TaskResult:
    """The result of one task, with the skill and without it."""

    task: EvalTask
    with_skill: Outcome
    without: Outcome | None = None
    verdicts: tuple[Verdict, ...] = ()
    """On each expectation, with the skill."""

    verdicts_without: tuple[Verdict, ...] = ()

    @property
    def passed(self) -> Rate:
        """How many expectations hold with the skill; one without a verdict does not."""
        return _pass(self.verdicts, self.task.expectations)

    @property
    def passed_without(self) -> Rate | None:
        """How many hold without it."""
        return None if self.without is None else _pass(self.verdicts_without, self.task.expectations)

    def proves_nothing(self, place: int) -> bool:
        """Whether an expectation also holds without the skill."""
        return place < len(self.verdicts_without) and self.verdicts_without[place].passed is True

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "id": self.task.id,
            "prompt": self.task.prompt,
            "passed": self.passed.as_dict(),
            "passed_without": self.passed_without.as_dict() if self.passed_without is not None else None,
            "expectations": [
                {
                    "text": text,
                    "passed": _at(self.verdicts, place).passed,
                    "evidence": _at(self.verdicts, place).evidence,
                    "passed_without": _at(self.verdicts_without, place).passed,
                    "evidence_without": _at(self.verdicts_without, place).evidence,
                    "proves_nothing": self.proves_nothing(place),
                }
                for place, text in enumerate(self.task.expectations)
            ],
            "with": self.with_skill.as_dict(),
            "without": self.without.as_dict() if self.without is not None else None,
        }


def _pass(verdicts: Sequence[Verdict], expectations: Sequence[str]) -> Rate:
    return Rate(sum(verdict.passed is True for verdict in verdicts), len(expectations))


def _at(verdicts: Sequence[Verdict], place: int) -> Verdict:
    return verdicts[place] if place < len(verdicts) else Verdict(None)


def _sum(rates: Iterable[Rate]) -> Rate:
    found = list(rates)
    return Rate(sum(rate.part for rate in found), sum(rate.whole for rate in found))


@dataclass(frozen=True)
class EvalReport:
    """What an evaluation of one skill found."""

    evals: SkillEvals
    library_size: int
    model: str | None = None
    """The model's name; `None` if requests were only ranked."""

    grader: str | None = None
    triggers: tuple[TriggerResult, ...] = ()
    tasks: tuple[TaskResult, ...] = ()
    tokens: int = 0
    """Tokens used in this evaluation, without runs from an earlier journal."""

    stopped: str | None = None
    """Why it ended early; the report has what was measured until then."""

    @property
    def skill(self) -> str:
        """The skill's name."""
        return self.evals.name

    @cached_property
    def recall(self) -> Rate:
        """How often the skill is loaded, or ranks first, when it should be."""
        return _sum(item.right for item in self.triggers if item.should_trigger)

    @cached_property
    def restraint(self) -> Rate:
        """How often the skill is left alone when it should be."""
        return _sum(item.right for item in self.triggers if not item.should_trigger)

    @cached_property
    def passed(self) -> Rate:
        """How many expectations hold with the skill."""
        return _sum(task.passed for task in self.tasks)

    @cached_property
    def passed_without(self) -> Rate:
        """How many hold without it."""
        return _sum(task.passed_without for task in self.tasks if task.passed_without is not None)

    @property
    def pass_rate(self) -> float | None:
        """The smaller of two shares: right decisions, and expectations that hold; `None` if nothing was measured."""
        shares = [_sum((self.recall, self.restraint)).share, self.passed.share]
        known = [share for share in shares if share is not None]
        return min(known) if known else None

    @property
    def proves_nothing(self) -> list[tuple[str, str]]:
        """The expectations that also hold without the skill, each with its task."""
        return [
            (task.task.id, text)
            for task in self.tasks
            for place, text in enumerate(task.task.expectations)
            if task.proves_nothing(place)
        ]

    @property
    def outcomes(self) -> Iterator[Outcome]:
        """All runs."""
        for item in self.triggers:
            yield from item.outcomes
        for task in self.tasks:
            yield task.with_skill
            if task.without is not None:
                yield task.without

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "skill": self.skill,
            "directory": self.evals.directory.as_posix(),
            "library_size": self.library_size,
            "model": self.model,
            "grader": self.grader,
            "pass_rate": self.pass_rate,
            "recall": self.recall.as_dict(),
            "restraint": self.restraint.as_dict(),
            "passed": self.passed.as_dict(),
            "passed_without": self.passed_without.as_dict(),
            "tokens": self.tokens,
            "stopped": self.stopped,
            "triggers": [item.as_dict() for item in self.triggers],
            "tasks": [task.as_dict() for task in self.tasks],
            "problems": list(self.evals.problems),
        }

    def __str__(self) -> str:
        return "\n".join(table(self))


def table(report: EvalReport, *, is_ascii: bool = False) -> list[str]:
    """Return the report as lines of text."""
    how = f"{report.model}" if report.model else "ranked without a model"
    lines = [f"{report.skill}: {_scope(report)}, {how}", ""]
    for label, rate in (
        ("should load", report.recall),
        ("should not", report.restraint),
        ("tasks with", report.passed),
        ("tasks without", report.passed_without),
    ):
        if rate.whole:
            lines.append(f"  {label:<14}{_bar(rate, is_ascii)}  {rate}")
    if report.model and report.triggers:
        lines += ["", f"  {'loaded':<8}{'rate':<{BAR + 2}}{'tokens':>8}  should  query"]
        lines += [_trigger_line(item, is_ascii) for item in report.triggers]
    wrong = [item for item in report.triggers if not report.model and not item.is_ranked_right]
    if wrong:
        lines += ["", "  wrong:", *(_rank_line(item) for item in wrong)]
    if report.tasks:
        lines += ["", f"  {'task':<8}{'with':<{BAR + 6}}{'without':<{BAR + 6}}tokens, steps, seconds (with | without)"]
        for task in report.tasks:
            lines += _task_lines(task, is_ascii)
    if report.proves_nothing:
        lines += ["", "  prove nothing, because they also hold without the skill:"]
        lines += [f"    {task}: {shorten(text)}" for task, text in report.proves_nothing]
    failures = [outcome.error for outcome in report.outcomes if outcome.error and outcome.status != "over-steps"]
    for error in dict.fromkeys(failures):
        lines += ["", f"  {counted(failures.count(error), 'run')} ended early: {error}"]
    if report.stopped:
        lines += ["", f"  Stopped: {report.stopped}"]
    return lines


def _scope(report: EvalReport) -> str:
    requests = counted(len(report.triggers), "request") if report.triggers else "no requests"
    return f"{requests} among {counted(report.library_size, 'skill')}"


def _trigger_line(item: TriggerResult, is_ascii: bool) -> str:  # noqa: FBT001 - one caller
    loads = item.loads
    count = f"{loads.part}/{loads.whole}"
    tokens = sum(outcome.tokens for outcome in item.outcomes)
    mark = "" if item.right.part == item.right.whole else "  <- wrong" if not item.right.part else "  <- sometimes"
    others = f" (loaded {', '.join(item.instead)})" if item.instead and mark else ""
    should = "yes" if item.should_trigger else "no"
    return f"  {count:<8}{_bar(loads, is_ascii)}  {tokens:>8,}  {should:<6}  {shorten(item.query)}{mark}{others}"


def _rank_line(item: TriggerResult) -> str:
    where = f"ranks {item.rank}" if item.rank else "is not suggested"
    if not item.should_trigger:
        return f"    {shorten(item.query)}: ranks first, but should not load"
    instead = f"; suggested instead: {', '.join(item.instead)}" if item.instead else "; nothing is suggested"
    return f"    {shorten(item.query)}: {where}{instead}"


def _task_lines(task: TaskResult, is_ascii: bool) -> Iterator[str]:  # noqa: FBT001 - one caller
    without = task.passed_without
    sides = [_side(task.passed, is_ascii), _side(without, is_ascii)]
    runs = [task.with_skill, *([task.without] if task.without is not None else [])]
    numbers = " | ".join(f"{run.tokens:,}, {run.steps}, {run.seconds:.1f}" for run in runs)
    yield f"  {task.task.id[:7]:<8}{sides[0]:<{BAR + 6}}{sides[1]:<{BAR + 6}}{numbers}"
    for place, text in enumerate(task.task.expectations):
        verdict = _at(task.verdicts, place)
        if verdict.passed is None:
            yield f"    not graded: {shorten(text)} ({shorten(verdict.evidence)})"
        elif not verdict.passed:
            yield f"    does not hold: {shorten(text)}"
    for side, run in zip(("with", "without"), runs, strict=False):
        if run.error:
            yield f"    {side} the skill: {run.error}"


def _side(rate: Rate | None, is_ascii: bool) -> str:  # noqa: FBT001 - one caller
    return "-" if rate is None else f"{_bar(rate, is_ascii)} {rate.part}/{rate.whole}"


def _bar(rate: Rate, is_ascii: bool) -> str:  # noqa: FBT001 - one caller
    full, empty = ("#", ".") if is_ascii else ("█", "·")
    filled = round((rate.share or 0) * BAR)
    if rate.part:
        # A single one of many must not look like none.
        filled = max(1, filled)
    return full * filled + empty * (BAR - filled)


# --------------------------------------------------------------------------------------------------------------------
# One HTML page for any number of reports: no outside references, no script, readable on a phone and in dark mode.
#
# Everything from skills, models and graders is escaped; a policy in the page's head keeps it from loading anything.
# --------------------------------------------------------------------------------------------------------------------


STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --paper: #fff; --card: #f7f8fa; --line: #d9dce1;
  --good: #1a7f4b; --bad: #c0362c; --with: #3056d3; --without: #9aa3b2; --mark: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a3a9b3; --paper: #14171b; --card: #1d2126;
  --line: #343a42; --good: #4cc38a; --bad: #ff7b72; --with: #7b9bff; --without: #6b7380; --mark: #e0b050; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .25rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); font-size: .9rem; }
.row { display: grid; grid-template-columns: 11rem 1fr 15rem; gap: .25rem .75rem; align-items: center;
  margin: .35rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem;
  margin: .5rem 0; }
.card > .row { grid-template-columns: 8rem 1fr 14rem; }
.bar { background: var(--line); border-radius: .25rem; height: .7rem; overflow: hidden; }
.bar > span { display: block; height: 100%; border-radius: .25rem; background: var(--with); }
.bar > .good { background: var(--good); } .bar > .bad { background: var(--bad); }
.bar > .without { background: var(--without); }
.figure { font-variant-numeric: tabular-nums; font-size: .9rem; }
.tag { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .5rem; font-size: .8rem; }
.tag.good { color: var(--good); } .tag.bad { color: var(--bad); } .tag.mark { color: var(--mark); }
ul { padding-left: 1.2rem; margin: .4rem 0; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
pre { white-space: pre-wrap; background: var(--paper); border: 1px solid var(--line); border-radius: .3rem;
  padding: .5rem; margin: .3rem 0; font: .82rem/1.45 ui-monospace, monospace; }
.role { font-weight: 600; font-size: .8rem; color: var(--soft); margin-top: .5rem; }
@media (max-width: 40rem) { .row, .card > .row { grid-template-columns: 1fr auto; }
  .row > .bar { grid-column: 1 / -1; grid-row: 2; } }
"""

_VERDICTS = {True: ("holds", "good"), False: ("does not hold", "bad"), None: ("not graded", "mark")}

_PROVES_NOTHING = ' <span class="tag mark">proves nothing: holds without the skill</span>'

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(reports: Sequence[EvalReport], library: LibraryReport | None = None) -> str:
    """Return reports as one page, with a library's report first, if there is one."""
    parts = [*(_library(library) if library is not None else ()), *(part for one in reports for part in _report(one))]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Skill evaluation</title><style>{STYLE}</style></head><body>"
        f"<h1>Skill evaluation</h1>{''.join(parts)}</body></html>\n"
    )


def _library(library: LibraryReport) -> Iterator[str]:
    yield f'<p class="soft">{library}.</p>'
    for heading, lines in library.lists().items():
        if lines:
            yield f"<h3>{heading}</h3><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _report(report: EvalReport) -> Iterator[str]:
    yield f'<section id="{escape(report.skill)}"><h2>{escape(report.skill)}</h2>'
    yield f'<p class="soft">{escape(report.evals.description)}</p>'
    how = f"runs with {escape(report.model)}" if report.model else "ranked without a model"
    yield f'<p class="soft">{_scope(report)}, {how}'
    yield f", {report.tokens:,} tokens used.</p>" if report.model else ".</p>"
    if report.stopped:
        yield f'<p><span class="tag bad">stopped</span> {escape(report.stopped)}</p>'
    for label, rate, kind in (
        ("loads when it should", report.recall, "good"),
        ("rests when it should", report.restraint, "good"),
        ("tasks with it", report.passed, "with"),
        ("tasks without it", report.passed_without, "without"),
    ):
        if rate.whole:
            yield _row(label, rate.part, rate.whole, _sure(rate), kind)
    yield from _tokens(report)
    if report.triggers:
        yield "<h3>Queries</h3>"
        for item in report.triggers:
            yield from _query(item)
    if report.tasks:
        yield "<h3>Tasks</h3>"
        most = max((run.tokens for run in report.outcomes), default=0)
        for task in report.tasks:
            yield from _task(task, most)
    for problem in report.evals.problems:
        yield f'<p class="soft">{escape(problem["path"])}: {escape(problem["message"])}</p>'
    yield "</section>"


def _tokens(report: EvalReport) -> Iterator[str]:
    """Show what the tasks took in total, with the skill and without it."""
    sides = {
        "tokens with it": ("with", [task.with_skill.tokens for task in report.tasks]),
        "tokens without it": ("without", [task.without.tokens for task in report.tasks if task.without is not None]),
    }
    most = max(sum(taken) for _, taken in sides.values())
    for label, (kind, taken) in sides.items():
        if taken:
            yield _row(label, sum(taken), most, f"{sum(taken):,}", kind)


def _query(item: TriggerResult) -> Iterator[str]:
    right = item.right
    is_right = right.part == right.whole
    verdict = "right" if is_right else "wrong" if not right.part else "sometimes"
    should = "should load" if item.should_trigger else "should not load"
    tag = f'<span class="tag {"good" if is_right else "bad"}">{verdict}</span>'
    yield f'<div class="card query"><p>{escape(item.query)}</p><p class="soft">{tag} {should}'
    if item.instead and not is_right:
        yield f", instead: {', '.join(map(escape, item.instead))}"
    yield "</p>"
    if item.outcomes:
        kind = "good" if is_right else "bad"
        yield _row("loaded", item.loads.part, item.loads.whole, _sure(item.loads), kind)
        for number, outcome in enumerate(item.outcomes, 1):
            yield _run(f"Run {number}", outcome)
    else:
        rank = f"ranks {item.rank}" if item.rank else "is not suggested"
        yield f'<p class="soft">{rank}; suggested: {", ".join(map(escape, item.ranked)) or "nothing"}</p>'
    yield "</div>"


def _task(task: TaskResult, most: int) -> Iterator[str]:
    yield f'<div class="card task"><p><b>{escape(task.task.id)}</b> {escape(task.task.prompt)}</p>'
    yield _row("with", task.passed.part, task.passed.whole, f"{task.passed.part} of {task.passed.whole}", "with")
    if task.passed_without is not None and task.without is not None:
        rate = task.passed_without
        yield _row("without", rate.part, rate.whole, f"{rate.part} of {rate.whole}", "without")
    for label, run, kind in (("tokens with", task.with_skill, "with"), ("tokens without", task.without, "without")):
        if run is not None:
            yield _row(label, run.tokens, most, f"{run.tokens:,}", kind)
    yield "<ul>"
    for place, text in enumerate(task.task.expectations):
        verdict = _at(task.verdicts, place)
        word, kind = _VERDICTS[verdict.passed]
        nothing = _PROVES_NOTHING if task.proves_nothing(place) else ""
        yield f'<li>{escape(text)} <span class="tag {kind}">{word}</span>{nothing}'
        if verdict.evidence:
            yield f'<br><span class="soft">{escape(verdict.evidence)}</span>'
        yield "</li>"
    yield "</ul>"
    yield _run("Run with the skill", task.with_skill)
    if task.without is not None:
        yield _run("Run without the skill", task.without)
    yield "</div>"


def _run(label: str, outcome: Outcome) -> str:
    calls = "1 model call" if outcome.steps == 1 else f"{outcome.steps} model calls"
    about = f"{outcome.tokens:,} tokens, {calls}, {outcome.seconds:.1f} s"
    error = (
        f'<p><span class="tag bad">{escape(outcome.status)}</span> {escape(outcome.error)}</p>' if outcome.error else ""
    )
    transcript = "".join(
        f'<div class="role">{escape(item["role"])}</div><pre>{escape(item["text"])}</pre>'
        for item in outcome.transcript
    )
    loaded = f"<p class='soft'>loaded: {', '.join(map(escape, outcome.loaded)) or 'nothing'}</p>"
    return f'<details class="run"><summary>{label}: {about}</summary>{error}{loaded}{transcript}</details>'


def _row(label: str, part: float, whole: float, figure: str, kind: str) -> str:
    width = round(100 * part / whole, 1) if whole else 0
    bar = f'<div class="bar"><span class="{kind}" style="width:{width}%"></span></div>'
    return f'<div class="row"><span class="soft">{label}</span>{bar}<span class="figure">{figure}</span></div>'


def _sure(rate: Rate) -> str:
    low, high = rate.interval
    return f"{rate.part} of {rate.whole}, {rate.share or 0:.0%} ({low:.0%} to {high:.0%})"
