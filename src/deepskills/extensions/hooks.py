"""`SkillHooks`: runs the hooks that skills declare in their frontmatter, before and after tool calls and at loads.

Three parts. First, `hooks` as values, and what is wrong with them: matchers are regular expressions that strangers
wrote, and Python's engine can take forever on one, so only those are accepted whose work on a tool's name is bounded.

Then what runs a hook: commands through the backend's shell, and handlers. A hook that checks a call before it runs
fails closed: whatever keeps it from answering refuses the call.

Last, the extension. A `SessionStart` hook runs at its skill's load and at the start of each later run on the thread.
Loads happen in many ways, some of them after the start of a run, so all are handled in one place: the model request
that follows. Private state says for which skills the hooks have already run.
"""

import asyncio
import html
import json
import logging
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import uuid4

from deepagents.backends.protocol import ExecuteResponse
from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.types import Command

from deepskills import Answer, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsError
from deepskills._io.cache import ENTRY_BYTES, BoundedCache, size_of
from deepskills._io.plan import Ask, Execute, unwrap
from deepskills._prompt.messages import FROM_HOOK, FROM_START_HOOK, HOOK_FAILED, HOOK_REFUSED, LIMITS_DO_NOT_TRAVEL
from deepskills._skillmd.text import clean, field_text, harmless_body, one_line
from deepskills._skillmd.tools import DEFAULT_ALIASES
from deepskills._skillmd.yaml import as_flag
from deepskills._types import SKILL_FILE
from deepskills.extensions._shared import (
    COPY,
    HAS_TIMEOUT,
    KILL_AFTER_SECONDS,
    MaybeAwaitable,
    as_edited,
    copies_of,
    is_trusted,
    job_places,
    place_files,
    remove_files,
    tidy_sources,
)

logger = logging.getLogger("deepskills")


HookEvent: TypeAlias = Literal["PreToolUse", "PostToolUse", "SessionStart"]
HookType: TypeAlias = Literal["python", "prompt", "command"]

MAX_KNOWN_BYTES = 8_000_000
"""How much memory parsed hooks may take; frontmatter is bounded, so that is room for many."""

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
HOOK_INVALID = "A hook of {event} is not of the type python, prompt or command with its text; it does not run."
_SHELLS = (None, "sh", "bash")
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
    """Its position among the skill's hooks."""

    type: HookType
    value: str
    """The handler's name, the prompt or the command."""

    matcher: re.Pattern[str] | None = None
    """The pattern for the tool's whole name; `None` for any tool."""

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
    for event, given in _groups(tree):
        if event not in get_args(HookEvent):
            message = f"Hooks of the event {event[:50]!r} do not run; use {', '.join(get_args(HookEvent))}."
            problems.append(HookProblem("hook-event-unknown", message))
            continue
        group = given if isinstance(given, Mapping) else {}
        try:
            matcher = _matcher(group.get("matcher"))
        except ValueError as error:
            shown = str(group.get("matcher"))[:50]
            problems.append(HookProblem("hook-matcher-invalid", MATCHER_INVALID.format(matcher=shown, reason=error)))
            continue
        # Many authors leave out the inner list and write a single hook beside its matcher.
        for item in _items(group["hooks"]) if "hooks" in group else [given]:
            hook = _hook(cast("HookEvent", event), len(hooks), item, matcher)
            if hook is None:
                problems.append(HookProblem("hook-invalid", HOOK_INVALID.format(event=event)))
            elif len(hooks) < MAX_HOOKS:
                hooks.append(hook)
            else:
                problems.append(HookProblem("hooks-too-many", f"Only the first {MAX_HOOKS} hooks of the skill run."))
    return hooks, list(dict.fromkeys(problems))


def _groups(tree: object) -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping):
        for event, groups in tree.items():
            yield from ((str(event), group) for group in _items(groups))


def _items(value: object) -> list[object]:
    found = value if isinstance(value, list | tuple) else [value]
    return [item for item in found if item is not None]


def _hook(event: HookEvent, position: int, item: object, matcher: re.Pattern[str] | None) -> Hook | None:
    if not isinstance(item, Mapping):
        return None
    # Without a type, the key says what kind of hook it is: a bare `command` is common.
    kind = item.get("type") or next((kind for kind, key in _VALUE_KEY.items() if key in item), None)
    if not isinstance(kind, str) or kind not in _VALUE_KEY or item.get("shell") not in _SHELLS:
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
        ValueError: If it is not a regular expression, or is too complex.
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


# How hooks are run: the requests of a plan, and the command lines of a command hook.


Handler: TypeAlias = Callable[[ToolCallRequest], Refuse | Awaitable[Refuse | None] | None]
"""A function that `type: python` calls, sync or async; before a call it may return a `Refuse`."""

MAX_INPUT_CHARACTERS = 1_000_000
"""Longest call that is passed to a command; a longer one cannot be checked."""

MAX_PIPED_CHARACTERS = 60_000
"""How much goes into a command line; Linux takes no argument over 128 KiB, so a longer text goes into a file."""

INPUT_FILE = "input"
"""Name of that file in a job's directory."""

MAX_RESPONSE_CHARACTERS = 100_000
"""How much of a tool's answer is passed to a command."""

CANNOT_START = 126
"""A shell's exit code for what it cannot run, such as a command in an unknown directory."""

TOO_LARGE = f"the call is over {MAX_INPUT_CHARACTERS:,} characters"


def as_json(entry: SkillEntry, hook: Hook, request: ToolCallRequest, result: ToolMessage | Command[Any] | None) -> str:
    """Return the standard input of a command: the call, and after a call the tool's answer.

    Raises:
        SkillsError: If it is too large.
    """
    call = request.tool_call
    told: dict[str, Any] = {"hook_event_name": hook.event, "skill_name": entry.name}
    if hook.event == "SessionStart":
        told |= {"source": call["args"][_SOURCE]}
    else:
        told |= {"tool_name": call["name"], "tool_input": call["args"], "tool_use_id": call["id"]}
    if result is not None:
        told["tool_response"] = _answer(result)[:MAX_RESPONSE_CHARACTERS]
    text = json.dumps(told, default=str).replace("'", "\\u0027")  # a quote costs a shell five characters
    if len(text) > MAX_INPUT_CHARACTERS:
        raise SkillsError(TOO_LARGE)
    return text


def build_command(hook: Hook, given: str, directory: str | None, token: str) -> str:
    """Return the shell command that runs a hook's command, with JSON on its standard input.

    Args:
        hook: The hook.
        given: The JSON.
        directory: The skill's directory; `None` for the copy of the skill among the job's files.
        token: Names the directory of the job's files: the copy, and a long JSON. They are not removed here.
    """
    command = shlex.quote(hook.value)
    limited = (
        f"if {HAS_TIMEOUT}; then timeout -k {KILL_AFTER_SECONDS} {hook.timeout} sh -c {command}; "
        f"else sh -c {command}; fi"
    )
    place = f'"$_ds_job/{COPY}"' if directory is None else shlex.quote(directory)
    prepared = (
        f"cd {place} || exit {CANNOT_START}; SKILL_DIR=$PWD; CLAUDE_SKILL_DIR=$PWD; export SKILL_DIR CLAUDE_SKILL_DIR"
    )
    needed = [f"{COPY}/{SKILL_FILE}"] if directory is None else []
    if directory is None:
        prepared = f"{prepared}; chmod -R u+x . 2>/dev/null"
    if len(given) <= MAX_PIPED_CHARACTERS:
        start = f"{prepared}; printf %s {shlex.quote(given)} | {{ {limited}; }}"
    else:
        needed.append(INPUT_FILE)
        start = f'{prepared}; {{ {limited}; }} <"$_ds_job/{INPUT_FILE}"'
    if needed:
        # Several places may have been made, and only one has the files; a place may be relative.
        found = f'[ -r "$_ds_job/{needed[-1]}" ]'
        absolute = f'{found} && _ds_job=$(cd "$_ds_job" && pwd) || exit {CANNOT_START}'
        start = f"for _ds_job in {job_places(token)}; do {found} && break; done; {absolute}; {start}"
    return f"({start})"


async def ask_handler(handler: Handler, request: ToolCallRequest) -> object:
    """Return a handler's answer, as a plan."""
    return await unwrap(Ask(lambda: handler(request)))


def _answer(result: ToolMessage | Command[Any]) -> str:
    if isinstance(result, ToolMessage):
        return str(result.text)
    messages: Sequence[AnyMessage] = result.update.get("messages", ()) if isinstance(result.update, Mapping) else ()
    return "\n".join(str(message.text) for message in messages)


# The extension: hooks of skills in use, before and after tool calls and at loads.


LOAD_TOOL = "load_skill"
"""The call that a `SessionStart` handler gets: the load of its skill, however the skill was loaded."""

_SOURCE = "source"
"""The argument of that call that says whether the skill was loaded just now (`startup`) or before (`resume`)."""

HOOK_FAILED_CODE = "hook-failed"
HOOK_FAILED_PROBLEM = "A SessionStart hook did not run: {reason}"

COMMAND_REFUSED = (
    "A command hook does not run: commands are off. The application can allow them by SkillHooks(commands=True)."
)
SOURCE_REFUSED = (
    "A command hook does not run: its skill comes from {source}, not all of which are `sources` of SkillHooks."
)
HOOKS_UNKNOWN = "its file cannot be read at the moment"
HANDLER_UNKNOWN = "A hook names the handler {handler!r}, which SkillHooks does not know; it does not run."

UNLOAD_TOOL = "unload_skill"
"""No hook runs before it: otherwise a skill whose hook fails could never be unloaded."""

REFUSES = 2
"""The exit code with which a command refuses a call."""

CANNOT_TELL = frozenset({124, 125, 126, 127, 137, 143})
"""Exit codes of a command that timed out, did not start or was killed."""

MAX_REASON_CHARACTERS = 2_000
MAX_SAID_CHARACTERS = 8_000
"""How many characters of prompts and hook outputs a turn may keep for the next request."""

MAX_REQUEST_CHARACTERS = 8_500
"""How much hooks may put into one request, including the marks around it; the budgets of skills do not count it."""

MAX_ONCE = 1_000
"""For how many `once` hooks a thread remembers that they ran; each edit of a skill makes new ones."""

_SAID = "say:"
_STARTED = "started:"
_ONCE = "once:"
"""Prefixes of keys in private state: a text for the next request; a skill whose `SessionStart` hooks have run; a `once`
hook that has run."""

_BACKSTOP_SECONDS = 2 * KILL_AFTER_SECONDS
"""How much longer than the hook's own limit the backend gets to end it."""


class SkillHooks(SkillExtension):
    """Runs the `PreToolUse`, `PostToolUse` and `SessionStart` hooks of the skills in use.

    Args:
        handlers: Functions that `type: python` may call, by the name in a hook's `handler:`.
        commands: Whether `type: command` runs at all, through the backend's shell.
        sources: Paths of the sources whose skills may run commands.
    """

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

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> MaybeAwaitable[Refuse | None]:
        """Run the hooks before a call; the first that refuses wins."""
        edited = as_edited(request)
        for skill in run.loaded if edited.tool_call["name"] != UNLOAD_TOOL else ():
            # Which hooks it has is unknown, and one may have to check this call. A served skill has none by itself.
            is_unknown = not skill.entry.is_read and skill.entry.origin is None
            if is_unknown and "hooks" not in skill.withheld:
                return _refusal(HOOK_FAILED, edited, skill.entry, HOOKS_UNKNOWN)
        if run.starts_unbound(edited):
            for skill in run.loaded:
                if any(
                    hook.event == "PreToolUse" and self._is_due(skill.entry, hook, run)
                    for hook in self._hooks_of(skill.entry)[0]
                ):
                    tool, name = one_line(edited.tool_call["name"]), f'"{skill.entry.name}"'
                    return Refuse(LIMITS_DO_NOT_TRAVEL.format(tool=tool, skill=name))
        due = self._matching("PreToolUse", edited, run)
        return self._before(due, edited, run) if due else None

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> MaybeAwaitable[ToolMessage | Command[Any]]:
        """Run the hooks after a call; they cannot change its result."""
        edited = as_edited(request)
        due = self._matching("PostToolUse", edited, run)
        return self._after(due, edited, result, run) if due else result

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> MaybeAwaitable[ModelRequest[Any]]:
        """Run the hooks of new loads, and put what hooks said at the end of this request."""
        due = self._starting(run, "startup")
        return self._change(due, request, run) if due else _with_texts(request, run)

    async def _change(
        self, due: Sequence[tuple[SkillEntry, Hook]], request: ModelRequest[Any], run: SkillRun
    ) -> ModelRequest[Any]:
        await self._start(due, "startup", run)
        return _with_texts(request, run)

    def at_start(self, run: SkillRun) -> MaybeAwaitable[None]:
        """Run the `SessionStart` hooks of what was loaded in an earlier run."""
        due = self._starting(run, "resume")
        return self._start(due, "resume", run) if due else None

    def _starting(self, run: SkillRun, source: Literal["startup", "resume"]) -> list[tuple[SkillEntry, Hook]]:
        """Return the `SessionStart` hooks to run, of skills loaded since the last look, or of all the others."""
        _forget(run)
        due: list[tuple[SkillEntry, Hook]] = []
        for skill in run.loaded:
            if skill.is_lost:
                continue
            entry, key = skill.entry, f"{_STARTED}{skill.entry.name}"
            hooks = [hook for hook in self._hooks_of(entry)[0] if hook.event == "SessionStart"]
            if not hooks or (run.memory.get(key) == entry.digest) is (source == "startup"):
                continue
            run.remember(key, entry.digest)
            due += [(entry, hook) for hook in hooks if hook.matches({source}) and self._is_due(entry, hook, run)]
        return due

    async def _start(self, due: Sequence[tuple[SkillEntry, Hook]], source: str, run: SkillRun) -> None:
        for entry, hook in due:
            await self._start_one(entry, hook, source, run)

    async def _start_one(self, entry: SkillEntry, hook: Hook, source: str, run: SkillRun) -> None:
        call = ToolCall(name=LOAD_TOOL, args={"skill_name": entry.name, _SOURCE: source}, id="", type="tool_call")
        request = ToolCallRequest(call, None, run.state, run.runtime)
        try:
            said = await self._perform(entry, hook, request, None, run)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything, and there is no call to refuse
            logger.warning("A SessionStart hook of skill %r failed: %s", entry.name, one_line(str(error)))
            reason = one_line(str(error))[:200] or type(error).__name__
            run.report(entry.path, HOOK_FAILED_CODE, HOOK_FAILED_PROBLEM.format(reason=reason))
            return
        # Texts kept before are visible here, because the hooks of a start run one after the other.
        room = MAX_SAID_CHARACTERS - _length_kept(run)
        if said and room > 0:
            _keep(run, entry, hook, FROM_START_HOOK, said[:room], "")

    async def _before(
        self, due: Sequence[tuple[SkillEntry, Hook]], request: ToolCallRequest, run: SkillRun
    ) -> Refuse | None:
        for entry, hook in due:
            try:
                reason = await self._perform(entry, hook, request, None, run)
            except SkillsError as error:
                return _refusal(HOOK_FAILED, request, entry, str(error))
            if reason is not None:
                return _refusal(HOOK_REFUSED, request, entry, reason)
        return None

    async def _after(
        self,
        due: Sequence[tuple[SkillEntry, Hook]],
        request: ToolCallRequest,
        result: ToolMessage | Command[Any],
        run: SkillRun,
    ) -> ToolMessage | Command[Any]:
        for entry, hook in due:
            try:
                said = await self._perform(entry, hook, request, result, run)
            except SkillsError as error:
                logger.warning("A PostToolUse hook of skill %r did not run: %s", entry.name, one_line(str(error)))
                continue
            except Exception:
                logger.exception("A PostToolUse hook of skill %r failed", entry.name)
                continue
            if said is not None:
                # A call cannot see what parallel calls keep, so each has its own share.
                share = MAX_SAID_CHARACTERS // max(len(_newest_tool_calls(run.state)), 1)
                room = share - _length_kept(run, str(request.tool_call["id"]))
                if room > 0:
                    _keep(run, entry, hook, FROM_HOOK, said[:room], request)
        return result

    async def _perform(
        self,
        entry: SkillEntry,
        hook: Hook,
        request: ToolCallRequest,
        result: ToolMessage | Command[Any] | None,
        run: SkillRun,
    ) -> str | None:
        """Run one hook, and return why it refuses, if it does.

        Raises:
            SkillsError: If the hook could not be run.
        """
        if hook.once:
            run.remember(_once_key(entry, hook), value=True)
        if hook.type == "prompt" and hook.event == "SessionStart":
            return hook.value
        if hook.type == "prompt":
            self._say(run, request, entry, hook)
            return None
        if hook.type == "python":
            # An exception from a handler is the application's error, not the hook's: the seam logs it and refuses the
            # call.
            handler = self._handlers[hook.value]
            verdict = await run.perform(lambda: ask_handler(handler, request))
            return verdict.reason if isinstance(verdict, Refuse) else None
        response = await _run_command(entry, hook, as_json(entry, hook, request, result), run)
        output = clean(str(response.output)).strip()[:MAX_REASON_CHARACTERS]
        if response.exit_code == 0 and hook.event == "SessionStart":
            return output
        if response.exit_code == REFUSES:
            return output or "it gave no reason"
        if _cannot_tell(response.exit_code):
            raise SkillsError(f"its command did not start, or timed out after {hook.timeout} seconds: {output[:200]}")
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
            and self._is_due(skill.entry, hook, run)
            and not (hook.once and _has_earlier(hook, request))
        ]

    def _is_due(self, entry: SkillEntry, hook: Hook, run: SkillRun) -> bool:
        """Whether a hook may run here and, if it runs only once, has not run yet."""
        if hook.once and _once_key(entry, hook) in run.memory:
            return False
        return self._obstacle(entry, hook, run) is None

    def _say(self, run: SkillRun, request: ToolCallRequest, entry: SkillEntry, hook: Hook) -> None:
        """Keep a prompt for the next request, if the prompts of this turn have room for it.

        Calls of one turn run in parallel and do not see what the others keep. So each computes what all of them may
        keep together, and a prompt that several calls ask for has one key.
        """
        tools = [call["name"] for call in _newest_tool_calls(run.state)] or [request.tool_call["name"]]
        room = MAX_SAID_CHARACTERS
        for skill in run.loaded:
            for other in self._hooks_of(skill.entry)[0]:
                about = next((tool for tool in tools if other.matches(_names_of(tool))), None)
                if other.type != "prompt" or other.event == "SessionStart" or about is None:
                    continue
                room -= len(other.value)
                if (skill.entry.name, other.position) == (entry.name, hook.position) and room >= 0:
                    _keep(run, entry, hook, FROM_HOOK, hook.value, about)
                    return
        logger.warning("The hooks of skill %r say more than fits into a request; the rest is left out", entry.name)

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
    """Return a tool's names, here and in the client that most skills with hooks are written for."""
    return {tool, *(alias for alias, name in DEFAULT_ALIASES.items() if name == tool)}


def _newest(state: Mapping[str, Any]) -> AIMessage | None:
    return next((item for item in reversed(state.get("messages", ())) if isinstance(item, AIMessage)), None)


def _newest_tool_calls(state: Mapping[str, Any]) -> Sequence[ToolCall]:
    """Return the calls in the model's newest message, in order."""
    newest = _newest(state)
    return newest.tool_calls if newest is not None else ()


def _newest_answer(state: Mapping[str, Any]) -> str:
    """Return a value that identifies the model's newest message."""
    newest = _newest(state)
    return "" if newest is None else newest.id or ",".join(str(call["id"]) for call in newest.tool_calls)


def _has_earlier(hook: Hook, request: ToolCallRequest) -> bool:
    """Whether the hook runs for an earlier call of the same turn instead; calls that a human rejected do not count."""
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
    return f"{_ONCE}{entry.digest}:{hook.position}"


async def _run_command(entry: SkillEntry, hook: Hook, given: str, run: SkillRun) -> ExecuteResponse:
    """Run a hook's command in its skill's directory, or in a copy of the files that were judged.

    Raises:
        SkillsError: If a file of the skill is refused, or the shell cannot be reached.
    """
    judged = await run.files_to_run(entry)
    directory = await run.directory(entry) if judged is None else None
    files = copies_of(judged or {})
    if len(given) > MAX_PIPED_CHARACTERS:
        files.append((INPUT_FILE, given.encode()))
    token = uuid4().hex
    call = Execute(build_command(hook, given, directory, token), hook.timeout + _BACKSTOP_SECONDS)
    return await run.perform(lambda: _run_with_files(call, token, files))


async def _run_with_files(call: Execute, token: str, files: Sequence[tuple[str, bytes]]) -> ExecuteResponse:
    """Run a command with files of its own, as a plan: it removes them whatever becomes of the command."""
    if not files:
        return await call
    await place_files(token, files)
    try:
        response = await call
    except (SkillsError, asyncio.CancelledError):
        await remove_files(token)
        raise
    await remove_files(token)
    return response


def _keep(run: SkillRun, entry: SkillEntry, hook: Hook, form: str, text: str, about: ToolCallRequest | str) -> None:
    """Keep a text for the next request, the one after the model's latest message."""
    tool, call = (about, "") if isinstance(about, str) else (about.tool_call["name"], str(about.tool_call["id"]))
    skill, tool = (html.escape(field_text(name, 128)) for name in (entry.name, tool))
    body = harmless_body(clean(text))
    # Taken apart again at its colons, so the digest's own is left out.
    key = f"{_SAID}{entry.digest.rpartition(':')[2]}:{hook.position}:{call}"
    run.remember(key, {"after": _newest_answer(run.state), "text": form.format(skill=skill, tool=tool, text=body)})


def _read_kept(run: SkillRun) -> dict[str, str | None]:
    """Return what hooks said, by key; `None` for texts of an earlier request."""
    after = _newest_answer(run.state)
    found = {key: value for key, value in run.memory.items() if key.startswith(_SAID)}
    is_new = {key: isinstance(value, Mapping) and value.get("after") == after for key, value in found.items()}
    return {key: str(value.get("text", "")) if is_new[key] else None for key, value in found.items()}


def _length_kept(run: SkillRun, call: str = "") -> int:
    """Return how much is kept for the next request from a call, or from starts and prompts."""
    return sum(len(text) for key, text in _read_kept(run).items() if text is not None and key.split(":", 3)[3] == call)


def _forget(run: SkillRun) -> None:
    """Forget texts of earlier requests, and the starts of skills that are no longer loaded."""
    once = [key for key in run.memory if key.startswith(_ONCE)]
    for key in once[: max(0, len(once) - MAX_ONCE)]:
        run.remember(key, None)
    for key, text in _read_kept(run).items():
        if text is None:
            run.remember(key, None)
    loaded = {f"{_STARTED}{skill.entry.name}" for skill in run.loaded}
    for key in run.memory:
        if key.startswith(_STARTED) and key not in loaded:
            run.remember(key, None)


def _with_texts(request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
    """Return a request with what hooks said at its end, as much as fits."""
    said: list[str] = []
    for text in dict.fromkeys(filter(None, _read_kept(run).values())):
        if sum(map(len, said)) + len(text) <= MAX_REQUEST_CHARACTERS:
            said.append(text)
    return request.override(messages=[*request.messages, HumanMessage("\n\n".join(said))]) if said else request


def _refusal(text: str, request: ToolCallRequest, entry: SkillEntry, reason: str) -> Refuse:
    tool = one_line(request.tool_call["name"])
    return Refuse(text.format(tool=tool, skill=f'"{entry.name}"', reason=reason[:MAX_REASON_CHARACTERS]))
