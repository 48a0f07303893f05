"""Checks that a loaded skill was followed: by the tool calls that were made, never by what the model says.

A skill's `checks`, or the operator's in their place, say when its work is done. Every load is watched on its own, by
the id of the message that brought it in. After each tool call, `after_tool` keeps what the call proves, by its id; it
only counts for loads that stood in state before the model made the call, so that nothing in one message proves anything
for another call in it. What is kept is compared with the conversation before it counts: an answer that others turned
into an error proves nothing.

Three moments ask what is open. `before_tool` refuses a held tool. `before_end` sends the model back, at most `retries`
times a turn. `at_end` says, once the turn has really ended, what was not proven; where nothing ended a turn, the start
of the next one says it. A turn begins with a message of the user's and is numbered in private state: summaries and
human approvals in between do not end it.

`before` is a limit, and limits travel: an agent that a tool call starts finds in that call (`_Call`) what the agent
above watches, with its proofs, and is held by it. At its end it leaves there what it watched itself. Both are passed in
the process, so that nothing in any state can forge them; a resumed call is made again, and with it its `_Call`.

Private state has, by key:

- `turn`: its number, how often the model was sent back in it, and what was said of it;
- `load NAME`: a load that is watched, and `base NAME` what its files were before it;
- `receipt NAME LOAD CHECK`: whether a check has passed, and by which call; each has a key of its own, because calls
  of one message are recorded side by side;
- `start` and `hooked`: the last message of a run's input, and whether tool calls pass through our hooks.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

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
    SkillUnchecked,
)
from deepskills._prompt import messages
from deepskills._prompt.messages import as_list, with_checks
from deepskills._skillmd.checks import KINDS, Check, CheckKind, Checks, read_checks
from deepskills._skillmd.names import find_meant_name
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import harmless_body, one_line
from deepskills._skillmd.tools import DEFAULT_ALIASES, OWN_TOOLS
from deepskills._types import SkillProblem
from deepskills.extensions._evidence import (
    Handler,
    Judge,
    MadeCall,
    Proof,
    answer_to,
    calls_after,
    can_pass,
    find_calls,
    find_message_of,
)
from deepskills.extensions._shared import MaybeAwaitable, as_edited, as_mapping
from deepskills.extensions.forks import SkillForks, is_fork, running_fork
from deepskills.extensions.scripts.tool import SkillScripts

logger = logging.getLogger("deepskills")

CHECK_KINDS: tuple[CheckKind, ...] = KINDS
"""The kinds of checks that there are."""

_TURN, _HOOKED, _START = "turn", "hooked", "start"
_LOAD, _BASE, _RECEIPT = "load ", "base ", "receipt "

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
    judge: Judge
    """That of the agent whose skill it is."""

    entry: SkillEntry | None = None
    trigger: Any = "system"
    turn: int = _NO_TURN
    """The turn that must not end while a check is open."""

    holds: bool = True
    """Whether its `before` refuses tools."""

    is_own: bool = True
    """Whether it is one of this agent's own loads."""

    is_provable: bool = True
    """Whether calls of this agent count: not for what the agent above has loaded, unless this one inherited it."""

    base: Mapping[str, Any] = field(default_factory=dict)
    """The digests of its files at the load."""

    receipts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is kept of each check, by label."""

    proofs: Mapping[str, Proof] = field(default_factory=dict)
    """By label, what a check is proven by."""

    @property
    def origin(self) -> dict[str, Any]:
        """What every event says of it."""
        source = self.entry.source if self.entry is not None else None
        return {"skill": self.name, "source": source, "digest": self.digest, "trigger": self.trigger}

    def key(self, check: Check) -> str:
        """Return the key of a receipt."""
        return f"{_RECEIPT}{self.name} {self.load} {check.label}"

    @property
    def missing(self) -> list[Check]:
        """The checks that are not proven."""
        return [check for check in self.checks if check.label not in self.proofs]

    def asks(self, check: Check) -> bool:
        """Whether a check is judged when it is asked, and not by calls alone."""
        return not self.judge.is_quick(check)


@dataclass(frozen=True)
class _Verdict:
    """Whether a check has passed."""

    watch: _Watch
    check: Check
    proof: Proof | None
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
    ended: list[_Watch] = field(default_factory=list)
    """What a started agent has watched itself, as it was at its end."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    """Paths and messages of what a forked skill left open."""

    is_checked: bool = False
    """Whether an agent that it started checks the skill that it runs for."""

    @property
    def loads(self) -> dict[str, _Watch]:
        """What the agent that makes it has loaded before, by path."""
        return {watch.path: watch for watch in self.watches if watch.load}


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
        self._operators = {name: self._read_operators(name, given) for name, given in (checks or {}).items()}

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillChecks":
        """Return the same object: handlers and backends are shared."""
        return self

    # The checks of a skill.

    def _read_operators(self, name: str, given: object) -> tuple[Check, ...]:
        read = read_checks(given, str(name))
        wrong = [*read.problems, *filter(None, (self._judge_usable(check, str(name)) for check in read.items))]
        texts = [found["message"] for found in wrong]
        if texts or not isinstance(given, Sequence):
            raise ValueError(f"The checks of {name!r}: {' '.join(texts) or 'not a list.'}")
        return read.items

    def _judge_usable(self, check: Check, path: str, run: SkillRun | None = None) -> SkillProblem | None:
        """Return why a check cannot be judged, in a run if one is given; `None` if it can."""
        label = quoted(check.label)
        if check.kind == "handler" and check.value not in self._handlers:
            return problem(path, "check-handler-unknown", check=label)
        if check.kind == "script" and run is not None and not _has(run, SkillScripts):
            return problem(path, "check-needs-scripts", check=label)
        if not can_pass(check):
            return problem(path, "check-malformed", number=label, reason="has a pattern that nothing fits")
        return None

    def _checks_of(self, entry: SkillEntry, run: SkillRun) -> tuple[Check, ...]:
        """Return the checks of a skill that can be judged here; what is wrong with the others is reported."""
        operators = self._operators.get(entry.name)
        if operators is None and "checks" not in entry.frontmatter:
            return ()
        read = read_checks(entry.frontmatter.get("checks"), entry.path) if operators is None else Checks(operators)
        unusable = {check: self._judge_usable(check, entry.path, run) for check in read.items}
        for found in (*read.problems, *filter(None, unusable.values())):
            run.report(found["path"], found["code"], found["message"], found["severity"])
        return tuple(check for check, found in unusable.items() if found is None)

    def named_tools(self, entry: SkillEntry) -> list[str]:
        """Return the tools that the checks of a skill name, its own or the operator's in their place."""
        own = read_checks(entry.frontmatter.get("checks"), entry.path).items
        return [tool for check in self._operators.get(entry.name, own) for tool in check.tools]

    def _holds(self, entry: SkillEntry, run: SkillRun) -> bool:
        """Whether the `before` of a skill refuses tools: a stranger's, or one that is approved, needs that approval."""
        is_granted = entry.origin is None or "tools" in run.granted(entry)
        return entry.name in self._operators or (is_granted and "tools" not in run.withheld(entry))

    # The turn, and the loads of a thread.

    def _turn(self, run: SkillRun, *, begins: bool = False) -> int:
        """Return the number of the turn; a new one begins with a new message of the user's."""
        kept = as_mapping(run.memory.get(_TURN))
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
            _forget_unloaded(run)
        return number + is_new

    def _watch(self, run: SkillRun, also: Iterable[LoadedSkill] = (), *, begun: int | None = None) -> list[_Watch]:
        """Return what is watched on a thread, and keep what a new load is known by; `begun` is a turn that begins."""
        # What was loaded before this extension looked is of the turn that its record names.
        is_old = begun is not None or _TURN not in run.memory
        turn = self._turn(run) if begun is None else begun
        call = _call.get()
        found = {
            (watch.path, watch.load): replace(watch, turn=_NO_TURN, is_own=False, is_provable=False)
            for watch in (call.watches if call is not None else ())
        }
        loaded = [self._watch_skill(skill, run, turn, is_old=is_old) for skill in (*also, *run.loaded)]
        own = [watch for watch in (*loaded, self._watch_fork(run, turn)) if watch is not None]
        known = {watch.name for watch in own if watch.is_own or watch.judge is self._judge}
        own += [
            self._watch_operators(name, run)
            for name in self._operators
            if name not in known and _LOAD + name in run.memory
        ]
        if own:
            made = find_calls(run.state.get("messages") or ())
            # Last: they count where both are of the same load.
            found |= {(watch.path, watch.load): self._with_receipts(watch, run, made) for watch in own}
        return list(found.values())

    def _watch_skill(self, skill: LoadedSkill, run: SkillRun, turn: int, *, is_old: bool) -> _Watch | None:
        entry, call = skill.entry, _call.get()
        above = call.loads.get(entry.path) if call is not None else None
        known = as_mapping(run.memory.get(f"{_LOAD}{entry.name}"))
        is_known = known.get("path") == entry.path and (known.get("load") == skill.load_id or skill.is_lost)
        # In use in the agent above, which watches it.
        if skill.is_inherited and (skill.load_id or above is not None):
            return None
        if entry.is_read or entry.name in self._operators:
            checks = self._checks_of(entry, run)
        else:
            # Its file cannot be read at the moment: what its checks were at the load still holds.
            checks = read_checks(known.get("checks"), entry.path).items if is_known else ()
        load = skill.load_id or (str(known.get("load", "")) if is_known else "")
        holds = self._holds(entry, run)
        watch = _Watch(
            entry.name, entry.path, entry.digest, load, checks, self._judge, entry, skill.trigger, holds=holds
        )
        # From an agent that has ended.
        if skill.is_inherited:
            return replace(watch, load=_name_brought(entry.path, turn), is_own=False) if checks else None
        # Lost, or not done yet: an earlier call of the same message loads it.
        if not skill.load_id:
            return watch if checks else None
        if not is_known:
            is_system = skill.trigger == "system" and not skill.is_recent
            # What the agent above handed over is that agent's to finish. What this one loads itself is its own.
            heir = above if above is not None and (is_system or above.load == skill.load_id) else None
            known = self._record_load(watch, run, turn if skill.is_recent or not is_old else _NO_TURN, heir)
        if above is not None and known.get("above") == above.load:
            return replace(above, turn=_NO_TURN, is_own=False, is_provable=True)
        base = as_mapping(known.get("base"))
        return replace(watch, turn=_number(known.get("turn")), base=base) if checks else None

    def _record_load(self, watch: _Watch, run: SkillRun, turn: int, heir: _Watch | None) -> Mapping[str, Any]:
        known = {
            "load": watch.load,
            "path": watch.path,
            "digest": watch.digest,
            "turn": turn if heir is None else _NO_TURN,
            "checks": [_as_item(check) for check in watch.checks],
            "base": dict(as_mapping(run.memory.get(f"{_BASE}{watch.name}"))),
            **({} if heir is None else {"above": heir.load}),
        }
        if not watch.checks and heir is None:
            return known
        # What was kept of another load of it says nothing of this one.
        for key, receipt in run.memory.items():
            if key.startswith(_RECEIPT) and as_mapping(receipt).get("skill") == watch.name:
                run.remember(key, None)
        run.remember(f"{_LOAD}{watch.name}", known)
        return known

    def _watch_fork(self, run: SkillRun, turn: int) -> _Watch | None:
        """Return what is watched of the skill that this agent runs for, if it runs for one."""
        fork, call = running_fork(), _call.get()
        # The agent that runs the skill itself, and none that it starts.
        if fork is None or call is None or call.tool != "load_skill":
            return None
        checks = self._checks_of(fork, run)
        call.is_checked = True
        load, holds = f"fork {call.call_id}", self._holds(fork, run)
        return _Watch(
            fork.name, fork.path, fork.digest, load, checks, self._judge, fork, "model", turn=turn, holds=holds
        )

    def _watch_operators(self, name: str, run: SkillRun) -> _Watch:
        """Return what the operator's checks hold of a skill that was unloaded in this turn, or is inherited."""
        known = as_mapping(run.memory.get(f"{_LOAD}{name}"))
        entry = next((entry for entry in run.skills if entry.name == name), None)
        path, digest, base = str(known.get("path")), str(known.get("digest")), as_mapping(known.get("base"))
        checks = tuple(check for check in self._operators[name] if self._judge_usable(check, path, run) is None)
        return _Watch(name, path, digest, str(known.get("load")), checks, self._judge, entry, base=base)

    def _with_receipts(self, watch: _Watch, run: SkillRun, made: Sequence[MadeCall]) -> _Watch:
        """Return a load with what is kept of its checks; what is proven of another load does not count."""
        proofs = dict(watch.proofs)
        # Others may have turned an answer into an error since.
        failed = {call.key for call in made if call.answer.status == "error"}
        is_hooked = _HOOKED in run.memory or not watch.load or not watch.is_own
        own = () if is_hooked else calls_after(watch.load, str(run.memory.get(_START) or ""), run.state["messages"])
        receipts: dict[str, Mapping[str, Any]] = {}
        for check in watch.checks:
            kept = as_mapping(run.memory.get(watch.key(check)))
            if kept:
                receipts[check.label] = kept
            fitting = (call.proof for call in own if self._proves(call, watch, check, run))
            proof = Proof.from_receipt(receipts.get(check.label) or {}) or next(fitting, None)
            if proof is not None and proof.key not in failed:
                proofs[check.label] = proof
        return replace(watch, receipts=receipts, proofs=proofs)

    def _proves(self, made: MadeCall, watch: _Watch, check: Check, run: SkillRun) -> bool:
        return made.proof is not None and made.fits(check, watch.name, self._judge.root(run))

    def _keep(self, watch: _Watch, check: Check, run: SkillRun, proof: Proof | None, reported: str) -> None:
        """Keep a receipt: what was proven by which call, never any text of it."""
        receipt = {
            "skill": watch.name,
            "digest": watch.digest,
            "check": check.label,
            "status": "open" if proof is None else "passed",
            "evidence": {} if proof is None else dict(proof.evidence),
            "message": "" if proof is None else proof.message,
            "reported": reported,
        }
        if run.memory.get(watch.key(check)) != receipt:
            run.remember(watch.key(check), receipt)

    # Judging.

    async def _judge_all(self, pairs: Iterable[tuple[_Watch, Check]], run: SkillRun) -> list[_Verdict]:
        """Judge checks, all at the same time; never raises."""

        async def judge(watch: _Watch, check: Check) -> _Verdict:
            proof = watch.proofs.get(check.label)
            if not watch.asks(check):
                return _Verdict(watch, check, proof)
            if check.kind == "file":
                return _Verdict(watch, check, await watch.judge.look_at_file(check, watch.base, proof, run))
            return _Verdict(watch, check, *await watch.judge.ask_handler(check, watch.entry, run))

        return list(await asyncio.gather(*(judge(watch, check) for watch, check in pairs)))

    async def _judge_required(self, watches: Iterable[_Watch], run: SkillRun) -> list[_Verdict]:
        turn = self._turn(run)
        return await self._judge_all([(one, check) for one in watches if one.turn == turn for check in one.checks], run)

    def _record(self, verdicts: Iterable[_Verdict], run: SkillRun) -> None:
        """Keep verdicts, and report each that changed."""
        for verdict in verdicts:
            watch, check = verdict.watch, verdict.check
            before = (watch.receipts.get(check.label) or {}).get("reported") or "open"
            status: Any = "open" if verdict.proof is None else "passed"
            if status != before:
                evidence = {} if verdict.proof is None else dict(verdict.proof.evidence)
                run.emit(SkillChecked(**watch.origin, check=check.label, status=status, evidence=evidence))
            self._keep(watch, check, run, verdict.proof, reported=status)

    def _record_calls(self, watches: Iterable[_Watch], run: SkillRun) -> None:
        """Report what calls have proven since the last look; of what is inherited the agent above reports it."""
        self._record(
            [
                _Verdict(watch, check, watch.proofs.get(check.label))
                for watch in watches
                if watch.is_own
                for check in watch.checks
                if not watch.asks(check) and (check.label in watch.receipts or check.label in watch.proofs)
            ],
            run,
        )

    # The seam.

    def at_start(self, run: SkillRun) -> None:
        """Begin a turn, and say what was not proven in the last one if nothing has ended it."""
        newest, last = run.state.get("messages") or (), as_mapping(run.memory.get(_TURN))
        if newest and getattr(newest[-1], "id", None):
            run.remember(_START, newest[-1].id)
        turn = self._turn(run, begins=True)
        watches = self._watch(run, begun=turn)
        if last and turn != last.get("number"):
            # A question that no human answered, or a crash.
            _report_open([watch for watch in watches if watch.turn == last.get("number")], last, run)

    def before_load(self, load: SkillLoad, run: SkillRun) -> MaybeAwaitable[None]:
        """Look at the files that are to be written, as they are before the load."""
        if self._backend is None or not load.text:
            return None
        paths = [check.value for check in self._checks_of(load.entry, run) if check.kind == "file"]
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
        checks = self._checks_of(load.entry, run)
        return with_checks(load.text, checks, names_held=bool(checks) and self._holds(load.entry, run))

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Report what the last calls have proven; the request stays as it is."""
        self._record_calls(self._watch(run), run)
        _remember_hooks(run)
        return request

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Refuse a tool that waits for a check."""
        # As the turn began, too: an unload beside a held call does not free it.
        watches = self._watch(run, run.loaded_before)
        edited = as_edited(request)
        tool = edited.tool_call["name"]
        for skill in run.loaded:
            name = skill.entry.name
            is_known = skill.entry.is_read or name in self._operators or f"{_LOAD}{name}" in run.memory
            # It is unknown what it holds.
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
        _remember_hooks(run)
        _call.set(_Call(str(request.tool_call["id"]), request.tool_call["name"], watches, _call.get()))
        return self._judge_held(tool, holding, run) if holding else None

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
        if own is not None:
            self._take_back(own, watches, given, answer, run)
        if answer is None:
            return result
        made = MadeCall(find_message_of(given["id"], run.state.get("messages") or ()), given, answer)
        for watch in watches:
            fitting = [check.label for check in watch.checks if self._proves(made, watch, check, run)]
            self._prove(watch, dict.fromkeys(fitting, made.proof), run)
        name = find_meant_name([watch.name for watch in watches], str(given["args"].get("skill_name", "")))
        if given["name"] != "unload_skill" or answer.status == "error":
            return result
        own_watches = [watch for watch in watches if watch.is_own and watch.name == name]
        # What a skill's own checks held is free now.
        lines = [check.instruction(names_held=name in self._operators) for one in own_watches for check in one.missing]
        return _tell_unloaded(result, answer, lines) if lines else result

    def _prove(self, watch: _Watch, found: Mapping[str, Proof | None], run: SkillRun) -> None:
        for check in watch.checks:
            # The first proof stands, unless its call has turned out to have failed.
            if found.get(check.label) is not None and watch.proofs.get(check.label) is None:
                kept = watch.receipts.get(check.label) or {}
                self._keep(watch, check, run, found[check.label], reported=str(kept.get("reported") or "open"))

    def _take_back(
        self,
        call: _Call,
        watches: Sequence[_Watch],
        given: Mapping[str, Any],
        answer: ToolMessage | None,
        run: SkillRun,
    ) -> None:
        """Keep what agents that a call started have proven, and what they left open."""
        own = {(watch.path, watch.load): watch for watch in watches}
        paths = {watch.path for watch in watches if watch.is_own}
        for ended in call.ended:
            if lent := own.get((ended.path, ended.load)):
                self._prove(lent, ended.proofs, run)
            elif ended.is_own and ended.path not in paths:
                # Its answer may be what the skill said. Receipts of another agent that had it do not count for this.
                brought = replace(ended, load=_name_brought(ended.path, self._turn(run)))
                for check in ended.checks:
                    self._keep(brought, check, run, ended.proofs.get(check.label), reported="open")
        for path, message in call.problems:
            run.report(path, "checks-open", message)
        if given["name"] != "load_skill" or call.is_checked or answer is None or answer.status == "error":
            return
        asked = str(given["args"].get("skill_name", ""))
        forks = {entry.name: entry for entry in run.skills if is_fork(entry)}
        entry = forks.get(find_meant_name(list(forks), asked) or "")
        if entry is not None and _has(run, SkillForks) and self._checks_of(entry, run):
            found = problem(entry.path, "checks-in-fork", name=_quote(entry.name))
            run.report(found["path"], found["code"], found["message"], found["severity"])

    async def before_end(self, run: SkillRun) -> SendBack | None:
        """Send the model back while checks of skills that were loaded in this turn are open."""
        watches = self._watch(run)
        verdicts = await self._judge_required(watches, run)
        if not verdicts:
            return None
        self._record(verdicts, run)
        missing = [verdict for verdict in verdicts if verdict.proof is None]
        turn = as_mapping(run.memory.get(_TURN))
        count = _number(turn.get("sent"))
        if not missing or count >= self._retries:
            run.remember(_TURN, {**turn, "judged": _newest_answer(run)})
            return None
        run.remember(_TURN, {**turn, "sent": count + 1})
        others = [
            (one, check) for one in watches if one.is_own and one.turn != turn.get("number") for check in one.checks
        ]
        earlier = [verdict for verdict in await self._judge_all(others, run) if verdict.proof is None]
        parts = _list_by_skill(messages.CHECKS_MISSING, missing)
        parts += _list_by_skill(messages.CHECKS_EARLIER, earlier)
        return SendBack("\n\n".join([*parts, messages.CHECKS_HOW]))

    async def open_checks(self, run: SkillRun) -> list[OpenCheck]:
        """Return the open checks of skills that were loaded in this turn."""
        verdicts = await self._judge_required(self._watch(run), run)
        return [OpenCheck(one.watch.name, one.check.label, one.line) for one in verdicts if one.proof is None]

    async def at_end(self, run: SkillRun) -> None:
        """Say what was not proven, once a skill and turn, also where another middleware ended it."""
        watches, call, turn = self._watch(run), _call.get(), as_mapping(run.memory.get(_TURN))
        number = _number(turn.get("number"))
        self._record_calls([watch for watch in watches if watch.turn != number], run)
        judged = turn.get("judged")
        # `before_end` was not asked where another middleware ended the turn.
        if not judged or judged != _newest_answer(run):
            self._record(await self._judge_required(watches, run), run)
            watches = self._watch(run)
        if call is not None:
            call.ended += [one for one in watches if one.is_provable and one.load and one.load != _fork_of(call)]
        said = _report_open([watch for watch in watches if watch.turn == number], turn, run)
        if call is not None:
            call.problems += [(watch.path, message) for watch, message in said if watch.load == _fork_of(call)]
        if said:
            run.remember(_TURN, {**turn, "reported": [*_read_reported(turn), *(watch.load for watch, _ in said)]})


def _report_open(watches: Iterable[_Watch], turn: Mapping[str, Any], run: SkillRun) -> list[tuple[_Watch, str]]:
    """Say which checks are open at the end of a turn, and return what was said; what was said before is left out."""
    said = []
    for watch in watches:
        labels = [check.label for check in watch.missing]
        if not labels or watch.load in _read_reported(turn):
            continue
        run.emit(SkillUnchecked(**watch.origin, checks=tuple(labels)))
        found = problem(watch.path, "checks-open", name=_quote(watch.name), checks=", ".join(map(quoted, labels)))
        run.report(found["path"], found["code"], found["message"], found["severity"])
        said.append((watch, found["message"]))
    return said


def _read_reported(turn: Mapping[str, Any]) -> Sequence[object]:
    """Return the loads of which was said, in this turn, what they left open."""
    kept = turn.get("reported")
    return kept if isinstance(kept, list) else ()


def _forget_unloaded(run: SkillRun) -> None:
    """Forget what ended with a turn: what operators' checks held of skills that were unloaded in it, and receipts."""
    loaded = {skill.entry.name for skill in run.loaded if not skill.is_inherited}
    for key, value in run.memory.items():
        prefix, _, name = key.partition(" ")
        name = str(as_mapping(value).get("skill")) if f"{prefix} " == _RECEIPT else name
        if f"{prefix} " in {_LOAD, _BASE, _RECEIPT} and name not in loaded:
            run.remember(key, None)


def _has(run: SkillRun, kind: type[SkillExtension]) -> bool:
    return any(isinstance(extension, kind) for extension in run.extensions)


def _name_brought(path: str, turn: int) -> str:
    """Return what stands for the load of a skill in an agent whose answer came back in a turn."""
    return f"above {turn} {path}"


def _fork_of(call: _Call) -> str:
    """Return what stands for the load of the skill that a call runs in an agent of its own."""
    return f"fork {call.call_id}"


def _remember_hooks(run: SkillRun) -> None:
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
    update = dict(as_mapping(result.update))
    return replace(
        result, update={**update, "messages": [said if one is answer else one for one in update["messages"]]}
    )


def _refuse(tool: str, verdicts: Iterable[_Verdict]) -> Refuse | None:
    """Refuse a tool that waits for checks; `None` if all have passed."""
    by_skill: dict[tuple[str, bool], list[str]] = {}
    for one in verdicts:
        if one.proof is None:
            key = (one.watch.name, one.watch.is_provable)
            by_skill.setdefault(key, []).append(one.said or one.check.instruction(names_held=False))
    if not by_skill:
        return None
    asked = [
        (messages.CHECKS_HELD_BY if is_provable else messages.CHECKS_HELD_ABOVE).format(
            skill=_quote(name), steps=" ".join(dict.fromkeys(steps))
        )
        for (name, is_provable), steps in by_skill.items()
    ]
    text = messages.CHECKS_HELD.format(tool=quoted(tool), asked=" ".join(asked))
    again = messages.CHECKS_HELD_AGAIN if all(is_provable for _, is_provable in by_skill) else ""
    return Refuse(text + again)


def _list_by_skill(lead: str, verdicts: Sequence[_Verdict]) -> list[str]:
    by_skill: dict[str, list[str]] = {}
    for verdict in verdicts:
        by_skill.setdefault(verdict.watch.name, []).append(verdict.line)
    return [as_list(lead.replace("{skill}", _quote(name)), lines) for name, lines in by_skill.items()]


def _as_item(check: Check) -> dict[str, Any]:
    """Return a check as state keeps it: without what its author says."""
    return {check.kind: check.value, **({"before": list(check.before)} if check.before else {})}


def _is_answered(given: Sequence[AnyMessage], user: AnyMessage) -> bool:
    """Whether the model has spoken after a message."""
    places = [place for place, message in enumerate(given) if message.id == user.id]
    return any(isinstance(message, AIMessage) for message in given[places[-1] :]) if places else False


def _newest_answer(run: SkillRun) -> str | None:
    given = run.state.get("messages") or ()
    return next((message.id for message in reversed(given) if isinstance(message, AIMessage)), None)


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _quote(name: str) -> str:
    return f'"{one_line(name)}"'
