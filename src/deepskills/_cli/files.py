"""The local files of the command line: which directories are read, and a small backend for them.

Commands perform the same plans as agents do, so that `deepskills list` and an agent can never disagree about what is
a skill. Agents' backends come from deepagents, which takes seconds to import; `LocalFiles` has the two methods that
the plans need, and opens nothing but regular files.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from deepskills._cli.plugins import is_plugin
from deepskills._errors import SkillsError
from deepskills._install.paths import READ_ONLY
from deepskills._io.backends import PathsOfThisMachine
from deepskills._io.drivers import drive
from deepskills._io.plan import Entry, Failed, Listing, Plan, Visit, Visitor, walk
from deepskills._providers.directory import select_searched
from deepskills._providers.sources import Source
from deepskills._skillmd.problems import problem, quoted
from deepskills._types import MAX_DIRECTORIES, MAX_SKILL_FILE_BYTES, SKILL_FILE, SkillProblem

DEFAULT_SOURCES = ("~/.claude/skills", "~/.agents/skills", ".claude/skills", "skills", ".agents/skills")
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


def find_usual_sources() -> list[Source]:
    """Return the default sources that exist, each place once: people link one of them to another."""
    sources = [Source(absolute(path), path) for path in DEFAULT_SOURCES]
    there = [source for source in sources if _is_there(Path.is_dir, source)]
    # The later source wins, as everywhere, so of two names for one place the later one stays.
    last = {os.path.realpath(source.path): source for source in there}
    return [source for source in there if last[os.path.realpath(source.path)] is source]


def find_named_sources(given: Sequence[str]) -> list[Source]:
    """Return the sources that were named, each labelled as it was given.

    Raises:
        UsageError: If a named source is a file, or none of them exists.
    """
    sources = [_name_source(path) for path in given]
    for source in sources:
        if _is_there(Path.exists, source) and not _is_there(Path.is_dir, source):
            raise UsageError(f"The source {source.label} is a file. Name the directory that holds skill directories.")
    if not any(_is_there(Path.exists, source) for source in sources):
        names = ", ".join(source.label for source in sources)
        raise UsageError(f"There is no such source: {names}. Name a directory that holds skill directories.")
    return sources


def _name_source(path: str) -> Source:
    place = absolute(path)
    # A directory of skills may call itself a plugin without being laid out like one.
    if is_plugin(place) and (skills := Path(place, "skills")).is_dir():
        return Source(skills.as_posix(), path, is_optional=True, plugin=place)
    return Source(place, path)


def _is_there(check: Callable[[Path], bool], source: Source) -> bool:
    """Whether a check holds; a path that cannot be looked at counts as there, so that the reading reports it."""
    try:
        return check(Path(source.path))
    except OSError:
        return True


# The local disk as a backend.

ResultT = TypeVar("ResultT")

_NOT_A_FILE = "it is a pipe, a device or a link that leads nowhere"
_A_DIRECTORY = "it is a directory"
_A_LINK = "it is a link; put the file itself there, or link the skill's directory"


@dataclass
class DirectoryListing:
    """What lies in a directory; `error` says why it may not be all."""

    entries: list[dict[str, Any]] | None = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class FileContent:
    """A file's content, or why it could not be read."""

    path: str
    content: bytes | None = None
    error: str | None = None


class LocalFiles(PathsOfThisMachine):
    """The file system of this machine, read only.

    Pipes and devices are never opened, no `SKILL.md` is passed over, and a huge file is read only as far as it takes
    to see that it is too large.
    """

    def ls(self, path: str) -> DirectoryListing:
        """List a directory: files, directories, and a `SKILL.md` whatever it is."""
        listing: list[dict[str, Any]] = []
        errors: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        # One entry that cannot be looked at must not cost the others.
                        if (found := _list(entry)) is not None:
                            listing.append(found)
                    except OSError as error:
                        errors.append(f"cannot look at '{entry.path}': {_reason(error)}")
        except FileNotFoundError:
            return DirectoryListing(None, f"Path '{path}': path_not_found")
        except OSError as error:
            return DirectoryListing(None, f"Cannot list '{path}': {_reason(error)}")
        return DirectoryListing(listing, "; ".join(sorted(errors)) or None)

    def download_files(self, paths: list[str]) -> list[FileContent]:
        """Read files; each that cannot be read has its own error."""
        return [_read(path) for path in paths]


def perform(plan: Plan[ResultT]) -> ResultT:
    """Perform a plan on the local file system; its paths are absolute."""
    return drive(plan, lambda: cast("Any", LocalFiles()))


def _list(entry: "os.DirEntry[str]") -> dict[str, Any] | None:
    """Return a file or directory as backends list it; None for what is neither, unless it is named `SKILL.md`."""
    if entry.is_dir():
        return {"path": entry.path, "is_dir": True}
    try:
        found = entry.stat()
    except FileNotFoundError:
        # A link that leads nowhere. Only as a `SKILL.md` is it worth a report.
        found = None
    if found is not None and stat.S_ISREG(found.st_mode):
        return {"path": entry.path, "is_dir": False, "size": found.st_size}
    return {"path": entry.path, "is_dir": False} if entry.name == SKILL_FILE else None


def _read(path: str) -> FileContent:
    try:
        # Checked before opening, since opening a pipe may wait forever, and again on what was opened, since the path
        # may have been replaced in between.
        if (refusal := _refusal(os.lstat(path).st_mode)) is not None:
            return FileContent(path, error=refusal)
        descriptor = os.open(path, READ_ONLY)
        with os.fdopen(descriptor, "rb") as file:
            if (refusal := _refusal(os.fstat(descriptor).st_mode)) is not None:
                return FileContent(path, error=refusal)
            return FileContent(path, file.read(MAX_SKILL_FILE_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        return FileContent(path, error="file_not_found")
    except OSError as error:
        return FileContent(path, error=_A_LINK if error.errno == errno.ELOOP else _reason(error))


def _refusal(mode: int) -> str | None:
    """Return why something is not read; None for a file."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return _A_LINK
    return _A_DIRECTORY if stat.S_ISDIR(mode) else _NOT_A_FILE


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# The skill files below a directory, at any depth.


@dataclass
class Tree:
    """The `SKILL.md` files below a directory, and what kept others from being found."""

    files: list[str] = field(default_factory=list)
    problems: list[SkillProblem] = field(default_factory=list)


async def find_skill_files(root: str, *, everything: bool = False) -> Tree:
    """Find every `SKILL.md` below `root`, at any depth.

    Below a skill's own directory only `everything` searches further, though not in its scripts, references and assets;
    `root` itself may be a skill's directory and hold others.
    """
    finder = _Finder(everything=everything)
    walked = await walk([(root, root)], finder, levels=None, max_directories=MAX_DIRECTORIES, resolve_links=True)
    tree = finder.tree
    if walked.cut:
        tree.problems.append(problem(root, "source-cut"))
    tree.files.sort()
    if not tree.files and not tree.problems:
        tree.problems.append(problem(root, "source-empty"))
    return tree


def is_misnamed(name: str) -> bool:
    """Whether a file's name is `SKILL.md` in another case, which agents do not read."""
    return name != SKILL_FILE and name.lower() == SKILL_FILE.lower()


class _Finder(Visitor[str]):
    """Collects the `SKILL.md` files of the directories it is shown."""

    def __init__(self, *, everything: bool) -> None:
        self.tree = Tree()
        self._everything = everything

    def take(self, visit: Visit[str], reply: Listing | Failed) -> list[tuple[str, str]]:
        """Note the directory's own `SKILL.md`; without one, return the directories to search next."""
        reason = reply.reason if isinstance(reply, Failed) else reply.error
        if reason:
            self.tree.problems.append(problem(visit.path, "source-incomplete", reason=reason))
        entries = () if isinstance(reply, Failed) else reply.entries
        goes_on = self._everything or visit.depth == 0
        return [(visit.key, path) for path in self._below(entries, goes_on=goes_on)]

    def _below(self, entries: Sequence[Entry], *, goes_on: bool) -> list[str]:
        own = next((entry for entry in entries if entry.name == SKILL_FILE), None)
        if own is not None:
            # A directory of that name is read like a file, so that its error is reported.
            self.tree.files.append(own.path)
        else:
            misnamed = [entry for entry in entries if is_misnamed(entry.name) and not entry.is_directory]
            self.tree.problems += [
                problem(entry.path, "skill-file-misnamed", found=quoted(entry.name)) for entry in misnamed
            ]
        paths = {entry.name: entry.path for entry in entries if entry.is_directory and entry.name != SKILL_FILE}
        searched = select_searched(
            paths, is_skill=own is not None, is_source=goes_on or own is None or own.is_directory
        )
        return [paths[name] for name in searched]
