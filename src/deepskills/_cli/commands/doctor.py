"""`doctor`: what is wrong, what would help, what an agent with these sources would see, and what it costs.

What matters comes first: a source that was not read whole hides everything else, so it is reported before any file, and
problems of one kind are one item with their number, however many there are.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict

from deepskills._cli.commands.catalog import Found, LocalCatalog
from deepskills._cli.commands.show import tool_costs
from deepskills._cli.files import NEW_SKILLS, absolute, find_skill_files, perform
from deepskills._cli.output import STYLES, Output, prose, visible
from deepskills._cli.plugins import PluginReport, describe_servers, plugin_of, servers_of
from deepskills._errors import SkillsError
from deepskills._install.drift import SENTENCES, compare_installed
from deepskills._install.lock import LOCK_FILE, Lock, load_lock
from deepskills._install.npx import NPX_LOCK
from deepskills._io.plan import lies_under, parent
from deepskills._loading.budget import count_text_tokens
from deepskills._providers.sources import Source
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.problems import SOURCE_ERRORS, problem, quoted
from deepskills._skillmd.read import find_placeholders, read_skill
from deepskills._skillmd.text import counted
from deepskills._types import DEFAULT_LOADED_SKILLS, DEFAULT_LOADED_TOKENS, SkillProblem

PACKAGES = ("deepskills", "deepagents", "langchain", "langgraph")
"""What an agent with skills runs on."""

HIDES_SKILLS = SOURCE_ERRORS | {"source-cut", "source-missing"}
"""Codes of problems that hide skills."""

LARGE_LIST = 5_000
"""From how many tokens on the list of skills is worth replacing by suggestions."""


class SourceReport(TypedDict):
    """A source in the JSON of `doctor`."""

    path: str
    label: str
    skills: int
    """How many of the skills that are used come from it."""


class InstalledReport(TypedDict):
    """A skill that a lock lists, in the JSON of `doctor`."""

    skill: str
    installer: str
    source: str
    state: str
    """`same`, `differs`, `missing` or `not checkable`."""


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
    """What the section about skills costs in every request."""

    tool_tokens: int
    """What the definitions of `load_skill` and `unload_skill` cost beside it."""

    loads: LoadReport | None
    """None where nothing can be loaded."""

    problems: list[SkillProblem]

    installed: NotRequired[list[InstalledReport]]
    """The skills that the project's locks list, if it has any."""

    plugins: NotRequired[list[PluginReport]]
    """The plugins among the sources that name MCP servers."""

    advice: list[str]
    """What would help, most important first."""


@dataclass(frozen=True)
class Examination:
    """A report, and what a screen tells besides."""

    report: Report
    largest: list[tuple[str, int]]
    """The skills that cost most to load, with their tokens."""

    @property
    def is_well(self) -> bool:
        """Whether nothing is broken; warnings may be."""
        problems = self.report["problems"]
        return None not in self.report["versions"].values() and all(p["severity"] != "error" for p in problems)


def examine(local: LocalCatalog) -> Examination:
    """Look at everything an agent with default settings would make of these skills."""
    costs = sorted(((found.row["tokens"], found.row["name"]) for found in local.usable), reverse=True)
    unseen = perform(find_passed_over(local))
    installed, differing = _compare_installed()
    plugins: list[PluginReport] = []
    for root in dict.fromkeys(plugin for source in local.sources if (plugin := plugin_of(source)) is not None):
        servers, faults = servers_of(root)
        differing += faults
        if servers:
            plugins.append(PluginReport(path=root, mcp_servers=servers))
    placeholders = [
        noted
        for found in local.usable
        for path in [found.row["path"]]
        for noted in find_placeholders(read_skill(found.text, path=path), path)
    ]
    problems = [*local.problems, *placeholders, *(item.problem for item in unseen), *differing]
    visible_names = [found.row["name"] for found in local.usable if not found.is_user_only]
    report = Report(
        versions={name: _version(name) for name in PACKAGES},
        sources=[
            SourceReport(path=s.path, label=s.label, skills=sum(f.source.path == s.path for f in local.usable))
            for s in local.sources
        ],
        skills=visible_names,
        user_only=[found.row["name"] for found in local.usable if found.is_user_only],
        unusable=[found.row["path"] for found in local.found if not found.is_usable],
        prompt_tokens=count_text_tokens(local.prompt()) if local.usable else 0,
        tool_tokens=sum(tokens for _, tokens in tool_costs(sees_skills=bool(visible_names))) if local.usable else 0,
        loads=_loads([tokens for tokens, _ in costs]),
        problems=problems,
        advice=[],
    )
    if installed:
        report["installed"] = installed
    if plugins:
        report["plugins"] = plugins
    needs = Counter(need for found in local.usable for need in _needs(found))
    depths = [item.depth for item in unseen if item.depth is not None]
    report["advice"] += _advice(report, costs, needs, depths)
    return Examination(report, [(name, tokens) for tokens, name in costs[:3]])


def _needs(found: Found) -> set[tuple[str, str]]:
    """Return which extensions a skill needs, and for what of its frontmatter."""
    checks = read_checks(found.frontmatter.get("checks"), found.row["path"]).items
    kinds = {(check.shape.needs, f"checks: {check.kind}") for check in checks if check.shape.needs}
    return kinds | {(key.needs, key.name) for key in found.keys if key.needs}


def _advice(
    report: Report, costs: Sequence[tuple[int, str]], needs: Mapping[tuple[str, str], int], depths: Sequence[int]
) -> Iterator[str]:
    """Yield what would help, most important first; each says what it is about and what to write."""
    missing = [name for name, number in report["versions"].items() if number is None]
    if missing:
        yield f"Not installed: {', '.join(missing)}. Run `pip install {' '.join(missing)}`."
    if depths:
        skills = f"{counted(len(depths), 'skill')} lie{'s' if len(depths) == 1 else ''}"
        yield f"{skills} too deep to be found. Set `max_depth={max(depths)}`, or name sources nearer to them."
    if report["prompt_tokens"] >= LARGE_LIST:
        yield (
            f"The list of skills takes {report['prompt_tokens']:,} tokens in every request. Replace it by suggestions "
            'beside each message: `extensions=[SkillSuggestions(catalog="none")]`.'
        )
    over = [(tokens, name) for tokens, name in costs if tokens > DEFAULT_LOADED_TOKENS]
    if over:
        most, name = over[0]
        yield (
            f"{counted(len(over), 'skill')} cannot be loaded within `max_loaded_tokens={DEFAULT_LOADED_TOKENS:_}`; the "
            f"largest, {name}, takes {most:,}. Raise it, or move material into references/."
        )
    if report["user_only"]:
        yield (
            f"Only a user can start {counted(len(report['user_only']), 'skill')}, and no slash command is on by "
            "default. Pass `slash_commands=True`."
        )
    for (extension, key), number in sorted(needs.items(), key=lambda item: (-item[1], item[0])):
        made = extension if extension.endswith(")") else f"{extension}(...)"
        yield f"`{key}` of {counted(number, 'skill')} does nothing without `extensions=[{made}]`."


def _compare_installed() -> tuple[list[InstalledReport], list[SkillProblem]]:
    """Return the skills that the locks of the current directory list, and what differs from those locks."""
    directory, lock_path = Path(absolute(NEW_SKILLS)), Path(absolute(LOCK_FILE))
    problems: list[SkillProblem] = []
    reports: list[InstalledReport] = []
    try:
        lock = load_lock(lock_path, missing_ok=True)
    except SkillsError as error:
        problems.append(problem(str(lock_path), "lock-unreadable", reason=str(error)))
        lock = Lock()
    installed = compare_installed(directory, lock, lock_path)
    if installed.failure:
        problems.append(problem(str(lock_path.with_name(NPX_LOCK)), "lock-unreadable", reason=installed.failure))
    # The first of a skill says enough.
    worst = {(item.installer, item.skill): item for item in reversed(installed.drift)}
    for (installer, name), source in sorted(installed.sources.items()):
        found = worst.get((installer, name))
        kind = found.kind if found is not None else "same"
        state = kind if kind in {"same", "missing", "not checkable"} else "differs"
        reports.append(InstalledReport(skill=name, installer=installer, source=source, state=state))
        if found is not None and kind != "not checkable":
            what = f"{found.path or 'the skill'}: {SENTENCES[found.kind]}"
            command = f"deepskills verify{' --fix' if found.is_error else ''}"
            place = (directory / name).as_posix()
            problems.append(problem(place, "installed-differs", installer=installer, what=what, command=command))
    return reports, problems


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _loads(costs: Sequence[int]) -> LoadReport | None:
    if not costs:
        return None
    return LoadReport(least=min(costs), median=round(statistics.median(costs)), most=max(costs), all=sum(costs))


@dataclass(frozen=True)
class PassedOver:
    """A skill that discovery does not see, as a problem."""

    problem: SkillProblem
    depth: int | None = None
    """How many directories below its source it lies, if that is too deep."""


async def find_passed_over(local: LocalCatalog) -> list[PassedOver]:
    """Find the skills below the sources that discovery does not see: too deep, or under another file name."""
    noted: dict[tuple[str, str], PassedOver] = {}
    reported = {(found["path"], found["code"]) for found in local.problems}
    known = {found.row["path"] for found in local.found} | {path for path, _ in reported}
    # Also those that seem empty: perhaps everything in them was passed over.
    searched = local.discovery.catalog.sources
    for source in searched:
        tree = await find_skill_files(source.path)
        unseen = [path for path in tree.files if path not in known]
        misnamed = (PassedOver(found) for found in tree.problems if found["code"] == "skill-file-misnamed")
        for item in (*misnamed, *_too_deep(unseen, source, searched)):
            key = (item.problem["path"], item.problem["code"])
            if key not in reported:
                noted.setdefault(key, item)
    return list(noted.values())


def _too_deep(paths: Sequence[str], source: Source, sources: Sequence[Source]) -> Iterator[PassedOver]:
    for path in paths:
        depth = path[len(source.path) :].strip("/").count("/")
        inner = any(lies_under(path, other.path) and lies_under(other.path, source.path) for other in sources)
        if depth > 1 and not inner:
            yield PassedOver(problem(path, "skill-too-deep", depth=depth, parent=quoted(parent(parent(path)))), depth)


# The report on one screen.

SHOWN_KINDS = 6
"""How many kinds of problems fit on the screen."""

SHOWN_ADVICE = 6
"""How many pieces of advice fit on the screen."""

SHOWN_SOURCES = 5
"""How many sources fit on the screen."""


def show_examination(output: Output, found: Examination) -> None:
    """Show what is wrong, what would help, what an agent would see and what it costs, on one screen."""
    report = found.report
    _show_problems(output, report["problems"])
    if report["advice"]:
        _heading(output, "What would help")
        for line in report["advice"][:SHOWN_ADVICE]:
            _item(output, line)
    _heading(output, "Sources", "the later wins" if len(report["sources"]) > 1 else "")
    for source in report["sources"][-SHOWN_SOURCES:]:
        output.line(f"  {visible(source['label'])}  {counted(source['skills'], 'skill')}")
    if len(report["sources"]) > SHOWN_SOURCES:
        output.line(f"  and {counted(len(report['sources']) - SHOWN_SOURCES, 'earlier source')}")
    if not report["sources"]:
        output.line("  none")
    for line in _origin_lines(report):
        output.lines(output.paragraph(line, 2, 4))
    _heading(output, "The model sees", counted(len(report["skills"]), "skill"))
    output.lines(output.paragraph(", ".join(report["skills"]) or "nothing", 2, 4))
    if report["user_only"]:
        output.lines(output.paragraph(f"Only a user can start: {', '.join(report['user_only'])}", 2, 2))
    if report["unusable"]:
        output.line("  ", (f"{counted(len(report['unusable']), 'file')} cannot be used, see above", "red"))
    _heading(output, "Cost", "tokens, estimated")
    for line in _cost_lines(found):
        output.lines(output.paragraph(line, 2, 3))
    output.line("")
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in report["versions"].items())
    output.lines(output.paragraph(versions, 0, 2, "dim"))


def _origin_lines(report: Report) -> Iterator[str]:
    installed = report.get("installed", [])
    for installer in sorted({item["installer"] for item in installed}):
        names = ", ".join(item["skill"] for item in installed if item["installer"] == installer)
        yield f"Brought by {installer}: {names}"
    for plugin in report.get("plugins", []):
        yield f"The plugin {plugin['path']} names MCP servers, not started: {describe_servers(plugin['mcp_servers'])}"


def _cost_lines(found: Examination) -> Iterator[str]:
    report, loads = found.report, found.report["loads"]
    if loads is None:
        yield "nothing"
        return
    section, tools = report["prompt_tokens"], report["tool_tokens"]
    yield f"Every request: {section + tools:,} ({section:,} for the list, {tools:,} for the tools)"
    spread = f" to {loads['most']:,}, median {loads['median']:,}" if loads["most"] > loads["least"] else ""
    yield f"One load: {loads['least']:,}{spread}"
    count = len(report["skills"]) + len(report["user_only"])
    fits = count <= DEFAULT_LOADED_SKILLS and loads["all"] <= DEFAULT_LOADED_TOKENS
    limits = f"{DEFAULT_LOADED_SKILLS} skills and {DEFAULT_LOADED_TOKENS:,} tokens at a time"
    yield f"All loaded: {loads['all']:,}, {'within' if fits else 'over'} the defaults of {limits}"
    yield f"Largest: {', '.join(f'{prose(name)} {tokens:,}' for name, tokens in found.largest)}"


def _show_problems(output: Output, problems: Sequence[SkillProblem]) -> None:
    errors = sum(found["severity"] == "error" for found in problems)
    if not problems:
        output.line(("Problems", "bold"), ("  none", "dim"))
        return
    counts = f"  {counted(errors, 'error')}, {counted(len(problems) - errors, 'warning')}"
    output.line(("Problems", "bold"), (counts, "dim"))
    kinds = _by_code(problems)
    for code, found in kinds[:SHOWN_KINDS]:
        first = found[0]
        number = f" x {len(found):,}" if len(found) > 1 else ""
        output.line("  ", (f"{code}{number}", STYLES[first["severity"]]))
        output.lines(output.paragraph(first["message"], 4, 3))
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        output.line(f"    {visible(first['path'])}{more}")
    if len(kinds) > SHOWN_KINDS:
        left = sum(len(found) for _, found in kinds[SHOWN_KINDS:])
        output.line(f"  and {counted(left, 'problem')} of {counted(len(kinds) - SHOWN_KINDS, 'other kind')}")
    if len(problems) > len(kinds) or len(kinds) > SHOWN_KINDS:
        output.line(("  Each of them: `deepskills doctor --json`", "dim"))


def _by_code(problems: Sequence[SkillProblem]) -> list[tuple[str, list[SkillProblem]]]:
    """Return problems by code: first what kept sources from being read, then errors, then the most frequent."""
    kinds: dict[str, list[SkillProblem]] = {}
    for found in problems:
        kinds.setdefault(found["code"], []).append(found)

    def rank(kind: tuple[str, list[SkillProblem]]) -> tuple[bool, bool, int]:
        code, found = kind
        return code not in HIDES_SKILLS, found[0]["severity"] != "error", -len(found)

    return sorted(kinds.items(), key=rank)


def _item(output: Output, text: str) -> None:
    first, *rest = output.paragraph(text, 4, 3)
    first.plain = f"  - {first.plain.lstrip()}"
    output.lines([first, *rest])


def _heading(output: Output, title: str, remark: str = "") -> None:
    output.line("")
    output.line((title, "bold"), (f"  {remark}" if remark else "", "dim"))
