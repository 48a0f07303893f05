"""`deepskills eval`: measures a skill, or a library, and shows what was found."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepskills import evals
from deepskills._cli.files import UsageError, absolute, find_named_sources, find_usual_sources
from deepskills._cli.output import Output, prose, visible
from deepskills.evals.budget import journal_path
from deepskills.evals.report import table

MAX_SHOWN = 20
"""How many lines of each list about a library are shown."""


@dataclass(frozen=True)
class EvalArguments:
    """What the command was given."""

    skill: str | None
    everything: bool
    source: Sequence[str]
    model: str | None
    grader: str | None
    runs: int
    max_tokens: int | None
    max_steps: int
    timeout: float
    min_pass: float | None
    fresh: bool
    as_json: bool
    html: str | None


def run(given: EvalArguments, output: Output) -> bool:
    """Measure what was asked for, show it, and return whether all is well.

    Raises:
        UsageError: If the arguments do not fit together.
        EvalError: If the skill or the model cannot be used.
    """
    if given.everything:
        return _run_library(given, output)
    if given.skill is None:
        raise UsageError("Name the directory of a skill, or pass --all to measure a library.")
    if given.grader is not None and given.model is None:
        raise UsageError("--grader judges what a model did. Pass --model too.")
    report = _measure(given, absolute(given.skill), output)
    _write_page(given, evals.to_html([report]), output)
    if given.as_json:
        output.json(report.as_dict())
    else:
        _show(output, table(report, is_ascii=output.is_ascii))
    return _is_well(given, report, output)


def _measure(given: EvalArguments, skill: str, output: Output) -> evals.EvalReport:
    known = evals.read_evals(skill)
    output.problem_remarks(known.problems)
    options: evals.EvalOptions = {"sources": _sources(given.source)}
    if given.model is None:
        return evals.evaluate(skill, None, **options)
    # No limits among them: an evaluation that --max-tokens stopped goes on in the same journal with a higher one.
    settings = {"model": given.model, "grader": given.grader, "runs": given.runs, "sources": sorted(given.source)}
    journal = journal_path(known, settings)
    if given.fresh:
        journal.unlink(missing_ok=True)
    elif journal.exists():
        output.remark("Going on from where it was interrupted; --fresh begins again.")
    options |= {
        "grader": given.grader,
        "runs": given.runs,
        "max_tokens": given.max_tokens,
        "max_steps": given.max_steps,
        "timeout": given.timeout,
        "journal": journal,
        "on_start": lambda estimate: output.remark(f"{known.name}: {estimate}"),
        "on_progress": lambda step: output.remark(_progress_line(step)),
    }
    try:
        return evals.evaluate(skill, given.model, **options)
    except KeyboardInterrupt:
        output.remark("Interrupted. What is done is kept: run the same command again to go on.")
        raise


def _sources(given: Sequence[str]) -> list[str]:
    return [source.path for source in find_named_sources(given)] if given else []


def _progress_line(step: evals.Progress) -> str:
    outcome = step.outcome
    loaded = f", loaded {', '.join(outcome.loaded)}" if outcome.loaded else ""
    ended = f", {outcome.error}" if outcome.error else ""
    label = step.label if len(step.label) <= 60 else f"{step.label[:57]}..."  # noqa: PLR2004 - fits a line
    return f"[{step.done}/{step.total}] {label}{loaded}{ended} ({step.tokens:,} tokens so far)"


def _run_library(given: EvalArguments, output: Output) -> bool:
    named = [*given.source, *([given.skill] if given.skill is not None else [])]
    sources = find_named_sources(named) if named else find_usual_sources()
    if not sources:
        raise UsageError("There is no library here. Name one: deepskills eval --all DIR")
    library = evals.find_overlaps(*(source.path for source in sources))
    reports: list[evals.EvalReport] = []
    if given.model is not None or given.html is not None:
        places = [item.directory.as_posix() for item in library.evals]
        inner = EvalArguments(**{**vars(given), "source": tuple(source.path for source in sources)})
        reports = [_measure(inner, place, output) for place in places]
    else:
        output.problem_remarks(
            problem for item in library.evals for problem in item.problems if problem["severity"] == "error"
        )
    _write_page(given, evals.to_html(reports, library), output)
    if given.as_json:
        shown: dict[str, Any] = library.as_dict()
        if given.model is not None:
            shown["reports"] = [report.as_dict() for report in reports]
        output.json(shown)
    else:
        _show_library(output, library)
        for report in reports if given.model is not None else ():
            output.line("")
            _show(output, table(report, is_ascii=output.is_ascii))
    rates = [library.pass_rate, *(report.pass_rate for report in reports if given.model is not None)]
    is_broken = any(item.is_broken for item in library.evals) or any(report.stopped for report in reports)
    return not is_broken and all(_reaches(given, rate, "the library", output) for rate in rates)


def _show_library(output: Output, library: evals.LibraryReport) -> None:
    """Show the first lines of each list, and how many more there are."""
    output.line(str(library))
    for heading, lines in library.lists().items():
        if lines:
            output.line("")
            output.line(f"{heading}:")
        for line in lines[:MAX_SHOWN]:
            output.line(f"  {prose(line)}")
        if len(lines) > MAX_SHOWN:
            output.line(f"  and {len(lines) - MAX_SHOWN:,} more; --json has them all")


def _show(output: Output, lines: Sequence[str]) -> None:
    for line in lines:
        output.line(visible(line))


def _write_page(given: EvalArguments, text: str, output: Output) -> None:
    if given.html is not None:
        file = Path(absolute(given.html))
        file.write_text(text, encoding="utf-8", errors="replace")
        output.remark(f"Wrote {file}")


def _is_well(given: EvalArguments, report: evals.EvalReport, output: Output) -> bool:
    if report.pass_rate is None:
        hint = " Its tasks need --model." if report.evals.tasks and given.model is None else ""
        output.remark(f"Nothing was measured: {report.skill} has no usable queries.{hint}", "red")
        return False
    is_enough = _reaches(given, report.pass_rate, report.skill, output)
    return is_enough and not report.evals.is_broken and report.stopped is None


def _reaches(given: EvalArguments, rate: float | None, name: str, output: Output) -> bool:
    if given.min_pass is None:
        return True
    if rate is not None and rate >= given.min_pass:
        return True
    found = "nothing was measured" if rate is None else f"{rate:.0%} pass"
    output.remark(f"{name}: {found}, fewer than the {given.min_pass:.0%} asked for.", "red")
    return False
