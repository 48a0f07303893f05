"""Puts stored skills onto a backend: what is missing or altered is written, what is stale goes, the rest stays.

A sandbox belongs to somebody else. Agents write to it, other loaders may work at the same time, links may lead out of
it, and a process may die halfway. These rules keep this safe:

- What lies there is compared with the skill, file by file. No marker is believed about contents.
- Each directory that the loader made has a marker file, and the store remembers it too, with digests of its files. What
  neither of them knows is not written to or removed, and nothing is through a link.
- While files change there is no `SKILL.md`, so that anybody who looks in between, or after a crash, finds no skill.
- One loader at a time works on a directory: where the backend is a local disk, of all processes, and elsewhere of one
  process. Another process can then write between two steps of ours, so each loader looks again at what is there.
"""

import asyncio
import hashlib
import json
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Self, cast
from uuid import UUID
from weakref import WeakValueDictionary

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
from deepskills.store.db.models import Skill, document_of
from deepskills.store.rules import Policy, UserId, as_id, check_kept_path, check_name, no_skill, path_key
from deepskills.store.service import SkillService, export_files, first_of_each_name

logger = logging.getLogger("deepskills")

SANDBOX_ROOT = "/workspace/skills"
"""Where skills go on a backend, each into a directory with its name."""

MARKER = ".deepskills.json"
"""The file that the loader leaves in each directory that it made: whose directory it is, and what was written."""

_BESIDE = ".deepskills.SKILL.md"
"""The `SKILL.md` before it is renamed."""

MAX_DEPTH = 64
"""How many levels of a skill's directory are listed."""

MAX_ATTEMPTS = 8
"""How often a directory is written while others write it too."""

MAX_COMPARED = 100
"""How many files of a directory without a marker are compared with what the loader wrote."""

MAX_WAIT = 120.0
"""For how many seconds another process is waited for that writes to the same directory of skills."""

_PAUSE = 0.05

try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - systems without POSIX locks
    fcntl: ModuleType | None = None
else:
    fcntl = _fcntl


class SkillDirectory:
    """The directory of one skill on a backend."""

    def __init__(self, backend: BackendProtocol, root: str, name: str) -> None:
        self._backend = backend
        self._root = root
        self.path = f"{root}/{name}"
        self.marker = f"{self.path}/{MARKER}"
        self._beginning = json.dumps({"directory": self.path})[:-1].encode()

    def mark(self, skill: Skill, writer: str) -> bytes:
        """Return the marker for a skill."""
        told = {"directory": self.path, "skill": skill.id.hex, "revision": skill.revision, "writer": writer}
        return json.dumps(told).encode()

    def is_own(self, mark: bytes | None) -> bool:
        """Whether a marker is the loader's, and was made for this directory."""
        return mark is not None and mark.startswith(self._beginning)

    async def read_mark(self) -> bytes | None:
        """Return the marker; `None` without one, and nothing of what an agent put in its place.

        Raises:
            SkillsError: If it cannot be read.
        """
        if await self._odd([self.marker]):
            return b""
        (reply,) = await self._backend.adownload_files([self.marker])
        if reply.error is None and reply.content is not None:
            return reply.content
        if reply.error in {"is_directory", "invalid_path"}:
            return b""
        if not is_missing_error(reply.error):
            raise SkillsError(f"{self.marker} cannot be read: {reply.error or 'no content'}")
        return None

    async def look(self, wanted: Collection[str]) -> tuple[dict[str, str], list[str]]:
        """Return the digests of the wanted files that are there, and what has to go before they can be written.

        Raises:
            SkillsError: If a link is in the way, or the backend fails.
        """
        paths = {f"{self.path}/{path}" for path in wanted}
        # Only directories that wanted files need are entered. Any other is removed as a whole, without looking into it.
        needed = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        await check_links(self._backend, self._root, paths)
        present: list[str] = []
        stale = await self._odd([self.marker, *paths])
        frontier = [self.path]
        for _ in range(MAX_DEPTH):
            if not frontier:
                return await self._digests(present), stale
            below: list[str] = []
            for path in frontier:
                for entry, is_directory in await self._entries(path):
                    if is_directory and entry in needed:
                        below.append(entry)
                    elif not is_directory and entry in paths:
                        present.append(entry)
                    elif entry != self.marker and entry not in stale:
                        stale.append(entry)
            frontier = below
        raise SkillsError(f"{self.path} nests deeper than {MAX_DEPTH} levels; remove it and try again")

    async def is_made_by_loader(self, mark: bytes | None, known: frozenset[str] | None) -> bool:
        """Whether a loader made it, by its marker, or by the digests that the store knows of what was delivered.

        Whatever the marker says now, the store knows. Without any trace of a delivery, the directory may be somebody
        else's, in another sandbox of the same user.
        """
        if self.is_own(mark) or known is None or mark is not None:
            return self.is_own(mark) or known is not None
        paths = [path for path, is_directory in await list_entries(self.path, self._backend) if not is_directory]
        return not known.isdisjoint((await self._digests(paths[:MAX_COMPARED])).values())

    async def put(self, files: Mapping[str, bytes], stale: Iterable[str], text: bytes, mark: bytes) -> None:
        """Write files, given by relative path, and remove stale entries; the `SKILL.md` comes last.

        Raises:
            SkillsError: If the backend fails.
        """
        stale = list(stale)
        # The marker first: after a crash it says whose directory this is.
        if self.marker in stale:
            stale.remove(self.marker)
            await _delete(self.marker, self._backend)
        await self._upload({self.marker: mark})
        others = {f"{self.path}/{path}": content for path, content in files.items() if path != SKILL_FILE}
        # If only the `SKILL.md` changed, one write replaces it, and it is never missing.
        if others or stale:
            await self.withdraw()
        for path in stale:
            await _delete(path, self._backend)
        await self._upload(others)
        if others or stale or SKILL_FILE in files:
            await self._finish(text, mark)

    async def _finish(self, text: bytes, mark: bytes) -> None:
        """Write the `SKILL.md`: beside, and renamed, where that is possible, so that it is never there by half."""
        real = (await asyncio.to_thread(real_paths, self._backend, {self.path})).get(self.path)
        if real is not None:
            await self._upload({f"{self.path}/{_BESIDE}": text})
            await asyncio.to_thread(Path(real, _BESIDE).replace, Path(real, SKILL_FILE))
        # Another process may be at work, and then finishes the skill.
        elif await self.read_mark() == mark:
            await self._upload({f"{self.path}/{SKILL_FILE}": text})

    async def remove(self) -> None:
        """Remove the directory, its `SKILL.md` first, so that it is never half a skill.

        Raises:
            SkillsError: If a link is in the way, or the backend fails.
        """
        await check_links(self._backend, self._root, [self.path])
        await self.withdraw()
        await _delete(self.path, self._backend)

    async def withdraw(self) -> None:
        """Remove the `SKILL.md`; if the backend cannot delete, an empty one is not a skill either."""
        own = f"{self.path}/{SKILL_FILE}"
        if not any(path == own for path, _ in await list_entries(self.path, self._backend)):
            return
        try:
            result = await self._backend.adelete(own)
        except NotImplementedError:
            await self._upload({own: b""})
            return
        if result.error and not _is_gone(own, result.error):
            raise SkillsError(f"{own} cannot be deleted: {result.error}")

    async def _odd(self, paths: Iterable[str]) -> list[str]:
        """Return those of some paths at which something other than a file lies: to open a pipe may take forever."""
        return await asyncio.to_thread(_list_odd, self._backend, list(paths))

    async def _entries(self, path: str) -> list[tuple[str, bool]]:
        entries = await list_entries(path, self._backend)
        # A virtual file system shows links as their targets.
        strange = [entry for entry, _ in entries if not entry.startswith(f"{path}/")]
        if strange:
            raise SkillsError(f"{path} holds a link to {strange[0]}; remove it")
        await check_links(self._backend, self._root, [entry for entry, _ in entries])
        return entries

    async def _digests(self, paths: list[str]) -> dict[str, str]:
        replies = await self._backend.adownload_files(paths) if paths else []
        return {
            reply.path.removeprefix(f"{self.path}/"): hashlib.sha256(reply.content).hexdigest()
            for reply in replies
            if not reply.error and reply.content is not None
        }

    async def _upload(self, files: Mapping[str, bytes]) -> None:
        replies = await self._backend.aupload_files(list(files.items())) if files else []
        failed = [f"{reply.path}: {reply.error}" for reply in replies if reply.error]
        if failed:
            raise SkillsError(f"{len(failed)} of {len(files)} files could not be written: {'; '.join(failed[:5])}")


def _list_odd(backend: BackendProtocol, paths: Iterable[str]) -> list[str]:
    real = real_paths(backend, paths)
    return sorted(path for path, lies in real.items() if Path(lies).exists() and not Path(lies).is_file())


_locks: "WeakValueDictionary[object, threading.Lock]" = WeakValueDictionary()
"""One for each directory of skills that is being written."""


@asynccontextmanager
async def _alone(backend: BackendProtocol, root: str) -> AsyncIterator[None]:
    """Wait until no other loader works on a directory of skills, on whichever event loop or in whichever process."""
    real = (await asyncio.to_thread(real_paths, backend, {root})).get(root)
    until = time.monotonic() + MAX_WAIT
    lock = _locks.setdefault(real or (id(backend), root), threading.Lock())
    while not lock.acquire(blocking=False):  # noqa: ASYNC110 - no event crosses event loops
        await asyncio.sleep(_PAUSE / 10)
    try:
        with ExitStack() as held:
            while fcntl is not None and real is not None:
                descriptor = await asyncio.to_thread(_open, real)
                held.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    held.close()
                    if time.monotonic() > until:
                        raise SkillsError(f"another process keeps {root} locked; end it, and try again") from None
                    await asyncio.sleep(_PAUSE / 10)
            yield
    finally:
        lock.release()


def _open(directory: str) -> int:
    Path(directory).mkdir(parents=True, exist_ok=True)
    return os.open(directory, os.O_RDONLY)


async def list_entries(path: str, backend: BackendProtocol) -> list[tuple[str, bool]]:
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


class SkillSandboxLoader:
    """Puts stored skills onto a backend, as `/workspace/skills/{name}/...`, and keeps them up to date there.

    Only directories that the loader made are ever changed. What an agent altered in one of them is put back.

    Args:
        skill_service: Where the skills come from; it decides what a user may see.
        root: The directory on the backend that holds the skills; `SKILLS_BASE_DIR` by default.
    """

    SKILLS_BASE_DIR = SANDBOX_ROOT

    def __init__(self, skill_service: SkillService, *, root: str | None = None) -> None:
        self._service = skill_service
        self._root = (self.SKILLS_BASE_DIR if root is None else root).rstrip("/")
        self.writer = secrets.token_hex(8)
        """Tells the markers of this loader from those of others."""

        self.written: set[str] = set()
        """The directories that it wrote to."""

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

        Of two skills with the same name the first is
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
            with _reporting(f"load skill {skill_id} to the sandbox"):
                raise problem
        return {skill_id: skill_id not in problems and done[cast("UUID", as_id(skill_id))] for skill_id in given}

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
        visible = await self._service.list_skills(user_id, include_public)
        wanted = {skill.name: skill for skill in first_of_each_name(visible)}
        directories = [path for path, is_directory in await list_entries(self._root, backend) if is_directory]
        present = {path.rpartition("/")[2] for path in directories if path.rpartition("/")[0] == self._root}
        stale = [SkillDirectory(backend, self._root, name) for name in sorted(present - wanted.keys())]
        known = await self._service.deliveries([directory.path for directory in stale], user_id)
        result: dict[str, bool] = {}
        for directory in stale:
            done = await self._revoke(directory, known.get(directory.path), backend)
            if done is not None:
                result[directory.path.rpartition("/")[2]] = done
            if done:
                await self._service.forget_delivery(directory.path, user_id)
        loaded = await self._load(list(wanted.values()), backend, user_id)
        return result | {skill.name: loaded[skill.id] for skill in wanted.values()}

    async def _revoke(
        self, directory: SkillDirectory, known: frozenset[str] | None, backend: BackendProtocol
    ) -> bool | None:
        """Remove a directory that should not be there; `None` for one that no loader made."""
        done = False
        with _reporting(f"remove {directory.path} from the sandbox"):
            mark = await directory.read_mark()
            if not directory.is_own(mark) and known is None:
                return None
            if not await directory.is_made_by_loader(mark, known):
                raise SkillsError("nothing in it is as it was delivered, so it stays; remove it by hand")
            async with _alone(backend, self._root):
                await directory.remove()
            done = True
        return done  # noqa: RET504 - a failure that was reported ends here

    async def _load(self, skills: list[Skill], backend: BackendProtocol, user_id: UserId | None) -> dict[UUID, bool]:
        """Return for each skill of a listing whether its directory is right."""
        done = dict.fromkeys((skill.id for skill in skills), False)
        for skill in skills:
            with _reporting(f"load skill {skill.id} to the sandbox"):
                # Checked again, because rows may have been written outside the service.
                check_name(skill.name)
                directory = SkillDirectory(backend, self._root, skill.name)
                await check_links(backend, self._root, [directory.path])
                async with _alone(backend, self._root):
                    await self._bring(skill, directory, backend, user_id)
                done[skill.id] = True
        return done

    async def _bring(
        self, skill: Skill, directory: SkillDirectory, backend: BackendProtocol, user_id: UserId | None
    ) -> None:
        """Bring one directory up to date, even while others do the same: the last to write checks again."""
        for path, is_directory in await list_entries(self._root, backend):
            if path == directory.path and not is_directory:
                raise SkillsError(f"{path} is a file or a link; remove it")
        for attempt in range(MAX_ATTEMPTS):
            # Read again in each attempt: it may have changed while another loader wrote.
            whole = await self._service.get_skill(skill.id, user_id, contents=False)
            if whole.name != skill.name:
                raise SkillsError(f"it has just been renamed to {whole.name!r}; load it again")
            _check_files(whole)
            text = document_of(whole).render()
            digests = {SKILL_FILE: hashlib.sha256(text).hexdigest(), **{file.path: file.digest for file in whole.files}}
            if await self._put(whole, text, digests, directory, user_id) and await self._is_current(
                whole, directory, user_id
            ):
                return
            await asyncio.sleep(_PAUSE * random.uniform(1, 2 + attempt))  # noqa: S311 - not a secret
        raise SkillsError(
            f"others keep writing to {directory.path}; load it again when they are done, or remove it if nobody does"
        )

    async def _put(
        self, skill: Skill, text: bytes, digests: Mapping[str, str], directory: SkillDirectory, user_id: UserId | None
    ) -> bool:
        """Write what differs, and return whether the directory then holds the skill."""
        there, stale = await directory.look(digests)
        mark = await directory.read_mark()
        new = directory.mark(skill, self.writer)
        changed = [path for path, digest in digests.items() if there.get(path) != digest]
        # All but who wrote it.
        is_marked = mark is not None and mark.partition(b'"writer"')[0] == new.partition(b'"writer"')[0]
        if is_marked and not changed and not stale:
            return True
        await self._check_own(directory, mark, user_id, is_altered=bool(there or stale) and bool(changed or stale))
        files: dict[str, bytes] = {}
        if any(path != SKILL_FILE for path in changed):
            full = await self._service.get_skill(skill.id, user_id)
            if full.revision != skill.revision:
                return False
            files = export_files(full)
        await self._service.note_delivery(directory.path, skill.id, list(digests.values()), user_id)
        self.written.add(directory.path)
        await directory.put({path: files.get(path, text) for path in changed}, stale, text, new)
        there, stale = await directory.look(digests)
        if there == digests and not stale:
            logger.info("Skill %r is on the sandbox: %d files", skill.name, len(digests))
            return True
        # Another process wrote at the same time: better no skill than a torn one.
        await directory.withdraw()
        return False

    async def _check_own(
        self, directory: SkillDirectory, mark: bytes | None, user_id: UserId | None, *, is_altered: bool
    ) -> None:
        if directory.is_own(mark) or (mark is None and not is_altered):
            return
        known = (await self._service.deliveries([directory.path], user_id)).get(directory.path)
        if await directory.is_made_by_loader(mark, known):
            return
        raise SkillsError(f"{directory.path} was not made by the loader; remove it, or rename the skill")

    async def _is_current(self, skill: Skill, directory: SkillDirectory, user_id: UserId | None) -> bool:
        """Whether a skill is still what was written; one that the user may no longer see is removed."""
        current = await self._service.list_skills(user_id, skill_ids=[skill.id])
        if not current:
            await directory.remove()
            raise no_skill(str(skill.id))
        return (current[0].revision, current[0].stamp) == (skill.revision, skill.stamp)


def _check_files(skill: Skill) -> None:
    for file in skill.files:
        check_kept_path(file.path)
        if file.path.count("/") >= MAX_DEPTH - 1:
            # Before anything is written: files that are deeper could not be listed again.
            raise SkillsError(f"its file {quoted(file.path)} is more than {MAX_DEPTH} directories deep; move it up")
        if path_key(file.path).partition("/")[0] in {MARKER, _BESIDE}:
            raise SkillsError(f"its file {file.path!r} has the name of one of the loader's own; rename it")


@contextmanager
def _reporting(what: str) -> Iterator[None]:
    """Log the failure of what is done inside, whatever it is: one skill's failure stops no other."""
    try:
        yield
    except GraphBubbleUp:
        raise
    except Exception as error:
        is_missing = isinstance(error, SkillNotFoundError)
        level, trace = (logging.WARNING, None) if is_missing else (logging.ERROR, error)
        logger.log(level, "Cannot %s: %s: %s", what, type(error).__name__, error, exc_info=trace)


class SharedSandbox:
    """One sandbox for several agents: skills are written once, and each agent gets a middleware for them.

    Args:
        backend: The sandbox.
        session_factory: Opens a session, such as an `async_sessionmaker`.
        root: The directory on the backend that holds the skills.
        policy: Who is in which group, and so on, as for `SkillService`.
        options: The fields of `Policy` by name.
    """

    def __init__(
        self,
        backend: BackendProtocol,
        session_factory: Callable[[], AsyncSession],
        *,
        root: str = SANDBOX_ROOT,
        policy: Policy | None = None,
        **options: Any,  # noqa: ANN401 - the fields of Policy
    ) -> None:
        self._backend = backend
        self._session_factory = session_factory
        self._root = root.rstrip("/")
        self._policy = Policy.of(policy, options)
        self._written: dict[str, str] = {}
        """The directories that `preload` wrote to, each with the loader that did."""

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
                given = [skill.id for skill in first_of_each_name(await service.list_skills(user_id, include_public))]
            else:
                given = list(dict.fromkeys(skill_ids))
            missing = await self._missing()
            loader = SkillSandboxLoader(service, root=self._root)
            done = await loader.load_skills_to_sandbox(given, self._backend, user_id, include_public=include_public)
        self._written |= dict.fromkeys(loader.written, loader.writer)
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
        for path, writer in list(self._written.items()):
            directory = SkillDirectory(self._backend, self._root, path.rpartition("/")[2])
            with _reporting(f"remove {path} from the sandbox"):
                mark = await directory.read_mark() or b""
                # Another loader may have written there since. Whatever an agent did to the marker changes nothing.
                if not directory.is_own(mark) or writer.encode() in mark or b'"writer"' not in mark:
                    async with _alone(self._backend, self._root):
                        await directory.remove()
                del self._written[path]
        await self._remove_made()

    async def _missing(self) -> list[str]:
        """Return the missing directories on the way to the skills, the deepest first."""
        ways = [self._root, *map(str, PurePosixPath(self._root).parents)][:-1]
        missing = []
        for way in ways:
            parent, _, name = way.rpartition("/")
            # From its parent: a listing of the directory itself may not distinguish an empty one from a missing one.
            present = {path.rpartition("/")[2] for path, _ in await list_entries(parent or "/", self._backend)}
            if name in present:
                break
            missing.append(way)
        return missing

    async def _remove_made(self) -> None:
        """Remove those directories above the skills that `preload` created and that are empty."""
        with _reporting(f"remove the empty directories of {self._root}"):
            while self._made and not self._written and not await list_entries(self._made[0], self._backend):
                await check_links(self._backend, self._root, self._made[:1])
                await _delete(self._made[0], self._backend)
                self._made.pop(0)
