"""Checks that a loaded skill was followed: by the tool calls that were made, never by what the model says.

A skill's `checks`, or the operator's in their place, say when its work is done. Every load is watched on its own, by
the id of the message that brought it in. After each tool call, `after_tool` keeps what the call proves, by its id; it
only counts for loads that stood in state before the model made the call, so that nothing in one message proves anything
for another call in it. What is kept is compared with the conversation before it counts: an answer that others turned
into an error proves nothing.

Three moments ask what is open. `before_tool` refuses a held tool. `before_end` sends the model back, at most `retries`
times a turn. `at_end` says, once the turn has really ended, what was not proven. A turn begins with a message of the
user's and is numbered in private state: summaries and human approvals in between do not end it.

Agents that a tool call starts are told in-process what is proven (`_Call`), because `before` is a limit and limits
travel; what they prove for a skill that they inherited comes back the same way.
"""

import asyncio
import copy
import hashlib
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakSet

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills import (
    LoadedSkill,
    OpenCheck,
    Refuse,
    SendBack,
    SkillChecked,
    SkillEntry,
    SkillExtension,
    SkillLoad,
    SkillRun,
    SkillsError,
    SkillsHost,
    SkillUnchecked,
)
from deepskills._files.paths import script_to_relative
from deepskills._io.bridge import awaited
from deepskills._io.drivers import in_thread
from deepskills._prompt import messages
from deepskills._skillmd.checks import KINDS, OWN_TOOLS, Check, CheckKind, Checks, read_checks
from deepskills._skillmd.names import meant_name
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import harmless_body, one_line
from deepskills.extensions._shared import MaybeAwaitable, as_edited
from deepskills.extensions.forks import is_fork, running_fork, runs_forks
from deepskills.extensions.tool_policy import DEFAULT_ALIASES, SCRIPT_TOOL, Rule, parse_rules

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

Handler: TypeAlias = Callable[[SkillEntry, dict[str, Any], Any], object]
"""Judges a skill's work by the skill, a copy of the state and the runtime: `True` passes, a text says what to do."""

CHECK_KINDS: tuple[CheckKind, ...] = KINDS
"""The kinds of checks that there are."""

SHELL = "execute"
WRITING_TOOLS = frozenset({"write_file", "edit_file"})
_EXIT_CODES = frozenset({SHELL, SCRIPT_TOOL})
"""Tools whose calls count by their exit code."""

MAX_SAID_CHARACTERS = 2_000
"""How much of a handler's text the model reads."""

MAX_RECEIPTS = 400
"""How many receipts a thread keeps; the oldest of skills that are no longer loaded go first."""

# What private state keeps, by key.
_TURN, _SENT, _JUDGED, _UNCHECKED, _HOOKED, _START = "turn", "sent", "judged", "unchecked", "hooked", "start"
_LOAD, _BASE, _RECEIPT = "load ", "base ", "receipt "
_ABOVE, _INHERITS, _BROUGHT = "above ", "inherits", "brought "


# What a tool call proves. Pure.


@dataclass(frozen=True)
class _Made:
    """A tool call that was answered without error."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    answer: ToolMessage

    @property
    def evidence(self) -> dict[str, Any] | None:
        """What a check that it proves is proven by; `None` if it may have failed."""
        if self.answer.status == "error":
            return None
        if self.tool not in _EXIT_CODES:
            return {"call": self.call_id}
        artifact = self.answer.artifact
        code = artifact.get("exit_code") if isinstance(artifact, Mapping) else None
        # An unknown exit code proves nothing, and `False == 0`.
        return {"call": self.call_id, "exit_code": 0} if code == 0 and not isinstance(code, bool) else None

    def proves(self, check: Check, skill: str, roots: Sequence[str]) -> bool:
        """Whether it is the call that a check of a skill asks for."""
        if self.tool == SCRIPT_TOOL and meant_name([skill], str(self.arguments.get("skill_name", ""))) is None:
            return False
        if check.kind == "called":
            return any(_covers(rule, self.tool, self.arguments) for rule in _rules(check))
        if check.kind == "script":
            return self.tool == SCRIPT_TOOL and _is_script(check.value, self.arguments.get("script_name"))
        return (
            check.kind == "file"
            and self.tool in WRITING_TOOLS
            and _is_file(check.value, self.arguments.get("file_path"), roots)
        )


def _rules(check: Check) -> tuple[Rule, ...]:
    return parse_rules((check.value,), DEFAULT_ALIASES, SHELL)


def _is_judged(check: Check) -> bool:
    """Whether some call could fit a `called`."""
    return check.kind != "called" or any(rule.offers(tool) for rule in _rules(check) for tool in rule.tools)


def _covers(rule: Rule, tool: str, arguments: Mapping[str, Any]) -> bool:
    if rule.pattern is None or tool != SHELL:
        return rule.covers(tool, arguments)
    return any(rule.covers(tool, {**arguments, "command": part}) for part in commands_in(arguments.get("command")))


_ENDING = frozenset({"exit", "exec", "return", "break", "continue", "eval", "source", ".", "trap", "alias", "function"})
"""Commands after which a shell may leave out the rest and still end with exit code 0."""

_WORD = re.compile(r"[\w./+:=@%,-]+")


def commands_in(command: object) -> list[str]:
    """Return the parts of a command that `&&` joins; none if not all of them must have run for exit code 0."""
    if not isinstance(command, str):
        return []
    parts, start, quote, position = [], 0, "", 0
    while position < len(command):
        character = command[position]
        if quote:
            # A backslash means nothing between single quotes.
            position += character == "\\" and quote == '"'
            quote = "" if character == quote else quote
        elif character == "\\":
            position += 1
        elif character in "'\"":
            quote = character
        elif command.startswith("&&", position):
            parts.append(command[start:position])
            position += 1
            start = position + 1
        elif character in ";|&\n\r()`{}#" or command.startswith("$(", position):
            return []
        position += 1
    found = [part.strip() for part in (*parts, command[start:])]
    first = [(part.split() or [""])[0] for part in found]
    if quote or not all(_WORD.fullmatch(word) and word not in _ENDING for word in first):
        return []
    return found


def _is_script(wanted: str, given: object) -> bool:
    try:
        return isinstance(given, str) and script_to_relative(given) == script_to_relative(wanted)
    except SkillsError:
        return False


def _is_file(wanted: str, given: object, roots: Sequence[str]) -> bool:
    """Whether a tool's path is that of a file; a relative one starts at the root of the workspace."""
    if not isinstance(given, str) or ".." in re.split(r"[/\\]", given):
        return False
    return _tidy(given) in {_tidy(wanted), *(_tidy(f"{root}/{wanted}") for root in roots if wanted[0] != "/")}


def _tidy(path: str) -> str:
    return "/" + "/".join(part for part in path.replace("\\", "/").split("/") if part not in {"", "."})


def _answer_to(result: object, call_id: str) -> ToolMessage | None:
    """Return the message in which a tool's result answers its call."""
    if isinstance(result, Command):
        update = result.update if isinstance(result.update, Mapping) else {}
        given = update.get("messages") or ()
        result = next((item for item in given if getattr(item, "tool_call_id", None) == call_id), None)
    return result if isinstance(result, ToolMessage) else None


# What is watched: the loads of a thread, with their checks and what is proven.


@dataclass(frozen=True)
class _Watch:
    """A load whose checks are watched."""

    name: str
    path: str
    digest: str
    load: str
    """The id of the load; empty for one that is not done yet."""

    checks: tuple[Check, ...]
    entry: SkillEntry | None = None
    source: str | None = None
    trigger: Any = "system"
    is_required: bool = False
    """Whether the turn must not end while a check is open."""

    holds: bool = True
    """Whether its `before` refuses tools."""

    is_listed: bool = True
    """Whether it is one of this agent's own loads."""

    above: str = ""
    """The load in the agent above that this one is inherited from."""

    base: Mapping[str, Any] = field(default_factory=dict)
    """The digests of its files at the load."""

    receipts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is kept of each check, by label."""

    def key(self, check: Check) -> str:
        """Return the key of a receipt."""
        return f"{_RECEIPT}{self.name} {self.digest} {check.label}"

    def proof(self, check: Check, failed: frozenset[str]) -> dict[str, Any] | None:
        """Return what a kept receipt proves a check by, unless the call has turned out to have failed."""
        receipt = self.receipts.get(check.label) or {}
        evidence = receipt.get("evidence")
        if receipt.get("status") != "passed" or not isinstance(evidence, Mapping) or evidence.get("call") in failed:
            return None
        return dict(evidence)


@dataclass(frozen=True)
class _Verdict:
    """Whether a check has passed."""

    watch: _Watch
    check: Check
    evidence: Mapping[str, Any] | None
    said: str = ""
    """What a handler says is open."""

    @property
    def passed(self) -> bool:
        return self.evidence is not None

    @property
    def line(self) -> str:
        """What the model reads of an open one."""
        return self.said or _instruction(self.check, names_held=self.watch.holds)


@dataclass
class _Call:
    """A tool call that runs, as the agents know it that it starts."""

    call_id: str
    tool: str
    loads: dict[str, tuple[str, dict[str, Any]]]
    """By path, the loads in the agent that makes it, with what is proven by label."""

    outer: "_Call | None" = None
    proven: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By load here, what a started agent that inherited it has proven."""

    brought: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path, what a started agent has proven of the skills that it loaded itself."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    """Paths and messages of what a forked skill left open."""

    is_checked: bool = False
    """Whether an agent that it started checks the skill that it runs for."""


_call: ContextVar[_Call | None] = ContextVar("deepskills_checked_call", default=None)


def _instruction(check: Check, *, names_held: bool = True) -> str:
    """Return what the model is to do for a check."""
    tool, _, arguments = check.value.partition("(")
    value = quoted(check.value)
    if check.say:
        text = check.say
    elif check.kind == "called" and arguments:
        text = messages.CHECK_PATTERN.format(tool=quoted(tool), pattern=quoted(arguments.removesuffix(")")))
    elif check.kind == "called" and DEFAULT_ALIASES.get(tool, tool) in _EXIT_CODES:
        text = messages.CHECK_EXECUTED.format(tool=value)
    else:
        text = messages.CHECK_KINDS[check.kind].format(value=value)
    if check.before and names_held:
        text += messages.CHECK_BEFORE.format(tools=", ".join(map(quoted, check.before)))
    return text


class SkillChecks(SkillExtension):
    """Checks that a loaded skill was followed, sends the model back if not, and holds tools until a check has passed.

    Args:
        checks: By skill, what takes the place of the `checks` in its frontmatter; the same shapes.
        handlers: Functions by the name in a check `handler: NAME`: of the skill, a copy of the state and the runtime,
            sync or async. Only `True` passes; a text is what the model reads.
        retries: How often the model is sent back in a turn, for all skills together.
        backend: Where `file:` checks look; by default they go by the calls of `write_file` and `edit_file`.
        timeout: How many seconds a handler, or the backend, may take.

    Raises:
        ValueError: If a check is malformed or too long, names an unknown handler, or holds a tool of the skills' own.
    """

    def __init__(
        self,
        checks: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        handlers: Mapping[str, Handler] | None = None,
        retries: int = 2,
        backend: Any = None,  # noqa: ANN401 - a backend, or a function of the runtime
        timeout: float = 30,
    ) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise ValueError(f"`retries` must be a whole number of at least 0, got {retries!r}.")
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
            raise ValueError(f"`timeout` must be a number of seconds above 0, got {timeout!r}.")
        if not isinstance(handlers or {}, Mapping) or not all(callable(found) for found in (handlers or {}).values()):
            raise ValueError("`handlers` takes functions by name.")
        if not isinstance(checks or {}, Mapping):
            raise ValueError(f"`checks` takes lists of checks by skill, got {checks!r}.")  # noqa: TRY004
        self._handlers = dict(handlers or {})
        self._retries, self._backend, self._timeout = retries, backend, timeout
        self._operators = {name: self._read_operators(name, given) for name, given in (checks or {}).items()}
        self._hosts: WeakSet[SkillsHost] = WeakSet()
        self._read: dict[tuple[str, str], Checks] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillChecks":
        """Return the same object: handlers and backends are shared."""
        return self

    def _read_operators(self, name: str, given: object) -> tuple[Check, ...]:
        read = read_checks(given, str(name))
        wrong = [found["message"] for found in read.problems]
        wrong += [f"No handler is named {check.value!r}." for check in read.items if self._lacks_handler(check)]
        wrong += [f"No call could fit {check.label!r}." for check in read.items if not _is_judged(check)]
        if wrong or not isinstance(given, Sequence):
            raise ValueError(f"The checks of {name!r}: {' '.join(wrong) or 'not a list.'}")
        return read.items

    def _lacks_handler(self, check: Check) -> bool:
        return check.kind == "handler" and check.value not in self._handlers

    def attach(self, host: SkillsHost) -> None:
        """Remember the middleware; a copy of it for a sub-agent is another one."""
        self._hosts.add(host)

    # The loads of a thread.

    def _checks_of(self, entry: SkillEntry, run: SkillRun, *, reports: bool = True) -> tuple[Check, ...]:
        """Return the checks of a skill that can be judged here; what is wrong with the others is reported."""
        operators = self._operators.get(entry.name)
        if operators is None and "checks" not in entry.frontmatter:
            return ()
        read = Checks(operators) if operators is not None else self._own_checks(entry)
        problems = list(read.problems)
        usable = []
        for check in read.items:
            label = quoted(check.label)
            if self._lacks_handler(check):
                problems.append(problem(entry.path, "check-handler-unknown", check=label))
            elif check.kind == "script" and not self._has_scripts():
                problems.append(problem(entry.path, "check-needs-scripts", check=label))
            elif not _is_judged(check):
                problems.append(
                    problem(entry.path, "check-malformed", number=label, reason="has a pattern that nothing fits")
                )
            else:
                usable.append(check)
        if reports:
            for found in problems:
                run.report(found["path"], found["code"], found["message"], found["severity"])
        return tuple(usable)

    def _own_checks(self, entry: SkillEntry) -> Checks:
        key = (entry.path, entry.digest)
        if key not in self._read:
            if len(self._read) >= MAX_RECEIPTS:
                self._read.clear()
            self._read[key] = read_checks(entry.frontmatter.get("checks"), entry.path)
        return self._read[key]

    def _has_scripts(self) -> bool:
        return any(tool.name == SCRIPT_TOOL for host in self._hosts for tool in getattr(host, "tools", ()))

    def _roots(self) -> list[str]:
        """Return the real directories at which relative paths start, where the backend's paths are those of a disk."""
        cwd = getattr(self._backend, "cwd", None)
        return [str(cwd)] if cwd is not None and not getattr(self._backend, "virtual_mode", True) else []

    def _turn(self, run: SkillRun, *, begins: bool = False) -> int:
        """Return the number of the turn; a new one begins with a new message of the user's."""
        kept = _mapping(run.memory.get(_TURN))
        number, user = _number(kept.get("number")), run.user_message
        if user is None:
            return number
        text = hashlib.sha256(repr(user.content).encode(errors="replace")).hexdigest()[:16]
        now = {"message": user.id, "text": text}
        is_other = now["message"] != kept.get("message")
        # A summary may give a message another id, in mid-run; the same words in a new run are a new message.
        is_new = not kept or (is_other and (begins or text != kept.get("text")))
        if begins and kept and not is_new:
            is_new = not _is_answered(run.state.get("messages") or (), user)
        if is_new or is_other:
            run.remember(_TURN, {"number": number + is_new, **now})
        if is_new and kept:
            self._forget(run)
        return number + is_new

    def _forget(self, run: SkillRun) -> None:
        """Forget what ended with the turn: operators' limits of skills that were unloaded in it, and old receipts."""
        loaded = {skill.entry.name for skill in run.loaded if not skill.is_inherited}
        kept = [key for key in run.memory if key.startswith((_LOAD, _BASE)) and key.partition(" ")[2] in loaded]
        ended = [key for key in run.memory if key.startswith((_LOAD, _BASE, _BROUGHT)) and key not in kept]
        receipts = [key for key in run.memory if key.startswith(_RECEIPT)]
        of_loaded = tuple(f"{_RECEIPT}{name} " for name in loaded)
        old = [key for key in receipts if not key.startswith(of_loaded)] if len(receipts) > MAX_RECEIPTS else []
        for key in (*ended, *old):
            run.remember(key, None)

    def _watch(self, run: SkillRun, loaded: Iterable[LoadedSkill] = (), *, begun: int | None = None) -> list[_Watch]:
        """Return what is watched on a thread, and keep what a new load is known by; `begun` is a turn that begins."""
        is_old = begun is not None or _TURN not in run.memory
        turn = self._turn(run) if begun is None else begun
        watches = [self._watch_skill(skill, run, turn, is_old=is_old) for skill in (*run.loaded, *loaded)]
        found = {(watch.path, watch.load): watch for watch in watches if watch is not None}
        names = {watch.name for watch in found.values() if watch.is_listed}
        for key, value in run.memory.items():
            name, kept = key.removeprefix(_LOAD), _mapping(value)
            # Not loaded: a skill that runs in this sub-agent, and what an operator holds after an unload.
            if not key.startswith(_LOAD) or name in names:
                continue
            is_forked = kept.get("fork") is True
            if is_forked and (call := _call.get()) is not None:
                call.is_checked = True
            if is_forked or (name in self._operators and kept.get("operators") is True):
                watch = self._watch_kept(name, kept, run, turn, is_forked=is_forked)
                found[watch.path, watch.load] = watch
        return [replace(watch, receipts=self._receipts(watch, run)) for watch in found.values()]

    def _watch_skill(self, skill: LoadedSkill, run: SkillRun, turn: int, *, is_old: bool) -> _Watch | None:
        entry = skill.entry
        known = _mapping(run.memory.get(f"{_LOAD}{entry.name}"))
        is_known = known.get("path") == entry.path and (known.get("load") == skill.load_id or skill.is_lost)
        is_operators = entry.name in self._operators
        if entry.is_read or is_operators:
            checks = self._checks_of(entry, run)
        else:
            # Its file cannot be read at the moment: what its checks were at the load still holds.
            checks = read_checks(known.get("checks"), entry.path).items if is_known else ()
        if not checks:
            return None
        is_granted = entry.origin is None or "tools" in run.granted(entry)
        watch = _Watch(
            entry.name,
            entry.path,
            entry.digest,
            skill.load_id,
            checks,
            entry,
            entry.source,
            skill.trigger,
            holds=is_operators or ("tools" not in skill.withheld and is_granted),
        )
        if skill.is_inherited:
            return replace(watch, load=skill.load_id or f"{_BROUGHT}{entry.path}", is_listed=False)
        if skill.is_lost:
            return replace(watch, load=str(known.get("load", "")) if is_known else "")
        # Not done yet: an earlier call of the same message loads it.
        if not skill.load_id:
            return watch
        if not is_known:
            # What stood here before anybody looked is of the turn that its record names.
            is_recent = skill.is_recent or not is_old
            known = {
                "load": skill.load_id,
                "path": entry.path,
                "digest": entry.digest,
                "turn": turn if is_recent else 0,
                "checks": [_as_item(check) for check in checks],
                "operators": is_operators,
                "base": dict(_mapping(run.memory.get(f"{_BASE}{entry.name}"))),
            }
            known |= self._inherit(watch, run)
            run.remember(f"{_LOAD}{entry.name}", known)
        return replace(
            watch,
            is_required=_number(known.get("turn")) == turn,
            above=str(known.get("above") or ""),
            base=_mapping(known.get("base")),
        )

    def _inherit(self, watch: _Watch, run: SkillRun) -> dict[str, Any]:
        """Return what is known of a load that the agent above handed over: it is not this agent's to finish."""
        above = _mapping(run.memory.get(_INHERITS)).get(watch.path)
        # What this agent's own model or user loads is its own. In a fork even the load itself is the one above.
        if not above or (watch.trigger != "system" and watch.load != above):
            return {}
        proven = _mapping(run.memory.get(f"{_ABOVE}{above}"))
        for check in watch.checks:
            if check.label in proven:
                self._keep(watch, check, run, _mapping(proven[check.label]), reported="passed")
        return {"turn": 0, "above": above}

    def _watch_kept(self, name: str, kept: Mapping[str, Any], run: SkillRun, turn: int, *, is_forked: bool) -> _Watch:
        """Return what is watched of a skill that is not loaded."""
        entry = next((found for found in (running_fork(), *run.skills) if found and found.name == name), None)
        if name in self._operators:
            checks = self._operators[name]
        elif entry is not None and is_forked and entry.digest == kept.get("digest"):
            checks = self._checks_of(entry, run)
        else:
            checks = read_checks(kept.get("checks"), str(kept.get("path"))).items
        return _Watch(
            name,
            str(kept.get("path")),
            str(kept.get("digest")),
            str(kept.get("load")),
            checks,
            entry,
            entry.source if entry is not None else None,
            "model",
            is_required=is_forked and _number(kept.get("turn")) == turn,
            holds=name in self._operators or entry is None or entry.origin is None,
            base=_mapping(kept.get("base")),
        )

    def _receipts(self, watch: _Watch, run: SkillRun) -> dict[str, Mapping[str, Any]]:
        """Return what is kept of a load's checks; what is proven of another load does not count."""
        proven = _mapping(run.memory.get(f"{_ABOVE}{watch.load}")) if not watch.is_listed else {}
        if watch.load.startswith(_BROUGHT):
            proven = _mapping(run.memory.get(watch.load))
        found: dict[str, Mapping[str, Any]] = {
            label: {"status": "passed", "evidence": evidence} for label, evidence in proven.items()
        }
        for check in watch.checks:
            kept = _mapping(run.memory.get(watch.key(check)))
            if watch.load and kept.get("load") == watch.load:
                found[check.label] = kept
        if _HOOKED not in run.memory and watch.load:
            made = list(_calls_after(watch.load, str(run.memory.get(_START) or ""), run.state.get("messages") or ()))
            for check in watch.checks:
                evidence = next((call.evidence for call in made if self._proves(call, watch, check)), None)
                kept = found.get(check.label) or {}
                if evidence is not None and kept.get("status") != "passed":
                    found[check.label] = {**kept, "status": "passed", "evidence": evidence}
        return found

    def _proves(self, made: _Made, watch: _Watch, check: Check) -> bool:
        return made.evidence is not None and made.proves(check, watch.name, self._roots())

    def _keep(
        self, watch: _Watch, check: Check, run: SkillRun, evidence: Mapping[str, Any] | None, reported: str
    ) -> None:
        """Keep a receipt: what was proven by which call, never any text of it."""
        receipt = {
            "skill": watch.name,
            "digest": watch.digest,
            "load": watch.load,
            "check": check.label,
            "status": "open" if evidence is None else "passed",
            "evidence": dict(evidence or {}),
            "reported": reported,
        }
        if run.memory.get(watch.key(check)) != receipt:
            run.remember(watch.key(check), receipt)

    # Judging.

    def _is_quick(self, check: Check) -> bool:
        """Whether the kept receipts alone tell if a check has passed."""
        return check.kind in {"called", "script"} or (check.kind == "file" and self._backend is None)

    def _judge_quickly(self, watch: _Watch, check: Check, failed: frozenset[str]) -> _Verdict:
        return _Verdict(watch, check, watch.proof(check, failed))

    async def _judge(self, watch: _Watch, run: SkillRun, checks: Iterable[Check]) -> list[_Verdict]:
        """Judge checks of a load, all at the same time; never raises."""
        failed = _fail_calls(run)

        async def judge(check: Check) -> _Verdict:
            if self._is_quick(check):
                return self._judge_quickly(watch, check, failed)
            if check.kind == "file":
                return await self._judge_file(watch, check, run, failed)
            return await self._ask_handler(watch, check, run)

        return list(await asyncio.gather(*map(judge, checks)))

    async def _judge_file(self, watch: _Watch, check: Check, run: SkillRun, failed: frozenset[str]) -> _Verdict:
        try:
            now = (await self._digests([check.value], run))[check.value]
        except Exception as error:  # noqa: BLE001 - a backend may raise anything, and then nobody knows
            logger.warning("A file check of skill %r could not look: %s", watch.name, one_line(str(error)))
            return _Verdict(watch, check, None)
        proof = watch.proof(check, failed)
        # Unknown is not the same as absent: without a look at the load, only a call proves that the file was written.
        is_other = check.value in watch.base and watch.base[check.value] != now
        if now and proof is None and is_other:
            proof = _evidence_of_now(run)
        return _Verdict(watch, check, proof if now else None)

    async def _digests(self, paths: Sequence[str], run: SkillRun) -> dict[str, str]:
        """Return the digest of each file in the backend; empty for one that does not exist."""
        backend = self._backend if hasattr(self._backend, "download_files") else self._backend(run.runtime)
        roots = self._roots()
        places = [f"{roots[0]}/{path}" if roots and path[0] != "/" else _tidy(path) for path in paths]
        work = backend.adownload_files(places) if run.is_async else _in_thread(lambda: backend.download_files(places))
        replies = await self._within_timeout(work)
        if len(replies) != len(paths):
            raise SkillsError("the backend gave another number of files")
        contents = [reply.content if not reply.error else None for reply in replies]
        return {
            path: hashlib.sha256(content).hexdigest() if content is not None else ""
            for path, content in zip(paths, contents, strict=True)
        }

    async def _within_timeout(self, work: Awaitable[ResultT]) -> ResultT:
        """Return what some work gives.

        Raises:
            TimeoutError: If it takes too long. It is not waited for: a thread cannot be stopped, and a coroutine may
                refuse to be.
        """
        task = asyncio.ensure_future(work)
        # Looked at, or Python complains of a late failure that nobody waits for.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise TimeoutError(f"it took longer than {self._timeout} s")
        try:
            return task.result()
        # Its own doing: the run was not cancelled.
        except asyncio.CancelledError as error:
            raise SkillsError("it was cancelled") from error

    async def _ask_handler(self, watch: _Watch, check: Check, run: SkillRun) -> _Verdict:
        handler = self._handlers.get(check.value)
        if handler is None or watch.entry is None:
            return _Verdict(watch, check, None)
        try:
            state = _copy_of(run.state)
            runtime = copy.copy(run.runtime)
            runtime.state = state
            given = (watch.entry, state, runtime)
            is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
            reply = handler(*given) if is_async else await self._within_timeout(_in_thread(lambda: handler(*given)))
            if inspect.isawaitable(reply):
                reply = await self._within_timeout(reply)
        except asyncio.CancelledError:
            raise
        # `SystemExit` of a function of the operator's is one more way to fail.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            logger.warning(
                "The handler %r of skill %r failed: %s: %s",
                check.value,
                watch.name,
                type(error).__name__,
                one_line(str(error)),
            )
            return _Verdict(watch, check, None)
        if reply is True:
            return _Verdict(watch, check, _evidence_of_now(run))
        said = harmless_body(one_line(reply))[:MAX_SAID_CHARACTERS] if isinstance(reply, str) else ""
        return _Verdict(watch, check, None, said)

    def _record(self, verdicts: Iterable[_Verdict], run: SkillRun) -> None:
        """Keep verdicts, and tell of each that changed."""
        for verdict in verdicts:
            watch, check = verdict.watch, verdict.check
            before = str((watch.receipts.get(check.label) or {}).get("reported") or "open")
            status: Any = "passed" if verdict.passed else "open"
            if status != before:
                run.emit(
                    SkillChecked(
                        skill=watch.name,
                        source=watch.source,
                        digest=watch.digest,
                        trigger=watch.trigger,
                        check=check.label,
                        status=status,
                        evidence=dict(verdict.evidence or {}),
                    )
                )
            self._keep(watch, check, run, verdict.evidence, reported=status)

    def _record_quick(self, watches: Iterable[_Watch], run: SkillRun) -> None:
        """Tell of what calls have proven since the last look."""
        failed = _fail_calls(run)
        self._record(
            (
                self._judge_quickly(watch, check, failed)
                for watch in watches
                if watch.is_listed
                for check in watch.checks
                if self._is_quick(check) and check.label in watch.receipts
            ),
            run,
        )

    # The seam.

    def at_start(self, run: SkillRun) -> None:
        """Begin a turn, and report what is wrong with the checks of skills."""
        call, newest = _call.get(), run.state.get("messages") or ()
        if newest and getattr(newest[-1], "id", None):
            run.remember(_START, newest[-1].id)
        for entry in run.skills:
            if "checks" in entry.frontmatter or entry.name in self._operators:
                self._checks_of(entry, run)
        fork = running_fork()
        if call is not None:
            for load, proven in call.loads.values():
                run.remember(f"{_ABOVE}{load}", proven or None)
            run.remember(_INHERITS, {path: load for path, (load, _) in call.loads.items()})
        turn = self._turn(run, begins=True)
        # Only the agent that runs the skill itself, and none that it starts.
        if fork is not None and call is not None and call.tool == "load_skill":
            checks = self._checks_of(fork, run)
            call.is_checked = True
            if checks:
                run.remember(
                    f"{_LOAD}{fork.name}",
                    {
                        "load": f"fork-{uuid4()}",
                        "path": fork.path,
                        "digest": fork.digest,
                        "turn": turn,
                        "checks": [_as_item(check) for check in checks],
                        "operators": fork.name in self._operators,
                        "fork": True,
                        "base": {},
                    },
                )
        self._watch(run, begun=turn)

    def before_load(self, load: SkillLoad, run: SkillRun) -> MaybeAwaitable[None]:
        """Look at the files that are to be written, as they are before the load."""
        if self._backend is None or not load.text:
            return None
        paths = [check.value for check in self._checks_of(load.entry, run, reports=False) if check.kind == "file"]
        return self._look_at_files(load.entry.name, paths, run) if paths else None

    async def _look_at_files(self, name: str, paths: Sequence[str], run: SkillRun) -> None:
        try:
            run.remember(f"{_BASE}{name}", await self._digests(paths, run))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything; then only calls prove a file
            logger.warning("The files that skill %r is to write could not be looked at: %s", name, one_line(str(error)))
            run.remember(f"{_BASE}{name}", None)

    def change_text(self, load: SkillLoad, run: SkillRun) -> str:
        """Tell the model, in a short list, when the skill is done."""
        checks = self._checks_of(load.entry, run, reports=False)
        # A text that is put back has its list; one that is read again for it has not.
        if not checks or (load.tokens and messages.CHECKS_LEAD in load.text):
            return load.text
        # What a stranger's skill holds is only known once somebody has approved it.
        holds = load.entry.origin is None or load.entry.name in self._operators
        lines = [_instruction(check, names_held=holds) for check in checks]
        return f"{load.text.rstrip()}\n\n{_as_list(messages.CHECKS_LEAD, lines)}\n"

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Tell of what the last calls have proven; the request stays as it is."""
        self._record_quick(self._watch(run), run)
        if _HOOKED not in run.memory:
            run.remember(_HOOKED, True)  # noqa: FBT003 - a flag in state
        return request

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Refuse a tool that waits for a check."""
        # As the turn began, too: an unload beside a held call does not free it.
        before = [skill for host in self._hosts for skill in host.loaded_in(run.state)]
        watches = self._watch(run, before)
        call = as_edited(request).tool_call
        refusal = self._refuse_unknown(call["name"], run)
        if refusal is not None:
            return refusal
        holding = [
            (watch, check)
            for watch in watches
            if watch.holds and call["name"] not in OWN_TOOLS
            for check in watch.checks
            if call["name"] in {DEFAULT_ALIASES.get(name, name) for name in check.before} | set(check.before)
        ]
        failed = _fail_calls(run)
        quick = [self._judge_quickly(watch, check, failed) for watch, check in holding if self._is_quick(check)]
        closed = [verdict for verdict in quick if not verdict.passed]
        if closed:
            return _refuse(call["name"], closed)
        self._hand_over(request, watches, failed, run)
        slow = [(watch, check) for watch, check in holding if not self._is_quick(check)]
        return self._judge_held(call["name"], slow, run) if slow else None

    def _refuse_unknown(self, tool: str, run: SkillRun) -> Refuse | None:
        """Refuse a call while nobody can tell what a skill in use holds."""
        for skill in run.loaded:
            name = skill.entry.name
            is_known = skill.entry.is_read or name in self._operators or f"{_LOAD}{name}" in run.memory
            if not is_known and tool not in run.own_tools and not skill.is_inherited:
                return Refuse(messages.CHECKS_UNREADABLE.format(skill=_quote(name), tool=quoted(tool)))
        return None

    async def _judge_held(self, tool: str, holding: Sequence[tuple[_Watch, Check]], run: SkillRun) -> Refuse | None:
        found = await asyncio.gather(*(self._judge(watch, run, [check]) for watch, check in holding))
        closed = [verdict for verdicts in found for verdict in verdicts if not verdict.passed]
        return _refuse(tool, closed) if closed else None

    def _hand_over(
        self, request: ToolCallRequest, watches: Sequence[_Watch], failed: frozenset[str], run: SkillRun
    ) -> None:
        """Let agents that the call starts know what is proven here."""
        if _HOOKED not in run.memory:
            run.remember(_HOOKED, True)  # noqa: FBT003 - a flag in state
        loads = {
            watch.path: (
                watch.load,
                {check.label: proof for check in watch.checks if (proof := watch.proof(check, failed)) is not None},
            )
            for watch in watches
            if watch.load
        }
        call = request.tool_call
        _call.set(_Call(str(call["id"]), call["name"], loads, _call.get()))

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Keep what a call proves, and what agents that it started have proven."""
        given = as_edited(request).tool_call
        call = _call.get()
        if call is not None and call.call_id == str(given["id"]):
            _call.set(call.outer)
        else:
            call = None
        watches = [watch for watch in self._watch(run) if watch.load]
        answer = _answer_to(result, str(given["id"]))
        if answer is not None:
            made = _Made(str(given["id"]), given["name"], given["args"], answer)
            for watch in watches:
                for check in watch.checks:
                    if self._proves(made, watch, check):
                        self._prove(watch, check, run, made.evidence or {})
        if call is not None:
            self._take_back(call, watches, given, answer, run)
        if given["name"] == "unload_skill" and answer is not None and answer.status != "error":
            return self._tell_unloaded(result, answer, watches, str(given["args"].get("skill_name", "")), run)
        return result

    def _tell_unloaded(
        self,
        result: ToolMessage | Command[Any],
        answer: ToolMessage,
        watches: Sequence[_Watch],
        asked: str,
        run: SkillRun,
    ) -> ToolMessage | Command[Any]:
        """Return the answer to an unload, with the checks that were open."""
        own = [watch for watch in watches if watch.is_listed and watch.load]
        name, failed = meant_name([watch.name for watch in own], asked), _fail_calls(run)
        lines = [
            _instruction(check)
            for watch in own
            if watch.name == name
            for check in watch.checks
            if watch.proof(check, failed) is None
        ]
        if not lines:
            return result
        said = answer.model_copy(update={"content": f"{answer.text}\n{_as_list(messages.CHECKS_UNLOADED, lines)}"})
        if isinstance(result, ToolMessage):
            return said
        update = dict(_mapping(result.update))
        given = [said if item is answer else item for item in update["messages"]]
        return replace(result, update={**update, "messages": given})

    def _prove(self, watch: _Watch, check: Check, run: SkillRun, evidence: Mapping[str, Any]) -> None:
        kept = watch.receipts.get(check.label) or {}
        # The first proof stands, unless its call has turned out to have failed.
        if watch.proof(check, _fail_calls(run)) is None or kept.get("load") != watch.load:
            self._keep(watch, check, run, evidence, reported=str(kept.get("reported") or "open"))

    def _take_back(
        self,
        call: _Call,
        watches: Sequence[_Watch],
        given: Mapping[str, Any],
        answer: ToolMessage | None,
        run: SkillRun,
    ) -> None:
        """Keep what agents that a call started have proven and left open."""
        for watch in watches:
            for check in watch.checks:
                evidence = call.proven.get(watch.load, {}).get(check.label)
                if evidence is not None:
                    self._prove(watch, check, run, evidence)
        for path, proven in call.brought.items():
            run.remember(f"{_BROUGHT}{path}", proven)
        for path, message in call.problems:
            run.report(path, "checks-open", message)
        if given["name"] != "load_skill" or call.is_checked or answer is None or answer.status == "error":
            return
        asked = str(given["args"].get("skill_name", ""))
        forks = {entry.name: entry for entry in run.skills if is_fork(entry)}
        entry = forks.get(meant_name(list(forks), asked) or "")
        if entry is not None and any(runs_forks(host) for host in self._hosts) and self._checks_of(entry, run):
            found = problem(entry.path, "checks-in-fork", name=_quote(entry.name))
            run.report(found["path"], found["code"], found["message"], found["severity"])

    async def _judge_required(self, run: SkillRun, watches: Sequence[_Watch]) -> list[_Verdict]:
        judged = [self._judge(watch, run, watch.checks) for watch in watches if watch.is_required]
        return [verdict for verdicts in await asyncio.gather(*judged) for verdict in verdicts]

    async def before_end(self, run: SkillRun) -> SendBack | None:
        """Send the model back while checks of skills that were loaded in this turn are open."""
        watches = self._watch(run)
        if not any(watch.is_required for watch in watches):
            return None
        verdicts = await self._judge_required(run, watches)
        self._record(verdicts, run)
        missing = [verdict for verdict in verdicts if not verdict.passed]
        turn = self._turn(run)
        sent = _mapping(run.memory.get(_SENT))
        count = _number(sent.get("count")) if sent.get("turn") == turn else 0
        if not missing or count >= self._retries:
            run.remember(_JUDGED, {"answer": _newest_answer(run), "open": _by_load(missing)})
            return None
        run.remember(_SENT, {"turn": turn, "count": count + 1})
        failed = _fail_calls(run)
        earlier = [
            verdict
            for watch in watches
            if watch.is_listed and not watch.is_required and not watch.above
            for check in watch.checks
            if self._is_quick(check) and not (verdict := self._judge_quickly(watch, check, failed)).passed
        ]
        text = "\n\n".join(_missing_by_skill(messages.CHECKS_MISSING, missing))
        if earlier:
            text += "\n\n" + "\n\n".join(_missing_by_skill(messages.CHECKS_EARLIER, earlier))
        return SendBack(harmless_body(f"{text}\n\n{messages.CHECKS_HOW}"))

    async def open_checks(self, run: SkillRun) -> list[OpenCheck]:
        """Return the open checks of skills that were loaded in this turn."""
        verdicts = await self._judge_required(run, self._watch(run))
        return [
            OpenCheck(verdict.watch.name, verdict.check.label, verdict.line)
            for verdict in verdicts
            if not verdict.passed
        ]

    async def at_end(self, run: SkillRun) -> None:
        """Say what was not proven, once a skill and turn, whoever ended it."""
        watches = self._watch(run)
        self._record_quick([watch for watch in watches if not watch.is_required], run)
        self._report_up(watches, run)
        required = [watch for watch in watches if watch.is_required]
        if not required:
            return
        judged = _mapping(run.memory.get(_JUDGED))
        if judged.get("answer") and judged.get("answer") == _newest_answer(run):
            missing = {load: list(labels) for load, labels in _mapping(judged.get("open")).items()}
        else:
            verdicts = await self._judge_required(run, required)
            self._record(verdicts, run)
            missing = _by_load([verdict for verdict in verdicts if not verdict.passed])
        if _JUDGED in run.memory:
            run.remember(_JUDGED, None)
        turn = self._turn(run)
        known = _mapping(run.memory.get(_UNCHECKED))
        said = list(known.get("loads") or ()) if known.get("turn") == turn else []
        call = _call.get()
        for watch in required:
            labels = missing.get(watch.load)
            if not labels or watch.load in said:
                continue
            said.append(watch.load)
            run.emit(
                SkillUnchecked(
                    skill=watch.name,
                    source=watch.source,
                    digest=watch.digest,
                    trigger=watch.trigger,
                    checks=tuple(labels),
                )
            )
            shown = ", ".join(map(quoted, labels))
            found = problem(watch.path, "checks-open", name=_quote(watch.name), checks=shown)
            run.report(found["path"], found["code"], found["message"], found["severity"])
            if call is not None and watch.load.startswith("fork-"):
                call.problems.append((found["path"], found["message"]))
        if said and said != known.get("loads"):
            run.remember(_UNCHECKED, {"turn": turn, "loads": said})

    def _report_up(self, watches: Sequence[_Watch], run: SkillRun) -> None:
        """Let the agent whose call started this one know what is proven here."""
        call = _call.get()
        if call is None:
            return
        failed = _fail_calls(run)
        for watch in watches:
            if watch.is_listed and watch.load:
                proofs = {check.label: watch.proof(check, failed) for check in watch.checks}
                proven = {label: proof for label, proof in proofs.items() if proof is not None}
                target = (
                    call.proven.setdefault(watch.above, {}) if watch.above else call.brought.setdefault(watch.path, {})
                )
                target.update(proven)


def _in_thread(work: Callable[[], ResultT]) -> "asyncio.Future[ResultT]":
    """Do work in a thread of its own, which may hang."""
    with awaited():
        return asyncio.wrap_future(in_thread(work))


def _refuse(tool: str, closed: Sequence[_Verdict]) -> Refuse:
    by_skill: dict[str, list[str]] = {}
    for verdict in closed:
        by_skill.setdefault(verdict.watch.name, []).append(
            verdict.said or _instruction(verdict.check, names_held=False)
        )
    asked = [
        messages.CHECKS_HELD_BY.format(skill=_quote(name), steps=" ".join(dict.fromkeys(steps)))
        for name, steps in by_skill.items()
    ]
    return Refuse(harmless_body(messages.CHECKS_HELD.format(tool=quoted(tool), asked=" ".join(asked))))


def _missing_by_skill(lead: str, verdicts: Sequence[_Verdict]) -> list[str]:
    by_skill: dict[str, list[str]] = {}
    for verdict in verdicts:
        by_skill.setdefault(verdict.watch.name, []).append(verdict.line)
    return [_as_list(lead.replace("{skill}", _quote(name)), lines) for name, lines in by_skill.items()]


def _as_list(lead: str, lines: Iterable[str]) -> str:
    # Escaped here already: what is put back later is compared with what came in.
    return harmless_body("\n".join([lead, *(f"- {line}" for line in dict.fromkeys(lines))]))


def _by_load(verdicts: Iterable[_Verdict]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.watch.load, []).append(verdict.check.label)
    return found


def _as_item(check: Check) -> dict[str, Any]:
    """Return a check as state keeps it: without what its author says."""
    return {check.kind: check.value, **({"before": list(check.before)} if check.before else {})}


def _fail_calls(run: SkillRun) -> frozenset[str]:
    """Return the ids of the calls whose answers, as the conversation has them, are errors."""
    given = run.state.get("messages") or ()
    return frozenset(item.tool_call_id for item in given if isinstance(item, ToolMessage) and item.status == "error")


def _calls_after(load: str, start: str, given: Sequence[AnyMessage]) -> Iterable[_Made]:
    """Yield the calls of messages after a load, for a graph whose tool calls do not pass through our hook.

    What a run was given as input proves nothing: whoever sends messages may send any.
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
            yield _Made(message.tool_call_id, call["name"], call["args"], message)


def _is_answered(given: Sequence[AnyMessage], user: AnyMessage) -> bool:
    """Whether the model has spoken after a message."""
    places = [place for place, message in enumerate(given) if message.id == user.id]
    return any(isinstance(message, AIMessage) for message in given[places[-1] :]) if places else False


def _newest_answer(run: SkillRun) -> str | None:
    given = run.state.get("messages") or ()
    return next((message.id for message in reversed(given) if isinstance(message, AIMessage)), None)


def _evidence_of_now(run: SkillRun) -> dict[str, Any]:
    given = run.state.get("messages") or ()
    newest = next((message.id for message in reversed(given) if message.id), None)
    return {"message": newest} if newest else {}


def _copy_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that a handler may change without changing ours."""
    copied: dict[str, Any] = {}
    for key, value in state.items():
        try:
            copied[key] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - a lock, a connection: nothing that a handler judges by
            copied[key] = copy.copy(value) if isinstance(value, list | dict) else None
    return copied


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _quote(name: str) -> str:
    return f'"{one_line(name)}"'
