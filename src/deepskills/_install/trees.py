"""Sources of other people's skills as trees of named entries: directories and archives, within limits.

1. Limits on what is taken from a stranger's source: sizes, counts, and names of files.
2. What a user means by a source (`parse_origin`), checked before anything is fetched.
3. `Tree`: what directories, repositories and archives share.
4. `.zip` and `.tar.gz` files, read so that no archive can make more work than it is worth.

Repositories are in `git.py`.
"""

import gzip
import os
import re
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from deepskills._errors import SkillsError
from deepskills._types import MAX_SHOWN_NAME_LENGTH

MAX_ENTRIES = 100_000
"""How many entries a source may have."""

MAX_ARCHIVE_BYTES = 256 * 1024 * 1024
"""How large an archive may be when unpacked, headers included."""

MAX_REPOSITORY_BYTES = 1024 * 1024 * 1024
"""How much a clone may take on disk before it is stopped."""

MAX_FILE_BYTES = 32 * 1024 * 1024
"""How large one file of a skill may be."""

MAX_SKILL_FILES = 5_000
"""How many files a skill may have."""

MAX_SKILL_BYTES = 128 * 1024 * 1024
"""How large all files of a skill may be together."""

MAX_SKILLS = 2_000
"""How many skills one source may offer."""

MAX_NAME_BYTES = 255
"""How long one part of a path may be; file systems take no more."""

MAX_PATH_BYTES = 1_024
"""How long a path may be."""


class SourceError(SkillsError):
    """A source cannot be used, as a whole; the message says why and what to do."""


def path_fault(path: str) -> str | None:
    """Return why a path of an archive or repository is not written anywhere, or `None` if it stays where it should."""
    if not path or path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        return "it is absolute"
    parts = path.split("/")
    if ".." in parts:
        return "it leads out of the source"
    if "" in parts or "." in parts:
        return "it has an empty part"
    if "\\" in path:
        return "it holds a backslash, which some systems take for a slash"
    return name_fault(path) or size_fault(path)


def name_fault(path: str) -> str | None:
    """Return why no file is written under a path because of its characters."""
    if path.isascii() and path.isprintable():
        return None
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in path):
        return "its name holds control characters"
    return None


def size_fault(path: str) -> str | None:
    """Return why a path is too long."""
    # A character takes four bytes at most, so this short a path always fits.
    if len(path) < MAX_NAME_BYTES // 4:
        return None
    is_long = len(path.encode("utf-8", "replace")) > MAX_PATH_BYTES
    if is_long or any(len(part.encode("utf-8", "replace")) > MAX_NAME_BYTES for part in path.split("/")):
        return "its name is too long"
    return None


def name_is_safe(name: str) -> bool:
    """Whether a skill's name can be the name of its directory, on any system."""
    return (
        0 < len(name) <= MAX_SHOWN_NAME_LENGTH
        and path_fault(name) is None
        and not name.startswith((".", "-", " "))
        and not name.endswith((".", " "))
        and not set(name) & set('/<>:"|?*')
    )


def folded(path: str) -> str:
    """Return a path as file systems that ignore case and compose accents see it."""
    return unicodedata.normalize("NFC", path).casefold()


def shown(path: str) -> str:
    """Return a path for a message, in quotes and with escapes for what cannot be shown."""
    return ascii(path) if not path.isprintable() or not _encodes(path) else f"'{path[:200]}'"


def _encodes(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --------------------------------------------------------------------------------------------------------------------
# Decides what a user means by a source, and checks it before anything is fetched.
#
# A source is data, even when it comes from a lock that somebody else wrote. So it is never given to a shell, never read
# as an option, and only transports that fetch data are allowed: git's `ext::` and its relatives run commands.
# --------------------------------------------------------------------------------------------------------------------


OriginKind: TypeAlias = Literal["directory", "git", "zip", "tar"]

TRANSPORTS = ("https", "ssh", "file", "http", "git")
"""How repositories are fetched."""

GITHUB = "https://github.com/{}.git"
"""What `owner/name` stands for."""

ARCHIVES: dict[str, OriginKind] = {".zip": "zip", ".tar.gz": "tar", ".tgz": "tar"}
"""Archives by the end of their names."""

_OWNER_AND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REMOTE_SHELL = re.compile(r"(?P<user>[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>[^:\s][^\s]*)")
_REF = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Origin:
    """A source that can be fetched."""

    kind: OriginKind
    location: str
    """What is fetched: a URL, or an absolute path of this machine."""

    recorded: str
    """How a lock names it: without credentials, and relative to the lock where it lies on this machine."""

    ref: str | None = None


def parse_origin(given: str, ref: str | None, start: Path, lock_directory: Path) -> Origin:
    """Return what a user or a lock means by a source.

    Args:
        given: A directory, an archive, a repository's URL, or `owner/name`.
        ref: A branch, a tag or a commit; repositories only.
        start: The directory that relative paths start from: the user's, or the lock's for what stands in a lock.
        lock_directory: The lock's directory, which recorded paths start from.

    Raises:
        SourceError: If it names nothing that skills can be fetched from.
    """
    if not given.strip() or not given.isprintable() or given.startswith("-"):
        raise SourceError(
            f"The source {shown(given)} is not a path or a URL. Name a directory, an archive or a repository."
        )
    check_ref(ref)
    # What exists on this machine comes first: `owner/name` may be a directory here.
    local = _local(given, start)
    if local is not None:
        return _on_disk(local, given, ref, lock_directory)
    # `ext::sh -c ...` would run a command.
    if "::" in given.partition("//")[0]:
        raise SourceError(f"The source {shown(given)} names a git helper that runs commands. Use an https or ssh URL.")
    if "://" in given:
        return _by_url(given, ref)
    if _OWNER_AND_NAME.fullmatch(given):
        name = given.removesuffix(".git")
        return Origin("git", GITHUB.format(name), GITHUB.format(name), ref)
    if _REMOTE_SHELL.fullmatch(given):
        return Origin("git", given, given, ref)
    raise SourceError(
        f"There is no {shown(given)} on this machine, and it is not a URL or `owner/name`. Check the spelling."
    )


def check_ref(ref: str | None) -> None:
    """Check the name of a branch, a tag or a commit.

    Raises:
        SourceError: If git would read it as something else, such as an option.
    """
    if ref is None:
        return
    # git's own rules for names, so that none is read as an option, a range or an expression.
    is_name = _REF.fullmatch(ref) and not ref.startswith(("-", "/", "+")) and not ref.endswith(("/", ".", ".lock"))
    if not is_name or ".." in ref or "@{" in ref or "//" in ref or ref == "@":
        raise SourceError(f"{shown(ref)} is not the name of a branch, a tag or a commit.")


def is_commit(ref: str | None) -> bool:
    """Whether a ref is a commit's full id, which never moves."""
    return ref is not None and _COMMIT.fullmatch(ref) is not None


def without_credentials(url: str) -> str:
    """Return a URL without user and password; the user of a remote shell, which is not a secret, stays."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    keeps_user = parts.scheme == "ssh" and user
    return urlunsplit((parts.scheme, f"{user}@{host}" if keeps_user else host, parts.path, parts.query, parts.fragment))


def _local(given: str, base: Path) -> Path | None:
    if "://" in given:
        return None
    try:
        path = Path(given).expanduser()
    except RuntimeError:
        return None
    # Not resolved: a directory that is a link is still the directory that was named.
    path = Path(os.path.abspath(base / path))  # noqa: PTH100 - pathlib keeps `..`
    looks_local = given.startswith((".", "/", "~"))
    return path if looks_local or os.path.lexists(path) else None


def _on_disk(path: Path, given: str, ref: str | None, base: Path) -> Origin:
    # Relative to the lock, so that the lock is the same on every machine that has the project.
    recorded = Path(os.path.relpath(path, base)).as_posix()
    recorded = recorded if recorded.startswith(".") else f"./{recorded}"
    if path.is_dir():
        if ref is not None:
            # The latter is a bare repository.
            if not (path / ".git").exists() and not (path / "HEAD").is_file():
                raise SourceError(
                    f"The directory {shown(given)} is not a git repository, so it has no ref {shown(ref)}."
                )
            return Origin("git", path.as_uri(), recorded, ref)
        return Origin("directory", str(path), recorded)
    kind = next((kind for suffix, kind in ARCHIVES.items() if path.name.lower().endswith(suffix)), None)
    if not path.exists():
        raise SourceError(f"There is nothing at {shown(given)}. Check the path.")
    if kind is None or not path.is_file():
        raise SourceError(f"{shown(given)} is neither a directory nor a .zip or .tar.gz file.")
    if ref is not None:
        raise SourceError(f"{shown(given)} is an archive, which has no refs. Leave out --ref.")
    return Origin(kind, str(path), recorded)


def _by_url(given: str, ref: str | None) -> Origin:
    try:
        parts = urlsplit(given)
        host = parts.hostname or ""
    except ValueError:
        raise SourceError(f"{shown(given)} is not a URL.") from None
    if parts.scheme.lower() not in TRANSPORTS:
        raise SourceError(f"Sources with {shown(parts.scheme)} are not fetched. Use {', '.join(TRANSPORTS[:3])}.")
    if host.startswith("-") or parts.path.startswith("-") or (parts.scheme != "file" and not host):
        raise SourceError(f"{shown(without_credentials(given))} has no host that could be asked.")
    if any(parts.path.lower().endswith(suffix) for suffix in ARCHIVES):
        raise SourceError("Archives are read from this machine. Download it, look at it, and name the file.")
    return Origin("git", given, without_credentials(given), ref)


# --------------------------------------------------------------------------------------------------------------------
# A source as a tree of named entries that can be read: what directories, repositories and archives share.
# --------------------------------------------------------------------------------------------------------------------


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


# --------------------------------------------------------------------------------------------------------------------
# `.zip` and `.tar.gz` files as trees, read so that no archive can make more work than it is worth.
#
# Nothing is unpacked by the archive's own rules: entries are looked at, and the files of chosen skills are read one by
# one into memory. An entry whose path leaves the archive, is there twice, lies below something that is not a directory,
# or stands for a device spoils the whole archive: no tool packs that by accident. Links, which repositories do hold,
# only spoil the skill that they lie in (`candidates`).
# --------------------------------------------------------------------------------------------------------------------


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
