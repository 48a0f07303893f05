"""Lists and reads the files of a skill, and touches nothing outside what may be read.

A path is checked as text (`paths.py`), then followed: on a local disk a link may lead anywhere, so the real path has
to lie inside the skill's real directory as well. Listings are held to the same rules, since a backend may list paths
that lie elsewhere. A directory that belongs to a hidden skill inside this one is closed. What a file holds is told by
its first bytes (`kind_of`), since a name can say anything.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillPathError, SkillsError
from deepskills._files.inventory import MAX_DEPTH, RESOURCE_ORDER, FilesFound, Place, find_place, only_file, type_of
from deepskills._files.paths import (
    STANDARD_DIRECTORIES,
    AssetDirectories,
    check_relative,
    is_allowed,
    is_closed,
    is_hidden,
    script_to_relative,
)
from deepskills._io.plan import (
    PASSED_OVER,
    Attempt,
    Failed,
    ListDirectory,
    Listing,
    ReadFiles,
    ResolveLinks,
    is_missing_error,
    parent,
)
from deepskills._skillmd.problems import listed, quoted
from deepskills._types import MAX_SKILL_FILE_BYTES, SKILL_FILE, SkillMetadata

MediaKind: TypeAlias = Literal["image", "audio", "file"]
"""Kinds of content that models take beside text, as LangChain's content blocks call them."""

MAX_MEDIA_BYTES = 5 * 1024 * 1024
"""Largest image, audio or PDF file that a model is given; providers refuse larger ones, and the run with them."""

_PDF = b"%PDF-"


@dataclass(frozen=True)
class FileKind:
    """What a file holds."""

    mime_type: str
    media: MediaKind | None = None
    """The kind of content block that shows it; `None` if no model can be shown it."""


# Only what the large providers take as input; a picture of another format would fail the whole request.
_SIGNATURES: tuple[tuple[bytes, FileKind], ...] = (
    (b"\x89PNG\r\n\x1a\n", FileKind("image/png", "image")),
    (b"\xff\xd8\xff", FileKind("image/jpeg", "image")),
    (b"GIF87a", FileKind("image/gif", "image")),
    (b"GIF89a", FileKind("image/gif", "image")),
    (_PDF, FileKind("application/pdf", "file")),
    (b"ID3", FileKind("audio/mpeg", "audio")),
    (b"\xff\xfb", FileKind("audio/mpeg", "audio")),
    (b"\xff\xf3", FileKind("audio/mpeg", "audio")),
    (b"\xff\xf2", FileKind("audio/mpeg", "audio")),
    (b"fLaC", FileKind("audio/flac", "audio")),
    (b"OggS", FileKind("audio/ogg", "audio")),
    (b"PK\x03\x04", FileKind("application/zip")),
    (b"PK\x05\x06", FileKind("application/zip")),
    (b"\x1f\x8b", FileKind("application/gzip")),
    (b"7z\xbc\xaf\x27\x1c", FileKind("application/x-7z-compressed")),
    (b"SQLite format 3\x00", FileKind("application/vnd.sqlite3")),
    (b"\x7fELF", FileKind("application/x-executable")),
    (b"II*\x00", FileKind("image/tiff")),
    (b"MM\x00*", FileKind("image/tiff")),
    (b"BM", FileKind("image/bmp")),
    (b"wOFF", FileKind("font/woff")),
    (b"wOF2", FileKind("font/woff2")),
    (b"\x00\x01\x00\x00", FileKind("font/ttf")),
    (b"OTTO", FileKind("font/otf")),
)
_RIFF = {b"WEBP": FileKind("image/webp", "image"), b"WAVE": FileKind("audio/wav", "audio")}
_UNKNOWN = FileKind("application/octet-stream")


def kind_of(content: bytes) -> FileKind:
    """Return what a file that is not text holds."""
    if content.startswith(b"RIFF"):
        return _RIFF.get(content[8:12], _UNKNOWN)
    # MP4 and its relatives have their mark behind a length.
    if content[4:8] == b"ftyp":
        return FileKind("audio/mp4", "audio") if content[8:11] in {b"M4A", b"M4B"} else FileKind("video/mp4")
    return next((kind for signature, kind in _SIGNATURES if content.startswith(signature)), _UNKNOWN)


def text_of(content: bytes) -> str | None:
    """Return a file's text without its byte order mark; `None` if it is not text, as a PDF never is."""
    if content.startswith(_PDF):
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    # Much binary data happens to be valid UTF-8, and text has no zero bytes.
    return None if "\x00" in text else text


MAX_ASSETS = 500
"""How many files of a skill are listed."""

_NO_FILE = frozenset({"is_directory", "invalid_path"})


@dataclass(frozen=True)
class Assets:
    """The files of a skill, in order, and what kept others from being listed."""

    paths: list[str]
    notes: list[str]


async def list_assets(
    skill: SkillMetadata, directories: AssetDirectories = STANDARD_DIRECTORIES, closed: Sequence[str] = ()
) -> Assets:
    """List the files that may be read, at any depth, each once, relative to the skill.

    If there are more than are listed, scripts come first, then references, then assets. `closed` names directories
    below the skill whose files do not exist for the reader: those of other skills.

    Raises:
        SkillsError: If a directory that exists cannot be listed.
    """
    place = await find_place(skill["path"])

    def is_open(relative: str) -> bool:
        return is_allowed(relative, directories) and not is_closed(relative, closed)

    found = FilesFound(
        place, lambda directory: is_open(f"{directory}/file") and PASSED_OVER.isdisjoint(directory.split("/"))
    )
    await found.collect([place.directory] if directories == "all" else [place.path(name) for name in directories])
    for failed in found.failed.values():
        _check_absent(skill, failed)
    notes = [
        f"Part of {quoted(relative)} could not be listed: {quoted(error)}." for relative, error in found.partial.items()
    ]
    if found.too_deep:
        notes.append(f"Directories deeper than {MAX_DEPTH} levels are not listed; they may hold more files.")
    # Checked under the real path as well, which may lie in another directory than the link.
    paths = {real for relative, real in (await found.resolve()).items() if is_open(relative) and is_open(real)}
    if len(paths) > MAX_ASSETS or found.is_cut:
        notes.append(f"Only {MAX_ASSETS} files are listed; there are more.")
    first = sorted(paths, key=lambda relative: (RESOURCE_ORDER[type_of(relative)], relative))
    return Assets(sorted(first[:MAX_ASSETS]), notes)


def _check_absent(skill: SkillMetadata, failed: Failed) -> None:
    """Raise unless a directory could not be listed because it is not there."""
    reason = failed.reason
    if not (is_missing_error(reason) or "not_a_directory" in reason or reason.endswith("not found")):
        raise SkillsError(f"The files of the skill {quoted(skill['name'])} could not be listed: {quoted(reason)}.")


async def read_asset(
    skill: SkillMetadata,
    relative_path: str,
    directories: AssetDirectories = STANDARD_DIRECTORIES,
    closed: Sequence[str] = (),
) -> str:
    """Return the text of one of the skill's files.

    Raises:
        SkillPathError: If the path is refused.
        SkillFileNotFoundError: If no file is there.
        SkillFormatError: If the file is not text, not a regular file, or too large.
    """
    content = await read_asset_bytes(skill, relative_path, directories, closed)
    return _as_text(content, relative_path)


async def read_asset_bytes(
    skill: SkillMetadata,
    relative_path: str,
    directories: AssetDirectories = STANDARD_DIRECTORIES,
    closed: Sequence[str] = (),
) -> bytes:
    """Return the content of one of the skill's files.

    Raises:
        SkillPathError: If the path is refused.
        SkillFileNotFoundError: If no file is there.
        SkillFormatError: If it is not a regular file, or too large.
    """
    # First the text alone: what is refused by it must not reach the backend at all.
    relative = check_relative(relative_path, directories)
    path, _real = await _find_at(skill, relative, directories, closed)
    reply = await Attempt(ReadFiles((path,)))
    file = only_file(path, reply)
    if file.unfit is not None:
        raise SkillFormatError(f"The file {quoted(relative)} was not opened: {file.error}.")
    if file.content is None:
        if file.is_missing or file.error in _NO_FILE:
            raise (await _not_there(skill, relative, directories, closed))
        raise SkillsError(f"The file {quoted(relative)} could not be read: {file.error}. Try again later.")
    # A backend that is not local gives sizes only with the content.
    if len(file.content) > MAX_SKILL_FILE_BYTES:
        raise SkillFormatError(f"The file {quoted(relative)} is too large: {len(file.content):,} bytes.")
    return file.content


async def script_path(
    skill: SkillMetadata,
    script_name: str,
    directories: AssetDirectories = STANDARD_DIRECTORIES,
    closed: Sequence[str] = (),
) -> str:
    """Return a path by which the script runs: the real one for a local backend, else the backend's.

    Raises:
        SkillPathError: If the path is refused.
        SkillFileNotFoundError: If no script is there.
    """
    return (await find_script(skill, script_name, directories, closed)).path


@dataclass(frozen=True)
class Script:
    """Where a script of a skill lies."""

    relative: str
    """Its path below the skill."""

    path: str
    """The path by which it runs."""


async def find_script(
    skill: SkillMetadata,
    script_name: str,
    directories: AssetDirectories = STANDARD_DIRECTORIES,
    closed: Sequence[str] = (),
) -> Script:
    """Return where a script lies; errors are those of `script_path`."""
    # Listed and not read: a script may be large or binary, and its content is not wanted here.
    relative = check_relative(script_to_relative(script_name), directories)
    try:
        return Script(relative, (await _script_at(skill, relative, directories, closed)))
    except SkillFileNotFoundError as missing:
        # Authors also call the directory `script/`, and a load lists what is in it.
        singular = f"script/{relative.removeprefix('scripts/').removeprefix('script/')}"
        try:
            return Script(singular, (await _script_at(skill, singular, ("script",), closed)))
        except SkillPathError:
            raise missing from None


async def _script_at(skill: SkillMetadata, relative: str, directories: AssetDirectories, closed: Sequence[str]) -> str:
    path, real = await _find_at(skill, relative, directories, closed)
    reply = await Attempt(ListDirectory(parent(path)))
    if isinstance(reply, Failed):
        _check_absent(skill, reply)
        reply = Listing(())
    names = {entry.name for entry in reply.entries if not entry.is_directory}
    if path.rpartition("/")[2] not in names:
        raise (await _not_there(skill, relative, directories, closed))
    return real or path


async def _find_at(
    skill: SkillMetadata, relative: str, directories: AssetDirectories, closed: Sequence[str]
) -> tuple[str, str | None]:
    """Return a file's path as the backend names it, and where it really lies if the backend is local."""
    place = await find_place(skill["path"])
    real = await _check_links(place, relative, directories)
    # By the resolved path, so that what is read is what was checked, whatever the link says a moment later.
    target = place.relative_real(place.path(relative), real)
    if is_closed(target, closed):
        raise (await _not_there(skill, relative, directories, closed))
    return place.path(target), real


async def _check_links(place: Place, relative: str, directories: AssetDirectories) -> str | None:
    """Return where the file really lies; raise if a link leads out of the skill, or to what it must not name."""
    if place.real is None:
        return None
    path = place.path(relative)
    reply = await ResolveLinks((path,))
    real = reply.get(path)
    if not place.holds(real):
        raise SkillPathError(f"The path {quoted(relative)} is refused: a link in it leads out of the skill.")
    # A link may stay inside the skill and still lead where a path may not: to `SKILL.md` itself, or to a hidden file.
    target = place.relative_real(path, real)
    is_hidden_target = any(is_hidden(part) for part in target.split("/"))
    is_refused = is_hidden_target or target == SKILL_FILE or (directories == "all" and not is_allowed(target, "all"))
    if target != relative and is_refused:
        raise SkillPathError(f"The path {quoted(relative)} is refused: a link in it leads to {quoted(target)}.")
    return real


async def _not_there(
    skill: SkillMetadata, relative: str, directories: AssetDirectories, closed: Sequence[str]
) -> SkillFileNotFoundError:
    """Return the error for a path without a file, with the nearest that have one."""
    try:
        # A wrong path usually comes from a model, which goes on with the right one if it is shown.
        available = (await list_assets(skill, directories, closed)).paths
    except SkillsError:
        available = []
    nearest = difflib.get_close_matches(relative, available, n=3, cutoff=0.4) or available[:5]
    hint = f"Did you mean {listed(nearest)}?" if nearest else "The skill has no files in its directories."
    return SkillFileNotFoundError(f"The skill {quoted(skill['name'])} has no file {quoted(relative)}. {hint}")


def _as_text(content: bytes, relative: str) -> str:
    text = text_of(content)
    if text is None:
        raise SkillFormatError(f"The file {quoted(relative)} is not text. Use its path instead.")
    return text
