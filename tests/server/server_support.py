"""Processes that serve: started by the commands of the pages, and ended with all that they started."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
START_SECONDS = 180
"""How long a server may take to start, on a machine that does other things as well."""


def blocks_of(page: str, language: str) -> list[str]:
    """Return what stands between fences of that language on a how-to page."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], place: Path, alive: str) -> Iterator[Path]:
    """Run a command of this environment until the block ends, once `alive` answers; give the file of its output."""
    log = place / "log.txt"
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", "NO_COLOR": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / command[0], *command[1:]],
            cwd=place,
            env={**os.environ, **quiet},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(alive, process, log)
        yield log
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait_for(alive: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(alive).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"The server did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-5000:]}")
