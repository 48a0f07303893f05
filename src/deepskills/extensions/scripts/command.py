"""The shell commands that run, start and stop scripts, and which program runs a script. Pure.

The commands are plain POSIX shell; tools that only Linux or some systems have are used where they exist. Values go in
at marks such as `@PLACES@`.

The command that runs a script bounds its time and output, and cleans up after itself. It starts the script in a
session of its own, with a watchdog process that ends the session when the time is up, keeps the first and the last
bytes of the output, and prints them in base64 with the exit code, so that nothing a script writes can be taken for the
command's own report. Whatever is too secret or too large for a command line goes into a file as the same text; the
command reads and removes that file before it starts the script.

The first line of a script names its program, or else its suffix does (`interpreters`).
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
from deepskills.extensions._shared import COPY, job_places, make_places_command

_MARK = re.compile("@([A-Z]+)@")


def filled(text: str, **values: str) -> str:
    """Return a text with values in place of its marks, in one pass, so that a mark inside a value stays as it is."""
    return _MARK.sub(lambda mark: values[mark[1]], text)


START = r"""for _ds_job in @PLACES@; do [ -r "$_ds_job/job" ] && break; done
_ds_text=$(cat "$_ds_job/job" 2>/dev/null)
rm -f ./.deepskills-@TOKEN@/job "$_ds_job/job"
if [ -z "$_ds_text" ]; then
  rm -rf @PLACES@ @DIRECTORY@ 2>/dev/null
  printf '\ndeepskills-%s report failure no-job\n' @TOKEN@
else
  _ds_places='@PLACES@'
  eval "$_ds_text"
fi
"""
"""Reads the job file and removes it before anything else happens; without one, the job may have been stopped before."""

END = r"""_ds_marked() {
  grep -l -e 'DEEPSKILLS_RUN=@TOKEN@' -e ' locks  *@LIMIT@ ' /proc/[0-9]*/environ /proc/[0-9]*/limits 2>/dev/null
}
_ds_each() {
  kill -"$1" -- "-$_ds_pid" 2>/dev/null || kill -"$1" "$_ds_pid" 2>/dev/null
  for _ds_proc in $(_ds_marked); do
    _ds_proc=${_ds_proc#/proc/}
    kill -"$1" "${_ds_proc%%/*}" 2>/dev/null
  done
  for _ds_proc in /proc/[0-9]*; do
    { read -r _ds_line <"$_ds_proc/stat"; } 2>/dev/null || continue
    _ds_line=${_ds_line##*) }
    _ds_line=${_ds_line#* * * }
    [ "${_ds_line%% *}" = "$_ds_pid" ] && kill -"$1" "${_ds_proc#/proc/}" 2>/dev/null
  done
}
_ds_left() {
  for _ds_proc in $(_ds_marked); do
    _ds_proc=${_ds_proc#/proc/}
    { read -r _ds_line <"/proc/${_ds_proc%%/*}/stat"; } 2>/dev/null || continue
    case ${_ds_line##*) } in Z* | X*) ;; *) return 0 ;; esac
  done
  return 1
}
_ds_end() {
  _ds_each TERM
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do kill -0 -- "-$_ds_pid" 2>/dev/null || break; sleep 0.1 || sleep 1; done
  for _ds_try in 1 2 3 4 5; do _ds_each KILL; [ -n "$(_ds_marked)" ] || break; done
}
"""
"""Ends the script's process group, its session, and every process with one of its marks; reports what is left.

The marks are a variable and a limit on file locks. Linux passes that limit on to every child and never applies it, so a
process that left its session with an empty environment still has it. One that undoes both on purpose is not found.
"""

STOP = r"""_ds_dir=@DIRECTORY@
rm -rf @PLACES@ 2>/dev/null
if mkdir -m 700 "$_ds_dir" 2>/dev/null; then
  @MARK@
  [ -z "$(_ds_marked)" ] || _ds_end
else
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do [ -s "$_ds_dir/pid" ] && break; [ -d "$_ds_dir" ] || exit 0; sleep 0.1; done
  read -r _ds_pid <"$_ds_dir/pid" && _ds_end
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do [ -d "$_ds_dir" ] || exit 0; sleep 0.1; done
  rm -rf "$_ds_dir"
  [ -z "$(_ds_marked)" ] || _ds_end
fi 2>/dev/null
:
"""
"""Stops a job: one that starts later finds its directory taken and ends; one whose shell was killed is cleaned up.

A script may have removed the directory itself, or have started after the wait for it; its marks are found anyway.
"""

RUN = (
    r"""unset _ds_pid
_ds_dir=@DIRECTORY@
_ds_fail() {
  [ "$1" = no-room ] || rm -rf "$_ds_dir"
  [ -z "$_ds_places" ] || rm -rf $_ds_places 2>/dev/null
  printf '\ndeepskills-%s report failure %s\n' @TOKEN@ "$1"
  exit 0
}
"""
    + END
    + r"""_ds_mask=$(umask)
umask 077
if ! mkdir "$_ds_dir" 2>/dev/null; then
  [ -e "$_ds_dir/stop" ] && _ds_fail stopped
  _ds_fail no-room
fi
trap '[ -z "$_ds_pid" ] || _ds_end; rm -rf "$_ds_dir" $_ds_places; exit 143' HUP INT TERM
mkfifo "$_ds_dir/pipe" "$_ds_dir/a" "$_ds_dir/b" "$_ds_dir/c" || _ds_fail no-room
umask "$_ds_mask"
export PATH
_ds_script=@SCRIPT@
{ @PRESENT@; } 2>/dev/null || _ds_fail no-script
set -- "$_ds_script" @ARGUMENTS@
@INTERPRETERS@_ds_group=$(command -v setsid)
_ds_perl=$(command -v perl)
head -c @KEEP@ <"$_ds_dir/a" >"$_ds_dir/head" 2>/dev/null & _ds_r1=$!
tail -c @KEEP@ <"$_ds_dir/b" >"$_ds_dir/tail" 2>/dev/null & _ds_r2=$!
wc -c <"$_ds_dir/c" >"$_ds_dir/total" & _ds_r3=$!
(trap '' PIPE; exec tee "$_ds_dir/a" "$_ds_dir/b" <"$_ds_dir/pipe" >"$_ds_dir/c" 2>/dev/null) & _ds_tee=$!
(
trap - HUP INT TERM
ulimit -S -x @LIMIT@ 2>/dev/null || ulimit -S -w @LIMIT@ 2>/dev/null
@EXPORTS@export DEEPSKILLS_RUN=@TOKEN@
if [ -n "$_ds_group" ]; then exec "$_ds_group" "$@"
elif [ -n "$_ds_perl" ]; then exec "$_ds_perl" -e 'setpgrp(0,0); exec @ARGV; exit 127' "$@"
else exec "$@"; fi
) >"$_ds_dir/pipe" 2>&1 </dev/null & _ds_pid=$!
echo "$_ds_pid" >"$_ds_dir/pid"
(
trap 'kill "$_ds_nap" 2>/dev/null; exit 0' TERM
_ds_n=0
while [ "$_ds_n" -lt @SECONDS@ ]; do
  [ -e "$_ds_dir/done" ] && exit 0
  sleep 1 & _ds_nap=$!
  wait "$_ds_nap"
  [ -d "$_ds_dir" ] || kill -0 "$$" 2>/dev/null || kill -0 "$_ds_pid" 2>/dev/null || exit 0
  _ds_n=$((_ds_n + 1))
done
trap '' TERM
_ds_end
for _ds_reader in "$_ds_tee" "$_ds_r1" "$_ds_r2" "$_ds_r3"; do
  for _ds_try in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$_ds_reader" 2>/dev/null || break; sleep 0.1 || sleep 1; done
  kill -KILL "$_ds_reader" 2>/dev/null
done
for _ds_try in 1 2 3 4 5 6 7 8 9 10; do _ds_left || break; sleep 0.1 || sleep 1; done
[ -r /proc/self/environ ] && ! _ds_left && exit 9
exit 8
) >/dev/null 2>&1 </dev/null & _ds_watch=$!
wait "$_ds_pid" 2>/dev/null; _ds_code=$?
wait "$_ds_tee" "$_ds_r1" "$_ds_r2" "$_ds_r3" 2>/dev/null
echo 2>/dev/null >"$_ds_dir/done"
kill "$_ds_watch" 2>/dev/null
wait "$_ds_watch" 2>/dev/null; _ds_late=$?
case $_ds_late in 8 | 9) ;; *) _ds_late=0 ;; esac
printf '\ndeepskills-%s report %d %d %d\n' @TOKEN@ "$_ds_code" "$_ds_late" "$(cat "$_ds_dir/total")"
base64 <"$_ds_dir/head"
printf 'deepskills-%s tail\n' @TOKEN@
base64 <"$_ds_dir/tail"
printf 'deepskills-%s end\n' @TOKEN@
rm -rf "$_ds_dir" $_ds_places
"""
)
"""Runs the script, keeps both ends of its output, and reports.

On a busy machine the script may end before the watchdog process has started. A shell loses a signal that comes so
early, so there is also a file that says that the script is done.
"""

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

Failure: TypeAlias = Literal["no-script", "no-interpreter", "no-job", "no-room", "stopped"]
"""Why a script was not started."""


@dataclass(frozen=True)
class Report:
    """A command's report on the script that it ran."""

    exit_code: int | None = None
    timed_out: bool = False
    none_found: bool = False
    """Whether, after a timeout, it was possible to look for processes of the script, and none were left."""

    total: int = 0
    """How many bytes the script wrote."""

    head: bytes = b""
    tail: bytes = b""
    """The last bytes; empty if the head is everything."""

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
    """Name of the script's copy beside the job file, if the shell does not have the script itself."""

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
            PRESENT=_COPY_PRESENT if self.copied_as else _is_present('"$_ds_script"', self.digest),
            ARGUMENTS=" ".join(shlex.quote(argument) for argument in self.arguments),
            INTERPRETERS=_choice(self.interpreters),
            EXPORTS="".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items()),
        )


_COPY_PRESENT = f'chmod -R u+x "$_ds_job"/{COPY}; [ -f "$_ds_script" ]'
"""Makes all files of a copy executable: backends do not say which are, and scripts call each other."""


def _marks_of(token: str) -> dict[str, str]:
    """Return the values that every command of a job has."""
    return {
        "TOKEN": token,
        "LIMIT": str(int(token[:12], 16) | 1 << 48),
        "DIRECTORY": f'"${{TMPDIR:-/tmp}}/deepskills-{token}"',
        "PLACES": job_places(token),
    }


def _is_present(quoted_path: str, digest: str) -> str:
    """Return the shell condition that the file at a path is the one that was read and checked.

    Another backend may serve that path, or somebody may have put another file or a link there since.
    """
    sums = " || ".join(f"{program} <{quoted_path}" for program in _DIGEST_PROGRAMS)
    return f"[ -f {quoted_path} ] && case $({sums}) in *{digest}*) ;; *) false ;; esac"


_DIGEST_PROGRAMS = ("sha256sum", "shasum -a 256", "openssl dgst -sha256")
"""Programs that print the SHA-256 of their input; a shell with none of them runs a copy of the script."""


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
    # Lines that set variables or have further options are left to `env` itself.
    return (("env", *options),) if options[0].startswith("-") or "=" in options[0] else (tuple(options),)


def _choice(programs: Sequence[Sequence[str]]) -> str:
    """Return commands that put the first existing program, with its options, before the script and its arguments."""
    branches = [
        f'if command -v {shlex.quote(words[0])} >/dev/null 2>&1; then set -- {shlex.join(words)} "$@"\n'
        for words in programs
    ]
    return "el".join(branches) + "else _ds_fail no-interpreter\nfi\n"


def prepare_command(token: str, script: str, digest: str) -> str:
    """Return the command that creates directories only their owner can read, before secrets are written there.

    Its output says whether the shell has the script; `is_absent` reads that.
    """
    present = f"{{ {_is_present(shlex.quote(script), digest)}; }} 2>/dev/null"
    absent = f"{present} || printf 'deepskills-%s absent\\n' {token}"
    return f"{make_places_command(token)}; {absent}"


def is_absent(output: str, token: str) -> bool:
    """Whether the shell said that it does not have the script."""
    return f"deepskills-{token} absent" in output


def start_command(token: str) -> str:
    """Return the command that reads the job file, removes it, and runs it."""
    return filled(START, **_marks_of(token))


def stop_command(token: str, *, may_start: bool = True) -> str:
    """Return the command that ends a job from outside: its script, everything it started, and its files.

    For a job that may still start, it leaves a mark that prevents that.
    """
    mark = ': >"$_ds_dir/stop"' if may_start else 'rmdir "$_ds_dir"'
    return filled(END + STOP, **_marks_of(token), MARK=mark)


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
    head, tail = _decoded(head_text), _decoded(tail_text) if has_head else b""
    missing = max(0, total - len(head))
    # The ends overlap if the output was short; a backend may have cut the report itself.
    tail = tail[-missing:] if missing and has_tail else b""
    return Report(code, bool(late), late == _NONE_FOUND, total, head, tail, is_cut=len(head) + len(tail) < total)


_REPORT_WORDS = 3
_NONE_FOUND = 9
_FAILURES: dict[str, Failure] = {name: name for name in ("no-script", "no-interpreter", "no-job", "no-room", "stopped")}


def _decoded(text: str) -> bytes:
    """Return decoded base64, as far as it goes: a backend may have cut it, and said so in words."""
    letters = "".join(_BASE64.match(text)[0].split())  # type: ignore[index]  # it matches anything
    try:
        return base64.b64decode(letters[: len(letters) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return b""


_BASE64 = re.compile(r"[A-Za-z0-9+/\s]*=*")
