"""Speaks to one MCP server: requests of the skills extension on both majors of the `mcp` package.

`mcp` 1.x knows neither `server/discover` nor extensions, 2.x knows both; neither knows the skills extension. So every
request here is raw, and its result a plain mapping: what a server sends is checked in `listing`, not by a pydantic
model. Raw requests have a second reason: 1.x rewrites URIs that pass through its own types, and a rewritten URI is
another file.
"""

import asyncio
import base64
import binascii
import importlib
import importlib.metadata
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel, ConfigDict

import mcp
from deepskills._errors import SkillsError
from deepskills._skillmd.masking import MASK, Masker
from deepskills._skillmd.text import one_line

EXTENSION = "io.modelcontextprotocol/skills"
"""The extension's identifier among the capabilities of clients and servers."""

PROTOCOL_VERSION = "2026-07-28"
"""The protocol revision that a 1.x client names when it asks a server what it can do."""

LOST_CODES = frozenset({-32000, 32600})
"""Error codes with which the SDKs report that the connection or session ended; they are not a server's answer."""

INVALID_PARAMS = -32602
"""The error code for an unknown URI."""

NEWER_ONLY = -32022
"""The error code of a server that does not, or no longer, support the requested protocol revision."""

PROBE_SECONDS = 10.0
"""How long a 1.x client waits for an answer to `server/discover`; old servers may ignore unknown requests."""

IS_FIRST_MAJOR = int(importlib.metadata.version("mcp").partition(".")[0]) < 2  # noqa: PLR2004 - the second major
"""Whether the installed `mcp` package is 1.x."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""How large a message may be that a server sends over HTTP."""

_META = "io.modelcontextprotocol/"
_SHORTEST_SECRET = 6
"""Shortest variable of a process, or segment of a path, that is masked: `1` would black out half of every message."""

_MAX_REASON = 400


class ServerError(SkillsError):
    """A server refused a request, or its answer cannot be used."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class ConnectionLostError(SkillsError):
    """A connection could not be opened, was lost, or timed out."""


class _Answer(BaseModel):
    """Any result, unparsed."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Peer:
    """A session that is ready for requests, and what its server declared."""

    session: Any
    extensions: Mapping[str, Any] | None
    """The extensions that the server declared; `None` if it declared none, or the client cannot know."""

    meta: Mapping[str, Any] = field(default_factory=dict)
    """Metadata that every request needs; a 2.x session adds it itself."""

    @property
    def serves_skills(self) -> bool:
        """Whether the server declared the skills extension."""
        return self.extensions is not None and isinstance(self.extensions.get(EXTENSION), Mapping)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its unparsed result."""
        given = {**params, "_meta": dict(self.meta)} if self.meta else dict(params)
        answer = await self.session.send_request(_request(method, given), _Answer)
        return dict(answer.model_extra or {})


def _request(method: str, params: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of either major
    if IS_FIRST_MAJOR:
        return mcp.types.Request[dict[str, Any], str](method=method, params=dict(params))
    from mcp_types import Request  # noqa: PLC0415 - 1.x has no such package

    return Request[dict[str, Any], str](method=method, params=dict(params))


def borrow_session(session: Any) -> Peer:  # noqa: ANN401 - a ClientSession of either major
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
async def open_peer(spec: "Spec") -> AsyncIterator[Peer]:
    """Open a connection, agree on a protocol revision by discovery or else `initialize`, and close it at the end."""
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
        # However an older server reacts to an unknown request, it may still support `initialize`.
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
    # Over HTTP the newer revision needs headers that 1.x does not send; on pipes there is only the request itself.
    if spec.transport == "stdio":
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                found = await _discover(session)
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
        found = await _discover(session) if code_of(refusal) == NEWER_ONLY else None
        if found is None:
            raise
        return found
    return Peer(session, _extensions(result.capabilities))


async def _discover(session: Any) -> Peer | None:  # noqa: ANN401 - a 1.x ClientSession
    """Ask a server for its capabilities with a raw request; `None` if it does not support the newer revision."""
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
    """How to open a connection; nothing in it that could be a secret appears in a message or a log."""

    transport: str
    options: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, label: str, given: Mapping[str, Any]) -> "Spec":
        """Check a mapping in the form of LangChain's MCP adapters.

        Raises:
            ValueError: If it is not a valid connection; the message has no value that may be secret.
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
        """Open the transport and yield its two ends."""
        if self.transport == "stdio":
            from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - as used

            options = {key: self.options.get(key) for key in ("command", "env", "cwd")}
            async with stdio_client(StdioServerParameters(args=list(self.options.get("args", ())), **options)) as ends:
                yield ends[0], ends[1]
            return
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - as used

        shown = self.shown_url()
        async with (
            _open_client(self.options, shown) as client,
            streamable_http_client(shown, http_client=client) as ends,
        ):
            yield ends[0], ends[1]

    @cached_property
    def masker(self) -> Masker:
        """Masks what must not appear in any message."""
        found: list[str] = []
        url = self.options.get("url")
        if isinstance(url, str):
            parts = urlsplit(url)
            found += [url, parts.query, parts.netloc.rpartition("@")[0], parts.username or "", parts.password or ""]
            found += [pair.partition("=")[2] for pair in parts.query.split("&")]
            found += [part for part in parts.path.split("/") if len(part) >= _SHORTEST_SECRET]
        for value in (self.options.get("headers") or {}).values():
            found += [value, *value.split()]
        found += [value for value in (self.options.get("env") or {}).values() if len(value) >= _SHORTEST_SECRET]
        return Masker([*found, *map(unquote_plus, found), *map(unquote, found)])

    def shown_url(self) -> str:
        """Return the URL that HTTP clients may log, without user, password and query, and with the path masked."""
        parts = urlsplit(self.options["url"])
        path = "/".join(MASK if self.masker.mask(part) != part else part for part in parts.path.split("/"))
        shown: str = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        return shown

    def mask(self, text: str) -> str:
        """Return a text for messages and logs, with everything masked that may be secret."""
        return one_line(self.masker.mask(text))[:_MAX_REASON]


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


def _open_client(options: Mapping[str, Any], shown: str) -> Any:  # noqa: ANN401 - each major has its own HTTP client
    """Return the client for a connection, of which its logs show another URL."""
    httpx: Any = importlib.import_module("httpx" if IS_FIRST_MAJOR else "httpx2")
    parts = urlsplit(options["url"])
    query = f"?{parts.query}".encode() if parts.query else b""
    path, shown_path = (httpx.URL(url).raw_path.partition(b"?")[0] for url in (options["url"], shown))

    class Bounded(httpx.AsyncByteStream):  # type: ignore[misc]
        """An answer that ends where it is too large: neither the client nor the SDK has a limit."""

        def __init__(self, stream: Any, *, of_events: bool) -> None:  # noqa: ANN401 - of either major
            self._stream = stream
            self._of_events = of_events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                # A stream of events may go on for days; each ends with an empty line.
                is_end = self._of_events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk)
                size = len(chunk) if is_end else size + len(chunk)
                if size > MAX_MESSAGE_BYTES:
                    raise httpx.RemoteProtocolError(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Transport(httpx.AsyncHTTPTransport):  # type: ignore[misc]
        """Puts in the real path and query below the layer where the client logs a URL, and takes them out again."""

        async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - of either major
            rest = request.url.raw_path.removeprefix(shown_path)
            # A new request, because the client logs its own again when the answer arrives.
            url = request.url.copy_with(raw_path=path + rest + query)
            further = {"headers": request.headers, "stream": request.stream, "extensions": request.extensions}
            response = await super().handle_async_request(httpx.Request(request.method, url, **further))
            if "location" in response.headers:
                location = response.headers["location"].replace(path.decode(), shown_path.decode())
                response.headers["location"] = location.removesuffix(query.decode())
            # A megabyte can be packed that unpacks to a gigabyte.
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise httpx.RemoteProtocolError("the answer is compressed, which was not asked for")
            of_events = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = Bounded(response.stream, of_events=of_events)
            return response

    # A client with a transport of its own does not look for a proxy.
    proxies = {} if proxy_bypass(parts.hostname or "") else getproxies()
    auth = (unquote(parts.username or ""), unquote(parts.password or "")) if "@" in parts.netloc else None
    return httpx.AsyncClient(
        headers={**(options.get("headers") or {}), "Accept-Encoding": "identity"},
        auth=auth,
        # `connections` limits how long a caller waits; these timeouts end what nobody waits for any longer.
        timeout=httpx.Timeout(30.0, read=300.0),
        transport=Transport(proxy=proxies.get(parts.scheme) or proxies.get("all")),
    )


# What a failure says.


def reason_of(error: BaseException) -> str:
    """Return why something failed; for a group of errors, the first."""
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
        ServerError: If it holds none, several, or another file than requested.
    """
    contents = answer.get("contents")
    if not isinstance(contents, list) or len(contents) != 1 or not isinstance(contents[0], Mapping):
        raise ServerError("the answer does not hold exactly one file")
    [item] = contents
    # A server must not answer one file's name with another file.
    if item.get("uri") != uri:
        raise ServerError("the answer holds another file than the requested one")
    text, blob = item.get("text"), item.get("blob")
    if isinstance(text, str) and blob is None:
        return _encode(text)
    if isinstance(blob, str) and text is None:
        try:
            return base64.b64decode(blob, validate=True)
        except (binascii.Error, ValueError):
            raise ServerError("the answer's content is not base64") from None
    raise ServerError("the answer holds neither text nor base64")


def _encode(text: str) -> bytes:
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
        raise ServerError("the pages form a loop")
    return following
