"""Decides which skills exist in a run and which the model may see.

Three parties have a say: the author by frontmatter, the operator by a rule, and the extensions. The strictest counts,
except that the operator may overrule an author by `"always"`. Whoever fails to answer hides the skill, because a guard
that crashed has not agreed; but that is not a decision, so nothing is unloaded for it (`VisibleCatalog.unjudged`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from langgraph.errors import GraphBubbleUp

from deepskills._catalog.catalog import STRICTNESS, Catalog, SkillEntry, Visibility
from deepskills._catalog.discovery import Discovery
from deepskills._io.plan import Attempt, CallFunction, Failed, in_worker
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import SkillExtension, overrides
from deepskills._middleware.extension_calls import SkillRun, ask
from deepskills._middleware.run import Run, VisibleCatalog, directory_name, name_of, unread_entry
from deepskills._skillmd.names import fold, name_key
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import SkillProblem

MAX_BROKEN_JUDGED = 1_000
"""How many broken files are judged by visibility."""


async def find_view(run: Run, found: Discovery | None = None) -> VisibleCatalog:
    """Return the skills of a run: what discovery found, or else the catalog that is believed."""
    if run.view is not None and found is None:
        return run.view
    catalog = (
        found.catalog
        if found is not None
        else (await run.scan.catalog(run.thread.catalog, run.state.get("skills_metadata")))
    )
    # In a run that has not looked at the sources itself, the problems are those that state remembers.
    looked = found or run.scan.found
    problems = looked.problems if looked is not None else run.thread.problems
    judged, unjudged, judges = await _judge(run, catalog, _broken_skills(problems, catalog))
    touched = run.thread.section("touched")
    unmatched = {
        entry.name: how
        for entry in catalog.with_paths
        if entry.name not in touched and (how := judged.get(entry.name, "on")) in {"on", "name-only"}
    }
    if unmatched:
        judged = {**judged, **dict.fromkeys(unmatched, "user-only")}
    shows_absent = partial(_shows_absent, run.settings)
    # The usual case, on a path that each request takes: everything is visible.
    if not judged:
        run.view = VisibleCatalog(catalog, noted=lambda: problems, shows_absent=shows_absent)
    else:
        broken = {name: how for name, how in judged.items() if name not in catalog.by_name}
        always = frozenset(name for name, how in judged.items() if how == "always")
        hidden = {name: how for name, how in judged.items() if name not in broken and name not in always}
        run.view = VisibleCatalog(
            catalog,
            hidden,
            lambda: _find_existing(problems, broken),
            unjudged,
            always,
            broken,
            shows_absent,
            judges,
            unmatched,
        )
    # Anything worked out before this look rests on an older one.
    vars(run).pop("use", None)
    return run.view


async def unseen_names(run: Run) -> frozenset[str]:
    """Return the skills of a run that the model may neither see nor load."""
    view = await find_view(run)
    judged = {**view.broken_hidden, **view.hidden}
    return frozenset(name for name, how in judged.items() if how not in {"on", "name-only"})


def _shows_absent(settings: Settings, name: str) -> bool:
    """Whether a skill that is gone would be visible; not where a function decides, which judges existing ones only."""
    rule = settings.visibility
    # Where sources are a user's own, what is absent may be another user's.
    if settings.has_judges or settings.varies_by_user:
        return False
    return not isinstance(rule, Mapping) or _lookup(rule)(name) in {"on", "always"}


def _broken_skills(problems: Sequence[SkillProblem], catalog: Catalog) -> list[SkillEntry]:
    """Return what is known of skills whose files cannot be used: their directories' names."""
    entries: dict[str, SkillEntry] = {}
    for found in problems:
        if found["severity"] == "error" and (name := directory_name(found)) and name not in catalog.by_name:
            entries.setdefault(name, unread_entry(name, found["path"]))
            if len(entries) == MAX_BROKEN_JUDGED:
                break
    return list(entries.values())


def _find_existing(problems: Sequence[SkillProblem], broken: Mapping[str, Visibility]) -> Sequence[SkillProblem]:
    """Return the problems without those of broken files that are off: they do not exist in this run."""
    if "off" not in broken.values():
        return problems
    return [found for found in problems if broken.get(directory_name(found)) != "off"]


async def _judge(
    run: Run, catalog: Catalog, broken: Sequence[SkillEntry]
) -> tuple[Mapping[str, Visibility], frozenset[str], Mapping[str, str]]:
    """Return every skill that is not simply visible, those that are off because a judgement failed, and who hid which.

    Skills whose files are broken go by their directories' names. A failure hides, because nobody knows whether the
    skill may be seen; that is not a reason to unload it for good.
    """
    rule = run.settings.visibility
    rules = run.settings.memory.rules
    # What is fixed is worked out once per catalog, not for every hook of every run.
    hidden: Mapping[str, Visibility] | None = rules.get(catalog.serial)
    if hidden is None:
        hidden = await in_worker(lambda: fixed_rules(catalog.entries, rule), len(catalog.entries))
        rules.put(catalog.serial, dict(hidden))
    if not broken and not run.settings.has_judges:
        return hidden, frozenset(), {}
    entries = [*catalog.entries, *broken] if broken else catalog.entries
    if broken:
        hidden = {**hidden, **fixed_rules(broken, rule)}
    # Off because somebody said so. Only such a skill may be unloaded for good.
    decided = {name for name, how in hidden.items() if how == "off"}
    unjudged: set[str] = set()
    judges: dict[str, str] = {}
    if rule is not None and not isinstance(rule, Mapping):
        call = rule
        # No limit: `backend_timeout` is about backends, and this calls the function once for every skill.
        reply = await Attempt(CallFunction(lambda: _apply_rule(entries, call, run.runtime), seconds=None))
        ruled, failed, problems = _all_off(entries, reply.reason) if isinstance(reply, Failed) else reply
        judges |= {name: "" for name, how in ruled.items() if STRICTNESS[how] > STRICTNESS[hidden.get(name, "on")]}
        hidden = _overrule(hidden, ruled)
        unjudged |= failed
        decided |= {name for name, how in ruled.items() if how == "off" and name not in failed}
        run.problems += problems
    for extension in run.settings.extensions:
        if overrides(extension, "visibility"):
            # "always" is the operator's word to the core. Extensions know only the four visibilities, and may hide such
            # a skill as well.
            view = VisibleCatalog(catalog, {name: how for name, how in hidden.items() if how != "always"})
            given, failed = await _ask(run, extension, view, entries)
            # By a judgement that failed only where nobody else hides the skill as strictly.
            own = name_of(extension)
            judges |= {name: own for name, how in given.items() if STRICTNESS[how] > STRICTNESS[hidden.get(name, "on")]}
            hidden = strictest(hidden, given)
            unjudged |= failed
            decided |= {name for name, how in given.items() if how == "off" and name not in failed}
    # Where one judge failed and another said "off", the decision stands.
    return hidden, frozenset(unjudged - decided), judges


async def _ask(
    run: Run, extension: SkillExtension, view: VisibleCatalog, entries: Sequence[SkillEntry]
) -> tuple[dict[str, Visibility], set[str]]:
    own = SkillRun(run, extension, view)
    value = await ask("visibility", own, entries)
    # Checked here as well as in `ask`: a mapping with other values must not pass for one that hides nothing.
    if isinstance(value, Mapping) and all(isinstance(given, str) and given in STRICTNESS for given in value.values()):
        return {name: given for name, given in value.items() if given != "on"}, set()
    if not isinstance(value, Failed):
        reason = "it must return a mapping of names to visibilities"
        failed = problem("extensions", "extension-failed", name=own.name, method="visibility", reason=reason)
        run.problems.append(failed)
    return {entry.name: "off" for entry in entries}, {entry.name for entry in entries}


def _all_off(entries: Sequence[SkillEntry], reason: str) -> tuple[dict[str, Visibility], set[str], list[SkillProblem]]:
    found = problem("visibility", "visibility-failed", name="all skills", reason=reason)
    names = {entry.name for entry in entries}
    return dict.fromkeys(names, "off"), names, [found]


def strictest(first: Mapping[str, Visibility], second: Mapping[str, Visibility]) -> dict[str, Visibility]:
    """Return for each skill the stricter of two visibilities."""
    result = dict(first)
    for name, visibility in second.items():
        if STRICTNESS[visibility] > STRICTNESS[result.get(name, "on")]:
            result[name] = visibility
    return result


def _overrule(author: Mapping[str, Visibility], operator: Mapping[str, Visibility]) -> dict[str, Visibility]:
    """Return what authors and the operator say together: the stricter counts, unless the operator says `"always"`."""
    always: dict[str, Visibility] = {name: how for name, how in operator.items() if how == "always"}
    return {**strictest(author, operator), **always}


def fixed_rules(entries: Sequence[SkillEntry], rule: object) -> dict[str, Visibility]:
    """Return what frontmatter and a mapping say, for every skill that is not simply visible."""
    hidden: dict[str, Visibility] = {entry.name: "user-only" for entry in entries if entry.is_user_only}
    if not isinstance(rule, Mapping):
        return hidden
    by_rule = _lookup(rule)
    return _overrule(hidden, {entry.name: by_rule(entry.name) for entry in entries})


def _lookup(rule: Mapping[str, Visibility]) -> Callable[[str], Visibility]:
    """Return what a mapping says of a name: an exact name comes before a pattern, and the first pattern that fits."""
    # A rule must not fail to hide because of case or Unicode form. A pattern is folded as names are; its marks stay.
    patterns = [(fold(name), how) for name, how in rule.items() if any(mark in name for mark in "*?[")]
    names: dict[str, Visibility] = {}
    for name, how in rule.items():
        if not any(mark in name for mark in "*?["):
            names.setdefault(name_key(name), how)

    def by_rule(name: str) -> Visibility:
        key = name_key(name)
        # The exact spelling first: a rule may name two skills that differ only in case.
        given = rule.get(name) or names.get(key)
        if given is not None:
            return given
        return next((how for pattern, how in patterns if fnmatchcase(key, pattern)), "on")

    return by_rule


def _apply_rule(
    entries: Sequence[SkillEntry],
    rule: Any,  # noqa: ANN401 - a user's function
    runtime: object,
) -> tuple[dict[str, Visibility], set[str], list[SkillProblem]]:
    """Ask a user's function about every skill; one that it cannot judge is off, and named as not judged."""
    hidden: dict[str, Visibility] = {}
    failed: set[str] = set()
    problems: list[SkillProblem] = []
    for entry in entries:
        try:
            # A copy: a function that changes what it is given must not change the catalog.
            given = rule(entry.skill.copy(), runtime)
            is_known = isinstance(given, str) and given in STRICTNESS
            reason = None if is_known else f"it returned {given!r}"
            if inspect.iscoroutine(given):
                given.close()
                reason = "it is async, and must be a plain function"
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything; the skill is hidden
            given, reason = "off", f"{type(error).__name__}: {error}"
        if reason is not None:
            given = "off"
            failed.add(entry.name)
            problems.append(problem(entry.path, "visibility-failed", name=quoted(entry.name), reason=reason))
        if given != "on":
            hidden[entry.name] = given
    return hidden, failed, problems
