"""Answers why a skill was not used: how far it came on a thread, through eight stages, and why no further.

Nothing is decided here. Each stage reads what the code that decides has left: the catalog and its problems, visibility,
the list of the section, notes, load records, traces (`traces.py`), tool calls in messages, receipts of checks. What is
known of the thread comes from its state, so that another process gives the same answer; only where that names no
catalog that this process knows are the sources looked at.

A stage that a later one has overtaken does not stop a skill: one that the user started was loaded although the model
cannot see it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from deepskills._catalog.catalog import Catalog, SkillEntry
from deepskills._catalog.lookup import closest_names
from deepskills._io.plan import parent
from deepskills._middleware.request import build_section_input
from deepskills._middleware.run import Run, VisibleCatalog, directory_name, name_of
from deepskills._middleware.state import LEFT_OUT, Trace, apply_update
from deepskills._middleware.traces import MAX_TEXT, PARTIAL, find_calls, find_traces, find_uses, observe_turn
from deepskills._middleware.visibility import apply_fixed_rules, find_view
from deepskills._prompt.section import Section
from deepskills._skillmd.checks import read_checks
from deepskills._skillmd.names import name_key
from deepskills._skillmd.problems import SOURCE_ERRORS, listed, quoted
from deepskills._skillmd.text import counted, one_line
from deepskills._types import SkillProblem

STAGES: Final = ("found", "visible", "listed", "suggested", "loaded", "present", "used", "checked")
"""How far a skill can come, in order."""

ABSENT_SOURCES = ("source-missing", "source-cut", "source-empty")
"""Codes of problems for which a whole source, or a part of it, is not there."""

_STATE_HINT = (
    "This state has no private keys of skills, so nothing is known of what happened on its thread. Pass "
    "`agent.get_state(config).values` of a thread that has run, not what `invoke` returned."
)

_BOILERPLATE = ("license", "licence", "notice", "copying", "changelog", "authors")
"""How files begin that no instructions ask for."""

_TRIGGERS = {
    "model": "by the model",
    "user": "by the user's slash command",
    "pin": "by a pin",
    "system": "by the middleware or an extension",
}


@dataclass(frozen=True)
class SkillStage:
    """One stage of a skill's way into use."""

    passed: bool
    message: str
    code: str | None = None
    """Why it was not passed."""


@dataclass(frozen=True)
class SkillExplanation:
    """How far a skill came on a thread, and why no further."""

    skill: str
    stopped: str | None
    """The first stage that it did not pass; `None` if it passed all."""

    code: str | None
    """The reason, as problems and events have it; `None` if it passed all."""

    message: str
    """What happened there, and what to do."""

    stages: Mapping[str, SkillStage]
    """All eight by name, in order: found, visible, listed, suggested, loaded, present, used, checked."""


def _pass(message: str) -> SkillStage:
    return SkillStage(passed=True, message=message)


def _stop(code: str, message: str) -> SkillStage:
    return SkillStage(passed=False, message=message, code=code)


_NOT_REACHED = SkillStage(passed=False, message="Not reached.")


def _conclude(skill: str, stages: Sequence[SkillStage]) -> SkillExplanation:
    """Return the explanation of a skill: the first stage that it did not pass is the answer."""
    stop = next((place for place, stage in enumerate(stages, 1) if not stage.passed), len(stages))
    by_name = dict(zip(STAGES, [*stages[:stop], *[_NOT_REACHED] * (len(STAGES) - stop)], strict=True))
    for name, stage in by_name.items():
        if not stage.passed:
            return SkillExplanation(skill, name, stage.code, stage.message, by_name)
    return SkillExplanation(skill, None, None, stages[-1].message, by_name)


async def explain_skills(
    run: Run, name: str | None, section: Section | None, *, has_runtime: bool
) -> list[SkillExplanation]:
    """Return for each skill how far it came, or for those of one name."""
    view = await _view_of_thread(run, has_runtime=has_runtime)
    # What the calls of the newest turn did, which no hook may have looked at yet.
    seen = Run(run.settings, apply_update(run.state, observe_turn(run)), run.runtime)
    seen.view = view
    facts = _Facts(seen, section)
    wanted = None if name is None else name_key(name)
    found = [_explain_entry(facts, entry) for entry in view.catalog.entries if wanted in (None, name_key(entry.name))]
    # The one that an agent uses comes first, then the files that it replaces.
    found += [each for each in _explain_missing(facts) if wanted in (None, name_key(each.skill))]
    if not found and name is not None:
        found = [_explain_unknown(facts, name)]
    if facts.has_private:
        return found
    found = found or [_conclude("", [_stop("state-malformed", "No skill was found.")])]
    return [replace(each, message=f"{each.message} {_STATE_HINT}") for each in found]


async def _view_of_thread(run: Run, *, has_runtime: bool) -> VisibleCatalog:
    """Return the skills of the thread and how visible they are, as its latest run saw them."""
    settings, thread = run.settings, run.thread
    if has_runtime or not (settings.varies_by_run or settings.has_judges):
        return await find_view(run)
    # Functions of the runtime cannot be asked for another run, so what they said in it counts.
    catalog = _list_catalog(run) if settings.varies_by_run else await run.scan.catalog()
    kept = {name: hidden["how"] for name, hidden in thread.section("hidden").items()}
    if PARTIAL in kept and not settings.varies_by_run:
        return await find_view(run)
    hidden: dict[str, Any] = {**apply_fixed_rules(catalog.entries, settings.visibility), **kept}
    judged = thread.section("hidden").items()
    run.view = VisibleCatalog(
        catalog,
        {name: how for name, how in hidden.items() if how != "always" and name in catalog.by_name},
        run.thread.problems,
        frozenset(name for name, trace in judged if trace.get("code", "").endswith("-failed")),
        frozenset(name for name, how in hidden.items() if how == "always"),
        judges={name: trace["by"] for name, trace in judged if "by" in trace},
        unmatched={name: "on" for name, trace in judged if trace.get("code") == "paths"},
    )
    return run.view


def _list_catalog(run: Run) -> Catalog:
    """Return the catalog of the thread's latest run: the one that this process made, or else what state says of it."""
    made = run.settings.cache.catalogs.recognize(run.thread.catalog)
    if made is not None:
        return made
    codes = {name: trace.get("code") for name, trace in run.thread.section("hidden").items()}
    given = run.state.get("skills_metadata")
    return Catalog(
        SkillEntry(skill, "", "", {"disable-model-invocation": codes.get(skill["name"]) == "author"}, is_read=False)
        for skill in (given if isinstance(given, list) else ())
    )


class _Facts:
    """What is known of a thread."""

    def __init__(self, run: Run, section: Section | None) -> None:
        self.run = run
        self.thread = run.thread
        self.view = run.known_view
        known = {(found["path"], found["code"]): found for found in (*self.view.problems, *self.thread.problems)}
        self.problems: list[SkillProblem] = list(known.values())
        self._by_path: dict[str, list[SkillProblem]] = {}
        for found in self.problems:
            self._by_path.setdefault(found["path"], []).append(found)
        self.has_private = isinstance(run.state.get("skills_catalog"), Mapping)
        self.has_section = section is not None
        self.is_list_replaced, self.cut = False, frozenset[str]()
        if section is not None:
            loaded = [skill.entry.name for skill in run.loaded if not skill.is_lost and not skill.is_inherited]
            given = build_section_input(run, loaded)
            self.is_list_replaced, self.cut = given.replaced_list is not None, section.cut_names(given)
        self.notes = [_SuggestionNotes(memory, name) for name, memory in _find_rankings(run)]
        self.calls = find_calls(self.thread.given)
        kept = self.thread.section("trail")
        spoken = {name: found for name, found in find_traces(self.calls).items() if found is not None}
        self.traces: dict[str, Trace] = {name_key(name): found for name, found in {**spoken, **kept}.items()}
        self.brought = {text["skill"] for text in self.thread.section("texts").values()}

    def of_file(self, path: str) -> list[SkillProblem]:
        """Return what is wrong with a file, and with those who judge it."""
        places = (path, "extensions", "visibility")
        return [found for place in places for found in self._by_path.get(place, ())]


def _explain_entry(facts: _Facts, entry: SkillEntry) -> SkillExplanation:
    run, thread, name = facts.run, facts.thread, entry.name
    found = _pass(f"Found at {entry.path}.")
    visible = _explain_visibility(facts, entry)
    if visible.passed and not facts.has_private:
        return _conclude(name, [found, visible, _stop("state-malformed", "Nothing is known of what came next.")])
    trace = facts.traces.get(name_key(name))
    stages = [found, visible, _explain_listing(facts, entry), _explain_suggestion(facts, name)]
    if name in thread.loaded.names:
        record = thread.loaded.records[name]
        by = _TRIGGERS.get(record.get("trigger", "model"), "")
        loaded = _pass(f"Loaded {by}, for about {counted(record['tokens'], 'token')}.")
        after = [_explain_presence(facts, name), _explain_use(facts, name), _explain_checks(run, entry)]
        return _conclude(name, [*map(_overtake, stages), loaded, *after])
    if trace is not None and trace["event"] == "answered":
        answered = _pass(f"An extension answered the load in another way: {trace.get('text', 'no text')}")
        after = [_pass("The answer stands in place of the skill's text.")] * 3
        return _conclude(name, [*map(_overtake, stages), answered, *after])
    loaded = _explain_no_load(facts, entry, trace)
    # The model, or the user, knew of what was tried to load: neither the list nor a note was in the way.
    if loaded.code != "not-loaded":
        stages[2:] = map(_overtake, stages[2:])
    elif any(note.shows(name) for note in facts.notes):
        stages[2] = _overtake(stages[2])
    return _conclude(name, [*stages, loaded])


def _overtake(stage: SkillStage) -> SkillStage:
    """Return a stage that a later one has overtaken."""
    return stage if stage.passed else _pass(stage.message)


# Found.


def _explain_missing(facts: _Facts) -> Iterator[SkillExplanation]:
    """Yield the files that no skill could be made of, and those that another skill of their name replaces."""
    by_path = {entry.path: entry.name for entry in facts.view.catalog.entries}
    explained: set[str] = set()
    for found in facts.problems:
        path, code = found["path"], found["code"]
        name = ""
        if code == "skill-duplicate":
            name = next((by_path[part] for part in found["message"].split("`") if part in by_path), "")
        elif found["severity"] == "error" and path not in by_path:
            name = directory_name(found)
        if name and path not in explained:
            explained.add(path)
            yield _conclude(name, [_stop(code, f"{path}: {found['message']}")])
    for path, trace in facts.thread.section("shadowed").items():
        text = (
            f"{path}: another skill named {quoted(trace['name'])} in a later source is used instead: "
            f"{quoted(trace['winner'])}. Rename one if both are wanted."
        )
        if path not in explained:
            yield _conclude(trace["name"], [_stop("skill-shadowed", text)])


def _explain_unknown(facts: _Facts, name: str) -> SkillExplanation:
    """Return why there is no skill of a name."""
    wanted = name_key(name)

    def names_it(found: SkillProblem) -> bool:
        parts = found["path"].split("/")
        return name_key(parts[-1]) == wanted or (len(parts) > 1 and name_key(parts[-2]) == wanted)

    for code in ("skill-file-misnamed", "skill-gone", "skill-not-in-store", "provided-invalid"):
        for found in facts.problems:
            if found["code"] == code and (names_it(found) or quoted(name) in found["message"]):
                return _conclude(name, [_stop(code, f"{found['path']}: {found['message']}")])
    failed = [found for found in facts.problems if found["code"] in SOURCE_ERRORS]
    closest = closest_names([entry.name for entry in facts.view.visible], name)
    absent = [] if closest else [found for code in ABSENT_SOURCES for found in facts.problems if found["code"] == code]
    pins = [found for found in facts.problems if found["code"] == "pin-unknown" and found["path"] == name]
    for found in (*failed, *absent, *pins):
        return _conclude(name, [_stop(found["code"], f"{found['path']}: {found['message']}")])
    hint = f" Did you mean {listed(closest)}?" if closest else ""
    text = (
        f"No source has a skill named {quoted(name)}.{hint} Check the name in its file, that the file is called "
        "SKILL.md, and how deep it lies below its source (`max_depth`)."
    )
    return _conclude(name, [_stop("unknown", text)])


# Visible.


def _explain_visibility(facts: _Facts, entry: SkillEntry) -> SkillStage:
    """Return whether the model may see a skill, and who hides it if not."""
    run, view, problems = facts.run, facts.view, facts.of_file(entry.path)
    name, how = entry.name, view.visibility(entry)
    if how in {"on", "name-only"}:
        return _pass("The model may see it." if how == "on" else "The model may see its name.")
    judge = view.judges.get(name)
    if name in view.unjudged:
        code = "extension-failed" if judge else "visibility-failed"
        known = next((found for found in problems if found["code"] == code), None)
        text = known["message"] if known else f"{judge or 'The visibility function'} failed, so the skill is hidden."
        return _stop(code, text)
    # An extension that reports why it hides a skill says it better than a general word.
    judges = ("extensions", "visibility")
    reported = [found for found in problems if found["severity"] == "error" and found["path"] not in judges]
    if judge and reported:
        return _stop(reported[-1]["code"], reported[-1]["message"])
    if how == "user-only":
        if name in view.unmatched:
            by, fix = "its `paths`, as no tool call has touched a file that they match", "have such a file read"
        elif judge is None and entry.is_user_only:
            by, fix = "its author (`disable-model-invocation`)", f'set `visibility={{"{name}": "always"}}`'
        else:
            by, fix = _name_judge(run, judge), "change that"
        start = (
            "the user can start it with a slash command"
            if run.settings.slash_commands
            else ("no slash command can start it either: set `slash_commands=True`")
        )
        return _stop("user-only", f"Kept from the model by {by}; {start}. To show it to the model, {fix}.")
    return _stop("off", f"Turned off by {_name_judge(run, judge)}: it does not exist in this run. Change that.")


def _name_judge(run: Run, judge: str | None) -> str:
    if judge:
        return f"the extension {judge}"
    rule = run.settings.visibility
    is_function = judge == "" or not (rule is None or isinstance(rule, Mapping))
    return "the function passed as `visibility`" if is_function else "`visibility`"


# Listed and suggested.


def _explain_listing(facts: _Facts, entry: SkillEntry) -> SkillStage:
    name = entry.name
    if not facts.has_section:
        return _pass("There is no section of skills in the prompt (`system_prompt=None`).")
    if facts.is_list_replaced:
        return _pass("An extension shows something in place of the list.")
    if facts.view.visibility(entry) == "name-only":
        by = _name_judge(facts.run, facts.view.judges.get(name))
        return _stop(
            "name-only",
            f"Listed by its name alone, because of {by}: the model cannot tell what it is for. Set it to `on`.",
        )
    if name in facts.cut:
        return _stop(
            "catalog-budget",
            "Its description is cut, because the list is over `catalog_budget`. Raise that, shorten descriptions, or "
            "suggest skills beside each message with `SkillSuggestions`.",
        )
    return _pass("Listed in full.")


class _SuggestionNotes:
    """What an extension that ranks skills has shown beside messages; anything of another shape is skipped."""

    def __init__(self, memory: Mapping[str, Any], extension: str) -> None:
        self.extension = extension
        self.message = memory.get("asked") if isinstance(memory.get("asked"), str) else None
        self.lines = {
            key.removeprefix("note:"): [line[0] for line in value if isinstance(line, list | tuple) and line]
            for key, value in memory.items()
            if key.startswith("note:") and isinstance(value, list)
        }
        ranked = memory.get("ranked")
        names = ranked.get("names") if isinstance(ranked, Mapping) and ranked.get("message") == self.message else None
        self.ranked: list[Any] = names if isinstance(names, list) else []
        self.is_shown = self.message in self.lines

    @property
    def newest(self) -> list[Any]:
        """The skills of the newest note."""
        return self.lines.get(self.message or "", [])

    def shows(self, name: str) -> bool:
        """Whether a note of the thread shows a skill."""
        return any(name in names for names in self.lines.values())


def _find_rankings(run: Run) -> list[tuple[str, Mapping[str, Any]]]:
    # By what it does, not by its class: the seam says which extensions rank.
    ranking = [extension for extension in run.settings.extensions if extension.ranks_skills]
    return [(name_of(extension), run.memory_of(extension)) for extension in ranking]


def _explain_suggestion(facts: _Facts, name: str) -> SkillStage:
    asked = [note for note in facts.notes if note.message is not None]
    if not asked:
        return _pass("No extension suggests skills here." if not facts.notes else "No message was ranked yet.")
    for note in asked:
        if name in note.newest:
            return _pass(f"Suggested as number {note.newest.index(name) + 1} for the newest message.")
        if note.shows(name):
            return _pass("Suggested for an earlier message.")
    note = asked[0]
    if not note.is_shown:
        return _pass(f"{note.extension} shows no notes here.")
    place = note.ranked.index(name) + 1 if name in note.ranked else 0
    rank = f"It ranked number {place} for the newest message" if place else "It was not ranked for the newest message"
    look = f'`deepskills explain {name} --request "..."` shows which words decide.'
    if not note.newest:
        text = f"{rank}, and no skill fitted that well enough, so nothing was suggested. {look}"
        return _stop("suggestions-silent", text)
    return _stop("not-suggested", f"{rank}; suggested were {listed(map(str, note.newest))}. {look}")


# Loaded.

_REFUSALS = {
    "max_loaded_skills": "Raise `max_loaded_skills`, or have skills unloaded that have done their part.",
    "max_loaded_tokens": "Raise `max_loaded_tokens`, move material into references/, or unload other skills.",
    "unreadable": "Check that the file exists and may be read.",
    "user_only": "Only the user may start it.",
    "refused": "Look at the extension, the policy or the human who refused it.",
}

_UNLOADS = {
    "gone": "it was no longer there or no longer allowed for this run",
    "no_room": "the unload that was to make room for it was refused",
    "lost": "its text was lost from the conversation and could not be read again",
}


def _explain_no_load(facts: _Facts, entry: SkillEntry, trace: Trace | None) -> SkillStage:
    name = entry.name
    if trace is not None and trace["event"] == "refused":
        code = trace.get("code", "refused")
        reason = trace.get("text", "").rstrip(".")
        return _stop(code, f"Its load was refused: {reason}. {_REFUSALS.get(code, '')}".rstrip())
    is_lost = name in facts.thread.loaded.lost
    if is_lost or name in facts.brought or (trace is not None and trace["event"] == "unloaded"):
        ended: Mapping[str, Any] = trace or ({"by": "system", "code": "lost"} if is_lost else {})
        by, why = ended.get("by", ""), _UNLOADS.get(ended.get("code", ""), "")
        who = {"model": "by the model", "system": "by the middleware"}.get(by, "by the application")
        reason = f": {why}" if why else ""
        return _stop("unloaded", f"It was loaded and then unloaded {who}{reason}. Load it again where it is needed.")
    return _stop(
        "not-loaded",
        "The model never asked for it. Say in its description when to use it, start it by a pin or a slash command, or "
        "load it for every thread with `Preload`.",
    )


# Present, used, checked.


def _explain_presence(facts: _Facts, name: str) -> SkillStage:
    thread, reported = facts.thread, facts.thread.section("reported").get(name)
    if name in facts.run.in_use.withheld:
        known = [found for found in facts.problems if found["code"] in {"visibility-failed", "extension-failed"}]
        code = known[-1]["code"] if known else "visibility-failed"
        text = "Its text stays out of requests, because it is unknown whether this user may see it."
        return _stop(code, f"{text} {known[-1]['message']}" if known else text)
    if reported == LEFT_OUT:
        return _stop(
            "left-out",
            "Its text was lost from the conversation (summarized, evicted or cleared), and there was no room to put it "
            "back. Unload other skills, raise `max_loaded_tokens`, or use a model with a larger window.",
        )
    record = thread.loaded.records[name]
    if "step" in record:
        return _pass("No request was made since its load; the next one has its text.")
    if reported is not None:
        return _pass("Its text was lost from the conversation and put back into the request.")
    return _pass("Its text was in the latest request.")


def _explain_use(facts: _Facts, name: str) -> SkillStage:
    run, thread = facts.run, facts.thread
    files = [file["path"] for file in thread.resources.get(name, ())]
    record = thread.loaded.records[name]
    carrier = record.get("message", "")
    places = {id(message): place for place, message in enumerate(thread.given)}
    start = next((place for place, message in enumerate(thread.given) if message.id == carrier), -1)
    later = [call for call in facts.calls if places[id(call[1])] > start]
    used = list(dict.fromkeys([*thread.section("uses").get(name, ()), *find_uses(later, name, run)]))
    if used:
        return _pass(f"Used since its load: {listed(used)}.")
    root = f"{parent(record['path']).rstrip('/')}/"
    own = [file.removeprefix(root) for file in files]
    expected = [file for file in own if not file.rpartition("/")[2].lower().startswith(_BOILERPLATE)]
    if not expected:
        return _pass("Its instructions are all there is: no files to read.")
    return _stop(
        "file-unread",
        f"None of its files was read or run: {listed(expected)}. Name them in the instructions, at the step that needs "
        "them, and make sure that the agent has a tool to read them (`extra_tools`).",
    )


def _explain_checks(run: Run, entry: SkillEntry) -> SkillStage:
    kept = [value for extension in run.settings.extensions for value in run.memory_of(extension).values()]
    # By what they say, not by the extension: one of a user's own may keep receipts of checks as well.
    receipts = [value for value in kept if isinstance(value, Mapping) and value.get("skill") == entry.name]
    still_open = [one_line(str(each.get("check")))[:MAX_TEXT] for each in receipts if each.get("status") == "open"]
    if still_open:
        return _stop(
            "unchecked", f"Not proven: {listed(still_open)}. The work may be done, but nothing on the thread shows it."
        )
    if any(each.get("status") == "passed" for each in receipts):
        return _pass("Every check passed.")
    own = [check.label for check in read_checks(entry.frontmatter.get("checks"), entry.path).items]
    if own:
        return _pass(f"Not judged: {listed(own)}. Its turn has not ended, or the agent has no `SkillChecks`.")
    return _pass("There is nothing to check.")
