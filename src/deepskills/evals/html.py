"""One HTML page for any number of reports: no outside references, no script, readable on a phone and in dark mode.

Everything from skills, models and graders is escaped; a policy in the page's head keeps it from loading anything.
"""

from collections.abc import Iterator, Sequence
from html import escape

from deepskills.evals.library import LibraryReport
from deepskills.evals.report import EvalReport, Rate, TaskResult, TriggerResult
from deepskills.evals.runs import Outcome

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
    yield f'<p class="soft">{len(library.skills)} skills, {library.queries} requests ranked without a model.</p>'
    if library.overlaps:
        yield "<h3>Pairs that compete for requests</h3>"
    most = max((pair.taken for pair in library.overlaps), default=0)
    for pair in library.overlaps:
        tag = '<span class="tag bad">take each other\'s requests</span>' if pair.is_mutual else ""
        names = f"<b>{escape(pair.first)}</b> and <b>{escape(pair.second)}</b> {tag}"
        words = f"their descriptions share {pair.similarity:.0%} of their words"
        bar = _row("requests taken", pair.taken, most, str(pair.taken), "bad")
        yield f'<div class="card overlap"><p>{names}</p>{bar}'
        yield f'<p class="soft">{words}</p></div>'
    if library.taken:
        yield "<h3>Requests that go to another skill</h3><ul>"
        for item in library.taken:
            before = ", ".join(map(escape, item.before)) or "nothing is suggested"
            about = f"meant {escape(item.meant)}, first: {before}"
            yield f'<li>{escape(item.query)}<br><span class="soft">{about}</span></li>'
        yield "</ul>"


def _report(report: EvalReport) -> Iterator[str]:
    yield f'<section id="{escape(report.skill)}"><h2>{escape(report.skill)}</h2>'
    yield f'<p class="soft">{escape(report.evals.description)}</p>'
    how = f"runs with {escape(report.model)}" if report.model else "ranked without a model"
    yield f'<p class="soft">{len(report.triggers)} queries among {report.library_size} skills, {how}'
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
        verdict = task.verdicts[place] if place < len(task.verdicts) else None
        word, kind = _VERDICTS[verdict.passed if verdict is not None else None]
        nothing = _PROVES_NOTHING if task.proves_nothing(place) else ""
        yield f'<li>{escape(text)} <span class="tag {kind}">{word}</span>{nothing}'
        if verdict is not None and verdict.evidence:
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
    told = "".join(
        f'<div class="role">{escape(item["role"])}</div><pre>{escape(item["text"])}</pre>'
        for item in outcome.transcript
    )
    loaded = f"<p class='soft'>loaded: {', '.join(map(escape, outcome.loaded)) or 'nothing'}</p>"
    return f'<details class="run"><summary>{label}: {about}</summary>{error}{loaded}{told}</details>'


def _row(label: str, part: float, whole: float, figure: str, kind: str) -> str:
    width = round(100 * part / whole, 1) if whole else 0
    bar = f'<div class="bar"><span class="{kind}" style="width:{width}%"></span></div>'
    return f'<div class="row"><span class="soft">{label}</span>{bar}<span class="figure">{figure}</span></div>'


def _sure(rate: Rate) -> str:
    low, high = rate.interval
    share = rate.share or 0
    return f"{rate.part} of {rate.whole}, {share:.0%} ({low:.0%} to {high:.0%})"
