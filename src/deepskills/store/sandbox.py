"""Puts stored skills onto a backend: missing ones are written, stale ones removed, the rest left alone.

A sandbox belongs to somebody else. Agents write to it, other loaders may work at the same time, links may lead out of
it, and a process may die halfway. These rules keep this safe:

- Each directory that the loader creates has a marker file, which says which revision of which skill it holds. Nothing
  is written to or deleted from a directory without the loader's own marker, and nothing through a link.
- A directory is either complete or not a skill: while its files change it has no `SKILL.md`, so anybody who looks in
  between, or after a crash, finds no skill at all.
- The last to write checks again: two loaders that write at once each compare what is there with what they wrote, and
  one of them starts over.
"""

import asyncio
import hashlib
import json
import logging
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self
from uuid import UUID

from deepagents.backends import BackendProtocol
from langgraph.errors import GraphBubbleUp
from sqlalchemy.ext.asyncio import AsyncSession

from deepskills import SkillsMiddleware
from deepskills._errors import SkillNotFoundError, SkillsError
from deepskills._io.backends import real_paths
from deepskills._io.plan import is_missing_error
from deepskills._skillmd.names import stored_key
from deepskills._skillmd.problems import quoted
from deepskills._types import SKILL_FILE, OptionalSource
from deepskills.store.db.models import Skill
from deepskills.store.rules import Policy, UserId, as_id, check_kept_path, check_name, no_skill, path_key
from deepskills.store.service import SkillService, exported

MARKER = ".deepskills.json"
"""The file that the loader leaves in each directory that it created."""

MAX_DEPTH = 64
"""How many levels of a skill's directory are listed."""

MAX_COMPARED = 100
"""How many files of a directory without a marker are compared with what the loader wrote."""

_MAX_MARKER_BYTES = 4_096


@dataclass(frozen=True)
class Doubt:
    """Why a marker does not tell whose its directory is; such a directory is neither written to nor removed."""

    reason: str
    is_half_written: bool = False
    """Whether a loader may be writing it right now."""

    is_foreign: bool = False
    """Whether no loader can have written it."""


@dataclass(frozen=True)
class Mark:
    """The content of a marker."""

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
            # Bounded: a marker may have been replaced by anything.
            mark = cls(**json.loads(content[:_MAX_MARKER_BYTES]))
        except (ValueError, TypeError, RecursionError):
            return _half_written(content, directory)
        is_known = all(isinstance(vars(mark)[name], kind) for name, kind in cls.__annotations__.items())
        return mark if is_known else _FOREIGN

    def write(self) -> bytes:
        """Return the marker."""
        return json.dumps(vars(self)).encode()

    def holds(self, skill: Skill) -> bool:
        """Whether the directory has this revision of the skill, completely."""
        return self.is_complete and (self.skill_id, self.revision, self.stamp) == (
            skill.id.hex,
            skill.revision,
            skill.stamp,
        )


_FOREIGN = Doubt("was not written by the loader", is_foreign=True)


def _half_written(content: bytes, directory: str) -> Mark | Doubt:
    """Return what the beginning of a marker says: it starts with the directory."""
    # Another loader may be writing right now, so the beginning of our own marker is not a stranger's file.
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

    async def replace(self, skill: Skill, files: Mapping[str, bytes], *, is_known: bool = False) -> bool:
        """Make the directory hold exactly these files, given by relative path with the `SKILL.md` first.

        A directory without a marker is written to only if the store knows that the loader made it (`is_known`).

        While files change there is no `SKILL.md`, so that whoever looks in between, or after a failure, finds no skill.

        Returns:
            Whether it does; `False` if somebody else wrote there at the same time.

        Raises:
            SkillsError: If the directory is not the loader's, a link is in the way, or the backend fails.
        """
        wanted = {f"{self.path}/{path}": content for path, content in files.items()}
        present, stale = await self._look(wanted)
        there = await self._contents(present)
        mark = await self.read_mark()
        changed = {path: content for path, content in wanted.items() if there.get(path) != content}
        if isinstance(mark, Doubt):
            if not mark.is_half_written:
                raise SkillsError(f"{self.marker} {mark.reason}; remove {self.path} if it is not needed")
            if there or stale:
                return False
        elif mark is None and is_known:
            pass
        elif mark is None and there and (changed or stale):
            raise SkillsError(f"{self.path} was not made by the loader; remove it, or rename the skill")
        # Somebody copied the directory with its marker; the copy is theirs.
        elif mark is not None and mark.directory != self.path:
            raise SkillsError(f"{self.path} is a copy of, or a link to, {mark.directory}; remove it")
        elif mark is None and stale:
            raise SkillsError(f"{self.path} holds files that are not the loader's; remove them, or rename the skill")
        # Distinguishes this write from another of the same revision when the marker is read back.
        token = secrets.token_hex(8)
        new = Mark(self.path, skill.id.hex, skill.revision, skill.stamp, is_complete=True, token=token)
        if changed or stale:
            # Incomplete first: after a crash the marker says that the directory is ours and not complete.
            await self._upload({self.marker: Mark(self.path, token=token).write()})
            await self._change(changed, stale, there)
        await self._upload({self.marker: new.write()})
        return await self._has(wanted, new)

    async def holds_any(self, digests: Collection[str]) -> bool:
        """Whether one of its top-level files is one that the loader wrote."""
        if not digests:
            return False
        paths = [path for path, is_directory in await listed(self.path, self._backend) if not is_directory]
        contents = await self._contents(paths[:MAX_COMPARED])
        return any(hashlib.sha256(content).hexdigest() in digests for content in contents.values())

    async def remove(self) -> None:
        """Remove the directory, if the loader created it; its `SKILL.md` first, so that it is never half a skill.

        Raises:
            SkillsError: If a link is in the way, or the backend fails.
        """
        await check_links(self._backend, self._root, [self.path])
        await self._withdraw()
        await _delete(self.path, self._backend)

    async def _change(self, changed: dict[str, bytes], stale: list[str], there: Mapping[str, bytes]) -> None:
        own = f"{self.path}/{SKILL_FILE}"
        others = {path: content for path, content in changed.items() if path != own}
        # If only `SKILL.md` changed, one write replaces it, and it is never missing.
        if own in there and (others or stale):
            await self._withdraw()
            changed = {**changed, own: changed.get(own, there[own])}
        for path in stale:
            await _delete(path, self._backend)
        await self._upload(others)
        if own in changed:
            await self._upload({own: changed[own]})

    async def _withdraw(self) -> None:
        """Remove the `SKILL.md`; if the backend cannot delete, an empty one is not a skill either."""
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
        """Return the wanted files that are there, and the entries that no wanted file needs."""
        # Only directories that wanted files need are entered. Any other is removed as a whole, without looking into it.
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
        # A virtual file system shows links as their targets.
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
    """Return the entries of a directory, each with whether it is a directory; none if it is missing.

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
    """Check that no link is on the way to any of `paths`, on backends that are local file systems.

    The way starts with `root` itself. If the backend's paths are those of the machine, links above `root` are the
    operator's business; if the backend has its own root, they are part of the way.

    Raises:
        SkillsError: If there is one.
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
        raise SkillsError(
            f"the stale {path} cannot be removed, because the backend does not delete; remove it by hand"
        ) from None
    if result.error and not _is_gone(path, result.error):
        raise SkillsError(f"the stale {path} cannot be deleted: {result.error}")


def _is_gone(path: str, error: str) -> bool:
    """Whether a file that should be deleted is already gone: others may have deleted it."""
    # Without the path, which may contain any word.
    told = error.removeprefix("Error:").replace(f"'{path}'", "").strip(" .:")
    return told.lower() == "not found" or is_missing_error(error)


logger = logging.getLogger("deepskills")

SANDBOX_ROOT = "/workspace/skills"
"""Where skills go on a backend, each into a directory with its name."""

MAX_ATTEMPTS = 8
"""How often a directory is written while others write it too."""

_PAUSE = 0.05


class SkillSandboxLoader:
    """Puts stored skills onto a backend, as `/workspace/skills/{name}/...`, and keeps them up to date there.

    Only directories that the loader created are ever changed: each has a marker file with the revision that it holds.

    Args:
        skill_service: Where the skills come from; it decides what a user may see.
        root: The directory on the backend that holds the skills; `SKILLS_BASE_DIR` by default.
        verify: Compare every file each time, instead of trusting the markers. For sandboxes whose agents may write to
            their skills.
    """

    SKILLS_BASE_DIR = SANDBOX_ROOT

    def __init__(self, skill_service: SkillService, *, root: str | None = None, verify: bool = False) -> None:
        self._service = skill_service
        self._root = (self.SKILLS_BASE_DIR if root is None else root).rstrip("/")
        self._verify = verify

    async def load_skill_to_sandbox(
        self,
        skill_id: UUID,
        backend: BackendProtocol,
        user_id: UserId | None = None,
        *,
        include_public: bool = False,
    ) -> bool:
        """Make a skill's directory on `backend` hold exactly the skill's files, or no skill at all.

        Returns:
            Whether it does; if not, the log says why.
        """
        done = await self.load_skills_to_sandbox([skill_id], backend, user_id, include_public=include_public)
        return done[skill_id]

    async def load_skills_to_sandbox(
        self,
        skill_ids: Iterable[UUID],
        backend: BackendProtocol,
        user_id: UserId | None = None,
        *,
        include_public: bool = False,
    ) -> dict[UUID, bool]:
        """Do the same for several skills; one that fails does not stop the others.

        Skills that are already there cost one backend call together. Of two skills with the same name the first is
        loaded, because both would use the same directory. Skills that these require are loaded too.

        Args:
            skill_ids: Which skills; named by id, public ones of other users are loaded as well.
            backend: The sandbox.
            user_id: Who they are for; `None` for nobody.
            include_public: Whether anybody's public skill may be what a skill requires. Otherwise it is the user's own,
                a group's, the system's, or one of the owner of the skill that requires it.

        Returns:
            For each skill, whether its directory is right.
        """
        given = list(dict.fromkeys(skill_ids))
        ids = {key for skill_id in given if (key := as_id(skill_id)) is not None}
        found = {skill.id: skill for skill in await self._service.list_skills(user_id, skill_ids=ids)} if ids else {}
        names: dict[str, UUID] = {}
        chosen: dict[UUID, Skill] = {}
        problems: dict[UUID, Exception] = {}
        for skill_id in given:
            skill = found.get(as_id(skill_id) or UUID(int=0))
            if skill is None:
                problems[skill_id] = no_skill(str(skill_id))
            elif names.setdefault(stored_key(skill.name), skill.id) != skill.id:
                problems[skill_id] = SkillsError(
                    f"another skill named {skill.name!r} was loaded just before; load one of them"
                )
            else:
                chosen[skill.id] = skill
        required = await self._service.required_skills(list(chosen), user_id, include_public=include_public)
        for skill in required if chosen else ():
            # Skills that were requested by id come before those that are only required.
            if names.setdefault(stored_key(skill.name), skill.id) == skill.id:
                chosen.setdefault(skill.id, skill)
        done = await self._load(list(chosen.values()), backend, user_id)
        for skill_id, problem in problems.items():
            _log(skill_id, problem)
        return {
            skill_id: skill_id not in problems and done.get(as_id(skill_id) or UUID(int=0), False) for skill_id in given
        }

    async def sync(
        self, user_id: UserId | None, backend: BackendProtocol, *, include_public: bool = False
    ) -> dict[str, bool]:
        """Make the sandbox hold exactly what a user may see: by default, what the adapter gives the user's agents.

        Skills that the loader wrote and that the user may no longer see (revoked, renamed, deleted) are removed. Files
        of others stay. Of several skills with the same name the user gets the one that `get_skill_by_name` returns.

        Args:
            user_id: Whose sandbox it is; `None` for nobody, who gets system skills.
            backend: The sandbox.
            include_public: Whether to include other users' public skills.

        Returns:
            By name, for each skill that should be there and each that should not, whether that is so; if not, the log
            says why.
        """
        visible: dict[str, Skill] = {}
        for skill in await self._service.list_skills(user_id, include_public):
            visible.setdefault(stored_key(skill.name), skill)
        wanted = {skill.name: skill for skill in visible.values()}
        directories = [path for path, is_directory in await listed(self._root, backend) if is_directory]
        present = {path.rpartition("/")[2] for path in directories if path.rpartition("/")[0] == self._root}
        stale = [SkillDirectory(backend, self._root, name) for name in sorted(present - wanted.keys())]
        made = await marks(backend, stale)
        unmarked = [directory.path for directory in stale if directory.path not in made]
        known = await self._service.deliveries(unmarked, user_id)
        result: dict[str, bool] = {}
        for directory in stale:
            mark = made.get(directory.path)
            name = directory.path.rpartition("/")[2]
            # A copy of a directory that the loader created is not the loader's.
            is_known = mark is None and await directory.holds_any(known.get(directory.path, frozenset()))
            if is_known or (isinstance(mark, Mark) and mark.directory == directory.path):
                result[name] = await _removed(directory)
                if result[name]:
                    await self._service.forget_delivery(directory.path, user_id)
            elif isinstance(mark, Doubt) and not mark.is_foreign:
                logger.error("Cannot tell whether %s is the loader's: its marker %s", directory.path, mark.reason)
                result[name] = False
        done = await self._load(list(wanted.values()), backend, user_id)
        return result | {skill.name: done[skill.id] for skill in wanted.values()}

    async def _load(self, skills: list[Skill], backend: BackendProtocol, user_id: UserId | None) -> dict[UUID, bool]:
        """Return for each skill of a listing whether its directory is right."""
        directories = {skill.id: SkillDirectory(backend, self._root, skill.name) for skill in skills}
        try:
            made = await marks(backend, directories.values())
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - each directory is looked at again on its own
            logger.warning("The markers of %s cannot be read: %s: %s", self._root, type(error).__name__, error)
            made = {}
        done: dict[UUID, bool] = {}
        for skill in skills:
            try:
                await self._bring(skill, directories[skill.id], made.get(directories[skill.id].path), backend, user_id)
                done[skill.id] = True
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, stops no other
                _log(skill.id, error)
                done[skill.id] = False
        return done

    async def _bring(
        self,
        skill: Skill,
        directory: SkillDirectory,
        mark: Mark | Doubt | None,
        backend: BackendProtocol,
        user_id: UserId | None,
    ) -> None:
        """Bring one directory up to date, even while others do the same: the last to write checks again."""
        # Checked again, because rows may have been written outside the service.
        check_name(skill.name)
        await check_links(backend, self._root, [directory.path])
        is_there = isinstance(mark, Mark) and mark.directory == directory.path and mark.holds(skill)
        if is_there and not self._verify:
            return
        for path, is_directory in await listed(self._root, backend):
            if path == directory.path and not is_directory:
                raise SkillsError(f"{path} is a file or a link; remove it")
        is_known = False
        if mark is None:
            known = await self._service.deliveries([directory.path], user_id)
            is_known = await directory.holds_any(known.get(directory.path, frozenset()))
        for attempt in range(MAX_ATTEMPTS):
            # Read again in each attempt: it may have changed while another loader wrote.
            whole = await self._service.get_skill(skill.id, user_id)
            if whole.name != skill.name:
                raise SkillsError(f"it has just been renamed to {whole.name!r}; load it again")
            files = _files_of(whole)
            is_done = await directory.replace(whole, files, is_known=is_known)
            if is_done and await self._is_current(whole, directory, user_id):
                await self._service.note_delivery(directory.path, whole.id, files.values(), user_id)
                logger.info("Skill %r is on the sandbox: %d files", whole.name, len(whole.files) + 1)
                return
            await asyncio.sleep(_PAUSE * random.uniform(1, 2 + attempt))  # noqa: S311 - not a secret
            now = await directory.read_mark()
            if isinstance(now, Mark) and now.holds(whole) and await self._is_current(whole, directory, user_id):
                # The loader that wrote that mark takes care of it.
                return
        raise SkillsError(
            f"others keep writing to {directory.path}; load it again when they are done, or remove it if nobody does"
        )

    async def _is_current(self, skill: Skill, directory: SkillDirectory, user_id: UserId | None) -> bool:
        """Whether a skill is still what was written; one that the user may no longer see is removed."""
        current = await self._service.list_skills(user_id, skill_ids=[skill.id])
        if not current:
            await directory.remove()
            raise no_skill(str(skill.id))
        return (current[0].revision, current[0].stamp) == (skill.revision, skill.stamp)


def _files_of(skill: Skill) -> dict[str, bytes]:
    for file in skill.files:
        check_kept_path(file.path)
        if file.path.count("/") >= MAX_DEPTH - 1:
            # Before anything is written: files that are deeper could not be listed again.
            raise SkillsError(f"its file {quoted(file.path)} is more than {MAX_DEPTH} directories deep; move it up")
        if path_key(file.path).partition("/")[0] == MARKER:
            raise SkillsError(f"its file {file.path!r} has the name of the loader's own marker; rename it")
    return exported(skill)


async def _removed(directory: SkillDirectory) -> bool:
    try:
        await directory.remove()
    except GraphBubbleUp:
        raise
    except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, stops no other
        logger.error("Cannot remove %s from the sandbox: %s: %s", directory.path, type(error).__name__, error)  # noqa: TRY400 - the message says it all
        return False
    return True


def _log(skill_id: UUID, error: Exception) -> None:
    level = logging.WARNING if isinstance(error, SkillNotFoundError) else logging.ERROR
    logger.log(level, "Cannot load skill %s to the sandbox: %s: %s", skill_id, type(error).__name__, error)


class SharedSandbox:
    """One sandbox for several agents: skills are written once, and each agent gets a middleware for them.

    Args:
        backend: The sandbox.
        session_factory: Opens a session, such as an `async_sessionmaker`.
        root: The directory on the backend that holds the skills.
        policy: Who is in which group, and so on, as for `SkillService`.
    """

    def __init__(
        self,
        backend: BackendProtocol,
        session_factory: Callable[[], AsyncSession],
        *,
        root: str = SANDBOX_ROOT,
        policy: Policy | None = None,
    ) -> None:
        self._backend = backend
        self._session_factory = session_factory
        self._root = root.rstrip("/")
        self._policy = policy or Policy()
        self._written: dict[str, UUID] = {}
        self._made: list[str] = []
        """Directories above the skills that `preload` created, the deepest first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.cleanup()

    async def preload(
        self,
        skill_ids: Iterable[UUID] | None = None,
        user_id: UserId | None = None,
        *,
        include_public: bool = False,
    ) -> dict[UUID, bool]:
        """Write skills to the sandbox: the given ones, or all of a user's.

        Args:
            skill_ids: Which skills; `None` for all that the user's agents would have.
            user_id: Who they are for; without a user, system skills and public ones.
            include_public: Without `skill_ids`, other users' public skills too.

        Returns:
            For each skill, whether it is there; if not, the log says why.
        """
        async with self._session_factory() as session:
            service = SkillService(session, policy=self._policy)
            if skill_ids is None:
                wanted: dict[str, UUID] = {}
                for skill in await service.list_skills(user_id, include_public):
                    wanted.setdefault(stored_key(skill.name), skill.id)
                given = list(wanted.values())
            else:
                given = list(dict.fromkeys(skill_ids))
            before = await self._directories()
            missing = await self._missing()
            done = await SkillSandboxLoader(service, root=self._root).load_skills_to_sandbox(
                given, self._backend, user_id, include_public=include_public
            )
            now = await self._directories()
        # What was there before, whoever wrote it, is not ours to remove.
        self._written.update({path: skill_id for path, skill_id in now.items() if path not in before})
        self._made += [path for path in missing if path not in self._made]
        return done

    def middleware(self, **options: Any) -> SkillsMiddleware[Any, Any]:  # noqa: ANN401 - the options of SkillsMiddleware
        """Return a middleware for one agent on this sandbox.

        Args:
            options: The options of `SkillsMiddleware`, except `backend` and `sources`.
        """
        return SkillsMiddleware(backend=self._backend, sources=[OptionalSource(self._root, "Sandbox")], **options)

    async def cleanup(self) -> None:
        """Remove what `preload` wrote, and nothing else; a second call does nothing."""
        present = await self._directories()
        for path, skill_id in list(self._written.items()):
            directory = SkillDirectory(self._backend, self._root, path.rpartition("/")[2])
            if present.get(path) != skill_id or await _removed(directory):
                del self._written[path]
        await self._remove_made()

    async def _missing(self) -> list[str]:
        """Return the missing directories on the way to the skills, the deepest first."""
        ways = [self._root, *map(str, PurePosixPath(self._root).parents)][:-1]
        missing = []
        for way in ways:
            parent, _, name = way.rpartition("/")
            # From its parent: a listing of the directory itself may not distinguish an empty one from a missing one.
            present = {path.rpartition("/")[2] for path, _ in await listed(parent or "/", self._backend)}
            if name in present:
                break
            missing.append(way)
        return missing

    async def _remove_made(self) -> None:
        """Remove those directories above the skills that `preload` created and that are empty."""
        while self._made and not self._written:
            path = self._made[0]
            if await listed(path, self._backend):
                return
            try:
                await check_links(self._backend, self._root, [path])
                await _delete(path, self._backend)
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - an empty directory is left, and nothing else
                logger.warning("Cannot remove the empty directory %s: %s: %s", path, type(error).__name__, error)
                return
            self._made.pop(0)

    async def _directories(self) -> dict[str, UUID]:
        """Return the directories that a loader created, each with the skill in it."""
        paths = [path for path, is_directory in await listed(self._root, self._backend) if is_directory]
        directories = [SkillDirectory(self._backend, self._root, path.rpartition("/")[2]) for path in paths]
        found = await marks(self._backend, directories)
        return {
            path: UUID(hex=mark.skill_id)
            for path, mark in found.items()
            if isinstance(mark, Mark) and mark.directory == path and as_id(mark.skill_id) is not None
        }
