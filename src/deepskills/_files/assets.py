"""Plans: the files of a skill, listed and read so that nothing outside its three directories is ever touched."""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from deepskills._backend.missing import is_missing_error
from deepskills._backend.plan import (
    Entry,
    Failed,
    File,
    Files,
    ListDirectory,
    Listing,
    Plan,
    ReadFiles,
    RealPaths,
    ResolveLinks,
)
from deepskills._catalog.sources import PASSED_OVER, lies_under, parent
from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillPathError, SkillsError
from deepskills._files.inventory import RESOURCE_DIRECTORIES
from deepskills._files.paths import check_relative, is_allowed, script_to_relative
from deepskills._format.problems import listed, quoted
from deepskills._types import MAX_SKILL_FILE_BYTES, SkillMetadata

MAX_ASSETS = 500
"""How many files of a skill are listed."""

_DIRECTORIES = tuple(RESOURCE_DIRECTORIES)
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
        return self.path(_posix(real)[len(_posix(self.real or "")) + 1 :])

    def holds(self, real: str | None) -> bool:
        """Whether a resolved path lies in the skill's directory."""
        return self.real is None or (real is not None and lies_under(_posix(real), _posix(self.real)))


@dataclass(frozen=True)
class Assets:
    """The files of a skill, in order, and what kept others from being listed."""

    paths: list[str]
    notes: list[str]


def list_assets(skill: SkillMetadata) -> Plan[Assets]:
    """List the files in the skill's three directories at any depth, each once, relative to the skill.

    Of more than are listed, scripts come first, then references.

    Raises:
        SkillsError: If a directory that is there cannot be listed.
    """
    place = yield from _place(skill)
    found: set[str] = set()
    listed_already: set[str] = set()
    notes: list[str] = []
    cut = False
    frontier = [place.path(name) for name in RESOURCE_DIRECTORIES]
    for depth in range(MAX_ASSET_DEPTH + 1):
        inside = yield from _inside(place, frontier)
        frontier = sorted(path for path in set(inside) - listed_already if _may_hold_assets(place, path))
        listed_already.update(frontier)
        # A directory whose files could not be among those listed is not entered.
        ranks = Counter(_rank(relative)[0] for relative in found)
        wanted = [path for path in frontier if _has_room(ranks, _rank(place.relative(path))[0])]
        cut |= len(wanted) < len(frontier)
        if wanted and depth == MAX_ASSET_DEPTH:
            notes.append(f"Directories deeper than {MAX_ASSET_DEPTH} levels are not listed; they may hold more files.")
        if not wanted or depth == MAX_ASSET_DEPTH:
            break
        replies = yield tuple(ListDirectory(path) for path in wanted)
        notes += [
            f"Part of {quoted(place.relative(path))} could not be listed: {quoted(reply.error)}."
            for path, reply in zip(wanted, replies, strict=True)
            if isinstance(reply, Listing) and reply.error
        ]
        entries = [entry for reply in replies for entry in _entries(skill, reply)]
        own = [entry for entry in entries if lies_under(entry.path, place.directory)]
        named = [entry.path for entry in own if not entry.is_directory and is_allowed(place.relative(entry.path))]
        files = yield from _inside(place, named)
        found.update(relative for path in files if is_allowed(relative := place.relative(path)))
        frontier = [entry.path for entry in own if entry.is_directory and _may_enter(place, entry)]
    if cut or len(found) > MAX_ASSETS:
        are = "are" if len(found) > MAX_ASSETS else "may be"
        notes.append(f"Only {MAX_ASSETS} files are listed; there {are} more.")
    return Assets(sorted(sorted(found, key=_rank)[:MAX_ASSETS]), notes)


def _rank(relative: str) -> tuple[int, str]:
    return _DIRECTORIES.index(relative.partition("/")[0]), relative


def _has_room(found: Counter[int], rank: int) -> bool:
    """Whether files of that rank could be among those listed, given how many of each were found so far."""
    return sum(count for other, count in found.items() if other <= rank) < MAX_ASSETS


def _may_enter(place: Place, directory: Entry) -> bool:
    return directory.name not in PASSED_OVER and _may_hold_assets(place, directory.path)


def _may_hold_assets(place: Place, directory: str) -> bool:
    """Whether files of a directory may be listed; a link may lead to one that is none of the three."""
    return is_allowed(f"{place.relative(directory)}/file")


def _entries(skill: SkillMetadata, reply: object) -> Sequence[Entry]:
    if isinstance(reply, Listing):
        return reply.entries
    reason = reply.reason if isinstance(reply, Failed) else "no listing"
    if is_missing_error(reason) or "not_a_directory" in reason or reason.endswith("not found"):
        return ()
    raise SkillsError(f"The files of the skill {quoted(skill['name'])} could not be listed: {quoted(reason)}.")


def read_asset(skill: SkillMetadata, relative_path: str) -> Plan[str]:
    """Return the text of one of the skill's files.

    Raises:
        SkillPathError: If the path is refused.
        SkillFileNotFoundError: If no file is there.
        SkillFormatError: If the file is not text, or too large.
    """
    check_relative(relative_path)
    place = yield from _place(skill)
    real = yield from _check_links(place, relative_path)
    path = place.canonical(real) if real is not None else place.path(relative_path)
    replies = yield (ReadFiles((path,)),)
    file = _only(replies[0], path)
    if file.content is None:
        if file.is_missing or file.error in _NO_FILE:
            raise (yield from _not_there(skill, relative_path))
        raise SkillsError(f"The file {quoted(relative_path)} could not be read: {file.error}. Try again later.")
    return _as_text(file.content, relative_path)


def script_path(skill: SkillMetadata, script_name: str) -> Plan[str]:
    """Return a path by which the script runs: the real one for a local backend, else the backend's.

    Raises:
        SkillPathError: If the path is refused.
        SkillFileNotFoundError: If no script is there.
    """
    relative = script_to_relative(script_name)
    check_relative(relative)
    place = yield from _place(skill)
    real = yield from _check_links(place, relative)
    path = place.canonical(real) if real is not None else place.path(relative)
    replies = yield (ListDirectory(parent(path)),)
    names = {entry.name for entry in _entries(skill, replies[0]) if not entry.is_directory}
    if path.rpartition("/")[2] not in names:
        raise (yield from _not_there(skill, relative))
    return real or path


def _place(skill: SkillMetadata) -> Plan[Place]:
    directory = parent(skill["path"])
    replies = yield (ResolveLinks((directory,)),)
    reply = replies[0]
    return Place(directory, reply.paths.get(directory) if isinstance(reply, RealPaths) else None)


def _inside(place: Place, paths: Sequence[str]) -> Plan[list[str]]:
    """Return the paths that do not lead out of the skill, with the links in them resolved."""
    if place.real is None or not paths:
        return list(paths)
    replies = yield (ResolveLinks(tuple(paths)),)
    real = replies[0].paths if isinstance(replies[0], RealPaths) else {}
    return [place.canonical(real[path]) for path in paths if place.holds(real.get(path))]


def _check_links(place: Place, relative: str) -> Plan[str | None]:
    """Return where the file really lies; raise if a link leads out of the skill."""
    if place.real is None:
        return None
    path = place.path(relative)
    replies = yield (ResolveLinks((path,)),)
    real = replies[0].paths.get(path) if isinstance(replies[0], RealPaths) else None
    if not place.holds(real):
        raise SkillPathError(f"The path {quoted(relative)} is refused: a link in it leads out of the skill.")
    return real


def _not_there(skill: SkillMetadata, relative: str) -> Plan[SkillFileNotFoundError]:
    """Return the error for a path without a file, with the nearest that have one."""
    try:
        available = (yield from list_assets(skill)).paths
    except SkillsError:
        available = []
    nearest = difflib.get_close_matches(relative, available, n=3, cutoff=0.4) or available[:5]
    hint = f"Did you mean {listed(nearest)}?" if nearest else "The skill has no files in its directories."
    return SkillFileNotFoundError(f"The skill {quoted(skill['name'])} has no file {quoted(relative)}. {hint}")


def _only(reply: object, path: str) -> File:
    if isinstance(reply, Files):
        return reply.files[0]
    return File(path, error=reply.reason if isinstance(reply, Failed) else "the backend gave no file")


def _as_text(content: bytes, relative: str) -> str:
    if len(content) > MAX_SKILL_FILE_BYTES:
        raise SkillFormatError(f"The file {quoted(relative)} is too large: {len(content):,} bytes.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SkillFormatError(f"The file {quoted(relative)} is not text. Use its path instead.") from None
    if "\x00" in text:
        raise SkillFormatError(f"The file {quoted(relative)} is not text. Use its path instead.")
    return text


def _posix(path: str) -> str:
    return path.replace("\\", "/")
