"""Work in a thread of its own."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
