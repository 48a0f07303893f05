"""A source as a tree of named entries that can be read: what directories, repositories and archives share."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from deepskills._install.limits import MAX_ENTRIES, MAX_FILE_BYTES, SourceError, shown
from deepskills._install.origin import Origin

Kind: TypeAlias = Literal["file", "link", "special", "submodule"]
"""What an entry is; directories are not entries. `special` is a device, a pipe or a socket."""

GIT_DIRECTORY = ".git"
"""What git keeps for itself: no part of any skill."""

STAGING = ".deepskills"
"""Where skills wait to be placed: no part of any skill either."""

READ_ONLY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How a stranger's file is opened: not through a link, not waiting for a pipe, its bytes as they are."""


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a source."""

    path: str
    """Relative to the source, POSIX."""

    kind: Kind
    size: int = 0
    executable: bool = False


class Tree(Protocol):
    """The entries of a source, and a way to read them."""

    nodes: dict[str, Node]
    commit: str | None

    def contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the content of each file, in any order.

        Raises:
            SourceError: If one is not as the tree said it is.
        """


@dataclass
class DirectoryTree:
    """A directory of this machine; links in it are entries, never followed."""

    root: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    commit: str | None = None

    @classmethod
    def of(cls, origin: Origin) -> "DirectoryTree":
        """Return the tree of a directory.

        Raises:
            SourceError: If it cannot be listed or is too large.
        """
        tree = cls(Path(os.path.realpath(origin.location)))
        for node in walk_directory(tree.root, skipped=frozenset({GIT_DIRECTORY, STAGING})):
            tree.nodes[node.path] = node
        return tree

    def contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the content of each file."""
        for path in paths:
            yield path, read_regular(self.root / path, path, self.nodes[path].size)


def walk_directory(root: Path, skipped: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Yield everything below a directory but directories, without following a link.

    Raises:
        SourceError: If it cannot be listed, or has too many entries.
    """
    pending, seen = [("", str(root))], 0
    while pending:
        prefix, directory = pending.pop()
        try:
            with os.scandir(directory) as entries:
                found = list(entries)
        except OSError as error:
            raise SourceError(f"{shown(directory)} cannot be listed: {error.strerror or error}.") from None
        for entry in found:
            seen += 1
            if seen > MAX_ENTRIES:
                raise SourceError(
                    f"{shown(str(root))} has more than {MAX_ENTRIES:,} entries. Name a smaller directory."
                )
            path = f"{prefix}{entry.name}"
            # A link to a directory is an entry like any other link, and never entered.
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skipped:
                    pending.append((f"{path}/", entry.path))
            else:
                yield _node(path, entry)


def _node(path: str, entry: "os.DirEntry[str]") -> Node:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        raise SourceError(f"{shown(entry.path)} cannot be looked at: {error.strerror or error}.") from None
    if stat.S_ISREG(found.st_mode):
        return Node(path, "file", found.st_size, bool(found.st_mode & 0o100))
    return Node(path, "link" if stat.S_ISLNK(found.st_mode) else "special")


def read_regular(path: Path, name: str, size: int) -> bytes:
    """Return the content of a regular file, which must be of the size that was seen before.

    Raises:
        SourceError: If it cannot be read, or is no longer what it was.
    """
    try:
        with open_regular(path) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{shown(name)} cannot be read: {error.strerror or error}.") from None
    # Its digest would be of something that nobody was shown.
    if len(content) != size:
        raise SourceError(f"{shown(name)} changed while it was read. Try again.")
    return content


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """Open a regular file without following a link and without waiting for a pipe.

    Raises:
        OSError: If it cannot be opened, or is something else.
    """
    descriptor = os.open(path, READ_ONLY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)
