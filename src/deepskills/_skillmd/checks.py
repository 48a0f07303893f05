"""The checks of a skill: how its frontmatter says when the skill's work is done. Pure.

Each item of `checks` names one kind with its value, and may say which tools wait for it (`before`) and what the model
is to read (`say`). An item that is malformed checks nothing and is a problem; the others count.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import clean, one_line
from deepskills._skillmd.tools import DEFAULT_ALIASES, OWN_TOOLS, SCRIPT_TOOL, tool_of_rule
from deepskills._types import SkillProblem


@dataclass(frozen=True)
class CheckKind:
    """A kind of check."""

    shape: str
    """How it is written."""

    passes: str
    """When it passes."""

    asks: str
    """What the model is asked to do."""

    needs: str = ""
    """What it needs beside `SkillChecks`; empty for nothing."""

    @property
    def name(self) -> str:
        """Its key in an item of `checks`."""
        return self.shape.partition(":")[0]


KINDS = (
    CheckKind(
        "called: run_tests",
        "a call of this tool answered without error since the load",
        "Call {value}; it has to answer without an error.",
    ),
    CheckKind(
        "called: execute(pytest *)",
        "the same, with arguments as in `allowed-tools`; a command has to end with exit code 0",
        "Call {value}; it has to end with exit code 0.",
    ),
    CheckKind("file: CHANGELOG.md", "the file was written since the load", "Write the file {value}."),
    CheckKind(
        "script: scripts/verify.py",
        "this script of the skill ended with exit code 0",
        "Run the skill's script {value} with `run_skill_script`; it has to end with exit code 0.",
        "SkillScripts",
    ),
    CheckKind(
        "handler: tests_are_green",
        "a function of the operator's returns `True`",
        "The check {value} has to pass.",
        "SkillChecks(handlers=...)",
    ),
)
"""Every kind: the one table for validation, the reference page, `info`, `doctor` and `show`."""

KIND_NAMES = tuple(dict.fromkeys(kind.name for kind in KINDS))

MAX_CHECKS = 20
"""How many checks of a skill count."""

MAX_CHECK_CHARACTERS = 500
"""How long a check may be, all its texts together."""

_PATTERN_TOOLS = frozenset({"execute", "Bash", SCRIPT_TOOL})
"""The tools whose arguments are judged."""

_CALL = re.compile(r"([^()\s]+)(?:\((.+)\))?")
_TOOL = re.compile(r"[^()\s,]+")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True)
class Check:
    """One check that has a known kind and a usable value."""

    kind: str
    value: str
    before: tuple[str, ...] = ()
    """The tools that are refused until it passes."""

    say: str = ""
    """What its author says to the model; empty for nothing."""

    @property
    def label(self) -> str:
        """The check as its author wrote it."""
        return f"{self.kind}: {self.value}"

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools that it names, as its author wrote them: the one that has to be called, and those that wait."""
        return (*([tool_of_rule(self.value)] if self.kind == "called" else []), *self.before)

    @property
    def shape(self) -> CheckKind:
        """Its row in the table of kinds."""
        rows = [row for row in KINDS if row.name == self.kind]
        return rows[-1 if tool_of_rule(self.value) in _PATTERN_TOOLS else 0]

    def instruction(self, *, names_held: bool = True) -> str:
        """Return what the model is to do for it."""
        tool, _, pattern = self.value.partition("(") if self.kind == "called" else (self.value, "", "")
        value = f"{quoted(tool)} with {quoted(pattern.removesuffix(')'))}" if pattern else quoted(tool)
        held = f" Until then {', '.join(map(quoted, self.before))} is refused." if self.before and names_held else ""
        return (self.say or self.shape.asks.format(value=value)) + held


@dataclass(frozen=True)
class Checks:
    """What the `checks` of a skill say, and what is wrong with them."""

    items: tuple[Check, ...] = ()
    problems: tuple[SkillProblem, ...] = ()


def read_checks(tree: object, path: str) -> Checks:
    """Return the checks in a frontmatter's `checks`, or in what an operator wrote in its place."""
    if tree is None or tree in ("", []):
        return Checks()
    if isinstance(tree, str | Mapping) or not isinstance(tree, Sequence):
        return Checks((), (problem(path, "checks-not-a-list", kind=type(tree).__name__),))
    items: list[Check] = []
    problems: list[SkillProblem] = []
    for number, item in enumerate(tree[:MAX_CHECKS], 1):
        read = _read_check(item)
        if isinstance(read, Check):
            items.append(read)
        else:
            code, values = read
            problems.append(problem(path, code, number=number, **values))
    if len(tree) > MAX_CHECKS:
        problems.append(problem(path, "checks-too-many", limit=MAX_CHECKS))
    circling = [check for check in items if check.before and waits_for_itself(check, items)]
    problems += [problem(path, "check-circle", check=quoted(check.label)) for check in circling]
    return Checks(tuple(replace(check, before=()) if check in circling else check for check in items), tuple(problems))


def shorten_checks(tree: object) -> object:
    """Return `checks` no larger than what is read of them, so that a bloated one does not cost the others."""
    if not isinstance(tree, list):
        return tree
    # One item more than count, and a text that is too long for a check: both are still found to be too much.
    kept = tree[: MAX_CHECKS + 1]
    too_long = "x" * (MAX_CHECK_CHARACTERS + 1)
    return [item if _count_characters(item) <= MAX_CHECK_CHARACTERS else too_long for item in kept]


def _read_check(item: object) -> Check | tuple[str, dict[str, object]]:
    """Return a check, or the code of what is wrong with it and the values of its message."""
    if _count_characters(item) > MAX_CHECK_CHARACTERS:
        return "check-too-long", {"limit": MAX_CHECK_CHARACTERS}
    if not isinstance(item, Mapping) or not all(isinstance(key, str) for key in item):
        return _is_malformed("is not a mapping of a kind and its value")
    kinds = [key for key in item if key in KIND_NAMES]
    unknown = [key for key in item if key not in (*KIND_NAMES, "before", "say")]
    if unknown and not kinds:
        return "check-unknown-kind", {"kind": quoted(unknown[0]), "known": ", ".join(KIND_NAMES)}
    if unknown or len(kinds) != 1:
        return _is_malformed(f"needs one of {', '.join(KIND_NAMES)}, and may have `before` and `say`, nothing else")
    return _read_parts(kinds[0], item[kinds[0]], item.get("before", ()), item.get("say", ""))


def _read_parts(kind: str, value: object, given: object, say: object) -> Check | tuple[str, dict[str, object]]:
    text = value.strip() if isinstance(value, str) else ""
    before = _read_before(given)
    if not text or one_line(text) != text:
        wrong = f"has no text of one line as its `{kind}`"
    elif not isinstance(say, str):
        wrong = "has a `say` that is not a text"
    elif before is None:
        wrong = "has a `before` that is not a name of a tool or a list of such names"
    else:
        wrong = _judge_value(kind, text)
    own = sorted(OWN_TOOLS.intersection(before or ()))
    if own and not wrong:
        return "check-holds-own-tool", {"tool": own[0]}
    return _is_malformed(wrong) if wrong else Check(kind, text, before or (), one_line(clean(str(say))))


def _is_malformed(reason: str) -> tuple[str, dict[str, object]]:
    return "check-malformed", {"reason": reason}


def _judge_value(kind: str, value: str) -> str:
    """Return what is wrong with a value; empty for nothing."""
    if kind == "called":
        call = _CALL.fullmatch(value)
        if call is None:
            return "names no tool as its `called`"
        if call[2] is not None and call[1] not in _PATTERN_TOOLS:
            return f"judges arguments of {quoted(call[1])}; only those of `execute` and `run_skill_script` are judged"
    elif kind in {"file", "script"}:
        parts = value.split("/")
        is_odd = "\\" in value or "\0" in value or ".." in parts or value.startswith("~") or _DRIVE.match(value)
        if is_odd or not parts[-1] or parts[-1] == "." or (kind == "script" and value.startswith("/")):
            return f"has a path as its `{kind}` that leads elsewhere or names no file"
    return ""


def _read_before(given: object) -> tuple[str, ...] | None:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    names = tuple(dict.fromkeys(name.strip() for name in names))
    return names if all(_TOOL.fullmatch(name) for name in names) else None


def _count_characters(item: object) -> int:
    """Return how many characters the texts of an item have; more than is allowed for one nested too deep."""
    waiting, count = [(item, 0)], 0
    while waiting and count <= MAX_CHECK_CHARACTERS:
        value, depth = waiting.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping | list | tuple):
            count += 1 if depth < MAX_DEPTH else MAX_CHECK_CHARACTERS
            parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
            waiting += [(part, depth + 1) for part in parts]
        else:
            count += 1
    return count


MAX_DEPTH = 4
"""How deep an item is looked into."""


def waits_for_itself(check: Check, checks: Sequence[Check]) -> bool:
    """Whether a check could only pass by a call that it refuses itself, directly or through other checks."""
    # From what it needs to the checks that hold it, and so on; each check is looked at once.
    seen: list[Check] = []
    waiting = [check]
    while waiting:
        needed = _find_needed_tools(waiting.pop())
        for other in checks:
            held = {DEFAULT_ALIASES.get(name, name) for name in other.before}
            if not needed or not needed <= held:
                continue
            if other == check:
                return True
            if other not in seen:
                seen.append(other)
                waiting.append(other)
    return False


def _find_needed_tools(check: Check) -> set[str]:
    """Return the tools of which a call is needed for a check to pass: any of them."""
    if check.kind == "called":
        name = tool_of_rule(check.value)
        return {DEFAULT_ALIASES.get(name, name)}
    # A handler's function may look at anything.
    return {"file": {"write_file", "edit_file"}, "script": {SCRIPT_TOOL}}.get(check.kind, set())
