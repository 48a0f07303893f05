"""Keeps connections to MCP servers, and lets sync and async callers share them.

A session of the SDK belongs to one event loop, and its streams to the task that opened them. So every connection has a
*home*: the loop on which all of its work runs. A connection that we open lives on a loop of our own, in a daemon
thread; a session that a caller opened lives on the caller's loop. Callers on the home loop await the work directly; all
others submit it and wait: async ones without blocking their own loop, sync ones by blocking their thread. A sync caller
*on* the home loop would wait for itself forever, so that is an error.

A connection that we open is held by one task from its start to its end, since the SDK's cancel scopes must be left in
the task that entered them. When a request shows that the connection is gone, the task is told to end, and the next
request starts another. Every request here only reads, so one that failed on a dead connection is sent once more on a
new one.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from deepskills._errors import SkillsError
from deepskills._io.bridge import Bridge, Work, bridge
from deepskills.mcp.wire import (
    LOST_CODES,
    ConnectionLostError,
    Peer,
    ServerError,
    Spec,
    borrowed,
    code_of,
    opened,
    reason_of,
)

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")
CLOSING_SECONDS = 15.0
"""How long a connection may take to close before it is abandoned."""

PATIENCE = 6.0
"""How many times the timeout a sync caller waits for work on a loop that is not ours, which may be busy or blocked."""

_ENDED = "Session terminated"
"""What both SDKs say if a server has forgotten the session; 2.x uses the code of any bad request for it."""

_OWN_LOOP = (
    "a sync call from the event loop that holds the MCP session would wait for itself; "
    "use ainvoke, astream or the async methods, or pass a mapping in place of the session"
)


class CallersLoop(Bridge):
    """The event loop of a session that a caller opened."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        super().__init__(loop)
        self._thread = threading.get_ident()
        self._timeout = timeout

    def run(self, work: Work[ResultT], seconds: float | None = None) -> ResultT:
        """Run `work` on the loop and wait for its result.

        Raises:
            SkillsError: If the caller runs on that loop, or the loop does not answer.
        """
        # It would wait for itself.
        if threading.get_ident() == self._thread and self.is_running:
            raise SkillsError(_OWN_LOOP)
        self._check_that_it_runs()
        # It may be blocked by the caller that this thread works for.
        if not self.takes_turn_within(self._timeout):
            raise ConnectionLostError(f"the event loop took no turn within {self._timeout:g} seconds; {_OWN_LOOP}")
        limit = seconds or self._timeout * PATIENCE
        try:
            return super().run(work, limit)
        except TimeoutError:
            raise ConnectionLostError(f"no answer within {limit:g} seconds; {_OWN_LOOP}") from None

    async def arun(self, work: Work[ResultT]) -> ResultT:
        """Run `work` on the loop and wait for its result without blocking."""
        self._check_that_it_runs()
        return await super().arun(work)

    def _check_that_it_runs(self) -> None:
        if not self.is_running:
            raise ConnectionLostError("the event loop of the session is no longer running")


class Connection(Protocol):
    """Sends requests to one server. All of it runs on the connection's home."""

    home: Bridge

    async def peer(self) -> Peer:
        """Return the session, opened if need be."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            ServerError: If the server refuses it.
            ConnectionLostError: If no answer came.
        """

    async def close(self) -> None:
        """Close what this connection opened."""


class Borrowed:
    """A session that a caller opened and will close."""

    def __init__(self, session: Any, timeout: float) -> None:  # noqa: ANN401 - a ClientSession of either major
        self.home: Bridge = CallersLoop(asyncio.get_running_loop(), timeout)
        self._session = session
        self._timeout = timeout

    async def peer(self) -> Peer:
        """Return the session."""
        return borrowed(self._session)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        return await _answered(await self.peer(), method, params, self._timeout, one_line_of)

    async def close(self) -> None:
        """Leave the session open: whoever opened it closes it."""


class Opened:
    """A connection that is opened at its first use, kept open, and opened again if it is lost."""

    def __init__(self, spec: Spec, home: Bridge, timeout: float) -> None:
        self.home = home
        self._spec = spec
        self._timeout = timeout
        self._opening: asyncio.Lock | None = None
        self._held: _Held | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that hold a connection, or are about to end one."""
        self._process = 0

    async def peer(self) -> Peer:
        """Return the session, opened if need be.

        Raises:
            ConnectionLostError: If it cannot be opened.
        """
        return (await self._hold()).peer

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result; if the connection turns out to be gone, try once more on a new one."""
        for is_last in (False, True):
            held = await self._hold()
            was_used, held.is_used = held.is_used, True
            try:
                return await _answered(held.peer, method, params, self._timeout, self._spec.mask)
            except ConnectionLostError as error:
                self._drop(held)
                # A new connection that fails at once, or a server that does not answer, is not worth another try.
                if is_last or not was_used or isinstance(error, _LateError):
                    raise
        raise AssertionError  # The second round returns or raises.

    async def close(self) -> None:
        """End the connection; a later use opens another."""
        held, self._held = self._held, None
        if held is not None:
            held.end_soon()
        # Tasks dropped earlier may still be ending a process that does not respond.
        tasks = set(self._tasks) if self._process == os.getpid() else set()
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=CLOSING_SECONDS)
            for task in late:
                task.cancel()

    async def _hold(self) -> "_Held":
        # A lock and a session belong to the loop on which they were created, and a forked process has another loop.
        if self._opening is None or self._process != os.getpid():
            self._opening, self._held, self._process = asyncio.Lock(), None, os.getpid()
            self._tasks = set()
        async with self._opening:
            if self._held is None or self._held.is_over:
                self._held = None
                self._held = await _Held.opened(self._spec, self._timeout, self._tasks)
            return self._held

    def _drop(self, held: "_Held") -> None:
        if self._held is held:
            self._held = None
        held.end_soon()


class _LateError(ConnectionLostError):
    """The request timed out."""


class _Held:
    """One open connection, held by its own task."""

    def __init__(self, spec: Spec, tasks: "set[asyncio.Task[None]]") -> None:
        self._ready: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(spec))
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)
        self.is_used = False
        self.peer: Peer

    @classmethod
    async def opened(cls, spec: Spec, timeout: float, tasks: "set[asyncio.Task[None]]") -> "_Held":  # noqa: ASYNC109
        """Open a connection.

        Raises:
            ConnectionLostError: If it cannot be opened in time.
        """
        held = cls(spec, tasks)
        try:
            async with asyncio.timeout(timeout):
                # Shielded: a timeout here must not cancel the future that the task will set.
                held.peer = await asyncio.shield(held._ready)
        except TimeoutError:
            held._task.cancel()
            raise _LateError(f"the server was not ready within {timeout:g} seconds") from None
        except asyncio.CancelledError:
            held._task.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - a transport may raise anything
            raise ConnectionLostError(spec.mask(reason_of(error))) from None
        return held

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def _run(self, spec: Spec) -> None:
        try:
            async with opened(spec) as peer:
                if not self._ready.done():
                    self._ready.set_result(peer)
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else ConnectionLostError("closed"))
                # If nobody is waiting any longer, nobody retrieves the error, and asyncio would log it.
                self._ready.exception()
            else:
                logger.debug("An MCP connection ended: %s", type(error).__name__)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise

    def end_soon(self) -> None:
        self._stop.set()


def one_line_of(text: str) -> str:
    """Return the reason of a failure for a session whose secrets we do not know."""
    return " ".join(text.split())[:400]


async def _answered(
    peer: Peer,
    method: str,
    params: Mapping[str, Any],
    seconds: float,
    shown: Callable[[str], str],
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(seconds):
            return await peer.request(method, params)
    except TimeoutError:
        raise _LateError(f"no answer to {method} within {seconds:g} seconds") from None
    except Exception as error:  # noqa: BLE001 - a transport may raise anything
        code = code_of(error)
        reason = shown(reason_of(error))
        # The server has answered, so the connection is fine and a second try would get the same answer.
        if code is not None and code not in LOST_CODES and _ENDED not in reason:
            raise ServerError(f"{method} was refused ({code}): {reason}", code) from None
        if type(error).__name__ == "ValidationError":
            raise ServerError(f"the answer to {method} does not follow the protocol") from None
        raise ConnectionLostError(f"the connection was lost: {reason}") from None


def check_label(label: object) -> str:
    """Return a label if it is valid.

    Raises:
        ValueError: If it cannot be both a directory's name and the first part of skills' names.
    """
    is_good = (
        isinstance(label, str)
        and label.strip() == label
        and label.isprintable()
        and not any(part in label for part in ("/", ":", "..", "\\", "%"))
        and label not in {"", "."}
    )
    if not is_good:
        raise ValueError(
            f"{label!r} cannot be the label of a connection: use a text without '/', ':', '..', '\\', '%', "
            "line breaks, or white space around it"
        )
    return str(label)


def connection_of(label: str, given: object, timeout: float) -> Connection:
    """Return the connection for a session or a mapping.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(given, Mapping):
        return Opened(Spec.of(label, given), bridge, timeout)
    if not hasattr(given, "send_request"):
        raise ValueError(
            f"the connection {label!r} must be an open mcp.ClientSession or a mapping with a 'transport', "
            f"got {type(given).__name__}"
        )
    try:
        return Borrowed(given, timeout)
    except RuntimeError:
        raise ValueError(
            f"the connection {label!r} is a session: make McpSkills on the event loop on which that was opened, "
            "or pass a mapping with a 'transport'"
        ) from None
