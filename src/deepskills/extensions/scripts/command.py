"""The shell commands that run and stop scripts, and which program runs a script. Pure.

The command is plain POSIX shell. `timeout`, where the shell has it, ends the script at its limit; elsewhere the
backend's own limit is all there is. It keeps the first and the last bytes of the output and prints them in base64 with
the exit code, so that bytes of any kind arrive and nothing a script writes can be taken for the command's own report.
Whatever is too secret or too large for a command line goes into a file as the same text, which removes that file before
it starts the script.

What a script started is known by a variable that only it and its children have. At its limit, or stopped from outside,
all of those are ended that the system shows in `/proc`, and the script's process group.

The first line of a script names its program, or else its suffix does (`find_interpreters`).
"""

import base64
import binascii
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.problems import quoted
from deepskills.extensions._shared import COPY, HAS_TIMEOUT, KILL_AFTER_SECONDS, job_places

_MARK = re.compile("@([A-Z]+)@")


def fill_in(text: str, **values: str) -> str:
    """Return a text with values in place of its marks, in one pass, so that a mark inside a value stays as it is."""
    return _MARK.sub(lambda mark: values[mark[1]], text)


_END = r"""for _ds_try in 1 2 3; do
  for _ds_proc in $(grep -l DEEPSKILLS_RUN=@TOKEN@ /proc/[0-9]*/environ); do
    _ds_proc=${_ds_proc#/proc/}; kill -9 "${_ds_proc%/environ}"
  done
done"""
"""Ends every process with the job's variable; three times, because one may start another meanwhile."""

_RUN = (
    r"""_ds_dir=@DIRECTORY@
_ds_fail() { rm -rf "$_ds_dir" @PLACES@; printf '\ndeepskills-%s report failure %s\n' @TOKEN@ "$1"; exit 0; }
(umask 077; mkdir "$_ds_dir" && mkfifo "$_ds_dir/a" "$_ds_dir/b") 2>/dev/null || _ds_fail no-room
echo $$ >"$_ds_dir/shell"
export PATH
_ds_script=@SCRIPT@
{ @PRESENT@; } 2>/dev/null || _ds_fail no-script
set -- "$_ds_script" @ARGUMENTS@
@INTERPRETERS@_ds_limit= _ds_relay=
if @TIMEOUT@; then _ds_limit="$(command -v timeout) -k @GRACE@ @SECONDS@" _ds_relay='timeout -k 1 @RELAY@'; fi
{ head -c @KEEP@; cat >/dev/null; } <"$_ds_dir/a" >"$_ds_dir/head" &
wc -c <"$_ds_dir/b" >"$_ds_dir/total" &
{
  _ds_late=0 _ds_start=$(date +%s)
  [ -d "$_ds_dir" ] || exit
  (
@EXPORTS@export DEEPSKILLS_RUN=@TOKEN@
exec $_ds_limit "$@" ) </dev/null 2>&1 &
  echo $! >"$_ds_dir/group"
  wait $!
  _ds_code=$?
  case $_ds_limit,$_ds_code in ?*,124 | ?*,137 | ?*,143)
    [ $(($(date +%s) - _ds_start)) -lt @SECONDS@ ] || _ds_late=1
  esac
  [ $_ds_late = 0 ] || {
"""
    + _END
    + r"""
  }
  echo "$_ds_code $_ds_late" >"$_ds_dir/code"
} 2>/dev/null | $_ds_relay cat | tee "$_ds_dir/a" "$_ds_dir/b" | tail -c @KEEP@ >"$_ds_dir/tail"
wait
printf '\ndeepskills-%s report %s %d\n' @TOKEN@ "$(cat "$_ds_dir/code")" "$(cat "$_ds_dir/total")"
base64 <"$_ds_dir/head"
printf 'deepskills-%s tail\n' @TOKEN@
base64 <"$_ds_dir/tail"
printf 'deepskills-%s end\n' @TOKEN@
rm -rf "$_ds_dir" @PLACES@
exit 0
"""
)
"""Runs the script, keeps both ends of its output, and reports.

What a script leaves running may hold its output open: so the `cat` that passes the output on ends soon after the limit.
"""

_START = r"""for _ds_job in @PLACES@; do [ -r "$_ds_job/job" ] && . "$_ds_job/job"; done
rm -rf @PLACES@ @DIRECTORY@
printf '\ndeepskills-%s report failure no-job\n' @TOKEN@
"""
"""Runs the text of the job file, which ends the shell; gets further only if there is none that it can read."""

_STOP = (
    r"""{ _ds_dir=@DIRECTORY@
rm -rf @PLACES@
if mkdir -m 700 "$_ds_dir"; then @UNSTARTED@; else
  read -r _ds_shell <"$_ds_dir/shell" && kill -9 "$_ds_shell"
  if read -r _ds_group <"$_ds_dir/group"; then
    kill -- "-$_ds_group" || kill "$_ds_group"
    sleep 1
    kill -9 -- "-$_ds_group" || kill -9 "$_ds_group"
  fi
  rm -rf "$_ds_dir"
fi
"""
    + _END
    + "\n} 2>/dev/null; :"
)
"""Stops a job: one that starts later finds its directory taken and ends."""

MAX_COMMAND_BYTES = 16_000
"""Longest command line; a longer one goes into a file."""

MAX_ARGUMENT_BYTES = 131_000
"""Longest single argument that Linux passes to a program."""

MAX_ARGUMENTS_BYTES = 1_000_000
"""Largest total size of all arguments and variables."""

MAX_KEPT_BYTES = 36_000
"""How much of each end of the output is kept: both in base64 fit into the 100,000 bytes that shells usually return."""

JOB_FILE = "job"
"""Name of the file that holds a command."""

Failure: TypeAlias = Literal["no-script", "no-interpreter", "no-job", "no-room"]
"""Why a script was not started."""


@dataclass(frozen=True)
class Report:
    """A command's report on the script that it ran."""

    exit_code: int | None = None
    timed_out: bool = False
    is_ended: bool = True
    """Whether the script is known to have ended."""

    total: int = 0
    """How many bytes the script wrote."""

    head: bytes = b""
    tail: bytes = b""
    """The last bytes; empty if the head is everything."""

    failure: Failure | None = None


@dataclass(frozen=True)
class Job:
    """A script to run once, under a token that nobody can guess."""

    token: str
    path: str
    """Where the shell may have the script."""

    script: str
    """The script's path below its skill."""

    digest: str
    """SHA-256 of the script's content, as it was read and checked."""

    interpreters: Sequence[Sequence[str]]
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: int = 60
    keep: int = 10_000
    """How many bytes of output are kept at each end."""

    is_copied: bool = False
    """Whether a copy of the skill beside the job file is run, in place of what the shell has."""

    def command(self) -> str:
        """Return the command line that runs the script and reports."""
        return fill_in(
            _RUN,
            **_marks_of(self.token),
            SECONDS=str(self.seconds),
            GRACE=str(KILL_AFTER_SECONDS),
            RELAY=str(self.seconds + KILL_AFTER_SECONDS + 2),
            TIMEOUT=HAS_TIMEOUT,
            KEEP=str(self.keep),
            SCRIPT=f'"$_ds_job"/{COPY}/{shlex.quote(self.script)}' if self.is_copied else shlex.quote(self.path),
            PRESENT=_COPY_PRESENT if self.is_copied else _check_digest(self.digest),
            ARGUMENTS=" ".join(shlex.quote(argument) for argument in self.arguments),
            INTERPRETERS=_choose(self.interpreters),
            EXPORTS="".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items()),
        )

    def text(self) -> str:
        """Return what does the same from the job file, and removes that first."""
        return f'rm -f "$_ds_job/{JOB_FILE}"\n{self.command()}'


_COPY_PRESENT = f'chmod -R u+x "$_ds_job"/{COPY}; [ -f "$_ds_script" ]'
"""Makes all files of a copy executable: backends do not say which are, and scripts call each other."""

_DIGEST_PROGRAMS = ("sha256sum", "shasum -a 256", "openssl dgst -sha256")
"""Programs that print the SHA-256 of their input; a shell with none of them runs a copy of the script."""


def _marks_of(token: str) -> dict[str, str]:
    """Return the values that every command of a job has."""
    directory = f'"${{TMPDIR:-/tmp}}/deepskills-{token}"'
    return {"TOKEN": token, "DIRECTORY": directory, "PLACES": job_places(token)}


def _check_digest(digest: str) -> str:
    """Return the shell condition that the script is the one that was read and checked.

    Another backend may serve that path, or somebody may have put another file or a link there since.
    """
    sums = " || ".join(f'{program} <"$_ds_script"' for program in _DIGEST_PROGRAMS)
    return f'[ -f "$_ds_script" ] && case $({sums}) in *{digest}*) ;; *) false ;; esac'


INTERPRETERS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".py": (("python3",), ("python",)),
    ".sh": (("bash",), ("sh",)),
    ".bash": (("bash",),),
    ".js": (("node",),),
    ".mjs": (("node",),),
    ".cjs": (("node",),),
}
"""By suffix: programs with their options; the first that exists is used."""

MAX_SHEBANG_BYTES = 1_024
"""Longest first line that is read as a shebang."""


def find_interpreters(path: str, content: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the programs that can run a script, best first, each with its options.

    Raises:
        SkillFormatError: If neither the first line nor the suffix names one.
    """
    by_suffix = INTERPRETERS.get(posixpath.splitext(path)[1].lower(), ())
    by_shebang = _read_shebang(content)
    found = tuple(dict.fromkeys((*by_shebang, *by_suffix)))
    if not found:
        raise SkillFormatError(
            f"Cannot tell which program runs {quoted(path)}. "
            f"The script needs a first line such as `#!/usr/bin/env python3`, or one of the suffixes "
            f"{', '.join(INTERPRETERS)}."
        )
    return found


def _read_shebang(content: bytes) -> tuple[tuple[str, ...], ...]:
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
    # Lines that set variables or have further options are left to `env` itself.
    return (("env", *options),) if options[0].startswith("-") or "=" in options[0] else (tuple(options),)


def _choose(programs: Sequence[Sequence[str]]) -> str:
    """Return commands that put the first existing program, with its options, before the script and its arguments."""
    branches = [
        f'if command -v {shlex.quote(words[0])} >/dev/null 2>&1; then set -- {shlex.join(words)} "$@"\n'
        for words in programs
    ]
    return "el".join(branches) + "else _ds_fail no-interpreter\nfi\n"


def start_command(token: str) -> str:
    """Return the command that runs the job file."""
    return fill_in(_START, **_marks_of(token))


def stop_command(token: str, *, may_start: bool = True) -> str:
    """Return the command that ends a job from outside: its script, what that started, and its files.

    For a job that may still start, it leaves a directory that prevents that.
    """
    return fill_in(_STOP, **_marks_of(token), UNSTARTED=":" if may_start else 'rmdir "$_ds_dir"')


def check_arguments(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise if an argument cannot be passed to a program as it is.

    Raises:
        SkillsError: With the position of the argument and the reason.
    """
    total = sum(len(name) + len(value.encode()) + 2 for name, value in env.items())
    for place, argument in enumerate(arguments, 1):
        if "\x00" in argument:
            raise SkillsError(f"Argument {place} holds a NUL character, which no program takes. Leave it out.")
        try:
            size = len(argument.encode())
        except UnicodeEncodeError:
            raise SkillsError(
                f"Argument {place} cannot be written as UTF-8. Leave out anything that is not text."
            ) from None
        total += size + 1
        if size > MAX_ARGUMENT_BYTES or total > MAX_ARGUMENTS_BYTES:
            raise SkillsError(
                f"Argument {place} is too large: {size:,} bytes. Write the text to a file and pass its path."
            )


def read_report(output: str, token: str) -> Report | None:
    """Return the report of the command with that token; `None` if it did not get that far.

    The command does not contain the marks of a report as they are printed, so an echo of it is not taken for one.
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
    head, tail = _decode(head_text), _decode(tail_text) if has_head else b""
    missing = max(0, total - len(head))
    # The ends overlap if the output was short; a backend may have cut the report itself.
    tail = tail[-missing:] if missing and has_tail else b""
    return Report(None if late else code, bool(late), total=total, head=head, tail=tail)


_REPORT_WORDS = 3
_FAILURES: dict[str, Failure] = {name: name for name in ("no-script", "no-interpreter", "no-job", "no-room")}


def _decode(text: str) -> bytes:
    """Return decoded base64, as far as it goes: a backend may have cut it, and said so in words."""
    letters = "".join(_BASE64.match(text)[0].split())  # type: ignore[index]  # it matches anything
    try:
        return base64.b64decode(letters[: len(letters) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return b""


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*=*")
