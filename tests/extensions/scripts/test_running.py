"""Scripts through a real shell: quoting, output, time limits, clean-up, and secrets that no other process sees."""

import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents.backends import LocalShellBackend
from deepagents.backends.protocol import ExecuteResponse

from deepskills import SkillEntry, SkillsError
from deepskills._io.drivers import Steps
from deepskills._io.plan import Ask, Call, CallFunction, Execute, Failed, Plan, WriteFiles
from deepskills.extensions.scripts.command import MAX_ARGUMENT_BYTES, stop_command
from deepskills.extensions.scripts.tool import (
    ScriptCall,
    ScriptOutcome,
    run_by_function,
    run_in_shell,
)
from support import by_hand, write_files
from support.waiting import at_once, found_processes, is_gone, new_mark, wait_until

ENVIRONMENT = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}

HOSTILE_ARGUMENTS = (
    *("", " ", "a b", "'", '"', "''\"\"", "$(id)", "`id`", "$HOME", "${PATH}", "\\", "\\n", "a\nb", "\n", "\r\n", "\t"),
    *(
        "-x",
        "--help",
        "--",
        "-",
        "*",
        "?",
        "~",
        "#",
        "!",
        "&",
        "|",
        ";",
        ">x",
        "<x",
        "a=b",
        "{a,b}",
        "[x]",
        "%s",
        "é周",
    ),
    *("@ARGUMENTS@", "@EXPORTS@", "@TOKEN@", "\x01\x7f", "EOF", "$'x'"),
)


class Shell:
    """Performs the calls of a plan on a real backend, and remembers the commands; the run that a plan is given."""

    def __init__(self, root: Path, *, virtual: bool = True) -> None:
        self.root = root
        self.virtual = virtual
        self.temporary = root / "temporary"
        self.temporary.mkdir()
        self.use()
        self.directory = root / "skill"
        self.commands: list[str] = []
        self.written: list[tuple[str, bytes]] = []
        self.location: str | None = None
        """What the backend says of the script's path, where its shell knows another."""

    def use(self, **variables: str) -> None:
        """Take a backend with these variables."""
        env = {**ENVIRONMENT, "TMPDIR": str(self.temporary), **variables}
        self.backend = LocalShellBackend(root_dir=self.root, virtual_mode=self.virtual, env=env)

    def perform(self, call: Call[Any]) -> Any:
        """Return the reply to one call."""
        match call:
            case Execute(command, seconds):
                self.commands.append(command)
                return self.backend.execute(command, timeout=seconds)
            case WriteFiles(files):
                self.written += files
                answers = self.backend.upload_files(list(files))
                return {answer.path: answer.error for answer in answers if answer.error}
            case Ask(ask):
                return ask()
            case CallFunction(function, given):
                return function(*given)

    def script_path(self, _entry: SkillEntry, script_name: str) -> str:
        return self.location or str(self.directory / "scripts" / script_name)

    def files_to_run(self, _entry: SkillEntry, _script_name: str) -> None:
        """Nobody judges files here."""

    def read_file(self, _entry: SkillEntry, path: str) -> bytes:
        return (self.directory / path).read_bytes()

    def drive(self, plan: Plan[ScriptOutcome]) -> ScriptOutcome:
        return by_hand(plan, lambda call: self.perform(call))[0]  # noqa: PLW0108 - tests replace it meanwhile

    def plan(self, call: ScriptCall) -> Plan[ScriptOutcome]:
        return run_in_shell(call, cast("Any", self))

    def until_start(self, call: ScriptCall) -> tuple[Steps[ScriptOutcome], Execute]:
        """Perform a plan up to the command that starts the script."""
        steps = Steps(self.plan(call))
        [asked] = steps.start() or []
        while not (isinstance(asked, Execute) and (asked.timeout or 0) > 20):
            [asked] = steps.answer([self.perform(asked)]) or []
        return steps, asked

    def call(
        self,
        content: str | bytes,
        name: str = "run.py",
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        seconds: int = 30,
        max_output: int = 20_000,
    ) -> ScriptCall:
        target = self.directory / "scripts" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        path = "/skill/SKILL.md" if self.virtual else f"{self.directory}/SKILL.md"
        skill: Any = {"name": "skill", "path": path, "description": "Runs."}
        return ScriptCall(SkillEntry(skill, "/", "digest"), name, arguments, env or {}, seconds, max_output)

    def run(self, content: str | bytes, *given: Any, **options: Any) -> ScriptOutcome:
        return self.drive(self.plan(self.call(content, *given, **options)))


def litter(shell: Shell) -> list[str]:
    """Return what commands left in the places that they write to."""
    tokens = {token for command in shell.commands for token in re.findall("deepskills-([0-9a-f]{32})", command)}
    shared = [path for token in tokens for top in ("", "tmp/") for path in Path("/").glob(f"{top}.deepskills-{token}")]
    own = [*shell.temporary.iterdir(), *shell.root.glob(".deepskills-*"), *shell.root.glob("tmp")]
    return [str(path) for path in [*shared, *own]]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose commands must have left nothing behind."""
    shell = Shell(tmp_path)
    yield shell
    assert wait_until(lambda: litter(shell) == [])


def test_arguments_arrive_as_they_are(shell: Shell) -> None:
    """No shell, no option parser and no template reads an argument, on the command line or from a file."""
    script = "import sys, json; print(json.dumps(sys.argv[1:]))"
    for extra in ((), ("x" * 100_000,)):
        given = [*HOSTILE_ARGUMENTS, *extra]
        outcome = shell.run(script, arguments=given, max_output=400_000 if extra else 20_000, env={})
        assert outcome.exit_code == 0
        if not extra:
            assert outcome.output == f"{json.dumps(given)}\n"
    counting = "import sys, hashlib; print([hashlib.md5(a.encode()).hexdigest() for a in sys.argv[1:]])"
    outcome = shell.run(counting, arguments=[*HOSTILE_ARGUMENTS, "'" * 100_000])
    assert outcome.output.strip() == repr([_md5(a) for a in [*HOSTILE_ARGUMENTS, "'" * 100_000]])
    assert max(map(len, shell.commands)) < 20_000


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def test_arguments_that_no_program_takes_are_refused(shell: Shell) -> None:
    """NUL, what is not text and what is too large is told before anything runs."""
    for argument in ("a\x00b", "\ud800", "x" * (MAX_ARGUMENT_BYTES + 1)):
        with pytest.raises(SkillsError, match="Argument 2"):
            shell.run("print(1)", arguments=["fine", argument])
    with pytest.raises(SkillsError, match="too large"):
        shell.run("print(1)", arguments=["x" * 100_000] * 20)
    assert shell.commands == []


def test_scripts_of_each_kind_run(shell: Shell) -> None:
    """Python, shell and Node scripts run with and without shebang and executable bit; names may hold anything."""
    scripts = {
        "a.py": "print('hello')",
        "b.sh": "[[ x == x ]] && echo hello",
        "c.js": "console.log('hello')",
        "d": "#!/usr/bin/env python3\nprint('hello')",
        "e.txt": "#!/bin/sh\necho hello",
        "f.py": "#!/no/such/place/python3\nprint('hello')",
        "with space 'n' $(quote).py": "print('hello')",
        "周报.py": "print('hello')",
        "@ARGUMENTS@ @TOKEN@.py": "print('hello')",
        "-dash.py": "print('hello')",
        "deep/er/g.py": "import h; print(h.hello)",
    }
    (shell.directory / "scripts/deep/er").mkdir(parents=True)
    (shell.directory / "scripts/deep/er/h.py").write_text("hello = 'hello'")
    outcomes = {name: shell.run(content, name, ["$(echo pwned >&2)"]) for name, content in scripts.items()}
    assert {name: o for name, o in outcomes.items() if (o.output, o.exit_code) != ("hello\n", 0)} == {}
    runnable = shell.call("#!/usr/bin/env python3\nprint('hello')", "x.py")
    (shell.directory / "scripts/x.py").chmod(0o755)
    assert shell.drive(shell.plan(runnable)).output == "hello\n"


def test_a_program_that_is_not_there_is_named(shell: Shell) -> None:
    """The error tells which programs were looked for."""
    with pytest.raises(SkillsError, match=r"none of the programs that run .*no-such-interpreter"):
        shell.run("#!/usr/bin/env no-such-interpreter\n", "x")


def test_exit_codes_and_signals_are_told(shell: Shell) -> None:
    """Whatever code a script ends with arrives, and both streams in order."""
    codes = {code: shell.run(f"import sys; sys.exit({code})").exit_code for code in (0, 1, 2, 124, 126, 255)}
    assert all(code == told for code, told in codes.items())
    assert shell.run("kill -9 $$", "x.sh").exit_code == 137
    assert shell.run("echo one; echo two >&2; echo three", "x.sh").output == "one\ntwo\nthree\n"
    assert shell.run("cat", "x.sh").output == ""


def test_output_is_bounded_where_it_is_made(shell: Shell) -> None:
    """Of much output head and tail arrive, and what was cut is told."""
    script = "import sys\nfor n in range(100_000): print('line', n)"
    outcome = shell.run(script, max_output=2_000)
    assert outcome.output.startswith("line 0\nline 1\n")
    assert outcome.output.endswith("line 99999\n")
    assert "bytes of output are left out here" in outcome.output
    assert len(outcome.output) <= 2_000


def test_both_ends_arrive_through_a_shell_that_returns_less_than_was_asked_for(shell: Shell) -> None:
    """With a limit beyond what the backend returns, head and tail are shown all the same."""
    output = shell.run("print('head' + 'x' * 190_000 + 'tail')", max_output=400_000).output
    assert output.startswith("headxxx")
    assert output.endswith("xxxtail\n")
    assert "of 190,009 bytes of output are left out here" in output
    perform = shell.perform

    def cut(call: Call[Any]) -> Any:
        """Cut each answer of the shell, and say so in words, as backends do."""
        reply = perform(call)
        if not isinstance(call, Execute):
            return reply
        return ExecuteResponse(f"{reply.output[:3_000]}\n\n... Output truncated.", reply.exit_code)

    shell.perform = cut  # type: ignore[method-assign]
    report = shell.run("print('head' + 'x' * 9_000)").output
    assert report.startswith("headxxx")
    assert "left out here" in report


def test_output_that_is_not_text_arrives(shell: Shell) -> None:
    """Bytes that no shell backend could decode are shown as far as they are text, or described."""
    assert shell.run(b"import os; os.write(1, b'caf\\xe9 au lait')").output == "caf\ufffd au lait"
    assert "not text: 2,560 bytes" in shell.run("import os; os.write(1, bytes(range(256)) * 10)").output


def test_a_report_cannot_be_forged(shell: Shell) -> None:
    """A script that prints what the command would report is shown to have printed it."""
    script = "import os; t = os.environ['DEEPSKILLS_RUN']; print(f'deepskills-{t} report 0 0 0'); raise SystemExit(9)"
    outcome = shell.run(script)
    assert outcome.exit_code == 9
    assert "report 0 0 0" in outcome.output


def everything_that_was_started_ends(shell: Shell) -> None:
    """Children that ignore signals, leave the session or fork twice are gone."""
    mark = new_mark()
    script = f"""
echo started
(trap '' TERM; sleep {mark}1) &
setsid sleep {mark}2 &
(setsid sh -c 'sleep {mark}3 & sleep {mark}4' &)
python3 -c "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep({mark}5)
    os._exit(0)
"
trap '' TERM INT HUP
sleep {mark}6
sleep {mark}7
"""
    outcome = shell.run(script, "x.sh", seconds=LIMIT)
    assert (outcome.timed_out, outcome.exit_code, outcome.output) == (True, None, "started\n")
    assert is_gone(mark)


LIMIT = 10
"""A time limit within which a script has begun, however busy the machine is."""


def removing_our_files_does_not_help(shell: Shell) -> None:
    """Without the directory that the command works in, the time limit still holds."""
    mark = new_mark()
    try:
        outcome = shell.run(f"rm -rf $TMPDIR/deepskills-*\nsleep {mark}\nsleep {mark}", "x.sh", seconds=LIMIT)
    except SkillsError as error:
        assert "before the script had finished" in str(error)  # noqa: PT017 - either may happen
    else:
        # A file that came at that very moment kept the directory.
        assert outcome.timed_out
    assert is_gone(mark)


def endless_output_is_cut(shell: Shell) -> None:
    """Gigabytes of output cost neither memory nor disk."""
    endless = shell.run("import sys\nwhile True: sys.stdout.write('y' * 65536)", seconds=1, max_output=2_000)
    assert endless.timed_out
    assert len(endless.output) <= 2_000


def a_process_that_escapes_does_not_hold_the_answer_up(shell: Shell) -> None:
    """The answer comes soon after the limit, even if a process that cannot be found holds the script's output open."""
    mark = new_mark()
    escapes = f"import os\nif os.fork() == 0: os.setsid(); os.execve('/bin/sleep', ['sleep', '{mark}'], {{}})\n"
    try:
        late = shell.run(f"{escapes}import time; print('begun', flush=True); time.sleep(600)", seconds=LIMIT)
        done = shell.run(f"{escapes}print('done')", seconds=LIMIT)
    finally:
        for pid in found_processes(f"sleep {mark}"):
            os.kill(pid, signal.SIGKILL)
    assert (late.timed_out, late.output) == (True, "begun\n")
    assert (done.timed_out, done.exit_code, done.output) == (False, 0, "done\n")


def a_less_patient_backend_is_told_apart(shell: Shell) -> None:
    """A command that the backend itself gave up on is not said to have ended, but it is ended as far as possible."""
    mark = new_mark()

    def impatient(call: Call[Any], perform: Callable[[Call[Any]], Any] = shell.perform) -> Any:
        if isinstance(call, Execute) and (call.timeout or 0) > 20:
            return shell.backend.execute(call.command, timeout=1)
        return perform(call)

    shell.perform = impatient  # type: ignore[method-assign]
    assert shell.run(f"setsid sleep {mark} & sleep {mark}", "x.sh") == ScriptOutcome(
        "", None, timed_out=True, is_ended=False
    )
    assert is_gone(mark)


def a_shell_without_timeout_has_the_limit_of_the_backend(shell: Shell) -> None:
    """Where the shell has no `timeout`, scripts run as well, and the backend ends one that takes too long."""
    mark, bare = new_mark(), shell.root / "bare"
    bare.mkdir()
    needed = (
        "base64 bash cat chmod date grep head kill mkdir mkfifo python3 rm rmdir setsid sh sha256sum sleep tail tee wc"
    )
    for program in needed.split():
        (bare / program).symlink_to(str(shutil.which(program)))
    shell.use(PATH=str(bare))
    assert shell.run("echo out; exit 3", "x.sh") == ScriptOutcome("out\n", 3)
    perform = shell.perform

    def impatient(call: Call[Any]) -> Any:
        if isinstance(call, Execute) and (call.timeout or 0) > 20:
            return shell.backend.execute(call.command, timeout=2)
        return perform(call)

    shell.perform = impatient  # type: ignore[method-assign]
    late = shell.run(f"setsid sleep {mark} & sleep {mark}", "x.sh", env={"KEY": "value-of-key"})
    assert late == ScriptOutcome("", None, timed_out=True, is_ended=False)
    assert is_gone(mark)


def a_script_may_clean_up_at_its_limit(shell: Shell) -> None:
    """It is told to end before it is killed."""
    script = "trap 'echo cleaned up; exit 0' TERM\nwhile :; do sleep 0.1; done"
    outcome = shell.run(script, "x.sh", seconds=LIMIT)
    assert outcome.timed_out
    assert outcome.output.endswith("cleaned up\n")


def exit_codes_of_timeouts_are_a_scripts_own(shell: Shell) -> None:
    """A script that ends with such a code before its limit has not timed out."""
    outcomes = [shell.run(f"exit {code}", "x.sh") for code in (124, 137, 143)]
    assert outcomes == [ScriptOutcome("", code) for code in (124, 137, 143)]


def start_in_thread(shell: Shell, plan: Plan[ScriptOutcome]) -> tuple[threading.Thread, list[SkillsError]]:
    """Run a plan that will be stopped; return its thread, and a list that its error comes into."""
    failures: list[SkillsError] = []

    def fail() -> None:
        with pytest.raises(SkillsError) as failure:
            shell.drive(plan)
        failures.append(failure.value)

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    return thread, failures


def a_script_that_starts_while_it_is_stopped_ends(shell: Shell) -> None:
    """A machine may be so busy that a script starts when the stop command has given up waiting for that."""
    mark, slow = new_mark(), shell.root / "slow"
    write_files(slow, {"sha256sum": f': >"$TMPDIR/../asked"; sleep 1.5; exec {shutil.which("sha256sum")}\n'})
    (slow / "sha256sum").chmod(0o755)
    shell.use(PATH=f"{slow}{os.pathsep}{ENVIRONMENT['PATH']}")
    plan = shell.plan(shell.call(f"sleep {mark}", "x.sh", seconds=3600))
    thread, _failures = start_in_thread(shell, plan)
    assert wait_until((shell.root / "asked").exists)
    shell.backend.execute(stop_command(shell.commands[0].partition("deepskills-")[2][:32]))
    thread.join(60)
    assert is_gone(mark)


def test_time_limits_hold_whatever_a_script_does(tmp_path: Path) -> None:
    """At its limit, or stopped, a script is ended with all that it started, the answer comes, and no file is left."""

    def check(what: Callable[[Shell], None]) -> None:
        root = tmp_path / what.__name__
        root.mkdir()
        shell = Shell(root)
        what(shell)
        assert wait_until(lambda: litter(shell) == []), what.__name__

    at_once(
        check,
        [
            everything_that_was_started_ends,
            removing_our_files_does_not_help,
            endless_output_is_cut,
            a_process_that_escapes_does_not_hold_the_answer_up,
            a_less_patient_backend_is_told_apart,
            a_shell_without_timeout_has_the_limit_of_the_backend,
            a_script_may_clean_up_at_its_limit,
            exit_codes_of_timeouts_are_a_scripts_own,
            a_script_that_starts_while_it_is_stopped_ends,
        ],
    )


def test_a_script_that_is_done_leaves_no_process_of_ours(shell: Shell) -> None:
    """Nothing waits on for a time limit that is no longer needed."""
    shell.run("print(1)", seconds=3600)
    token = shell.commands[0].partition("deepskills-")[2][:32]
    assert is_gone(token)


def test_a_script_can_be_stopped_from_outside(shell: Shell) -> None:
    """The stop command ends a running script, and one that has not started does not start."""
    mark = new_mark()
    call = shell.call(f"sleep {mark}", "x.sh")
    plan = shell.plan(call)
    thread, failures = start_in_thread(shell, plan)
    assert wait_until(lambda: found_processes(f"sleep {mark}") != {})
    [command] = shell.commands
    token = command.partition("deepskills-")[2][:32]
    shell.backend.execute(stop_command(token))
    thread.join(60)
    assert is_gone(mark)
    assert "before the script had finished" in str(failures[0])

    early, start = shell.until_start(call)
    shell.backend.execute(stop_command(start.command.partition("deepskills-")[2][:32]))
    with pytest.raises(SkillsError, match="did not start"):
        early.answer([shell.backend.execute(start.command)])


def test_a_script_with_secrets_that_is_stopped_before_it_starts_leaves_nothing(shell: Shell) -> None:
    """Its files are removed, so it does not start, and neither does the mark of the stop stay."""
    steps, start = shell.until_start(shell.call("print(1)", env={"KEY": "value-of-key"}))
    shell.perform(Execute(stop_command(start.command.partition("deepskills-")[2][:32]), 15))
    with pytest.raises(SkillsError, match="did not start"):
        steps.answer([shell.perform(start)])
    assert litter(shell) == []


def test_secrets_reach_the_script_and_no_command_line(shell: Shell) -> None:
    """A value is in the script's environment alone: not in a command, not in another process, not in a file."""
    mark = new_mark()
    values = {"TOKEN": "tok-" + f"{mark}'$(id)\"\n é" * 3, "OTHER": "x" * 50_000, "EMPTY": ""}
    script = """
import os, glob, hashlib, sys
print([hashlib.md5(os.environ[name].encode()).hexdigest() for name in sys.argv[1:]])
for path in glob.glob('/proc/[0-9]*/cmdline'):
    try: line = open(path, 'rb').read()
    except OSError: continue
    if os.environ['TOKEN'][4:12].encode() in line: print('seen in', path)
print(os.environ['TOKEN'])
"""
    outcome = shell.run(script, arguments=list(values), env=values)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output == f"{[_md5(value) for value in values.values()]}\n[secret]\n"
    assert not any(mark in command for command in shell.commands)


def test_the_file_with_secrets_is_private_and_gone_before_the_script_starts(shell: Shell) -> None:
    """Others cannot read the directory it lies in, and the script itself does not find it."""
    modes: list[int] = []
    perform = shell.perform

    def watch(call: Call[Any]) -> Any:
        reply = perform(call)
        if isinstance(call, WriteFiles):
            [directory] = shell.root.glob(".deepskills-*")
            modes.append(stat.S_IMODE(directory.stat().st_mode))
            assert list(directory.iterdir()) != []
        return reply

    shell.perform = watch  # type: ignore[method-assign]
    outcome = shell.run("find . -name job | wc -l", "x.sh", env={"KEY": "value-of-key"})
    assert outcome.output.strip() == "0"
    assert modes == [0o700]


def test_a_script_that_the_shell_does_not_have_is_copied(shell: Shell) -> None:
    """A skill that lives in another backend than the shell runs from a copy, with and without secrets."""
    shell.location = "/elsewhere/skill/scripts/run.py"
    assert shell.run("import sys; print('hi', sys.argv[1])", arguments=["a b"]).output == "hi a b\n"
    assert shell.run("import os; print(len(os.environ['K']))", env={"K": "secret"}).output == "6\n"


def test_only_what_was_read_and_checked_runs(shell: Shell, tmp_path: Path) -> None:
    """Another file at the script's path, or one put there after it was read, does not run; what was read does."""
    other = tmp_path / "other.py"
    other.write_text("print('another file')")
    shell.location = str(other)
    assert shell.run("print('checked')").output == "checked\n"
    assert shell.run("print('checked')", env={"KEY": "value-of-key"}).output == "checked\n"
    shell.location = None
    perform, read_file = shell.perform, shell.read_file
    script = shell.directory / "scripts/run.py"

    def swap(happened: Any) -> Any:
        if not script.is_symlink():
            script.unlink()
            script.symlink_to(other)
        return happened

    for moment, env in (("read", {}), ("read", {"KEY": "value-of-key"}), ("written", {"KEY": "value-of-key"})):
        if moment == "read":
            shell.read_file = lambda *given: swap(read_file(*given))  # type: ignore[method-assign]
        else:
            shell.read_file = read_file  # type: ignore[method-assign]
            shell.perform = lambda call: (  # type: ignore[method-assign]
                swap(perform(call)) if isinstance(call, WriteFiles) else perform(call)
            )
        (shell.directory / "scripts/run.py").unlink(missing_ok=True)
        assert shell.run("print('checked')", env=env).output == "checked\n"


def test_paths_of_the_machine_work_too(tmp_path: Path) -> None:
    """A backend that is not virtual passes secrets by a private directory of the machine."""
    shell = Shell(tmp_path, virtual=False)
    script = "import os; print(len(os.environ['K']))"
    assert shell.run(script, env={"K": "secret"}).output == "6\n"
    assert [path for path, _content in shell.written if re.match(r"(/tmp)?/\.deepskills-", path)] != []
    # A skill that was installed by a link lies elsewhere than the backend says.
    (tmp_path / "installed").symlink_to(shell.directory)
    call = shell.call(script, env={"K": "secret"})
    linked: Any = {**call.entry.skill, "path": f"{tmp_path}/installed/SKILL.md"}
    modes: list[int] = []
    perform = shell.perform

    def watch(call: Call[Any]) -> Any:
        reply = perform(call)
        if isinstance(call, WriteFiles):
            modes.extend(stat.S_IMODE(Path(path).parent.stat().st_mode) for path, _content in call.files)
        return reply

    shell.perform = watch  # type: ignore[method-assign]
    assert shell.drive(shell.plan(replace(call, entry=SkillEntry(linked, "/", "digest")))).output == "6\n"
    assert modes == [0o700]
    assert litter(shell) == []


def test_a_backend_that_fails_costs_the_call_and_leaves_nothing(shell: Shell) -> None:
    """Failures of a backend are told, masked, and what was written is removed."""
    perform = shell.perform
    is_late = iter([False, True])

    def fail_to_start(call: Call[Any]) -> Any:
        if isinstance(call, Execute) and (call.timeout or 0) > 20:
            return Failed("the sandbox is gone", timed_out=next(is_late))
        return perform(call)

    shell.perform = fail_to_start  # type: ignore[method-assign]
    with pytest.raises(SkillsError, match="the sandbox is gone"):
        shell.run("print(1)", env={"KEY": "value-of-key"})
    assert litter(shell) == []
    assert shell.run("print(1)", env={"KEY": "value-of-key"}) == ScriptOutcome("", None, timed_out=True, is_ended=False)
    assert len(shell.written) == 2
    # What the backend may still start finds this, and ends.
    [mark] = shell.temporary.iterdir()
    mark.rmdir()

    def refuse_files(call: Call[Any]) -> Any:
        return Failed("read-only") if isinstance(call, WriteFiles) else perform(call)

    shell.perform = refuse_files  # type: ignore[method-assign]
    with pytest.raises(SkillsError, match="could not be written: read-only"):
        shell.run("print(1)", env={"KEY": "value-of-key"})


def test_other_shells_run_the_same_command(shell: Shell) -> None:
    """The command is plain shell: bash and dash give the same report."""
    call = shell.call("echo out; exit 3", "x.sh")
    for program in ("bash", "dash"):
        steps, start = shell.until_start(call)
        done = subprocess.run([program, "-c", start.command], capture_output=True, encoding="utf-8", check=False)
        assert done.stderr == ""
        assert steps.answer([ExecuteResponse(output=done.stdout, exit_code=done.returncode)]) is None
        assert steps.result == ScriptOutcome("out\n", 3)


def test_a_runner_is_given_everything_and_its_output_is_masked(shell: Shell) -> None:
    """The operator's function gets name, path, arguments, environment and limit; its answer is bounded and masked."""
    given: list[Any] = []

    def runner(*values: Any) -> Any:
        given.extend(values)
        return type("Response", (), {"output": "key is value-of-key" + "x" * 5000, "exit_code": 4, "truncated": True})

    call = shell.call("print(1)", arguments=["a b"], env={"KEY": "value-of-key"}, max_output=1_000)
    outcome = shell.drive(run_by_function(call, runner, cast("Any", shell)))
    path = str(shell.directory / "scripts/run.py")
    assert given == ["skill", path, ["a b"], {"KEY": "value-of-key"}, 30]
    assert outcome.exit_code == 4
    assert outcome.output.startswith("key is [secret]xxx")
    assert "left out here" in outcome.output
    assert "The runner cut the output." in outcome.output
    with pytest.raises(SkillsError, match="returned NoneType"):
        shell.drive(run_by_function(call, lambda *_: None, cast("Any", shell)))


def test_an_echo_of_the_command_is_not_a_report(shell: Shell) -> None:
    """A backend that prints the command, as some terminals do, is not taken to have run it."""
    steps, start = shell.until_start(shell.call("print(1)"))
    [stopping] = steps.answer([ExecuteResponse(output=start.command, exit_code=1)]) or ()
    assert isinstance(stopping, Execute)
    with pytest.raises(SkillsError, match="before the script had finished"):
        steps.answer([None])
