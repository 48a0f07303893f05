"""Decides which skills exist in a run and which the model may see.

Three parties have a say: the author by frontmatter, the operator by a rule, and the extensions. The strictest counts,
except that the operator may overrule an author by `"always"`. A judge that fails hides the skill, because a guard
that crashed has not agreed; but that is not a decision, so nothing is unloaded for it (`VisibleCatalog.unjudged`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp

from deepskills._catalog.catalog import STRICTNESS, Catalog, SkillEntry, Visibility
from deepskills._catalog.discovery import Discovery
from deepskills._io.plan import Attempt, CallFunction, Failed, in_worker
from deepskills._middleware.config import Settings
from deepskills._middleware.extension import overrides
from deepskills._middleware.extension_calls import SkillRun, ask, fail
from deepskills._middleware.run import Run, VisibleCatalog, directory_name, make_unread_entry, name_of
from deepskills._skillmd.names import fold, name_key
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import SkillProblem

MAX_BROKEN_JUDGED = 1_000
"""How many broken files are judged by visibility."""


async def find_view(run: Run, found: Discovery | None = None) -> VisibleCatalog:
    """Return the skills of a run: what discovery found, or else the catalog that is trusted."""
    if run.view is not None and found is None:
        return run.view
    catalog = found.catalog if found is not None else await run.scan.catalog()
    # In a run that has not looked at the sources itself, the problems are those that state remembers.
    looked = found or run.scan.found
    problems = looked.problems if looked is not None else run.thread.problems
    judgements = await _judge(run, catalog, _find_broken(problems, catalog))
    judged, touched = judgements.hidden, run.thread.section("touched")
    unmatched = {
        entry.name: how
        for entry in catalog.with_paths
        if entry.name not in touched and (how := judged.get(entry.name, "on")) in {"on", "name-only"}
    }
    if unmatched:
        judged = {**judged, **dict.fromkeys(unmatched, "user-only")}
    broken = {name: how for name, how in judged.items() if name not in catalog.by_name}
    always = frozenset(name for name, how in judged.items() if how == "always")
    run.view = VisibleCatalog(
        catalog,
        {name: how for name, how in judged.items() if name not in broken and name not in always},
        _find_existing(problems, broken),
        # Where one judge failed and another said "off", the decision stands.
        frozenset(judgements.failed - judgements.decided),
        always,
        broken,
        partial(_shows_absent, run.settings),
        judgements.judges,
        unmatched,
    )
    # Anything worked out before this look rests on an older one.
    vars(run).pop("in_use", None)
    return run.view


async def find_unseen_names(run: Run) -> frozenset[str]:
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
    return not isinstance(rule, Mapping) or _make_lookup(rule)(name) in {"on", "always"}


def _find_broken(problems: Sequence[SkillProblem], catalog: Catalog) -> list[SkillEntry]:
    """Return what is known of skills whose files cannot be used: their directories' names."""
    entries: dict[str, SkillEntry] = {}
    for found in problems:
        if found["severity"] == "error" and (name := directory_name(found)) and name not in catalog.by_name:
            entries.setdefault(name, make_unread_entry(name, found["path"]))
            if len(entries) == MAX_BROKEN_JUDGED:
                break
    return list(entries.values())


def _find_existing(problems: Sequence[SkillProblem], broken: Mapping[str, Visibility]) -> Sequence[SkillProblem]:
    """Return the problems without those of broken files that are off: they do not exist in this run."""
    if "off" not in broken.values():
        return problems
    return [found for found in problems if broken.get(directory_name(found)) != "off"]


async def _judge(run: Run, catalog: Catalog, broken: Sequence[SkillEntry]) -> "_Judgements":
    """Return every skill that is not simply visible, and who hid it.

    Skills whose files are broken go by their directories' names. A failure hides, because it is unknown whether the
    skill may be seen; that is not a reason to unload it for good.
    """
    rule = run.settings.visibility
    rules = run.settings.cache.rules
    # What is fixed is worked out once per catalog, not for every hook of every run.
    hidden: dict[str, Visibility] | None = rules.get(catalog.serial)
    if hidden is None:
        hidden = await in_worker(lambda: apply_fixed_rules(catalog.entries, rule), len(catalog.entries))
        rules.put(catalog.serial, hidden)
    if not broken and not run.settings.has_judges:
        return _Judgements(hidden)
    entries = [*catalog.entries, *broken]
    judged = _Judgements({**hidden, **apply_fixed_rules(broken, rule)})
    judged.decided |= {name for name, how in judged.hidden.items() if how == "off"}
    if rule is not None and not isinstance(rule, Mapping):
        call = rule
        # No limit: `backend_timeout` is about backends, and this calls the function once for every skill.
        reply = await Attempt(CallFunction(lambda: _apply_rule(entries, call, run.runtime), seconds=None))
        if isinstance(reply, Failed):
            found = problem("visibility", "visibility-failed", name="all skills", reason=reply.reason)
            reply = _hide_all(entries), [found]
        given, problems = reply
        judged.add("", given)
        run.problems += problems
    for extension in run.settings.extensions:
        if overrides(extension, "visibility"):
            # "always" is the operator's word to the core. Extensions know only the four visibilities, and may hide such
            # a skill as well.
            view = VisibleCatalog(catalog, {name: how for name, how in judged.hidden.items() if how != "always"})
            judged.add(name_of(extension), await _ask(SkillRun(run, extension, view), entries))
    return judged


class _Judgement(NamedTuple):
    """What one judge says of skills."""

    given: Mapping[str, Visibility]
    failed: AbstractSet[str] = frozenset()
    """Skills that are off only because the judge failed."""


def _hide_all(entries: Sequence[SkillEntry]) -> _Judgement:
    """Return what counts when a judge has failed."""
    names = {entry.name for entry in entries}
    return _Judgement(dict.fromkeys(names, "off"), names)


@dataclass
class _Judgements:
    """What all judges so far say together."""

    hidden: dict[str, Visibility]
    judges: dict[str, str] = field(default_factory=dict)
    """Who hid a skill most strictly."""

    failed: set[str] = field(default_factory=set)
    decided: set[str] = field(default_factory=set)
    """Skills that are off because a judge said so. Only these may be unloaded for good."""

    def add(self, judge: str, said: _Judgement) -> None:
        """Add what a judge says; the operator's function, which has no name, may overrule authors by `"always"`."""
        for name, how in said.given.items():
            if STRICTNESS[how] > STRICTNESS[self.hidden.get(name, "on")]:
                self.hidden[name], self.judges[name] = how, judge
            elif how == "always" and not judge:
                self.hidden[name] = how
            if how == "off" and name not in said.failed:
                self.decided.add(name)
        self.failed |= said.failed


async def _ask(own: SkillRun, entries: Sequence[SkillEntry]) -> _Judgement:
    """Return what an extension says of skills."""
    value = await ask("visibility", own, entries)
    if isinstance(value, Mapping):
        # A mapping with other values must not pass for one that hides nothing.
        if all(isinstance(given, str) and given in STRICTNESS for given in value.values()):
            return _Judgement(value)
        fail(own, "visibility", "it must return a mapping of names to visibilities")
    return _hide_all(entries)


def apply_fixed_rules(entries: Sequence[SkillEntry], rule: object) -> dict[str, Visibility]:
    """Return what frontmatter and a mapping say, for every skill that is not simply visible."""
    hidden: dict[str, Visibility] = {entry.name: "user-only" for entry in entries if entry.is_user_only}
    if not isinstance(rule, Mapping):
        return hidden
    by_rule = _make_lookup(rule)
    for entry in entries:
        how = by_rule(entry.name)
        if how == "always" or STRICTNESS[how] > STRICTNESS[hidden.get(entry.name, "on")]:
            hidden[entry.name] = how
    return hidden


def _make_lookup(rule: Mapping[str, Visibility]) -> Callable[[str], Visibility]:
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
) -> tuple[_Judgement, list[SkillProblem]]:
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
    return _Judgement(hidden, failed), problems
