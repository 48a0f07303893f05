"""Waiting in tests: for processes, for what becomes true, and for time limits that pass."""

import asyncio
import os
import random
import selectors
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def wait_until(is_true: Callable[[], bool], seconds: float = 60) -> bool:
    """Return whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_true()


def at_once(work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Do the same work for all items at the same time, so that time limits that pass are waited for only once."""
    given = list(items)
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(work, given))


class HastyLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer while nothing else is to be done: time limits pass at once."""

    def __init__(self) -> None:
        self._skipped = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop._skipped += timeout or 0.0
                return super().select(None if timeout is None else 0)

        super().__init__(Selector())

    def time(self) -> float:
        return super().time() + self._skipped


def within_some_limit(check: Callable[[float], object]) -> None:
    """Do a check with a time limit that is soon over; where a busy machine itself was late, with longer ones."""
    for seconds in (0.2, 2.0):
        try:
            check(seconds)
        except AssertionError:
            continue
        return
    check(20.0)


def new_mark() -> str:
    """Return a number of seconds to sleep that no other command line on this machine holds."""
    return str(random.SystemRandom().randrange(10**7, 10**8))


def found_processes(mark: str) -> dict[int, str]:
    """Return the live processes, except this one, whose command lines hold a mark."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line and str(os.getpid()) != path.name:
            found[int(path.name)] = line
    return found


def is_gone(mark: str) -> bool:
    """Whether all processes with a mark end; one that was killed may need its turn on a busy machine for that."""
    return wait_until(lambda: not found_processes(mark))
