"""Every file of a skill, each by its SHA-256, and one digest over all: as its provider says, or as the files are.

The digest is what `sha256sum` over the skill's files, sorted by path, and `sha256sum` over that output give. Locks,
approvals and skills that a server describes use the same one, so that what was reviewed in one place is recognised in
another.

Locks and approvals rest on this, so reading it has to be all or nothing. What cannot be listed, read or bounded raises:
a manifest with a gap would approve whatever is in the gap. Hidden files count as well, because a script can read them.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deepskills._catalog.catalog import SkillEntry
from deepskills._errors import SkillsError
from deepskills._files.paths import is_closed
from deepskills._io.plan import (
    Attempt,
    CallFailed,
    Failed,
    Listing,
    ReadFiles,
    ResolveLinks,
    Visit,
    Visitor,
    lies_under,
    parent,
    walk,
)
from deepskills._providers.files import ProvidedFiles
from deepskills._skillmd.problems import quoted
from deepskills._types import SKILL_FILE

ALGORITHM = "sha256:"
"""How a digest over several files starts; digests of single files are bare hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of a skill."""

    sha256: str
    """SHA-256 of its content, 64 hexadecimal digits."""

    size: int
    """Size in bytes."""


@dataclass(frozen=True)
class SkillManifest:
    """Every file of a skill, and where the skill comes from."""

    origin: str
    """Who gave the skill: the path of its source, or the label and the key that it has with its provider."""

    files: Mapping[str, FileDigest]
    """Each file by its path relative to the skill, `SKILL.md` included."""

    remembered: bool = True
    """Whether an approval may be kept; not so for content that changes with every read."""

    text: str = field(default="", compare=False, repr=False)
    """The `SKILL.md`, where it was read for its digest."""

    @property
    def digest(self) -> str:
        """The digest over all files."""
        return digest_over({path: file.sha256 for path, file in self.files.items()})


def digest_over(files: Mapping[str, str]) -> str:
    """Return the digest over a set of files, given as paths and the SHA-256 of each.

    It is the SHA-256 of lines as `sha256sum` prints them, sorted by the bytes of the paths. For UTF-8 that is the order
    of the characters, which is how Python sorts text.
    """
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return ALGORITHM + hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


def file_digest(content: bytes) -> FileDigest:
    """Return the digest of one file's content."""
    return FileDigest(hashlib.sha256(content).hexdigest(), len(content))


# Reading it.

MAX_FILES = 5_000
"""How many files of a skill are looked at."""

MAX_BYTES = 128 * 1024 * 1024
"""How large all of them may be together."""

MAX_COPIED_BYTES = 32 * 1024 * 1024
"""How large they may be together where all are held at once, to be run from a copy."""

MAX_DEPTH = 64
"""How deep directories may lie; links may form circles."""

_BATCH = 200


@dataclass(frozen=True)
class Contents:
    """Every file of a skill with its content."""

    files: dict[str, bytes]
    """Content by path relative to the skill."""

    real: Mapping[str, str]
    """Where a file really lies on a local disk, for links inside the skill; both relative to it."""

    def is_closed(self, path: str, closed: Sequence[str]) -> bool:
        """Whether a file lies in a directory that is closed, or is a link into one."""
        return is_closed(path, closed) or is_closed(self.real.get(path, path), closed)


async def read_provided_manifest(entry: SkillEntry, files: ProvidedFiles) -> SkillManifest:
    """Return every file of a skill as its provider gives it.

    Raises:
        SkillsError: If a file cannot be read.
    """
    origin = entry.origin
    where = f"{origin['via'].lower()}:{origin['label']} {origin['uri']}" if origin is not None else entry.source
    if entry.is_dynamic:
        # Whatever is read now may be something else at the next read.
        return SkillManifest(where, {}, remembered=False)
    try:
        found = await files.digests(MAX_BYTES)
    except SkillsError as error:
        raise _unknown(entry, str(error)) from error
    return SkillManifest(where, {path: FileDigest(digest, size) for path, (digest, size) in found.items()})


async def read_provided_contents(entry: SkillEntry, files: ProvidedFiles) -> Contents:
    """Return the content of every file of a skill as its provider gives it.

    Raises:
        SkillsError: If a file cannot be read.
    """
    try:
        return Contents(await files.read_all(MAX_COPIED_BYTES), {})
    except SkillsError as error:
        raise _unknown(entry, str(error)) from error


async def read_manifest(entry: SkillEntry) -> SkillManifest:
    """Return every file of a skill, at any depth, hidden ones included.

    Raises:
        SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
    """
    found = await _walk_files(entry)
    files: dict[str, FileDigest] = {}
    texts: list[str] = []

    def keep(relative: str, content: bytes) -> None:
        files[relative] = file_digest(content)
        if relative == SKILL_FILE:
            # Only shown to whoever approves; the digest is over the bytes.
            texts.append(content.decode("utf-8", "replace"))

    await _read_all(entry, found, keep, MAX_BYTES)
    if SKILL_FILE not in files:
        raise _unknown(entry, f"its {SKILL_FILE} is gone")
    return SkillManifest(entry.source, files, text="".join(texts))


async def read_contents(entry: SkillEntry) -> Contents:
    """Return the content of every file of a skill, to be judged and then run as it was judged.

    Raises:
        SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
    """
    found = await _walk_files(entry)
    contents = Contents({}, found.links)
    await _read_all(entry, found, contents.files.__setitem__, MAX_COPIED_BYTES)
    return contents


async def _walk_files(entry: SkillEntry) -> "_Found":
    """Return the paths of a skill's files."""
    found = _Found(entry)
    walked = await walk([("files", found.directory)], found, levels=MAX_DEPTH, resolve_links=True)
    if walked.too_deep:
        raise _unknown(entry, f"its directories lie deeper than {MAX_DEPTH} levels")
    await _check_links(entry, found)
    return found


async def _read_all(entry: SkillEntry, found: "_Found", keep: Callable[[str, bytes], None], limit: int) -> None:
    """Read files in batches and hand each to `keep`, by its path relative to the skill."""
    total = 0
    for start in range(0, len(found.paths), _BATCH):
        try:
            reply = await ReadFiles(tuple(found.paths[start : start + _BATCH]))
        except CallFailed as failure:
            raise _unknown(entry, failure.reason) from failure
        for file in reply.files:
            relative = found.relative(file.path)
            if file.content is None:
                raise _unknown(entry, f"{quoted(relative)}: {file.error}")
            total += len(file.content)
            if total > limit:
                raise _unknown(entry, f"its files are larger than {limit:,} bytes")
            keep(relative, file.content)


class _Found(Visitor[str]):
    """Collects the files of one skill."""

    def __init__(self, entry: SkillEntry) -> None:
        self.directory = parent(entry.path)
        self.paths: list[str] = []
        self.real: str | None = None
        self.links: dict[str, str] = {}
        """Where each file really lies on a local disk, both relative to the skill."""
        self._entry = entry

    def relative(self, path: str) -> str:
        """Return a backend path as the skill names it."""
        return path[len(self.directory.rstrip("/")) + 1 :]

    def admit(self, visit: Visit[str]) -> Visit[str] | None:
        """Return a directory of the skill; a link that leads out makes all of it unknown."""
        if visit.depth == 0:
            self.real = visit.real
        elif self.real is not None and not _is_inside(visit.real, self.real):
            raise _unknown(self._entry, f"{quoted(self.relative(visit.path))} leads out of the skill")
        return visit

    def take(self, visit: Visit[str], reply: Listing | Failed) -> Iterable[tuple[str, str]]:
        """Note a directory's files; return the directories below it."""
        reason = reply.reason if isinstance(reply, Failed) else reply.error
        if isinstance(reply, Failed) or reason:
            raise _unknown(self._entry, f"{quoted(self.relative(visit.path) or '.')} cannot be listed: {reason}")
        # A backend may list paths from elsewhere.
        inside = [item for item in reply.entries if lies_under(item.path, self.directory)]
        self.paths += [item.path for item in inside if not item.is_directory]
        if len(self.paths) > MAX_FILES:
            raise _unknown(self._entry, f"it has more than {MAX_FILES:,} files")
        return [(visit.key, item.path) for item in inside if item.is_directory]


async def _check_links(entry: SkillEntry, found: _Found) -> None:
    if found.real is None or not found.paths:
        return
    reply = await Attempt(ResolveLinks(tuple(found.paths)))
    if isinstance(reply, Failed):
        raise _unknown(entry, reply.reason)
    real = reply.paths
    root = _posix(found.real)
    for path in found.paths:
        if path not in real:
            continue
        if not _is_inside(real[path], found.real):
            raise _unknown(entry, f"{quoted(found.relative(path))} leads out of the skill")
        found.links[found.relative(path)] = _posix(real[path])[len(root.rstrip("/")) + 1 :]


def _is_inside(real: str | None, root: str) -> bool:
    return real is not None and lies_under(_posix(real), _posix(root))


def _posix(path: str) -> str:
    return path.replace("\\", "/")


def _unknown(entry: SkillEntry, reason: str) -> SkillsError:
    return SkillsError(f"The files of the skill {quoted(entry.name)} cannot be checked: {reason}.")
