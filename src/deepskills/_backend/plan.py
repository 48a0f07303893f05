"""Backend work as plans, and the two drivers that perform it: the only place that calls a backend.

A plan is a generator. It yields calls that may run at the same time, is sent one reply for each, and returns its
result. It never awaits and never touches a backend, so the same plan serves sync and async callers, and a test can
drive it by hand. A call that fails is answered with `Failed`; nothing is thrown into a plan.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from deepskills._backend.frameworks import passes_through
from deepskills._backend.local import real_paths, routed_parts
from deepskills._backend.missing import is_missing_error

if TYPE_CHECKING:
    from deepagents.backends import BackendProtocol

MAX_CALLS_AT_ONCE = 16
"""How many calls to one backend run at the same time."""

MAX_FAILED_BATCHES = 64
"""How many failing batches `read_files` splits before it gives the rest up."""

_NO_CONTENT = "file_not_found: the backend gave no content and no error"


@dataclass(frozen=True)
class ListDirectory:
    """Ask for the files and directories directly inside `path`."""

    path: str


@dataclass(frozen=True)
class ReadFiles:
    """Ask for the contents of all `paths` in one batch."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class ResolveLinks:
    """Ask where paths really lie; a backend that is not a local file system has no answer, and no links."""

    paths: tuple[str, ...]


@dataclass(frozen=True)
class Consult:
    """Call a function that may take its time: one that the user gave, or long work; always a step of its own."""

    ask: Callable[[], object]
    is_limited: bool = True
    """Whether it counts as a backend call that may be too late."""


@dataclass(frozen=True)
class Entry:
    """A file or directory, its path without a slash at the end."""

    path: str
    is_directory: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """What lies in a directory, in order of path; `error` says why it may not be all."""

    entries: tuple[Entry, ...]
    error: str | None = None


@dataclass(frozen=True)
class File:
    """A file's content, or why it could not be had."""

    path: str
    content: bytes | None = None
    error: str | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the backend says that there is no such file."""
        return self.content is None and is_missing_error(self.error)


@dataclass(frozen=True)
class Files:
    """The files of a batch, in the order in which they were asked for."""

    files: tuple[File, ...]


@dataclass(frozen=True)
class RealPaths:
    """Where each path really lies on this machine; empty if the backend is not a local file system."""

    paths: dict[str, str]


@dataclass(frozen=True)
class Consulted:
    """What a user's function returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """A call that gave no usable answer."""

    reason: str
    timed_out: bool = False
    needs_loop: bool = False


Call: TypeAlias = ListDirectory | ReadFiles | ResolveLinks | Consult
Reply: TypeAlias = Listing | Files | RealPaths | Consulted | Failed
ResultT = TypeVar("ResultT")
Plan: TypeAlias = Generator[tuple[Call, ...], list[Reply], ResultT]


def read_files(paths: Sequence[str]) -> Plan[dict[str, File]]:
    """Read `paths` in one batch; a batch that fails is halved, so that one bad file does not cost the others."""
    found: dict[str, File] = {}
    batches = [tuple(dict.fromkeys(paths))] if paths else []
    failures = 0
    while batches:
        replies = yield tuple(ReadFiles(batch) for batch in batches)
        halves: list[tuple[str, ...]] = []
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, Files):
                found.update((file.path, file) for file in reply.files)
                continue
            reason = reply.reason if isinstance(reply, Failed) else "the backend gave no files"
            timed_out = isinstance(reply, Failed) and reply.timed_out
            failures += 1
            if len(batch) == 1 or timed_out or failures > MAX_FAILED_BATCHES:
                found.update((path, File(path, error=reason)) for path in batch)
            else:
                middle = len(batch) // 2
                halves += [batch[:middle], batch[middle:]]
        batches = halves
    return found


def drive(
    plan: Plan[ResultT],
    get_backend: "Callable[[], BackendProtocol]",
    seconds: float | None = None,
    backend: "BackendProtocol | Failed | None" = None,
) -> ResultT:
    """Perform `plan` on the backend's sync methods and return its result; a plan without calls needs no backend.

    `get_backend` may be a user's own; if it is late, so is every call. It is not called where the `backend` is known.
    """
    try:
        calls = next(plan)
        while True:
            if backend is None and not _is_consultation(calls):
                [made] = _perform((Consult(get_backend),), None, seconds)
                backend = made.value if isinstance(made, Consulted) else made  # type: ignore[assignment]
            calls = plan.send(_perform(calls, backend, seconds))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        plan.close()


async def adrive(
    plan: Plan[ResultT],
    get_backend: "Callable[[], BackendProtocol]",
    seconds: float | None = None,
    backend: "BackendProtocol | Failed | None" = None,
) -> ResultT:
    """Perform `plan` on the backend's async methods, as `drive` does; `get_backend` is called in a thread."""
    try:
        calls = next(plan)
        while True:
            if backend is None and not _is_consultation(calls):
                [made] = await _aperform((Consult(get_backend),), None, seconds)
                backend = made.value if isinstance(made, Consulted) else made  # type: ignore[assignment]
            calls = plan.send(await _aperform(calls, backend, seconds))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        plan.close()


def _is_consultation(calls: Sequence[Call]) -> bool:
    return all(isinstance(call, Consult) for call in calls)


def _limit(calls: Sequence[Call], seconds: float | None) -> float | None:
    return seconds if all(not isinstance(call, Consult) or call.is_limited for call in calls) else None


def _perform(calls: Sequence[Call], backend: "BackendProtocol | Failed | None", seconds: float | None) -> list[Reply]:
    if isinstance(backend, Failed) and not _is_consultation(calls):
        return [backend for _ in calls]
    seconds = _limit(calls, seconds)
    if seconds is None and (_is_consultation(calls) or len(calls) == 1):
        return [_attempt(call, backend) for call in calls]
    replies: list[Reply] = []
    for wave in _waves(calls):
        if _is_hopeless(replies):
            return [*replies, *(_late_reply(seconds) for _ in calls[len(replies) :])]
        futures = [_in_thread(call, backend) for call in wave]
        done, _late = wait_for_futures(futures, seconds)
        replies += [future.result() if future in done else _late_reply(seconds) for future in futures]
    return replies


async def _aperform(
    calls: Sequence[Call], backend: "BackendProtocol | Failed | None", seconds: float | None
) -> list[Reply]:
    if isinstance(backend, Failed) and not _is_consultation(calls):
        return [backend for _ in calls]
    seconds = _limit(calls, seconds)
    replies: list[Reply] = []
    for wave in _waves(calls):
        if _is_hopeless(replies):
            return [*replies, *(_late_reply(seconds) for _ in calls[len(replies) :])]
        tasks = [asyncio.create_task(_answer(call, backend, seconds)) for call in wave]
        try:
            done, _late = await asyncio.wait(tasks, timeout=seconds)
        finally:
            for task in tasks:
                task.cancel()
        replies += [task.result() if task in done else _late_reply(seconds) for task in tasks]
    return replies


async def _answer(call: Call, backend: Any, seconds: float | None) -> Reply:  # noqa: ANN401 - a function needs none
    """Make one call without blocking the event loop.

    With a limit, a backend whose async methods only wait for a thread is called in a thread of ours: the loop's own
    pool would be waited for at the end of the process.
    """
    if isinstance(call, ListDirectory | ReadFiles) and (
        _has_async(backend) and (seconds is None or _is_async_at_heart(backend, call))
    ):
        return await _aattempt(call, backend)
    reply = await asyncio.wrap_future(_in_thread(call, backend))
    if isinstance(call, Consult) and isinstance(reply, Failed) and reply.needs_loop:
        return _attempt(call, backend)
    return reply


def needs_loop(error: Exception) -> bool:
    """Whether a function failed because it was called off the event loop; it is called on it then."""
    return isinstance(error, RuntimeError) and str(error) == "no running event loop"


def _has_async(backend: object) -> bool:
    return hasattr(backend, "als") and hasattr(backend, "adownload_files")


def _waves(calls: Sequence[Call]) -> Iterable[Sequence[Call]]:
    return (calls[start : start + MAX_CALLS_AT_ONCE] for start in range(0, len(calls), MAX_CALLS_AT_ONCE))


def _is_hopeless(replies: Sequence[Reply]) -> bool:
    """Whether a whole wave of calls was too late: the next would be, too, and their times would add up."""
    wave = replies[-MAX_CALLS_AT_ONCE:]
    return bool(wave) and all(isinstance(reply, Failed) and reply.timed_out for reply in wave)


def _late_reply(seconds: float | None) -> Failed:
    return Failed(f"no answer within {seconds:g} seconds", timed_out=True)


def _attempt(call: Call, backend: Any) -> Reply:  # noqa: ANN401 - a function needs none
    try:
        if isinstance(call, Consult):
            return Consulted(call.ask())
        if isinstance(call, ListDirectory):
            return _listing(backend.ls(call.path))
        if isinstance(call, ResolveLinks):
            return RealPaths(real_paths(backend, call.paths))
        return _files(call, backend.download_files(list(call.paths)))
    except Exception as error:
        if passes_through(error):
            raise
        return Failed(_describe(error), needs_loop=needs_loop(error))


async def _aattempt(call: ListDirectory | ReadFiles, backend: "BackendProtocol") -> Reply:
    try:
        if isinstance(call, ListDirectory):
            return _listing(await backend.als(call.path))
        return _files(call, await backend.adownload_files(list(call.paths)))
    except Exception as error:
        if passes_through(error):
            raise
        return Failed(_describe(error))


def _in_thread(call: Call, backend: "BackendProtocol | Failed | None") -> Future[Reply]:
    """Make one call in a thread that sees this context and that nobody waits for at the end of the process."""
    future: Future[Reply] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(_attempt, call, backend)
        except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="deepskills-backend", daemon=True).start()
    return future


def _is_async_at_heart(backend: object, call: ListDirectory | ReadFiles) -> bool:
    """Whether an async call is the backend's own work, not the protocol's default that waits for a thread."""
    method = "als" if isinstance(call, ListDirectory) else "adownload_files"
    paths = (call.path,) if isinstance(call, ListDirectory) else call.paths
    modules = (getattr(getattr(type(part), method, None), "__module__", "") for part in routed_parts(backend, paths))
    return all(not module.startswith("deepagents.") for module in modules)


def _listing(answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `ls` in order; entries that are no entries are passed over."""
    error = getattr(answer, "error", None)
    items = answer if _is_sequence(answer) else getattr(answer, "entries", None)
    if items is None and (error or not hasattr(answer, "entries")):
        return Failed(str(error) if error else f"the backend answered with {type(answer).__name__}")
    found: dict[str, Entry] = {}
    for item in items or ():
        path = item.get("path") if isinstance(item, dict) else None
        if isinstance(path, str) and path:
            tidy = path.replace("\\", "/").rstrip("/") or "/"
            found[tidy] = Entry(tidy, bool(item.get("is_dir")) or path.endswith("/"))
    return Listing(tuple(found[path] for path in sorted(found)), str(error) if error else None)


def _files(call: ReadFiles, answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    """Return a backend's answer to `download_files` in the order of the call, whatever its own order and length.

    A backend may name files otherwise than it was asked for them; then their place tells, if there are as many.
    """
    if not _is_sequence(answer):
        return Failed(f"the backend answered with {type(answer).__name__}")
    by_path = {getattr(item, "path", None): item for item in answer}
    by_place = dict(zip(call.paths, answer, strict=True)) if len(answer) == len(call.paths) else {}
    others = {path: item for path, item in by_place.items() if getattr(item, "path", None) not in by_place}
    return Files(tuple(_file(path, by_path.get(path, others.get(path))) for path in call.paths))


def _file(path: str, item: object) -> File:
    if not hasattr(item, "content"):
        return File(path, error="the backend gave no answer for this file")
    content, error = item.content, getattr(item, "error", None)
    if error:
        return File(path, error=str(error))
    if isinstance(content, bytes | bytearray | memoryview):
        return File(path, bytes(content))
    return File(path, error=_NO_CONTENT if content is None else f"the backend gave {type(content).__name__}, not bytes")


def _is_sequence(answer: object) -> bool:
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes | bytearray | memoryview)


def _describe(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, KeyError) and error.args == ("files",):
        return f"{text} (StateBackend needs FilesystemMiddleware in the same agent)"
    return text
