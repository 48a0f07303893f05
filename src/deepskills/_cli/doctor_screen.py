"""What `doctor` shows: the report on one screen."""

from collections.abc import Iterator, Sequence

from deepskills._cli.doctor import MAX_LOADED_SKILLS, MAX_LOADED_TOKENS, Examination
from deepskills._cli.output import STYLES, Output, counted, prose, visible
from deepskills._types import SkillProblem

SHOWN_PROBLEMS = 5
"""How many problems fit on the screen."""

SHOWN_SOURCES = 5
"""How many sources fit on the screen."""


def show_examination(output: Output, found: Examination) -> None:
    """Show what an agent would see, what is wrong and what it costs, on one screen."""
    report = found.report
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in report["versions"].items())
    output.lines(output.paragraph(versions, 0, 2, "dim"))
    _heading(output, "Sources", "the later wins")
    for source in report["sources"][-SHOWN_SOURCES:]:
        output.line(f"  {visible(source['label'])}  {counted(source['skills'], 'skill')}")
    if len(report["sources"]) > SHOWN_SOURCES:
        output.line(f"  and {counted(len(report['sources']) - SHOWN_SOURCES, 'earlier source')}")
    if not report["sources"]:
        output.line("  none")
    _heading(output, "The model sees", counted(len(report["skills"]), "skill"))
    output.lines(output.paragraph(", ".join(report["skills"]) or "nothing", 2, 4))
    if report["user_only"]:
        output.lines(output.paragraph(f"Only a user can start: {', '.join(report['user_only'])}", 2, 2))
    if report["unusable"]:
        output.line("  ", (f"{counted(len(report['unusable']), 'file')} cannot be used, see below", "red"))
    _heading(output, "Cost", "tokens, about")
    for line in _cost_lines(found):
        output.line(f"  {line}")
    _show_problems(output, report["problems"])


def _cost_lines(found: Examination) -> Iterator[str]:
    report, loads = found.report, found.report["loads"]
    yield f"every request  {report['prompt_tokens']:,}"
    if loads is None:
        return
    yield f"one load       {loads['least']:,} to {loads['most']:,}, median {loads['median']:,}"
    count = len(report["skills"]) + len(report["user_only"])
    fits = count <= MAX_LOADED_SKILLS and loads["all"] <= MAX_LOADED_TOKENS
    limits = f"{MAX_LOADED_SKILLS} skills and {MAX_LOADED_TOKENS:,} tokens at a time"
    yield f"all loaded     {loads['all']:,}; {'within' if fits else 'over'} the defaults of {limits}"
    yield f"largest        {', '.join(f'{prose(name)} {tokens:,}' for name, tokens in found.largest)}"


def _show_problems(output: Output, problems: Sequence[SkillProblem]) -> None:
    errors = sum(found["severity"] == "error" for found in problems)
    if not problems:
        _heading(output, "Problems", "none")
        return
    _heading(output, "Problems", f"{counted(errors, 'error')}, {counted(len(problems) - errors, 'warning')}")
    ranked = sorted(problems, key=lambda found: found["severity"] != "error")
    for found in ranked[:SHOWN_PROBLEMS]:
        output.line("  ", (found["code"], STYLES[found["severity"]]), f"  {visible(found['path'])}")
        output.lines(output.paragraph(found["message"], 4, 3))
    if len(problems) > SHOWN_PROBLEMS:
        output.line(f"  and {len(problems) - SHOWN_PROBLEMS} more: see `deepskills doctor --json`")


def _heading(output: Output, title: str, remark: str) -> None:
    output.line("")
    output.line((title, "bold"), (f"  {remark}", "dim"))
