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
travel; what they prove for a skill that they inherited comes back the same way. Private state has, by key:

- `turn`: its number, how often the model was sent back in it, and what was said of it;
- `load NAME`: a load that is watched, and `base NAME` what its files were before it;
- `receipt NAME DIGEST CHECK`: whether a check has passed, and by which call; each has a key of its own, because calls
  of one message are recorded side by side;
- `above PATH`: what another agent has proven of a skill whose limits hold here;
- `start` and `hooked`: the last message of a run's input, and whether tool calls pass through our hooks.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
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
    SkillsMiddleware,
    SkillUnchecked,
)
from deepskills._prompt import messages
from deepskills._prompt.messages import as_list, with_checks
from deepskills._skillmd.checks import KINDS, OWN_TOOLS, Check, CheckKind, Checks, read_checks
from deepskills._skillmd.names import meant_name
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import harmless_body, one_line
from deepskills._types import SkillProblem
from deepskills.extensions._evidence import Handler, Judge, MadeCall, answer_to, calls_after, can_pass
from deepskills.extensions._shared import MaybeAwaitable, as_edited
from deepskills.extensions.forks import is_fork, running_fork, runs_forks
from deepskills.extensions.tool_policy import DEFAULT_ALIASES, SCRIPT_TOOL

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

CHECK_KINDS: tuple[CheckKind, ...] = KINDS
"""The kinds of checks that there are."""

MAX_RECEIPTS = 400
"""How many receipts a thread keeps; the oldest of skills that are no longer loaded go first."""

_TURN, _HOOKED, _START = "turn", "hooked", "start"
_LOAD, _BASE, _RECEIPT, _ABOVE = "load ", "base ", "receipt ", "above "

_NO_TURN = -1
"""The turn of a load that is of no turn of this agent's."""


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

    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By label, what a check is proven by."""

    @property
    def is_provable(self) -> bool:
        """Whether calls of this agent count: not for what the agent above has loaded and this one did not inherit."""
        return self.is_listed or self.load.startswith(_ABOVE)

    @property
    def origin(self) -> dict[str, Any]:
        """What every event says of it."""
        source = self.entry.source if self.entry is not None else None
        return {"skill": self.name, "source": source, "digest": self.digest, "trigger": self.trigger}

    def key(self, check: Check) -> str:
        """Return the key of a receipt."""
        return f"{_RECEIPT}{self.name} {self.digest} {check.label}"

    @property
    def missing(self) -> list[Check]:
        """The checks that are not proven."""
        return [check for check in self.checks if check.label not in self.proofs]


@dataclass(frozen=True)
class _Verdict:
    """Whether a check has passed."""

    watch: _Watch
    check: Check
    evidence: Mapping[str, Any] | None
    """What it is proven by; `None` for one that is open."""

    said: str = ""
    """What a handler says is open."""

    @property
    def line(self) -> str:
        """What the model reads of an open one."""
        return harmless_body(self.said or self.check.instruction(names_held=self.watch.holds))


@dataclass
class _Call:
    """A tool call that runs, as the agents know it that it starts."""

    call_id: str
    tool: str
    watches: Sequence[_Watch]
    """What is watched in the agent that makes it."""

    outer: "_Call | None" = None
    proven: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """What a started agent has proven, by path and by the load here that it inherited, if it did."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    """Paths and messages of what a forked skill left open."""

    is_checked: bool = False
    """Whether an agent that it started checks the skill that it runs for."""


_call: ContextVar[_Call | None] = ContextVar("deepskills_checked_call", default=None)


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
        self._retries, self._backend = retries, backend
        self._judge = Judge(self._handlers, backend, timeout)
        self._hosts: WeakSet[SkillsMiddleware[Any, Any]] = WeakSet()
        self._read: dict[tuple[str, str], Checks] = {}
        self._operators = {name: self._read_operators(name, given) for name, given in (checks or {}).items()}

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillChecks":
        """Return the same object: handlers and backends are shared."""
        return self

    def attach(self, host: SkillsMiddleware[Any, Any]) -> None:
        """Remember the middleware; a copy of it for a sub-agent is another one."""
        self._hosts.add(host)

    # The checks of a skill.

    def _read_operators(self, name: str, given: object) -> tuple[Check, ...]:
        read = read_checks(given, str(name))
        wrong = [*read.problems, *filter(None, (self._judge_usable(check, str(name)) for check in read.items))]
        # Scripts are run by an extension that may come later in the list.
        texts = [found["message"] for found in wrong if found["code"] != "check-needs-scripts"]
        if texts or not isinstance(given, Sequence):
            raise ValueError(f"The checks of {name!r}: {' '.join(texts) or 'not a list.'}")
        return read.items

    def _judge_usable(self, check: Check, path: str) -> SkillProblem | None:
        """Return why a check cannot be judged here; `None` if it can."""
        label = quoted(check.label)
        if check.kind == "handler" and check.value not in self._handlers:
            return problem(path, "check-handler-unknown", check=label)
        tools = {tool.name for host in self._hosts for tool in getattr(host, "tools", ())}
        if check.kind == "script" and SCRIPT_TOOL not in tools:
            return problem(path, "check-needs-scripts", check=label)
        if not can_pass(check):
            return problem(path, "check-malformed", number=label, reason="has a pattern that nothing fits")
        return None

    def _checks_of(self, entry: SkillEntry, run: SkillRun, *, reports: bool = True) -> tuple[Check, ...]:
        """Return the checks of a skill that can be judged here; what is wrong with the others is reported."""
        operators = self._operators.get(entry.name)
        if operators is None and "checks" not in entry.frontmatter:
            return ()
        read = Checks(operators) if operators is not None else self._own_checks(entry)
        unusable = {check: self._judge_usable(check, entry.path) for check in read.items}
        for found in (*read.problems, *filter(None, unusable.values())) if reports else ():
            run.report(found["path"], found["code"], found["message"], found["severity"])
        return tuple(check for check, found in unusable.items() if found is None)

    def _own_checks(self, entry: SkillEntry) -> Checks:
        key = (entry.path, entry.digest)
        if key not in self._read:
            if len(self._read) >= MAX_RECEIPTS:
                self._read.clear()
            self._read[key] = read_checks(entry.frontmatter.get("checks"), entry.path)
        return self._read[key]

    def _holds(self, entry: SkillEntry, run: SkillRun) -> bool:
        """Whether the `before` of a skill refuses tools: a stranger's, or one that is approved, needs that approval."""
        is_granted = entry.origin is None or "tools" in run.granted(entry)
        return entry.name in self._operators or (is_granted and "tools" not in run.withheld(entry))

    # The turn, and the loads of a thread.

    def _turn(self, run: SkillRun, *, begins: bool = False) -> int:
        """Return the number of the turn; a new one begins with a new message of the user's."""
        kept = _mapping(run.memory.get(_TURN))
        number, user = _number(kept.get("number")), run.user_message
        if user is None:
            return number
        text = hashlib.sha256(repr(user.content).encode(errors="replace")).hexdigest()[:16]
        # A summary may give a message another id, in mid-run; the same words in a new run are a new message.
        is_other = user.id != kept.get("message")
        is_unanswered = begins and not _is_answered(run.state.get("messages") or (), user)
        is_new = not kept or is_unanswered or (is_other and text != kept.get("text"))
        if is_new or is_other:
            own = {"number": number + 1} if is_new else kept
            run.remember(_TURN, {**own, "message": user.id, "text": text})
        if is_new and kept:
            self._forget(run)
        return number + is_new

    def _forget(self, run: SkillRun) -> None:
        """Forget what ended with the turn: operators' limits of skills that were unloaded in it, and old receipts."""
        loaded = {skill.entry.name for skill in run.loaded if not skill.is_inherited}
        of_loaded = tuple(f"{_RECEIPT}{name} " for name in loaded)
        ended = [key for key in run.memory if key.startswith((_LOAD, _BASE)) and key.partition(" ")[2] not in loaded]
        receipts = [key for key in run.memory if key.startswith(_RECEIPT)]
        old = [key for key in receipts if not key.startswith(of_loaded)] if len(receipts) > MAX_RECEIPTS else []
        for key in (*ended, *old, *(key for key in run.memory if key.startswith(_ABOVE))):
            run.remember(key, None)

    def _watch(self, run: SkillRun, also: Iterable[LoadedSkill] = (), *, begun: int | None = None) -> list[_Watch]:
        """Return what is watched on a thread, and keep what a new load is known by; `begun` is a turn that begins."""
        # What stood here before anybody looked is of the turn that its record names.
        is_old = begun is not None or _TURN not in run.memory
        turn = self._turn(run) if begun is None else begun
        # Those of this run last: they count where both are of the same load.
        watches = [self._watch_skill(skill, run, turn, is_old=is_old) for skill in (*also, *run.loaded)]
        found = {(watch.path, watch.load): watch for watch in watches if watch is not None}
        own = {watch.name for watch in found.values() if watch.is_listed}
        for key, value in run.memory.items():
            name, known = key.removeprefix(_LOAD), _mapping(value)
            # Not loaded: a skill that runs in this sub-agent, and what an operator holds after an unload.
            is_kept = known.get("fork") is True or (name in self._operators and known.get("operators") is True)
            if key.startswith(_LOAD) and name not in own and is_kept:
                watch = self._watch_kept(name, known, run, turn)
                found[watch.path, watch.load] = watch
        failed = _fail_calls(run)
        return [self._with_receipts(watch, run, failed) for watch in found.values()]

    def _watch_skill(self, skill: LoadedSkill, run: SkillRun, turn: int, *, is_old: bool) -> _Watch | None:
        entry = skill.entry
        known = _mapping(run.memory.get(f"{_LOAD}{entry.name}"))
        is_known = known.get("path") == entry.path and (known.get("load") == skill.load_id or skill.is_lost)
        if entry.is_read or entry.name in self._operators:
            checks = self._checks_of(entry, run)
        else:
            # Its file cannot be read at the moment: what its checks were at the load still holds.
            checks = read_checks(known.get("checks"), entry.path).items if is_known else ()
        if not checks:
            return None
        holds = self._holds(entry, run)
        load = skill.load_id or (str(known.get("load", "")) if is_known else "")
        watch = _Watch(entry.name, entry.path, entry.digest, load, checks, entry, skill.trigger, holds=holds)
        if skill.is_inherited:
            return replace(watch, load=skill.load_id or f"{_ABOVE}{entry.path}", is_listed=False)
        # Lost, or not done yet: an earlier call of the same message loads it.
        if not skill.load_id:
            return watch
        if not is_known:
            known = self._record_load(watch, run, turn if skill.is_recent or not is_old else _NO_TURN, skill)
        return replace(
            watch,
            is_required=known.get("turn") == turn,
            above=str(known.get("above") or ""),
            base=_mapping(known.get("base")),
        )

    def _record_load(self, watch: _Watch, run: SkillRun, turn: int, skill: LoadedSkill) -> dict[str, Any]:
        above = _mapping(run.memory.get(f"{_ABOVE}{watch.path}"))
        # What the agent above handed over is not this agent's to finish. What this one loads itself is its own.
        is_handed = skill.load_id == above.get("load") or (skill.trigger == "system" and not skill.is_recent)
        known = {**self._describe(watch, turn), "base": dict(_mapping(run.memory.get(f"{_BASE}{watch.name}")))}
        if above and is_handed:
            known |= {"turn": _NO_TURN, "above": above.get("load")}
            proven = _mapping(above.get("proven"))
            for check in watch.checks:
                if check.label in proven:
                    self._keep(watch, check, run, _mapping(proven[check.label]), reported="passed")
        run.remember(f"{_LOAD}{watch.name}", known)
        return known

    def _describe(self, watch: _Watch, turn: int) -> dict[str, Any]:
        return {
            "load": watch.load,
            "path": watch.path,
            "digest": watch.digest,
            "turn": turn,
            "checks": [_as_item(check) for check in watch.checks],
            "operators": watch.name in self._operators,
        }

    def _watch_kept(self, name: str, known: Mapping[str, Any], run: SkillRun, turn: int) -> _Watch:
        """Return what is watched of a skill that is not loaded."""
        is_fork, call = known.get("fork") is True, _call.get()
        if is_fork and call is not None:
            call.is_checked = True
        digest = str(known.get("digest"))
        entry = next((found for found in (running_fork(), *run.skills) if found and found.name == name), None)
        path = str(known.get("path"))
        if entry is not None and is_fork and entry.digest == digest:
            checks = self._checks_of(entry, run)
        else:
            given = self._operators.get(name) or read_checks(known.get("checks"), path).items
            checks = tuple(check for check in given if self._judge_usable(check, path) is None)
        return _Watch(
            name,
            path,
            digest,
            str(known.get("load")),
            checks,
            entry,
            "model",
            is_required=is_fork and known.get("turn") == turn,
            holds=entry is None or self._holds(entry, run),
            base=_mapping(known.get("base")),
        )

    def _with_receipts(self, watch: _Watch, run: SkillRun, failed: frozenset[str]) -> _Watch:
        """Return a load with what is kept of its checks; what is proven of another load does not count."""
        memory, made = run.memory, list[MadeCall]()
        above = _mapping(memory.get(f"{_ABOVE}{watch.path}"))
        is_above = not watch.is_listed and above.get("load") == watch.load
        proven = _mapping(above.get("proven")) if is_above else {}
        found: dict[str, Mapping[str, Any]] = {
            label: {"status": "passed", "evidence": evidence} for label, evidence in proven.items()
        }
        if _HOOKED not in memory and watch.load and watch.is_listed:
            made += calls_after(watch.load, str(memory.get(_START) or ""), run.state.get("messages") or ())
        for check in watch.checks:
            kept = _mapping(memory.get(watch.key(check)))
            if watch.load and kept.get("load") == watch.load:
                found[check.label] = kept
            evidence = next((call.evidence for call in made if self._proves(call, watch, check, run)), None)
            if evidence is not None and kept.get("status") != "passed":
                found[check.label] = {**found.get(check.label, {}), "status": "passed", "evidence": evidence}
        proofs = {
            label: evidence
            for label, receipt in found.items()
            if receipt.get("status") == "passed"
            and isinstance(evidence := receipt.get("evidence"), Mapping)
            # Others may have turned its answer into an error since.
            and isinstance(call := evidence.get("call", ""), str)
            and call not in failed
        }
        return replace(watch, receipts=found, proofs=proofs)

    def _proves(self, made: MadeCall, watch: _Watch, check: Check, run: SkillRun) -> bool:
        return made.evidence is not None and made.fits(check, watch.name, self._judge.root(run))

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

    async def _judge_all(self, pairs: Iterable[tuple[_Watch, Check]], run: SkillRun) -> list[_Verdict]:
        """Judge checks, all at the same time; never raises."""

        async def judge(watch: _Watch, check: Check) -> _Verdict:
            proof = watch.proofs.get(check.label)
            if self._judge.is_quick(check):
                return _Verdict(watch, check, proof)
            if check.kind == "file":
                return _Verdict(watch, check, await self._judge.look_at_file(check, watch.base, proof, run))
            return _Verdict(watch, check, *await self._judge.ask_handler(check, watch.entry, run))

        return list(await asyncio.gather(*(judge(watch, check) for watch, check in pairs)))

    async def _judge_required(self, watches: Iterable[_Watch], run: SkillRun) -> list[_Verdict]:
        return await self._judge_all([(one, check) for one in watches if one.is_required for check in one.checks], run)

    def _record(self, verdicts: Iterable[_Verdict], run: SkillRun) -> None:
        """Keep verdicts, and tell of each that changed."""
        for verdict in verdicts:
            watch, check = verdict.watch, verdict.check
            before = (watch.receipts.get(check.label) or {}).get("reported") or "open"
            status: Any = "open" if verdict.evidence is None else "passed"
            if status != before:
                evidence = dict(verdict.evidence or {})
                run.emit(SkillChecked(**watch.origin, check=check.label, status=status, evidence=evidence))
            self._keep(watch, check, run, verdict.evidence, reported=status)

    def _record_calls(self, watches: Iterable[_Watch], run: SkillRun) -> None:
        """Tell of what calls have proven since the last look."""
        for watch in watches:
            kept = [one for one in watch.checks if self._judge.is_quick(one) and one.label in watch.receipts]
            if watch.is_listed:
                self._record([_Verdict(watch, check, watch.proofs.get(check.label)) for check in kept], run)

    # The seam.

    def at_start(self, run: SkillRun) -> None:
        """Begin a turn, and report what is wrong with the checks of skills."""
        call, fork, newest = _call.get(), running_fork(), run.state.get("messages") or ()
        if newest and getattr(newest[-1], "id", None):
            run.remember(_START, newest[-1].id)
        for entry in run.skills:
            self._checks_of(entry, run)
        turn = self._turn(run, begins=True)
        for watch in call.watches if call is not None else ():
            if watch.load:
                run.remember(f"{_ABOVE}{watch.path}", {"load": watch.load, "proven": dict(watch.proofs)})
        # Only the agent that runs the skill itself, and none that it starts.
        if fork is not None and call is not None and call.tool == "load_skill":
            checks = self._checks_of(fork, run)
            own = _Watch(fork.name, fork.path, fork.digest, f"fork-{uuid4()}", checks)
            run.remember(f"{_LOAD}{fork.name}", {**self._describe(own, turn), "fork": True})
        self._watch(run, begun=turn)

    def before_load(self, load: SkillLoad, run: SkillRun) -> MaybeAwaitable[None]:
        """Look at the files that are to be written, as they are before the load."""
        if self._backend is None or not load.text:
            return None
        paths = [check.value for check in self._checks_of(load.entry, run, reports=False) if check.kind == "file"]
        return self._look_at_files(load.entry.name, paths, run) if paths else None

    async def _look_at_files(self, name: str, paths: Sequence[str], run: SkillRun) -> None:
        try:
            run.remember(f"{_BASE}{name}", await self._judge.digests(paths, run))
        except Exception as error:  # noqa: BLE001 - a backend may raise anything; then only calls prove a file
            logger.warning("The files that skill %r is to write could not be looked at: %s", name, one_line(str(error)))
            run.remember(f"{_BASE}{name}", None)

    def change_text(self, load: SkillLoad, run: SkillRun) -> str:
        """Tell the model, in a short list, when the skill is done."""
        # A text that is put back has its list; one that is read again for it has not.
        if load.tokens and messages.CHECKS_LEAD in load.text:
            return load.text
        checks = self._checks_of(load.entry, run, reports=False)
        return with_checks(load.text, checks, names_held=bool(checks) and self._holds(load.entry, run))

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Tell of what the last calls have proven; the request stays as it is."""
        self._record_calls(self._watch(run), run)
        _note_hooks(run)
        return request

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Refuse a tool that waits for a check."""
        # As the turn began, too: an unload beside a held call does not free it.
        watches = self._watch(run, [skill for host in self._hosts for skill in host.loaded_in(run.state)])
        edited = as_edited(request)
        tool = edited.tool_call["name"]
        for skill in run.loaded:
            name = skill.entry.name
            is_known = skill.entry.is_read or name in self._operators or f"{_LOAD}{name}" in run.memory
            # Nobody can tell what it holds.
            if not is_known and tool not in run.own_tools and not skill.is_inherited:
                return Refuse(messages.CHECKS_UNREADABLE.format(skill=_quote(name), tool=quoted(tool)))
        # An agent without these checks would be held by nothing: it is started once nothing is held.
        is_unbound = run.starts_unbound(edited)
        holding = [
            (watch, check)
            for watch in watches
            if watch.holds and (is_unbound or tool not in OWN_TOOLS)
            for check in watch.checks
            if check.before and (is_unbound or {tool} & {*check.before, *map(DEFAULT_ALIASES.get, check.before)})
        ]
        quick = [(watch, check) for watch, check in holding if self._judge.is_quick(check)]
        if refusal := _refuse(tool, [_Verdict(watch, check, watch.proofs.get(check.label)) for watch, check in quick]):
            return refusal
        _note_hooks(run)
        _call.set(_Call(str(request.tool_call["id"]), request.tool_call["name"], watches, _call.get()))
        slow = [(watch, check) for watch, check in holding if not self._judge.is_quick(check)]
        return self._judge_held(tool, slow, run) if slow else None

    async def _judge_held(self, tool: str, pairs: Sequence[tuple[_Watch, Check]], run: SkillRun) -> Refuse | None:
        return _refuse(tool, await self._judge_all(pairs, run))

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Keep what a call proves, and what agents that it started have proven."""
        given, call = as_edited(request).tool_call, _call.get()
        own = call if call is not None and call.call_id == str(given["id"]) else None
        if own is not None:
            _call.set(own.outer)
        watches = [watch for watch in self._watch(run) if watch.load and watch.is_provable]
        answer = answer_to(result, str(given["id"]))
        proven = dict(own.proven) if own is not None else {}
        for watch in watches:
            found = proven.pop((watch.path, watch.load), {})
            if answer is not None:
                made = MadeCall(str(given["id"]), given["name"], given["args"], answer)
                fitting = [check.label for check in watch.checks if self._proves(made, watch, check, run)]
                found |= dict.fromkeys(fitting, made.evidence)
            self._prove(watch, found, run)
        if own is not None:
            self._take_back(own, proven, given, answer, run)
        name = meant_name([watch.name for watch in watches], str(given["args"].get("skill_name", "")))
        if given["name"] != "unload_skill" or answer is None or answer.status == "error":
            return result
        own_watches = [watch for watch in watches if watch.is_listed and watch.name == name]
        # What a skill's own checks held is free now.
        lines = [check.instruction(names_held=name in self._operators) for one in own_watches for check in one.missing]
        return _tell_unloaded(result, answer, lines) if lines else result

    def _prove(self, watch: _Watch, found: Mapping[str, Mapping[str, Any]], run: SkillRun) -> None:
        for check in watch.checks:
            # The first proof stands, unless its call has turned out to have failed.
            if check.label in found and watch.proofs.get(check.label) is None:
                kept = watch.receipts.get(check.label) or {}
                self._keep(watch, check, run, found[check.label], reported=str(kept.get("reported") or "open"))

    def _take_back(
        self,
        call: _Call,
        proven: Mapping[tuple[str, str], Mapping[str, Any]],
        given: Mapping[str, Any],
        answer: ToolMessage | None,
        run: SkillRun,
    ) -> None:
        """Keep what agents that a call started have proven of skills of their own, and what they left open."""
        for (path, load), evidence in proven.items():
            if not load:
                run.remember(f"{_ABOVE}{path}", {"load": f"{_ABOVE}{path}", "proven": evidence})
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

    async def before_end(self, run: SkillRun) -> SendBack | None:
        """Send the model back while checks of skills that were loaded in this turn are open."""
        watches = self._watch(run)
        if not any(watch.is_required for watch in watches):
            return None
        verdicts = await self._judge_required(watches, run)
        self._record(verdicts, run)
        missing = [verdict for verdict in verdicts if verdict.evidence is None]
        turn = _mapping(run.memory.get(_TURN))
        count = _number(turn.get("sent"))
        if not missing or count >= self._retries:
            run.remember(_TURN, {**turn, "judged": _newest_answer(run)})
            return None
        run.remember(_TURN, {**turn, "sent": count + 1})
        earlier = [
            _Verdict(watch, check, None)
            for watch in watches
            if watch.is_listed and not watch.is_required and not watch.above
            for check in watch.missing
            if self._judge.is_quick(check)
        ]
        parts = _missing_by_skill(messages.CHECKS_MISSING, missing)
        parts += _missing_by_skill(messages.CHECKS_EARLIER, earlier)
        return SendBack("\n\n".join([*parts, messages.CHECKS_HOW]))

    async def open_checks(self, run: SkillRun) -> list[OpenCheck]:
        """Return the open checks of skills that were loaded in this turn."""
        verdicts = await self._judge_required(self._watch(run), run)
        return [OpenCheck(one.watch.name, one.check.label, one.line) for one in verdicts if one.evidence is None]

    async def at_end(self, run: SkillRun) -> None:
        """Say what was not proven, once a skill and turn, whoever ended it."""
        watches, call, turn = self._watch(run), _call.get(), _mapping(run.memory.get(_TURN))
        self._record_calls([watch for watch in watches if not watch.is_required], run)
        judged = turn.get("judged")
        # `before_end` was not asked where another middleware ended the turn.
        if not judged or judged != _newest_answer(run):
            self._record(await self._judge_required(watches, run), run)
            watches = self._watch(run)
        told = turn.get("told")
        said = list(told) if isinstance(told, list) else []
        for watch in watches:
            if call is not None and watch.is_listed and watch.load:
                key = (watch.path, watch.above)
                call.proven.setdefault(key, {}).update(watch.proofs)
            labels = [check.label for check in watch.missing]
            if not watch.is_required or not labels or watch.load in said:
                continue
            said.append(watch.load)
            run.emit(SkillUnchecked(**watch.origin, checks=tuple(labels)))
            found = problem(watch.path, "checks-open", name=_quote(watch.name), checks=", ".join(map(quoted, labels)))
            run.report(found["path"], found["code"], found["message"], found["severity"])
            if call is not None and watch.load.startswith("fork-"):
                call.problems.append((found["path"], found["message"]))
        if said != told and said:
            run.remember(_TURN, {**turn, "told": said})


def _note_hooks(run: SkillRun) -> None:
    """Remember that tool calls pass through our hooks, so that they need not be looked for in messages."""
    if _HOOKED not in run.memory:
        run.remember(_HOOKED, True)  # noqa: FBT003 - a flag in state


def _tell_unloaded(
    result: ToolMessage | Command[Any], answer: ToolMessage, lines: Iterable[str]
) -> ToolMessage | Command[Any]:
    """Return the answer to an unload, with the checks that were open."""
    text = f"{answer.text}\n{as_list(messages.CHECKS_UNLOADED, lines)}"
    said = answer.model_copy(update={"content": text})
    if isinstance(result, ToolMessage):
        return said
    update = dict(_mapping(result.update))
    return replace(
        result, update={**update, "messages": [said if one is answer else one for one in update["messages"]]}
    )


def _refuse(tool: str, verdicts: Iterable[_Verdict]) -> Refuse | None:
    """Refuse a tool that waits for checks; `None` if all have passed."""
    closed = [verdict for verdict in verdicts if verdict.evidence is None]
    by_skill: dict[tuple[str, bool], list[str]] = {}
    for one in closed:
        key = (one.watch.name, one.watch.is_provable)
        by_skill.setdefault(key, []).append(one.said or one.check.instruction(names_held=False))
    asked = [
        (messages.CHECKS_HELD_BY if is_provable else messages.CHECKS_HELD_ABOVE).format(
            skill=_quote(name), steps=" ".join(dict.fromkeys(steps))
        )
        for (name, is_provable), steps in by_skill.items()
    ]
    if not asked:
        return None
    text = messages.CHECKS_HELD.format(tool=quoted(tool), asked=" ".join(asked))
    again = messages.CHECKS_HELD_AGAIN if all(is_provable for _, is_provable in by_skill) else ""
    return Refuse(text + again)


def _missing_by_skill(lead: str, verdicts: Sequence[_Verdict]) -> list[str]:
    by_skill: dict[str, list[str]] = {}
    for verdict in verdicts:
        by_skill.setdefault(verdict.watch.name, []).append(verdict.line)
    return [as_list(lead.replace("{skill}", _quote(name)), lines) for name, lines in by_skill.items()]


def _as_item(check: Check) -> dict[str, Any]:
    """Return a check as state keeps it: without what its author says."""
    return {check.kind: check.value, **({"before": list(check.before)} if check.before else {})}


def _fail_calls(run: SkillRun) -> frozenset[str]:
    """Return the ids of the calls whose answers, as the conversation has them, are errors."""
    answers = [message for message in run.state.get("messages") or () if isinstance(message, ToolMessage)]
    # Some models number the calls of each message anew, so that an id has several answers.
    passed = {message.tool_call_id for message in answers if message.status != "error"}
    return frozenset(message.tool_call_id for message in answers) - passed


def _is_answered(given: Sequence[AnyMessage], user: AnyMessage) -> bool:
    """Whether the model has spoken after a message."""
    places = [place for place, message in enumerate(given) if message.id == user.id]
    return any(isinstance(message, AIMessage) for message in given[places[-1] :]) if places else False


def _newest_answer(run: SkillRun) -> str | None:
    given = run.state.get("messages") or ()
    return next((message.id for message in reversed(given) if isinstance(message, AIMessage)), None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _quote(name: str) -> str:
    return f'"{one_line(name)}"'
