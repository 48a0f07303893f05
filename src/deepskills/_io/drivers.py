"""Two drivers for generators that ask for one step at a time: how a step is done is given, sync or async.

Work in threads: one of its own for what may hang, one of a few for what only computes.

How each call is made: the only place that calls a backend, a user's function or an extension.

What only waits for a thread runs in threads of our own that nobody waits for at the end of the process.

The two drivers that perform plans, sync and async.

Both make the backend calls of a round at the same time, in waves of bounded size, and answer each with a value.
"""

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from deepskills._io.backends import (
    PathsOfThisMachine,
    accepts_timeout,
    describe,
    has_own,
    is_local,
    is_natively_async,
    listing,
    natures,
    only_async,
    passes_through,
    real_paths,
    routed_parts,
    shell_of,
    shell_paths,
    to_files,
    to_written,
    unfit_files,
)
from deepskills._io.plan import (
    Ask,
    Call,
    Consult,
    Consulted,
    Execute,
    Executed,
    Failed,
    File,
    Files,
    Inspect,
    Inspected,
    ListDirectory,
    Plan,
    ReadFiles,
    RealPaths,
    Reply,
    ResolveLinks,
    ResultT,
    ShellPaths,
    Summarize,
    Summarized,
    WaitFor,
    Work,
    WriteFiles,
)
from deepskills._types import SkillSummary

StepT = TypeVar("StepT")


@dataclass(frozen=True)
class _Over(Generic[ResultT]):
    """A generator has ended."""

    result: ResultT


def perform(plan: Generator[StepT, Any, ResultT], do: Callable[[StepT], Any]) -> ResultT:
    """Do each step that `plan` asks for and return its result; what a step raises is thrown into the plan.

    A run that is cancelled ends the plan there: its own `finally` is carried out at once.
    """
    with closing(plan):
        step = _resume(plan)
        while not isinstance(step, _Over):
            try:
                reply, error = do(step), None
            except Exception as raised:  # noqa: BLE001 - the plan decides
                reply, error = None, raised
            step = _resume(plan, reply, error)
        return step.result


async def aperform(plan: Generator[StepT, Any, ResultT], do: Callable[[StepT], Awaitable[Any]]) -> ResultT:
    """Do each step that `plan` asks for without blocking, as `perform` does."""
    with closing(plan):
        step = _resume(plan)
        while not isinstance(step, _Over):
            try:
                reply, error = await do(step), None
            except Exception as raised:  # noqa: BLE001 - the plan decides
                reply, error = None, raised
            step = _resume(plan, reply, error)
        return step.result


def _resume(
    plan: Generator[StepT, Any, ResultT], reply: object = None, error: Exception | None = None
) -> StepT | _Over[ResultT]:
    try:
        return plan.send(reply) if error is None else plan.throw(error)
    except StopIteration as end:
        return _Over(end.value)


# Work in threads: one of its own for what may hang, one of a few for what only computes.


WORKERS = 2
"""How many threads compute at a time; more would only make the event loop wait longer for its turn."""

ValueT = TypeVar("ValueT")


def in_thread(work: Callable[..., ValueT], *arguments: object) -> Future[ValueT]:
    """Do `work` in a thread that sees this context and that nobody waits for at the end of the process."""
    future: Future[ValueT] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work, *arguments)
        except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="deepskills-work", daemon=True).start()
    return future


def in_working_thread(work: Callable[..., ValueT], *arguments: object) -> Future[ValueT]:
    """Do `work`, which waits for nobody, in one of a few threads that see this context."""
    return _workers.pool.submit(contextvars.copy_context().run, work, *arguments)


class _Workers:
    """The threads that compute, started when they are needed."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget the threads: a forked process has none of its parent's."""
        self.pool = ThreadPoolExecutor(WORKERS, "deepskills-compute")


_workers = _Workers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.renew)


# How each call is made: the only place that calls a backend, a user's function or an extension.
#
# What only waits for a thread runs in threads of our own that nobody waits for at the end of the process.


EXECUTE_GRACE = 5.0
"""Seconds beyond its own timeout that a command may take to end before it counts as late."""

LARGE_ANSWER = 1_000
"""From how many items on a backend's answer is not converted on the event loop."""

NO_SHELL = "the backend runs no commands"
"""The reason of `Failed` for `Execute` on a backend without a shell."""


Backend: TypeAlias = Any
"""A backend, `Failed` if there is none, `None` if it is not known yet or not needed."""


def needs_loop(error: BaseException) -> bool:
    """Whether a function failed because it was called off the event loop; it is called on it then."""
    return isinstance(error, RuntimeError) and str(error) == "no running event loop"


def limit_of(call: Call, backend: Backend, seconds: float | None) -> float | None:
    """Return how long to wait for a call; a command's own timeout is the backend's to keep, and ours to enforce."""
    if isinstance(call, Execute):
        shell = shell_of(backend)
        if call.timeout is None or shell is None:
            return None
        return call.timeout + (EXECUTE_GRACE if accepts_timeout(shell) else 0)
    if isinstance(call, Ask | Work | WaitFor) or (isinstance(call, Consult) and not call.is_limited):
        return None
    return seconds


def attempt(call: Call, backend: Backend) -> Reply:
    """Make one call here and now; whatever it raises is a failure, except what LangGraph needs to see."""
    try:
        return _MAKERS[type(call)](call, backend)
    except Exception as error:
        if passes_through(error):
            raise
        return Failed(describe(error), needs_loop=needs_loop(error))


async def attempt_on_loop(call: Call, backend: Backend) -> Reply:
    """Make one call on the event loop; whatever it raises is a failure, except what LangGraph needs to see."""
    try:
        return await _ASYNC_MAKERS[type(call)](call, backend)
    except Exception as error:
        if passes_through(error):
            raise
        return Failed(describe(error))


async def answer(call: Call, backend: Backend, limit: float | None) -> Reply:
    """Make one call without blocking the event loop.

    With a limit, a backend whose async methods only wait for a thread is called in a thread of ours: the loop's own
    pool would be waited for at the end of the process.
    """
    if isinstance(call, WaitFor) or (type(call) in _METHODS and _is_awaited(call, backend, limit)):
        return await attempt_on_loop(call, backend)
    start = in_working_thread if isinstance(call, Work) else in_thread
    reply = await asyncio.wrap_future(start(attempt, call, backend))
    if isinstance(call, Consult) and isinstance(reply, Failed) and reply.needs_loop:
        return attempt(call, backend)
    return reply


def _is_awaited(call: Call, backend: Backend, limit: float | None) -> bool:
    """Whether the backend's async method is used: always if there is no other, and where it needs no thread."""
    plain, native = _METHODS[type(call)]
    if isinstance(call, Execute) or (isinstance(call, WriteFiles) and call.for_shell):
        parts: list[object] = [shell_of(backend)]
    elif not hasattr(backend, native):
        return False
    elif limit is None:
        return True
    else:
        parts = routed_parts(backend, _paths(call))
    if any(has_own(part, native) and not has_own(part, plain) for part in parts):
        return True
    return all(is_natively_async(part, native) for part in parts)


# One function for each call: sync.


def _list(call: ListDirectory, backend: Backend) -> Reply:
    refusal = only_async(backend, _paths(call), "ls")
    return listing(backend.ls(call.path)) if refusal is None else Failed(refusal)


def _write(call: WriteFiles, backend: Backend) -> Reply:
    target = _target(call, backend)
    if target is None:
        return Failed(NO_SHELL)
    refusal = only_async(target, _paths(call), "upload_files")
    return to_written(call, target.upload_files(list(call.files))) if refusal is None else Failed(refusal)


def _target(call: WriteFiles, backend: Backend) -> Backend:
    """Return what writes files: the whole backend, or the shell in it; `None` if that is wanted and there is none."""
    return shell_of(backend) if call.for_shell else backend


def _read(call: ReadFiles, backend: Backend) -> Reply:
    refusal = only_async(backend, call.paths, "download_files")
    if refusal is not None:
        return Failed(refusal)
    unfit = unfit_files(backend, call.paths, call.max_bytes)
    wanted = _without(call, unfit)
    files = to_files(wanted, backend.download_files(list(wanted.paths))) if wanted.paths else Files(())
    return _joined(call, unfit, files)


def _execute(call: Execute, backend: Backend) -> Reply:
    shell = shell_of(backend)
    if shell is None:
        return Failed(NO_SHELL)
    return Executed(shell.execute(call.command, **_timeout(call, shell)))


def _timeout(call: Execute, shell: object) -> dict[str, int]:
    """Return the timeout as an argument, for a backend that takes one."""
    takes_it = call.timeout is not None and accepts_timeout(shell)
    return {"timeout": call.timeout} if takes_it else {}  # type: ignore[dict-item]


def _ask_summaries(call: Summarize, backend: Backend) -> Sequence[object]:
    ask = getattr(backend, "skill_summaries", None)
    found: Sequence[object] = ask(list(call.paths)) if callable(ask) else ()
    return found


def _summarized(call: Summarize, answer: Sequence[object]) -> Reply:
    """Return the summaries that a backend gave; whatever else it gave, the files themselves are read."""
    wanted = set(call.paths)
    given = [item for item in answer or () if isinstance(item, SkillSummary) and item.path in wanted]
    return Summarized({item.path: item for item in given})


def _wait(call: WaitFor, _backend: Backend) -> Reply:
    with contextlib.suppress(TimeoutError, CancelledError):
        call.future.exception(call.timeout)
    return _outcome(call)


_MAKERS: dict[type, Callable[[Any, Backend], Reply]] = {
    ListDirectory: _list,
    ReadFiles: _read,
    WriteFiles: _write,
    Execute: _execute,
    ResolveLinks: lambda call, backend: RealPaths(real_paths(backend, call.paths)),
    Summarize: lambda call, backend: _summarized(call, _ask_summaries(call, backend)),
    ShellPaths: lambda call, backend: RealPaths(shell_paths(backend, call.paths)),
    Inspect: lambda call, backend: Inspected(natures(backend, call.paths)),
    Consult: lambda call, _backend: Consulted(call.ask()),
    Work: lambda call, _backend: Consulted(call.do()),
    Ask: lambda call, _backend: Consulted(call.call()),
    WaitFor: _wait,
}


# The same, async.


async def _alist(call: ListDirectory, backend: Backend) -> Reply:
    answer = await backend.als(call.path)
    entries = getattr(answer, "entries", answer)
    return await _converted(lambda: listing(answer), len(entries) if isinstance(entries, Sequence) else 0)


async def _converted(convert: Callable[[], Reply], size: int) -> Reply:
    """Return an answer as a reply; thousands of items are converted in a thread."""
    return convert() if size < LARGE_ANSWER else await asyncio.wrap_future(in_working_thread(convert))


async def _awrite(call: WriteFiles, backend: Backend) -> Reply:
    target = _target(call, backend)
    if target is None:
        return Failed(NO_SHELL)
    return to_written(call, await target.aupload_files(list(call.files)))


async def _aread(call: ReadFiles, backend: Backend) -> Reply:
    unfit: dict[str, File] = {}
    if is_local(backend, call.paths):
        unfit = await asyncio.wrap_future(in_thread(unfit_files, backend, call.paths, call.max_bytes))
    wanted = _without(call, unfit)
    answer = await backend.adownload_files(list(wanted.paths)) if wanted.paths else ()
    return await _converted(lambda: _joined(call, unfit, to_files(wanted, answer)), len(call.paths))


async def _asummarize(call: Summarize, backend: Backend) -> Reply:
    return _summarized(call, await backend.askill_summaries(list(call.paths)))


async def _aexecute(call: Execute, backend: Backend) -> Reply:
    shell = shell_of(backend)
    if shell is None:
        return Failed(NO_SHELL)
    return Executed(await shell.aexecute(call.command, **_timeout(call, shell)))


async def _aask(call: Ask, _backend: Backend) -> Reply:
    return Consulted(await call.acall())


async def _await(call: WaitFor, _backend: Backend) -> Reply:
    loop, is_done = asyncio.get_running_loop(), asyncio.Event()

    def notify(_future: object) -> None:
        # The loop may have ended before the one who was waited for.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(is_done.set)

    call.future.add_done_callback(notify)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(call.timeout):
            await is_done.wait()
    return _outcome(call)


_ASYNC_MAKERS: dict[type, Callable[[Any, Backend], Awaitable[Reply]]] = {
    ListDirectory: _alist,
    ReadFiles: _aread,
    WriteFiles: _awrite,
    Execute: _aexecute,
    Summarize: _asummarize,
    Ask: _aask,
    WaitFor: _await,
}

_METHODS: dict[type, tuple[str, str]] = {
    ListDirectory: ("ls", "als"),
    ReadFiles: ("download_files", "adownload_files"),
    WriteFiles: ("upload_files", "aupload_files"),
    Execute: ("execute", "aexecute"),
    Summarize: ("skill_summaries", "askill_summaries"),
}
"""The sync and the async method for each call that a backend answers itself."""


# Both.


def _outcome(call: WaitFor) -> Reply:
    """Return the result of a future that was waited for; that another call was cancelled does not cancel this one."""
    if not call.future.done():
        return late_reply(call.timeout)
    if call.future.cancelled():
        return Failed("the call that was waited for was cancelled")
    error = call.future.exception()
    if error is not None and passes_through(error):
        raise error
    return Consulted(call.future.result()) if error is None else Failed(describe(error))


def _paths(call: Call) -> tuple[str, ...]:
    if isinstance(call, ListDirectory):
        return (call.path,)
    if isinstance(call, WriteFiles):
        return tuple(path for path, _content in call.files)
    return call.paths if isinstance(call, ReadFiles | Summarize) else ()


def _without(call: ReadFiles, unfit: dict[str, File]) -> ReadFiles:
    return ReadFiles(tuple(path for path in call.paths if path not in unfit), call.max_bytes) if unfit else call


def _joined(call: ReadFiles, unfit: dict[str, File], reply: Reply) -> Reply:
    """Return the files of a batch in the order of the request, those that were not opened among them."""
    if not unfit or not isinstance(reply, Files):
        return reply
    by_path = {file.path: file for file in reply.files} | unfit
    return Files(tuple(by_path[path] for path in call.paths))


def late_reply(seconds: float | None) -> Failed:
    return Failed(f"no answer within {seconds or 0:g} seconds", timed_out=True)


# The two drivers that perform plans, sync and async.
#
# Both make the backend calls of a round at the same time, in waves of bounded size, and answer each with a value.


MAX_CALLS_AT_ONCE = 16
"""How many calls to one backend run at the same time."""


def drive(
    plan: Plan[ResultT],
    get_backend: Callable[[], Backend],
    seconds: float | None = None,
    backend: Backend = None,
) -> ResultT:
    """Perform `plan` on the backend's sync methods and return its result; a plan without calls needs no backend.

    `get_backend` may be a user's own; if it is late, so is every call. It is not called if the `backend` is known.
    """
    try:
        calls = next(plan)
        while True:
            if backend is None and any(map(_needs_backend, calls)):
                [made] = _perform((Consult(get_backend),), None, seconds)
                backend = made.value if isinstance(made, Consulted) else made
            calls = plan.send(_perform(calls, backend, seconds))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        plan.close()


async def adrive(
    plan: Plan[ResultT],
    get_backend: Callable[[], Backend],
    seconds: float | None = None,
    backend: Backend = None,
) -> ResultT:
    """Perform `plan` on the backend's async methods, as `drive` does; `get_backend` is called in a thread."""
    try:
        calls = next(plan)
        while True:
            if backend is None and any(map(_needs_backend, calls)):
                [made] = await _aperform((Consult(get_backend),), None, seconds)
                backend = made.value if isinstance(made, Consulted) else made
            calls = plan.send(await _aperform(calls, backend, seconds))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
    finally:
        plan.close()


def _needs_backend(call: Call) -> bool:
    return not isinstance(call, Consult | Work | Ask | WaitFor)


def _perform(calls: Sequence[Call], backend: Backend, seconds: float | None) -> list[Reply]:
    """Make the calls of a round: at the same time, except for those that are made here, one after the other."""
    limits = [limit_of(call, backend, seconds) for call in calls]
    is_quick = len(calls) == 1 or isinstance(backend, PathsOfThisMachine)
    replies: list[Reply | None] = [None] * len(calls)
    apart: list[int] = []
    for place, (call, limit) in enumerate(zip(calls, limits, strict=True)):
        if isinstance(backend, Failed) and _needs_backend(call):
            replies[place] = backend
        elif limit is None and (is_quick or not _needs_backend(call)):
            replies[place] = attempt(call, backend)
        else:
            apart.append(place)
    for wave in _waves_worth_waiting_for(apart, replies, limits):
        started = time.monotonic()
        futures = [in_thread(attempt, calls[place], backend) for place in wave]
        for place, future in zip(wave, futures, strict=True):
            done, _late = wait_for_futures([future], _left(limits[place], started))
            replies[place] = future.result() if done else late_reply(limits[place])
    return replies  # type: ignore[return-value]  # every place was filled


async def _aperform(calls: Sequence[Call], backend: Backend, seconds: float | None) -> list[Reply]:
    """Make the calls of a round without blocking: at the same time, except for those to extensions."""
    limits = [limit_of(call, backend, seconds) for call in calls]
    replies: list[Reply | None] = [None] * len(calls)
    apart: list[int] = []
    for place, call in enumerate(calls):
        if isinstance(backend, Failed) and _needs_backend(call):
            replies[place] = backend
        elif isinstance(call, Ask):
            replies[place] = await attempt_on_loop(call, backend)
        else:
            apart.append(place)
    for wave in _waves_worth_waiting_for(apart, replies, limits):
        for place, reply in zip(wave, await _awave(wave, calls, backend, limits), strict=True):
            replies[place] = reply
    return replies  # type: ignore[return-value]  # every place was filled


async def _awave(
    wave: Sequence[int], calls: Sequence[Call], backend: Backend, limits: Sequence[float | None]
) -> list[Reply]:
    """Make the calls of a wave at the same time; those that are late are cancelled."""
    started = time.monotonic()
    tasks = [asyncio.create_task(answer(calls[place], backend, limits[place])) for place in wave]
    try:
        for place, task in zip(wave, tasks, strict=True):
            await asyncio.wait([task], timeout=_left(limits[place], started))
    finally:
        for task in tasks:
            task.cancel()
    # Every error is looked at before the first is raised; asyncio logs those that nobody looked at.
    errors = [task.exception() if task.done() else None for task in tasks]
    for error in filter(None, errors):
        raise error
    return [
        task.result() if task.done() else late_reply(limits[place]) for place, task in zip(wave, tasks, strict=True)
    ]


def _waves_worth_waiting_for(
    places: Sequence[int], replies: list[Reply | None], limits: Sequence[float | None]
) -> Iterable[Sequence[int]]:
    """Give the calls to make next, until all of one wave were too late: the next would be, and their times add up."""
    before: Sequence[int] = ()
    for start in range(0, len(places), MAX_CALLS_AT_ONCE):
        wave = places[start : start + MAX_CALLS_AT_ONCE]
        if before and all(isinstance(reply := replies[place], Failed) and reply.timed_out for place in before):
            for place in wave:
                replies[place] = late_reply(limits[place])
        else:
            before = wave
            yield wave


def _left(limit: float | None, started: float) -> float | None:
    return None if limit is None else max(0.0, started + limit - time.monotonic())
