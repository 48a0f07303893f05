"""Skills as packages of files: a `.zip`, read within bounds, and a directory on the local disk.

An archive comes from a stranger. It may declare small files that unpack to gigabytes, contain links and devices, repeat
a path, or have half a million entries in a few kilobytes; each of these is refused before anything is unpacked.
"""

import io
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepskills._errors import SkillFormatError, SkillPathError, SkillsError
from deepskills._install.trees import Node, open_directory, read_regular
from deepskills._skillmd.problems import quoted
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE
from deepskills.store.errors import SkillTooLargeError
from deepskills.store.rules import StoreLimits, storable

_ENTRY = b"PK\x01\x02"
"""The signature of each entry in an archive's directory."""

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_UNIX_SHIFT = 16
_OTHER_ENTRIES = 1_000
"""How many directories and operating system files an archive may have in addition to its files."""

_SYSTEM_NOTES = "__MACOSX/"


def unpack(archive: bytes, limits: StoreLimits) -> tuple[bytes, dict[str, bytes]]:
    """Return the `SKILL.md` of a zipped skill and its other files, by path relative to it.

    The skill is at the top of the archive or in its only directory. Paths are checked where they are saved.

    Raises:
        SkillFormatError: If it is not a readable archive, or has no `SKILL.md`.
        SkillPathError: If an entry is a link or another special file, or two have the same path.
        SkillTooLargeError: If it has too many files, or they are too large once unpacked.
    """
    with _open(archive, limits) as (opened, entries):
        files = {entry.filename: _content(opened, entry) for entry in entries}
    return _take_apart(files)


def measure_unpacked(archive: bytes, limits: StoreLimits) -> int:
    """Return how many bytes a zipped skill says it has; no more are ever unpacked. It raises what `unpack` raises."""
    with _open(archive, limits) as (_, entries):
        return sum(entry.file_size for entry in entries)


@contextmanager
def _open(archive: bytes, limits: StoreLimits) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    # Counted before the directory is read: half a million entries fit into a small archive.
    if archive.count(_ENTRY) > 2 * limits.files + _OTHER_ENTRIES:
        raise SkillTooLargeError(f"The archive has too many entries; a skill has at most {limits.files} files.")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            listed = opened.infolist()
            entries = [entry for entry in listed if not entry.is_dir() and not entry.filename.startswith(_SYSTEM_NOTES)]
            _check(entries, limits)
            yield opened, entries
    except SkillsError:
        raise
    except Exception as error:  # noqa: BLE001 - the reader raises whatever a broken archive makes it stumble over
        raise SkillFormatError(
            f"The archive cannot be read: {quoted(storable(str(error)))}. Zip the skill again."
        ) from None


def _content(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a file. If it is larger than the archive says, the rest is not unpacked, and the checksum fails."""
    with opened.open(entry) as file:
        return file.read(entry.file_size + 1)


def _check(entries: Sequence[zipfile.ZipInfo], limits: StoreLimits) -> None:
    """Check entries by their declared sizes; no more than that is ever unpacked."""
    if len(entries) > limits.files + 1:
        raise SkillTooLargeError(f"The archive has {len(entries)} files; at most {limits.files} are kept.")
    # Two readers could see two different files.
    if len({entry.filename for entry in entries}) < len(entries):
        raise SkillPathError("Two files of the archive have the same path. Zip the skill again.")
    for entry in entries:
        shown = quoted(storable(entry.filename))
        kind = stat.S_IFMT(entry.external_attr >> _UNIX_SHIFT)
        if kind not in (0, stat.S_IFREG):
            raise SkillPathError(f"The entry {shown} is a link or another special file. Zip only plain files.")
        # The library has already cut the name at a NUL, or changed its separators.
        if entry.orig_filename != entry.filename:
            raise SkillPathError(f"The entry {shown} has characters that paths must not have. Rename the file.")
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _METHODS:
            raise SkillFormatError(f"The entry {shown} is encrypted or packed in an unusual way. Zip without options.")
        largest = max(limits.file_bytes, MAX_SKILL_FILE_BYTES)
        if entry.file_size > largest:
            raise SkillTooLargeError(
                f"The file {shown} is {entry.file_size} bytes unpacked; at most {largest} are kept."
            )
    total = sum(entry.file_size for entry in entries)
    if total > limits.skill_bytes + MAX_SKILL_FILE_BYTES:
        raise SkillTooLargeError(f"The archive is {total} bytes unpacked; at most {limits.skill_bytes} are kept.")


def _take_apart(files: dict[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    tops = {path.partition("/")[0] for path in files}
    # Zipping a directory usually puts that directory into the archive.
    if SKILL_FILE not in files and len(tops) == 1:
        top = f"{tops.pop()}/"
        files = {path.removeprefix(top): content for path, content in files.items()}
    if SKILL_FILE not in files:
        raise SkillFormatError(f"The archive has no {SKILL_FILE}, at its top level or in its only directory. Add it.")
    return files.pop(SKILL_FILE), files


# -- Directories -------------------------------------------------------------------------------------------------------
#
# Links are not followed: a directory, too, may come from a stranger.

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
    nodes = list_files(root)
    if SKILL_FILE not in {node.path for node in nodes}:
        raise SkillFormatError(f"{root} has no {SKILL_FILE}. Add it, or give the directory of a skill.")
    if len(nodes) > bounds.files + 1:
        raise SkillTooLargeError(f"{root} has more than {bounds.files} files. Remove some.")
    largest = max(bounds.file_bytes, MAX_SKILL_FILE_BYTES)
    total = 0
    for node in nodes:
        if node.kind != "file":
            raise SkillPathError(
                f"{root / node.path} is a link or another special file. Put a plain file in its place."
            )
        total += node.size
        if node.size > largest or total > bounds.skill_bytes + MAX_SKILL_FILE_BYTES:
            raise SkillTooLargeError(
                f"{root / node.path} is too large, or makes the skill too large. Remove or shrink it."
            )
    files = {node.path: read_regular(root / node.path, node.path, node.size) for node in nodes}
    return files.pop(SKILL_FILE), files


def list_files(root: Path) -> list[Node]:
    """Return the files of a directory by path, links among them, in order."""
    nodes = open_directory(root, PASSED_OVER).nodes
    return [nodes[path] for path in sorted(nodes) if path.rpartition("/")[2] not in PASSED_OVER]
