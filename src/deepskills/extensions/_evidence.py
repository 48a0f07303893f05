"""What a tool call proves of a skill's checks. Pure: nothing here knows of threads or state.

When in doubt a call proves nothing: the model is asked once more for what it has done, which costs a request, where a
proof that is none would let a turn end as if the skill had been followed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills import SkillsError
from deepskills._files.paths import path_of_call, script_to_relative
from deepskills._skillmd.checks import Check
from deepskills._skillmd.names import meant_name
from deepskills.extensions.tool_policy import DEFAULT_ALIASES, SCRIPT_TOOL, Rule, parse_rules

SHELL = "execute"
WRITING_TOOLS = frozenset({"write_file", "edit_file"})
BY_EXIT_CODE = frozenset({SHELL, SCRIPT_TOOL})
"""Tools whose calls count by their exit code."""


@dataclass(frozen=True)
class MadeCall:
    """A tool call and its answer."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    answer: ToolMessage

    @property
    def evidence(self) -> dict[str, Any] | None:
        """What a check that it fits is proven by; `None` if it may have failed."""
        if self.answer.status == "error":
            return None
        if self.tool not in BY_EXIT_CODE:
            return {"call": self.call_id}
        artifact = self.answer.artifact
        code = artifact.get("exit_code") if isinstance(artifact, Mapping) else None
        # An unknown exit code proves nothing, and `False == 0`.
        return {"call": self.call_id, "exit_code": 0} if code == 0 and not isinstance(code, bool) else None

    def fits(self, check: Check, skill: str, root: str | None) -> bool:
        """Whether it is the call that a check of a skill asks for; `root` is where relative paths start on a disk."""
        if self.tool == SCRIPT_TOOL and meant_name([skill], str(self.arguments.get("skill_name", ""))) is None:
            return False
        if check.kind == "called":
            return any(self._is_covered(rule) for rule in _rules(check))
        if check.kind == "script":
            return self.tool == SCRIPT_TOOL and _is_script(check.value, self.arguments.get("script_name"))
        path = self.arguments.get("file_path")
        if check.kind != "file" or self.tool not in WRITING_TOOLS or not isinstance(path, str):
            return False
        wanted = (
            [check.value] if root is None or check.value.startswith("/") else [check.value, f"{root}/{check.value}"]
        )
        return path_of_call(path) in map(path_of_call, wanted)

    def _is_covered(self, rule: Rule) -> bool:
        if rule.pattern is None or self.tool != SHELL:
            return rule.covers(self.tool, self.arguments)
        parts = commands_in(self.arguments.get("command"))
        return any(rule.covers(SHELL, {**self.arguments, "command": part}) for part in parts)


def _rules(check: Check) -> tuple[Rule, ...]:
    return parse_rules((check.value,), DEFAULT_ALIASES, SHELL)


def can_pass(check: Check) -> bool:
    """Whether some call could fit a `called`."""
    return check.kind != "called" or any(rule.offers(tool) for rule in _rules(check) for tool in rule.tools)


def _is_script(wanted: str, given: object) -> bool:
    try:
        return isinstance(given, str) and script_to_relative(given) == script_to_relative(wanted)
    except SkillsError:
        return False


_SKIPPING = frozenset(
    {
        *("exit", "exec", "return", "break", "continue", "set", "shopt", "trap"),
        *("eval", "source", ".", "alias", "function", "hash", "enable", "command", "builtin", "time"),
    }
)
"""Commands that can make a shell leave out the rest, or run something else, and still end with exit code 0."""

_WORD = re.compile(r"[\w./+:@%,-]+")
_TOKEN = re.compile(
    r"(&&)"
    r"|'[^']*'"
    r'|"(?:[^"\\`$]|\\.|\$(?!\())*"'  # a substitution has quotes of its own
    r"|\\."
    r"|\$(?![\"'({])"  # neither $'...' nor $"..."
    r"|\{\}"
    r"|[^;|&\n\r()`{}#'\"\\$]",
    re.DOTALL,
)


def commands_in(command: object) -> list[str]:
    """Return the parts of a command that `&&` joins; none if not all of them must have run for exit code 0."""
    if not isinstance(command, str):
        return []
    parts, start, position = [], 0, 0
    while position < len(command):
        token = _TOKEN.match(command, position)
        if token is None:
            return []
        if token[1]:
            parts.append(command[start:position])
            start = token.end()
        position = token.end()
    found = [part.strip() for part in (*parts, command[start:])]
    return found if all(map(_must_run, found)) else []


def _must_run(part: str) -> bool:
    # `X=1 exit` ends the shell as well, and `PATH=/x` alone changes what a later part is.
    word = next((word for word in part.split() if "=" not in word), "")
    return bool(_WORD.fullmatch(word)) and word not in _SKIPPING


def answer_to(result: object, call_id: str) -> ToolMessage | None:
    """Return the message in which a tool's result answers its call."""
    if isinstance(result, Command):
        update = result.update if isinstance(result.update, Mapping) else {}
        given = update.get("messages") or ()
        result = next((item for item in given if getattr(item, "tool_call_id", None) == call_id), None)
    return result if isinstance(result, ToolMessage) else None


def calls_after(load: str, start: str, given: Sequence[AnyMessage]) -> Iterator[MadeCall]:
    """Yield the calls of messages after a load, for a graph whose tool calls do not pass through our hook.

    What a run was given as input, up to the message `start`, proves nothing: anybody may send any messages.
    """
    first = 0
    for place, message in enumerate(given):
        if message.id and message.id in (load.partition("#")[0], start):
            first = place + 1
    calls: dict[str, Any] = {}
    for message in given[first:]:
        if isinstance(message, AIMessage):
            calls.update({str(call["id"]): call for call in message.tool_calls})
        elif isinstance(message, ToolMessage) and (call := calls.get(message.tool_call_id)) is not None:
            yield MadeCall(message.tool_call_id, call["name"], call["args"], message)
