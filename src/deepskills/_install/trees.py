"""Sources as trees of named entries that can be read: directories and archives, within limits.

`Tree` is what directories, archives and repositories (`git`) become: their entries, and a function that reads files.

Nothing of an archive is unpacked by the archive's own rules: its members are looked at, and the files of chosen skills
are read one by one into memory. A member whose path leaves the archive, is there twice, lies below something that is
not a directory, or stands for a device spoils the whole archive: no tool packs that by accident. Links, which
repositories do hold, only spoil the skill that they lie in (`candidates`).

What a `.zip` or `.tar.gz` costs is bounded whatever it claims: the bytes that come out of it, the headers among them,
its members, and the directories that their paths name. `tarfile` reads through a stream that bounds each header, and
forgets global headers, which it would copy for each member.
"""

import gzip
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deepskills._install.origin import Origin
from deepskills._install.paths import (
    GIT_DIRECTORY,
    MAX_ARCHIVE_BYTES,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_HEADER_BYTES,
    READ_ONLY,
    STAGING,
    SourceError,
    name_fault,
    path_fault,
    quote_path,
)

Kind: TypeAlias = Literal["file", "link", "special", "submodule"]
"""What an entry is; directories are not entries. `special` is a device, a pipe or a socket."""


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a source."""

    path: str
    """Relative to the source, POSIX."""

    kind: Kind
    size: int = 0
    executable: bool = False


Contents: TypeAlias = Callable[[Iterable[str]], Iterator[tuple[str, bytes]]]
"""Yields the content of each file, in any order; raises `SourceError` if one is not as the tree says."""


@dataclass(frozen=True)
class Tree:
    """The entries of a source, and a way to read them."""

    nodes: dict[str, Node]
    contents: Contents
    commit: str | None = None
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why skills that should be there are not, by path."""
    entries: int = 0
    """How many entries of an archive were looked at, directories too: each reading looks at all of them again."""


@dataclass
class Entries:
    """Collects the entries of a source, and stops where it has more than any honest one."""

    what: str
    nodes: dict[str, Node] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})

    def add(self, node: Node) -> None:
        """Take an entry."""
        self.nodes[node.path] = node
        self.enter(node.path.rpartition("/")[0])

    def enter(self, directory: str) -> None:
        """Take a directory and all above it, each once: paths of many parts would otherwise cost their square."""
        while directory not in self.directories:
            self.directories.add(directory)
            directory = directory.rpartition("/")[0]
            self._check()
        self._check()

    def _check(self) -> None:
        if len(self.nodes) + len(self.directories) > MAX_ENTRIES:
            raise SourceError(f"{self.what} has more than {MAX_ENTRIES:,} entries. Name a smaller one.")


# --------------------------------------------------------------------------------------------------------------------
# Directories of this machine; links in them are entries, never followed.
# --------------------------------------------------------------------------------------------------------------------


def open_directory(location: str | Path, skipped: Collection[str] = (GIT_DIRECTORY, STAGING)) -> Tree:
    """Return the tree of a directory, without directories of these names.

    Raises:
        SourceError: If it cannot be listed or is too large.
    """
    root = os.path.realpath(location)
    found = Entries(quote_path(root))
    pending = [""]
    while pending:
        prefix = pending.pop()
        for entry in _scan(os.path.join(root, prefix)):  # noqa: PTH118 - thousands of them
            # A link to a directory is an entry like any other link, and never entered.
            if not entry.is_dir(follow_symlinks=False):
                found.add(_node(f"{prefix}{entry.name}", entry))
            elif entry.name not in skipped:
                found.enter(f"{prefix}{entry.name}")
                pending.append(f"{prefix}{entry.name}/")
    return Tree(found.nodes, partial(_read_files, Path(root), found.nodes))


def _scan(directory: str) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError as error:
        raise SourceError(f"{quote_path(directory)} cannot be listed: {error.strerror or error}.") from None


def _node(path: str, entry: "os.DirEntry[str]") -> Node:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        raise SourceError(f"{quote_path(entry.path)} cannot be looked at: {error.strerror or error}.") from None
    if stat.S_ISREG(found.st_mode):
        return Node(path, "file", found.st_size, bool(found.st_mode & 0o100))
    return Node(path, "link" if stat.S_ISLNK(found.st_mode) else "special")


def _read_files(root: Path, nodes: dict[str, Node], paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        content = read_regular(root / path, path)
        # Its digest would be of something that was never shown.
        if len(content) != nodes[path].size:
            raise SourceError(f"{quote_path(path)} changed while it was read. Try again.")
        yield path, content


def read_regular(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the start of a regular file, without following a link and without waiting for a pipe.

    Raises:
        SourceError: If it cannot be read, or is something else.
    """
    try:
        descriptor = os.open(path, READ_ONLY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceError(f"{quote_path(name)} cannot be read: it is not a regular file.")
            return file.read(limit + 1)
    except OSError as error:
        raise SourceError(f"{quote_path(name)} cannot be read: {error.strerror or error}.") from None


# --------------------------------------------------------------------------------------------------------------------
# `.zip` and `.tar.gz` files.
# --------------------------------------------------------------------------------------------------------------------


_UTF8_FLAG = 0x800
_ENCRYPTED_FLAG = 0x1
_ZIP_ENTRY = b"PK\1\2"
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    OverflowError,
)
"""What the standard library raises for files that are not what their name says."""


@dataclass(frozen=True, slots=True)
class _Member:
    """What an archive holds under a name; a directory has no kind."""

    name: str
    kind: Kind | None
    size: int
    executable: bool
    read: Callable[[int], bytes]
    """Returns at most so many bytes of its content; to be called before the next member is asked for."""

    @property
    def path(self) -> str:
        """Its path in the tree: `tar -c .` writes `./` before every name."""
        return self.name.removeprefix("./")


_Members: TypeAlias = Callable[[str], "AbstractContextManager[Iterator[_Member]]"]


def open_archive(origin: Origin) -> Tree:
    """Return the tree of a `.zip` or `.tar.gz` file.

    Raises:
        SourceError: If it is broken, or holds what no honest archive has.
    """
    members: _Members = _zip_members if origin.kind == "zip" else _tar_members
    found = Entries("The archive")
    total = 0
    with _refusals(origin.recorded), members(origin.location) as listed:
        for count, member in enumerate(listed):
            if count >= MAX_ENTRIES:
                raise SourceError(f"The archive has more than {MAX_ENTRIES:,} entries. It was not unpacked.")
            total += member.size
            if total > MAX_ARCHIVE_BYTES:
                raise _too_large()
            _take(found, member)
    entries = len(found.nodes) + len(found.directories)
    return Tree(found.nodes, partial(_read_members, members, origin, found.nodes), entries=entries)


def _take(found: Entries, member: _Member) -> None:
    """Add a member, and refuse what no honest archive has."""
    path = member.path if member.kind is not None else member.path.rstrip("/")
    if member.kind is None and path in {"", "."}:
        return
    fault = path_fault(path)
    # A name with odd characters spoils its own skill; a path that leads elsewhere spoils the archive.
    if fault is not None and name_fault(path) is None:
        raise SourceError(f"The archive holds {quote_path(member.name)}: {fault}. It was not unpacked.")
    if member.kind == "special":
        raise SourceError(f"The archive holds {quote_path(member.name)}, a device or a pipe. It was not unpacked.")
    if path in found.nodes or (member.kind is not None and path in found.directories):
        raise SourceError(f"The archive holds {quote_path(member.name)} twice. It was not unpacked.")
    # A file below a link would be written wherever the link leads. What lies above a known directory was looked at.
    above = path.rpartition("/")[0]
    while above not in found.directories:
        if above in found.nodes:
            raise SourceError(
                f"The archive holds {quote_path(member.name)} below {quote_path(above)}, not a directory. "
                "It was not unpacked."
            )
        above = above.rpartition("/")[0]
    if member.kind is None:
        found.enter(path)
    else:
        found.add(Node(path, member.kind, member.size, member.executable))


def _read_members(
    members: _Members, origin: Origin, nodes: dict[str, Node], paths: Iterable[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield the content of files in the archive's order, checked against its own checksums if it has any."""
    wanted = set(paths)
    with _refusals(origin.recorded), members(origin.location) as listed:
        for member in listed if wanted else ():
            if member.kind != "file" or member.path not in wanted:
                continue
            wanted.discard(member.path)
            size = nodes[member.path].size
            # One byte more than was promised is enough to know that the archive lies.
            content = member.read(min(size, MAX_FILE_BYTES) + 1)
            if len(content) != size:
                raise SourceError(
                    f"The archive says that {quote_path(member.path)} has {size:,} bytes, and it has others."
                )
            yield member.path, content
            if not wanted:
                return
    if wanted:
        raise SourceError(f"The archive no longer holds {quote_path(min(wanted))}. Try again.")


def _too_large() -> SourceError:
    return SourceError(f"The archive is larger than {MAX_ARCHIVE_BYTES:,} bytes when unpacked. It was not unpacked.")


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Turn what the standard library raises for a broken archive into one sentence."""
    try:
        yield
    except SourceError:
        raise
    except UnicodeDecodeError:
        raise SourceError(
            f"The archive {quote_path(path)} has names that are not UTF-8. It was not unpacked."
        ) from None
    except _BROKEN as error:
        raise SourceError(f"The archive {quote_path(path)} cannot be read: {error}. Download it again.") from None


@contextmanager
def _zip_members(path: str) -> Iterator[Iterator[_Member]]:
    # The library takes all that the archive lists into memory, at a thousand times the cost of looking for it.
    count, end = 0, b""
    with Path(path).open("rb") as file:
        while chunk := file.read(MAX_HEADER_BYTES):
            count += (end + chunk).count(_ZIP_ENTRY)
            end = chunk[-3:]
    if count > MAX_ENTRIES:
        raise SourceError(f"The archive has more than {MAX_ENTRIES:,} entries. It was not unpacked.")
    with zipfile.ZipFile(path) as archive:
        yield (_zip_member(archive, info) for info in archive.infolist())


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    # By the name as it stands in the archive: the library's own cuts it at a NUL.
    name = info.orig_filename
    if not info.flag_bits & _UTF8_FLAG and not name.isascii():
        raise SourceError(f"The archive holds the name {quote_path(name)}, which is not UTF-8. It was not unpacked.")
    if info.flag_bits & _ENCRYPTED_FLAG:
        raise SourceError(f"The archive holds {quote_path(name)}, which is encrypted. It was not unpacked.")
    # Other methods take as much memory as the archive asks for.
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise SourceError(f"The archive holds {quote_path(name)}, packed by a rare method. Pack it with `deflate`.")
    mode = info.external_attr >> 16
    kind: Kind | None = "link" if stat.S_ISLNK(mode) else "special"
    if name.endswith("/"):
        kind = None
    elif stat.S_IFMT(mode) in {0, stat.S_IFREG}:
        kind = "file"

    def read(size: int) -> bytes:
        with archive.open(info) as file:
            return file.read(size)

    return _Member(name, kind, info.file_size if kind == "file" else 0, bool(mode & 0o100), read)


@contextmanager
def _tar_members(path: str) -> Iterator[Iterator[_Member]]:
    with gzip.open(path) as unpacked:
        stream = _Stream(unpacked)
        with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            yield _read_tar(archive, stream)


class _Stream(io.RawIOBase):
    """An unpacked `.tar` as it is read from start to end: a `.tar.gz` has no index."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = MAX_HEADER_BYTES
        self.last = b""
        """What was read last."""

    def allow(self, size: int) -> None:
        """Allow so many bytes to be read from now on."""
        self._left = size

    def tell(self) -> int:
        """Return how far it was read."""
        return self._file.tell()

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go on at a place."""
        if position > MAX_ARCHIVE_BYTES:
            raise _too_large()
        return self._file.seek(position, whence)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or what is left.

        Raises:
            SourceError: If that is more than was allowed.
        """
        self._left -= size
        if size < 0 or self._left < 0:
            raise SourceError(f"The archive has a header of over {MAX_HEADER_BYTES:,} bytes. It was not unpacked.")
        self.last = self._file.read(size)
        return self.last


def _read_tar(archive: tarfile.TarFile, stream: _Stream) -> Iterator[_Member]:
    """Yield every member.

    Raises:
        SourceError: If a member's headers are larger than those of any honest archive.
        tarfile.TarError: If it is not a `.tar`.
    """

    def read(info: tarfile.TarInfo, size: int) -> bytes:
        stream.allow(info.size)
        file = archive.extractfile(info)
        return file.read(size) if file is not None else b""

    while (info := archive.next()) is not None:
        if info.size < 0:
            raise tarfile.ReadError("a member has a negative size")
        kind: Kind | None = "special"
        if info.isdir():
            kind = None
        elif info.issym() or info.islnk():
            kind = "link"
        # Sparse files claim any size for nothing; no packer writes them for text.
        elif info.isreg() and not info.issparse():
            kind = "file"
        is_file = kind == "file"
        yield _Member(info.name, kind, info.size if is_file else 0, bool(info.mode & 0o100), partial(read, info))
        # It would keep all members, and copy all global headers for each.
        kept: Any = archive
        kept.members.clear()
        kept.pax_headers.clear()
        stream.allow(MAX_HEADER_BYTES)
    # What is no header ends the list, as the end does.
    if stream.last.strip(b"\0"):
        raise tarfile.ReadError("it ends too early")
