"""Which directories the command line reads: those named, else the usual places that exist."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from deepskills._catalog.sources import Source
from deepskills._errors import SkillsError

DEFAULT_SOURCES = ("~/.agents/skills", ".claude/skills", "skills", ".agents/skills")
"""Where skills are looked for if no source is named; the later wins, so the project's win over the user's."""

NEW_SKILLS = ".agents/skills"
"""Where a new skill goes if no source is named."""


class UsageError(SkillsError):
    """The command was given something that is wrong or is not there."""


def absolute(path: str) -> str:
    """Return a path of the local machine in full, `~` and `..` worked out.

    Raises:
        UsageError: If it is empty, or names the home of a user who does not exist.
    """
    if not path.strip():
        raise UsageError("A path is empty. Name a directory, or `.` for the current one.")
    try:
        local = Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"There is no home directory for {path}. Write the path in full.") from None
    return Path(os.path.abspath(local)).as_posix()  # noqa: PTH100 - pathlib keeps `..`


def usual_sources() -> list[Source]:
    """Return the default sources that exist, each place once: people link one of them to another."""
    sources = [Source(absolute(path), path) for path in DEFAULT_SOURCES]
    there = [source for source in sources if _is_there(Path.is_dir, source)]
    last = {os.path.realpath(source.path): source for source in there}
    return [source for source in there if last[os.path.realpath(source.path)] is source]


def named_sources(given: Sequence[str]) -> list[Source]:
    """Return the sources that were named, each labelled as it was given.

    Raises:
        UsageError: If a named source is a file, or none of them exists.
    """
    sources = [Source(absolute(path), path) for path in given]
    for source in sources:
        if _is_there(Path.exists, source) and not _is_there(Path.is_dir, source):
            raise UsageError(f"The source {source.label} is a file. Name the directory that holds skill directories.")
    if not any(_is_there(Path.exists, source) for source in sources):
        names = ", ".join(source.label for source in sources)
        raise UsageError(f"There is no such source: {names}. Name a directory that holds skill directories.")
    return sources


def _is_there(check: Callable[[Path], bool], source: Source) -> bool:
    """Whether a check holds; a path that cannot be looked at counts as there, so that the reading reports it."""
    try:
        return check(Path(source.path))
    except OSError:
        return True
