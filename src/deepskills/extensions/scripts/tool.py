"""`SkillScripts`: a tool that runs scripts of loaded skills, through the backend's shell or the operator's function.

A run is a plan (`deepskills._io.plan`), performed by `SkillRun.perform`: commands are `Execute`, files for the shell
`WriteFiles`, the operator's functions `CallFunction`, and methods of the seam `Ask`.

A script runs outside this process, so it does not end by itself. If we give up on one (a time limit, a failure, a
cancelled run), we have to end it through the same shell: each place that started or wrote something catches
`asyncio.CancelledError`, runs the command that ends or removes it, and raises it again.
"""

import asyncio
import hashlib
import logging
import re
import secrets as random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from deepagents.backends.protocol import ExecuteResponse
from langchain.agents.middleware.types import ModelRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, Field, field_validator

from deepskills import SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillScriptRun, SkillsError, SkillsMiddleware
from deepskills._files.paths import script_to_relative
from deepskills._io.plan import Ask, Attempt, CallFailed, CallFunction, Execute, Failed, Work, unwrap
from deepskills._prompt.messages import RUN_SCRIPT_DESCRIPTION, SCRIPT_ENDED, SCRIPT_MAY_GO_ON, word_refusal
from deepskills._skillmd.masking import Masker
from deepskills._skillmd.names import find_meant_name
from deepskills._skillmd.problems import listed, problem, quoted
from deepskills._skillmd.text import harmless_body, is_text
from deepskills.extensions._shared import COPY, GRACE_SECONDS, LocalCopy, MaybeAwaitable, copies_of, place_files
from deepskills.extensions.scripts.command import (
    JOB_FILE,
    MAX_COMMAND_BYTES,
    MAX_KEPT_BYTES,
    Failure,
    Job,
    Report,
    check_arguments,
    find_interpreters,
    read_report,
    start_command,
    stop_command,
)
from deepskills.extensions.scripts.output import MIN_OUTPUT, describe_exit_code, mask_text, shorten_output

logger = logging.getLogger("deepskills")

MAX_ERROR_LENGTH = 1_000
"""How much of what a backend or a runner said about a failure is shown."""

MAX_COPIED_FILES = 50
"""How many other files of a skill are copied along with its script."""

MAX_COPIED_BYTES = 4_000_000
"""Their largest total size; the rest is not copied."""

RUNNER_GRACE_SECONDS = 5
"""How long after its time limit a runner may take to end a script and return."""

LATE_FUNCTION = "The operator's function did not answer in time. What it started may still be running."

_FAILURES: dict[Failure, str] = {
    "no-script": "The shell of the backend does not have the script {script}, and a copy did not arrive there.",
    "no-interpreter": "The shell of the backend has none of the programs that run {script}: {programs}.",
    "no-job": (
        "The shell of the backend cannot read the files that the backend writes, so the script did not start. "
        "Secrets and long arguments cannot be passed this way."
    ),
    "no-room": "The shell of the backend cannot write to its temporary directory, so the script did not start.",
}


@dataclass(frozen=True)
class ScriptOutcome:
    """The result of a script that ran."""

    output: str
    """What it wrote, as a model may read it."""

    exit_code: int | None
    """`None` if it was killed, or if the code is unknown."""

    timed_out: bool = False
    is_ended: bool = True
    """Whether it is known to have ended."""


@dataclass(frozen=True)
class ScriptCall:
    """A script of a skill, and how to run it."""

    entry: SkillEntry
    script_name: str
    arguments: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    seconds: int
    max_output: int
    other_files: Sequence[str] = ()
    """Other files of the skill, relative to it, that are copied along with the script."""

    directory: str = ""
    """The directory that the script's name is relative to, if it is not the usual one."""

    @property
    def relative_path(self) -> str:
        """The script's path below its skill."""
        return f"{self.directory}/{self.script_name}" if self.directory else script_to_relative(self.script_name)

    def among(self, files: Mapping[str, bytes]) -> "ScriptCall":
        """Return the call with the script's path among a skill's files."""
        return self if self.relative_path in files else self._in_singular()

    def at(self, path: str) -> "ScriptCall":
        """Return the call for a script at a path: authors also call the directory `script/`."""
        singular = self._in_singular()
        is_singular = path.endswith(f"/{singular.relative_path}") and not path.endswith(f"/{self.relative_path}")
        return singular if is_singular else self

    def _in_singular(self) -> "ScriptCall":
        name = self.relative_path.removeprefix("scripts/").removeprefix("script/")
        return replace(self, directory="script", script_name=name)

    @cached_property
    def secrets(self) -> Masker:
        """Takes the values that its output must not show out of it."""
        return Masker(self.env.values())


async def run_in_shell(call: ScriptCall, run: SkillRun) -> ScriptOutcome:
    """Run a script in the backend's shell.

    Raises:
        SkillsError: If the script cannot be started, or the backend did not let it finish.
    """
    check_arguments(call.arguments, call.env)
    # If there are files, somebody judged them: then only a copy of those bytes may run, never what is there now.
    files = await _files_to_run(call, run)
    if files is None:
        path = await _locate(call, run)
        call = call.at(path)
        content = await _read(call.entry, call.relative_path, run)
    else:
        call = call.among(files)
        path, content = call.relative_path, files[call.relative_path]
    job = Job(
        token=_token(),
        path=path,
        script=call.relative_path,
        digest=hashlib.sha256(content).hexdigest(),
        interpreters=find_interpreters(call.relative_path, content),
        arguments=call.arguments,
        env=call.env,
        seconds=call.seconds,
        keep=min(call.max_output // 2 + call.secrets.longest, MAX_KEPT_BYTES),
    )
    report = await _start(job, copies_of(files) if files is not None else [], call.secrets)
    if report.failure == "no-script" and files is None:
        # The shell does not see the backend's files (a sandbox beside a store), or the file changed since.
        report = await _start(replace(job, token=_token()), await _copies(call, content, run), call.secrets)
    if report.failure is not None:
        programs = listed(dict.fromkeys(words[0] for words in job.interpreters))
        raise SkillsError(_FAILURES[report.failure].format(script=quoted(call.relative_path), programs=programs))
    output = shorten_output(report.head, report.tail, report.total, call.secrets, call.max_output)
    return ScriptOutcome(output, report.exit_code, report.timed_out, report.is_ended)


def _token() -> str:
    return random.token_hex(16)


async def _files_to_run(call: ScriptCall, run: SkillRun) -> Mapping[str, bytes] | None:
    """Return the files to copy and run, as they were judged; `None` if the script runs where it is."""
    asked: Ask[Mapping[str, bytes] | None] = Ask(lambda: run.files_to_run(call.entry, call.script_name))
    files = await unwrap(asked)
    if files is None or not call.entry.is_dynamic:
        return files
    # Nobody knows all files of a dynamic skill; those that its load listed are copied.
    copies = await _copies(call, files[call.among(files).relative_path], run)
    return {**{path.removeprefix(f"{COPY}/"): content for path, content in copies}, **files}


async def _locate(call: ScriptCall, run: SkillRun) -> str:
    """Return the path at which a shell runs the script; the seam checks it."""
    return await unwrap(Ask(lambda: run.script_path(call.entry, call.script_name)))


async def _read(entry: SkillEntry, path: str, run: SkillRun) -> bytes:
    """Return the content of a skill's file; the seam checks its path."""
    return await unwrap(Ask(lambda: run.read_file(entry, path)))


async def _start(job: Job, copies: Sequence[tuple[str, bytes]], secrets: Masker) -> Report:
    """Run a job: from a copy of the skill if there is one, and from a file what no command line may hold.

    Raises:
        SkillsError: If its files cannot be written, or the backend did not let it finish.
    """
    job = replace(job, is_copied=bool(copies))
    command = job.command()
    if copies or job.env or len(command.encode()) > MAX_COMMAND_BYTES:
        await place_files(job.token, [*copies, (JOB_FILE, job.text().encode())])
        command = start_command(job.token)
    return await _report(job, command, secrets)


async def _copies(call: ScriptCall, content: bytes, run: SkillRun) -> list[tuple[str, bytes]]:
    """Return the script and as many of the skill's other files as can be read and fit, because it may use them."""
    copies = [(f"{COPY}/{call.relative_path}", content)]
    room = MAX_COPIED_BYTES
    for path in call.other_files[:MAX_COPIED_FILES]:
        if path == call.relative_path:
            continue
        try:
            data = await _read(call.entry, path, run)
        except SkillsError:
            # The script may work without the file; if not, it will say so.
            continue
        if len(data) <= room:
            room -= len(data)
            copies.append((f"{COPY}/{path}", data))
    return copies


async def _report(job: Job, command: str, secrets: Masker) -> Report:
    """Start a job, wait for its end, and return what it reported."""
    try:
        response = await Execute(command, job.seconds + GRACE_SECONDS)
    except CallFailed as failure:
        # A command that is late may still start; one that failed will not.
        await _quietly(stop_command(job.token, may_start=failure.timed_out))
        if failure.timed_out:
            return _LATE
        raise
    except asyncio.CancelledError:
        await _end(stop_command(job.token))
        raise
    report = read_report(response.output, job.token)
    if report is not None:
        return report
    await _quietly(stop_command(job.token, may_start=False))
    if response.exit_code == TIMED_OUT:
        return _LATE
    raise SkillsError(
        f"The backend ended the command before the script had finished (exit code {response.exit_code}). "
        f"It said: {mask_text(response.output, secrets, MAX_ERROR_LENGTH)}"
    )


TIMED_OUT = 124
"""The exit code with which backends answer for a command that they gave up on at its time limit."""

_LATE = Report(timed_out=True, is_ended=False)


async def _quietly(command: str) -> None:
    """Clean up after a failure; only that failure is reported, whatever happens here."""
    await Attempt(Execute(command, GRACE_SECONDS))


async def _end(command: str) -> None:
    """End what a cancelled run had started."""
    reply = await Attempt(Execute(command, GRACE_SECONDS))
    if isinstance(reply, Failed):
        logger.warning("A script of a cancelled run could not be ended: %s", type(reply.error).__name__)


async def run_by_function(call: ScriptCall, runner: Callable[..., Any], run: SkillRun) -> ScriptOutcome:
    """Run a script with the operator's function.

    Raises:
        SkillsError: If it raises, times out, or does not return a response.
    """
    check_arguments(call.arguments, call.env)
    files = await _files_to_run(call, run)
    if files is None:
        path = await _locate(call, run)
        response = await _answer_of(runner, path, call)
    else:
        copied = await unwrap(Work(lambda: LocalCopy(call.entry, files)))
        try:
            response = await _answer_of(runner, copied.path(call.among(files).relative_path), call)
        except GeneratorExit:
            # An interrupt from LangGraph closes the plan: no more requests can be made.
            copied.remove()
            raise
        except BaseException:
            await Work(copied.remove)
            raise
        await Work(copied.remove)
    output, code = getattr(response, "output", None), getattr(response, "exit_code", None)
    if not isinstance(output, str) or not (code is None or isinstance(code, int)):
        raise SkillsError(f"The runner returned {type(response).__name__}, not an ExecuteResponse.")
    text = mask_text(output, call.secrets, call.max_output)
    cut = "\n[The runner cut the output.]" if getattr(response, "truncated", False) else ""
    return ScriptOutcome(text + cut, code)


async def _answer_of(runner: Callable[..., Any], path: str, call: ScriptCall) -> object:
    """Return the answer of the operator's function for a script at a path."""
    given = (call.entry.name, path, list(call.arguments), dict(call.env), call.seconds)
    try:
        return await CallFunction(runner, given, seconds=call.seconds + RUNNER_GRACE_SECONDS)
    except CallFailed as failure:
        if failure.timed_out or isinstance(failure.error, TimeoutError):
            raise SkillsError(LATE_FUNCTION) from failure
        raise SkillsError(f"The operator's function failed: {failure.reason}") from failure


async def can_execute(run: SkillRun) -> bool:
    """Whether the backend runs commands; a user's function may have to create the backend first."""
    return await unwrap(CallFunction(lambda: run.can_execute, seconds=None))


TOOL_NAME = "run_skill_script"

ENV_FAILED = "script-env-failed"
"""Code of the problem that says why scripts have no environment."""

Env: TypeAlias = Callable[[Any, SkillEntry], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None]
"""Returns the environment variables of a script's process, from the run's runtime and the skill."""

Runner: TypeAlias = Callable[[str, str, list[str], dict[str, str], int], ExecuteResponse | Awaitable[ExecuteResponse]]
"""Runs a script: skill name, path, arguments, environment, time limit in seconds."""

_VARIABLE = re.compile(r"(?!_ds_)[A-Za-z_][A-Za-z0-9_]*")


class ScriptArguments(BaseModel):
    """Arguments of `run_skill_script`."""

    skill_name: str = Field(description="The loaded skill's name.")
    script_name: str = Field(description="Path of the script relative to the skill's `scripts/` directory.")
    args: list[str] = Field(default_factory=list, description="Arguments for the script, one string each.")

    @field_validator("args", mode="before")
    @classmethod
    def _as_texts(cls, value: object) -> object:
        if value is None:
            return []
        if not isinstance(value, list):
            return value
        return [str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in value]


class SkillScripts(SkillExtension):
    """Gives the model `run_skill_script`: a script of a loaded skill, with arguments that no shell interprets.

    It runs through the backend's `execute`, or through `runner` if the backend has none; with neither, the tool is not
    offered. A script that takes too long is killed, with every process that is recognizably its own. If an extension
    judges files, as `SkillLock` and `SkillApproval` do, the very bytes that were judged run from a private copy of the
    skill, and `runner` gets a path in it.

    Args:
        runner: Called as `runner(skill_name, path, args, env, timeout)` if the backend cannot execute; sync or async,
            returns deepagents' `ExecuteResponse`.
        env: Called as `env(runtime, skill)`; returns environment variables for the script's process, such as keys. No
            value appears in messages, logs, events or state, and output that repeats one is masked.
        timeout: Seconds after which a script is killed. `env` must return within that time, too.
        max_output: How many characters of output the model reads: the head and the tail if there are more.

    Raises:
        ValueError: If `timeout` or `max_output` is too small, or `runner` or `env` is not a function.
    """

    def __init__(
        self, runner: Runner | None = None, env: Env | None = None, timeout: int = 60, max_output: int = 20_000
    ) -> None:
        _check_number("timeout", timeout, 1)
        _check_number("max_output", max_output, MIN_OUTPUT)
        for name, function in (("runner", runner), ("env", env)):
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function, got {type(function).__name__}")
        self._runner, self._env = runner, env
        self._timeout, self._max_output = timeout, max_output

    def tools(self, host: SkillsMiddleware[Any, Any]) -> Sequence[BaseTool]:
        """Return the tool that runs scripts."""

        async def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolMessage | Command[Any]:  # noqa: ANN401 - checked by the schema
            try:
                run = await host.arun_for(self, runtime.state, runtime)
                return await run.perform(lambda: self._answer(run, runtime, arguments))
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - no exception leaves a tool; the model reads what it may
                return _answer(error, runtime)

        return [
            StructuredTool.from_function(
                coroutine=call,
                name=TOOL_NAME,
                description=RUN_SCRIPT_DESCRIPTION,
                args_schema=ScriptArguments,
                infer_schema=False,
            )
        ]

    def at_start(self, run: SkillRun) -> MaybeAwaitable[None]:
        """Report that nothing could run a script."""
        if self._runner is not None:
            return None
        if run.is_async:
            return self._acheck(run)
        if not run.can_execute:
            _report_missing_runner(run)
        return None

    async def _acheck(self, run: SkillRun) -> None:
        if not await run.perform(lambda: can_execute(run)):
            _report_missing_runner(run)

    def before_load(self, load: SkillLoad, run: SkillRun) -> None:
        """Remember a skill's files, to copy them with a script to a shell that does not have the skill."""
        directory = load.entry.path.rpartition("/")[0]
        paths = [item["path"].removeprefix(f"{directory}/") for item in load.resources]
        if len(paths) > 1:
            run.remember(load.entry.name, paths[:MAX_COPIED_FILES])

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> MaybeAwaitable[ModelRequest[Any]]:
        """Leave out the tool if nothing could run a script."""
        if self._runner is not None:
            return request
        if run.is_async:
            return self._ashown(request, run)
        return request if run.can_execute else _without_tool(request)

    async def _ashown(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        return request if await run.perform(lambda: can_execute(run)) else _without_tool(request)

    async def _answer(
        self, run: SkillRun, runtime: "ToolRuntime[Any, Any]", arguments: Mapping[str, Any]
    ) -> ToolMessage | Command[Any]:
        """Return what the model reads, and the problems that were found on the way, for state."""
        outcome: ScriptOutcome | Exception
        try:
            outcome = await self._plan(run, **arguments)
        except Exception as error:  # noqa: BLE001 - a plan never sees LangGraph's own exceptions
            outcome = error
        answer = _answer(outcome, runtime, self._timeout)
        return Command(update={**run.update, "messages": [answer]}) if run.update else answer

    async def _plan(self, run: SkillRun, skill_name: str, script_name: str, args: Sequence[str] = ()) -> ScriptOutcome:
        entry = _load(run, skill_name)
        has_shell = await can_execute(run)
        if not has_shell and self._runner is None:
            raise SkillsError("Scripts cannot be run here: the backend has no shell. Work without the script.")
        env = await self._variables(run, entry)
        remembered = run.memory.get(entry.name)
        others = [path for path in remembered if isinstance(path, str)] if isinstance(remembered, list) else []
        call = ScriptCall(entry, script_name, args, env, self._timeout, self._max_output, others)
        started = time.monotonic()
        try:
            if has_shell or self._runner is None:
                outcome = await run_in_shell(call, run)
            else:
                outcome = await run_by_function(call, self._runner, run)
        except SkillsError as error:
            # The message may contain a value, and so may the exception that caused it.
            raise SkillsError(mask_text(str(error), call.secrets, MAX_ERROR_LENGTH)) from None
        seconds = round(time.monotonic() - started, 3)
        run.emit(
            SkillScriptRun(
                skill=entry.name,
                script=call.relative_path,
                exit_code=outcome.exit_code,
                seconds=seconds,
                source=entry.source,
                digest=entry.digest,
                trigger="model",
            )
        )
        late = f"timed out after {self._timeout} s"
        ended = late if outcome.timed_out else describe_exit_code(outcome.exit_code)
        logger.info("Ran script %r of skill %r: %s, %.1f s", call.relative_path, entry.name, ended, seconds)
        return outcome

    async def _variables(self, run: SkillRun, entry: SkillEntry) -> dict[str, str]:
        """Return what the operator's function returns; problems with it are reported without any value."""
        if self._env is None:
            return {}
        try:
            given = await CallFunction(self._env, (run.runtime, entry), seconds=self._timeout)
        except CallFailed as failure:
            # Only the type: the message of an error may contain a value of the environment.
            cause = type(failure.__cause__).__name__
            raise _without_environment(
                run, entry, f"The environment of the script could not be prepared ({cause})."
            ) from None
        if given is None:
            return {}
        fault = _fault_of(given)
        if fault is not None:
            raise _without_environment(run, entry, fault)
        return dict(given)


def _fault_of(env: object) -> str | None:
    """Return what is wrong with the result of the operator's function, without any value; `None` if nothing is."""
    if not isinstance(env, Mapping):
        return f"The environment of the script is not a mapping but {type(env).__name__}."
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            return "The environment of the script has a variable whose name no shell takes."
        if not isinstance(value, str) or "\x00" in value or not is_text(value):
            return f"The value of the variable {name} is not text that a process can be given."
    return None


def _without_environment(run: SkillRun, entry: SkillEntry, fault: str) -> SkillsError:
    """Report what is wrong with the environment to the operator, and return the answer for the model."""
    message = f"{fault} No script of the skill runs until the function `env` of SkillScripts is fixed."
    run.report(entry.path, ENV_FAILED, message, "error")
    return SkillsError(fault)


def _report_missing_runner(run: SkillRun) -> None:
    found = problem("extensions", "script-runner-missing")
    run.report(found["path"], found["code"], found["message"], found["severity"])


def _without_tool(request: ModelRequest[Any]) -> ModelRequest[Any]:
    return request.override(tools=[tool for tool in request.tools if getattr(tool, "name", None) != TOOL_NAME])


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")


def _load(run: SkillRun, name: str) -> SkillEntry:
    """Return the loaded skill with that name, ignoring case.

    Raises:
        SkillsError: If it is not loaded, or its file is out of reach; a skill that the model cannot see is reported
            like one that does not exist.
    """
    withheld = {skill.entry.name for skill in run.loaded if "scripts" in skill.withheld}
    loaded = [skill.entry for skill in run.loaded if not skill.is_lost]
    meant = find_meant_name([entry.name for entry in loaded], name)
    entry = next((entry for entry in loaded if entry.name == meant), None)
    if entry is not None and not entry.is_read:
        raise SkillsError(f"The skill {quoted(name)} cannot be read at the moment. Try again later.")
    if entry is not None and entry.name in withheld:
        raise SkillsError(f"Scripts of the skill {quoted(name)} were not approved. Work without them, or ask the user.")
    if entry is not None:
        return entry
    if find_meant_name([entry.name for entry in run.visible], name) is not None:
        raise SkillsError(f"The skill {quoted(name)} is not loaded. Call `load_skill` first, then run its scripts.")
    now = f"Loaded now: {listed([e.name for e in loaded])}." if loaded else "No skill is loaded."
    raise SkillsError(f"No loaded skill is named {quoted(name)}. {now}")


def _answer(outcome: ScriptOutcome | Exception, runtime: "ToolRuntime[Any, Any]", seconds: int = 0) -> ToolMessage:
    """Return what the model reads; as for shell commands, a script that ran to its end is not a failed call."""
    code: int | None = None
    is_error = True
    if isinstance(outcome, SkillsError):
        text = word_refusal(str(outcome))
    elif isinstance(outcome, Exception):
        # Its message may contain anything, so neither the log nor the model gets it.
        logger.error("%s failed: %s", TOOL_NAME, type(outcome).__name__)
        text = f"Error: {TOOL_NAME} failed ({type(outcome).__name__}). Work without it."
    else:
        code, is_error = outcome.exit_code, outcome.timed_out
        how = (
            (SCRIPT_ENDED if outcome.is_ended else SCRIPT_MAY_GO_ON).format(seconds=seconds)
            if outcome.timed_out
            else f"The script ended with {describe_exit_code(code)}."
        )
        text = f"{how} Its output:\n{harmless_body(outcome.output)}" if outcome.output else f"{how} It wrote nothing."
    return ToolMessage(
        text,
        name=TOOL_NAME,
        tool_call_id=runtime.tool_call_id or "",
        status="error" if is_error else "success",
        artifact=None if code is None else {"exit_code": code},
    )
