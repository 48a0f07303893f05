"""`explain`: why a skill is not used, from files, and what a log of events says of each skill.

What happened on a thread `SkillsMiddleware.explain` says; this command knows only what an agent with default
settings would make of the files. Stages and codes are the same.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from deepskills._catalog.catalog import INCLUDE_TOOLS, SkillEntry
from deepskills._catalog.lookup import closest_names, find_index
from deepskills._catalog.ranking import Ranker
from deepskills._catalog.search import SearchIndex
from deepskills._cli.commands.catalog import Found, LocalCatalog
from deepskills._cli.commands.doctor import find_passed_over
from deepskills._cli.files import perform
from deepskills._cli.output import Output, prose
from deepskills._loading.budget import count_text_tokens
from deepskills._prompt.section import CatalogList, visible
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.names import name_key
from deepskills._skillmd.problems import listed, quoted
from deepskills._skillmd.repair import as_text
from deepskills._skillmd.text import counted
from deepskills._skillmd.tools import DEFAULT_ALIASES, tool_of_rule
from deepskills._types import DEFAULT_LOADED_TOKENS, DEFAULT_SUGGESTIONS, SkillProblem

AGENT_TOOLS = frozenset(
    {"ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute", "task", "write_todos"}
    | {"load_skill", "unload_skill"}
)
"""The tools of a deep agent with these skills."""

MAX_RANK = 50
"""How far down the ranking is looked."""

MAX_BEFORE = 5
"""How many skills that rank before this one are shown."""

MAX_WORDS = 40
"""How many words of a request are looked at one by one."""

MAX_LINE = 1_000_000
"""How long a line of a log may be."""


class Rival(TypedDict):
    """A skill that ranks before another one."""

    name: str
    words: list[str]
    """The words of the request by which it is found."""


class RequestReport(TypedDict):
    """What a request makes of a skill."""

    text: str
    rank: int | None
    """Its place among all that the model sees; `None` if it is not among the first 50."""

    of: int
    suggested: bool
    words: list[str]
    before: list[Rival]


class Costs(TypedDict):
    """What a skill costs, in tokens, beside the default budget."""

    load: int
    listed: int
    max_loaded_tokens: int


@dataclass
class Explanation:
    """How far a skill comes, and why no further; the fields are the JSON of `explain NAME`."""

    skill: str
    stopped: str | None = None
    code: str | None = None
    message: str = "An agent with default settings finds it, lists it and can load it."
    path: str | None = None
    source: str | None = None
    problems: list[SkillProblem] = field(default_factory=list)
    costs: Costs | None = None
    missing_tools: list[str] = field(default_factory=list)
    """Tools that it names and that a deep agent does not have."""

    request: RequestReport | None = None

    def stop(self, stage: str, code: str, message: str) -> None:
        """Record the stage that was not passed, and why."""
        self.stopped, self.code, self.message = stage, code, message


def explain_skill(local: LocalCatalog, name: str, request: str | None = None) -> Explanation:
    """Return how far a skill comes in an agent with default settings, and why no further."""
    wanted = name_key(name)
    found = [skill for skill in local.found if name_key(skill.row["name"]) == wanted]
    # One that can be used counts before a broken file of the same name.
    skill = next((each for each in found if each.is_usable), found[0] if found else None)
    own = Explanation(name)
    if skill is not None:
        row = skill.row
        own = Explanation(row["name"], path=row["path"], source=row["source"], problems=list(row["problems"]))
    if skill is None or not skill.is_usable or skill.entry is None:
        _explain_unusable(own, local)
        return own
    listed_tokens = 0 if skill.is_user_only else count_text_tokens(CatalogList([skill.entry]).render({}))
    load = skill.row["tokens"]
    own.costs = Costs(load=load, listed=listed_tokens, max_loaded_tokens=DEFAULT_LOADED_TOKENS)
    own.missing_tools = _missing_tools(skill.entry)
    if request is not None and not skill.is_user_only:
        own.request = _rank(local, skill, request)
    if skill.is_user_only:
        own.stop(
            "visible",
            "user-only",
            "Its author keeps it from the model (`disable-model-invocation`, or another client's word for it). Pass "
            "`slash_commands=True`, so that the user can start it, or show it with "
            f'`visibility={{"{own.skill}": "always"}}`.',
        )
    elif load > DEFAULT_LOADED_TOKENS:
        own.stop(
            "loaded",
            "max_loaded_tokens",
            f"A load takes {load:,} tokens, and {DEFAULT_LOADED_TOKENS:,} are allowed. Move material into references/, "
            "or raise `max_loaded_tokens`.",
        )
    elif skill.entry in local.discovery.catalog.with_paths:
        own.message = (
            "An agent with default settings lists it once a tool call of the thread has touched a file that its "
            f"`paths` match: {as_text(skill.frontmatter['paths'])}. From then on it can be loaded."
        )
    elif own.request is not None and not own.request["suggested"]:
        _explain_silence(own, own.request)
    return own


def _explain_unusable(own: Explanation, local: LocalCatalog) -> None:
    """Say why nothing of a name can be used: its file, one that discovery passes over, a source, or nothing has it."""
    wanted = name_key(own.skill)
    blamed = sorted(own.problems, key=lambda noted: noted["severity"] != "error")
    if not blamed:
        unseen = [item.problem for item in perform(find_passed_over(local))]
        blamed = [noted for noted in unseen if wanted in map(name_key, noted["path"].split("/")[-2:])]
        blamed += [noted for noted in local.source_problems if noted["severity"] == "error"]
        own.problems = blamed[:1] or list(local.source_problems)
    if blamed:
        worst = blamed[0]
        own.stop("found", worst["code"], f"{worst['path']}: {worst['message']}")
        return
    closest = closest_names([found.row["name"] for found in local.usable], own.skill)
    hint = f" Did you mean {listed(closest)}?" if closest else ""
    sources = [source.label for source in local.sources]
    looked = f" in {listed(sources)}" if sources else ": no source holds any"
    text = f"No skill is named {quoted(own.skill)}{looked}.{hint} Name its source with --source."
    own.stop("found", "unknown", text)


def _missing_tools(entry: SkillEntry) -> list[str]:
    """Return the tools that a skill names in its frontmatter and that a deep agent does not have."""
    own = entry.skill["metadata"].get(INCLUDE_TOOLS, "").replace(",", " ").split()
    named = map(tool_of_rule, entry.skill["allowed_tools"])
    checks = read_checks(entry.frontmatter.get("checks"), entry.path).items
    checked = [tool for check in checks for tool in check.tools]
    return [
        tool
        for tool in dict.fromkeys([*named, *own, *checked])
        if tool and tool not in AGENT_TOOLS | DEFAULT_ALIASES.keys()
    ]


# Ranking.


def _rank(local: LocalCatalog, skill: Found, request: str) -> RequestReport:
    """Return the place of a skill for a request, who is before it, and by which words."""
    entries = visible(local.discovery.catalog, local.hidden)
    index = find_index(entries)
    ranker, name = Ranker(), skill.row["name"]
    names = perform(ranker.rank(index, request, MAX_RANK)).names
    suggested = perform(ranker.rank(index, request, DEFAULT_SUGGESTIONS)).fitting
    rank = names.index(name) + 1 if name in names else None
    before = names[: rank - 1] if rank is not None else names
    shown = before[:MAX_BEFORE]
    hits = _words(index, request)
    return RequestReport(
        text=request,
        rank=rank,
        of=len(entries),
        suggested=name in suggested,
        words=[word for word, having in hits.items() if name in having],
        before=[Rival(name=rival, words=[w for w, having in hits.items() if rival in having]) for rival in shown],
    )


def _words(index: SearchIndex, request: str) -> dict[str, frozenset[str]]:
    """Return by word of a request the skills that are found by it; words that say nothing are left out."""
    words = list(dict.fromkeys(re.findall(r"\w[\w'-]*", request.lower())))[:MAX_WORDS]
    found = {word: frozenset(index.search(word, len(index))) for word in words}
    # A word that every skill has distinguishes none of them.
    return {word: names for word, names in found.items() if names and (len(names) < len(index) or len(index) == 1)}


def _explain_silence(own: Explanation, asked: RequestReport) -> None:
    """Say why a skill is not suggested for a request."""
    code = "suggestions-silent"
    if asked["rank"] == 1:
        text = "It ranks first, but does not fit this request well enough to be suggested."
    elif asked["rank"] is None and not asked["before"]:
        text = "No skill fits this request well enough to be suggested."
    else:
        code = "not-suggested"
        place = f"It ranks number {asked['rank']}" if asked["rank"] else f"It is not among the first {MAX_RANK}"
        text = f"{place} for this request, and is not suggested."
    fix = " Put the words that users write into its description; without `SkillSuggestions` the list shows it anyway."
    own.stop("suggested", code, text + fix)


def show_explanation(output: Output, own: Explanation) -> None:
    """Show an explanation, one fact a line."""
    verdict = f"{own.stopped}: {own.code}" if own.stopped else "nothing stops it"
    _write(output, f"{prose(own.skill)}: {verdict}")
    _write(output, own.message, 2)
    if own.path:
        _write(output, f"File: {own.path}", 2)
    costs = own.costs
    if costs:
        budget = f"of {costs['max_loaded_tokens']:,} that may be loaded together"
        _write(output, f"Cost: {costs['load']:,} tokens a load, {budget}; {costs['listed']:,} in the list", 2)
    asked = own.request
    if asked:
        place = f"{asked['rank']} of {asked['of']:,}" if asked["rank"] else f"none of the first {MAX_RANK}"
        _write(output, f"Rank: {place}, {'' if asked['suggested'] else 'not '}suggested; {_by(asked['words'])}", 2)
        for number, rival in enumerate(asked["before"], 1):
            _write(output, f"{number}. {rival['name']}: {_by(rival['words'])}", 4)
    if own.missing_tools:
        tools = ", ".join(own.missing_tools)
        _write(output, f"Tools that it names and a deep agent lacks: {tools}. Pass them to the agent.", 2)
    for noted in own.problems:
        if noted["code"] != own.code:
            _write(output, f"{noted['path']}: {noted['code']}: {noted['message']}", 2)


def _by(words: Sequence[str]) -> str:
    return f"by {', '.join(words)}" if words else "by no word of it"


def _write(output: Output, text: str, indent: int = 0) -> None:
    output.entry(f"{' ' * indent}{prose(text)}", indent=indent + 2)


# A log of events, as `SkillUsage(JsonLinesRecorder(...))` writes it.

COUNTED = {
    "skill.loaded": "loads",
    "skill.unloaded": "unloads",
    "skill.missed": "missed",
    "skill.left_out": "left_out",
    "skill.reattached": "put_backs",
}
"""The events that are counted, and what of."""


@dataclass
class EventsRow:
    """A skill in the JSON of `explain --events`."""

    skill: str
    loads: int = 0
    unloads: int = 0
    missed: int = 0
    left_out: int = 0
    put_backs: int = 0
    refused: dict[str, int] = field(default_factory=Counter)
    """Refusals by reason."""

    open_checks: list[str] = field(default_factory=list)
    """Checks that are open in a thread, as far as the log goes."""

    shadow: dict[str, int] = field(default_factory=Counter)
    """With `SkillSuggestions(shadow=True)`: how often the model `loaded` it, in how many of these runs a note would
    have `shown` it, and how often one would have shown it for nothing (`idle`)."""


class EventsReport(TypedDict):
    """The JSON of `explain --events`."""

    events: int
    skipped: int
    """Lines that are no events."""

    skills: list[dict[str, Any]]
    """Each an `EventsRow`."""


def read_events(file: str, name: str | None = None) -> EventsReport:
    """Return what a log says of each skill, or of one; lines that are no events are counted and skipped."""
    rows: dict[str, EventsRow] = {}
    # By skill, each check with its thread.
    open_checks: dict[str, set[tuple[str, str]]] = {}
    events = skipped = 0
    wanted = None if name is None else name_key(name)
    with Path(file).open(encoding="utf-8", errors="replace") as lines:
        for event in _events(lines):
            if event is None:
                skipped += 1
                continue
            events += 1
            skill = event["skill"]
            if skill and (wanted is None or name_key(skill) == wanted):
                _count(rows.setdefault(skill, EventsRow(skill)), event)
                _follow_checks(open_checks.setdefault(skill, set()), event)
    for skill, row in rows.items():
        row.refused = dict(sorted(row.refused.items()))
        row.open_checks = sorted({check for _thread, check in open_checks[skill]})
    return EventsReport(events=events, skipped=skipped, skills=[vars(rows[skill]) for skill in sorted(rows)])


def _events(lines: Iterable[str]) -> Iterator[Mapping[str, Any] | None]:
    for line in lines:
        if not line.strip():
            continue
        try:
            found = json.loads(line) if len(line) <= MAX_LINE else None
        except (ValueError, RecursionError):
            found = None
        is_event = isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("type", "skill"))
        yield found if is_event else None


def _count(row: EventsRow, event: Mapping[str, Any]) -> None:
    kind = event["type"]
    if kind in COUNTED:
        setattr(row, COUNTED[kind], getattr(row, COUNTED[kind]) + 1)
    elif kind == "skill.shadow":
        is_shown, is_loaded = isinstance(event.get("rank"), int), event.get("loaded") is True
        row.shadow["loaded"] += is_loaded
        row.shadow["shown"] += is_loaded and is_shown
        row.shadow["idle"] += is_shown and not is_loaded
    elif kind == "skill.refused":
        row.refused[str(event.get("reason") or "refused")] += 1


def _follow_checks(open_checks: set[tuple[str, str]], event: Mapping[str, Any]) -> None:
    thread = str(event.get("thread_id"))
    if event["type"] == "skill.checked":
        check = (thread, _check_name(event.get("check")))
        if event.get("status") == "open":
            open_checks.add(check)
        else:
            open_checks.discard(check)
    elif event["type"] == "skill.unchecked":
        checks = event.get("checks")
        open_checks.update((thread, _check_name(check)) for check in (checks if isinstance(checks, list) else ()))


def _check_name(check: object) -> str:
    return check if isinstance(check, str) else json.dumps(check, sort_keys=True)


def show_events(output: Output, report: EventsReport) -> None:
    """Show what a log says, a few lines for each skill."""
    for row in report["skills"]:
        numbers = [counted(row["loads"], "load"), f"{row['missed']:,} missed", f"{row['left_out']:,} left out"]
        numbers += [f"{counted(number, 'refusal')} ({reason})" for reason, number in row["refused"].items()]
        _write(output, f"{row['skill']}: {', '.join(numbers)}")
        if row["shadow"]:
            shown, loaded, idle = (row["shadow"][key] for key in ("shown", "loaded", "idle"))
            _write(
                output, f"A note would show it for {shown:,} of {counted(loaded, 'load')}, and {idle:,} times idly", 2
            )
        if row["open_checks"]:
            _write(output, f"Open checks: {', '.join(row['open_checks'])}", 2)
    skipped = f", {counted(report['skipped'], 'line')} skipped that are no events" if report["skipped"] else ""
    output.remark(f"{counted(report['events'], 'event')} of {counted(len(report['skills']), 'skill')}{skipped}.")
