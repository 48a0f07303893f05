"""Mounts the store's skills beside an agent's own files, so that its file tools read what a load shows.

A load names files by path. In `create_deep_agent` the model opens such a path with `read_file`, `ls`, `grep` or `glob`,
which go to the agent's own backend, where no skill of the store lies. `mounted` puts a read-only backend there, for the
paths of skills alone. Whose skills it shows is decided again for every call, from the run that makes it: a path of
another user is not found, whoever wrote it into the conversation.
"""

import asyncio
import fnmatch
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
from langgraph.runtime import get_runtime

from deepskills._types import SKILL_FILE
from deepskills.store.agent.backend import StoreBackend
from deepskills.store.agent.loop import private_loop
from deepskills.store.agent.view import SOURCE_ROOT, View

ResultT = TypeVar("ResultT")

MAX_SEARCHED = 500
"""How many files one `grep` reads, and one `glob` matches; a search in one skill stays far below."""

READ_ONLY = "Skills of the store cannot be changed with file tools."
"""What a write gets as an answer."""


def mounted(view: View, backend: BackendProtocol) -> CompositeBackend:
    """Return a backend that shows a view's skills at their paths, and `backend` everywhere else."""
    return CompositeBackend(default=backend, routes={f"{SOURCE_ROOT}/": MountedSkills(view)})


class MountedSkills(BackendProtocol):
    """Shows the skills of whoever's run calls it. Paths come without the mount's own, as routes get them."""

    is_read_only = True

    def __init__(self, view: View) -> None:
        self._view = view

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        return await self._als(path, self._store())

    def ls(self, path: str) -> LsResult:
        """List a directory, on the private event loop."""
        store = self._store()
        return _settled(lambda: self._als(path, store))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file."""
        return await self._aread(file_path, offset, limit, self._store())

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a file, on the private event loop."""
        store = self._store()
        return _settled(lambda: self._aread(file_path, offset, limit, store))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text."""
        return await self._agrep(pattern, path, glob, max_count, self._store())

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text, on the private event loop."""
        store = self._store()
        return _settled(lambda: self._agrep(pattern, path, glob, max_count, store))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern."""
        return await self._aglob(pattern, path, self._store())

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, on the private event loop."""
        store = self._store()
        return _settled(lambda: self._aglob(pattern, path, store))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        return await self._adownload(paths, self._store())

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, on the private event loop."""
        store = self._store()
        return _settled(lambda: self._adownload(paths, store))

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

    def _store(self) -> StoreBackend:
        """Return the skills of the user whose run is calling."""
        # For every call, from the run that makes it: nothing of one user's is kept for the next.
        return self._view.backend_for(get_runtime())

    async def _als(self, path: str, store: StoreBackend) -> LsResult:
        if path.strip("/") == "":
            return LsResult(entries=[FileInfo(path=f"{_inside(store.root)}/", is_dir=True)])
        listing = await store.als(_outside(path))
        if listing.entries is None:
            return LsResult(error=f"'{SOURCE_ROOT}{path}' not found", entries=None)
        entries: list[Any] = listing.entries
        return LsResult(
            entries=[FileInfo(path=_inside(entry["path"]), is_dir=entry.get("is_dir", False)) for entry in entries]
        )

    async def _adownload(self, paths: list[str], store: StoreBackend) -> list[FileDownloadResponse]:
        found = await store.adownload_files([_outside(path) for path in paths])
        return [
            FileDownloadResponse(path=path, content=reply.content, error=reply.error)
            for path, reply in zip(paths, found, strict=True)
        ]

    async def _aread(self, path: str, offset: int, limit: int, store: StoreBackend) -> ReadResult:
        (reply,) = await store.adownload_files([_outside(path)])
        if reply.content is None:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' not found")
        try:
            data = create_file_data(reply.content.decode())
        except UnicodeDecodeError:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' is not text")
        return slice_read_response(data, offset, limit)

    async def _agrep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None, store: StoreBackend
    ) -> GrepResult:
        paths = await self._files(path, store)
        files = {}
        for reply in await store.adownload_files([_outside(each) for each in paths]):
            try:
                files[_inside(reply.path)] = create_file_data((reply.content or b"").decode())
            except UnicodeDecodeError:
                continue
        return await asyncio.to_thread(
            lambda: grep_matches_from_files(files, pattern, path or "/", glob, max_count=max_count)
        )

    async def _aglob(self, pattern: str, path: str | None, store: StoreBackend) -> GlobResult:
        base = f"{(path or '/').rstrip('/')}/"
        matches = [each for each in await self._files(path, store) if _fits(each.removeprefix(base), pattern)]
        return GlobResult(matches=[FileInfo(path=each, is_dir=False) for each in matches])

    async def _files(self, path: str | None, store: StoreBackend) -> list[str]:
        """Return the files at and below a path; of the whole store the texts of skills alone."""
        given = (path or "/").rstrip("/")
        # The root of all skills: their files would be the whole database.
        if given.count("/") <= 1:
            listing = await store.als(store.root)
            directories: list[Any] = listing.entries or []
            found = [f"{_inside(entry['path'])}/{SKILL_FILE}" for entry in directories[:MAX_SEARCHED]]
            return [each for each in found if each.startswith(f"{given}/")]
        found, frontier = [], [given]
        while frontier and len(found) < MAX_SEARCHED:
            listing = await store.als(_outside(frontier.pop()))
            if listing.entries is None:
                continue
            entries: list[Any] = listing.entries
            frontier += [_inside(entry["path"]) for entry in entries if entry.get("is_dir")]
            found += [_inside(entry["path"]) for entry in entries if not entry.get("is_dir")]
        return sorted(found or [given])[:MAX_SEARCHED]


def _settled(work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    async def run() -> ResultT:
        return await work()

    return private_loop.run(run)


def _outside(path: str) -> str:
    return f"{SOURCE_ROOT}/{path.strip('/')}"


def _inside(path: str) -> str:
    return path.removeprefix(SOURCE_ROOT)


def _fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern; one without a slash is for names in any directory."""
    if "/" not in pattern.lstrip("/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern.lstrip("/"))
    parts = [".*" if part == "**" else fnmatch.translate(part)[4:-3] for part in pattern.strip("/").split("/")]
    expression = "/".join(part.replace(".*", "[^/]*") if part != ".*" else part for part in parts)
    return re.fullmatch(expression.replace(".*/", "(?:.*/)?"), path) is not None
