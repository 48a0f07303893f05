"""A plan: long work of our own, which never holds the event loop."""

from collections.abc import Callable
from typing import TypeVar

from deepskills._backend.calls import Consulted, Failed, Plan, Work
from deepskills._errors import SkillsError

LARGE = 250
"""From how many items on work is done in a thread; fewer take less than starting one is worth."""

ValueT = TypeVar("ValueT")


def apart(work: Callable[[], ValueT], size: int) -> Plan[ValueT]:
    """Return what `work` on `size` items gives; async runs do much of it in a thread. What it raises is raised.

    Raises:
        SkillsError: If the thread gave no answer.
    """
    if size < LARGE:
        return work()
    [reply] = yield (Work(lambda: _tried(work)),)
    if not isinstance(reply, Consulted):
        raise SkillsError(reply.reason if isinstance(reply, Failed) else "no answer")
    value, error = reply.value
    if error is not None:
        raise error
    result: ValueT = value
    return result


def _tried(work: Callable[[], ValueT]) -> tuple[ValueT | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - raised where it was asked for
        return None, error
