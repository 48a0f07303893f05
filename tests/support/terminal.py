"""The command on a terminal, in the process of a test."""

import contextlib
import os
import pty
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from deepskills import __main__ as entry


def drawn(*args: str, columns: int = 120) -> str:
    """Run a command that asks nothing in this process, on a terminal, and return all that the terminal showed."""
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(read_to_the_end, ours)
        with (
            open(theirs, "w", encoding="utf-8") as terminal,  # noqa: PTH123 - a number, not a path
            contextlib.redirect_stdout(terminal),
            contextlib.redirect_stderr(terminal),
            mock.patch.dict(os.environ, COLUMNS=str(columns)),
            mock.patch.object(sys, "argv", ["deepskills", *args]),
            contextlib.suppress(SystemExit),
        ):
            entry.main()
        return shown.result()


def read_to_the_end(terminal: int) -> str:
    """Return what is written to a terminal until its other end is closed."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    return shown.decode()
