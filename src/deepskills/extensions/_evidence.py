"""What proves a skill's checks: tool calls, files and functions of the operator's. Nothing here changes state.

When in doubt nothing is proven: the model is asked once more for what it has done, which costs a request, where a proof
that is none would let a turn end as if the skill had been followed.
"""

import copy
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills import SkillEntry, SkillRun, SkillsError
from deepskills._files.paths import path_of_call, script_to_relative
from deepskills._io.backends import is_backend, real_root
from deepskills._io.drivers import adrive, drive
from deepskills._io.plan import CallFunction, FindRoutes, Plan, ReadFiles, unwrap
from deepskills._skillmd.checks import Check
from deepskills._skillmd.names import find_meant_name
from deepskills._skillmd.text import one_line
from deepskills._skillmd.tools import DEFAULT_ALIASES, SCRIPT_TOOL
from deepskills.extensions._shared import as_mapping, call_either
from deepskills.extensions.tool_policy import Rule, parse_rules

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

SHELL = "execute"
WRITING_TOOLS = frozenset({"write_file", "edit_file"})
BY_EXIT_CODE = frozenset({SHELL, SCRIPT_TOOL})
"""Tools whose calls count by their exit code."""


@dataclass(frozen=True)
class Proof:
    """What a check is proven by."""

    evidence: Mapping[str, Any]
    """Ids of a message or a call, and an exit code, as events and receipts have them."""

    message: str = ""
    """The message that made the call: some models number the calls of each message from 0."""

    @property
    def key(self) -> tuple[str, object]:
        """The call in its conversation."""
        return self.message, self.evidence.get("call")

    @classmethod
    def from_receipt(cls, kept: Mapping[str, Any]) -> "Proof | None":
        """Return what a receipt in state says; `None` if the check is open, or the receipt makes no sense."""
        evidence, message = kept.get("evidence"), kept.get("message")
        if kept.get("status") != "passed" or not isinstance(evidence, Mapping):
            return None
        return cls(evidence, str(message or "")) if isinstance(evidence.get("call", ""), str) else None


@dataclass(frozen=True)
class MadeCall:
    """A tool call and its answer."""

    message: str
    """The id of the message that made it."""

    call: Mapping[str, Any]
    answer: ToolMessage

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return str(self.call["name"])

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the tool was called with."""
        return as_mapping(self.call["args"])

    @property
    def key(self) -> tuple[str, object]:
        """The call in its conversation."""
        return self.message, str(self.call["id"])

    @property
    def proof(self) -> Proof | None:
        """What a check that it fits is proven by; `None` if it may have failed."""
        if self.answer.status == "error":
            return None
        evidence: dict[str, Any] = {"call": str(self.call["id"])}
        if self.tool not in BY_EXIT_CODE:
            return Proof(evidence, self.message)
        code = as_mapping(self.answer.artifact).get("exit_code")
        # An unknown exit code proves nothing, and `False == 0`.
        return Proof({**evidence, "exit_code": 0}, self.message) if code == 0 and not isinstance(code, bool) else None

    def fits(self, check: Check, skill: str, root: str | None) -> bool:
        """Whether it is the call that a check of a skill asks for; `root` is where relative paths start on a disk."""
        if self.tool == SCRIPT_TOOL and find_meant_name([skill], str(self.arguments.get("skill_name", ""))) is None:
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


def find_calls(given: Sequence[AnyMessage]) -> list[MadeCall]:
    """Return the calls that messages make and answer."""
    made: list[MadeCall] = []
    asked = AIMessage("")
    for message in given:
        if isinstance(message, AIMessage):
            asked = message
        elif isinstance(message, ToolMessage):
            calls = [call for call in asked.tool_calls if call["id"] == message.tool_call_id]
            made += [MadeCall(asked.id or "", dict(call), message) for call in calls[:1]]
    return made


def calls_after(load: str, start: str, given: Sequence[AnyMessage]) -> list[MadeCall]:
    """Return the calls of messages after a load, for a graph whose tool calls do not pass through our hook.

    What a run was given as input, up to the message `start`, proves nothing: a client may send any messages.
    """
    known = {load.partition("#")[0], start} - {""}
    first = max((place for place, message in enumerate(given, 1) if message.id in known), default=0)
    return find_calls(given[first:])


def find_message_of(call_id: str | None, given: Sequence[AnyMessage]) -> str:
    """Return the id of the newest message that makes a call."""
    asking = (message for message in reversed(given) if isinstance(message, AIMessage))
    return next((one.id or "" for one in asking if any(call["id"] == call_id for call in one.tool_calls)), "")


# What is looked at when it is asked: files in a backend, and functions. Both may hang, raise or lie.


Handler: TypeAlias = Callable[[SkillEntry, dict[str, Any], Any], object]
"""Judges a skill's work by the skill, a copy of the state and the runtime: `True` passes, a text says what to do."""

MAX_SAID_CHARACTERS = 2_000
"""How much of a handler's text the model reads."""

MAX_WRITTEN_BYTES = 1 << 28
"""How large a file may be that is compared with the one at the load."""


class Judge:
    """Judges checks that no tool call alone decides; never raises."""

    def __init__(self, handlers: Mapping[str, Handler], backend: Any, timeout: float) -> None:  # noqa: ANN401 - of any kind
        self._handlers, self._backend, self._timeout = handlers, backend, timeout

    def is_quick(self, check: Check) -> bool:
        """Whether calls alone tell if a check has passed."""
        return check.kind in {"called", "script"} or (check.kind == "file" and self._backend is None)

    def root(self, run: SkillRun) -> str | None:
        """Return the real directory at which relative paths start, where paths are those of a disk."""
        return run.root if self._backend is None else real_root(self._backend)

    async def look_at_file(
        self, check: Check, base: Mapping[str, Any], proof: Proof | None, run: SkillRun
    ) -> Proof | None:
        """Return what proves that a file was written: it is there, and a call wrote it or it is another than before."""
        try:
            now = (await self.digests([check.value], run))[check.value]
        except Exception as error:  # noqa: BLE001 - a backend may raise anything, and then the file is unknown
            logger.warning("The check %r could not look: %s", check.label, one_line(str(error)))
            return None
        # Unknown is not the same as absent: without a look at the load, only a call proves that the file was written.
        if proof is None and check.value in base and base[check.value] != now:
            proof = _proof_of_now(run)
        return proof if now else None

    async def digests(self, paths: Sequence[str], run: SkillRun) -> dict[str, str]:
        """Return the digest of each file in the backend; empty for one that does not exist.

        Raises:
            SkillsError: If one cannot be read, or not in time.
        """
        return await self._perform(_read_digests(paths), run)

    async def ask_handler(self, check: Check, entry: SkillEntry | None, run: SkillRun) -> tuple[Proof | None, str]:
        """Return what proves a check by its function; or `None`, and what the function says."""
        handler = self._handlers.get(check.value)
        if handler is None or entry is None:
            return None, ""
        try:
            runtime = copy.copy(run.runtime)
            runtime.state = _copy_of(run.state)
            reply = await self._perform(unwrap(CallFunction(handler, (entry, runtime.state, runtime))), run)
        except Exception as error:  # noqa: BLE001 - a function of the operator's may raise anything
            reason = f"{type(error).__name__}: {one_line(str(error))}"
            logger.warning("The handler %r of skill %r failed: %s", check.value, entry.name, reason)
            return None, ""
        said = one_line(reply)[:MAX_SAID_CHARACTERS] if isinstance(reply, str) else ""
        return (_proof_of_now(run) if reply is True else None), said

    async def _perform(self, plan: Plan[ResultT], run: SkillRun) -> ResultT:
        """Perform a plan on the backend in which files are looked for; what hangs is abandoned."""

        def get_backend() -> Any:  # noqa: ANN401 - a backend
            return self._backend if is_backend(self._backend) else self._backend(run.runtime)

        return await call_either(run, drive, adrive, plan, get_backend, self._timeout)


async def _read_digests(paths: Sequence[str]) -> dict[str, str]:
    routes = await FindRoutes(("/",))
    root = real_root(routes["/"].backend)
    places = tuple(f"{root}/{path}" if root and path[0] != "/" else path_of_call(path) for path in paths)
    digests = {}
    for path, file in zip(paths, await ReadFiles(places, MAX_WRITTEN_BYTES), strict=True):
        if file.content is None and not file.is_missing:
            raise SkillsError(f"{file.path}: {file.error}")
        digests[path] = "" if file.content is None else hashlib.sha256(file.content).hexdigest()
    return digests


def _proof_of_now(run: SkillRun) -> Proof:
    given = run.state.get("messages") or ()
    newest = next((message.id for message in reversed(given) if message.id), None)
    return Proof({"message": newest} if newest else {})


def _copy_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that a handler may change without changing ours."""
    copied: dict[str, Any] = {}
    for key, value in state.items():
        try:
            copied[key] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - a lock, a connection: nothing that a handler judges by
            copied[key] = copy.copy(value) if isinstance(value, list | dict) else None
    return copied
