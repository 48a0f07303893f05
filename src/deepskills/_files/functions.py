"""Calls of an operator's functions, sync or async, from sync or async code, without blocking and within a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from deepskills._backend.threads import in_thread


def call_function(function: Callable[..., Any], given: Sequence[object], seconds: float | None) -> Any:  # noqa: ANN401
    """Return what a function returns; an async one runs on an event loop of its own.

    Raises:
        TimeoutError: If it does not answer in time; it is left alone then.
    """
    return in_thread(_finished, function, given).result(seconds)


def _finished(function: Callable[..., Any], given: Sequence[object]) -> Any:  # noqa: ANN401 - whatever it returns
    value = _called(function, given)
    return asyncio.run(_waited(value)) if inspect.isawaitable(value) else value


def _called(function: Callable[..., Any], given: Sequence[object]) -> Any:  # noqa: ANN401 - whatever it returns
    """Return what a function returns; one that wants to end the process, as scripts do, has only failed."""
    try:
        return function(*given)
    except SystemExit as error:
        raise _exited(error) from error


def _exited(error: SystemExit) -> RuntimeError:
    return RuntimeError(f"it called exit({error.code!r})")


async def _waited(value: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever it returns
    try:
        return await value
    except SystemExit as error:
        raise _exited(error) from error


async def acall_function(function: Callable[..., Any], given: Sequence[object], seconds: float | None) -> Any:  # noqa: ANN401
    """Return what a function returns; an async one runs on this event loop, any other in a thread.

    Raises:
        TimeoutError: If it does not answer in time; an async one is cancelled then, any other left alone.
    """
    async with asyncio.timeout(seconds):
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await _waited(function(*given))
        value = await asyncio.wrap_future(in_thread(_called, function, given))
        return await _waited(value) if inspect.isawaitable(value) else value
