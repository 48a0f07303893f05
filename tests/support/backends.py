"""The one fake backend: a real directory behind calls that a test can watch, delay, refuse and answer itself."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend
from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
)

Rule = Callable[[Any], Any]
"""Called with a call's argument before the call is made: it may wait or raise, and what it returns, if not `None`, is
the answer."""


class FakeBackend(FilesystemBackend):
    """The files below `root`, and of each call what a test wants to know or to go wrong.

    Args:
        root: The directory; `/` of the backend, unless `virtual_mode` is off.
        virtual_mode: Whether paths begin at `root`.
        delay: Seconds that each listing, read and write takes.
        rules: By method (`ls`, `download_files`, `upload_files`, `delete`), what comes before the call, see `Rule`. The
            attribute of this name can be changed at any time: `backend.rules["ls"] = fails("gone")`.
        changes: By method, a function of the argument and the real answer that returns the answer to give.

    `calls` records all calls, as pairs of method and argument; `listed`, `read_paths` and `written` are their paths.
    """

    def __init__(
        self,
        root: Path,
        *,
        virtual_mode: bool = True,
        delay: float = 0,
        rules: dict[str, Rule] | None = None,
        changes: dict[str, Callable[[Any, Any], Any]] | None = None,
    ) -> None:
        super().__init__(root_dir=root, virtual_mode=virtual_mode)
        self.delay = delay
        self.rules: dict[str, Rule] = {**(rules or {})}
        self.changes: dict[str, Callable[[Any, Any], Any]] = {**(changes or {})}
        self.calls: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    @property
    def listed(self) -> list[str]:
        """The directories that were listed, in order."""
        return [argument for method, argument in self.calls if method == "ls"]

    @property
    def read_paths(self) -> list[str]:
        """The files that were asked for, in order."""
        return [path for method, paths in self.calls if method == "download_files" for path in paths]

    @property
    def written(self) -> list[str]:
        """The files that were written, in order."""
        return [path for method, files in self.calls if method == "upload_files" for path, _ in files]

    @property
    def asked(self) -> list[str]:
        """Every path that was listed or asked for, in order."""
        paths: list[str] = []
        for method, argument in self.calls:
            paths += {"ls": [argument], "download_files": argument}.get(method, [])
        return paths

    def _call(self, method: str, argument: Any, real: Callable[[Any], Any]) -> Any:
        with self._lock:
            self.calls.append((method, argument))
        if self.delay:
            time.sleep(self.delay)
        rule, change = self.rules.get(method), self.changes.get(method)
        answer = rule(argument) if rule else None
        if answer is None:
            answer = real(argument)
        return change(argument, answer) if change else answer

    def ls(self, path: str) -> LsResult:
        answer: LsResult = self._call("ls", path, super().ls)
        return answer

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answer: list[FileDownloadResponse] = self._call("download_files", paths, super().download_files)
        return answer

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answer: list[FileUploadResponse] = self._call("upload_files", files, super().upload_files)
        return answer

    def delete(self, file_path: str) -> DeleteResult:
        answer: DeleteResult = self._call("delete", file_path, super().delete)
        return answer


class OnlyAsync(BackendProtocol):
    """The same files behind async methods alone: the sync ones raise, as those of the protocol do."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.inner = FakeBackend(root, **options)

    async def als(self, path: str) -> LsResult:
        return await asyncio.to_thread(self.inner.ls, path)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await asyncio.to_thread(self.inner.download_files, paths)


def _concerns(argument: Any, part: str) -> bool:
    """Whether a call is about a path that holds `part`."""
    given = [argument] if isinstance(argument, str) else argument
    return any(part in (path if isinstance(path, str) else path[0]) for path in given)


def fails(message: str = "out of reach", part: str = "", error: type[Exception] = OSError) -> Rule:
    """Return a rule by which calls raise: all, or those about a path that holds `part`. `{path}` is filled in."""

    def rule(argument: Any) -> None:
        if _concerns(argument, part):
            raise error(message.replace("{path}", str(argument)))

    return rule


def hangs(released: threading.Event, part: str = "") -> Rule:
    """Return a rule by which calls wait for an event: all, or those about a path that holds `part`."""

    def rule(argument: Any) -> None:
        if _concerns(argument, part):
            released.wait(120)

    return rule


def answers(answer: Any, part: str = "") -> Rule:
    """Return a rule by which calls get this answer: all, or those about a path that holds `part`."""
    return lambda argument: answer if _concerns(argument, part) else None


def unlisted(message: str = "permission_denied", part: str = "") -> Rule:
    """Return a rule by which listings are answered with an error: all, or those of a path that holds `part`."""
    return answers(LsResult(error=message), part)


def unreadable(message: Any = "permission_denied", part: str = "") -> Callable[[Any, Any], Any]:
    """Return a change by which reads are answered with an error: all, or those of a path that holds `part`."""

    def change(_paths: Any, given: list[FileDownloadResponse]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(item.path, error=message) if part in item.path else item for item in given]

    return change


def breaks_off(directory: str) -> Callable[[Any, Any], Any]:
    """Return a change by which the listing of a directory ends with an error, behind the entries that it has."""

    def change(path: str, given: LsResult) -> LsResult:
        return (
            LsResult(error="Listing aborted", entries=given.entries) if path.rstrip("/").endswith(directory) else given
        )

    return change
