"""Reads a skill from a directory on the local disk. It follows no links: a directory may come from a stranger."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from deepskills._errors import SkillFormatError, SkillPathError
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE
from deepskills.store.errors import SkillTooLargeError
from deepskills.store.rules import StoreLimits

PASSED_OVER = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".DS_Store"})
"""Names that never belong to a skill."""


def read_directory(path: str | os.PathLike[str], limits: StoreLimits | None = None) -> tuple[bytes, dict[str, bytes]]:
    """Return the `SKILL.md` of a directory and its other files, by path relative to it.

    Raises:
        SkillFormatError: If it has no `SKILL.md`.
        SkillPathError: If it holds a link or another special file.
        SkillTooLargeError: If it holds too many files, or they are too large.
    """
    bounds = limits or StoreLimits()
    root = Path(path)
    files: dict[str, bytes] = {}
    total = 0
    for file in files_below(root):
        relative = file.relative_to(root).as_posix()
        # The link itself, not its target; sizes are added up before anything is read.
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise SkillPathError(f"{file} is a link or another special file. Put a plain file in its place.")
        total += status.st_size
        largest = max(bounds.file_bytes, MAX_SKILL_FILE_BYTES)
        if status.st_size > largest or total > bounds.skill_bytes + MAX_SKILL_FILE_BYTES:
            raise SkillTooLargeError(f"{file} is too large, or makes the skill too large. Remove or shrink it.")
        files[relative] = file.read_bytes()
        if len(files) > bounds.files + 1:
            raise SkillTooLargeError(f"{root} has more than {bounds.files} files. Remove some.")
    if SKILL_FILE not in files:
        raise SkillFormatError(f"{root} has no {SKILL_FILE}. Add it, or give the directory of a skill.")
    return files.pop(SKILL_FILE), files


def files_below(root: Path) -> Iterator[Path]:
    """Yield the files of a directory, in order.

    Raises:
        SkillPathError: If a directory is a link.
    """
    for parent, directories, names in os.walk(root):
        directories[:] = sorted(name for name in directories if name not in PASSED_OVER)
        for name in directories:
            if Path(parent, name).is_symlink():
                raise SkillPathError(f"{Path(parent, name)} is a link to a directory. Put the directory in its place.")
        yield from (Path(parent, name) for name in sorted(names) if name not in PASSED_OVER)
