"""Frontmatter `hooks` of skills in use: what happens before and after tool calls."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from deepskills import Answer, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsError
from deepskills._format.text import clean, one_line
from deepskills.extensions._edits import as_edited
from deepskills.extensions._hook_plan import (
    Ask,
    Directory,
    Execute,
    Handler,
    Plan,
    Steps,
    adrive,
    as_json,
    command_lines,
    drive,
)
from deepskills.extensions._hook_reading import Hook, HookEvent, HookProblem, read_hooks
from deepskills.extensions._sources import tidy_source, tidy_sources
from deepskills.extensions.tool_policy import DEFAULT_ALIASES

logger = logging.getLogger("deepskills")

REFUSED_BY_HOOK = "Tool `{tool}` was not run: a hook of the skill {skill} refused it: {reason}"
HOOK_FAILED = (
    "Tool `{tool}` was not run: a hook of the skill {skill} that has to look at the call first did not run ({reason}). "
    "Tell the user, or unload_skill if the skill is no longer needed."
)
FROM_HOOK = '<skill_hook skill="{skill}" tool="{tool}">\n{text}\n</skill_hook>'
COMMAND_REFUSED = (
    "A command hook does not run: commands are off. The application can allow them by SkillHooks(commands=True)."
)
SOURCE_REFUSED = (
    "A command hook does not run: its skill comes from {source}, which is not among the `sources` of SkillHooks."
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
        self._read = lru_cache(maxsize=256)(_read_by_content)

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Report the hooks that will not run; the load itself passes."""
        hooks, problems = self._hooks_of(load.entry)
        for problem in dict.fromkeys([*problems, *filter(None, (self._obstacle(load.entry, hook) for hook in hooks))]):
            run.report(load.entry.path, problem.code, problem.message)
        return None

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Run the hooks before a call; the first that refuses wins."""
        return drive(self._before(as_edited(request), run), run)

    async def abefore_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Run the hooks before a call; the first that refuses wins."""
        return await adrive(self._before(as_edited(request), run), run)

    def after_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Run the hooks after a call; they cannot change its result."""
        drive(self._after(as_edited(request), result, run), run)
        return result

    async def aafter_tool(
        self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun
    ) -> ToolMessage | Command[Any]:
        """Run the hooks after a call; they cannot change its result."""
        await adrive(self._after(as_edited(request), result, run), run)
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

    def _before(self, request: ToolCallRequest, run: SkillRun) -> Plan:
        for entry, hook in self._matching("PreToolUse", request, run):
            try:
                reason = yield from self._perform(entry, hook, request, None, run)
            except SkillsError as error:
                return _refusal(HOOK_FAILED, request, entry, str(error))
            if reason is not None:
                return _refusal(REFUSED_BY_HOOK, request, entry, reason)
        return None

    def _after(self, request: ToolCallRequest, result: ToolMessage | Command[Any], run: SkillRun) -> Plan:
        for entry, hook in self._matching("PostToolUse", request, run):
            try:
                said = yield from self._perform(entry, hook, request, result, run)
            except GraphBubbleUp:
                raise
            except Exception:
                logger.exception("A PostToolUse hook of skill %r failed", entry.name)
                continue
            if said is not None:
                _say(run, request, entry, hook, said)
        return None

    def _perform(
        self,
        entry: SkillEntry,
        hook: Hook,
        request: ToolCallRequest,
        result: ToolMessage | Command[Any] | None,
        run: SkillRun,
    ) -> Steps:
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
            verdict = yield Ask(self._handlers[hook.value], request)
            return verdict.reason if isinstance(verdict, Refuse) else None
        directory = yield Directory(entry)
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
            logger.warning("A hook of skill %r ended with exit code %s: %s", entry.name, response.exit_code, output)
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
            and self._obstacle(skill.entry, hook) is None
            and not (hook.once and (_once_key(skill.entry, hook) in run.memory or _has_earlier(hook, request)))
        ]

    def _hooks_of(self, entry: SkillEntry) -> tuple[list[Hook], list[HookProblem]]:
        tree = entry.frontmatter.get("hooks")
        return self._read(json.dumps(tree, default=str)) if tree is not None else ([], [])

    def _obstacle(self, entry: SkillEntry, hook: Hook) -> HookProblem | None:
        """Return why a hook does not run in this application."""
        if hook.type == "python" and hook.value not in self._handlers:
            return HookProblem("hook-handler-unknown", HANDLER_UNKNOWN.format(handler=one_line(hook.value)[:50]))
        if hook.type == "command" and not self._commands:
            return HookProblem("hook-command-refused", COMMAND_REFUSED)
        if hook.type == "command" and tidy_source(entry.source) not in self._sources:
            return HookProblem("hook-command-refused", SOURCE_REFUSED.format(source=one_line(entry.source)))
        return None


def _read_by_content(text: str) -> tuple[list[Hook], list[HookProblem]]:
    return read_hooks(json.loads(text))


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
    body = clean(text).replace("</skill_hook", "< /skill_hook")
    said = FROM_HOOK.format(skill=entry.name, tool=one_line(request.tool_call["name"]), text=body)
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
