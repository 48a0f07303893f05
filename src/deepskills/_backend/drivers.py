"""The two drivers that perform plans, sync and async.

Both make the backend calls of a round at the same time, in waves of bounded size, and answer each with a value.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait as wait_for_futures

from deepskills._backend.calls import Ask, Call, Consult, Consulted, Failed, Plan, Reply, ResultT, WaitFor, Work
from deepskills._backend.local import PathsOfThisMachine
from deepskills._backend.making import Backend, answer, attempt, attempt_on_loop, late_reply, limit_of
from deepskills._backend.threads import in_thread

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
