"""Work in threads: one of its own for what may hang, one of a few for what only computes."""

import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
