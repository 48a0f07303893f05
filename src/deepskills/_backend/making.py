"""How each call is made: the only place that calls a backend, a user's function or an extension.

What only waits for a thread runs in threads of our own that nobody waits for at the end of the process.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeAlias, TypeVar

from deepskills._backend.answers import describe, listing, only_async, to_files, to_written
from deepskills._backend.calls import (
    Ask,
    Call,
    Consult,
    Consulted,
    DescribeSkill,
    Execute,
    Executed,
    Failed,
    File,
    Files,
    Inspect,
    Inspected,
    ListDirectory,
    ReadFiles,
    RealPaths,
    Reply,
    ResolveLinks,
    ShellPaths,
    Summarize,
    Summarized,
    WaitFor,
    Work,
    WriteFiles,
)
from deepskills._backend.frameworks import accepts_timeout, passes_through
from deepskills._backend.local import is_local, natures, real_paths, shell_paths, unfit_files
from deepskills._backend.routes import has_own, is_natively_async, routed, routed_parts, shell_of
from deepskills._backend.threads import in_thread, in_working_thread
from deepskills._types import SkillSummary

EXECUTE_GRACE = 5.0
"""Seconds beyond its own timeout that a command may take to end before it counts as late."""

LARGE_ANSWER = 1_000
"""From how many items on a backend's answer is not converted on the event loop."""

NO_SHELL = "the backend runs no commands"
"""The reason of `Failed` for `Execute` on a backend without a shell."""

ValueT = TypeVar("ValueT")

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
    if isinstance(call, DescribeSkill):
        return callable(getattr(routed(backend, call.path)[0], native, None))
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


def _describe_skill(call: DescribeSkill, backend: Backend) -> Reply:
    part, path = routed(backend, call.path)
    ask = getattr(part, "skill_manifest", None)
    return Consulted(ask(path) if callable(ask) else None)


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
    DescribeSkill: _describe_skill,
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


async def _adescribe_skill(call: DescribeSkill, backend: Backend) -> Reply:
    part, path = routed(backend, call.path)
    return Consulted(await part.askill_manifest(path))  # type: ignore[attr-defined]  # looked for before


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
    DescribeSkill: _adescribe_skill,
    Ask: _aask,
    WaitFor: _await,
}

_METHODS: dict[type, tuple[str, str]] = {
    ListDirectory: ("ls", "als"),
    ReadFiles: ("download_files", "adownload_files"),
    WriteFiles: ("upload_files", "aupload_files"),
    Execute: ("execute", "aexecute"),
    Summarize: ("skill_summaries", "askill_summaries"),
    DescribeSkill: ("skill_manifest", "askill_manifest"),
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
