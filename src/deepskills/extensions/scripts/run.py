"""Which program runs a script: its shebang tells, else its suffix. Pure.

Calls of an operator's functions, sync or async, from sync or async code, without blocking and within a time.

Plans: run a script of a skill through a shell, or through a function of the operator's.

A plan yields one step at a time, is sent what came of it, and returns an outcome; a step that fails is thrown into it
as `SkillsError`. Who drives the plan decides whether steps block.

Drivers of the plans that run scripts: the same steps on a run's sync and on its async methods.
"""

import asyncio
import hashlib
import inspect
import logging
import posixpath
import secrets as random
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from langgraph.errors import GraphBubbleUp

from deepskills import SkillRun
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillFormatError, SkillsError
from deepskills._files.paths import script_to_relative
from deepskills._io.drivers import aperform, in_thread, needs_loop, perform
from deepskills._skillmd.problems import listed, quoted
from deepskills.extensions.scripts.command import (
    GRACE_SECONDS,
    JOB_FILE,
    MAX_COMMAND_BYTES,
    MAX_KEPT_BYTES,
    Failure,
    Job,
    Report,
    check_arguments,
    is_absent,
    job_directories,
    prepare_command,
    read_report,
    remove_command,
    start_command,
    stop_command,
)
from deepskills.extensions.scripts.output import Secrets, masked_text, shown_output

logger = logging.getLogger("deepskills")


INTERPRETERS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".py": (("python3",), ("python",)),
    ".sh": (("bash",), ("sh",)),
    ".bash": (("bash",),),
    ".js": (("node",),),
    ".mjs": (("node",),),
    ".cjs": (("node",),),
}
"""By suffix: programs with their options, the first that exists is taken."""

MAX_SHEBANG_BYTES = 1_024
"""Longest first line that is read as a shebang."""


def interpreters(path: str, content: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the programs that can run a script, best first, each with its options.

    Raises:
        SkillFormatError: If neither the first line nor the suffix names one.
    """
    by_suffix = INTERPRETERS.get(posixpath.splitext(path)[1].lower(), ())
    by_shebang = _from_shebang(content)
    found = tuple(dict.fromkeys((*by_shebang, *by_suffix)))
    if not found:
        raise SkillFormatError(
            f"Cannot tell which program runs {quoted(path)}. "
            f"The script needs a first line such as `#!/usr/bin/env python3`, or one of the suffixes "
            f"{', '.join(INTERPRETERS)}."
        )
    return found


def _from_shebang(content: bytes) -> tuple[tuple[str, ...], ...]:
    line = content[: MAX_SHEBANG_BYTES + 1].removeprefix(b"\xef\xbb\xbf").splitlines()[:1]
    if not line or not line[0].startswith(b"#!") or len(line[0]) > MAX_SHEBANG_BYTES or b"\x00" in line[0]:
        return ()
    try:
        words = shlex.split(line[0][2:].decode())
    except ValueError:
        return ()
    if not words:
        return ()
    program, *options = words
    name = posixpath.basename(program)
    if name != "env":
        # Another machine may have the same program in another place.
        return ((program, *options), (name, *options)) if name else ()
    if options[:1] in (["-S"], ["--split-string"]):
        options = options[1:]
    elif options and options[0].startswith("-S"):
        options[0] = options[0][2:]
    if not options:
        return ()
    # What sets variables or has further options is left to `env` itself.
    return (("env", *options),) if options[0].startswith("-") or "=" in options[0] else (tuple(options),)


# Calls of an operator's functions, sync or async, from sync or async code, without blocking and within a time.


def call_function(function: Callable[..., Any], given: Sequence[object], seconds: float | None) -> Any:  # noqa: ANN401
    """Return what a function returns; an async one runs on an event loop of its own.

    Raises:
        TimeoutError: If it does not answer in time; it is left alone then.
    """
    return in_thread(_finished, function, given).result(seconds)


def _finished(function: Callable[..., Any], given: Sequence[object]) -> Any:  # noqa: ANN401 - whatever it returns
    value = _called(function, given)
    return asyncio.run(_waited(value)) if inspect.isawaitable(value) else value


def _called(function: Callable[..., Any], given: Sequence[object]) -> Any:  # noqa: ANN401 - whatever it returns
    """Return what a function returns; one that wants to end the process, as scripts do, has only failed."""
    try:
        return function(*given)
    except SystemExit as error:
        raise _exited(error) from error


def _exited(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"it called exit({error.code!r})")


async def _waited(value: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever it returns
    try:
        return await value
    except SystemExit as error:
        raise _exited(error) from error


async def acall_function(function: Callable[..., Any], given: Sequence[object], seconds: float | None) -> Any:  # noqa: ANN401
    """Return what a function returns; an async one runs on this event loop, any other in a thread.

    Raises:
        TimeoutError: If it does not answer in time; an async one is cancelled then, any other left alone.
    """
    async with asyncio.timeout(seconds):
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await _waited(function(*given))
        value = await asyncio.wrap_future(in_thread(_called, function, given))
        return await _waited(value) if inspect.isawaitable(value) else value


# Plans: run a script of a skill through a shell, or through a function of the operator's.
#
# A plan yields one step at a time, is sent what came of it, and returns an outcome; a step that fails is thrown into it
# as `SkillsError`. Who drives the plan decides whether steps block.


MAX_ERROR_LENGTH = 1_000
"""How much of what a backend or a runner said about a failure is shown."""

MAX_COPIED_FILES = 50
"""How many further files of a skill go with a copy of its script."""

MAX_COPIED_BYTES = 4_000_000
"""How large all of them may be together; what would be more stays behind."""

RUNNER_GRACE_SECONDS = 5
"""How long after its time limit a runner may take to end a script and to answer."""

_FAILURES: dict[Failure, str] = {
    "no-script": "The shell of the backend does not have the script {script}, and a copy did not arrive there.",
    "no-interpreter": "The shell of the backend has none of the programs that run {script}: {programs}.",
    "no-job": (
        "The shell of the backend cannot read the files that the backend writes, so the script did not start. "
        "Secrets and long arguments cannot be passed this way."
    ),
    "no-room": "The shell of the backend cannot write to its temporary directory, so the script did not start.",
    "stopped": "The script was stopped before it started.",
}


@dataclass(frozen=True)
class Execute:
    """Run a shell command through the backend; gives deepagents' `ExecuteResponse`."""

    command: str
    seconds: int
    stop: str = ""
    """The command that ends it from outside, for when nobody waits for it any more."""

    is_brief: bool = False
    """Whether it ends soon by itself: then it is waited for, and what it made is removed after that."""


@dataclass(frozen=True)
class WriteFiles:
    """Write files where the shell of the backend finds them, and nowhere else: they may hold secrets."""

    files: tuple[tuple[str, bytes], ...] = field(repr=False)
    stop: str = ""
    """The command that removes them, for when nobody waits any more."""


@dataclass(frozen=True)
class LocateScript:
    """Ask for the path by which a shell runs a script."""

    entry: SkillEntry
    script_name: str


@dataclass(frozen=True)
class ReadFile:
    """Ask for the content of a skill's file."""

    entry: SkillEntry
    relative_path: str
    stop: str = ""
    """The command that removes what was prepared before, for when nobody waits any more."""


@dataclass(frozen=True)
class AskForShell:
    """Ask whether the backend runs commands."""


@dataclass(frozen=True)
class CallFunction:
    """Call a function of the operator's, sync or async; gives what it returns."""

    function: Callable[..., Any]
    given: tuple[Any, ...] = field(repr=False)
    seconds: float | None = None


Step: TypeAlias = Execute | WriteFiles | LocateScript | ReadFile | AskForShell | CallFunction
ResultT = TypeVar("ResultT")
ScriptPlan: TypeAlias = Generator[Step, Any, ResultT]


@dataclass(frozen=True)
class Outcome:
    """What came of a script that ran."""

    output: str
    """What it wrote, as a model may read it."""

    exit_code: int | None
    """`None` if it was ended, or if nobody knows."""

    timed_out: bool = False


@dataclass(frozen=True)
class ScriptCall:
    """A script of a skill, and how it is to be run."""

    entry: SkillEntry
    script_name: str
    arguments: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    seconds: int
    max_output: int
    other_files: Sequence[str] = ()
    """Further files of the skill, relative to it, that go with a copy of the script."""

    @property
    def relative_path(self) -> str:
        """The script's path below its skill."""
        return script_to_relative(self.script_name)

    @property
    def secrets(self) -> Secrets:
        """What its output must not show."""
        return Secrets(self.env.values())


def run_in_shell(call: ScriptCall) -> ScriptPlan[Outcome]:
    """Run a script by the backend's shell.

    Raises:
        SkillsError: If the script cannot be started, or the backend did not let it finish.
    """
    check_arguments(call.arguments, call.env)
    path: str = yield LocateScript(call.entry, call.script_name)
    content: bytes = yield ReadFile(call.entry, call.relative_path)
    secrets = call.secrets
    job = Job(
        token=_token(),
        script=path,
        digest=hashlib.sha256(content).hexdigest(),
        interpreters=interpreters(call.relative_path, content),
        arguments=call.arguments,
        env=call.env,
        seconds=call.seconds,
        keep=min(call.max_output // 2 + secrets.longest, MAX_KEPT_BYTES),
    )
    is_virtual = path != f"{parent(call.entry.path).rstrip('/')}/{call.relative_path}"
    command = job.command()
    if call.env or len(command.encode()) > MAX_COMMAND_BYTES:
        report = yield from _run_from_files(job, call, content, is_virtual=is_virtual)
    else:
        report = yield from _report(job, command)
        if report.failure == "no-script":
            report = yield from _run_from_files(replace(job, token=_token()), call, content, is_virtual=is_virtual)
    if report.failure is not None:
        programs = listed(dict.fromkeys(words[0] for words in job.interpreters))
        raise SkillsError(_FAILURES[report.failure].format(script=quoted(call.relative_path), programs=programs))
    output = shown_output(report.head, report.tail, report.total, secrets, call.max_output)
    return Outcome(output, None if report.timed_out else report.exit_code, report.timed_out)


def _token() -> str:
    return random.token_hex(16)


def _run_from_files(
    job: Job, call: ScriptCall, content: bytes, *, is_virtual: bool, must_copy: bool = False
) -> ScriptPlan[Report]:
    """Run a job whose text, and whose script if the shell does not have it, the backend writes to files."""
    remove = remove_command(job.token)
    prepare = prepare_command(job.token, job.script, job.digest)
    prepared = yield Execute(prepare, GRACE_SECONDS, remove, is_brief=True)
    absent = must_copy or is_absent(prepared.output, job.token)
    copies: list[tuple[str, bytes]] = []
    if absent:
        job = replace(job, copied_as=f"copy/{call.relative_path}")
        copies = yield from _copies(call, content, remove)
    failure: SkillsError | None = None
    for directory in job_directories(job.token, is_virtual=is_virtual or absent):
        files = [(f"{directory}/{path}", data) for path, data in [*copies, (JOB_FILE, job.text().encode())]]
        try:
            yield WriteFiles(tuple(files), remove)
        except SkillsError as error:
            failure = failure or error
        else:
            report = yield from _report(job, start_command(job.token))
            if report.failure == "no-script" and not absent:
                # It was changed since the shell was asked.
                again = replace(job, token=_token())
                return (yield from _run_from_files(again, call, content, is_virtual=is_virtual, must_copy=True))
            return report
    yield from _quietly(remove)
    raise SkillsError(f"The files that the script needs could not be written: {failure}")


def _copies(call: ScriptCall, content: bytes, stop: str) -> ScriptPlan[list[tuple[str, bytes]]]:
    """Return the script and as many of the skill's other files as are read and fit, for it may use them."""
    copies = [(f"copy/{call.relative_path}", content)]
    room = MAX_COPIED_BYTES
    for path in call.other_files[:MAX_COPIED_FILES]:
        if path == call.relative_path:
            continue
        try:
            data: bytes = yield ReadFile(call.entry, path, stop)
        except SkillsError:
            # The script may do without; if not, it says so.
            continue
        if len(data) <= room:
            room -= len(data)
            copies.append((f"copy/{path}", data))
    return copies


def _report(job: Job, command: str) -> ScriptPlan[Report]:
    stop = stop_command(job.token)
    try:
        response = yield Execute(command, job.seconds + GRACE_SECONDS, stop)
    except SkillsError as error:
        is_late = isinstance(error.__cause__, TimeoutError)
        yield from _quietly(stop_command(job.token, may_start=is_late))
        raise
    report = read_report(response.output, job.token)
    if report is None:
        yield from _quietly(stop_command(job.token, may_start=False))
        raise SkillsError(
            f"The backend ended the command before the script had finished (exit code {response.exit_code}). "
            f"It said: {masked_text(response.output, Secrets(job.env.values()), MAX_ERROR_LENGTH)}"
        )
    return report


def _quietly(command: str) -> ScriptPlan[None]:
    """Clean up after a failure, which is what is told, whatever comes of this."""
    try:
        yield Execute(command, GRACE_SECONDS)
    except SkillsError:
        return


def run_by_function(call: ScriptCall, runner: Callable[..., Any]) -> ScriptPlan[Outcome]:
    """Run a script by the operator's function.

    Raises:
        SkillsError: If it raises, does not answer in time, or answers with something else than a response.
    """
    check_arguments(call.arguments, call.env)
    path: str = yield LocateScript(call.entry, call.script_name)
    given = (call.entry.name, path, list(call.arguments), dict(call.env), call.seconds)
    response = yield CallFunction(runner, given, call.seconds + RUNNER_GRACE_SECONDS)
    output, code = getattr(response, "output", None), getattr(response, "exit_code", None)
    if not isinstance(output, str) or not (code is None or isinstance(code, int)):
        raise SkillsError(f"The runner returned {type(response).__name__}, not an ExecuteResponse.")
    text = masked_text(output, call.secrets, call.max_output)
    cut = "\n[The runner cut the output.]" if getattr(response, "truncated", False) else ""
    return Outcome(text + cut, code)


# Drivers of the plans that run scripts: the same steps on a run's sync and on its async methods.


async def acan_execute(run: SkillRun) -> bool:
    """Whether the backend runs commands, asked in a thread: a user's function may have to make the backend first."""
    try:
        return await asyncio.wrap_future(in_thread(lambda: run.can_execute))
    except RuntimeError as error:
        if not needs_loop(error):
            raise
        return run.can_execute


def drive(plan: ScriptPlan[Outcome], run: SkillRun) -> Outcome:
    """Perform a plan and return its outcome; a step that fails is thrown into it."""
    return perform(plan, lambda step: _perform(step, run))


async def adrive(plan: ScriptPlan[Outcome], run: SkillRun) -> Outcome:
    """Perform a plan without blocking; what a cancelled run had started is ended."""
    return await aperform(plan, lambda step: _aperform(step, run))


def _perform(step: Step, run: SkillRun) -> Any:  # noqa: ANN401 - each step has its own reply
    match step:
        case Execute(command, seconds):
            return run.execute(command, seconds)
        case WriteFiles(files):
            return run.write_files(files, for_shell=True)
        case LocateScript(entry, script_name):
            return run.script_path(entry, script_name)
        case ReadFile(entry, path):
            return run.read_file(entry, path)
        case AskForShell():
            return run.can_execute
        case CallFunction(function, given, seconds):
            try:
                return call_function(function, given, seconds)
            except GraphBubbleUp:
                raise
            except Exception as error:
                raise _function_failed(error) from error


async def _aperform(step: Step, run: SkillRun) -> Any:  # noqa: ANN401 - each step has its own reply
    match step:
        case Execute(command, seconds):
            return await _or_stop(run.aexecute(command, seconds), step.stop, run, waits=step.is_brief)
        case WriteFiles(files):
            return await _or_stop(run.awrite_files(files, for_shell=True), step.stop, run, waits=True)
        case LocateScript(entry, script_name):
            return await run.ascript_path(entry, script_name)
        case ReadFile(entry, path, stop):
            return await _or_stop(run.aread_file(entry, path), stop, run)
        case AskForShell():
            return await acan_execute(run)
        case CallFunction(function, given, limit):
            try:
                return await acall_function(function, given, limit)
            except GraphBubbleUp:
                raise
            except Exception as error:
                raise _function_failed(error) from error


def _function_failed(error: Exception) -> SkillsError:
    if isinstance(error, TimeoutError):
        return SkillsError("The operator's function did not answer in time. What it started may still be running.")
    return SkillsError(f"The operator's function failed: {type(error).__name__}: {error}")


async def _or_stop(step: Coroutine[Any, Any, Any], stop: str, run: SkillRun, *, waits: bool = False) -> Any:  # noqa: ANN401
    """Wait for a step; if the run is cancelled meanwhile, end what the step started before that goes on."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if waits:
            # A file or a directory that arrives after the clean-up would stay.
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
        if not task.cancel() and not task.cancelled():
            task.exception()
        if stop:
            await _end(stop, run)
        raise


async def _end(stop: str, run: SkillRun) -> None:
    """Run a command that ends a script."""
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await run.aexecute(stop, GRACE_SECONDS)
    except (SkillsError, TimeoutError) as error:
        logger.warning("A script of a cancelled run could not be ended: %s", type(error).__name__)
