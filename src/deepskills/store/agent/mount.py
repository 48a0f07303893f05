"""Mounts the store's skills beside an agent's own files, so that its file tools read what a load shows.

A load names files by path. In `create_deep_agent` the model opens such a path with `read_file`, `ls`, `grep` or `glob`,
which go to the agent's own backend, and that has no skills of the store. `mounted` adds a read-only backend for the
paths of skills. Each call decides again, from its run, whose skills it shows: a path of another user is not found,
whoever wrote it into the conversation.

deepagents calls a backend with paths alone, and LangGraph tells it neither the run's state nor its tool call. So the
middleware leaves the runtime, what is loaded and what is hidden in `call_in_progress` while a tool runs.
"""

import asyncio
import fnmatch
import logging
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
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
from deepskills.store.agent.provider import StoredSkill, StoreProvider

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")

MAX_SEARCHED = 500
"""How many files one `grep` reads, and one `glob` matches; a search in one skill stays far below."""

MAX_SEARCHED_BYTES = 8 * 1024 * 1024
"""How much one `grep` reads; the text of a skill has a few kilobytes, but a file may have megabytes."""

READ_ONLY = "Skills of the store cannot be changed with file tools."
"""The answer to a write."""


SOURCE_ROOT = "/skills"
"""The directory below which file tools find the skills of the run's user, each by its name."""


def mounted(provider: StoreProvider, backend: BackendProtocol) -> CompositeBackend:
    """Return a backend that shows a store's skills at their paths, and `backend` everywhere else."""
    provider.mount(SOURCE_ROOT)
    return CompositeBackend(default=backend, routes={f"{SOURCE_ROOT}/": MountedSkills(provider)})


class MountedSkills(BackendProtocol):
    """Shows the skills of the user whose run calls it. Paths come without the mount's own prefix, as for any route.

    Nothing here raises: an exception from a backend would end the run. A failure is an answer that the model reads.
    """

    is_read_only = True

    def __init__(self, provider: StoreProvider) -> None:
        self._provider = provider

    async def als(self, path: str) -> LsResult:
        """List a directory."""
        return await self._aanswer(_list(path), _ls_failed)

    def ls(self, path: str) -> LsResult:
        """List a directory, on the bridge's loop."""
        return self._answer(_list(path), _ls_failed)

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
        return await self._aanswer(_search(pattern, path, glob, max_count), _grep_failed)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search files for a text, on the bridge's loop."""
        return self._answer(_search(pattern, path, glob, max_count), _grep_failed)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern."""
        return await self._aanswer(_match(pattern, path), _glob_failed)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, on the bridge's loop."""
        return self._answer(_match(pattern, path), _glob_failed)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        return await self._aanswer(_download(paths), _download_failed(paths))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files, on the bridge's loop."""
        return self._answer(_download(paths), _download_failed(paths))

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
            return failed(_tell(error))

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
            return failed(_tell(error))

    def _shelf(self, hidden: frozenset[str]) -> "RunView":
        """Return the skills of the user whose run is calling."""
        # For every call, from its own run: nothing of one user is kept for the next.
        call = call_in_progress.get()
        # Without one, the caller is a tool of an agent that has no skills.
        if call is None:
            return RunView(self._provider, self._provider.owner(_runtime()))
        return RunView(self._provider, self._provider.owner(call.runtime), call.loaded, hidden)


@dataclass(frozen=True)
class _File:
    """A file of a skill."""

    skill: StoredSkill
    path: str
    """Its path in the skill."""

    size: int = 0
    """How many bytes it has; of a `SKILL.md`, nobody has asked yet."""


class RunView:
    """The skills of a run's user that the model may see, by paths on the mount.

    What is hidden from the model, by its author or by the operator, is not found, unless it was loaded: a user may have
    started it. Nor are skills whose name another takes: the model could not load them either.
    """

    def __init__(
        self,
        provider: StoreProvider,
        owner: str | None,
        loaded: Sequence[str] = (),
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self._provider = provider
        self._owner = owner
        self._loaded = loaded
        self._hidden = hidden - {*loaded}
        self._skills: Mapping[str, StoredSkill] | None = None

    async def entries(self, path: str) -> list[FileInfo] | None:
        """Return the entries of a directory; `None` if it does not exist."""
        base = _base(path)
        if base == "/":
            return [FileInfo(path=f"/{name}", is_dir=True) for name in sorted(await self._visible())]
        found: dict[str, bool] = {}
        for file in await self._files_of(path):
            if file.startswith(base):
                name, _, below = file.removeprefix(base).partition("/")
                found[f"{base}{name}"] = bool(below)
        return [FileInfo(path=entry, is_dir=is_dir) for entry, is_dir in sorted(found.items())] or None

    async def files(self, path: str | None) -> dict[str, _File]:
        """Return the files at and below a path; above the skills, all files of loaded ones and the texts of others."""
        base = _base(path)
        if base != "/":
            files = await self._files_of(base)
            return _first({each: file for each, file in files.items() if f"{each}/".startswith(base)})
        # All files of all skills would be the whole database.
        skills = await self._visible()
        found: dict[str, _File] = {}
        for name in self._loaded:
            if name in skills and len(found) < MAX_SEARCHED:
                found |= await self._files_of(name)
        return _first(found | {f"/{name}/{SKILL_FILE}": _File(skill, SKILL_FILE) for name, skill in skills.items()})

    async def located(self, paths: Sequence[str]) -> dict[str, _File]:
        """Return what paths name, if it may be a file; only reading it tells."""
        skills, found = await self._visible(), {}
        for path in paths:
            name, _, below = path.strip("/").partition("/")
            if below and name in skills:
                found[path] = _File(skills[name], below)
        return found

    async def contents(self, files: Mapping[str, _File]) -> dict[str, bytes]:
        """Return whole files, the texts of all skills with one query; those that are not there are left out."""
        texts = {path: file.skill.head for path, file in files.items() if file.path == SKILL_FILE}
        found = await self._provider.texts([*texts.values()], self._owner) if texts else {}
        contents = {path: found[head.id] for path, head in texts.items() if head.id in found}
        for path, file in files.items():
            if path not in texts:
                content = await self._provider.content(file.skill.head, file.path, self._owner)
                contents |= {path: content} if content is not None else {}
        return contents

    async def within_bytes(self, files: Mapping[str, _File], at_most: int) -> dict[str, _File]:
        """Return those files, in order, that have so many bytes together at most; one that does not fit is left out."""
        texts = [file.skill.head for file in files.values() if file.path == SKILL_FILE]
        lengths = await self._provider.ask(self._owner, lambda reader, _: reader.text_sizes(texts)) if texts else {}
        chosen = {}
        for path, file in files.items():
            size = lengths.get(file.skill.head.id, 0) if file.path == SKILL_FILE else file.size
            if size <= at_most:
                at_most -= size
                chosen[path] = file
        return chosen

    async def _visible(self) -> Mapping[str, StoredSkill]:
        if self._skills is None:
            seen = await self._provider.visible(self._owner)
            self._skills = {name: skill for name, skill in seen.by_name.items() if name not in self._hidden}
        return self._skills

    async def _files_of(self, path: str) -> dict[str, _File]:
        """Return the files of the skill that a path belongs to."""
        name = path.strip("/").partition("/")[0]
        skill = (await self._visible()).get(name)
        if skill is None:
            return {}
        sizes = await self._provider.paths(skill.head, self._owner)
        files = [_File(skill, SKILL_FILE), *(_File(skill, own, size) for own, size in sizes.items())]
        return {f"/{name}/{file.path}": file for file in files}


Work: TypeAlias = Callable[[RunView], Coroutine[Any, Any, ResultT]]
"""The work of a call on the skills of its run's user."""


def _list(path: str) -> Work[LsResult]:
    async def work(shelf: RunView) -> LsResult:
        entries = await shelf.entries(path)
        return _ls_failed(f"'{SOURCE_ROOT}{path}' not found") if entries is None else LsResult(entries=entries)

    return work


def _read(path: str, offset: int, limit: int) -> Work[ReadResult]:
    async def work(shelf: RunView) -> ReadResult:
        content = (await shelf.contents(await shelf.located([path]))).get(path)
        if content is None:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' not found")
        try:
            data = create_file_data(content.decode())
        except UnicodeDecodeError:
            return ReadResult(error=f"File '{SOURCE_ROOT}{path}' is not text")
        return slice_read_response(data, offset, limit)

    return work


def _search(pattern: str, path: str | None, glob: str | None, max_count: int | None) -> Work[GrepResult]:
    async def work(shelf: RunView) -> GrepResult:
        listed = await shelf.files(path)
        # By their sizes, before any is read: five hundred files may be gigabytes.
        chosen = await shelf.within_bytes(listed, MAX_SEARCHED_BYTES)
        files = {}
        for file, content in (await shelf.contents(chosen)).items():
            try:
                files[file] = create_file_data(content.decode())
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


def _match(pattern: str, path: str | None) -> Work[GlobResult]:
    async def work(shelf: RunView) -> GlobResult:
        base = _base(path)
        listed = await shelf.files(path)
        matches = [each for each in listed if _fits(each.removeprefix(base), pattern)]
        found = GlobResult(matches=[FileInfo(path=each, is_dir=False) for each in matches])
        if len(listed) == MAX_SEARCHED:
            found.truncated = True
        return found

    return work


def _download(paths: list[str]) -> Work[list[FileDownloadResponse]]:
    async def work(shelf: RunView) -> list[FileDownloadResponse]:
        found = await shelf.contents(await shelf.located(paths))
        return [
            FileDownloadResponse(path=path, content=found[path])
            if path in found
            else FileDownloadResponse(path=path, error="file_not_found")
            for path in paths
        ]

    return work


def _base(path: str | None) -> str:
    """Return what the paths below a directory begin with."""
    return f"/{(path or '').strip('/')}/".replace("//", "/")


def _first(files: Mapping[str, _File]) -> dict[str, _File]:
    return {path: files[path] for path in sorted(list(files)[:MAX_SEARCHED])}


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


def _tell(error: Exception) -> str:
    """Return what the model reads about a failure; the log has the same."""
    told = f"The skills of the store cannot be read now: {type(error).__name__}: {one_line(str(error))}"
    logger.error(told)
    return told


def _fits(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern; a pattern without a slash matches names in any directory."""
    if "/" not in pattern.lstrip("/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern.lstrip("/"))
    parts = [".*" if part == "**" else fnmatch.translate(part)[4:-3] for part in pattern.strip("/").split("/")]
    expression = "/".join(part.replace(".*", "[^/]*") if part != ".*" else part for part in parts)
    return re.fullmatch(expression.replace(".*/", "(?:.*/)?"), path) is not None
