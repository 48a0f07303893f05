"""Mounts the store's skills beside an agent's own files, so that its file tools read what a load shows.

A load names files by path. In `create_deep_agent` the model opens such a path with `read_file`, `ls`, `grep` or `glob`,
which go to the agent's own backend, and that has no skills of the store. `mounted` adds a read-only backend for the
paths of skills. Each call decides again, from its run, whose skills it shows: a path of another user is not found,
whoever wrote it into the conversation.
"""

import asyncio
import fnmatch
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from deepagents.backends import BackendProtocol, CompositeBackend
from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import create_file_data, grep_matches_from_files, slice_read_response
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import get_runtime

from deepskills._io.backends import call_in_progress
from deepskills._io.bridge import bridge
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE
from deepskills.store.agent.backend import SOURCE_ROOT, StoreBackend, View, with_mount

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

MAX_SEARCHED = 500
"""How many files one `grep` reads, and one `glob` matches; a search in one skill stays far below."""

MAX_SEARCHED_BYTES = 8 * 1024 * 1024
"""How much one `grep` reads; the text of a skill has a few kilobytes, but a file may have megabytes."""

READ_ONLY = "Skills of the store cannot be changed with file tools."
"""The answer to a write."""


def mounted(view: View, backend: BackendProtocol) -> CompositeBackend:
    """Return a backend that shows a view's skills at their paths, and `backend` everywhere else."""
    return CompositeBackend(default=backend, routes={f"{SOURCE_ROOT}/": MountedSkills(view)})


class MountedSkills(BackendProtocol):
    """Shows the skills of the user whose run calls it. Paths come without the mount's own prefix, as for any route.

    Nothing here raises: an exception from a backend would end the run. A failure is an answer that the model reads.
    """

    is_read_only = True

    def __init__(self, view: View) -> None:
        self._view = view

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        return await self._aanswer(_listed(path), _ls_failed)

    def ls(self, path: str) -> LsResult:
        """List a directory, on the bridge's loop."""
        return self._answer(_listed(path), _ls_failed)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file."""
        return await self._aanswer(_read(file_path, offset, limit), _read_failed)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file, on the bridge's loop."""
        return self._answer(_read(file_path, offset, limit), _read_failed)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text."""
        return await self._aanswer(_searched(pattern, path, glob, max_count), _grep_failed)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text, on the bridge's loop."""
        return self._answer(_searched(pattern, path, glob, max_count), _grep_failed)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern."""
        return await self._aanswer(_matched(pattern, path), _glob_failed)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, on the bridge's loop."""
        return self._answer(_matched(pattern, path), _glob_failed)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        return await self._aanswer(_downloaded(paths), _download_failed(paths))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, on the bridge's loop."""
        return self._answer(_downloaded(paths), _download_failed(paths))

    def write(self, file_path: str, content: str) -> WriteResult:  # noqa: ARG002 - the protocol's signature
        """Refuse."""
        return WriteResult(error=READ_ONLY)

    def edit(
        self,
        file_path: str,  # noqa: ARG002 - the protocol's signature
        old_string: str,  # noqa: ARG002 - the protocol's signature
        new_string: str,  # noqa: ARG002 - the protocol's signature
        replace_all: bool = False,  # noqa: ARG002, FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Refuse."""
        return EditResult(error=READ_ONLY)

    def delete(self, file_path: str) -> DeleteResult:  # noqa: ARG002 - the protocol's signature
        """Refuse."""
        return DeleteResult(error=READ_ONLY)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Refuse."""
        return [FileUploadResponse(path=path, error="permission_denied") for path, _ in files]

    async def _aanswer(self, work: "Work[ResultT]", failed: Callable[[str], ResultT]) -> ResultT:
        try:
            call = call_in_progress.get()
            hidden = await call.ahidden() if call is not None and call.ahidden is not None else frozenset()
            return await work(self._shelf(hidden))
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the application's function or the database raises
            return failed(_told(error))

    def _answer(self, work: "Work[ResultT]", failed: Callable[[str], ResultT]) -> ResultT:
        try:
            # Here and not on the bridge's loop: the application's function belongs to the caller's thread.
            call = call_in_progress.get()
            shelf = self._shelf(call.hidden() if call is not None else frozenset())

            async def run() -> ResultT:
                return await work(shelf)

            return bridge.run(run)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the application's function or the database raises
            return failed(_told(error))

    def _shelf(self, hidden: frozenset[str]) -> "Shelf":
        """Return the skills of the user whose run is calling."""
        # For every call, from its own run: nothing of one user is kept for the next.
        call = call_in_progress.get()
        # Without one, the caller is a tool of an agent that has no skills.
        return (
            Shelf(self._view.backend_for(_runtime()))
            if call is None
            else Shelf(self._view.backend_for(call.runtime), call.loaded, hidden)
        )


class Shelf:
    """The skills of a run's user that the model may see, by paths on the mount.

    What is hidden from the model, by its author or by the operator, is not found, unless it was loaded: a user may have
    started it. Nor are skills whose name another takes: the model could not load them either.
    """

    def __init__(self, store: StoreBackend, loaded: Sequence[str] = (), hidden: frozenset[str] = frozenset()) -> None:
        self._store = store
        self._loaded = loaded
        self._hidden = hidden - {*loaded}

    async def entries(self, path: str) -> list[FileInfo] | None:
        """Return the entries of a directory; `None` if it does not exist."""
        listing = await self._store.als(self._outside(path))
        if listing.entries is None or not self._shows(path):
            return None
        entries: list[Any] = listing.entries
        found = [FileInfo(path=self._inside(entry["path"]), is_dir=entry.get("is_dir", False)) for entry in entries]
        return [entry for entry in found if self._shows(entry["path"])]

    async def contents(self, paths: Sequence[str]) -> list[FileDownloadResponse]:
        """Return whole files."""
        shown = [path for path in paths if self._shows(path)]
        replies = await self._store.adownload_files([self._outside(path) for path in shown])
        found = dict(zip(shown, replies, strict=True))
        missing = FileDownloadResponse(path="", error="file_not_found")
        return [
            FileDownloadResponse(path=path, content=reply.content, error=reply.error)
            for path, reply in ((path, found.get(path, missing)) for path in paths)
        ]

    async def within_bytes(self, paths: Sequence[str], at_most: int) -> list[str]:
        """Return those files, in order, that have so many bytes together at most; one that does not fit is left out."""
        sizes = await self._store.asizes([self._outside(path) for path in paths])
        chosen = []
        for path in paths:
            size = sizes.get(self._outside(path), 0)
            if size <= at_most:
                at_most -= size
                chosen.append(path)
        return chosen

    def _shows(self, path: str) -> bool:
        directory = path.strip("/").partition("/")[0]
        return "~" not in directory and directory not in self._hidden

    async def files(self, path: str | None) -> list[str]:
        """Return the files at and below a path; above the skills, all files of loaded ones and the texts of others."""
        given = (path or "/").rstrip("/")
        if given:
            return sorted(await self._below(given) or [given])[:MAX_SEARCHED]
        # All files of all skills would be the whole database.
        found: dict[str, None] = {}
        skills = [entry["path"] for entry in await self.entries("/") or []]
        for skill in (f"/{name}" for name in self._loaded if f"/{name}" in skills):
            found |= dict.fromkeys(await self._below(skill))
        found |= dict.fromkeys(f"{skill}/{SKILL_FILE}" for skill in skills)
        return sorted(list(found)[:MAX_SEARCHED])

    async def _below(self, path: str) -> list[str]:
        found: list[str] = []
        frontier = [path]
        while frontier and len(found) < MAX_SEARCHED:
            entries = await self.entries(frontier.pop()) or []
            frontier += [entry["path"] for entry in entries if entry.get("is_dir")]
            found += [entry["path"] for entry in entries if not entry.get("is_dir")]
        return found

    def _outside(self, path: str) -> str:
        return f"{self._store.root}/{path.strip('/')}".rstrip("/")

    def _inside(self, path: str) -> str:
        return path.removeprefix(self._store.root)


Work: TypeAlias = Callable[[Shelf], Coroutine[Any, Any, ResultT]]
"""The work of a call on the skills of its run's user."""


def _listed(path: str) -> Work[LsResult]:
    async def work(shelf: Shelf) -> LsResult:
        entries = await shelf.entries(path)
        return _ls_failed(f"'{SOURCE_ROOT}{path}' not found") if entries is None else LsResult(entries=entries)

    return work


def _read(path: str, offset: int, limit: int) -> Work[ReadResult]:
    async def work(shelf: Shelf) -> ReadResult:
        (reply,) = await shelf.contents([path])
        if reply.content is None:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' not found")
        try:
            data = create_file_data(reply.content.decode())
        except UnicodeDecodeError:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' is not text")
        return slice_read_response(data, offset, limit)

    return work


def _searched(pattern: str, path: str | None, glob: str | None, max_count: int | None) -> Work[GrepResult]:
    async def work(shelf: Shelf) -> GrepResult:
        listed = await shelf.files(path)
        # By their sizes, before any is read: five hundred files may be gigabytes.
        chosen = await shelf.within_bytes(listed, MAX_SEARCHED_BYTES)
        files = {}
        for reply in await shelf.contents(chosen):
            try:
                files[reply.path] = create_file_data((reply.content or b"").decode())
            except UnicodeDecodeError:
                continue
        found = await asyncio.to_thread(
            lambda: grep_matches_from_files(files, pattern, path or "/", glob, max_count=max_count)
        )
        if len(listed) == MAX_SEARCHED or len(chosen) < len(listed):
            # Older releases of deepagents have no such mark, and show what was found.
            found.truncated = True
        return found

    return work


def _matched(pattern: str, path: str | None) -> Work[GlobResult]:
    async def work(shelf: Shelf) -> GlobResult:
        base = f"{(path or '/').rstrip('/')}/"
        listed = await shelf.files(path)
        matches = [each for each in listed if _fits(each.removeprefix(base), pattern)]
        found = GlobResult(matches=[FileInfo(path=each, is_dir=False) for each in matches])
        if len(listed) == MAX_SEARCHED:
            found.truncated = True
        return found

    return work


def _downloaded(paths: list[str]) -> Work[list[FileDownloadResponse]]:
    async def work(shelf: Shelf) -> list[FileDownloadResponse]:
        return await shelf.contents(paths)

    return work


def _runtime() -> ToolRuntime[Any, Any]:
    """Return the runtime of a tool that no skills middleware knows of; users' functions always get the same type."""
    runtime = get_runtime()
    return ToolRuntime(
        state={},
        context=runtime.context,
        config=get_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=None,
        store=runtime.store,
    )


def _ls_failed(reason: str) -> LsResult:
    return LsResult(error=reason, entries=None)


def _read_failed(reason: str) -> ReadResult:
    return ReadResult(error=reason)


def _grep_failed(reason: str) -> GrepResult:
    return GrepResult(error=reason)


def _glob_failed(reason: str) -> GlobResult:
    return GlobResult(error=reason)


def _download_failed(paths: list[str]) -> Callable[[str], list[FileDownloadResponse]]:
    return lambda reason: [FileDownloadResponse(path=path, error=reason) for path in paths]


def _told(error: Exception) -> str:
    """Return what the model reads about a failure; the log has the same."""
    told = with_mount(f"The skills of the store cannot be read now: {type(error).__name__}: {one_line(str(error))}")
    logger.error(told)
    return told


def _fits(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern; a pattern without a slash matches names in any directory."""
    if "/" not in pattern.lstrip("/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern.lstrip("/"))
    parts = [".*" if part == "**" else fnmatch.translate(part)[4:-3] for part in pattern.strip("/").split("/")]
    expression = "/".join(part.replace(".*", "[^/]*") if part != ".*" else part for part in parts)
    return re.fullmatch(expression.replace(".*/", "(?:.*/)?"), path) is not None
