"""Keeps connections to MCP servers, and lets sync and async callers share them.

A session of the SDK belongs to one event loop, and its streams to the task that opened them. So every connection has a
*home*: the loop on which all of its work runs. A connection that we open lives on the bridge's loop; a
session that a caller opened lives on the caller's loop. Callers on the home loop await the work directly, all others
submit it and wait without blocking. Sync callers come by way of the bridge. One of them *on* the loop of a session
would wait for itself forever; such a loop takes no turn, which is noticed and an error.

A connection that we open is held by one task from its start to its end, since the SDK's cancel scopes must be left in
the task that entered them. When a request shows that the connection is gone, the task is told to end, and the next
request starts another. Every request here only reads, so one that failed on a dead connection is sent once more on a
new one.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from deepskills._io.bridge import Bridge, Work, bridge
from deepskills.mcp.wire import (
    LOST_CODES,
    ConnectionLostError,
    Peer,
    ServerError,
    Spec,
    borrow_session,
    code_of,
    open_peer,
    reason_of,
)

logger = logging.getLogger("deepskills")

ResultT = TypeVar("ResultT")
CLOSING_SECONDS = 5.0
"""How long a connection may take to close before it is abandoned."""

FAILURE_SECONDS = 5.0
"""How long a failure is remembered: a caller that asks again before gets it at once."""

TURN_SECONDS = 5.0
"""How long a loop that is not ours may be busy before it counts as blocked by the one who waits for it."""

PATIENCE = 6.0
"""How many times the timeout a caller waits for work on a loop that is not ours."""

_ENDED = "Session terminated"
"""What both SDKs say if a server has forgotten the session; 2.x uses the code of any bad request for it."""

_OWN_LOOP = (
    "a sync call from the event loop that holds the MCP session would wait for itself; "
    "use ainvoke, astream or the async methods, or pass a mapping in place of the session"
)


class SessionBridge(Bridge):
    """The event loop of a session that a caller opened."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        super().__init__(loop)
        self._timeout = timeout

    async def arun(self, work: Work[ResultT]) -> ResultT:
        """Run `work` on the loop and wait for its result without blocking.

        Raises:
            ConnectionLostError: If the loop has ended, or does nothing: perhaps its thread waits for this very work.
        """
        if not self.is_running:
            raise ConnectionLostError("the event loop of the session is no longer running")
        if self.is_current:
            return await work()
        turn = min(self._timeout, TURN_SECONDS)
        try:
            async with asyncio.timeout(turn):
                await super().arun(_take_turn)
        except TimeoutError:
            raise ConnectionLostError(f"the event loop took no turn within {turn:g} seconds; {_OWN_LOOP}") from None
        limit = self._timeout * PATIENCE
        try:
            async with asyncio.timeout(limit):
                return await super().arun(work)
        except TimeoutError:
            raise ConnectionLostError(f"no answer within {limit:g} seconds; {_OWN_LOOP}") from None


async def _take_turn() -> None:
    """Do nothing, on the loop."""


class SharedAttempt(Generic[ResultT]):
    """One attempt for all who need its result at the same time; its failure is remembered for some seconds.

    So a server that hangs costs twenty callers one wait, and those who come right after it none.
    """

    def __init__(self, work: Work[ResultT]) -> None:
        self._work = work
        self._task: asyncio.Task[ResultT] | None = None
        self._failure: ConnectionLostError | None = None
        self._until = 0.0
        self._process = 0

    async def result(self) -> ResultT:
        """Return the result of the attempt that is in flight, or of a new one.

        Raises:
            ConnectionLostError: If it fails, or failed a moment ago.
        """
        # A forked process has another loop, on which none of its parent's tasks runs.
        if self._process != os.getpid():
            self._process, self._task, self._failure = os.getpid(), None, None
        if self._failure is not None and time.monotonic() < self._until:
            raise type(self._failure)(str(self._failure))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._perform())
            # Where nobody waits any longer, nobody retrieves the error, and asyncio would log it.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: one caller that gives up takes nothing from the others.
        return await _unless_closed(asyncio.shield(self._task))

    async def _perform(self) -> ResultT:
        self._failure = None
        try:
            return await self._work()
        except ConnectionLostError as error:
            self._failure, self._until = error, time.monotonic() + FAILURE_SECONDS
            raise

    def forget_failure(self) -> None:
        """Let the next caller try again; from any thread."""
        self._failure = None

    def give_up(self) -> None:
        """Give up an attempt that is in flight, and forget a failure."""
        self._failure = None
        if self._task is not None and self._process == os.getpid():
            self._task.cancel()


async def _unless_closed(future: Awaitable[ResultT]) -> ResultT:
    """Return a result; if the connection is closed meanwhile, that is a failure and no cancellation of the caller."""
    try:
        return await future
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLostError("the connection was closed") from None


class Connection(Protocol):
    """Sends requests to one server. All of it runs on the connection's home."""

    home: Bridge

    def mask(self, text: str) -> str:
        """Return a text without the secrets of the connection."""

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
        self.home: Bridge = SessionBridge(asyncio.get_running_loop(), timeout)
        self._session = session
        self._timeout = timeout

    def mask(self, text: str) -> str:
        """Return a text as it is: we do not know the secrets of the session."""
        return text

    async def peer(self) -> Peer:
        """Return the session."""
        return borrow_session(self._session)

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        return await _answer(await self.peer(), method, params, self._timeout, one_line_of, self._timeout)

    async def close(self) -> None:
        """Leave the session open: its owner closes it."""


class Opened:
    """A connection that is opened at its first use, kept open, and opened again if it is lost."""

    def __init__(self, spec: Spec, home: Bridge, timeout: float) -> None:
        self.home = home
        self._spec = spec
        self._timeout = timeout
        self._opening = SharedAttempt(self._open)
        self._held: _Held | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that hold a connection, or are about to end one."""
        self._process = 0
        self.mask = spec.masker.mask

    async def peer(self) -> Peer:
        """Return the session, opened if need be.

        Raises:
            ConnectionLostError: If it cannot be opened.
        """
        return (await self._hold()).peer

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result; if the connection turns out to be gone, try once more on a new one."""
        # Waiting for the connection counts: a caller waits for so long in all.
        started = time.monotonic()
        for is_last in (False, True):
            held = await self._hold()
            was_used, held.is_used = held.is_used, True
            left = max(0.0, self._timeout - (time.monotonic() - started))
            answer = asyncio.create_task(_answer(held.peer, method, params, left, self._spec.mask, self._timeout))
            held.pending.add(answer)
            answer.add_done_callback(held.pending.discard)
            try:
                return await _unless_closed(answer)
            except ConnectionLostError as error:
                self._drop(held)
                # Not tried again: a new connection that fails at once, a server that does not answer, and a closed one.
                if is_last or not was_used or held.is_closed or isinstance(error, TimedOutError):
                    raise
        raise AssertionError  # The second round returns or raises.

    async def close(self) -> None:
        """End the connection, and what waits for it; a later use opens another."""
        self._opening.give_up()
        held, self._held = self._held, None
        if held is not None:
            held.is_closed = True
            held.end()
        # Tasks dropped earlier may still be ending a process that does not respond.
        tasks = set(self._tasks) if self._process == os.getpid() else set()
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=CLOSING_SECONDS)
            for task in late:
                task.cancel()

    async def _hold(self) -> "_Held":
        # A session belongs to the loop on which it was opened, and a forked process has another loop.
        if self._process != os.getpid():
            self._held, self._process = None, os.getpid()
            self._tasks = set()
        held = self._held
        return held if held is not None and not held.is_over else await self._opening.result()

    async def _open(self) -> "_Held":
        self._held = None
        self._held = await _Held.connect(self._spec, self._timeout, self._tasks)
        return self._held

    def _drop(self, held: "_Held") -> None:
        if self._held is held:
            self._held = None
        held.end()


class TimedOutError(ConnectionLostError):
    """A server did not answer in time."""


class _Held:
    """One open connection, held by its own task."""

    def __init__(self, spec: Spec, tasks: "set[asyncio.Task[None]]") -> None:
        self._ready: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self.pending: set[asyncio.Task[dict[str, Any]]] = set()
        """Requests that wait for their answer."""
        self._task = asyncio.create_task(self._run(spec))
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)
        self.is_used = False
        self.is_closed = False
        """Whether it was closed on purpose."""
        self.peer: Peer

    @classmethod
    async def connect(cls, spec: Spec, timeout: float, tasks: "set[asyncio.Task[None]]") -> "_Held":  # noqa: ASYNC109
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
            raise TimedOutError(f"the server was not ready within {timeout:g} seconds") from None
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
            async with open_peer(spec) as peer:
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

    def end(self) -> None:
        """End the connection, and at once what waits for it: `mcp` 1.x would let that wait for its own time limit."""
        for answer in [*self.pending]:
            answer.cancel()
        self._stop.set()


def one_line_of(text: str) -> str:
    """Return the reason of a failure for a session whose secrets we do not know."""
    return " ".join(text.split())[:400]


async def _answer(
    peer: Peer,
    method: str,
    params: Mapping[str, Any],
    seconds: float,
    shown: Callable[[str], str],
    limit: float,
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(seconds):
            return await peer.request(method, params)
    except TimeoutError:
        raise TimedOutError(f"no answer to {method} within {limit:g} seconds") from None
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
