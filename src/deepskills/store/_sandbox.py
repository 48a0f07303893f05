"""One skill's directory on a backend: whose it is, what lies in it, and how it is brought up to date as a whole.

A directory that the loader made has a marker file, which says which revision of which skill it holds. Nothing is
written into, or deleted from, any other directory, and nothing through a link.
"""

import asyncio
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from deepagents.backends import BackendProtocol

from deepskills._errors import SkillsError
from deepskills._io.backends import real_paths
from deepskills._io.plan import is_missing_error
from deepskills._types import SKILL_FILE
from deepskills.store._models import Skill

MARKER = ".deepskills.json"
"""The file that the loader leaves in each directory that it made."""

MAX_DEPTH = 64
"""How deep a skill's directory is listed."""

_MAX_MARKER_BYTES = 4_096


@dataclass(frozen=True)
class Doubt:
    """Why a marker does not say whose its directory is; what is in doubt is neither written to nor removed."""

    reason: str
    is_half_written: bool = False
    """Whether a loader may be writing it at this moment."""

    is_foreign: bool = False
    """Whether no loader can have written it."""


@dataclass(frozen=True)
class Mark:
    """What a marker says."""

    directory: str
    skill_id: str = ""
    revision: int = 0
    stamp: int = 0
    is_complete: bool = False
    token: str = ""

    @classmethod
    def read(cls, content: bytes, directory: str) -> "Mark | Doubt":
        """Return what the marker in a directory says."""
        try:
            mark = cls(**json.loads(content[:_MAX_MARKER_BYTES]))
        except (ValueError, TypeError, RecursionError):
            return _half_written(content, directory)
        is_known = all(isinstance(vars(mark)[name], kind) for name, kind in cls.__annotations__.items())
        return mark if is_known else _FOREIGN

    def write(self) -> bytes:
        """Return the marker."""
        return json.dumps(vars(self)).encode()

    def holds(self, skill: Skill) -> bool:
        """Whether the directory has this revision of the skill, whole."""
        return self.is_complete and (self.skill_id, self.revision, self.stamp) == (
            skill.id.hex,
            skill.revision,
            skill.stamp,
        )


_FOREIGN = Doubt("was not written by the loader", is_foreign=True)


def _half_written(content: bytes, directory: str) -> Mark | Doubt:
    """Return what the beginning of a marker says: the directory comes first."""
    beginning = json.dumps({"directory": directory})[:-1].encode()
    if content.startswith(beginning):
        return Mark(directory)
    if beginning.startswith(content):
        return Doubt("is not whole", is_half_written=True)
    return _FOREIGN


class SkillDirectory:
    """The directory of one skill on a backend."""

    def __init__(self, backend: BackendProtocol, root: str, name: str) -> None:
        self._backend = backend
        self._root = root
        self.path = f"{root}/{name}"
        self.marker = f"{self.path}/{MARKER}"

    async def read_mark(self) -> Mark | Doubt | None:
        """Return what the marker says; `None` without one."""
        return (await marks(self._backend, [self])).get(self.path)

    async def replace(self, skill: Skill, files: Mapping[str, bytes]) -> bool:
        """Make the directory hold exactly these files, given by relative path with the `SKILL.md` first.

        While files change there is no `SKILL.md`, so that who looks meanwhile, or after a failure, finds no skill.

        Returns:
            Whether it does now: not if somebody else wrote there meanwhile.

        Raises:
            SkillsError: If the directory is not the loader's, a link lies in the way, or the backend fails.
        """
        wanted = {f"{self.path}/{path}": content for path, content in files.items()}
        present, stale = await self._look(wanted)
        there = await self._contents(present)
        mark = await self.read_mark()
        changed = {path: content for path, content in wanted.items() if there.get(path) != content}
        if isinstance(mark, Doubt):
            if not mark.is_half_written:
                raise SkillsError(f"{self.marker} {mark.reason}; remove {self.path} if it may go")
            if there or stale:
                return False
        elif mark is None and there and (changed or stale):
            raise SkillsError(f"{self.path} was not made by the loader; remove it, or rename the skill")
        elif mark is not None and mark.directory != self.path:
            raise SkillsError(f"{self.path} is a copy of, or a link to, {mark.directory}; remove it")
        elif mark is None and stale:
            raise SkillsError(f"{self.path} holds files that are not the loader's; remove them, or rename the skill")
        token = secrets.token_hex(8)
        new = Mark(self.path, skill.id.hex, skill.revision, skill.stamp, is_complete=True, token=token)
        if changed or stale:
            await self._upload({self.marker: Mark(self.path, token=token).write()})
            await self._change(changed, stale, there)
        await self._upload({self.marker: new.write()})
        return await self._has(wanted, new)

    async def remove(self) -> None:
        """Remove the directory, if the loader made it; its `SKILL.md` first, so that it is never half a skill.

        Raises:
            SkillsError: If a link lies in the way, or the backend fails.
        """
        await check_links(self._backend, self._root, [self.path])
        await self._withdraw()
        await _delete(self.path, self._backend)

    async def _change(self, changed: dict[str, bytes], stale: list[str], there: Mapping[str, bytes]) -> None:
        own = f"{self.path}/{SKILL_FILE}"
        others = {path: content for path, content in changed.items() if path != own}
        if own in there and (others or stale):
            await self._withdraw()
            changed = {**changed, own: changed.get(own, there[own])}
        for path in stale:
            await _delete(path, self._backend)
        await self._upload(others)
        if own in changed:
            await self._upload({own: changed[own]})

    async def _withdraw(self) -> None:
        """Take the `SKILL.md` away; where a backend does not delete, an empty one is not a skill either."""
        own = f"{self.path}/{SKILL_FILE}"
        try:
            result = await self._backend.adelete(own)
        except NotImplementedError:
            await self._upload({own: b""})
            return
        if result.error and not _is_gone(own, result.error):
            raise SkillsError(f"{own} cannot be deleted: {result.error}")

    async def _has(self, wanted: Mapping[str, bytes], mark: Mark) -> bool:
        present, stale = await self._look(wanted)
        return not stale and await self._contents(present) == wanted and await self.read_mark() == mark

    async def _look(self, wanted: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
        """Return the wanted files that are there, and what no wanted file needs."""
        needed = {str(parent) for path in wanted for parent in PurePosixPath(path).parents}
        await check_links(self._backend, self._root, wanted)
        present: list[str] = []
        stale: list[str] = []
        frontier = [self.path]
        for _ in range(MAX_DEPTH):
            if not frontier:
                return present, stale
            below: list[str] = []
            for path in frontier:
                for entry, is_directory in await self._entries(path):
                    if is_directory and entry in needed:
                        below.append(entry)
                    elif not is_directory and entry in wanted:
                        present.append(entry)
                    elif entry != self.marker:
                        stale.append(entry)
            frontier = below
        raise SkillsError(f"{self.path} nests deeper than {MAX_DEPTH} levels; remove it and try again")

    async def _entries(self, path: str) -> list[tuple[str, bool]]:
        entries = await listed(path, self._backend)
        # A virtual file system shows links by where they lead.
        strange = [entry for entry, _ in entries if not entry.startswith(f"{path}/")]
        if strange:
            raise SkillsError(f"{path} holds a link to {strange[0]}; remove it")
        await check_links(self._backend, self._root, [entry for entry, _ in entries])
        return entries

    async def _contents(self, paths: list[str]) -> dict[str, bytes]:
        if not paths:
            return {}
        replies = await self._backend.adownload_files(paths)
        return {reply.path: reply.content for reply in replies if not reply.error and reply.content is not None}

    async def _upload(self, files: Mapping[str, bytes]) -> None:
        replies = await self._backend.aupload_files(list(files.items())) if files else []
        failed = [f"{reply.path}: {reply.error}" for reply in replies if reply.error]
        if failed:
            raise SkillsError(f"{len(failed)} of {len(files)} files could not be written: {'; '.join(failed[:5])}")


async def marks(backend: BackendProtocol, directories: Iterable[SkillDirectory]) -> dict[str, Mark | Doubt]:
    """Return what the markers of directories say, by directory; those without one are left out. One call."""
    paths = {directory.marker: directory.path for directory in directories}
    replies = await backend.adownload_files(list(paths)) if paths else []
    found: dict[str, Mark | Doubt] = {}
    for path, reply in zip(paths, replies, strict=True):
        if reply.error is None and reply.content is not None:
            found[paths[path]] = Mark.read(reply.content, paths[path])
        elif not is_missing_error(reply.error):
            found[paths[path]] = Doubt(f"cannot be read: {reply.error or 'no content'}")
    return found


async def listed(path: str, backend: BackendProtocol) -> list[tuple[str, bool]]:
    """Return what lies in a directory, each with whether it is one; nothing for one that is missing.

    Raises:
        SkillsError: If the backend cannot tell.
    """
    listing = await backend.als(path)
    if listing.error and listing.entries is None and is_missing_error(listing.error):
        return []
    if listing.error:
        raise SkillsError(f"{path} cannot be listed: {listing.error}")
    entries: list[Any] = listing.entries or []
    return [(entry["path"].rstrip("/"), entry.get("is_dir", False) or entry["path"].endswith("/")) for entry in entries]


async def check_links(backend: BackendProtocol, root: str, paths: Iterable[str]) -> None:
    """Check that no link lies on the way to any of `paths`, on backends that are local file systems.

    The way begins with `root` itself. What lies above it is the operator's where paths are those of the machine, and
    part of the way where the backend has a root of its own.

    Raises:
        SkillsError: If one does.
    """
    ways = {step for path in (root, *paths) for step in (path, *map(str, PurePosixPath(path).parents))}
    real = await asyncio.to_thread(real_paths, backend, ways)
    is_virtual = real.get("/", "/") != "/"
    steps = {step for step in ways if step != "/" and (is_virtual or f"{step}/".startswith(f"{root}/"))}
    for step in sorted(steps & real.keys()):
        parent, name = str(PurePosixPath(step).parent), PurePosixPath(step).name
        if parent in real and PurePosixPath(real[step]) != PurePosixPath(real[parent]) / name:
            raise SkillsError(f"{step} is a link to {real[step]}, and nothing is written through links; remove it")


async def _delete(path: str, backend: BackendProtocol) -> None:
    try:
        result = await backend.adelete(path)
    except NotImplementedError:
        raise SkillsError(f"the stale {path} cannot go, for the backend does not delete; remove it by hand") from None
    if result.error and not _is_gone(path, result.error):
        raise SkillsError(f"the stale {path} cannot be deleted: {result.error}")


def _is_gone(path: str, error: str) -> bool:
    """Whether what was to be deleted is not there any more, as others may have deleted it."""
    told = error.removeprefix("Error:").replace(f"'{path}'", "").strip(" .:")
    return told.lower() == "not found" or is_missing_error(error)
