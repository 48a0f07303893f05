"""Which skills exist in a run and which the model may see: the strictest of frontmatter, rule and extensions counts."""

import inspect
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from langgraph.errors import GraphBubbleUp

from deepskills._agent.extending import ask, overrides
from deepskills._agent.extension import SkillExtension
from deepskills._agent.extension_run import ExtensionRun
from deepskills._agent.run import Run, Shelf, is_user_only
from deepskills._backend.calls import Consult, Consulted, Failed, Plan
from deepskills._backend.work import apart
from deepskills._catalog.catalog import Catalog
from deepskills._catalog.discovery import Discovery
from deepskills._catalog.entries import STRICTNESS, Visibility
from deepskills._format.problems import problem, quoted
from deepskills._types import SKILL_FILE, SkillProblem


def shelf_of(run: Run, found: Discovery | None = None) -> Plan[Shelf]:
    """Return the skills of a run: what discovery found, or else the catalog that is believed."""
    if run.shelf is not None and found is None:
        return run.shelf
    catalog = found.catalog if found is not None else (yield from run.look.catalog(run.thread.catalog))
    looked = found or run.look.found
    hidden = yield from _hidden(run, catalog)
    rule = run.settings.visibility

    def noted() -> Sequence[SkillProblem]:
        return _existing(looked.problems if looked is not None else run.thread.problems, rule)

    run.shelf = Shelf(catalog, hidden, noted, lambda name: _shows_absent(run, name))
    return run.shelf


def _shows_absent(run: Run, name: str) -> bool:
    """Whether a skill that is gone would be visible; not where a function decides, which judges existing ones only."""
    rule = run.settings.visibility
    if any(overrides(extension, "visibility") for extension in run.settings.extensions):
        return False
    return rule is None or (isinstance(rule, Mapping) and _lookup(rule)(name) == "on")


def _existing(problems: Sequence[SkillProblem], rule: object) -> Sequence[SkillProblem]:
    """Return the problems without those of broken files that a mapping turns off: they do not exist in this run."""
    if not isinstance(rule, Mapping) or "off" not in rule.values():
        return problems
    by_rule = _lookup(rule)
    suffix = f"/{SKILL_FILE}"
    return [
        found
        for found in problems
        if not found["path"].endswith(suffix) or by_rule(found["path"].removesuffix(suffix).rpartition("/")[2]) != "off"
    ]


def _hidden(run: Run, catalog: Catalog) -> Plan[Mapping[str, Visibility]]:
    """Return every skill that is not simply visible."""
    rule = run.settings.visibility
    rules = run.settings.memory.rules
    hidden: Mapping[str, Visibility] | None = rules.get(catalog)
    if hidden is None:
        hidden = yield from apart(lambda: _fixed_rules(catalog, rule), len(catalog.entries))
        rules.put(catalog, dict(hidden))
    if rule is not None and not isinstance(rule, Mapping):
        call = rule
        [reply] = yield (Consult(lambda: _ruled(catalog, call, run.runtime), is_limited=False),)
        ruled, problems = reply.value if isinstance(reply, Consulted) else _all_off(catalog, reply)
        hidden = strictest(hidden, ruled)
        run.problems += problems
    for extension in run.settings.extensions:
        if overrides(extension, "visibility"):
            hidden = strictest(hidden, (yield from _asked(run, extension, Shelf(catalog, hidden))))
    return hidden


def _asked(run: Run, extension: SkillExtension, shelf: Shelf) -> Plan[dict[str, Visibility]]:
    entries = shelf.catalog.entries
    own = ExtensionRun(run, extension, shelf)
    value = yield from ask(extension, "visibility", own, entries)
    if isinstance(value, Mapping) and all(isinstance(given, str) and given in STRICTNESS for given in value.values()):
        return {name: given for name, given in value.items() if given != "on"}
    if not isinstance(value, Failed):
        reason = "it must return a mapping of names to visibilities"
        failed = problem("extensions", "extension-failed", name=own.name, method="visibility", reason=reason)
        run.problems.append(failed)
    return {entry.name: "off" for entry in entries}


def _all_off(catalog: Catalog, reply: object) -> tuple[dict[str, Visibility], list[SkillProblem]]:
    reason = getattr(reply, "reason", "no answer")
    found = problem("visibility", "visibility-failed", name="all skills", reason=reason)
    return {entry.name: "off" for entry in catalog.entries}, [found]


def strictest(first: Mapping[str, Visibility], second: Mapping[str, Visibility]) -> dict[str, Visibility]:
    """Return for each skill the stricter of two visibilities."""
    result = dict(first)
    for name, visibility in second.items():
        if STRICTNESS[visibility] > STRICTNESS[result.get(name, "on")]:
            result[name] = visibility
    return result


def _fixed_rules(catalog: Catalog, rule: object) -> dict[str, Visibility]:
    """Return what frontmatter and a mapping say, for every skill that is not simply visible."""
    hidden: dict[str, Visibility] = {entry.name: "user-only" for entry in catalog.entries if is_user_only(entry)}
    if not isinstance(rule, Mapping):
        return hidden
    by_rule = _lookup(rule)
    return strictest(hidden, {entry.name: by_rule(entry.name) for entry in catalog.entries})


def _lookup(rule: Mapping[str, Visibility]) -> Callable[[str], Visibility]:
    """Return what a mapping says of a name: an exact name comes before a pattern, and the first pattern that fits."""
    names: dict[str, Visibility] = {}
    for name, how in rule.items():
        names.setdefault(_spelling(name), how)
    patterns = [(name, how) for name, how in names.items() if any(mark in name for mark in "*?[")]

    def by_rule(name: str) -> Visibility:
        spelled = _spelling(name)
        given = rule.get(name) or names.get(spelled)
        if given is not None:
            return given
        return next((how for pattern, how in patterns if fnmatchcase(spelled, pattern)), "on")

    return by_rule


def _spelling(name: str) -> str:
    """Return a name or pattern as rules compare it: a rule must not fail to hide because of case or Unicode form."""
    return unicodedata.normalize("NFC", name).casefold()


def _ruled(
    catalog: Catalog,
    rule: Any,  # noqa: ANN401 - a user's function
    runtime: object,
) -> tuple[dict[str, Visibility], list[SkillProblem]]:
    """Ask a user's function about every skill; one that it cannot judge is off."""
    hidden: dict[str, Visibility] = {}
    problems: list[SkillProblem] = []
    for entry in catalog.entries:
        try:
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
            problems.append(problem(entry.path, "visibility-failed", name=quoted(entry.name), reason=reason))
        if given != "on":
            hidden[entry.name] = given
    return hidden, problems
