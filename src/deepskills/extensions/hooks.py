"""Frontmatter `hooks` as values, and what is wrong with them. Pure.

Matchers are regular expressions that strangers wrote, and Python's engine can take forever on one: only those are
taken whose work on a tool's name is bounded.

A hook is run by a plan of the one dialect (`deepskills._io.plan`): a command by `Execute`, a handler and the skill's
directory by `Ask`. A hook that must look at a call before it runs fails closed: whatever keeps it from answering
refuses the call.
"""

import html
import inspect
import json
import logging
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import uuid4

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.types import Command

from deepskills import Answer, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsError
from deepskills._io.cache import ENTRY_BYTES, BoundedCache, size_of
from deepskills._io.plan import Ask, Execute, Plan, unwrapped
from deepskills._prompt.escaping import field_text
from deepskills._prompt.messages import FROM_HOOK, HOOK_FAILED, HOOK_REFUSED, harmless_body
from deepskills._skillmd.text import clean, one_line
from deepskills._skillmd.yaml import as_flag
from deepskills.extensions._shared import as_edited, is_trusted, tidy_sources
from deepskills.extensions.tool_policy import DEFAULT_ALIASES

logger = logging.getLogger("deepskills")


HookEvent: TypeAlias = Literal["PreToolUse", "PostToolUse"]
HookType: TypeAlias = Literal["python", "prompt", "command"]

MAX_KNOWN_BYTES = 8_000_000
"""How much memory hooks take that were read; frontmatter is bounded, so that is many."""

MAX_HOOKS = 50
"""Most hooks of one skill."""

MAX_MATCHER_CHARACTERS = 300
MAX_NAME_CHARACTERS = 256
"""Longest tool name that is matched; a longer one matches everything."""

MAX_PROMPT_CHARACTERS = 4_000
MAX_COMMAND_CHARACTERS = 4_000
"""Longest command; it has to fit on a command line together with the call."""

DEFAULT_TIMEOUT = 60
MAX_TIMEOUT = 600

MATCHER_INVALID = (
    'The matcher {matcher!r} cannot be used ({reason}), so its hooks do not run. Write tool names separated by "|", '
    'with ".*" for what may vary.'
)
_VALUE_KEY: dict[HookType, str] = {"python": "handler", "prompt": "prompt", "command": "command"}
_PIECE = re.compile(
    r"\\(?P<reference>[1-9])|\\.|\[\^?\]?(?:[^\]\\]|\\.)*+\]|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|(?P<repeat>[*+?{])|.",
    re.DOTALL,
)
_MAX_REPEATS = 2
_MAX_CHOICES = 6


@dataclass(frozen=True)
class Hook:
    """One hook of a skill."""

    event: HookEvent
    position: int
    """Which of the skill's hooks it is."""

    type: HookType
    value: str
    """The handler's name, the prompt or the command."""

    matcher: re.Pattern[str] | None = None
    """What the tool's whole name has to match; `None` for any tool."""

    once: bool = False
    timeout: int = DEFAULT_TIMEOUT

    def matches(self, names: set[str]) -> bool:
        """Whether the hook is about a tool, by any of its names."""
        if self.matcher is None or any(len(name) > MAX_NAME_CHARACTERS for name in names):
            return True
        return any(self.matcher.fullmatch(name) for name in names)


@dataclass(frozen=True)
class HookProblem:
    """Why a hook of a skill does not run."""

    code: str
    message: str


def read_hooks(tree: Any) -> tuple[list[Hook], list[HookProblem]]:  # noqa: ANN401 - whatever an author wrote
    """Read the hooks of a skill. Never raises; what cannot be used comes back as problems."""
    hooks: list[Hook] = []
    problems: list[HookProblem] = []
    if tree is not None and not isinstance(tree, Mapping):
        problems.append(HookProblem("hooks-invalid", "`hooks` is not a mapping of events, so no hook runs."))
    for event, group in _groups(tree):
        if event not in get_args(HookEvent):
            message = f"Hooks of the event {event[:50]!r} do not run; use PreToolUse or PostToolUse."
            problems.append(HookProblem("hook-event-unknown", message))
            continue
        try:
            matcher = _matcher(group.get("matcher"))
        except ValueError as error:
            shown = str(group.get("matcher"))[:50]
            problems.append(HookProblem("hook-matcher-invalid", MATCHER_INVALID.format(matcher=shown, reason=error)))
            continue
        for item in _items(group.get("hooks")):
            hook = _hook(cast("HookEvent", event), len(hooks), item, matcher)
            if hook is None:
                message = (
                    f"A hook of {event} is not of the type python, prompt or command with its text; it does not run."
                )
                problems.append(HookProblem("hook-invalid", message))
            elif len(hooks) < MAX_HOOKS:
                hooks.append(hook)
            else:
                problems.append(HookProblem("hooks-too-many", f"Only the first {MAX_HOOKS} hooks of the skill run."))
    return hooks, list(dict.fromkeys(problems))


def _groups(tree: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(tree, Mapping):
        for event, groups in tree.items():
            yield from ((str(event), group) for group in _items(groups))


def _items(value: object) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list | tuple) else [value]
    return [item for item in found if isinstance(item, Mapping)]


def _hook(event: HookEvent, position: int, item: Mapping[str, Any], matcher: re.Pattern[str] | None) -> Hook | None:
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _VALUE_KEY:
        return None
    value = item.get(_VALUE_KEY[kind])
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        return None
    if kind == "command" and len(value) > MAX_COMMAND_CHARACTERS:
        return None
    value = value[:MAX_PROMPT_CHARACTERS] if kind == "prompt" else value
    once = as_flag(item.get("once"))
    return Hook(event, position, kind, value, matcher, once=once, timeout=_timeout(item.get("timeout")))


def _timeout(value: object) -> int:
    text = str(value).strip()
    seconds = int(float(text)) if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", text) else DEFAULT_TIMEOUT
    return min(max(seconds, 1), MAX_TIMEOUT)


def _matcher(value: object) -> re.Pattern[str] | None:
    """Return a matcher, bounded in its work.

    Raises:
        ValueError: If it is not a regular expression, or too complex a one.
    """
    text = "" if value is None else value
    if not isinstance(text, str):
        raise ValueError("it is not text")  # noqa: TRY004 - one kind of failure
    if text in {"", "*"}:
        return None
    if len(text) > MAX_MATCHER_CHARACTERS or not _is_bounded(text):
        raise ValueError("it is too complex")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a regular expression: {error}") from None


def _is_bounded(text: str) -> bool:
    """Whether matching a name takes little work: few repetitions and choices per alternative, no repeated groups."""
    depth = repeats = choices = 0
    closed = False
    for piece in _PIECE.finditer(text):
        if piece["reference"] or (piece["repeat"] and (closed or text[piece.start() - 1 : piece.start()] == "(")):
            return False
        depth += bool(piece["open"]) - bool(piece["close"])
        if piece["bar"] and depth == 0:
            repeats = choices = 0
        choices += bool(piece["bar"]) and depth > 0
        repeats += bool(piece["repeat"])
        if repeats > _MAX_REPEATS or choices > _MAX_CHOICES:
            return False
        closed = bool(piece["close"])
    return True


# How hooks are run: what a plan asks for, the two drivers that perform it, and the command lines of a command hook.


Handler: TypeAlias = Callable[[ToolCallRequest], Refuse | Awaitable[Refuse | None] | None]
"""What `type: python` calls, sync or async; before a call it may return a `Refuse`."""

MAX_INPUT_CHARACTERS = 1_000_000
"""Longest call that a command is given; a longer one cannot be looked at."""

CHUNK_CHARACTERS = 60_000
"""What goes into one command line; Linux takes no argument over 128 KiB."""

MAX_RESPONSE_CHARACTERS = 100_000
"""How much of a tool's answer a command is given."""

CANNOT_START = 126
"""Exit code of a shell for what it cannot run, such as a command in a directory that it does not know."""

ASYNC_HANDLER = "its handler is async; run the agent with ainvoke or astream"
TOO_LARGE = f"the call is over {MAX_INPUT_CHARACTERS:,} characters"

_LIMITED = "if command -v timeout >/dev/null 2>&1; then timeout {seconds} sh -c {command}; else sh -c {command}; fi"


def as_json(entry: SkillEntry, hook: Hook, request: ToolCallRequest, result: ToolMessage | Command[Any] | None) -> str:
    """Return what a command reads on standard input: the call, and after it the tool's answer.

    Raises:
        SkillsError: If that is too large.
    """
    call = request.tool_call
    told: dict[str, Any] = {"hook_event_name": hook.event, "skill_name": entry.name, "tool_name": call["name"]}
    told |= {"tool_input": call["args"], "tool_use_id": call["id"]}
    if result is not None:
        told["tool_response"] = _answer(result)[:MAX_RESPONSE_CHARACTERS]
    text = json.dumps(told, default=str).replace("'", "\\u0027")  # a quote costs a shell five characters
    if len(text) > MAX_INPUT_CHARACTERS:
        raise SkillsError(TOO_LARGE)
    return text


def command_lines(hook: Hook, directory: str, given: str) -> Sequence[str]:
    """Return the shell commands that run a hook's command in a directory, with JSON on its standard input.

    A shell backend takes a command line and no input: a short text is piped, a long one goes into a file, in pieces.
    """
    place = shlex.quote(directory)
    limited = _LIMITED.format(seconds=hook.timeout, command=shlex.quote(hook.value))
    prepared = f"cd {place} || exit {CANNOT_START}; export SKILL_DIR={place} CLAUDE_SKILL_DIR={place}"
    if len(given) <= CHUNK_CHARACTERS:
        return [f"({prepared}; printf %s {shlex.quote(given)} | {{ {limited}; }})"]
    file = f"/tmp/deepskills-hook-{uuid4().hex}"  # noqa: S108 - random, and for its owner alone
    pieces = [given[start : start + CHUNK_CHARACTERS] for start in range(0, len(given), CHUNK_CHARACTERS)]
    failed = f"{{ rm -f {file}; exit {CANNOT_START}; }}"
    last = f"(({prepared}; {{ {limited}; }} < {file}); code=$?; rm -f {file}; exit $code)"
    return [*(f"(umask 077; printf %s {shlex.quote(piece)} >> {file} || {failed})" for piece in pieces), last]


def asked_of(handler: Handler, request: ToolCallRequest) -> Ask:
    """Return the call of a handler; an async one can only answer in an async run."""

    def call() -> object:
        reply = handler(request)
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            raise SkillsError(ASYNC_HANDLER)
        return reply

    async def acall() -> object:
        reply = handler(request)
        return await reply if inspect.isawaitable(reply) else reply

    return Ask(call, acall)


def _answer(result: ToolMessage | Command[Any]) -> str:
    if isinstance(result, ToolMessage):
        return str(result.text)
    messages: Sequence[AnyMessage] = result.update.get("messages", ()) if isinstance(result.update, Mapping) else ()
    return "\n".join(str(message.text) for message in messages)


# Frontmatter `hooks` of skills in use: what happens before and after tool calls.


COMMAND_REFUSED = (
    "A command hook does not run: commands are off. The application can allow them by SkillHooks(commands=True)."
)
SOURCE_REFUSED = (
    "A command hook does not run: its skill comes from {source}, not all of which are `sources` of SkillHooks."
)
HANDLER_UNKNOWN = "A hook names the handler {handler!r}, which SkillHooks does not know; it does not run."

UNLOAD_TOOL = "unload_skill"
"""No hook runs before it: one that fails could never be got rid of."""

REFUSES = 2
"""Exit code by which a command refuses a call."""

CANNOT_TELL = frozenset({124, 125, 126, 127, 137, 143})
"""Exit codes of a command that timed out, did not start or was killed."""

MAX_REASON_CHARACTERS = 2_000
MAX_SAID_CHARACTERS = 8_000
"""How much hooks may put into one request, as no budget of skills counts it."""

_BACKSTOP_SECONDS = 5
"""How much longer than the hook's own limit the backend is given to end it."""


class SkillHooks(SkillExtension):
    """Runs the `PreToolUse` and `PostToolUse` hooks of the skills in use.

    Args:
        handlers: What `type: python` may call, by the name that a hook's `handler:` gives.
        commands: Whether `type: command` runs at all, through the backend's shell.
        sources: Paths of the sources whose skills may run commands.
    """

    frontmatter_keys: Sequence[str] = ("hooks",)

    def __init__(
        self, handlers: Mapping[str, Handler] | None = None, *, commands: bool = False, sources: Iterable[str] = ()
    ) -> None:
        self._handlers = dict(handlers or {})
        self._commands = commands
        self._sources = tidy_sources("sources", sources)
        self._known: BoundedCache[str, tuple[list[Hook], list[HookProblem]]] = BoundedCache(
            MAX_KNOWN_BYTES, lambda _: ENTRY_BYTES, lambda text: 8 * size_of(text)
        )

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Report the hooks that will not run; the load itself passes."""
        hooks, problems = self._hooks_of(load.entry)
        for problem in dict.fromkeys(
            [*problems, *filter(None, (self._obstacle(load.entry, hook, run) for hook in hooks))]
        ):
            run.report(load.entry.path, problem.code, problem.message)
        return None

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Run the hooks before a call; the first that refuses wins."""
        return run.drive(self._before(as_edited(request), run))

    async def abefore_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Run the hooks before a call; the first that refuses wins."""
        return await run.adrive(self._before(as_edited(request), run))

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Run the hooks after a call; they cannot change its result."""
        run.drive(self._after(as_edited(request), result, run))
        return result

    async def aafter_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Run the hooks after a call; they cannot change its result."""
        await run.adrive(self._after(as_edited(request), result, run))
        return result

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Put what hooks said of the newest calls at the end of the next request."""
        calls = _newest_calls(run.state)
        found = (text for key, text in run.memory.items() if _call_of(key) in calls and isinstance(text, str))
        said: list[str] = []
        for text in dict.fromkeys(found):
            if sum(map(len, said)) + len(text) <= MAX_SAID_CHARACTERS:
                said.append(text)
        if not said:
            return request
        return request.override(messages=[*request.messages, HumanMessage("\n\n".join(said))])

    def at_start(self, run: SkillRun) -> None:
        """Forget what hooks said of earlier calls."""
        calls = _newest_calls(run.state)
        for key in run.memory:
            if _call_of(key) is not None and _call_of(key) not in calls:
                run.remember(key, None)

    def _before(self, request: ToolCallRequest, run: SkillRun) -> Plan[Refuse | None]:
        for entry, hook in self._matching("PreToolUse", request, run):
            try:
                reason = yield from self._perform(entry, hook, request, None, run)
            except SkillsError as error:
                return _refusal(HOOK_FAILED, request, entry, str(error))
            if reason is not None:
                return _refusal(HOOK_REFUSED, request, entry, reason)
        return None

    def _after(self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun) -> Plan[None]:
        for entry, hook in self._matching("PostToolUse", request, run):
            try:
                said = yield from self._perform(entry, hook, request, result, run)
            except Exception:
                logger.exception("A PostToolUse hook of skill %r failed", entry.name)
                continue
            if said is not None:
                _say(run, request, entry, hook, said)

    def _perform(
        self,
        entry: SkillEntry,
        hook: Hook,
        request: ToolCallRequest,
        result: ToolMessage | Command[Any] | None,
        run: SkillRun,
    ) -> Plan[str | None]:
        """Run one hook, and return why it refuses, if it does.

        Raises:
            SkillsError: If the hook could not be run.
        """
        if hook.once:
            run.remember(_once_key(entry, hook), value=True)
        if hook.type == "prompt":
            _say(run, request, entry, hook, hook.value)
            return None
        if hook.type == "python":
            # What a handler raises is the application's error, not a hook's: the seam logs it and refuses the call.
            verdict = yield from unwrapped(asked_of(self._handlers[hook.value], request))
            return verdict.reason if isinstance(verdict, Refuse) else None
        directory = yield from unwrapped(Ask(lambda: run.directory(entry), lambda: run.adirectory(entry)))
        for command in command_lines(hook, directory, as_json(entry, hook, request, result)):
            response = yield Execute(command, hook.timeout + _BACKSTOP_SECONDS)
            if _cannot_tell(response.exit_code):
                break
        output = clean(str(response.output)).strip()[:MAX_REASON_CHARACTERS]
        if response.exit_code == REFUSES:
            return output or "it gave no reason"
        if _cannot_tell(response.exit_code):
            raise SkillsError(f"its command did not start or did not end within {hook.timeout} seconds: {output[:200]}")
        if response.exit_code != 0:
            told = one_line(output)
            logger.warning("A hook of skill %r ended with exit code %s: %s", entry.name, response.exit_code, told)
        return None

    def _matching(self, event: HookEvent, request: ToolCallRequest, run: SkillRun) -> list[tuple[SkillEntry, Hook]]:
        names = _names_of(request.tool_call["name"])
        if event == "PreToolUse" and request.tool_call["name"] == UNLOAD_TOOL:
            return []
        return [
            (skill.entry, hook)
            for skill in run.loaded
            for hook in self._hooks_of(skill.entry)[0]
            if hook.event == event
            and hook.matches(names)
            and self._obstacle(skill.entry, hook, run) is None
            and not (hook.once and (_once_key(skill.entry, hook) in run.memory or _has_earlier(hook, request)))
        ]

    def _hooks_of(self, entry: SkillEntry) -> tuple[list[Hook], list[HookProblem]]:
        tree = entry.frontmatter.get("hooks")
        if tree is None:
            return [], []
        text = json.dumps(tree, default=str)
        return self._known.get_or_make(text, lambda: read_hooks(json.loads(text)))

    def _obstacle(self, entry: SkillEntry, hook: Hook, run: SkillRun) -> HookProblem | None:
        """Return why a hook does not run in this application."""
        if hook.type == "python" and hook.value not in self._handlers:
            return HookProblem("hook-handler-unknown", HANDLER_UNKNOWN.format(handler=one_line(hook.value)[:50]))
        if hook.type == "command" and not self._commands:
            return HookProblem("hook-command-refused", COMMAND_REFUSED)
        if hook.type == "command" and not is_trusted(entry, run, self._sources):
            sources = ", ".join(sorted(one_line(path) for path in run.holders(entry)))
            return HookProblem("hook-command-refused", SOURCE_REFUSED.format(source=sources))
        return None


def _names_of(tool: str) -> set[str]:
    """Return what a tool is called, here and in the client that skills with hooks are mostly written for."""
    return {tool, *(alias for alias, name in DEFAULT_ALIASES.items() if name == tool)}


def _newest_calls(state: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls in the model's newest message, in order."""
    newest = next((item for item in reversed(state.get("messages", ())) if isinstance(item, AIMessage)), None)
    return [str(call["id"]) for call in newest.tool_calls] if newest is not None else []


def _has_earlier(hook: Hook, request: ToolCallRequest) -> bool:
    """Whether an earlier call of the same turn is the one that the hook runs for; one that a human rejected is not."""
    answered: set[str] = set()
    for message in reversed(request.state["messages"]):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage):
            ids = [call["id"] for call in message.tool_calls]
            before = message.tool_calls[: ids.index(request.tool_call["id"])] if request.tool_call["id"] in ids else []
            return any(hook.matches(_names_of(call["name"])) for call in before if call["id"] not in answered)
    return False


def _cannot_tell(exit_code: int | None) -> bool:
    return exit_code is None or exit_code < 0 or exit_code in CANNOT_TELL


def _once_key(entry: SkillEntry, hook: Hook) -> str:
    return f"once:{entry.digest}:{hook.position}"


def _say(run: SkillRun, request: ToolCallRequest, entry: SkillEntry, hook: Hook, text: str) -> None:
    """Keep a text for the next request; each call has keys of its own, as calls of one turn run side by side."""
    body = harmless_body(clean(text))
    skill, tool = (html.escape(field_text(name, 128)) for name in (entry.name, request.tool_call["name"]))
    said = FROM_HOOK.format(skill=skill, tool=tool, text=body)
    call = str(request.tool_call["id"])
    before = sum(len(value) for key, value in run.memory.items() if _call_of(key) == call)
    if before + len(said) > MAX_SAID_CHARACTERS:
        logger.warning("The hooks of skill %r say more than fits into a request; the rest is left out", entry.name)
        return
    run.remember(f"say:{entry.digest}:{hook.position}:{call}", said)


def _call_of(key: str) -> str | None:
    return key.split(":", 3)[3] if key.startswith("say:") else None


def _refusal(text: str, request: ToolCallRequest, entry: SkillEntry, reason: str) -> Refuse:
    tool = one_line(request.tool_call["name"])
    return Refuse(text.format(tool=tool, skill=f'"{entry.name}"', reason=reason[:MAX_REASON_CHARACTERS]))
