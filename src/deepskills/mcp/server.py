"""`SkillsExtension`: serves the skills of a backend or a directory over MCP; needs `mcp` 2.x.

A skill is served at `skill://skills/<name>/SKILL.md`, with its other files below that directory. Entries are built on
request, from the files as they are then, one page at a time: nothing of a skill is kept between requests, so ten
thousand skills take no more memory than their names. Only the list of skills is remembered, for as long as clients may
cache an answer.

The SDK leaves two gaps. An extension cannot bind `resources/read`, which is the server's own; and the answer to
`initialize` does not name extensions. Both are filled by a middleware.
"""

import asyncio
import base64
import binascii
import hashlib
import importlib.metadata
import inspect
import json
import logging
import mimetypes
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from deepagents.backends import BackendProtocol, FilesystemBackend

from deepskills import SkillsMiddleware
from deepskills._catalog.catalog import Catalogs, Readings, SkillEntry
from deepskills._catalog.discovery import discover, read_from
from deepskills._errors import SkillFileNotFoundError, SkillPathError, SkillsError
from deepskills._files.assets import list_assets, read_asset_bytes
from deepskills._io.backends import is_backend
from deepskills._io.cache import BoundedCache
from deepskills._io.drivers import adrive
from deepskills._io.plan import Plan, ResultT, read_files
from deepskills._providers.ask import Caller
from deepskills._providers.directory import DirectoryProvider
from deepskills._providers.sources import SkillSource, Source, parse_sources
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE
from deepskills.mcp.entries import MAX_BYTES, MAX_FILES, json_frontmatter
from deepskills.mcp.wire import EXTENSION, INVALID_PARAMS, IS_FIRST_MAJOR

if IS_FIRST_MAJOR:
    raise ImportError("SkillsExtension needs mcp 2.x: pip install 'mcp>=2'")

from mcp.server.extension import Extension, MethodBinding
from mcp_types import RequestParams
from pydantic import ConfigDict, Field

from mcp import MCPError

logger = logging.getLogger("deepskills")

SCHEME = "skill://"
ROOT = f"{SCHEME}skills"
"""The URI below which all skills are served."""

PAGE_SIZE = 50
"""How many entries a page of `skills/list` has."""

CHILDREN_PAGE_SIZE = 500
"""How many children a page of `resources/directory/read` has."""

TTL_MS = 5_000
"""How long clients may cache an answer, in milliseconds."""

PATIENCE = 10
"""A discovery is reused for this many times as long as it took, if that is longer than `TTL_MS`."""

MAX_LISTED_BYTES = 16_000_000
"""How much memory the paths take that may be read."""

MAX_TOLD = 10_000
"""How many logged problems are remembered."""

INTERNAL_ERROR = -32603
DIRECTORY_TYPE = "inode/directory"
_RESOURCES = "skills:"
"""How the cursors begin by which a list of resources goes on with skills."""

BackendOfRequest = Callable[[Any], BackendProtocol | Awaitable[BackendProtocol]]
"""Returns the backend of a request from its context, for skills per user."""

SourcesOfRequest = Callable[[Any], Sequence[SkillSource] | Awaitable[Sequence[SkillSource]]]
"""Returns the sources of a request from its context."""


Reader = Callable[[SkillEntry, str], Awaitable[bytes]]
"""Reads a file of a skill."""


class _ListParams(RequestParams):  # type: ignore[misc]
    cursor: str | None = None


class _UriParams(RequestParams):  # type: ignore[misc]
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    uri: str = Field(max_length=4096)
    cursor: str | None = None


class SkillsExtension(Extension):  # type: ignore[misc]
    """Serves skills over MCP, to hosts that speak the extension `io.modelcontextprotocol/skills`.

    `SkillsExtension(...).server()` is a ready `MCPServer`. For your own server, pass both parts:
    `MCPServer("mine", extensions=[it], middleware=[it.middleware])`. Hidden files, and links that lead out of a skill,
    are not served.

    Args:
        backend: Where the skills are: a backend, a local directory, or a function of the request's context that returns
            a backend, for skills per user. Or a `SkillsMiddleware` such as the store's `DatabaseSkillAdapter`, whose
            backend and sources are used, with the request's context in place of a runtime.
        sources: Backend paths that hold skill directories, or a function of the request's context that returns them.
        max_depth: How many levels below a source skills may lie.

    Raises:
        TypeError: If `backend` is not one of these, or a source is not a path.
        ValueError: If a directory does not exist.
    """

    identifier: ClassVar[str] = EXTENSION

    def __init__(
        self,
        backend: BackendProtocol | BackendOfRequest | SkillsMiddleware[Any, Any] | str | Path,
        sources: Sequence[SkillSource] | SourcesOfRequest = ("/",),
        *,
        max_depth: int = 1,
    ) -> None:
        self._middleware = backend if isinstance(backend, SkillsMiddleware) else None
        self._backend: Any = backend
        # A function is called at each request.
        self._sources: Any = sources
        judged = False
        if isinstance(backend, SkillsMiddleware):
            settings = backend._settings  # noqa: SLF001 - of this package
            self._backend, self._sources = settings.fixed_backend or settings.backend, settings.sources
            judged = settings.has_judges
        elif not callable(sources):
            self._sources = parse_sources(sources)
        if isinstance(backend, str | Path):
            directory = Path(backend).expanduser().absolute()
            if not directory.is_dir():
                raise ValueError(f"There is no directory {str(directory)!r} to serve skills from.")
            self._backend = FilesystemBackend(root_dir=directory, virtual_mode=True)
        if not is_backend(self._backend) and not callable(self._backend):
            raise TypeError(f"backend must be a backend, a directory or a function of the context, got {backend!r}")
        # Who judges visibility may answer each request in another way; a provider may give each user other skills.
        given = self._sources
        varies = judged or callable(given) or any(source.provider is not None for source in given)
        self._is_fixed = is_backend(self._backend) and not varies
        self._directories = DirectoryProvider(max_depth)
        self._readings = Readings()
        self._known: _Shelf | None = None
        self._looking: asyncio.Lock | None = None
        self._told: BoundedCache[tuple[str, str], bool] = BoundedCache(MAX_TOLD)

    def settings(self) -> dict[str, Any]:
        """Return the extension's declared settings."""
        return {"directoryRead": True}

    def methods(self) -> Sequence[MethodBinding]:
        """Return the requests that the extension answers."""
        return (
            MethodBinding("skills/list", _ListParams, self._guard(self._list)),
            MethodBinding("skills/get", _UriParams, self._guard(self._get)),
            MethodBinding("resources/directory/read", _UriParams, self._guard(self._read_directory)),
        )

    async def middleware(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401 - the SDK's
        """Answer `resources/read` for files of skills, and declare the extension to clients that `initialize`."""
        if ctx.method == "resources/read" and ctx.request_id is not None:
            uri = (ctx.params or {}).get("uri")
            if isinstance(uri, str) and (uri == ROOT or uri.startswith(f"{ROOT}/")):
                return await self._guard(self._read)(ctx, _UriParams(uri=uri[:4096]))
        if ctx.method == "resources/list" and ctx.request_id is not None:
            return await self._list_resources(ctx, call_next)
        result = await call_next(ctx)
        if ctx.method == "initialize" and isinstance(result, dict):
            capabilities = dict(result.get("capabilities") or {})
            capabilities["extensions"] = {**(capabilities.get("extensions") or {}), EXTENSION: self.settings()}
            result = {**result, "capabilities": capabilities}
        return result

    async def _list_resources(self, ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401 - the SDK's
        """List each `SKILL.md` after the server's own resources."""
        cursor = (ctx.params or {}).get("cursor")
        if isinstance(cursor, str) and cursor.startswith(_RESOURCES):
            return await self._guard(self._skill_resources)(ctx, _ListParams(cursor=cursor.removeprefix(_RESOURCES)))
        result = await call_next(ctx)
        if not isinstance(result, dict) or result.get("nextCursor") is not None:
            return result
        found = await self._guard(self._skill_resources)(ctx, _ListParams(cursor=None))
        own = {key: value for key, value in found.items() if key == "nextCursor"}
        return {**result, **own, "resources": [*(result.get("resources") or ()), *found["resources"]]}

    async def _skill_resources(self, ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
        found = await self._list(ctx, params)
        resources = [
            {
                "uri": entry["uri"],
                "name": entry["frontmatter"]["name"],
                "description": entry["frontmatter"]["description"],
                "mimeType": "text/markdown",
            }
            for entry in found["skills"]
        ]
        following = found.get("nextCursor")
        return {"resources": resources, **({"nextCursor": f"{_RESOURCES}{following}"} if following else {})}

    def server(self, name: str = "deepskills", **options: Any) -> Any:  # noqa: ANN401 - an MCPServer and its options
        """Return an `MCPServer` that serves the skills and nothing else; `options` are the SDK's."""
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - heavy, and only for who wants it

        given = {"version": importlib.metadata.version("deepskills"), **options}
        return MCPServer(name, extensions=[self], middleware=[self.middleware], **given)

    def _guard(self, answer: Callable[[Any, Any], Awaitable[dict[str, Any]]]) -> Any:  # noqa: ANN401 - a handler
        """Answer every failure with an error that the protocol knows; details stay in the log."""

        async def handler(ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
            try:
                found = await answer(ctx, params)
            except MCPError:
                raise
            except Exception:
                logger.exception("The request %s failed", ctx.method)
                raise MCPError(INTERNAL_ERROR, "The skills could not be read.") from None
            # What one user may see must not be cached for another.
            scope = "public" if self._is_fixed else "private"
            return {"resultType": "complete", **found, "ttlMs": TTL_MS, "cacheScope": scope}

        return handler

    # Requests.

    async def _list(self, ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
        view = await self._shelf(ctx)
        page, following = _cut_page(view.names, params.cursor, PAGE_SIZE)
        # One after the other: each entry reads all files of its skill.
        entries = [await view.entry(name) for name in page]
        return {"skills": [entry for entry in entries if entry is not None], **following}

    async def _get(self, ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
        view = await self._shelf(ctx)
        name, path = _locate(params.uri)
        entry = await view.entry(name) if path == SKILL_FILE and name in view.entries else None
        if entry is None:
            raise _unknown(params.uri)
        return {"skill": entry}

    async def _read(self, ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
        view = await self._shelf(ctx)
        name, path = _locate(params.uri)
        # What no entry names is not readable, whatever lies there.
        is_listed = name in view.entries and path in await view.list_paths(name)
        content = await view.content(name, path) if is_listed else None
        if content is None:
            raise _unknown(params.uri)
        kind = mimetypes.guess_type(path)[0] or ("text/markdown" if path.endswith(".md") else None)
        try:
            text = {"text": content.decode(), "mimeType": kind or "text/plain"}
        except UnicodeDecodeError:
            text = {"blob": base64.b64encode(content).decode(), "mimeType": kind or "application/octet-stream"}
        return {"contents": [{"uri": params.uri, **text}]}

    async def _read_directory(self, ctx: Any, params: Any) -> dict[str, Any]:  # noqa: ANN401 - the SDK's
        view = await self._shelf(ctx)
        uri = params.uri.rstrip("/")
        if uri == ROOT:
            children = {name: True for name in view.names if await view.list_paths(name)}
        else:
            name, path = _locate(uri)
            files = await view.list_paths(name) if name in view.entries else frozenset[str]()
            children = _children(dict.fromkeys(files), path)
        if not children:
            raise MCPError(INVALID_PARAMS, "This is not a directory.", {"uri": params.uri})
        page, following = _cut_page(sorted(children), params.cursor, CHILDREN_PAGE_SIZE)
        return {"resources": [_child(uri, name, is_directory=children[name]) for name in page], **following}

    # Skills.

    async def _shelf(self, ctx: Any) -> "_Shelf":  # noqa: ANN401 - the SDK's
        """Return the skills for a request; those that are the same for everybody are remembered for a moment."""
        if not self._is_fixed:
            return await self._look(ctx)
        self._looking = self._looking or asyncio.Lock()
        async with self._looking:
            if self._known is None or time.monotonic() >= self._known.expires:
                self._known = await self._look(ctx)
            return self._known

    async def _look(self, ctx: Any) -> "_Shelf":  # noqa: ANN401 - the SDK's
        backend = await _give(self._backend, ctx) if not is_backend(self._backend) else self._backend
        if not is_backend(backend):
            raise SkillsError(f"the backend function returned a {type(backend).__name__}, not a backend")
        sources = parse_sources(await _give(self._sources, ctx)) if callable(self._sources) else self._sources
        caller = Caller(lambda: ctx)
        readings, catalogs = self._readings, Catalogs()
        plan = discover(sources, directories=self._directories, readings=readings, catalogs=catalogs, caller=caller)
        started = time.monotonic()
        found = await adrive(plan, lambda: backend, None, backend)
        now = time.monotonic()
        for problem in found.problems:
            # Every discovery finds the same problems; each is logged once.
            if self._told.get(key := (problem["path"], problem["message"])) is None:
                self._told.put(key, value=True)
                logger.warning("%s: %s: %s", one_line(problem["path"]), problem["code"], one_line(problem["message"]))
        visible: Sequence[SkillEntry] = found.catalog.entries
        read: Reader | None = None
        if self._middleware is not None:
            visible, read = await self._middleware._list_shown(backend, sources, found, ctx)  # noqa: SLF001 - of this package
        unfit = {problem["path"]: problem["code"] for problem in found.problems if _is_unfit(problem["code"])}
        entries = {}
        for entry in visible:
            if entry.path in unfit:
                self._report(entry.name, f"its file has to be repaired first ({unfit[entry.path]})")
            elif _is_servable(entry):
                entries[entry.name] = entry
        # A library that takes long to read is not read again for every few pages.
        expires = now + max(TTL_MS / 1000, PATIENCE * (now - started))
        return _Shelf(backend, sources, caller, entries, expires, self._report, read)

    def _report(self, name: str, reason: str) -> None:
        """Log once why a skill is not served."""
        if self._told.get((name, reason)) is None:
            self._told.put((name, reason), value=True)
            logger.warning("The skill %r is not served: %s", name, one_line(reason))


_REPAIRED = frozenset(
    {"encoding-utf16", "line-ends-cr", "text-before-frontmatter", "file-in-fence", "fence-glued", "control-characters"}
)


def _is_unfit(code: str) -> bool:
    """Whether a file with such a problem is read here after a repair, which other readers may not make."""
    # Whether YAML is read the same everywhere is decided where its values are.
    return code in _REPAIRED or code.startswith("name-")


async def _give(function: Any, ctx: Any) -> Any:  # noqa: ANN401 - whatever a user's function gives
    """Call a user's function: an async one here, a sync one in a thread, because it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(ctx)
    found = await asyncio.to_thread(function, ctx)
    return await found if inspect.isawaitable(found) else found


def _is_servable(entry: SkillEntry) -> bool:
    """Whether a skill can be served: its name can be part of a URI, and it does not come from another server."""
    name = entry.name
    return entry.origin is None and name not in {".", ".."} and not any(mark in name for mark in "/\\%")


@dataclass(frozen=True)
class _Shelf:
    """The skills for a request."""

    backend: Any
    sources: Sequence[Source]
    caller: Caller
    """The request, for providers."""

    entries: Mapping[str, SkillEntry]
    expires: float
    report: Callable[[str, str], None]
    """Says why a skill is not served."""

    read: "Reader | None"
    """Reads a file as the extensions of a middleware judge it, where the skills are those of one."""

    _listed: BoundedCache[str, frozenset[str]] = field(
        init=False, default_factory=lambda: BoundedCache(MAX_LISTED_BYTES, lambda paths: 200 + sum(map(len, paths)))
    )

    @cached_property
    def names(self) -> list[str]:
        """The names of the skills, in order."""
        return sorted(self.entries)

    async def list_paths(self, name: str) -> frozenset[str]:
        """Return the paths that a skill's entry names; none if it has no entry."""
        known = self._listed.get(name)
        if known is None:
            entry = await self.entry(name)
            root = _uri(name, "")
            uris = [item["uri"] for item in entry["resources"]] if entry is not None else []
            known = frozenset(unquote(uri.removeprefix(root)) for uri in uris)
            self._listed.put(name, known)
        return known

    async def entry(self, name: str) -> dict[str, Any] | None:
        """Return the entry of a skill, built from its files as they are now; `None` if it cannot be served."""
        files = await self.files(name)
        if files is None:
            return None
        content = files[SKILL_FILE]
        frontmatter = json_frontmatter(content)
        if frontmatter is None:
            self.report(name, "its frontmatter means different things to different readers of YAML")
            return None
        # Hosts refuse an entry whose name is not the last directory in its URI.
        if frontmatter.get("name") != name or not isinstance(frontmatter.get("description"), str):
            self.report(name, "its file has another name, or no description")
            return None
        resources = [
            {
                "uri": _uri(name, path),
                "digest": f"sha256:{hashlib.sha256(files[path]).hexdigest()}",
                "size": len(files[path]),
            }
            for path in sorted(files)
        ]
        return {"uri": _uri(name, SKILL_FILE), "frontmatter": frontmatter, "resources": resources}

    async def files(self, name: str) -> dict[str, bytes] | None:
        """Return a skill's files with their content; `None` if they are too many, too large or unreadable."""
        entry = self.entries[name]
        own = await self.content(name, SKILL_FILE)
        if own is None:
            return None
        try:
            assets = await self._driven(entry, list_assets(entry.skill, "all"))
            paths = [path for path in assets.paths if _is_shown(path)]
            # `SKILL.md` is one of them. If there is a note, the list is incomplete, and an entry must name every file.
            if assets.notes or len(paths) >= MAX_FILES:
                reason = assets.notes[0] if assets.notes else f"it has more than {MAX_FILES} files"
                self.report(name, reason)
                return None
            files, size = {SKILL_FILE: own}, len(own)
            for path in paths:
                files[path] = await self._read(entry, path)
                size += len(files[path])
                if size > MAX_BYTES:
                    self.report(name, f"its files are larger than {MAX_BYTES} bytes")
                    return None
        except SkillsError as error:
            self.report(name, str(error))
            return None
        return files

    async def content(self, name: str, path: str) -> bytes | None:
        """Return the content of a skill's file; `None` if it does not exist or is not served."""
        entry = self.entries[name]
        if path == SKILL_FILE:
            return (await self._driven(entry, read_files([entry.path])))[entry.path].content
        if not _is_shown(path):
            return None
        try:
            return await self._read(entry, path)
        except (SkillPathError, SkillFileNotFoundError):
            return None

    async def _read(self, entry: SkillEntry, path: str) -> bytes:
        if self.read is not None:
            return await self.read(entry, path)
        return await self._driven(entry, read_asset_bytes(entry.skill, path, "all"))

    async def _driven(self, entry: SkillEntry, plan: Plan[ResultT]) -> ResultT:
        return await adrive(read_from(self.sources, entry, plan, self.caller), lambda: self.backend, None, self.backend)


def _is_shown(path: str) -> bool:
    return not any(part.startswith(".") for part in path.split("/"))


# URIs and cursors.


def _uri(name: str, path: str) -> str:
    return f"{ROOT}/{quote(name, safe='')}/{quote(path)}"


def _locate(uri: str) -> tuple[str, str]:
    """Return the name of the skill that a URI is in, and the path inside it; two empty texts if the URI is not ours."""
    if not uri.startswith(f"{ROOT}/"):
        return "", ""
    name, _, path = uri.removeprefix(f"{ROOT}/").partition("/")
    decoded = unquote(name), unquote(path)
    # One file has one URI: another spelling that decodes to the same path is an unknown URI.
    return decoded if uri.rstrip("/") == _uri(*decoded).rstrip("/") else ("", "")


def _unknown(uri: str) -> MCPError:
    return MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})


def _cut_page(names: Sequence[str], cursor: str | None, size: int) -> tuple[Sequence[str], dict[str, str]]:
    """Return one page of sorted names, and the part of an answer that says where the next one starts.

    Raises:
        MCPError: If the cursor, the last name of the page before, is not one of ours.
    """
    start = 0
    if cursor is not None:
        try:
            last = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        except (binascii.Error, ValueError):
            last = None
        if not isinstance(last, str):
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        start = bisect_right(names, last)
    page = names[start : start + size]
    if start + size >= len(names):
        return page, {}
    return page, {"nextCursor": base64.urlsafe_b64encode(json.dumps(page[-1]).encode()).decode()}


def _children(files: Mapping[str, object], path: str) -> dict[str, bool]:
    """Return what is directly in a directory of a skill, and whether each is a directory."""
    root = f"{path}/" if path else ""
    found: dict[str, bool] = {}
    for file in files:
        if file.startswith(root):
            name, slash, _rest = file[len(root) :].partition("/")
            found[name] = bool(slash)
    return found


def _child(parent: str, name: str, *, is_directory: bool) -> dict[str, Any]:
    uri = f"{parent}/{quote(name, safe='' if parent == ROOT else '/')}"
    if is_directory:
        return {"uri": uri, "name": name, "mimeType": DIRECTORY_TYPE}
    kind = mimetypes.guess_type(name)[0] or ("text/markdown" if name.endswith(".md") else None)
    return {"uri": uri, "name": name, **({"mimeType": kind} if kind else {})}
