"""`doctor`: what an agent with these sources would see, what is wrong, and what it costs, in one report."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from typing_extensions import TypedDict

from deepskills._catalog.sources import Source, lies_under, parent
from deepskills._cli.commands.catalog import LocalCatalog
from deepskills._cli.files import find_skill_files, perform
from deepskills._cli.output import STYLES, Output, counted, prose, visible
from deepskills._io.plan import Plan
from deepskills._loading.budget import count_text_tokens
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import SkillProblem

PACKAGES = ("deepskills", "deepagents", "langchain", "langgraph")
"""What an agent with skills runs on."""

MAX_LOADED_SKILLS = 10
"""How many skills an agent with default settings holds at a time."""

MAX_LOADED_TOKENS = 50_000
"""How many tokens they may cost together."""


class SourceReport(TypedDict):
    """A source in the JSON of `doctor`."""

    path: str
    label: str
    skills: int
    """How many of the skills that are used come from it."""


class LoadReport(TypedDict):
    """What loading costs, in tokens, in the JSON of `doctor`."""

    least: int
    median: int
    most: int
    all: int


class Report(TypedDict):
    """The JSON of `doctor`."""

    versions: dict[str, str | None]
    sources: list[SourceReport]
    skills: list[str]
    """What the model sees."""

    user_only: list[str]
    """What only a user starts."""

    unusable: list[str]
    """The files that cannot be used."""

    prompt_tokens: int
    """What every request costs before anything is loaded."""

    loads: LoadReport | None
    """None where nothing can be loaded."""

    problems: list[SkillProblem]


@dataclass(frozen=True)
class Examination:
    """A report, and what a screen tells besides."""

    report: Report
    largest: list[tuple[str, int]]
    """The skills that cost most to load, with their tokens."""

    needs: Mapping[str, int]
    """The extensions without which keys of skills do nothing, each with the number of skills."""

    @property
    def is_well(self) -> bool:
        """Whether nothing is broken; warnings may be."""
        problems = self.report["problems"]
        return None not in self.report["versions"].values() and all(p["severity"] != "error" for p in problems)


def examine(local: LocalCatalog) -> Examination:
    """Look at everything an agent with default settings would make of these skills."""
    costs = sorted(((found.row["tokens"], found.row["name"]) for found in local.usable), reverse=True)
    report = Report(
        versions={name: _version(name) for name in PACKAGES},
        sources=[_source_report(source, local) for source in local.sources],
        skills=[found.row["name"] for found in local.usable if not found.is_user_only],
        user_only=[found.row["name"] for found in local.usable if found.is_user_only],
        unusable=[found.row["path"] for found in local.found if not found.is_usable],
        prompt_tokens=count_text_tokens(local.prompt()) if local.usable else 0,
        loads=_loads([tokens for tokens, _ in costs]),
        problems=[*local.problems, *perform(_passed_over(local))],
    )
    needs = Counter(name for found in local.usable for name in {key.needs for key in found.keys} if name)
    return Examination(report, [(name, tokens) for tokens, name in costs[:3]], needs)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _source_report(source: Source, local: LocalCatalog) -> SourceReport:
    own = [found for found in local.usable if found.source.path == source.path]
    return SourceReport(path=source.path, label=source.label, skills=len(own))


def _loads(costs: Sequence[int]) -> LoadReport | None:
    if not costs:
        return None
    return LoadReport(least=min(costs), median=round(statistics.median(costs)), most=max(costs), all=sum(costs))


def _passed_over(local: LocalCatalog) -> Plan[list[SkillProblem]]:
    """Find the skills below the sources that discovery does not see: too deep, or under another file name."""
    noted: dict[tuple[str, str], SkillProblem] = {}
    reported = {(found["path"], found["code"]) for found in local.problems}
    known = {found.row["path"] for found in local.found} | {path for path, _ in reported}
    # Also those that seem empty: perhaps everything in them was passed over.
    searched = local.discovery.catalog.sources
    for source in searched:
        tree = yield from find_skill_files(source.path)
        unseen = [path for path in tree.files if path not in known]
        for found in (*tree.problems, *_too_deep(unseen, source, searched)):
            key = (found["path"], found["code"])
            if found["code"] in {"skill-file-misnamed", "skill-too-deep"} and key not in reported:
                noted.setdefault(key, found)
    return list(noted.values())


def _too_deep(paths: Sequence[str], source: Source, sources: Sequence[Source]) -> Iterator[SkillProblem]:
    for path in paths:
        depth = path[len(source.path) :].strip("/").count("/")
        inner = any(lies_under(path, other.path) and lies_under(other.path, source.path) for other in sources)
        if depth > 1 and not inner:
            yield problem(path, "skill-too-deep", depth=depth, parent=quoted(parent(parent(path))))


# The report on one screen.

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
    if found.needs:
        told = ", ".join(f"{name} ({counted(number, 'skill')})" for name, number in sorted(found.needs.items()))
        output.lines(output.paragraph(f"Keys that do nothing without an extension: {told}", 2, 2))
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
