"""`.zip` and `.tar.gz` files as trees, read so that no archive can make more work than it is worth.

Nothing is unpacked by the archive's own rules: entries are looked at, and the files of chosen skills are read one by
one into memory. An entry whose path leaves the archive, is there twice, lies below something that is not a directory,
or stands for a device spoils the whole archive: no tool packs that by accident. Links, which repositories do hold, only
spoil the skill that they lie in (`candidates`).
"""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from deepskills._install.limits import (
    MAX_ARCHIVE_BYTES,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    SourceError,
    name_fault,
    path_fault,
    shown,
)
from deepskills._install.origin import Origin
from deepskills._install.trees import Kind, Node

_UTF8_FLAG = 0x800
_ENCRYPTED_FLAG = 0x1
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


@dataclass
class _Entries:
    """Collects the entries of an archive, and refuses what no honest archive has."""

    nodes: dict[str, Node] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    total: int = 0
    count: int = 0

    def add(self, name: str, kind: Kind | None, size: int = 0, *, executable: bool = False) -> None:
        """Take an entry; `kind` is `None` for a directory."""
        self.count += 1
        if self.count > MAX_ENTRIES:
            raise SourceError(f"The archive has more than {MAX_ENTRIES:,} entries. It was not unpacked.")
        # `tar -c .` writes `./` before every name.
        path = name.removeprefix("./").rstrip("/") if kind is None else name.removeprefix("./")
        if kind is None and path in {"", "."}:
            return
        fault = path_fault(path)
        # A name with odd characters spoils its own skill; a path that leads elsewhere spoils the archive.
        if fault is not None and name_fault(path) is None:
            raise SourceError(f"The archive holds {shown(name)}: {fault}. It was not unpacked.")
        if kind == "special":
            raise SourceError(f"The archive holds {shown(name)}, a device or a pipe. It was not unpacked.")
        if path in self.nodes or (kind is not None and path in self.directories):
            raise SourceError(f"The archive holds {shown(name)} twice. It was not unpacked.")
        parts = path.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        # A file below a link would be written wherever the link leads.
        through = next((prefix for prefix in above if prefix in self.nodes), None)
        if through is not None:
            raise SourceError(
                f"The archive holds {shown(name)} below {shown(through)}, not a directory. It was not unpacked."
            )
        self.directories.update(above)
        if kind is None:
            self.directories.add(path)
            return
        self.total += size
        if self.total > MAX_ARCHIVE_BYTES:
            raise _too_large()
        self.nodes[path] = Node(path, kind, size, executable)


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
        raise SourceError(f"The archive {shown(path)} has names that are not UTF-8. It was not unpacked.") from None
    except _BROKEN as error:
        raise SourceError(f"The archive {shown(path)} cannot be read: {error}. Download it again.") from None


@dataclass
class ZipTree:
    """A `.zip` file."""

    path: str
    nodes: dict[str, Node] = field(default_factory=dict)
    commit: str | None = None

    @classmethod
    def of(cls, origin: Origin) -> "ZipTree":
        """Return the tree of a `.zip` file.

        Raises:
            SourceError: If it is broken, or holds what no honest archive has.
        """
        entries = _Entries()
        with _refusals(origin.location), zipfile.ZipFile(origin.location) as archive:
            for info in archive.infolist():
                _add_zip_entry(entries, info)
        return cls(origin.location, entries.nodes)

    def contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the content of each file, checked against the archive's own checksum."""
        with _refusals(self.path), zipfile.ZipFile(self.path) as archive:
            # By the name as it stands in the archive: the library's own cuts it at a NUL.
            by_path = {info.orig_filename.removeprefix("./"): info for info in archive.infolist()}
            for path in paths:
                with archive.open(by_path[path]) as file:
                    yield path, _read(file, path, self.nodes[path].size)


def _add_zip_entry(entries: _Entries, info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    if not info.flag_bits & _UTF8_FLAG and not name.isascii():
        raise SourceError(f"The archive holds the name {shown(name)}, which is not UTF-8. It was not unpacked.")
    if info.flag_bits & _ENCRYPTED_FLAG:
        raise SourceError(f"The archive holds {shown(name)}, which is encrypted. It was not unpacked.")
    mode = info.external_attr >> 16
    if name.endswith("/"):
        entries.add(name, None)
    elif stat.S_ISLNK(mode):
        entries.add(name, "link")
    elif stat.S_IFMT(mode) in {0, stat.S_IFREG}:
        entries.add(name, "file", info.file_size, executable=bool(mode & 0o100))
    else:
        entries.add(name, "special")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read(file: _Readable, path: str, size: int) -> bytes:
    """Return the content of an entry, which must be as large as the archive said."""
    # One byte more than was promised is enough to know that the archive lies.
    content = file.read(min(size, MAX_FILE_BYTES) + 1)
    if len(content) != size:
        raise SourceError(f"The archive says that {shown(path)} has {size:,} bytes, and it has others.")
    return content


class _Bounded:
    """An unpacked stream that is refused at a length that no honest one has."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MAX_ARCHIVE_BYTES

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise _too_large()
        return data


@dataclass
class TarTree:
    """A `.tar.gz` file."""

    path: str
    nodes: dict[str, Node] = field(default_factory=dict)
    commit: str | None = None

    @classmethod
    def of(cls, origin: Origin) -> "TarTree":
        """Return the tree of a `.tar.gz` file.

        Raises:
            SourceError: If it is broken, or holds what no honest archive has.
        """
        entries = _Entries()
        with _refusals(origin.location), _members(origin.location) as members:
            for member in members:
                _add_tar_entry(entries, member)
                # A stream keeps every member it has seen; 100,000 of them are not needed again.
                members.members = []  # type: ignore[attr-defined]  # of TarFile
        return cls(origin.location, entries.nodes)

    def contents(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the content of each file, in the archive's order."""
        wanted = set(paths)
        with _refusals(self.path), _members(self.path) as members:
            for member in members:
                path = member.name.removeprefix("./")
                if path not in wanted or not member.isreg():
                    continue
                wanted.discard(path)
                file = members.extractfile(member)
                if file is not None:
                    yield path, _read(file, path, self.nodes[path].size)
                if not wanted:
                    return
        if wanted:
            raise SourceError(f"The archive no longer holds {shown(min(wanted))}. Try again.")


@contextmanager
def _members(path: str) -> Iterator[tarfile.TarFile]:
    with Path(path).open("rb") as packed, gzip.open(packed) as unpacked:
        stream: IO[bytes] = _Bounded(unpacked)  # type: ignore[assignment,arg-type]  # only `read` is called
        # As a stream: a `.tar.gz` has no index, and seeking back would unpack it again and again.
        with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
            yield archive


def _add_tar_entry(entries: _Entries, member: tarfile.TarInfo) -> None:
    if member.isdir():
        entries.add(member.name, None)
    elif member.issym() or member.islnk():
        entries.add(member.name, "link")
    elif member.isreg() and not member.issparse():
        entries.add(member.name, "file", member.size, executable=bool(member.mode & 0o100))
    else:
        # Sparse files claim any size for nothing; no packer writes them for text.
        entries.add(member.name, "special")
