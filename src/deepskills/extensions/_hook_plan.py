"""How hooks are run: what a plan asks for, the two drivers that perform it, and the command lines of a command hook."""

import inspect
import json
import shlex
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills import Refuse, SkillEntry, SkillRun, SkillsError
from deepskills._backend.steps import aperform, perform
from deepskills.extensions._hook_reading import Hook

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


@dataclass(frozen=True)
class Execute:
    """Asks the driver to run a shell command."""

    command: str
    timeout: int


@dataclass(frozen=True)
class Ask:
    """Asks the driver to call a handler."""

    handler: Handler
    request: ToolCallRequest


@dataclass(frozen=True)
class Directory:
    """Asks the driver where a skill lies for a shell."""

    entry: SkillEntry


Steps: TypeAlias = Generator[Execute | Ask | Directory, Any, str | None]
"""The run of one hook; returns why it refuses, if it does."""

Plan: TypeAlias = Generator[Execute | Ask | Directory, Any, Refuse | None]
"""The run of all hooks of one call; returns the refusal, if there is one."""


def drive(plan: Plan, run: SkillRun) -> Refuse | None:
    """Perform what a plan asks for, on a sync call."""

    def do(asked: Execute | Ask | Directory) -> object:
        if isinstance(asked, Execute):
            return run.execute(asked.command, timeout=asked.timeout)
        if isinstance(asked, Directory):
            return run.directory(asked.entry)
        return _finished(asked.handler(asked.request))

    return perform(plan, do)


async def adrive(plan: Plan, run: SkillRun) -> Refuse | None:
    """Perform what a plan asks for, on an async call."""

    async def do(asked: Execute | Ask | Directory) -> object:
        if isinstance(asked, Execute):
            return await run.aexecute(asked.command, timeout=asked.timeout)
        if isinstance(asked, Directory):
            return await run.adirectory(asked.entry)
        reply = asked.handler(asked.request)
        return await reply if inspect.isawaitable(reply) else reply

    return await aperform(plan, do)


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


def _finished(reply: object) -> object:
    if inspect.isawaitable(reply):
        if inspect.iscoroutine(reply):
            reply.close()
        raise SkillsError(ASYNC_HANDLER)
    return reply


def _answer(result: ToolMessage | Command[Any]) -> str:
    if isinstance(result, ToolMessage):
        return str(result.text)
    messages: Sequence[AnyMessage] = result.update.get("messages", ()) if isinstance(result.update, Mapping) else ()
    return "\n".join(str(message.text) for message in messages)
