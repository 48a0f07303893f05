"""Logic that waits for a user's objects, written once: flows, and the drivers that perform them sync and async.

A flow is a generator that yields what has to be waited for and is sent the outcome. Objects are known by their methods
only; a method `x` may have an async twin `ax`. A call that raises, or does not answer in time, is answered with
`CallFailed`; nothing is thrown into a flow.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from deepskills._io.drivers import in_thread


@dataclass(frozen=True)
class Work:
    """Ask for work of our own that takes its time; what it raises is raised."""

    do: Callable[[], Any]


@dataclass(frozen=True)
class Call:
    """Ask for a call of a method of a user's object."""

    target: Any
    method: str
    arguments: tuple[Any, ...]
    seconds: float
    """How long an answer is waited for."""

    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Ask for a moment in which another thread may finish what it is making."""

    seconds: float = 0.02


@dataclass(frozen=True)
class CallFailed:
    """Why a call gave nothing."""

    reason: str


Step: TypeAlias = Work | Call | Pause
ResultT = TypeVar("ResultT")
Flow: TypeAlias = Generator[Step, Any, ResultT]


def drive(flow: Flow[ResultT]) -> ResultT:
    """Perform a flow on sync methods and return its result."""
    with closing(flow):
        try:
            step = next(flow)
            while True:
                try:
                    reply = _perform(step)
                except Exception as error:  # noqa: BLE001 - the flow decides
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: ResultT = end.value
            return result


async def adrive(flow: Flow[ResultT]) -> ResultT:
    """Perform a flow on async methods, long work in a thread, and return its result."""
    with closing(flow):
        try:
            step = next(flow)
            while True:
                try:
                    reply = await _aperform(step)
                except Exception as error:  # noqa: BLE001 - the flow decides
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: ResultT = end.value
            return result


def _perform(step: Step) -> Any:  # noqa: ANN401 - what the step asks for
    if isinstance(step, Work):
        return step.do()
    if isinstance(step, Pause):
        return time.sleep(step.seconds)
    try:
        return in_thread(lambda: getattr(step.target, step.method)(*step.arguments, **step.options)).result(
            step.seconds
        )
    except FutureTimeoutError:
        return _late(step)
    except Exception as error:  # noqa: BLE001 - a user's object may raise anything; the flow is told
        return _failed(error)


async def _aperform(step: Step) -> Any:  # noqa: ANN401 - what the step asks for
    if isinstance(step, Work):
        return await asyncio.wrap_future(in_thread(step.do))
    if isinstance(step, Pause):
        return await asyncio.sleep(step.seconds)
    twin = getattr(step.target, f"a{step.method}", None)
    try:
        # Not `wait_for`: on Python 3.11 that can swallow a cancellation which comes as the call ends.
        async with asyncio.timeout(step.seconds):
            if twin is None or _only_waits_for_a_thread(twin):
                own = in_thread(lambda: getattr(step.target, step.method)(*step.arguments, **step.options))
                return await asyncio.wrap_future(own)
            return await twin(*step.arguments, **step.options)
    except TimeoutError:
        return _late(step)
    except Exception as error:  # noqa: BLE001 - a user's object may raise anything; the flow is told
        return _failed(error)


def _only_waits_for_a_thread(method: Any) -> bool:  # noqa: ANN401 - a method of a user's object
    """Whether an async method is the framework's default, whose threads the end of the process would wait for."""
    module = getattr(getattr(method, "__func__", method), "__module__", None) or ""
    return str(module).startswith("langchain_core.")


def _late(step: Call) -> CallFailed:
    return CallFailed(f"{step.method} gave no answer within {step.seconds:.3g} seconds")


def _failed(error: Exception) -> CallFailed:
    return CallFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
