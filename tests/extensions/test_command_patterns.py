"""Command patterns: what `Bash(git add:*)` covers, and that nothing is covered which could run something else."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepskills.extensions.tool_policy import CommandPattern, is_plain

# Pattern, command, and whether it is covered.
COMMANDS: list[tuple[str, str, bool]] = [
    # It starts so.
    ("git add:*", "git add", True),
    ("git add:*", "git add .", True),
    ("git add *", "git add .", True),
    ("git add *", "git add", True),
    ("git add:*", "  git add .  ", True),
    ("git add:*", "git add 周报.md", True),
    ("git add:*", "git add *.py {a,b} ~/x [c] !d", True),
    ("git add:*", "git add -- a#b %x @y ^z", True),
    ("git add:*", "git add $FILE", True),
    ("git commit:*", "git commit -m 'one two'", True),
    ("git commit:*", 'git commit -m "feat(api): one \\"two\\""', True),
    ("git commit:*", "git commit -m 'costs $5'", True),
    ("git add:*", r"git add a\ b", True),
    ("git status", "git status", True),
    ("*", "ls -l", True),
    # It does not start so.
    ("git add:*", "git addx", False),
    ("git add:*", "git add-all", False),
    ("git add:*", "git", False),
    ("git add:*", "git commit", False),
    ("git add:*", "GIT ADD .", False),
    ("git add:*", "git  add .", False),
    ("git status", "git status -s", False),
    ("git add:*", "", False),
    ("*", " ", False),
    # Another program of the same name, another way to start it.
    ("git add:*", "/usr/bin/git add .", False),
    ("git add:*", "./git add .", False),
    ("git add:*", r"\git add .", False),
    ("git add:*", "g'i't add .", False),
    ("git add:*", 'git "add" .', False),
    ("git add:*", "command git add .", False),
    ("git add:*", "sudo git add .", False),
    ("git add:*", "PATH=/tmp git add .", False),
    ("git add:*", "GIT_SSH_COMMAND=evil git add .", False),
    ("git add:*", "env git add .", False),
    # Operators, quoted or not.
    ("git add:*", "git add .; rm -rf /", False),
    ("git add:*", "git add . && rm -rf /", False),
    ("git add:*", "git add . || rm -rf /", False),
    ("git add:*", "git add . & rm -rf /", False),
    ("git add:*", "git add . | sh", False),
    ("git add:*", "git add . |& sh", False),
    ("git add:*", "git add . > /etc/passwd", False),
    ("git add:*", "git add . >> x", False),
    ("git add:*", "git add . < x", False),
    ("git add:*", "git add . <<EOF", False),
    ("git add:*", "git add . <(id)", False),
    ("git add:*", "git add `id`", False),
    ("git add:*", "git add $(id)", False),
    ("git add:*", 'git add "$(id)"', False),
    ("git add:*", "git add '$(id)'", False),
    ("git add:*", "git add ';'", False),
    ("git add:*", "git add \\;", False),
    ("git add:*", "git add .\nrm -rf /", False),
    ("git add:*", "git add .\r\nrm -rf /", False),
    ("git add:*", "git add .\rrm -rf /", False),
    ("git add:*", "git add 'a\nrm -rf /'", False),
    ("git add:*", "git add \\\nrm", False),
    ("git add:*", "git add . (id)", False),
    ("git add:*", "git add *(e:id:)", False),
    ("git add:*", "git add ${x:=\\$\\(id\\)}${x@P}", False),
    ("git add:*", "git add $[a[0]]", False),
    ("git add:*", "git add $'\\x3b'", False),
    ("git add:*", 'git add $"x"', False),
    # What is not closed.
    ("git add:*", "git add 'x", False),
    ("git add:*", 'git add "x', False),
    ("git add:*", 'git add "x\\"', False),
    ("git add:*", "git add x\\", False),
    # White space, control characters, look-alikes.
    ("git add:*", "git\tadd .", False),
    ("git add:*", "git add\t.", False),
    ("git add:*", "git add\x0b.", False),
    ("git add:*", "git add .\x00", False),
    ("git add:*", "git add .\x1b[A", False),
    ("git add:*", "git add .\x03rm", False),
    ("git add:*", "git\u00a0add .", False),
    ("git add:*", "git add\u00a0.", False),
    ("git add:*", "git add \u3000x", False),
    ("git add:*", "git add .\u2028rm", False),
    ("git add:*", "git add .\u0085rm", False),
    ("git add:*", "git add .；rm", False),
    ("git add:*", "git add .｜sh", False),
    ("git add:*", "git add ＄(id)", False),
    ("git add:*", "git add .\u037erm", False),
    ("git add:*", "git add “x”", False),
    ("git add:*", "git add x\u200b", False),
    ("git add:*", "git add \u202egnp.x", False),
    ("git add:*", "git add \udc80", False),
    ("git add:*", "gіt add .", False),
    ("git add:*", "git аdd .", False),
    ("git add:*", "ｇit add .", False),
    # Patterns of another shape cover nothing.
    ("git*", "git add", False),
    ("git*", "gitevil", False),
    ("git add*", "git add", False),
    ("git * main", "git push main", False),
    ("git add **", "git add x", False),
    ("", "git add", False),
    ("git add; rm:*", "git add; rm x", False),
    ("git add:*:*", "git add x", False),
]


@pytest.mark.parametrize(
    ("pattern", "command", "expected"), COMMANDS, ids=[f"{row[0]}, {row[1]!r}" for row in COMMANDS]
)
def test_each_command_is_covered_or_not(pattern: str, command: str, expected: bool) -> None:  # noqa: FBT001 - a row
    """Each row of the table holds."""
    assert CommandPattern.parse(pattern).covers(command) is expected


def test_what_is_no_text_is_not_covered() -> None:
    """A model may send anything as a command."""
    values = [None, 7, b"git add", ["git", "add"], {"git": "add"}]
    assert [value for value in values if CommandPattern.parse("git add:*").covers(value)] == []


def test_a_refused_pattern_refuses_in_doubt() -> None:
    """A pattern that forbids is wide: other paths, wrappers and whatever is not plain count as the program it names."""
    pattern = CommandPattern.parse("rm:*")
    refused = [
        "rm x",
        "/bin/rm x",
        "RM x",
        "/bin/Rm x",
        "env rm x",
        "busybox rm",
        "X=rm y",
        "env -Srm x",
        "env -iS/bin/rm",
        "git -c alias.z=!rm z",
        "git -calias.z=!/bin/rm z",
        "tool --run=:rm",
        "tool a,rm",
        "ls; rm x",
        "r''m x",
        "$X",
        "ls | x",
        "r\\m x",
        "/bin/r? x",
        "/bin/r[m] x",
        "/bin/r[^x] x",
        "{r,}m x",
        "",
    ]
    passed = [
        "ls -l",
        "git commit --amend -m confirm",
        "npm run format:all",
        "git add .",
        "rmdir x",
        "charm x",
        "ls *.py",
        "ls src/?.md",
    ]
    assert [command for command in refused if command and not pattern.could_match(command)] == []
    assert [command for command in passed if pattern.could_match(command)] == []
    push = CommandPattern.parse("git push:*")
    refused = [
        "git push",
        "git -C x push origin",
        "env git push",
        "git -c alias.p=push p",
        "/usr/bin/git push",
        "git;",
        "env -Sgit push",
    ]
    assert [command for command in refused if not push.could_match(command)] == []
    assert [command for command in ("git status", "git add push.md", "push git") if push.could_match(command)] == []
    assert CommandPattern.parse("git status").could_match("git status -s")
    assert CommandPattern.parse("r*m").could_match("ls")
    assert CommandPattern.parse("npm run test:unit").could_match("npm run test:unit")
    assert pattern.could_match(None)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one program, `tell`, that does nothing; every other program leaves a trace."""
    root = tmp_path_factory.mktemp("shell")
    (root / "bin").mkdir()
    for name, text in (("tell", "#!/bin/sh\nexit 0\n"), ("id", f"#!/bin/sh\n: > {root}/trace\n")):
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
    return root


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    arguments=st.lists(
        st.sampled_from([*" ;&|<>`$(){}[]'\"\\#!=*?~:@\n\r\t", "id", "x", "$(id)", " id ", "；"]), max_size=8
    )
)
def test_no_shell_runs_something_else_for_a_covered_command(shell: Path, arguments: list[str]) -> None:
    """Real shells, given what a pattern covers, run the one program that it names."""
    command = "tell " + "".join(arguments)
    if not CommandPattern.parse("tell:*").covers(command):
        return
    for program in ("sh", "bash"):
        subprocess.run(
            [f"/bin/{program}", "-c", command],
            cwd=shell,
            env={**os.environ, "PATH": str(shell / "bin")},
            capture_output=True,
            check=False,
            timeout=60,
        )
    assert not (shell / "trace").exists(), command
    assert sorted(path.name for path in shell.iterdir()) == ["bin"], command


def test_judging_is_linear() -> None:
    """A long command costs its length, whatever it is made of."""
    slow = []
    for unit in ("'", '"', "\\", "\\\\", "'x'", '"x"', '"\\"', "$", "#", "a ", "周", "(", "x\\ "):
        start = time.process_time()
        is_plain("git add " + unit * (100_000 // len(unit)))
        if (seconds := time.process_time() - start) > 1:
            slow.append((unit, seconds))
    assert slow == []
