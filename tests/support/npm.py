"""Packages of npm for tests: the conformance suite of MCP, and Mermaid, which draws the diagrams on pages."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def run_npm(*args: str, place: Path) -> str:
    """Run npm in a directory, which is made, and return what it prints; skip where there is no npm, except in CI."""
    npm = shutil.which("npm")
    if npm is None and not os.environ.get("CI"):
        pytest.skip("this test needs npm")
    assert npm is not None, "this test needs npm"
    place.mkdir(parents=True, exist_ok=True)
    for is_last in (False, True):
        # A mirror may fail once.
        done = subprocess.run([npm, *args], cwd=place, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert not is_last, done.stderr[-2000:]
    return done.stdout
