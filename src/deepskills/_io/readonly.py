"""Read-only file systems from two answers: which files there are, with their sizes, and what a file holds.

Skills written in Python, on servers and in a database lie on no disk, and yet an agent's file tools should find them.
From the two answers all else follows: `ls`, `read`, `glob`, `grep` and `download_files` behave as deepagents' own file
system backend does, and every write is refused in one sentence.
"""

import base64
import mimetypes
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.utils import (
    InvalidGlobPatternError,
    compile_grep_include_glob,
    grep_matches_from_files,
    slice_read_response,
)

from deepskills._errors import SkillsError
from deepskills._io.bridge import bridge

Purpose: TypeAlias = Literal["list", "match", "search"]
"""What files are looked for: to list a directory, to match paths, or to be read by a search."""

FilesFound: TypeAlias = Mapping[str, int | None]
"""Files by path, with their sizes where those are known; a path with a slash at its end is a directory."""


class PartialFiles(dict[str, int | None]):
    """Files of which some were left out, because there are too many."""


Content: TypeAlias = bytes | str
"""A file's content, or why it cannot be read."""

NOT_FOUND = "file_not_found"

_BINARY_TYPES = frozenset({"image", "audio", "video"})
_BINARY_SUFFIXES = (".pdf", ".ppt", ".pptx", ".mkv")
_TEXT_SUFFIXES = (".ts", ".svg")
"""Suffixes of text files that the table of media types takes for videos and images."""


class ReadOnlyBackend(BackendProtocol):
    """A backend that refuses every write, and says why in one sentence."""

    holds = "Files here"
    """Whose files they are, as the beginning of that sentence."""

    def _refusal(self, path: str) -> str:
        return f"{self.holds} are read-only: '{path}' cannot be changed. Write to another directory."

    def write(self, file_path: str, content: str) -> WriteResult:  # noqa: ARG002 - the protocol's signature
        """Refuse."""
        return WriteResult(error=self._refusal(file_path))

    def edit(
        self,
        file_path: str,
        old_string: str,  # noqa: ARG002 - the protocol's signature
        new_string: str,  # noqa: ARG002 - the protocol's signature
        replace_all: bool = False,  # noqa: ARG002, FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Refuse."""
        return EditResult(error=self._refusal(file_path))

    def delete(self, file_path: str) -> DeleteResult:
        """Refuse."""
        return DeleteResult(error=self._refusal(file_path))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Refuse."""
        return [FileUploadResponse(path=path, error="permission_denied") for path, _content in files]


class ReadOnlyFiles(ReadOnlyBackend):
    """A read-only file system; a subclass says which files there are, and what they hold."""

    passes_over = True
    """Whether a search goes on without a file that cannot be read."""

    def find_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path, which has no slash at its end; the root is empty.

        Raises:
            SkillsError: If that cannot be told.
        """
        raise NotImplementedError

    def read_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, or why it cannot be read."""
        raise NotImplementedError

    def ls(self, path: str) -> LsResult:
        """List what lies directly in a directory."""
        return _list(path, self._find(path, "list"))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the content of each file, or the reason why there is none."""
        return _download(paths, self.read_contents(_keys(paths)))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return the lines of a text file, or a whole binary file in base64."""
        return _read(file_path, self.read_contents(_keys([file_path])), offset, limit)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, relative to `path`."""
        return _match(pattern, path, self._find(path or "/", "match"))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search text files for a literal text."""
        found = self._find(path or "/", "search")
        chosen = _choose(glob, path, found)
        if isinstance(chosen, GrepResult):
            return chosen
        result = _search(pattern, chosen, self.read_contents(chosen), max_count, passes_over=self.passes_over)
        return _mark_partial(result, found)

    def _find(self, path: str, purpose: Purpose) -> FilesFound | SkillsError:
        root = key_of(path)
        try:
            return self.find_files(root, purpose) if root is not None else {}
        except SkillsError as error:
            return error


class AsyncReadOnlyFiles(ReadOnlyFiles):
    """The same for files that only async code can reach; sync calls wait for it on the bridge's loop."""

    async def afind_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path; as `find_files`."""
        raise NotImplementedError

    async def aread_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file, or why it cannot be read."""
        raise NotImplementedError

    def find_files(self, root: str, purpose: Purpose) -> FilesFound:
        """Return the files at and below a path; the caller's thread waits."""
        return bridge.run_anywhere(lambda: self.afind_files(root, purpose))

    def read_contents(self, paths: Sequence[str]) -> list[Content]:
        """Return the content of each file; the caller's thread waits."""
        return bridge.run_anywhere(lambda: self.aread_contents(paths))

    async def als(self, path: str) -> LsResult:
        """List what lies directly in a directory."""
        return _list(path, await self._afind(path, "list"))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the content of each file, or the reason why there is none."""
        return _download(paths, await self.aread_contents(_keys(paths)))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return the lines of a text file, or a whole binary file in base64."""
        return _read(file_path, await self.aread_contents(_keys([file_path])), offset, limit)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, relative to `path`."""
        return _match(pattern, path, await self._afind(path or "/", "match"))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search text files for a literal text."""
        found = await self._afind(path or "/", "search")
        chosen = _choose(glob, path, found)
        if isinstance(chosen, GrepResult):
            return chosen
        result = _search(pattern, chosen, await self.aread_contents(chosen), max_count, passes_over=self.passes_over)
        return _mark_partial(result, found)

    async def _afind(self, path: str, purpose: Purpose) -> FilesFound | SkillsError:
        root = key_of(path)
        try:
            return await self.afind_files(root, purpose) if root is not None else {}
        except SkillsError as error:
            return error


ResultT = TypeVar("ResultT", GlobResult, GrepResult)


def _mark_partial(result: ResultT, found: FilesFound | SkillsError) -> ResultT:
    """Say in a result that some files were left out."""
    if isinstance(found, PartialFiles):
        # Older releases of deepagents have no such mark, and show what was found.
        result.truncated = True
    return result


def key_of(path: str) -> str | None:
    """Return a path composed and without a slash at its end; `None` if it is not a path."""
    if not isinstance(path, str) or "\x00" in path:
        return None
    parts = [part for part in unicodedata.normalize("NFC", path).split("/") if part not in {"", "."}]
    # Refused and not resolved: nothing here lies above the root.
    return None if ".." in parts else "".join(f"/{part}" for part in parts)


def _keys(paths: Sequence[str]) -> list[str]:
    # What is not a path names no file.
    return [key_of(path) or "" for path in paths]


def _list(path: str, found: FilesFound | SkillsError) -> LsResult:
    root = key_of(path)
    if root is None:
        return LsResult(error=f"Path '{path}': invalid_path")
    if isinstance(found, SkillsError):
        return LsResult(error=f"Cannot list '{path}': {found}")
    if root in found:
        return LsResult(error=f"Path '{path}': not_a_directory")
    entries: dict[str, FileInfo] = {}
    for file, size in found.items():
        name, slash, _rest = file[len(root) + 1 :].partition("/")
        own = f"{root}/{name}"
        if slash:
            entries.setdefault(own, FileInfo(path=f"{own}/", is_dir=True))
        elif name:
            entries[own] = _info(own, size)
    # A directory that holds nothing is known by its own name alone.
    if not entries and root and f"{root}/" not in found:
        return LsResult(error=f"Path '{path}': path_not_found")
    return LsResult(entries=[entries[name] for name in sorted(entries)])


def _info(path: str, size: int | None) -> FileInfo:
    return FileInfo(path=path, is_dir=False) if size is None else FileInfo(path=path, is_dir=False, size=size)


def _download(paths: Sequence[str], contents: Sequence[Content]) -> list[FileDownloadResponse]:
    return [
        FileDownloadResponse(path=path, error="invalid_path")
        if key_of(path) is None
        else FileDownloadResponse(path=path, error=content)
        if isinstance(content, str)
        else FileDownloadResponse(path=path, content=content)
        for path, content in zip(paths, contents, strict=True)
    ]


def _read(path: str, contents: Sequence[Content], offset: int, limit: int) -> ReadResult:
    [content] = contents
    if isinstance(content, str):
        is_absent = content in {NOT_FOUND, "is_directory"}
        return ReadResult(error=f"File '{path}' not found" if is_absent else f"Error reading file '{path}': {content}")
    data = file_data(path, content)
    return ReadResult(file_data=data) if data["encoding"] == "base64" else slice_read_response(data, offset, limit)


def _match(pattern: str, path: str | None, found: FilesFound | SkillsError) -> GlobResult:
    try:
        is_match = compile_grep_include_glob(pattern)
    except InvalidGlobPatternError as error:
        return GlobResult(error=str(error))
    if isinstance(found, SkillsError):
        return GlobResult(error=str(found))
    root = key_of(path or "/")
    files = [file for file in sorted(found) if file != root and not file.endswith("/")]
    matches = [_info(file, found[file]) for file in files if is_match(file[len(root or "") + 1 :])]
    return _mark_partial(GlobResult(matches=matches), found)


def _choose(glob: str | None, path: str | None, found: FilesFound | SkillsError) -> list[str] | GrepResult:
    """Return the files that a search reads, or why there is none."""
    try:
        is_match = compile_grep_include_glob(glob) if glob else None
    except InvalidGlobPatternError as error:
        return GrepResult(error=str(error))
    if isinstance(found, SkillsError):
        return GrepResult(error=str(found))
    root = key_of(path or "/")
    chosen = []
    for file in sorted(found):
        # A file that is named itself is matched by its name.
        relative = file[len(root or "") + 1 :] if file != root else file.rpartition("/")[2]
        if not file.endswith("/") and (is_match is None or is_match(relative)):
            chosen.append(file)
    return chosen


def _search(
    pattern: str, paths: Sequence[str], contents: Sequence[Content], max_count: int | None, *, passes_over: bool
) -> GrepResult:
    files: dict[str, FileData] = {}
    for path, content in zip(paths, contents, strict=True):
        if not isinstance(content, str):
            files[path] = file_data(path, content)
        elif not passes_over:
            return GrepResult(error=f"Cannot search '{path}': {content}")
    return grep_matches_from_files(files, pattern, "/", max_count=max_count)


def file_data(path: str, content: bytes) -> FileData:
    """Return a file as deepagents hands it on: text as it is, anything else in base64."""
    media_type = mimetypes.guess_type(path)[0] or ""
    suffixes = path.lower()
    is_binary = suffixes.endswith(_BINARY_SUFFIXES) or (
        media_type.partition("/")[0] in _BINARY_TYPES and not suffixes.endswith(_TEXT_SUFFIXES)
    )
    if not is_binary:
        try:
            return FileData(content=content.decode(), encoding="utf-8")
        except UnicodeDecodeError:
            pass
    return FileData(content=base64.b64encode(content).decode(), encoding="base64")
