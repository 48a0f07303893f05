"""Lists and reads the files of a skill, and touches nothing outside what may be read.

A path is checked as text (`paths.py`), then followed: on a local disk a link may lead anywhere, so the real path has
to lie inside the skill's real directory as well. Listings are held to the same rules, since a backend may list paths
that lie elsewhere. A directory that belongs to a hidden skill inside this one is closed. What a file holds is told by
its first bytes (`kind_of`), since a name can say anything.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillPathError, SkillsError
from deepskills._files.inventory import only_file
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
    Entry,
    Failed,
    ListDirectory,
    Listing,
    ReadFiles,
    ResolveLinks,
    Visit,
    Visitor,
    is_missing_error,
    lies_under,
    parent,
    walk,
)
from deepskills._skillmd.problems import listed, quoted
from deepskills._types import MAX_SKILL_FILE_BYTES, RESOURCE_DIRECTORIES, SKILL_FILE, ResourceType, SkillMetadata

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

_RANKS: dict[ResourceType, int] = {"script": 0, "reference": 1, "asset": 2, "other": 3}
"""In which order files are kept where there are too many."""

_NO_FILE = frozenset({"is_directory", "invalid_path"})

MAX_ASSET_DEPTH = 64
"""How deep directories are listed; links may form circles."""


@dataclass(frozen=True)
class Place:
    """A skill's directory: as the backend names it, and where it really lies if the backend is local."""

    directory: str
    real: str | None

    def path(self, relative: str) -> str:
        """Return the backend path of a file of the skill."""
        return f"{self.directory.rstrip('/')}/{relative}"

    def relative(self, path: str) -> str:
        """Return a backend path as the skill names it."""
        return path[len(self.directory.rstrip("/")) + 1 :]

    def canonical(self, real: str) -> str:
        """Return the backend path of a file that really lies at `real`."""
        return self.path(_posix(real)[len(_posix(self.real or "")) + 1 :]).rstrip("/")

    def holds(self, real: str | None) -> bool:
        """Whether a resolved path is the skill's directory or lies in it."""
        if self.real is None:
            return True
        return real is not None and (real == self.real or lies_under(_posix(real), _posix(self.real)))


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
    place = await _place(skill)
    search = _Search(skill, place, directories, closed)
    starts = [place.directory] if directories == "all" else [place.path(name) for name in directories]
    walked = await walk(
        [(_ONE_WALK, path) for path in starts],
        search,
        # The skill's own directory is a level of its own there.
        levels=MAX_ASSET_DEPTH + (directories == "all"),
        resolve_links=True,
    )
    if walked.too_deep:
        search.notes.append(
            f"Directories deeper than {MAX_ASSET_DEPTH} levels are not listed; they may hold more files."
        )
    return search.finish()


class _Search(Visitor[str]):
    """Collects the files of one skill on a walk through its directories."""

    def __init__(
        self, skill: SkillMetadata, place: Place, directories: AssetDirectories, closed: Sequence[str]
    ) -> None:
        self.notes: list[str] = []
        self._closed = closed
        self._skill = skill
        self._place = place
        self._directories = directories
        self._found: set[str] = set()
        self._ranks: Counter[int] = Counter()
        self._named: list[str] = []
        self._is_cut = False

    def admit(self, visit: Visit[str]) -> Visit[str] | None:
        """Return the directory by the path it really has, unless it leads out of the skill or nobody would see it."""
        # By the real path, so that a link inside the skill is listed once, under the name that a read would accept, and
        # a circle of links ends.
        if visit.real is not None and visit.real == self._place.real:
            path = self._place.directory
        elif self._place.holds(visit.real):
            path = visit.path if visit.real is None else self._place.canonical(visit.real)
        else:
            return None
        if not self._may_hold_assets(path):
            return None
        # A directory whose files could not be among those listed is not entered.
        rank = self._rank(self._place.relative(path))
        if sum(count for other, count in self._ranks.items() if other <= rank) >= MAX_ASSETS:
            self._is_cut = True
            return None
        return replace(visit, path=path)

    def take(self, visit: Visit[str], reply: Listing | Failed) -> Iterable[tuple[str, str]]:
        """Collect a directory's files; return the directories below it."""
        if isinstance(reply, Listing) and reply.error:
            relative = quoted(self._place.relative(visit.path))
            self.notes.append(f"Part of {relative} could not be listed: {quoted(reply.error)}.")
        # A backend may list paths from elsewhere, by mistake or on purpose.
        own = [entry for entry in _entries(self._skill, reply) if lies_under(entry.path, self._place.directory)]
        self._named += [
            entry.path
            for entry in own
            if not entry.is_directory and is_allowed(self._place.relative(entry.path), self._directories)
        ]
        return [
            (_ONE_WALK, entry.path)
            for entry in own
            if entry.is_directory and entry.name not in PASSED_OVER and self._may_hold_assets(entry.path)
        ]

    async def settle(self) -> None:
        """Keep the files of a level that do not lead out of the skill, each by the path it really has."""
        # All files of a level in one call: in async runs each call takes a thread.
        files = await _inside(self._place, self._named)
        self._named = []
        for path in files:
            relative = self._place.relative(path)
            # Checked again under the real path, which may lie in another directory than the link.
            is_open = is_allowed(relative, self._directories) and not is_closed(relative, self._closed)
            if relative not in self._found and is_open:
                self._found.add(relative)
                self._ranks[self._rank(relative)] += 1

    def finish(self) -> Assets:
        """Return what was found, bounded and in order."""
        if self._is_cut or len(self._found) > MAX_ASSETS:
            are = "are" if len(self._found) > MAX_ASSETS else "may be"
            self.notes.append(f"Only {MAX_ASSETS} files are listed; there {are} more.")
        first = sorted(self._found, key=lambda relative: (self._rank(relative), relative))
        return Assets(sorted(first[:MAX_ASSETS]), self.notes)

    def _rank(self, relative: str) -> int:
        return _RANKS[RESOURCE_DIRECTORIES.get(relative.partition("/")[0], "other")]

    def _may_hold_assets(self, directory: str) -> bool:
        """Whether files of a directory may be listed; a link may lead to one where they may not."""
        relative = self._place.relative(directory)
        inside = f"{relative}/file" if relative else "file"
        return is_allowed(inside, self._directories) and not is_closed(inside, self._closed)


_ONE_WALK = "assets"
"""The key of a walk that has one purpose."""


def _entries(skill: SkillMetadata, reply: Listing | Failed) -> Sequence[Entry]:
    if isinstance(reply, Listing):
        return reply.entries
    reason = reply.reason
    if is_missing_error(reason) or "not_a_directory" in reason or reason.endswith("not found"):
        return ()
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
    names = {entry.name for entry in _entries(skill, reply) if not entry.is_directory}
    if path.rpartition("/")[2] not in names:
        raise (await _not_there(skill, relative, directories, closed))
    return real or path


async def _find_at(
    skill: SkillMetadata, relative: str, directories: AssetDirectories, closed: Sequence[str]
) -> tuple[str, str | None]:
    """Return a file's path as the backend names it, and where it really lies if the backend is local."""
    place = await _place(skill)
    real = await _check_links(place, relative, directories)
    # By the resolved path, so that what is read is what was checked, whatever the link says a moment later.
    path = place.canonical(real) if real is not None else place.path(relative)
    if is_closed(place.relative(path), closed):
        raise (await _not_there(skill, relative, directories, closed))
    return path, real


async def _place(skill: SkillMetadata) -> Place:
    directory = parent(skill["path"])
    # No `Attempt` here and below: where links cannot be resolved, nobody can tell whether one leads out of the skill.
    reply = await ResolveLinks((directory,))
    return Place(directory, reply.paths.get(directory))


async def _inside(place: Place, paths: Sequence[str]) -> list[str]:
    """Return the paths that do not lead out of the skill, with the links in them resolved."""
    if place.real is None or not paths:
        return list(paths)
    reply = await ResolveLinks(tuple(paths))
    real = reply.paths
    return [place.canonical(real[path]) for path in paths if place.holds(real.get(path))]


async def _check_links(place: Place, relative: str, directories: AssetDirectories) -> str | None:
    """Return where the file really lies; raise if a link leads out of the skill, or to what it must not name."""
    if place.real is None:
        return None
    path = place.path(relative)
    reply = await ResolveLinks((path,))
    real = reply.paths.get(path)
    if not place.holds(real):
        raise SkillPathError(f"The path {quoted(relative)} is refused: a link in it leads out of the skill.")
    # A link may stay inside the skill and still lead where a path may not: to `SKILL.md` itself, or to a hidden file.
    target = place.relative(place.canonical(real or ""))
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


def _posix(path: str) -> str:
    return path.replace("\\", "/")
