"""`McpSkills`: the skills of MCP servers as a read-only backend.

A server's skills are below its label: `/<label>/<path of the skill>/...`. The server's list says which skills there are
and which files each has; no file is read for that. During an agent's run a file is read for only two reasons: a load
opens a `SKILL.md`, and any tool may read the files of a skill while that skill is loaded. The middleware says around
each tool call what is loaded; in a run without it, nothing is read. Outside of runs, when a program reads for itself,
every read is compared with the list as well.
"""

import asyncio
import base64
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from deepagents.backends.protocol import (
    FileData,
    FileDownloadResponse,
    FileInfo,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
)
from deepagents.backends.utils import (
    InvalidGlobPatternError,
    compile_grep_include_glob,
    grep_matches_from_files,
    slice_read_response,
)
from langgraph.config import get_config

from deepskills._errors import SkillsError
from deepskills._files.manifest import FileDigest, SkillManifest
from deepskills._io.backends import loads_in_use
from deepskills._io.bridge import Bridge, bridge
from deepskills._types import (
    SKILL_FILE,
    LoadRecord,
    OpenedSkill,
    SkillListing,
    SkillOrigin,
    SkillProblem,
    SkillSummary,
)
from deepskills.inline import ReadOnlyBackend
from deepskills.mcp.connections import check_label, connection_of
from deepskills.mcp.entries import ServedSkill
from deepskills.mcp.listing import Listed, Server

VIA = "MCP"
"""Where the skills come from, for people and models."""

_NOT_LOADED = "Files of the skill '{name}' can be read only while it is loaded. Load it with load_skill first."
_NOT_LISTED = "'{path}' is not a file of the skill as it was loaded."

ResultT = TypeVar("ResultT")


def loads_of_run() -> Sequence[LoadRecord] | None:
    """Return the served skills that are loaded in the calling run; `None` outside of runs.

    Inside a run, but outside a tool call of an agent with skills, nothing counts as loaded: when in doubt, nothing is
    read.
    """
    loads = loads_in_use.get()
    if loads is not None:
        return loads
    try:
        get_config()
    except RuntimeError:
        return None
    return ()


class McpSkills(ReadOnlyBackend):
    """The skills of MCP servers, to pass as a backend or to mount in `CompositeBackend`.

    Name a server's label as a source: `SkillsMiddleware(backend=McpSkills({"docs": ...}), sources=["/docs"])`. Each
    skill is called `label:name`. Its files are read when they are needed, compared with what the server listed, and
    only while the skill is loaded. It grants itself nothing; tools that execute code ask a human while it is in use.

    Args:
        connections: By label, an open and initialized `mcp.ClientSession`, which is used on the current event loop and
            left open by `close()`; or a mapping in the form of LangChain's MCP adapters: `{"transport": "stdio",
            "command", "args", "env"}` or `{"transport": "streamable_http", "url", "headers"}`, opened at first use.
        dynamic: Whether to use skills whose server does not say what is in them.
        executes: Names of other tools that execute code, in addition to `execute` and `run_skill_script`.
        timeout: Seconds to wait for a server to be ready, and for each answer.

    Raises:
        ValueError: If a label or a connection cannot be used.
    """

    holds = "Skills of MCP servers"

    def __init__(
        self,
        connections: Mapping[str, Any],
        *,
        dynamic: bool = False,
        executes: Iterable[str] = (),
        timeout: float = 30,
    ) -> None:
        if not isinstance(connections, Mapping):
            raise ValueError(f"connections must map labels to connections, got {type(connections).__name__}")  # noqa: TRY004 - one kind of error for all of it
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        if isinstance(executes, str):
            raise ValueError("executes must be names of tools, got a single text; wrap it in a list")  # noqa: TRY004 - as above
        self.executes = frozenset(executes)
        """Names of other tools that execute code."""
        self._servers = {
            check_label(label): Server(label, connection_of(label, given, timeout), dynamic=dynamic, timeout=timeout)
            for label, given in connections.items()
        }

    def __repr__(self) -> str:
        return f"McpSkills({', '.join(map(repr, self._servers))})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself, because connections are shared."""
        return self

    # Life.

    def close(self) -> None:
        """Close the connections that were opened here; a later use opens them again."""
        bridge.run(self._closed)

    async def aclose(self) -> None:
        """Close the connections that were opened here, without blocking."""
        await bridge.arun(self._closed)

    async def _closed(self) -> None:
        own = [server.connection for server in self._servers.values() if server.connection.home is bridge]
        await asyncio.gather(*(connection.close() for connection in own))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Skills by URI.

    async def add(self, label: str, uri: str) -> str:
        """Add a skill that its server does not list, for good, and return the path of its `SKILL.md`.

        Raises:
            SkillNotFoundError: If the server does not know it.
            SkillsError: If the server cannot be asked, or the skill cannot be used.
            ValueError: If no connection has that label.
        """
        server = self._server(label)
        skill = await server.connection.home.arun(lambda: server.add(uri))
        return f"/{label}/{skill.path}/{SKILL_FILE}"

    def add_sync(self, label: str, uri: str) -> str:
        """Add a skill that its server does not list: `add`, for sync programs."""
        server = self._server(label)
        skill = server.connection.home.run(lambda: server.add(uri))
        return f"/{label}/{skill.path}/{SKILL_FILE}"

    def _server(self, label: str) -> Server:
        if label not in self._servers:
            raise ValueError(f"No connection has the label {label!r}; there are {', '.join(map(repr, self._servers))}.")
        return self._servers[label]

    # For discovery and loads.

    def skill_listings(self, paths: Sequence[str]) -> list[SkillListing | None]:
        """Return the skills of each source, without reading any file."""
        return self._sync(functools.partial(self._listings, paths))

    async def askill_listings(self, paths: Sequence[str]) -> list[SkillListing | None]:
        """Return the skills of each source, without reading any file."""
        return await self._async(functools.partial(self._listings, paths))

    async def _listings(self, paths: Sequence[str], at_home: "_AtHome") -> list[SkillListing | None]:
        wanted = {label: self._servers[label] for path in paths for label in self._labels(path)}
        listed: dict[str, Listed] = {}
        # Servers with the same home are asked at the same time, so that one that hangs does not delay the others.
        for home in {id(server.connection.home): server.connection.home for server in wanted.values()}.values():
            own = [server for server in wanted.values() if server.connection.home is home]
            listed |= await self._listed(own, home, at_home)
        return [self._listing(path, listed) for path in paths]

    async def _listed(self, servers: Sequence[Server], home: Bridge, at_home: "_AtHome") -> dict[str, Listed]:
        async def work() -> list[Listed]:
            return await asyncio.gather(*(server.listing() for server in servers))

        try:
            found = await at_home(home, work)
        except SkillsError as error:
            found = [Listed(server.known, failure=f"{server.label}: {error}") for server in servers]
        return {server.label: listed for server, listed in zip(servers, found, strict=True)}

    def _labels(self, path: str) -> list[str]:
        """Return the servers that a source names: one by its label, all by the root."""
        parts = _parts(path) or []
        return [label for label in self._servers if not parts or label == parts[0]]

    def _listing(self, path: str, listed: Mapping[str, Listed]) -> SkillListing | None:
        parts, labels = _parts(path), self._labels(path)
        if parts is None or not labels:
            return None
        below = "/".join(parts[1:])
        summaries: list[SkillSummary] = []
        problems: list[SkillProblem] = []
        failures = []
        for label in labels:
            found = listed[label]
            problems += found.problems
            # Without the skills it had: discovery keeps those of a source that failed.
            if found.failure is not None:
                failures.append(found.failure)
            else:
                summaries += [
                    _summary(name, skill)
                    for name, skill in found.names.items()
                    if not below or skill.path == below or skill.path.startswith(f"{below}/")
                ]
        return SkillListing(summaries, problems, "; ".join(failures) or None)

    def open_skill(self, path: str) -> OpenedSkill:
        """Read a `SKILL.md` for a load, and hold the skill's entry from now on."""
        return self._sync(functools.partial(self._opened, path))

    async def aopen_skill(self, path: str) -> OpenedSkill:
        """Read a `SKILL.md` for a load, and hold the skill's entry from now on."""
        return await self._async(functools.partial(self._opened, path))

    async def _opened(self, path: str, at_home: "_AtHome") -> OpenedSkill:
        server, parts = self._located(path)
        if server is None or parts[-1:] != [SKILL_FILE]:
            return OpenedSkill(None, error="file_not_found")

        async def work() -> OpenedSkill:
            skill = await server.current("/".join(parts[:-1]))
            if skill is None:
                return OpenedSkill(None, error="file_not_found: the server no longer lists this skill")
            content = await server.read(skill, SKILL_FILE)
            # Only after the text was read and compared: from now on the held entry says which files exist.
            server.hold(skill)
            return OpenedSkill(content, skill.digest)

        try:
            return await at_home(server.connection.home, work)
        except SkillsError as error:
            return OpenedSkill(None, error=str(error))

    def skill_manifest(self, path: str) -> SkillManifest | None:
        """Return every file of the skill whose `SKILL.md` is at `path`, as its server describes it; reads none."""
        return self._sync(functools.partial(self._manifest, path))

    async def askill_manifest(self, path: str) -> SkillManifest | None:
        """Return every file of the skill whose `SKILL.md` is at `path`, as its server describes it; reads none."""
        return await self._async(functools.partial(self._manifest, path))

    async def _manifest(self, path: str, at_home: "_AtHome") -> SkillManifest | None:
        server, parts = self._located(path)
        if server is None or parts[-1:] != [SKILL_FILE]:
            return None
        skill = await at_home(server.connection.home, lambda: server.current("/".join(parts[:-1])))
        if skill is None:
            raise SkillsError("the server no longer lists this skill")
        files = {path: FileDigest(file.digest, file.size) for path, file in (skill.files or {}).items()}
        return SkillManifest(f"mcp:{skill.label} {skill.uri}", files, remembered=not skill.is_dynamic)

    # Files, for deepagents' tools.

    def ls(self, path: str) -> LsResult:
        """List what is directly in a directory."""
        return self._sync(functools.partial(self._ls, path))

    async def als(self, path: str) -> LsResult:
        """List what is directly in a directory."""
        return await self._async(functools.partial(self._ls, path))

    async def _ls(self, path: str, at_home: "_AtHome") -> LsResult:
        parts = _parts(path)
        if parts is None:
            return LsResult(error=f"Path '{path}': invalid_path")
        if not parts:
            return LsResult(entries=[FileInfo(path=f"/{label}/", is_dir=True) for label in sorted(self._servers)])
        server = self._servers.get(parts[0])
        if server is None:
            return LsResult(error=f"Path '{path}': path_not_found")
        failure = None
        # A server's own directory is listed again; below it, the known list is used.
        if len(parts) == 1 or not server.known:
            failure = (await self._listed([server], server.connection.home, at_home))[parts[0]].failure
        if failure is not None:
            return LsResult(error=f"Cannot list '{path}': {failure}")
        entries = _children(await self._files(server, at_home), path.rstrip("/"))
        if not entries and len(parts) > 1:
            return LsResult(error=f"Path '{path}': path_not_found")
        return LsResult(entries=entries)

    async def _files(self, server: Server, at_home: "_AtHome") -> dict[str, int | None]:
        """Return a server's known files with their sizes; for loaded skills, as they were loaded."""
        skills = {skill.path: skill for skill in server.known.values()}
        for load in loads_of_run() or ():
            if load["origin"]["label"] == server.label:
                held = await at_home(server.connection.home, functools.partial(server.held, *_known_by(load)))
                if held is not None:
                    skills[held.path] = held
        return {
            f"/{server.label}/{skill.path}/{path}": size
            for skill in skills.values()
            for path, size in _sizes(skill).items()
        }

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the content of each file, or the reason why there is none."""
        return self._sync(functools.partial(self._downloads, paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return the content of each file, or the reason why there is none."""
        return await self._async(functools.partial(self._downloads, paths))

    async def _downloads(self, paths: Sequence[str], at_home: "_AtHome") -> list[FileDownloadResponse]:
        replies = []
        for path in paths:
            content = await self._content(path, at_home)
            if isinstance(content, bytes):
                replies.append(FileDownloadResponse(path=path, content=content))
            else:
                replies.append(FileDownloadResponse(path=path, error=content))
        return replies

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return the lines of a text file, or a whole binary file in base64."""
        return self._sync(functools.partial(self._read, file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return the lines of a text file, or a whole binary file in base64."""
        return await self._async(functools.partial(self._read, file_path, offset, limit))

    async def _read(self, path: str, offset: int, limit: int, at_home: "_AtHome") -> ReadResult:
        content = await self._content(path, at_home)
        if isinstance(content, str):
            return ReadResult(error=f"Cannot read '{path}': {content}")
        data = _file_data(content)
        return ReadResult(file_data=data) if data["encoding"] == "base64" else slice_read_response(data, offset, limit)

    async def _content(self, path: str, at_home: "_AtHome") -> bytes | str:
        """Return the content of a file, or why it cannot be read."""
        server, parts = self._located(path)
        if server is None:
            return "file_not_found"
        inside = "/".join(parts)
        loads = loads_of_run()

        async def work() -> bytes | str:
            if loads is None:
                skill = await _holder(server, inside)
                return (
                    await server.read(skill, inside[len(skill.path) + 1 :]) if skill is not None else "file_not_found"
                )
            for load in loads:
                held = await server.held(*_known_by(load)) if load["origin"]["label"] == server.label else None
                if held is not None and inside.startswith(f"{held.path}/"):
                    below = inside[len(held.path) + 1 :]
                    # Only files in the entry held since the load, whatever the server lists by now.
                    if held.is_dynamic or held.file_uri(below) is not None:
                        return await server.read(held, below)
                    return _NOT_LISTED.format(path=path)
            skill = await _holder(server, inside)
            return _NOT_LOADED.format(name=f"{server.label}:{skill.name}") if skill is not None else "file_not_found"

        try:
            return await at_home(server.connection.home, work)
        except SkillsError as error:
            return str(error)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, relative to `path`."""
        return self._sync(functools.partial(self._glob, pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by a pattern, relative to `path`."""
        return await self._async(functools.partial(self._glob, pattern, path))

    async def _glob(self, pattern: str, path: str | None, at_home: "_AtHome") -> GlobResult:
        try:
            is_match = compile_grep_include_glob(pattern)
        except InvalidGlobPatternError as error:
            return GlobResult(error=str(error))
        root = _rooted(path)
        found = [
            FileInfo(path=file, is_dir=False) if size is None else FileInfo(path=file, is_dir=False, size=size)
            for server in self._below(root)
            for file, size in sorted((await self._files(server, at_home)).items())
            if file.startswith(f"{root}/") and is_match(file[len(root) + 1 :])
        ]
        return GlobResult(matches=found)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search the text files of loaded skills for a literal text."""
        return self._sync(functools.partial(self._grep, pattern, path, glob, max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Search the text files of loaded skills for a literal text."""
        return await self._async(functools.partial(self._grep, pattern, path, glob, max_count))

    async def _grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None, at_home: "_AtHome"
    ) -> GrepResult:
        try:
            is_match = compile_grep_include_glob(glob) if glob else None
        except InvalidGlobPatternError as error:
            return GrepResult(error=str(error))
        root = _rooted(path)
        files: dict[str, FileData] = {}
        for load in loads_of_run() or ():
            # Only loaded skills: a search must not fetch a server's whole library.
            server = self._servers.get(load["origin"]["label"])
            if server is None or server not in self._below(root):
                continue
            try:
                held = await at_home(server.connection.home, functools.partial(server.held, *_known_by(load)))
            except SkillsError as error:
                return GrepResult(error=str(error))
            for below in sorted(_sizes(held)) if held is not None else ():
                file = f"/{server.label}/{held.path}/{below}"  # type: ignore[union-attr]
                is_inside = file == root or file.startswith(f"{root}/")
                if is_inside and (is_match is None or is_match(file[len(root) + 1 :])):
                    content = await self._content(file, at_home)
                    if isinstance(content, str):
                        return GrepResult(error=f"Cannot search '{file}': {content}")
                    files[file] = _file_data(content)
        return grep_matches_from_files(files, pattern, "/", max_count=max_count)

    def _below(self, root: str) -> list[Server]:
        """Return the servers whose files may be below a directory."""
        label = root.strip("/").partition("/")[0]
        return [server for own, server in self._servers.items() if label in {"", own}]

    # One logic for sync and async callers: only the hop to a server's home differs.

    def _sync(self, work: "Callable[[_AtHome], Coroutine[Any, Any, ResultT]]") -> ResultT:
        return _driven(work(_blocking))

    async def _async(self, work: "Callable[[_AtHome], Coroutine[Any, Any, ResultT]]") -> ResultT:
        return await work(_awaiting)

    def _located(self, path: str) -> tuple[Server | None, list[str]]:
        """Return the server that a path is in, and the rest of the path."""
        parts = _parts(path)
        if not parts or parts[0] not in self._servers:
            return None, []
        return self._servers[parts[0]], parts[1:]


class _AtHome(Protocol):
    """Runs work on a connection's loop, sync or async as the caller is."""

    async def __call__(self, home: Bridge, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT: ...


async def _blocking(home: Bridge, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Block until the work is done; a coroutine that only awaits this never suspends."""
    return home.run(work)


async def _awaiting(home: Bridge, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    return await home.arun(work)


def _driven(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of a coroutine that never suspends."""
    try:
        # The sync hop blocks inside the coroutine, so it runs to its end in one step and needs no event loop.
        work.send(None)
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    work.close()
    raise RuntimeError("a sync call suspended")


def _known_by(load: LoadRecord) -> tuple[str, str]:
    return load["digest"], load["origin"]["uri"]


async def _holder(server: Server, inside: str) -> ServedSkill | None:
    """Return the skill that a path below a label is in, as it is known now; the innermost one with the file."""
    if not server.known:
        await server.listing()
    parts = inside.split("/")
    # The longest path first: a skill may be inside another's directory.
    for length in range(len(parts) - 1, 0, -1):
        skill = server.known.get("/".join(parts[:length]))
        if skill is not None and (skill.is_dynamic or skill.file_uri("/".join(parts[length:])) is not None):
            return skill
    return None


def _summary(name: str, skill: ServedSkill) -> SkillSummary:
    origin = SkillOrigin(label=skill.label, uri=skill.uri, via=VIA, dynamic=skill.is_dynamic)
    return SkillSummary(f"/{skill.label}/{skill.path}/{SKILL_FILE}", skill.digest, skill.front, name, origin)


def _sizes(skill: ServedSkill) -> dict[str, int | None]:
    if skill.files is None:
        return {SKILL_FILE: None}
    return {path: file.size for path, file in skill.files.items()}


def _parts(path: str) -> list[str] | None:
    """Return the parts of a path, or `None` if it is not one."""
    if not isinstance(path, str) or "\x00" in path:
        return None
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return None if ".." in parts else parts


def _rooted(path: str | None) -> str:
    return "".join(f"/{part}" for part in _parts(path or "/") or ())


def _children(files: Mapping[str, int | None], directory: str) -> list[FileInfo]:
    """Return what is directly in a directory."""
    root = _rooted(directory)
    found: dict[str, FileInfo] = {}
    for file, size in files.items():
        if file.startswith(f"{root}/"):
            name, slash, _rest = file[len(root) + 1 :].partition("/")
            path = f"{root}/{name}"
            if slash:
                found[path] = FileInfo(path=f"{path}/", is_dir=True)
            else:
                info = FileInfo(path=path, is_dir=False)
                found.setdefault(path, info if size is None else FileInfo(path=path, is_dir=False, size=size))
    return [found[path] for path in sorted(found)]


def _file_data(content: bytes) -> FileData:
    """Return a file as deepagents expects it: text as it is, anything else in base64."""
    try:
        return FileData(content=content.decode(), encoding="utf-8")
    except UnicodeDecodeError:
        return FileData(content=base64.b64encode(content).decode(), encoding="base64")
