"""A command that is killed or interrupted at any moment: directory and lock are as before or as after."""

import fcntl
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from install_support import LOCK, SKILLS, refuse, snapshot, succeed

from support import scaled, skill_md, write_files
from support.command_line import invoke

TRACED = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
steps, name = int(sys.argv[1]), sys.argv[2]
count = 0
def hook(event, args):
    global count
    if event in {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "open", "os.chmod", "shutil.rmtree", "os.listdir"}:
        where = str(args)
        if "skills" in where and "site-packages" not in where and "/src/" not in where:
            count += 1
            if count == steps:
                os.kill(os.getpid(), getattr(signal, name))
from deepskills.__main__ import main
import deepskills._cli.commands.install, deepskills._install.project
sys.addaudithook(hook)
sys.argv = ["deepskills", *sys.argv[3:]]
try:
    main()
finally:
    print(count, file=sys.stderr)
"""
"""Runs a command, and ends its process at a step that touches files; the number of steps is its last line."""


EMPTY_LOCK = '{"version": 1, "skills": {}}'


def versions(library: Path) -> None:
    for number in range(4):
        for name in ("alpha", "beta"):
            write_files(library / str(number), {f"{name}/SKILL.md": skill_md(name, f"Version {number}.")})
        write_files(
            library / str(number),
            {f"alpha/only-{number}.md": "x" * 5000, f"gone-{number}/SKILL.md": skill_md(f"gone-{number}")},
        )


def run_traced(steps: int, how: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRACED, str(steps), how, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def state() -> dict[str, object]:
    """Return what counts: the installed files, and the lock."""
    return snapshot(SKILLS, LOCK)


def test_a_command_ended_at_any_step_has_happened_or_has_not(tmp_path: Path) -> None:
    """After the next command, whatever it is, there is either the old state or the new one, and no rubbish."""
    library = tmp_path / "library"
    versions(library)
    succeed("add", str(library / "0"), "--yes")
    old = state()
    commands = [["add", str(library / "1"), "--yes"], ["remove", "alpha", "gone-0", "--yes"]]
    rng = random.Random(27)
    seen: set[str] = set()
    for command in commands:
        done = run_traced(-1, "SIGKILL", *command)
        assert done.returncode == 0, done.stderr
        total = int(done.stderr.strip().rpartition("\n")[2])
        new = state()
        succeed("add", str(library / "0"), "--yes")
        if command[0] == "add":
            succeed("remove", "gone-1", "--yes")
        assert state() == old
        rounds = min(scaled(2, 50), total)
        for number, step in enumerate(rng.sample(range(1, total + 1), rounds)):
            ended = run_traced(step, ("SIGKILL", "SIGINT")[number % 2], *command)
            assert ended.returncode != 0, (step, ended.stderr)
            succeed("verify")
            now = state()
            assert now in (old, new), (command, step)
            seen.add("old" if now == old else "new")
            assert not list(SKILLS.glob(".deepskills*"))
            assert not list(Path.cwd().glob(".deepskills.lock*"))
            if now == new:
                succeed("add", str(library / "0"), "--yes")
                if command[0] == "add":
                    succeed("remove", "gone-1", "--yes")
            assert state() == old
    assert seen == {"old", "new"} or scaled(0, 1) == 0


def test_every_step_after_the_decision_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rename is the last one that happens, the next command finishes the change."""
    library = tmp_path / "library"
    versions(library)
    succeed("add", str(library / "0"), "--yes")
    old = state()
    ended_at = []
    for limit in range(1, 12):
        left = limit

        def rename(self: Path, target: Path, original: Callable[[Path, Path], Path] = Path.rename) -> Path:
            nonlocal left
            left -= 1
            if left <= 0:
                raise SystemError("ended")
            return original(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", rename)
            done = invoke("add", str(library / "1"), "--yes")
        if not isinstance(done.exception, SystemError):
            break
        ended_at.append(limit)
        succeed("verify")
        assert "Version 1" in (SKILLS / "alpha/SKILL.md").read_text(encoding="utf-8")
        assert not list(SKILLS.glob(".deepskills*"))
        succeed("add", str(library / "0"), "--yes")
        succeed("remove", "gone-1", "--yes")
        assert state() == old
    assert len(ended_at) >= 5


def test_two_commands_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is told to try again; it neither waits nor spoils the first."""
    library = tmp_path / "library"
    versions(library)
    said: list[str] = []

    def rename(self: Path, target: Path, original: Callable[[Path, Path], Path] = Path.rename) -> Path:
        if not said:
            said.append("")
            said.extend(refuse(1, *command) for command in (("add", str(library / "1"), "--yes"), ("verify",)))
        return original(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        succeed("add", str(library / "0"), "--skill", "alpha", "--yes")
    assert ["Another deepskills command" in text for text in said] == [False, True, True]
    succeed("verify")
    assert sorted(json.loads(LOCK.read_text(encoding="utf-8"))["skills"]) == ["alpha"]

    def flock(*args: int, original: Callable[..., None] = fcntl.flock) -> None:
        # Another command ended in the meantime, and took the directory away that it had made.
        SKILLS.rename("moved")
        original(*args)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        assert "Another deepskills command" in refuse(1, "add", str(library / "1"), "--yes")
    Path("moved").rename(SKILLS)
    succeed("verify")
    results: list[int] = []
    commands = [[sys.executable, "-m", "deepskills", "add", str(library / str(n)), "--yes"] for n in range(3)]
    threads = [
        threading.Thread(
            target=lambda c=command: results.append(subprocess.run(c, capture_output=True, check=False).returncode)
        )
        for command in commands
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 in results
    assert set(results) <= {0, 1}
    succeed("verify")


def test_a_plan_reaches_nothing_but_its_own_directory(tmp_path: Path) -> None:
    """A project can ship a plan of its own making; it moves nothing outside, and no plan of another lock is touched."""
    outside = tmp_path / "outside"
    write_files(outside, {"precious.md": "x"})
    write_files(tmp_path / "library", {"pdf/SKILL.md": skill_md("pdf")})
    succeed("add", str(tmp_path / "library"), "--yes")
    before = snapshot(outside, SKILLS / "pdf")
    for skills in ({"../../../outside": False}, {"pdf/../../x": True}, {"..": False}, {"pdf": "yes"}, ["pdf"], None):
        root = SKILLS / ".deepskills/abc"
        plan = {"lock": str(LOCK.absolute()), "skills": skills}
        write_files(root, {"plan.json": json.dumps(plan), "lock": EMPTY_LOCK, "new/x/SKILL.md": "x"})
        succeed("verify")
        assert snapshot(outside, SKILLS / "pdf") == before
    write_files(
        SKILLS / ".deepskills/abc", {"plan.json": json.dumps({"lock": "/another/lock", "skills": {"pdf": False}})}
    )
    succeed("verify")
    assert snapshot(outside, SKILLS / "pdf") == before
