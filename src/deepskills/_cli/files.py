"""The local file system as a backend of the command line, without the framework that agents' backends come from."""

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from deepskills._backend.calls import Plan
from deepskills._backend.drivers import drive
from deepskills._backend.local import PathsOfThisMachine
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE

ResultT = TypeVar("ResultT")

_NOT_A_FILE = "it is a pipe, a device or a link that leads nowhere"
_A_DIRECTORY = "it is a directory"
_A_LINK = "it is a link; put the file itself there, or link the skill's directory"

_READ_ONLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened: links are not followed, and what turned into a pipe meanwhile is not waited for."""


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

    Pipes and devices are never opened, no `SKILL.md` is passed over, and of a huge file only as much is read as shows
    that it is too large.
    """

    def ls(self, path: str) -> DirectoryListing:
        """List a directory: files, directories, and a `SKILL.md` whatever it is."""
        listing: list[dict[str, Any]] = []
        errors: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        if (found := _listed(entry)) is not None:
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


def _listed(entry: "os.DirEntry[str]") -> dict[str, Any] | None:
    """Return a file or directory as backends list it; None for what is neither, unless it is named `SKILL.md`."""
    if entry.is_dir():
        return {"path": entry.path, "is_dir": True}
    try:
        found = entry.stat()
    except FileNotFoundError:
        found = None
    if found is not None and stat.S_ISREG(found.st_mode):
        return {"path": entry.path, "is_dir": False, "size": found.st_size}
    return {"path": entry.path, "is_dir": False} if entry.name == SKILL_FILE else None


def _read(path: str) -> FileContent:
    try:
        if (refusal := _refusal(os.lstat(path).st_mode)) is not None:
            return FileContent(path, error=refusal)
        descriptor = os.open(path, _READ_ONLY)
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
