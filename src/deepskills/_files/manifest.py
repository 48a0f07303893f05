"""Every file of a skill, each by its SHA-256, and one digest over all: as its provider says, or as the files are.

The digest is what `sha256sum` over the skill's files, sorted by path, and `sha256sum` over that output give. Locks,
approvals and skills that a server describes use the same one, so that what was reviewed in one place is recognised in
another.

Locks and approvals rest on this, so reading it has to be all or nothing. What cannot be listed, read or bounded raises:
a manifest with a gap would approve whatever is in the gap. Hidden files count as well, because a script can read them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deepskills._catalog.catalog import SkillEntry
from deepskills._errors import SkillsError
from deepskills._files.inventory import MAX_DEPTH, MAX_FILES, FilesFound, find_place
from deepskills._files.paths import is_closed
from deepskills._io.plan import CallFailed, ReadFiles, parent
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

MAX_BYTES = 128 * 1024 * 1024
"""How large all of them may be together."""

MAX_COPIED_BYTES = 32 * 1024 * 1024
"""How large they may be together where all are held at once, to be run from a copy."""

_BATCH = 200


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


async def read_manifest(entry: SkillEntry) -> SkillManifest:
    """Return every file of a skill, at any depth, hidden ones included.

    Raises:
        SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
    """
    files: dict[str, FileDigest] = {}
    texts: list[str] = []

    def keep(relative: str, content: bytes) -> None:
        files[relative] = file_digest(content)
        if relative == SKILL_FILE:
            # Only shown for the approval; the digest is over the bytes.
            texts.append(content.decode("utf-8", "replace"))

    await _read_all(entry, [*await _find_all(entry)], keep, MAX_BYTES)
    if SKILL_FILE not in files:
        raise _unknown(entry, f"its {SKILL_FILE} is gone")
    return SkillManifest(entry.source, files, text="".join(texts))


async def read_all_files(entry: SkillEntry, closed: Sequence[str] = ()) -> tuple[dict[str, bytes], list[str]]:
    """Return the content of every file of a skill, to be judged and then run as it was judged.

    Also returns the files that lie in a closed directory, or are a link into one.

    Raises:
        SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
    """
    found = await _find_all(entry)
    files: dict[str, bytes] = {}
    await _read_all(entry, [*found], files.__setitem__, MAX_COPIED_BYTES)
    return files, [path for path, real in found.items() if is_closed(path, closed) or is_closed(real, closed)]


async def _find_all(entry: SkillEntry) -> dict[str, str]:
    """Return a skill's files, and where each really lies; both relative to the skill."""
    try:
        found = FilesFound(await find_place(entry.path), lambda _: True)
        await found.collect([found.place.directory])
        files = await found.resolve()
    except CallFailed as failure:
        raise _unknown(entry, failure.reason) from failure
    reasons = {relative: failed.reason for relative, failed in found.failed.items()} | found.partial
    for relative, reason in reasons.items():
        raise _unknown(entry, f"{quoted(relative or '.')} cannot be listed: {reason}")
    if found.outside:
        raise _unknown(entry, f"{quoted(found.outside[0])} leads out of the skill")
    if found.too_deep:
        raise _unknown(entry, f"its directories lie deeper than {MAX_DEPTH} levels")
    if found.is_cut or len(files) > MAX_FILES:
        raise _unknown(entry, f"it has more than {MAX_FILES:,} files")
    return files


async def _read_all(entry: SkillEntry, files: Sequence[str], keep: Callable[[str, bytes], None], limit: int) -> None:
    """Read files in batches and hand each to `keep`; paths are relative to the skill."""
    root, total = parent(entry.path).rstrip("/"), 0
    for start in range(0, len(files), _BATCH):
        batch = files[start : start + _BATCH]
        try:
            reply = await ReadFiles(tuple(f"{root}/{relative}" for relative in batch))
        except CallFailed as failure:
            raise _unknown(entry, failure.reason) from failure
        for relative, file in zip(batch, reply, strict=True):
            if file.content is None:
                raise _unknown(entry, f"{quoted(relative)}: {file.error}")
            total += len(file.content)
            if total > limit:
                raise _unknown(entry, f"its files are larger than {limit:,} bytes")
            keep(relative, file.content)


def _unknown(entry: SkillEntry, reason: str) -> SkillsError:
    return SkillsError(f"The files of the skill {quoted(entry.name)} cannot be checked: {reason}.")
