"""Runs a script of a skill, through the backend's shell or through a function of the operator's.

Which program runs a script is told by its first line, else by its suffix. How it is run is a plan of the one dialect
(`deepskills._io.plan`), performed by `SkillRun.drive` and `adrive`: commands are `Execute`, files for the shell
`WriteFiles`, the operator's functions `CallFunction`, and what the seam offers as a pair of methods `Ask`.

A script lives outside this process, so nothing here ends by itself. Whoever gives up on one (a time limit, a failure,
a cancelled run) has to end it through the same shell: each place that started or wrote something catches
`asyncio.CancelledError`, runs the command that ends or removes it, and raises it again.
"""

import asyncio
import hashlib
import logging
import posixpath
import secrets as random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from deepskills import SkillRun
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillFormatError, SkillsError
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
    is_absent,
    prepare_command,
    read_report,
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


# Plans.


MAX_ERROR_LENGTH = 1_000
"""How much of what a backend or a runner said about a failure is shown."""

MAX_COPIED_FILES = 50
"""How many further files of a skill go with a copy of its script."""

MAX_COPIED_BYTES = 4_000_000
"""How large all of them may be together; what would be more stays behind."""

RUNNER_GRACE_SECONDS = 5
"""How long after its time limit a runner may take to end a script and to answer."""

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
    """What came of a script that ran."""

    output: str
    """What it wrote, as a model may read it."""

    exit_code: int | None
    """`None` if it was ended, or if nobody knows."""

    timed_out: bool = False
    none_found: bool = False
    """Whether, after a timeout, none of its processes was found any more."""


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

    directory: str = ""
    """The directory that the script's name is relative to, if it is not the usual one."""

    files: Mapping[str, bytes] | None = field(default=None, repr=False)
    """All files of the skill as they were judged: a copy of them is run, and not what the shell has of the skill."""

    @property
    def relative_path(self) -> str:
        """The script's path below its skill."""
        return f"{self.directory}/{self.script_name}" if self.directory else script_to_relative(self.script_name)

    def among(self, files: Mapping[str, bytes]) -> "ScriptCall":
        """Return the call of the script by the path that it has among a skill's files."""
        return self if self.relative_path in files else self._in_singular()

    def at(self, path: str) -> "ScriptCall":
        """Return the call of a script that lies at a path: authors also call the directory `script/`."""
        singular = self._in_singular()
        is_singular = path.endswith(f"/{singular.relative_path}") and not path.endswith(f"/{self.relative_path}")
        return singular if is_singular else self

    def _in_singular(self) -> "ScriptCall":
        name = self.relative_path.removeprefix("scripts/").removeprefix("script/")
        return replace(self, directory="script", script_name=name)

    @cached_property
    def secrets(self) -> Secrets:
        """What its output must not show."""
        return Secrets(self.env.values())


def run_in_shell(call: ScriptCall, run: SkillRun) -> Plan[Outcome]:
    """Run a script by the backend's shell.

    Raises:
        SkillsError: If the script cannot be started, or the backend did not let it finish.
    """
    check_arguments(call.arguments, call.env)
    # Files mean that somebody judged them: then only a copy of those very bytes may run, never what lies there now.
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
        # The shell may not see the backend's files (a sandbox beside a store): then the script is taken to it.
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
    """Return the files of which a copy is to be run, as they were judged; `None` if the script runs where it lies."""
    files: Mapping[str, bytes] | None = yield from unwrapped(
        Ask(
            lambda: run.files_to_run(call.entry, call.script_name),
            lambda: run.afiles_to_run(call.entry, call.script_name),
        )
    )
    if files is None or not call.entry.is_dynamic:
        return files
    # Nobody knows all files of a dynamic skill; those that its load listed go with the script.
    copies = yield from _copies(call, files[call.among(files).relative_path], run)
    return {**{path.removeprefix(f"{COPY}/"): content for path, content in copies}, **files}


def _located(call: ScriptCall, run: SkillRun) -> Plan[str]:
    """Return the path by which a shell runs the script; the seam checks it."""
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
    """Run a job whose text, and whose script if the shell does not have it, the backend writes to files."""
    placed = yield from _placed(job, call, content, run, is_virtual=is_virtual, must_copy=must_copy)
    report = yield from _report(placed, start_command(placed.token))
    if report.failure == "no-script" and not placed.copied_as:
        # The file was changed after the shell was asked for it, so a copy of what was checked goes with the job.
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
    """Write what a job needs where the shell finds it, and return the job as it is to be started.

    Raises:
        SkillsError: If the files could not be written to any of the places that may serve.
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
    """Return the script and as many of the skill's other files as are read and fit, for it may use them."""
    copies = [(f"{COPY}/{call.relative_path}", content)]
    room = MAX_COPIED_BYTES
    for path in call.other_files[:MAX_COPIED_FILES]:
        if path == call.relative_path:
            continue
        try:
            data = yield from _content(call.entry, path, run)
        except SkillsError:
            # The script may do without; if not, it says so.
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
        # A command that is late may yet start; one that failed will not.
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
    """Clean up after a failure, which is what is told, whatever comes of this."""
    yield Attempt(Execute(command, GRACE_SECONDS))


def _ended(command: str) -> Plan[None]:
    """End what a cancelled run had started."""
    reply = yield Attempt(Execute(command, GRACE_SECONDS))
    if isinstance(reply, Failed):
        logger.warning("A script of a cancelled run could not be ended: %s", type(reply.error).__name__)


def run_by_function(call: ScriptCall, runner: Callable[..., Any], run: SkillRun) -> Plan[Outcome]:
    """Run a script by the operator's function.

    Raises:
        SkillsError: If it raises, does not answer in time, or answers with something else than a response.
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
            # An interrupt of LangGraph's closes the plan: nothing more can be asked for.
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
    """Return what the operator's function answers for a script at a path."""
    given = (call.entry.name, path, list(call.arguments), dict(call.env), call.seconds)
    try:
        return (yield CallFunction(runner, given, seconds=call.seconds + RUNNER_GRACE_SECONDS))
    except CallFailed as failure:
        if failure.timed_out or isinstance(failure.error, TimeoutError):
            raise SkillsError(LATE_FUNCTION) from failure
        raise SkillsError(f"The operator's function failed: {failure.reason}") from failure


def can_execute(run: SkillRun) -> Plan[bool]:
    """Return whether the backend runs commands; a user's function may have to make the backend first."""
    has_shell: bool = yield from unwrapped(CallFunction(lambda: run.can_execute, seconds=None))
    return has_shell
