"""The two drivers of plans, and the only code that calls a backend, a user's function or an extension.

Theory of operation
    `drive` and `adrive` differ in one thing: how the calls of a round are made (`_perform`, `_aperform`). Everything
    else is in `Steps`, which starts a plan, hands replies over and knows the rule for errors (see `plan`). So the
    two cannot drift apart.

    What a call needs is decided by its type, in tables: `_MAKERS` for sync, `_ASYNC_MAKERS` for what can be awaited
    on the event loop, `limit_of` for how long it may take. A maker returns the reply, returns `Failed`, or raises;
    `attempt` turns what it raises into `Failed`, except what LangGraph must see. Only `Steps` turns `Failed` into an
    exception.

Where a call runs
    - Sync, without a limit: here, in the caller's thread, because that is fastest.
    - Sync, with a limit or beside others: in a thread of its own, and given up when it is late.
    - Async, where the backend's method is natively async: on the event loop, and cancelled when it is late.
    - Async, anything else: in a thread of its own.

    That thread is not one of the loop's pool, although deepagents' own async methods would use just that:
    `asyncio.run` and the interpreter wait for a pool's threads at the end, so one call that hangs would keep the
    process from ending. Every thread sees the context of its caller; `StateBackend` works only there.

Rules that keep it right
    A round is made in waves of `MAX_CALLS_AT_ONCE`. When every call of a wave was late, the following ones are not
    made: a backend that hangs costs a round one time limit, not one for each wave. A driver closes its plan in every
    case, so a plan's `finally` runs at once and not when garbage is collected.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Any, Generic, TypeAlias, TypeVar

from deepskills._io.backends import (
    PathsOfThisMachine,
    accepts_timeout,
    describe,
    existing_paths,
    find_route,
    find_routed_parts,
    has_own,
    is_local,
    is_natively_async,
    listing,
    only_async,
    passes_through,
    real_paths,
    shell_of,
    shell_paths,
    to_files,
    to_written,
    unfit_files,
)
from deepskills._io.bridge import bridge
from deepskills._io.plan import (
    MAX_CALLS_AT_ONCE,
    Ask,
    Attempt,
    Call,
    CallFailed,
    CallFunction,
    Execute,
    Failed,
    File,
    FindExisting,
    FindFiles,
    FindRoutes,
    ListDirectory,
    Pause,
    Plan,
    ReadFiles,
    ResolveLinks,
    ResultT,
    Round,
    ShellPaths,
    WaitFor,
    Work,
    WriteFiles,
    together,
)

logger = logging.getLogger("deepskills")

EXECUTE_GRACE = 5.0
"""Seconds beyond its own timeout that a command may take to end before it counts as late."""

SETTLE_SECONDS = 15.0
"""How long a cancelled run waits for a call that `settles`, and after that for the plan's clean-up."""

LARGE_ANSWER = 1_000
"""The number of items from which a backend's answer is converted off the event loop."""

WORKERS = 2
"""How many threads compute at a time; more would only make the event loop wait longer for its turn."""

NO_SHELL = "the backend runs no commands"
"""Why `Execute` fails on a backend without a shell."""

AnyCall: TypeAlias = Call[Any]

Backend: TypeAlias = Any
"""A backend, `Failed` if it could not be made, `None` if it is not known yet or not needed."""

Reply: TypeAlias = Any
"""The answer to a call, or `Failed`."""


# The drivers.


def no_backend() -> Backend:
    """Refuse to make a backend, for plans that need none."""
    raise RuntimeError("this plan was given no backend")


def drive(
    plan: Plan[ResultT],
    get_backend: Callable[[], Backend] = no_backend,
    seconds: float | None = None,
    backend: Backend = None,
) -> ResultT:
    """Perform `plan` on sync methods and return its result.

    Args:
        plan: What to perform.
        get_backend: Makes the backend, at the first call that needs one. It may be a user's function: if it fails or is
            late, so is every call that needs a backend.
        seconds: The time limit of each call that names no other.
        backend: The backend, where it is known; `get_backend` is not called then.
    """
    steps = Steps(plan)
    try:
        calls = steps.start()
        while calls is not None:
            # As late as possible: the user's function is not called for a plan that turns out to need no backend.
            if backend is None and any(map(_needs_backend, calls)):
                [backend] = _perform((CallFunction(get_backend),), None, seconds)
            calls = steps.answer(_perform(calls, backend, seconds))
    finally:
        plan.close()
    return steps.result


async def adrive(
    plan: Plan[ResultT],
    get_backend: Callable[[], Backend] = no_backend,
    seconds: float | None = None,
    backend: Backend = None,
) -> ResultT:
    """Perform `plan` on async methods, as `drive` does; `get_backend` is called in a thread."""
    steps = Steps(plan)
    try:
        calls = steps.start()
        while calls is not None:
            try:
                if backend is None and any(map(_needs_backend, calls)):
                    [backend] = await _aperform((CallFunction(get_backend),), None, seconds)
                replies = await _aperform(calls, backend, seconds)
            except asyncio.CancelledError as cancelled:
                await _clean_up(steps, cancelled, backend, seconds)
                raise
            calls = steps.answer(replies)
    finally:
        plan.close()
    return steps.result


async def _clean_up(
    steps: "Steps[Any]", cancelled: asyncio.CancelledError, backend: Backend, seconds: float | None
) -> None:
    """Tell a plan that its run was cancelled, and make the calls by which it cleans up, for a short time."""
    try:
        # Bounded: a backend that hangs must not hold up a cancellation.
        async with asyncio.timeout(SETTLE_SECONDS):
            calls = steps.throw(cancelled)
            while calls is not None:
                calls = steps.answer(await _aperform(calls, backend, seconds))
    except asyncio.CancelledError:
        return  # the usual end: the plan let it pass
    except Exception as error:  # noqa: BLE001 - the cancellation goes on, whatever becomes of the clean-up
        logger.warning("The clean-up of a cancelled run failed: %s", type(error).__name__)


class Steps(Generic[ResultT]):
    """A plan that is being performed: what it asks for next, and how it is answered.

    This is where the rule for errors lives, once for both drivers.
    """

    result: ResultT

    def __init__(self, plan: Plan[ResultT]) -> None:
        self._plan = plan
        self._asked: Call[Any] | Round[Any] = Round(())

    def start(self) -> Sequence[AnyCall] | None:
        """Return the first calls to make; `None` if the plan is over."""
        return self._next(self._plan.send, None)

    def answer(self, replies: Sequence[Reply]) -> Sequence[AnyCall] | None:
        """Hand replies over and return the next calls; `None` if the plan is over."""
        asked = self._asked
        # The usual case, on a path that every call takes.
        if not isinstance(asked, Round):
            reply = replies[0]
            if isinstance(reply, Failed) and not isinstance(asked, Attempt):
                return self.throw(CallFailed(reply))
            return self._next(self._plan.send, reply)
        # All calls of the round were made; the first failure in their order is raised, so that runs are repeatable.
        for request, reply in zip(asked.calls, replies, strict=True):
            if isinstance(reply, Failed) and not isinstance(request, Attempt):
                return self.throw(CallFailed(reply))
        return self._next(self._plan.send, tuple(replies))

    def throw(self, error: BaseException) -> Sequence[AnyCall] | None:
        """Raise an error where the plan waits and return the next calls; `None` if the plan is over."""
        return self._next(self._plan.throw, error)

    def _next(self, resume: Callable[[Any], Any], value: object) -> Sequence[AnyCall] | None:
        try:
            self._asked = asked = resume(value)
        except StopIteration as end:
            self.result = end.value
            return None
        if not isinstance(asked, Round):
            return [asked.call if isinstance(asked, Attempt) else asked]
        return [request.call if isinstance(request, Attempt) else request for request in asked.calls]


def _needs_backend(call: AnyCall) -> bool:
    return not isinstance(call, CallFunction | Work | Ask | WaitFor | Pause)


async def side_by_side(*plans: Plan[ResultT]) -> list[ResultT]:
    """Perform several plans at the same time: their rounds are joined, so none waits for another's calls.

    For plans that only read: when one fails, or the run is cancelled, all are closed and none can make further calls.
    """
    if len(plans) == 1:
        return [await plans[0]]
    steps = [Steps(plan) for plan in plans]
    try:
        pending = [each.start() for each in steps]
        # A plan may ask for nothing, and goes on; one that is over has no calls at all.
        while any(calls is not None for calls in pending):
            replies = iter(await together(*(Attempt(call) for calls in pending for call in calls or ())))
            pending = [
                None if calls is None else each.answer([next(replies) for _ in calls])
                for each, calls in zip(steps, pending, strict=True)
            ]
    finally:
        for plan in plans:
            plan.close()
    return [each.result for each in steps]


# How the calls of a round are made.


def _perform(calls: Sequence[AnyCall], backend: Backend, seconds: float | None) -> list[Reply]:
    """Make the calls of a round: at the same time, except for those that are made here, one after the other."""
    limits = [limit_of(call, backend, seconds) for call in calls]
    # A thread for each call is not worth it for one call, nor for paths of this machine, which nobody waits for.
    is_quick = len(calls) == 1 or isinstance(backend, PathsOfThisMachine)
    replies: list[Reply] = [None] * len(calls)
    apart: list[int] = []
    for place, (call, limit) in enumerate(zip(calls, limits, strict=True)):
        if isinstance(backend, Failed) and _needs_backend(call):
            replies[place] = backend
        # Here, without a thread: with no limit nobody could give the call up anyway.
        elif limit is None and (is_quick or not _may_run_beside_others(call)):
            replies[place] = attempt(call, backend)
        else:
            apart.append(place)
    for wave in _waves_worth_waiting_for(apart, replies, limits):
        # All of the wave start together, so each one's limit counts from the same moment.
        started = time.monotonic()
        futures = [in_thread(attempt, calls[place], backend) for place in wave]
        for place, future in zip(wave, futures, strict=True):
            done, _late = wait_for_futures([future], _leave(limits[place], started))
            replies[place] = future.result() if done else late_reply(limits[place])
    return replies


def _may_run_beside_others(call: AnyCall) -> bool:
    """Whether a sync run gains by a thread: `Work` computes, and extensions are asked in order."""
    return _needs_backend(call) or isinstance(call, CallFunction)


async def _aperform(calls: Sequence[AnyCall], backend: Backend, seconds: float | None) -> list[Reply]:
    """Make the calls of a round without blocking: at the same time, except for those to extensions."""
    limits = [limit_of(call, backend, seconds) for call in calls]
    replies: list[Reply] = [None] * len(calls)
    apart: list[int] = []
    for place, call in enumerate(calls):
        if isinstance(backend, Failed) and _needs_backend(call):
            replies[place] = backend
        elif isinstance(call, Ask):
            # In order, and nothing else meanwhile: an interrupt is matched by its position.
            replies[place] = await attempt_on_loop(call, backend)
        else:
            apart.append(place)
    for wave in _waves_worth_waiting_for(apart, replies, limits):
        for place, reply in zip(wave, await _awave(wave, calls, backend, limits), strict=True):
            replies[place] = reply
    return replies


async def _awave(
    wave: Sequence[int], calls: Sequence[AnyCall], backend: Backend, limits: Sequence[float | None]
) -> list[Reply]:
    """Make the calls of a wave at the same time; those that are late are cancelled."""
    started = time.monotonic()
    tasks = [asyncio.create_task(answer(calls[place], backend, limits[place])) for place in wave]
    try:
        for place, task in zip(wave, tasks, strict=True):
            # Not `wait_for`: on Python 3.11 that can swallow a cancellation which comes as the call ends.
            await asyncio.wait([task], timeout=_leave(limits[place], started))
    except asyncio.CancelledError:
        # A file that arrives after the clean-up would stay forever, so such calls get a moment to end.
        settling = [task for place, task in zip(wave, tasks, strict=True) if getattr(calls[place], "settles", False)]
        if settling:
            await asyncio.wait(settling, timeout=SETTLE_SECONDS)
        raise
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
    places: Sequence[int], replies: list[Reply], limits: Sequence[float | None]
) -> Iterable[Sequence[int]]:
    """Give the calls to make next, until all of one wave were too late: the next would be, and their times add up."""
    before: Sequence[int] = ()
    for start in range(0, len(places), MAX_CALLS_AT_ONCE):
        wave = places[start : start + MAX_CALLS_AT_ONCE]
        # Every call of the last wave hung: the backend does, and the next wave would wait as long for nothing.
        if before and all(isinstance(reply := replies[place], Failed) and reply.timed_out for place in before):
            for place in wave:
                replies[place] = late_reply(limits[place])
        else:
            before = wave
            yield wave


def _leave(limit: float | None, started: float) -> float | None:
    return None if limit is None else max(0.0, started + limit - time.monotonic())


def late_reply(seconds: float | None) -> Failed:
    """Return the failure of a call that was given up."""
    return Failed(f"no answer within {seconds or 0:.3g} seconds", timed_out=True)


def limit_of(call: AnyCall, backend: Backend, seconds: float | None) -> float | None:
    """Return how long to wait for a call; a command's own timeout is the backend's to keep, and ours to enforce."""
    if isinstance(call, Execute):
        shell = shell_of(backend)
        if call.timeout is None or shell is None:
            return None
        # The backend ends the command itself and says so, which tells more than our giving up. Give it the time.
        return call.timeout + (EXECUTE_GRACE if accepts_timeout(shell) else 0)
    if isinstance(call, CallFunction):
        return seconds if call.seconds == "usual" else call.seconds
    # An extension may ask a human, and our own work ends by itself; a wait and a pause know how long they take.
    return None if isinstance(call, Ask | Work | WaitFor | Pause) else seconds


# Work in threads: one of its own for what may hang, one of a few for what only computes.


ValueT = TypeVar("ValueT")


def in_thread(work: Callable[..., ValueT], *arguments: object) -> Future[ValueT]:
    """Do `work` in a thread that sees this context and that nobody waits for at the end of the process."""
    future: Future[ValueT] = Future()
    # Running from the start: a future that somebody could cancel would raise when its result is set.
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(work, *arguments)
        except BaseException as error:  # noqa: BLE001 - handed over to the one who waits
            future.set_exception(error)
        else:
            future.set_result(result)

    # A daemon: the end of the process does not wait for a call that hangs.
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
# Servers load an application and then fork; the child has the pool's object and none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.renew)


# How one call is made.


def needs_loop(error: BaseException) -> bool:
    """Whether a function failed because it was called off the event loop; it is called on it then."""
    return isinstance(error, RuntimeError) and str(error) == "no running event loop"


def attempt(call: AnyCall, backend: Backend) -> Reply:
    """Make one call here and now; whatever it raises is a failure, except what LangGraph needs to see."""
    try:
        return _MAKERS[type(call)](call, backend)
    except BaseException as error:
        if _is_interrupt(error) or passes_through(error):
            raise
        return _to_failed(error)


async def attempt_on_loop(call: AnyCall, backend: Backend) -> Reply:
    """Make one call on the event loop; whatever it raises is a failure, except what LangGraph needs to see."""
    task = asyncio.current_task()
    try:
        return await _ASYNC_MAKERS[type(call)](call, backend)
    except BaseException as error:
        # The run was cancelled, or this coroutine closed. Where neither is so, the function says it of itself.
        is_end = not isinstance(error, Exception) and not _is_at_work(task)
        if is_end or isinstance(error, KeyboardInterrupt) or passes_through(error):
            raise
        return _to_failed(error)


def _is_interrupt(error: BaseException) -> bool:
    # Only the main thread is interrupted by its user; in any other it is the function that says so.
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def _is_at_work(task: "asyncio.Task[Any] | None") -> bool:
    try:
        return task is not None and asyncio.current_task() is task and not task.cancelling()
    except RuntimeError:  # no loop runs: the coroutine is closed, not stepped
        return False


def _to_failed(error: BaseException) -> Failed:
    contained = _contain(error)
    return Failed(describe(contained), error=contained)


def _contain(error: BaseException) -> Exception:
    """Return as a usual exception what would end more than the call, such as `exit` or a client that cancels itself."""
    if isinstance(error, asyncio.CancelledError | CancelledError):
        what = "was cancelled"
    elif isinstance(error, Exception):
        return error
    else:
        what = f"called exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {describe(error)}"
    contained = RuntimeError(f"it {what}")
    contained.__cause__ = error
    return contained


async def answer(call: AnyCall, backend: Backend, limit: float | None) -> Reply:
    """Make one call without blocking the event loop.

    With a limit, a backend whose async methods only wait for a thread is called in a thread of ours: the loop's own
    pool would be waited for at the end of the process.
    """
    is_own = isinstance(call, WaitFor | Pause | CallFunction | FindRoutes)
    # What is awaited without a thread is awaited here; everything else would block the loop.
    if is_own or (type(call) in _METHODS and _is_awaited(call, backend, limit)):
        return await attempt_on_loop(call, backend)
    start = in_working_thread if isinstance(call, Work) else in_thread
    return await asyncio.wrap_future(start(attempt, call, backend))


def _is_awaited(call: AnyCall, backend: Backend, limit: float | None) -> bool:
    """Whether the backend's async method is used: always if there is no other, and where it needs no thread."""
    plain = _METHODS[type(call)]
    native, target = f"a{plain}", _target(call, backend)
    parts: list[object] = [target]
    if target is backend:
        if not hasattr(backend, native):
            return False
        if limit is None:
            return True
        parts = find_routed_parts(backend, _paths(call))
    # A backend that has the async method alone leaves no choice.
    if any(has_own(part, native) and not has_own(part, plain) for part in parts):
        return True
    return all(is_natively_async(part, native) for part in parts)


# What backends do themselves: each call has a method, on the whole backend or on the shell in it.


_METHODS: dict[type, str] = {
    ListDirectory: "ls",
    FindFiles: "glob",
    ReadFiles: "download_files",
    WriteFiles: "upload_files",
    Execute: "execute",
}
"""The sync method for each call that a backend answers itself; the async one begins with an `a`."""


def _target(call: AnyCall, backend: Backend) -> Backend:
    """Return what answers a call: the whole backend, or the shell in it; `None` if that is wanted and there is none."""
    needs_shell = isinstance(call, Execute) or (isinstance(call, WriteFiles) and call.for_shell)
    return shell_of(backend) if needs_shell else backend


def _arguments(call: AnyCall) -> tuple[Any, ...]:
    if isinstance(call, Execute):
        return (call.command,)
    if isinstance(call, WriteFiles):
        return (list(call.files),)
    if isinstance(call, ReadFiles):
        return (list(call.paths),)
    if isinstance(call, FindFiles):
        return (call.pattern, call.path)
    return (call.path,) if isinstance(call, ListDirectory) else ()


def _options(call: AnyCall, target: object) -> dict[str, Any]:
    """Return the timeout of a command as an argument, for a backend that takes one."""
    if isinstance(call, Execute) and call.timeout is not None and accepts_timeout(target):
        return {"timeout": call.timeout}
    return {}


def _reply_to(call: AnyCall, answer: Any) -> Reply:  # noqa: ANN401 - whatever a backend answered
    if isinstance(call, ListDirectory | FindFiles):
        return listing(answer)
    if isinstance(call, ReadFiles):
        return to_files(call, answer)
    return to_written(call, answer) if isinstance(call, WriteFiles) else answer


def _ask_backend(call: AnyCall, backend: Backend) -> Reply:
    target, method = _target(call, backend), _METHODS[type(call)]
    if target is None:
        return Failed(NO_SHELL)
    refusal = only_async(target, _paths(call), method)
    if refusal is not None:
        return Failed(refusal)
    return _reply_to(call, getattr(target, method)(*_arguments(call), **_options(call, target)))


async def _aask_backend(call: AnyCall, backend: Backend) -> Reply:
    target, method = _target(call, backend), _METHODS[type(call)]
    if target is None:
        return Failed(NO_SHELL)
    answer = await getattr(target, f"a{method}")(*_arguments(call), **_options(call, target))
    items = getattr(answer, "entries", answer)
    # Thousands of items are converted in a thread.
    if isinstance(items, Sequence) and len(items) >= LARGE_ANSWER:
        return await asyncio.wrap_future(in_working_thread(_reply_to, call, answer))
    return _reply_to(call, answer)


def _read(call: ReadFiles, backend: Backend) -> Reply:
    # Before anything is opened: to open a FIFO waits for a writer, and a huge file would fill memory.
    unfit = unfit_files(backend, call.paths, call.max_bytes)
    wanted = _without(call, unfit)
    return _join(call, unfit, _ask_backend(wanted, backend) if wanted.paths else ())


async def _aread(call: ReadFiles, backend: Backend) -> Reply:
    unfit: dict[str, File] = {}
    if is_local(backend, call.paths):
        # The look at the disk may hang as well (a network mount), so not on the loop.
        unfit = await asyncio.wrap_future(in_thread(unfit_files, backend, call.paths, call.max_bytes))
    wanted = _without(call, unfit)
    return _join(call, unfit, await _aask_backend(wanted, backend) if wanted.paths else ())


def _without(call: ReadFiles, unfit: dict[str, File]) -> ReadFiles:
    return ReadFiles(tuple(path for path in call.paths if path not in unfit), call.max_bytes) if unfit else call


def _join(call: ReadFiles, unfit: dict[str, File], reply: Reply) -> Reply:
    """Return the files of a batch in the order of the request, those that were not opened among them."""
    if not unfit or isinstance(reply, Failed):
        return reply
    by_path = {file.path: file for file in reply} | unfit
    return tuple(by_path[path] for path in call.paths)


# Other calls.


def _call(call: CallFunction[Any], _backend: Backend) -> Reply:
    return await_if_needed(_invoke(call))


def await_if_needed(value: Any) -> Any:  # noqa: ANN401 - whatever a function returned
    """Return what a function gave, waiting for it if that was a coroutine; the bridge's loop performs it."""

    async def wait() -> Any:  # noqa: ANN401 - as above
        return await value

    # Not in this thread, which may have a loop that is running.
    return bridge.run_anywhere(wait) if inspect.isawaitable(value) else value


def _invoke(call: CallFunction[Any]) -> Any:  # noqa: ANN401 - whatever it returns
    try:
        return call.function(*call.arguments, **call.options)
    except BaseException as error:
        if _is_interrupt(error):
            raise
        # Before it leaves a thread: an event loop that gets it from there may end by it.
        raise _contain(error)  # noqa: B904 - it has its own cause


def _wait(call: WaitFor[Any], _backend: Backend) -> Reply:
    # `exception` waits as `result` does and raises nothing of the other call's.
    with contextlib.suppress(TimeoutError, CancelledError):
        call.future.exception(call.timeout)
    return _outcome(call)


_MAKERS: dict[type, Callable[[Any, Backend], Reply]] = {
    **dict.fromkeys(_METHODS, _ask_backend),
    ReadFiles: _read,
    ResolveLinks: lambda call, backend: real_paths(backend, call.paths),
    FindRoutes: lambda call, backend: {path: find_route(backend, path) for path in call.paths},
    ShellPaths: lambda call, backend: shell_paths(backend, call.paths),
    FindExisting: lambda call, backend: existing_paths(backend, call.paths),
    CallFunction: _call,
    Work: lambda call, _backend: call.do(),
    Ask: lambda call, _backend: await_if_needed(call.call()),
    WaitFor: _wait,
    Pause: lambda call, _backend: time.sleep(call.seconds),
}


# The same, async.


async def _afind_routes(call: FindRoutes, backend: Backend) -> Reply:
    return {path: find_route(backend, path) for path in call.paths}


async def _acall(call: CallFunction[Any], _backend: Backend) -> Reply:
    function = call.function
    if call.twin is not None:
        return await call.twin(*call.arguments, **call.options)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await _invoke(call)
    try:
        value = await asyncio.wrap_future(in_thread(_invoke, call))
    except RuntimeError as error:
        if not needs_loop(error):
            raise
        # It asks for the running event loop, as the constructors of async clients do, so it has to run on it.
        value = _invoke(call)
    return await value if inspect.isawaitable(value) else value


async def _aask(call: Ask[Any], _backend: Backend) -> Reply:
    value = call.call()
    return await value if inspect.isawaitable(value) else value


async def _await(call: WaitFor[Any], _backend: Backend) -> Reply:
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
    **dict.fromkeys(_METHODS, _aask_backend),
    ReadFiles: _aread,
    FindRoutes: _afind_routes,
    CallFunction: _acall,
    Ask: _aask,
    WaitFor: _await,
    Pause: lambda call, _backend: asyncio.sleep(call.seconds),
}

# Both.


def _outcome(call: WaitFor[Any]) -> Reply:
    """Return the result of a future that was waited for; the cancellation of another call does not cancel this one."""
    if not call.future.done():
        return late_reply(call.timeout)
    if call.future.cancelled():
        return Failed("the call that was waited for was cancelled")
    error = call.future.exception()
    if error is not None and passes_through(error):
        raise error
    return call.future.result() if error is None else Failed(describe(error), error=error)


def _paths(call: AnyCall) -> tuple[str, ...]:
    if isinstance(call, ListDirectory | FindFiles):
        return (call.path,)
    if isinstance(call, WriteFiles):
        return tuple(path for path, _content in call.files)
    return call.paths if isinstance(call, ReadFiles) else ()
