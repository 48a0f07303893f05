"""The shell command that runs a script: bounded in time and output, quoted, and cleaning up behind itself. Pure.

The command is plain POSIX shell. It starts the script in a session of its own, with a process beside it that ends the
session when the time is up, keeps the first and the last bytes of its output, and prints them in base64 with the exit
code, so that whatever a script writes cannot be taken for the command's own report. What is too secret or too large
for a command line travels as the same text in a file, which the command reads and removes before it starts the script.
"""

import base64
import binascii
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._errors import SkillsError
from deepskills._files.shell_text import END, RUN, START, STOP, filled

MAX_COMMAND_BYTES = 16_000
"""Longest command line; what is longer travels in a file."""

MAX_ARGUMENT_BYTES = 131_000
"""Longest single argument that Linux hands to a program."""

MAX_ARGUMENTS_BYTES = 1_000_000
"""Most that all arguments and variables may hold together."""

MAX_KEPT_BYTES = 36_000
"""Most that is kept of each end of the output: both in base64 fit into the 100,000 bytes that shells usually return."""

GRACE_SECONDS = 15
"""How long after its time limit a command may take to end the script and to report."""

JOB_FILE = "job"
"""Name of the file that holds a command."""

Failure: TypeAlias = Literal["no-script", "no-interpreter", "no-job", "no-room", "stopped"]
"""Why a script was not started."""


@dataclass(frozen=True)
class Report:
    """What a command says of the script that it ran."""

    exit_code: int | None = None
    timed_out: bool = False
    total: int = 0
    """How many bytes the script wrote."""

    head: bytes = b""
    tail: bytes = b""
    """The first and the last bytes; empty if the head is everything."""

    is_cut: bool = False
    """Whether bytes between head and tail are missing."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Job:
    """A script to run once, under a token that nobody can guess."""

    token: str
    script: str
    digest: str
    """SHA-256 of the script's content, as it was read and checked."""

    interpreters: Sequence[Sequence[str]]
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: int = 60
    keep: int = 10_000
    """How many bytes of output are kept at each end."""

    copied_as: str | None = None
    """Name of the script's copy beside the job file, where the shell does not have the script itself."""

    def command(self) -> str:
        """Return the command line that runs the script and reports."""
        return f"unset _ds_places\n{self.text()}"

    def text(self) -> str:
        """Return the shell text that runs the script and reports, for a command line or a job file."""
        script = '"$_ds_job"/' + shlex.quote(self.copied_as) if self.copied_as else shlex.quote(self.script)
        return filled(
            RUN,
            **_marks_of(self.token),
            SECONDS=str(self.seconds),
            KEEP=str(self.keep),
            SCRIPT=script,
            PRESENT='[ -f "$_ds_script" ]' if self.copied_as else _is_present('"$_ds_script"', self.digest),
            ARGUMENTS=" ".join(shlex.quote(argument) for argument in self.arguments),
            INTERPRETERS=_choice(self.interpreters),
            EXPORTS="".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items()),
        )


def _marks_of(token: str) -> dict[str, str]:
    """Return what stands in every command of a job."""
    return {
        "TOKEN": token,
        "LIMIT": str(int(token[:12], 16) | 1 << 48),
        "DIRECTORY": f'"${{TMPDIR:-/tmp}}/deepskills-{token}"',
        "PLACES": _job_places(token),
    }


def _is_present(quoted_path: str, digest: str) -> str:
    """Return a condition: the file that a shell has at a path is the one that was read and checked.

    Another backend may serve that path, or somebody may have put another file or a link there since.
    """
    sums = " || ".join(f"{program} <{quoted_path}" for program in _DIGEST_PROGRAMS)
    return f"[ -f {quoted_path} ] && case $({sums}) in *{digest}*) ;; *) false ;; esac"


_DIGEST_PROGRAMS = ("sha256sum", "shasum -a 256", "openssl dgst -sha256")
"""Programs that print the SHA-256 of their input; a shell with none of them runs a copy of the script."""


def _choice(programs: Sequence[Sequence[str]]) -> str:
    """Return commands that put the first program that exists, with its options, before the script and its arguments."""
    branches = [
        f'if command -v {shlex.quote(words[0])} >/dev/null 2>&1; then set -- {shlex.join(words)} "$@"\n'
        for words in programs
    ]
    return "el".join(branches) + "else _ds_fail no-interpreter\nfi\n"


def job_directories(token: str, *, is_virtual: bool) -> tuple[str, ...]:
    """Return the backend paths at which the files of a job may be written, the likelier first.

    A backend that shows its working directory as `/` has no other place that its shell knows, too.
    """
    places = (f"/.deepskills-{token}", f"/tmp/.deepskills-{token}")  # noqa: S108 - nobody can guess the name
    return places if is_virtual else places[::-1]


def _job_places(token: str) -> str:
    """Return, for a shell, the directories at which it may find the files of a job."""
    return f"./.deepskills-{token} ./tmp/.deepskills-{token} /.deepskills-{token} /tmp/.deepskills-{token}"


def prepare_command(token: str, script: str, digest: str) -> str:
    """Return the command that makes directories which only their owner can read, before secrets are written there.

    It says whether the shell has the script; `is_absent` reads that.
    """
    present = f"{{ {_is_present(shlex.quote(script), digest)}; }} 2>/dev/null"
    absent = f"{present} || printf 'deepskills-%s absent\\n' {token}"
    return f"for _ds_job in {_job_places(token)}; do mkdir -m 700 $_ds_job; done 2>/dev/null; {absent}"


def is_absent(output: str, token: str) -> bool:
    """Whether the shell said that it does not have the script."""
    return f"deepskills-{token} absent" in output


def start_command(token: str) -> str:
    """Return the command that reads the job file, removes it, and runs what it says."""
    return filled(START, **_marks_of(token))


def stop_command(token: str, *, may_start: bool = True) -> str:
    """Return the command that ends a job from outside: its script, all that it started, and its files.

    A job that may yet start is left a mark, so that it does not.
    """
    mark = ': >"$_ds_dir/stop"' if may_start else 'rmdir "$_ds_dir"'
    return filled(END + STOP, **_marks_of(token), MARK=mark)


def remove_command(token: str) -> str:
    """Return the command that removes the files of a job that was never started."""
    return f"rm -rf {_job_places(token)} 2>/dev/null; :"


def check_arguments(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise if an argument cannot be handed to a program as it is.

    Raises:
        SkillsError: With the place of the argument and the reason.
    """
    total = sum(len(name) + len(value.encode()) + 2 for name, value in env.items())
    for place, argument in enumerate(arguments, 1):
        if "\x00" in argument:
            raise SkillsError(f"Argument {place} holds a NUL character, which no program takes. Leave it out.")
        try:
            size = len(argument.encode())
        except UnicodeEncodeError:
            raise SkillsError(f"Argument {place} cannot be written as UTF-8. Leave out what is not text.") from None
        total += size + 1
        if size > MAX_ARGUMENT_BYTES or total > MAX_ARGUMENTS_BYTES:
            raise SkillsError(
                f"Argument {place} is too large: {size:,} bytes. Write the text to a file and pass its path."
            )


def read_report(output: str, token: str) -> Report | None:
    """Return what the command of that token reported; `None` if it did not get as far.

    The command does not hold the marks of a report as they are printed, so an echo of it is not taken for one.
    """
    mark = f"deepskills-{token}"
    _before, found, rest = output.partition(f"{mark} report ")
    if not found:
        return None
    line, _, rest = rest.partition("\n")
    words = line.split()
    if words[:1] == ["failure"]:
        return Report(failure=_FAILURES.get(words[-1], "no-job"))
    if len(words) != _REPORT_WORDS or not all(word.isdecimal() for word in words):
        return None
    code, late, total = map(int, words)
    head_text, has_head, rest = rest.partition(f"{mark} tail\n")
    tail_text, has_tail, _ = rest.partition(f"{mark} end")
    head, tail = _decoded(head_text), _decoded(tail_text) if has_head else b""
    missing = max(0, total - len(head))
    # The ends overlap where the output was short; a backend may have cut the report itself.
    tail = tail[-missing:] if missing and has_tail else b""
    return Report(code, bool(late), total, head, tail, is_cut=len(head) + len(tail) < total)


_REPORT_WORDS = 3
_FAILURES: dict[str, Failure] = {name: name for name in ("no-script", "no-interpreter", "no-job", "no-room", "stopped")}


def _decoded(text: str) -> bytes:
    """Return what base64 says, as far as it goes: a backend may have cut it, and said so in words."""
    letters = "".join(_BASE64.match(text)[0].split())  # type: ignore[index]  # it matches anything
    try:
        return base64.b64decode(letters[: len(letters) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return b""


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*=*")
