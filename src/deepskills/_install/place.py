"""Placing and removing skills so that directory and lock change together, or not at all, whatever ends the process.

Theory of operation. No file system renames several things at once, so a change is written down first:

1. Under a lock on the directory, everything new is written: skills to `.deepskills/<token>/new/`, the new lock beside
   its place. Until now nothing that counts has changed, and a process that ends here leaves only rubbish.
2. `plan.json` is written beside them and renamed into place. That one rename is the decision. From here on the change
   happens, by this process or by the next.
3. Each old skill is renamed to `old/`, each new one to its place, then the lock's file. Each step is a rename that
   can be tried again: whether it was done shows from what lies where.
4. The token's directory is removed, `plan.json` first.

`recover` runs at the start of every command: it finishes what has a plan and removes what has none. A plan names only
skills of its own directory and the one lock it was made for, so that a forged one reaches nothing outside.
"""

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from deepskills._errors import SkillsError
from deepskills._install.lock import Lock
from deepskills._install.paths import STAGING, name_is_safe

PLAN = "plan.json"
"""The file whose presence decides that a change happens."""

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - systems without POSIX locks
    fcntl: ModuleType | None = None
else:
    fcntl = _fcntl


class BusyError(SkillsError):
    """Another command is changing the same directory."""


@dataclass(frozen=True)
class Workspace:
    """Where a change is prepared."""

    directory: Path
    """The directory of installed skills."""

    lock_path: Path
    root: Path
    """This change's own directory."""

    @property
    def new(self) -> Path:
        """Where new skills are written."""
        return self.root / "new"

    @property
    def lock_part(self) -> Path:
        """The new lock, beside its place: that may lie on another disk, where nothing can be renamed to."""
        return self.lock_path.with_name(f".{self.lock_path.name}.{self.root.name}")

    @property
    def scratch(self) -> Path:
        """For what is needed on the way, such as a clone."""
        return self.root / "scratch"

    def commit(self, lock: Lock, placed: Mapping[str, bool]) -> None:
        """Make the change: `placed` says of each skill whether it is placed from `new`, or removed."""
        self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.lock_part, lock.text().encode())
        if self.lock_path.exists():
            self.lock_part.chmod(stat.S_IMODE(self.lock_path.stat().st_mode))
        plan = {"lock": str(self.lock_path), "skills": dict(placed)}
        write_durably(self.root / f"{PLAN}.part", json.dumps(plan).encode())
        # Step 2, the decision.
        (self.root / f"{PLAN}.part").replace(self.root / PLAN)
        _finish(self)


@contextlib.contextmanager
def workspace(directory: Path, lock_path: Path) -> Iterator[Workspace]:
    """Give a place to prepare a change in; whatever is not committed leaves no trace.

    Raises:
        BusyError: If another command is changing the directory.
    """
    # Remembered, so that a command that changes nothing leaves no empty directories behind.
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    with _exclusive(directory):
        recover(directory, lock_path)
        own = Workspace(directory, lock_path, directory / STAGING / secrets.token_hex(8))
        own.new.mkdir(parents=True)
        own.scratch.mkdir()
        try:
            yield own
        finally:
            # After Ctrl-C, too: a change that was decided is finished, any other is taken back.
            if (own.root / PLAN).exists():
                _finish(own)
            _drop(own)
            _remove_if_empty(directory / STAGING, *made)


def recover(directory: Path, lock_path: Path) -> None:
    """Finish what an earlier command had decided and remove what it had not."""
    staging = directory / STAGING
    # It may have been replaced by a link; nothing behind it is ours to finish.
    if staging.is_symlink() or not staging.is_dir():
        return
    for root in sorted(staging.iterdir()):
        own = Workspace(directory, lock_path, root)
        if not root.is_symlink() and (root / PLAN).is_file():
            # A plan for another lock is left to the commands on that lock.
            if _plan(own) is None:
                continue
            _finish(own)
        _drop(own)
    _remove_if_empty(staging)


def finish_earlier(directory: Path, lock_path: Path) -> None:
    """Finish what an earlier command left, before reading; a command that is running now is not waited for.

    Raises:
        BusyError: If another command is changing the directory.
    """
    if (directory / STAGING).exists():
        with _exclusive(directory):
            recover(directory, lock_path)


def _plan(own: Workspace) -> dict[str, bool] | None:
    """Return what a plan says, if it is one of ours, for this lock."""
    try:
        plan = json.loads((own.root / PLAN).read_bytes())
    except (OSError, ValueError):
        return None
    skills = plan.get("skills") if isinstance(plan, dict) else None
    if not isinstance(skills, dict) or plan.get("lock") != str(own.lock_path):
        return None
    return skills if all(name_is_safe(name) and isinstance(new, bool) for name, new in skills.items()) else None


def _finish(own: Workspace) -> None:
    """Carry out a plan, or what is left of it."""
    plan = _plan(own)
    if plan is None:
        return
    old = own.root / "old"
    old.mkdir(exist_ok=True)
    for name, is_placed in plan.items():
        target, new, kept = own.directory / name, own.new / name, old / name
        # Step 3. What lies where shows how far an earlier process came.
        if is_placed and not os.path.lexists(new):
            continue  # in place already
        if os.path.lexists(target) and not os.path.lexists(kept):
            target.rename(kept)
        if is_placed:
            new.rename(target)
    if own.lock_part.exists():
        own.lock_part.replace(own.lock_path)
    # Without the plan, the rest is rubbish that any later command removes.
    (own.root / PLAN).unlink(missing_ok=True)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and see it on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        # A rename may reach the disk before the content that it names.
        os.fsync(file.fileno())


@contextlib.contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory that ends with the process, however it ends."""
    if fcntl is None:  # pragma: no cover - systems without POSIX locks
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A command that made the directory, and placed nothing, removes it: then this one holds what is gone.
            is_held = os.path.samestat(os.fstat(descriptor), directory.stat())
        except OSError:
            is_held = False
        if not is_held:
            raise BusyError(f"Another deepskills command is changing {directory}. Try again when it is done.")
        yield
    finally:
        os.close(descriptor)


def _drop(own: Workspace) -> None:
    """Remove what is left of a change that was finished or never decided."""
    if os.path.lexists(own.lock_part):
        own.lock_part.unlink()
    _remove(own.root)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    elif path.exists():
        shutil.rmtree(path, ignore_errors=True)


def _remove_if_empty(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
