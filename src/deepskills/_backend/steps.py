"""Two drivers for generators that ask for one step at a time: how a step is done is given, sync or async."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")


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
