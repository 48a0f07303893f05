"""Runs a script of a skill, through the backend's shell or through the operator's function.

A run is a plan (`deepskills._io.plan`), performed by `SkillRun.drive` and `adrive`: commands are `Execute`, files for
the shell `WriteFiles`, the operator's functions `CallFunction`, and pairs of methods of the seam `Ask`.

A script runs outside this process, so it does not end by itself. If we give up on one (a time limit, a failure, a
cancelled run), we have to end it through the same shell: each place that started or wrote something catches
`asyncio.CancelledError`, runs the command that ends or removes it, and raises it again.
"""

import asyncio
import hashlib
import logging
import secrets as random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from deepskills import SkillRun
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillsError
from deepskills._files.paths import script_to_relative
from deepskills._io.plan import (
    Ask,
    Attempt,
    CallFailed,
    CallFunction,
    Execute,
    Failed,
    Plan,
    Work,
    unwrapped,
)
from deepskills._skillmd.problems import listed, quoted
from deepskills.extensions._copies import (
    COPY,
    GRACE_SECONDS,
    LocalCopy,
    copies_of,
    place_files,
    remove_command,
)
from deepskills.extensions.scripts.command import (
    JOB_FILE,
    MAX_COMMAND_BYTES,
    MAX_KEPT_BYTES,
    Failure,
    Job,
    Report,
    check_arguments,
    interpreters,
    is_absent,
    prepare_command,
    read_report,
    start_command,
    stop_command,
)
from deepskills.extensions.scripts.output import Secrets, masked_text, shown_output

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
    "stopped": "The script was stopped before it started.",
}


@dataclass(frozen=True)
class Outcome:
    """The result of a script that ran."""

    output: str
    """What it wrote, as a model may read it."""

    exit_code: int | None
    """`None` if it was killed, or if the code is unknown."""

    timed_out: bool = False
    none_found: bool = False
    """Whether, after a timeout, none of its processes were left."""


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

    files: Mapping[str, bytes] | None = field(default=None, repr=False)
    """All files of the skill as they were judged: a copy of them runs, not the files that the shell has."""

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
    def secrets(self) -> Secrets:
        """Values that its output must not show."""
        return Secrets(self.env.values())


def run_in_shell(call: ScriptCall, run: SkillRun) -> Plan[Outcome]:
    """Run a script in the backend's shell.

    Raises:
        SkillsError: If the script cannot be started, or the backend did not let it finish.
    """
    check_arguments(call.arguments, call.env)
    # If there are files, somebody judged them: then only a copy of those bytes may run, never what is there now.
    files = yield from _files_to_run(call, run)
    if files is None:
        path = yield from _located(call, run)
        call = call.at(path)
        content = yield from _content(call.entry, call.relative_path, run)
        virtual = path != f"{parent(call.entry.path).rstrip('/')}/{call.relative_path}"
    else:
        call = replace(call.among(files), files=files)
        path = f"{parent(call.entry.path).rstrip('/')}/{call.relative_path}"
        content = files[call.relative_path]
        virtual = False
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
    command = job.command()
    if files is not None or call.env or len(command.encode()) > MAX_COMMAND_BYTES:
        report = yield from _run_from_files(job, call, content, run, is_virtual=virtual)
    else:
        report = yield from _report(job, command)
        # The shell may not see the backend's files (a sandbox beside a store): then the script is copied to it.
        if report.failure == "no-script":
            again = replace(job, token=_token())
            report = yield from _run_from_files(again, call, content, run, is_virtual=virtual)
    if report.failure is not None:
        programs = listed(dict.fromkeys(words[0] for words in job.interpreters))
        raise SkillsError(_FAILURES[report.failure].format(script=quoted(call.relative_path), programs=programs))
    output = shown_output(report.head, report.tail, report.total, secrets, call.max_output)
    return Outcome(output, None if report.timed_out else report.exit_code, report.timed_out, report.none_found)


def _token() -> str:
    return random.token_hex(16)


def _files_to_run(call: ScriptCall, run: SkillRun) -> Plan[Mapping[str, bytes] | None]:
    """Return the files to copy and run, as they were judged; `None` if the script runs where it is."""
    files: Mapping[str, bytes] | None = yield from unwrapped(
        Ask(
            lambda: run.files_to_run(call.entry, call.script_name),
            lambda: run.afiles_to_run(call.entry, call.script_name),
        )
    )
    if files is None or not call.entry.is_dynamic:
        return files
    # Nobody knows all files of a dynamic skill; those that its load listed are copied.
    copies = yield from _copies(call, files[call.among(files).relative_path], run)
    return {**{path.removeprefix(f"{COPY}/"): content for path, content in copies}, **files}


def _located(call: ScriptCall, run: SkillRun) -> Plan[str]:
    """Return the path at which a shell runs the script; the seam checks it."""
    path: str = yield from unwrapped(
        Ask(
            lambda: run.script_path(call.entry, call.script_name),
            lambda: run.ascript_path(call.entry, call.script_name),
        )
    )
    return path


def _content(entry: SkillEntry, path: str, run: SkillRun) -> Plan[bytes]:
    """Return the content of a skill's file; the seam checks its path."""
    content: bytes = yield from unwrapped(Ask(lambda: run.read_file(entry, path), lambda: run.aread_file(entry, path)))
    return content


def _run_from_files(
    job: Job,
    call: ScriptCall,
    content: bytes,
    run: SkillRun,
    *,
    is_virtual: bool,
    must_copy: bool = False,
) -> Plan[Report]:
    """Run a job from files that the backend writes: its text and, if the shell does not have it, its script."""
    placed = yield from _placed(job, call, content, run, is_virtual=is_virtual, must_copy=must_copy)
    report = yield from _report(placed, start_command(placed.token))
    if report.failure == "no-script" and not placed.copied_as:
        # The file changed after the shell was asked about it, so the job gets a copy of what was checked.
        again = replace(job, token=_token())
        return (yield from _run_from_files(again, call, content, run, is_virtual=is_virtual, must_copy=True))
    return report


def _placed(
    job: Job,
    call: ScriptCall,
    content: bytes,
    run: SkillRun,
    *,
    is_virtual: bool,
    must_copy: bool,
) -> Plan[Job]:
    """Write a job's files where the shell finds them, and return the job to start.

    Raises:
        SkillsError: If the files could not be written to any of the possible places.
    """
    try:
        prepared = yield Execute(prepare_command(job.token, job.script, job.digest), GRACE_SECONDS, settles=True)
        absent = must_copy or is_absent(prepared.output, job.token)
        copies: list[tuple[str, bytes]] = []
        if call.files is not None:
            copies = copies_of(call.files)
        elif absent:
            copies = yield from _copies(call, content, run)
        if copies:
            job = replace(job, copied_as=f"{COPY}/{call.relative_path}")
        files = [*copies, (JOB_FILE, job.text().encode())]
        yield from place_files(job.token, files, is_virtual=is_virtual or absent)
    except asyncio.CancelledError:
        yield from _ended(remove_command(job.token))
        raise
    except SkillsError:
        yield from _quietly(remove_command(job.token))
        raise
    return job


def _copies(call: ScriptCall, content: bytes, run: SkillRun) -> Plan[list[tuple[str, bytes]]]:
    """Return the script and as many of the skill's other files as can be read and fit, because it may use them."""
    copies = [(f"{COPY}/{call.relative_path}", content)]
    room = MAX_COPIED_BYTES
    for path in call.other_files[:MAX_COPIED_FILES]:
        if path == call.relative_path:
            continue
        try:
            data = yield from _content(call.entry, path, run)
        except SkillsError:
            # The script may work without the file; if not, it will say so.
            continue
        if len(data) <= room:
            room -= len(data)
            copies.append((f"{COPY}/{path}", data))
    return copies


def _report(job: Job, command: str) -> Plan[Report]:
    """Start a job, wait for its end, and return what it reported."""
    try:
        response = yield Execute(command, job.seconds + GRACE_SECONDS)
    except CallFailed as failure:
        # A command that is late may still start; one that failed will not.
        yield from _quietly(stop_command(job.token, may_start=failure.timed_out))
        raise
    except asyncio.CancelledError:
        yield from _ended(stop_command(job.token))
        raise
    report = read_report(response.output, job.token)
    if report is None:
        yield from _quietly(stop_command(job.token, may_start=False))
        raise SkillsError(
            f"The backend ended the command before the script had finished (exit code {response.exit_code}). "
            f"It said: {masked_text(response.output, Secrets(job.env.values()), MAX_ERROR_LENGTH)}"
        )
    return report


def _quietly(command: str) -> Plan[None]:
    """Clean up after a failure; only that failure is reported, whatever happens here."""
    yield Attempt(Execute(command, GRACE_SECONDS))


def _ended(command: str) -> Plan[None]:
    """End what a cancelled run had started."""
    reply = yield Attempt(Execute(command, GRACE_SECONDS))
    if isinstance(reply, Failed):
        logger.warning("A script of a cancelled run could not be ended: %s", type(reply.error).__name__)


def run_by_function(call: ScriptCall, runner: Callable[..., Any], run: SkillRun) -> Plan[Outcome]:
    """Run a script with the operator's function.

    Raises:
        SkillsError: If it raises, times out, or does not return a response.
    """
    check_arguments(call.arguments, call.env)
    files = yield from _files_to_run(call, run)
    if files is None:
        path = yield from _located(call, run)
        response = yield from _answer_of(runner, path, call)
    else:
        copied: LocalCopy = yield from unwrapped(Work(lambda: LocalCopy(call.entry, files)))
        try:
            response = yield from _answer_of(runner, copied.path(call.among(files).relative_path), call)
        except GeneratorExit:
            # An interrupt from LangGraph closes the plan: no more requests can be made.
            copied.remove()
            raise
        except BaseException:
            yield Work(copied.remove)
            raise
        yield Work(copied.remove)
    output, code = getattr(response, "output", None), getattr(response, "exit_code", None)
    if not isinstance(output, str) or not (code is None or isinstance(code, int)):
        raise SkillsError(f"The runner returned {type(response).__name__}, not an ExecuteResponse.")
    text = masked_text(output, call.secrets, call.max_output)
    cut = "\n[The runner cut the output.]" if getattr(response, "truncated", False) else ""
    return Outcome(text + cut, code)


def _answer_of(runner: Callable[..., Any], path: str, call: ScriptCall) -> Plan[object]:
    """Return the answer of the operator's function for a script at a path."""
    given = (call.entry.name, path, list(call.arguments), dict(call.env), call.seconds)
    try:
        return (yield CallFunction(runner, given, seconds=call.seconds + RUNNER_GRACE_SECONDS))
    except CallFailed as failure:
        if failure.timed_out or isinstance(failure.error, TimeoutError):
            raise SkillsError(LATE_FUNCTION) from failure
        raise SkillsError(f"The operator's function failed: {failure.reason}") from failure


def can_execute(run: SkillRun) -> Plan[bool]:
    """Whether the backend runs commands; a user's function may have to create the backend first."""
    has_shell: bool = yield from unwrapped(CallFunction(lambda: run.can_execute, seconds=None))
    return has_shell
