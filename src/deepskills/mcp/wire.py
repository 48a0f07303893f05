"""Speaks to one MCP server: requests of the skills extension on both majors of the `mcp` package.

`mcp` 1.x knows neither `server/discover` nor extensions, 2.x knows both; neither knows the skills extension. So every
request here is a raw one, and its result a plain mapping: what a server sends is judged in `listing`, not by a model.
Raw requests have a second reason: 1.x rewrites URIs that pass through its own types, and a rewritten URI is another
file.
"""

import asyncio
import base64
import binascii
import importlib
import importlib.metadata
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict

import mcp
from deepskills._errors import SkillsError
from deepskills._skillmd.text import one_line

EXTENSION = "io.modelcontextprotocol/skills"
"""The extension's identifier among the capabilities of clients and servers."""

PROTOCOL_VERSION = "2026-07-28"
"""The protocol revision that a 1.x client names when it asks a server what it can do."""

LOST_CODES = frozenset({-32000, 32600})
"""Error codes by which the SDKs report that the connection or its session ended; no server's answer to a request."""

INVALID_PARAMS = -32602
"""The error code for an unknown URI."""

NEWER_ONLY = -32022
"""The error code of a server that does not speak, or no longer speaks, the revision that was asked for."""

PROBE_SECONDS = 10.0
"""How long a 1.x client waits for an answer to `server/discover`; old servers may ignore what they do not know."""

IS_FIRST_MAJOR = int(importlib.metadata.version("mcp").partition(".")[0]) < 2  # noqa: PLR2004 - the second major
"""Whether the installed `mcp` package is of the first major."""

_META = "io.modelcontextprotocol/"
_HIDDEN = "***"
_SHORTEST_SECRET = 6
_MAX_REASON = 400


class ServerError(SkillsError):
    """A server refused a request, or gave an answer that cannot be used."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLostError(SkillsError):
    """A connection could not be opened, ended, or gave no answer in time."""


class _Answer(BaseModel):
    """Any result, as it came."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Peer:
    """A session that is ready for requests, and what its server declared."""

    session: Any
    extensions: Mapping[str, Any] | None
    """The extensions that the server declared; `None` if it declared none, or the client cannot know."""

    meta: Mapping[str, Any] = field(default_factory=dict)
    """What every request has to carry; a 2.x session adds it itself."""

    @property
    def serves_skills(self) -> bool:
        """Whether the server declared the skills extension."""
        return self.extensions is not None and isinstance(self.extensions.get(EXTENSION), Mapping)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result as it came."""
        given = {**params, "_meta": dict(self.meta)} if self.meta else dict(params)
        answer = await self.session.send_request(_request(method, given), _Answer)
        return dict(answer.model_extra or {})


def _request(method: str, params: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of either major
    if IS_FIRST_MAJOR:
        return mcp.types.Request[dict[str, Any], str](method=method, params=dict(params))
    from mcp_types import Request  # noqa: PLC0415 - 1.x has no such package

    return Request[dict[str, Any], str](method=method, params=dict(params))


def borrowed(session: Any) -> Peer:  # noqa: ANN401 - a ClientSession of either major
    """Return a session that a caller opened.

    Raises:
        ConnectionLostError: If it was neither initialized nor discovered.
    """
    capabilities = session.get_server_capabilities() if IS_FIRST_MAJOR else session.server_capabilities
    if capabilities is None:
        raise ConnectionLostError("the session is not ready: call `await session.initialize()` before it is used")
    return Peer(session, _extensions(capabilities))


def _extensions(capabilities: Any) -> Mapping[str, Any] | None:  # noqa: ANN401 - a model of either major
    declared = getattr(capabilities, "extensions", None)
    if declared is None:
        declared = (capabilities.model_extra or {}).get("extensions")
    return declared if isinstance(declared, Mapping) else None


@asynccontextmanager
async def opened(spec: "Spec") -> AsyncIterator[Peer]:
    """Open a connection, agree on a protocol revision, and close it at the end: discovery first, else `initialize`."""
    async with spec.streams() as (read, write), _session(read, write) as session:
        yield await (_first_major(session, spec) if IS_FIRST_MAJOR else _second_major(session))


def _session(read: Any, write: Any) -> Any:  # noqa: ANN401 - streams and session of either major
    if IS_FIRST_MAJOR:
        return mcp.ClientSession(read, write)
    return mcp.ClientSession(read, write, extensions={EXTENSION: {}})


async def _second_major(session: Any) -> Peer:  # noqa: ANN401 - a 2.x ClientSession
    try:
        await session.discover()
    except (mcp.MCPError, RuntimeError, ValueError) as error:
        # Whatever an older server makes of an unknown request, it may still know the older way in.
        if code_of(error) in LOST_CODES:
            raise
        try:
            await session.initialize()
        except mcp.MCPError as refusal:
            # The server was slow to start: it has read the first question by now, and will have no other way in.
            if code_of(refusal) != NEWER_ONLY:
                raise
            await session.discover()
    return Peer(session, _extensions(session.server_capabilities))


async def _first_major(session: Any, spec: "Spec") -> Peer:  # noqa: ANN401 - a 1.x ClientSession
    # Over HTTP the newer revision wants headers that 1.x does not send; on pipes the request itself is all there is.
    if spec.transport == "stdio":
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                found = await _discovered(session)
        except (mcp.McpError, TimeoutError, ValueError) as error:
            if code_of(error) in LOST_CODES:
                raise
            found = None
        if found is not None:
            return found
    try:
        result = await session.initialize()
    except mcp.McpError as refusal:
        # The server was slow to start: it has read the first question by now, and will have no other way in.
        found = await _discovered(session) if code_of(refusal) == NEWER_ONLY else None
        if found is None:
            raise
        return found
    return Peer(session, _extensions(result.capabilities))


async def _discovered(session: Any) -> Peer | None:  # noqa: ANN401 - a 1.x ClientSession
    """Ask a server by hand what it can do; `None` if it does not speak the newer revision."""
    meta = _first_major_meta()
    answer = await Peer(session, None, meta).request("server/discover", {})
    versions, capabilities = answer.get("supportedVersions"), answer.get("capabilities")
    if not isinstance(versions, list) or PROTOCOL_VERSION not in versions or not isinstance(capabilities, Mapping):
        return None
    declared = capabilities.get("extensions")
    return Peer(session, declared if isinstance(declared, Mapping) else None, meta)


def _first_major_meta() -> dict[str, Any]:
    version = importlib.metadata.version("deepskills")
    return {
        f"{_META}protocolVersion": PROTOCOL_VERSION,
        f"{_META}clientInfo": {"name": "deepskills", "version": version},
        f"{_META}clientCapabilities": {"extensions": {EXTENSION: {}}},
    }


def code_of(error: BaseException) -> int | None:
    """Return the JSON-RPC code of an error of either major."""
    code = getattr(getattr(error, "error", None), "code", None)
    return code if isinstance(code, int) else None


# Connections as mappings.


@dataclass(frozen=True)
class Spec:
    """How a connection is opened; what could be a secret in it never leaves by a message or a log."""

    transport: str
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, label: str, given: Mapping[str, Any]) -> "Spec":
        """Check a mapping as LangChain's MCP adapters take it.

        Raises:
            ValueError: If it cannot be a connection; the message names no value that may be secret.
        """
        # Messages name the connection and the key, never a value: any of them may be a secret.
        where = f"the connection {label!r}"
        transport = given.get("transport")
        if transport == "stdio":
            allowed = {"transport", "command", "args", "env", "cwd"}
            args, env = given.get("args", []), given.get("env")
            _check(isinstance(given.get("command"), str) and given["command"], f"{where} needs a 'command'")
            _check(
                isinstance(args, list | tuple) and all(isinstance(part, str) for part in args),
                f"the 'args' of {where} must be a list of texts",
            )
            _check(env is None or _is_text_mapping(env), f"the 'env' of {where} must map texts to texts")
        elif transport in {"streamable_http", "streamable-http", "http"}:
            allowed = {"transport", "url", "headers"}
            url, headers = given.get("url"), given.get("headers")
            _check(
                isinstance(url, str) and _is_http(url), f"{where} needs a 'url' that starts with http:// or https://"
            )
            _check(headers is None or _is_text_mapping(headers), f"the 'headers' of {where} must map texts to texts")
        else:
            raise ValueError(f"{where} needs a 'transport': 'stdio' or 'streamable_http'")
        unknown = sorted(str(key) for key in given.keys() - allowed)
        _check(not unknown, f"{where} has unknown keys: {', '.join(unknown)}; known are {', '.join(sorted(allowed))}")
        return cls("stdio" if transport == "stdio" else "streamable_http", dict(given))

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Open the transport and give the two ends of it."""
        if self.transport == "stdio":
            from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - as used

            options = {key: self.options.get(key) for key in ("command", "env", "cwd")}
            async with stdio_client(StdioServerParameters(args=list(self.options.get("args", ())), **options)) as ends:
                yield ends[0], ends[1]
            return
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - as used

        bare, query, auth = _taken_apart(self.options["url"])
        async with (
            _http_client(self.options.get("headers"), query, auth) as client,
            streamable_http_client(bare, http_client=client) as ends,
        ):
            yield ends[0], ends[1]

    def secrets(self) -> list[str]:
        """Return what must not stand in any message, longest first."""
        found: list[str] = []
        url = self.options.get("url")
        if isinstance(url, str):
            parts = urlsplit(url)
            found += [url, parts.query, parts.netloc.rpartition("@")[0]]
            found += [text for text in (parts.username, parts.password) if text]
            found += [unquote(text) for text in (parts.username, parts.password) if text]
            found += [pair.partition("=")[2] for pair in parts.query.split("&")]
        for value in (self.options.get("headers") or {}).values():
            found += [value, *value.split()]
        # Short values, such as `1`, would black out half of every message.
        found += [value for value in (self.options.get("env") or {}).values() if len(value) >= _SHORTEST_SECRET]
        # A short secret may be part of a long one, whose rest would stay readable.
        return sorted({text for text in found if text}, key=len, reverse=True)

    def without_secrets(self, text: str) -> str:
        """Return a text for messages and logs, with everything hidden that may be secret."""
        for secret in self.secrets():
            text = text.replace(secret, _HIDDEN)
        return one_line(text)[:_MAX_REASON]


def _check(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        return False


def _taken_apart(url: str) -> tuple[str, str, tuple[str, str] | None]:
    """Return a URL that may be logged, its query, and the user and password in it: HTTP clients log whole URLs."""
    parts = urlsplit(url)
    auth = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return bare, parts.query, auth


def _http_client(headers: Mapping[str, str] | None, query: str, auth: tuple[str, str] | None) -> Any:  # noqa: ANN401
    # Each major has an HTTP client of its own.
    httpx: Any = importlib.import_module("httpx" if IS_FIRST_MAJOR else "httpx2")

    class WithQuery(httpx.AsyncHTTPTransport):  # type: ignore[misc]
        """Adds the query below the place where the client logs a URL."""

        async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - of either major
            # A new request, because the client logs its own once more when the answer is there.
            url = request.url.copy_with(query=query.encode())
            further = {"headers": request.headers, "stream": request.stream, "extensions": request.extensions}
            return await super().handle_async_request(httpx.Request(request.method, url, **further))

    further = {"transport": WithQuery()} if query else {}
    # What a caller waits is limited in `connections`; these end what nobody waits for any more.
    timeout = httpx.Timeout(30.0, read=300.0)
    return httpx.AsyncClient(headers=dict(headers or {}), auth=auth, timeout=timeout, **further)


# What a failure says.


def reason_of(error: BaseException) -> str:
    """Return why something failed; of errors that tasks raised together, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, SkillsError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return f"the command {error.filename!r} was not found" if error.filename else "the command was not found"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def content_of(answer: Mapping[str, Any], uri: str) -> bytes:
    """Return the one file that an answer to `resources/read` holds.

    Raises:
        ServerError: If it holds none, several, or another file than was asked for.
    """
    contents = answer.get("contents")
    if not isinstance(contents, list) or len(contents) != 1 or not isinstance(contents[0], Mapping):
        raise ServerError("the answer does not hold exactly one file")
    [item] = contents
    # A server must not answer one file's name with another file.
    if item.get("uri") != uri:
        raise ServerError("the answer holds another file than was asked for")
    text, blob = item.get("text"), item.get("blob")
    if isinstance(text, str) and blob is None:
        return _encoded(text)
    if isinstance(blob, str) and text is None:
        try:
            return base64.b64decode(blob, validate=True)
        except (binascii.Error, ValueError):
            raise ServerError("the answer's content is not base64") from None
    raise ServerError("the answer holds neither text nor base64")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ServerError("the answer's text cannot be encoded as UTF-8") from None


def cursors(answer: Mapping[str, Any], seen: Iterable[str]) -> str | None:
    """Return where the next page starts, or `None` at the end.

    Raises:
        ServerError: If pages go round in a circle, or the cursor is not text.
    """
    following = answer.get("nextCursor")
    if following is None:
        return None
    if not isinstance(following, str):
        raise ServerError("the next page's cursor is not text")
    if following in seen:
        raise ServerError("the pages go round in a circle")
    return following
