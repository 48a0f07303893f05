"""Compares the directory of installed skills with a lock: every kind of drift, by name."""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deepskills._install.limits import MAX_ENTRIES, SourceError, shown
from deepskills._install.lock import Lock, LockedFile, LockedSkill
from deepskills._install.trees import READ_ONLY, STAGING
from deepskills._types import SKILL_FILE

DriftKind: TypeAlias = Literal["changed", "added", "removed", "executable", "missing", "unlisted", "unreadable"]
"""A file's content changed, it was added or removed, its executable bit changed; a whole skill is missing or not in
the lock; something cannot be read."""

SENTENCES: Mapping[DriftKind, str] = {
    "changed": "its content differs from the lock",
    "added": "it is not in the lock",
    "removed": "it is in the lock and not there",
    "executable": "its executable bit differs from the lock",
    "missing": "the skill is in the lock and not there",
    "unlisted": "the skill is not in the lock",
    "unreadable": "it cannot be read",
}
"""What each kind of drift means, as a sentence's end."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Drift:
    """One thing that is not as the lock says."""

    skill: str
    kind: DriftKind
    path: str = ""
    """The file, relative to the skill; empty if it is about the skill as a whole."""

    def row(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {"skill": self.skill, "path": self.path, "kind": self.kind, "message": f"{SENTENCES[self.kind]}"}


def find_drift(directory: str | Path, lock: Lock, names: Sequence[str] | None = None) -> list[Drift]:
    """Return every difference between what is installed and what a lock says, in order.

    With `names` only these skills are looked at, and skills that the lock does not list are left aside.
    """
    found: list[Drift] = []
    for name in sorted(lock.skills if names is None else names):
        found += skill_drift(os.path.join(directory, name), name, lock.skills[name])  # noqa: PTH118 - thousands of them
    if names is None:
        found += [Drift(name, "unlisted") for name in _unlisted(directory, lock)]
    return found


def _unlisted(directory: str | Path, lock: Lock) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            others = [entry for entry in entries if entry.name not in lock.skills and entry.name != STAGING]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entry.name for entry in others if os.path.lexists(os.path.join(entry.path, SKILL_FILE)))  # noqa: PTH118


def skill_drift(directory: str, name: str, locked: LockedSkill) -> list[Drift]:  # noqa: C901 - one loop, run often
    """Return every difference between a skill's directory and what a lock says of it."""
    try:
        # Followed on purpose: people link skill directories. Links inside are never followed.
        is_directory = stat.S_ISDIR(os.stat(directory).st_mode)  # noqa: PTH116 - a skill's directory may be a link
    except FileNotFoundError:
        return [Drift(name, "missing")]
    except OSError:
        return [Drift(name, "unreadable")]
    if not is_directory:
        return [Drift(name, "missing")]
    found: list[Drift] = []
    expected = locked.files
    present = 0
    pending = [("", directory)]
    seen = 0
    while pending:
        prefix, path = pending.pop()
        try:
            with os.scandir(path) as scanned:
                entries = list(scanned)
        except OSError:
            found.append(Drift(name, "unreadable", prefix))
            continue
        for entry in entries:
            relative = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append((f"{relative}/", entry.path))
                continue
            seen += 1
            if seen > MAX_ENTRIES:
                raise SourceError(f"{shown(directory)} has more than {MAX_ENTRIES:,} files.")
            file = expected.get(relative)
            if file is None:
                found.append(Drift(name, "added", relative))
                continue
            present += 1
            kind = _file_drift(entry.path, file)
            if kind is not None:
                found.append(Drift(name, kind, relative))
    # Counted while walking, so that the usual case needs no second look at each file.
    if present != len(expected):
        found += [Drift(name, "removed", path) for path in expected if not os.path.lexists(f"{directory}/{path}")]
    return sorted(found, key=lambda drift: drift.path)


def _file_drift(path: str, file: LockedFile) -> DriftKind | None:
    """Return how a file differs; one that is now a link or a pipe is another file."""
    try:
        descriptor = os.open(path, READ_ONLY)
    except OSError:
        return "changed" if os.path.islink(path) else "unreadable"  # noqa: PTH114 - as above
    try:
        status = os.fstat(descriptor)
        # Before anything is hashed: another size is another file.
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
            return "changed"
        content = os.read(descriptor, _CHUNK)
        digest = hashlib.sha256(content)
        while len(content) == _CHUNK:
            content = os.read(descriptor, _CHUNK)
            digest.update(content)
    except OSError:
        return "unreadable"
    finally:
        os.close(descriptor)
    if digest.hexdigest() != file.sha256:
        return "changed"
    # Other systems have no such bit to compare.
    has_bits = os.name == "posix"
    return "executable" if has_bits and bool(status.st_mode & 0o100) != file.executable else None
