"""Plans: run a script of a skill through a shell, or through a function of the operator's.

A plan yields one step at a time, is sent what came of it, and returns an outcome; a step that fails is thrown into it
as `SkillsError`. Who drives the plan decides whether steps block.
"""

import hashlib
import secrets as random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillsError
from deepskills._files.commands import (
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
from deepskills._files.interpreters import interpreters
from deepskills._files.output import masked_text, shown_output
from deepskills._files.paths import script_to_relative
from deepskills._files.secrets import Secrets
from deepskills._format.problems import listed, quoted

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
