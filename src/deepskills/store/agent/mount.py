"""Mounts the store's skills beside an agent's own files, so that its file tools read what a load shows.

A load names files by path. In `create_deep_agent` the model opens such a path with `read_file`, `ls`, `grep` or `glob`,
which go to the agent's own backend, where no skill of the store lies. `mounted` puts a read-only backend there, for the
paths of skills alone. Whose skills it shows is decided again for every call, from the run that makes it: a path of
another user is not found, whoever wrote it into the conversation.
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

from deepskills._io.served import call_in_progress
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE
from deepskills.store.agent.backend import StoreBackend
from deepskills.store.agent.loop import private_loop
from deepskills.store.agent.view import SOURCE_ROOT, View, with_mount

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

MAX_SEARCHED = 500
"""How many files one `grep` reads, and one `glob` matches; a search in one skill stays far below."""

READ_ONLY = "Skills of the store cannot be changed with file tools."
"""What a write gets as an answer."""


def mounted(view: View, backend: BackendProtocol) -> CompositeBackend:
    """Return a backend that shows a view's skills at their paths, and `backend` everywhere else."""
    return CompositeBackend(default=backend, routes={f"{SOURCE_ROOT}/": MountedSkills(view)})


class MountedSkills(BackendProtocol):
    """Shows the skills of whoever's run calls it. Paths come without the mount's own, as routes get them.

    Nothing here raises: an exception of a backend would end the run. What fails is the answer that the model gets.
    """

    is_read_only = True

    def __init__(self, view: View) -> None:
        self._view = view

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        return await self._aanswer(_listed(path), _ls_failed)

    def ls(self, path: str) -> LsResult:
        """List a directory, on the private event loop."""
        return self._answer(_listed(path), _ls_failed)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file."""
        return await self._aanswer(_read(file_path, offset, limit), _read_failed)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file, on the private event loop."""
        return self._answer(_read(file_path, offset, limit), _read_failed)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text."""
        return await self._aanswer(_searched(pattern, path, glob, max_count), _grep_failed)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text, on the private event loop."""
        return self._answer(_searched(pattern, path, glob, max_count), _grep_failed)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern."""
        return await self._aanswer(_matched(pattern, path), _glob_failed)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, on the private event loop."""
        return self._answer(_matched(pattern, path), _glob_failed)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        return await self._aanswer(_downloaded(paths), _download_failed(paths))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, on the private event loop."""
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
            return await work(self._shelf())
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the application's function or the database raises
            return failed(_told(error))

    def _answer(self, work: "Work[ResultT]", failed: Callable[[str], ResultT]) -> ResultT:
        try:
            # Here and not on the private loop: the function of the application belongs to the caller's thread.
            shelf = self._shelf()

            async def run() -> ResultT:
                return await work(shelf)

            return private_loop.run(run)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the application's function or the database raises
            return failed(_told(error))

    def _shelf(self) -> "Shelf":
        """Return the skills of the user whose run is calling."""
        # For every call, from the run that makes it: nothing of one user's is kept for the next.
        call = call_in_progress.get()
        # Without one, it is a tool of an agent that has no skills.
        return (
            Shelf(self._view.backend_for(_runtime()), ())
            if call is None
            else Shelf(self._view.backend_for(call.runtime), call.loaded)
        )


class Shelf:
    """The skills of a run's user, by paths on the mount."""

    def __init__(self, store: StoreBackend, loaded: Sequence[str]) -> None:
        self._store = store
        self._loaded = loaded

    async def entries(self, path: str) -> list[FileInfo] | None:
        """Return what a directory holds; `None` if there is none."""
        listing = await self._store.als(self._outside(path))
        if listing.entries is None:
            return None
        entries: list[Any] = listing.entries
        return [FileInfo(path=self._inside(entry["path"]), is_dir=entry.get("is_dir", False)) for entry in entries]

    async def contents(self, paths: Sequence[str]) -> list[FileDownloadResponse]:
        """Return whole files."""
        found = await self._store.adownload_files([self._outside(path) for path in paths])
        return [
            FileDownloadResponse(path=path, content=reply.content, error=reply.error)
            for path, reply in zip(paths, found, strict=True)
        ]

    async def files(self, path: str | None) -> list[str]:
        """Return the files at and below a path; from above the skills, all of loaded ones and the texts of others."""
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
"""What a call does with the skills of its run's user."""


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
        files = {}
        for reply in await shelf.contents(await shelf.files(path)):
            try:
                files[reply.path] = create_file_data((reply.content or b"").decode())
            except UnicodeDecodeError:
                continue
        return await asyncio.to_thread(
            lambda: grep_matches_from_files(files, pattern, path or "/", glob, max_count=max_count)
        )

    return work


def _matched(pattern: str, path: str | None) -> Work[GlobResult]:
    async def work(shelf: Shelf) -> GlobResult:
        base = f"{(path or '/').rstrip('/')}/"
        matches = [each for each in await shelf.files(path) if _fits(each.removeprefix(base), pattern)]
        return GlobResult(matches=[FileInfo(path=each, is_dir=False) for each in matches])

    return work


def _downloaded(paths: list[str]) -> Work[list[FileDownloadResponse]]:
    async def work(shelf: Shelf) -> list[FileDownloadResponse]:
        return await shelf.contents(paths)

    return work


def _runtime() -> ToolRuntime[Any, Any]:
    """Return the runtime of a tool that no skills middleware knows of; functions of users get the one kind alone."""
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
    """Return what the model hears of a failure; the log has the same."""
    told = with_mount(f"The skills of the store cannot be read now: {type(error).__name__}: {one_line(str(error))}")
    logger.error(told)
    return told


def _fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern; one without a slash is for names in any directory."""
    if "/" not in pattern.lstrip("/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern.lstrip("/"))
    parts = [".*" if part == "**" else fnmatch.translate(part)[4:-3] for part in pattern.strip("/").split("/")]
    expression = "/".join(part.replace(".*", "[^/]*") if part != ".*" else part for part in parts)
    return re.fullmatch(expression.replace(".*/", "(?:.*/)?"), path) is not None
