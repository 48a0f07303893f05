"""Finds how installed skills differ from the locks: ours, and that of another installer.

What differs from ours is an error. What differs from the other's is worth a warning and no more (`npx`).
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deepskills._install.lock import Lock, LockedFile, LockedSkill
from deepskills._install.npx import NPX, NPX_LOCK, hash_directory, read_npx_lock
from deepskills._install.paths import MAX_ENTRIES, SourceError, quote_path
from deepskills._install.trees import Node, open_directory, read_regular
from deepskills._providers.directory import select_searched
from deepskills._types import SKILL_FILE

DriftKind: TypeAlias = Literal[
    "changed", "added", "removed", "executable", "missing", "unlisted", "unreadable", "differs", "not checkable"
]
"""A file's content changed, it was added or removed, its executable bit changed; a whole skill is missing or not in
the lock; something cannot be read. Of the other installer's skills: the hash differs, or cannot be computed again."""

SENTENCES: Mapping[DriftKind, str] = {
    "changed": "its content differs from the lock",
    "added": "it is not in the lock",
    "removed": "it is in the lock and not there",
    "executable": "its executable bit differs from the lock",
    "missing": "the skill is in the lock and not there",
    "unlisted": "the skill is not in the lock",
    "unreadable": "it cannot be read",
    "differs": f"its files differ from the hash in {NPX_LOCK}; {NPX} leaves files out, so compare it with its source",
    "not checkable": f"{NPX_LOCK} has no hash that can be computed again from its files",
}
"""What each kind of drift means, as a sentence's end."""

DEEPSKILLS = "deepskills"
"""This installer."""


@dataclass(frozen=True)
class Drift:
    """One thing that is not as a lock says."""

    skill: str
    kind: DriftKind
    path: str = ""
    """The file, relative to the skill; empty if it is about the skill as a whole."""

    installer: str | None = DEEPSKILLS
    """Whose lock it is about; `None` for a skill that no lock lists."""

    @property
    def place(self) -> str:
        """The skill, with the file if it is about one."""
        return f"{self.skill}/{self.path}" if self.path else self.skill

    @property
    def is_error(self) -> bool:
        """Whether it counts; a difference from another installer's lock may be lawful."""
        return self.installer != NPX

    def row(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            "skill": self.skill,
            "path": self.path,
            "kind": self.kind,
            "message": SENTENCES[self.kind],
            "installer": self.installer,
            "severity": "error" if self.is_error else "warning",
        }


def find_drift(directory: Path, lock: Lock) -> list[Drift]:
    """Return every difference between the skills of a lock and what is installed, in order."""
    skills = sorted(lock.skills.items())
    return [drift for name, locked in skills for drift in skill_drift(directory / name, name, locked)]


@dataclass(frozen=True)
class Installed:
    """The skills that a project's locks list."""

    sources: Mapping[tuple[str, str], str]
    """By installer and name where each came from."""

    drift: list[Drift]
    failure: str | None
    """Why the other installer's lock cannot be read."""

    def names(self, installer: str) -> list[str]:
        """Return what an installer brought, in order."""
        return sorted(name for by, name in self.sources if by == installer)


def compare_installed(directory: Path, lock: Lock, lock_path: Path) -> Installed:
    """Compare what is installed with a lock, and with that of the other installer beside it."""
    rows, failure = read_npx_lock(lock_path)
    sources = {(DEEPSKILLS, name): locked.source for name, locked in lock.skills.items()}
    sources |= {(NPX, name): row.source for name, row in rows.items()}
    others = [
        Drift(name, kind, installer=NPX)
        for name, row in sorted(rows.items())
        if (kind := _compare_hash(directory / name, row.computed_hash)) is not None
    ]
    return Installed(sources, [*find_drift(directory, lock), *others], failure)


def _compare_hash(directory: Path, expected: str | None) -> DriftKind | None:
    if not directory.is_dir():
        return "missing"
    actual = hash_directory(directory) if expected is not None else None
    if actual is None:
        return "not checkable"
    return None if actual == expected else "differs"


def find_unlisted(directory: Path, lock: Lock, lock_path: Path) -> list[str]:
    """Return the directories of skills that no lock lists, at any depth; `.` for the source itself.

    They are looked for by the rule of discovery, whatever depth that is given, and links are followed as backends do.

    Raises:
        SourceError: If there are too many directories.
    """
    found: set[str] = set()
    # A link can lead back to where it lies.
    seen: set[str] = set()
    # What is missing or cannot be listed shows no skills to an agent either.
    for path, directories, files in os.walk(directory, followlinks=True):
        if (real := os.path.realpath(path)) in seen:
            directories.clear()
            continue
        seen.add(real)
        if len(seen) > MAX_ENTRIES:
            raise SourceError(f"{quote_path(os.fspath(directory))} has more than {MAX_ENTRIES:,} directories.")
        own = Path(path).relative_to(directory).as_posix()
        is_source, is_skill = own == ".", SKILL_FILE in files
        if is_skill:
            found.add(own)
        searched = select_searched(sorted(directories), is_skill=is_skill, is_source=is_source)
        directories[:] = [name for name in searched if not is_source or name not in lock.skills]
    return sorted(found - read_npx_lock(lock_path)[0].keys())


def skill_drift(directory: Path, name: str, locked: LockedSkill) -> list[Drift]:
    """Return every difference between a skill's directory and what a lock says of it."""
    # A link to a directory is followed on purpose: people link skill directories. Links inside are never followed.
    if not directory.is_dir():
        return [Drift(name, "missing")]
    try:
        nodes = open_directory(directory, skipped=()).nodes
    except SourceError:
        return [Drift(name, "unreadable")]
    kinds: dict[str, DriftKind | None] = dict.fromkeys(locked.files, "removed")
    kinds |= {path: _file_drift(directory / path, node, locked.files.get(path)) for path, node in nodes.items()}
    return [Drift(name, kind, path) for path, kind in sorted(kinds.items()) if kind is not None]


def _file_drift(path: Path, node: Node, locked: LockedFile | None) -> DriftKind | None:
    """Return how a file differs; one that is now a link or a pipe is another file."""
    if locked is None:
        return "added"
    if node.kind != "file" or node.size != locked.size:
        return "changed"
    try:
        content = read_regular(path, node.path)
    except SourceError:
        return "unreadable"
    if hashlib.sha256(content).hexdigest() != locked.sha256:
        return "changed"
    # Other systems have no such bit to compare.
    return "executable" if os.name == "posix" and node.executable != locked.executable else None
