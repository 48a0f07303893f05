"""Unpacks a skill from a `.zip`, in memory, within bounds, if every entry is a plain file. Pure.

An archive comes from a stranger. It may claim small files that unpack to gigabytes, name links and devices, repeat a
path, or hold half a million entries in a few kilobytes; each of these is refused before anything is unpacked.
"""

import io
import stat
import zipfile
from collections.abc import Sequence

from deepskills._errors import SkillFormatError, SkillPathError, SkillsError
from deepskills._format.problems import quoted
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE
from deepskills.store.errors import SkillTooLargeError
from deepskills.store.rules import StoreLimits, storable

_ENTRY = b"PK\x01\x02"
"""What each entry of an archive's directory begins with."""

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ENCRYPTED = 0x1
_UNIX_SHIFT = 16
_OTHER_ENTRIES = 1_000
"""How many directories and notes of operating systems an archive may have beside its files."""

_SYSTEM_NOTES = "__MACOSX/"


def unpacked(archive: bytes, limits: StoreLimits) -> tuple[bytes, dict[str, bytes]]:
    """Return the `SKILL.md` of a zipped skill and its other files, by path relative to it.

    The skill is at the top of the archive or in its only directory. Paths are checked where they are saved.

    Raises:
        SkillFormatError: If it is not a readable archive, or has no `SKILL.md`.
        SkillPathError: If an entry is a link or another special file, or two have the same path.
        SkillTooLargeError: If it holds too many files, or they are too large once unpacked.
    """
    # Counted before the directory is read: half a million entries fit into a small archive.
    if archive.count(_ENTRY) > 2 * limits.files + _OTHER_ENTRIES:
        raise SkillTooLargeError(f"The archive has too many entries; a skill has at most {limits.files} files.")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            entries = [
                entry
                for entry in opened.infolist()
                if not entry.is_dir() and not entry.filename.startswith(_SYSTEM_NOTES)
            ]
            _check(entries, limits)
            files = {entry.filename: _content(opened, entry) for entry in entries}
    except SkillsError:
        raise
    except Exception as error:  # noqa: BLE001 - the reader raises whatever a broken archive makes it stumble over
        raise SkillFormatError(
            f"The archive cannot be read: {quoted(storable(str(error)))}. Zip the skill again."
        ) from None
    return _taken_apart(files)


def _content(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a file; one that is larger than the archive says is not unpacked further, and fails by its checksum."""
    with opened.open(entry) as file:
        return file.read(entry.file_size + 1)


def _check(entries: Sequence[zipfile.ZipInfo], limits: StoreLimits) -> None:
    """Check entries by what the archive says of them; no more than that is ever unpacked."""
    if len(entries) > limits.files + 1:
        raise SkillTooLargeError(f"The archive has {len(entries)} files; at most {limits.files} are kept.")
    if len({entry.filename for entry in entries}) < len(entries):
        raise SkillPathError("Two files of the archive have the same path. Zip the skill again.")
    for entry in entries:
        shown = quoted(storable(entry.filename))
        kind = stat.S_IFMT(entry.external_attr >> _UNIX_SHIFT)
        if kind not in (0, stat.S_IFREG):
            raise SkillPathError(f"The entry {shown} is a link or another special file. Zip plain files alone.")
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


def _taken_apart(files: dict[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    tops = {path.partition("/")[0] for path in files}
    if SKILL_FILE not in files and len(tops) == 1:
        top = f"{tops.pop()}/"
        files = {path.removeprefix(top): content for path, content in files.items()}
    if SKILL_FILE not in files:
        raise SkillFormatError(f"The archive has no {SKILL_FILE}, at its top or in its one directory. Add it.")
    return files.pop(SKILL_FILE), files
