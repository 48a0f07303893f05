"""What it costs to hold skills to a lock: `verify` beside `sha256sum`, and discovery with and without `SkillLock`."""

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from langgraph.runtime import Runtime
from library import write_library
from measure import Row, compare, seconds

from deepskills import SkillsMiddleware
from deepskills._install.drift import find_drift
from deepskills._install.lock import Lock, LockedFile, LockedSkill, load_lock
from deepskills.extensions import SkillLock

SKILLS = 1_000
"""How many skills are locked."""

FURTHER = 4
"""How many files each skill has beside its `SKILL.md`."""

RUNS = 9
"""How often both sides of a comparison run, in turns."""

VERIFY_REACH = 2.0
"""How many times as long as `sha256sum` over the same files `verify` may take."""

LOCK_REACH = 1.10
"""How many times as long discovery may take with a lock."""


def write_locked_library(root: Path) -> Lock:
    """Write skills with further files, and return the lock that lists them."""
    write_library(root, SKILLS)
    skills: dict[str, LockedSkill] = {}
    for directory in sorted(root.iterdir()):
        for number in range(FURTHER):
            file = directory / "references" / f"{number}.md"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{directory.name} {number}\n" * 200, encoding="utf-8")
        files = {
            path.relative_to(directory).as_posix(): LockedFile(_sha256(path), path.stat().st_size)
            for path in directory.rglob("*")
            if path.is_file()
        }
        skills[directory.name] = LockedSkill("library", None, None, directory.name, files)
    return Lock(skills)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def locking_rows() -> Iterator[Row]:
    """Measure both."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "skills"
        lock = write_locked_library(root)
        yield verify_row(root, lock)
        yield discovery_row(root, lock)


def verify_row(root: Path, lock: Lock) -> Row:
    """Compare `verify`, as a command from start to end and as a call, with `sha256sum` over the same files."""
    program = shutil.which("sha256sum") or shutil.which("shasum") or "sha256sum"
    listing = root.parent / "files"
    listing.write_bytes(b"\0".join(os.fsencode(path) for path in sorted(root.rglob("*")) if path.is_file()))
    locked = root.parent / "deepskills.lock"
    locked.write_text(lock.text(), encoding="utf-8")
    command = [sys.executable, "-m", "deepskills", "verify", "--source", str(root), "--lock", str(locked)]

    def hash_all() -> None:
        with listing.open("rb") as names:
            subprocess.run(["xargs", "-0", program], stdin=names, stdout=subprocess.DEVNULL, check=True)  # noqa: S603, S607 - our own files

    def verify() -> None:
        if find_drift(root, load_lock(locked)):
            raise RuntimeError("the library is not as it was written")

    verify()
    ratio, theirs, ours = compare(hash_all, verify, RUNS)
    # The command reads the lock and starts Python, too.
    # From start to end Python and the command line have to start, too.
    whole = statistics.median(seconds(lambda: _run(command)) for _ in range(3))
    return Row(
        f"verify, {SKILLS:,} skills, {SKILLS * (FURTHER + 1):,} files",
        f"sha256sum {theirs * 1000:.0f} ms",
        f"{ours * 1000:.0f} ms: {1 / ratio.median:.1f}x; the command from start to end {whole * 1000:.0f} ms",
        f"at most {VERIFY_REACH:.0f}x",
        1 / ratio.median <= VERIFY_REACH,
        {"sha256sum": theirs, "verify": ours, "command": whole, "ratio": 1 / ratio.median},
    )


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own command


def discovery_row(root: Path, lock: Lock) -> Row:
    """Compare the first discovery of an agent with a lock to that of one without."""
    guard = SkillLock({"version": 1, "skills": {name: skill.row() for name, skill in lock.skills.items()}})

    def discover(*extensions: Any) -> None:
        backend = FilesystemBackend(root_dir=root.parent, virtual_mode=True)
        middleware: Any = SkillsMiddleware(backend=backend, sources=["/skills"], extensions=extensions)
        found = middleware.before_agent({"messages": []}, Runtime())
        if found is None or len(found["skills_metadata"]) != SKILLS:
            raise RuntimeError("not all skills were found")

    discover(guard)
    ratio, without, with_lock = compare(discover, lambda: discover(guard), RUNS)
    return Row(
        f"discovery of {SKILLS:,} skills with SkillLock",
        f"without {without * 1000:.0f} ms",
        f"{with_lock * 1000:.0f} ms: {1 / ratio.median:.2f}x",
        f"at most {LOCK_REACH:.2f}x",
        1 / ratio.median <= LOCK_REACH,
        {"without": without, "with": with_lock, "ratio": 1 / ratio.median},
    )


if __name__ == "__main__":
    for row in locking_rows():
        print(row)
