"""How long the command line takes to start, beside importing the two packages that draw it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from library import write_library
from measure import Row, seconds

RUNS = 5
"""How often each command runs; the quickest counts, for other work on the machine only adds."""

SKILLS = 20
"""How many skills the command finds."""

REACH = 0.5
"""How many seconds the slowest command may take."""

REFERENCE = ("-c", "import click, rich.console, rich.text")


def startup_row() -> Row:
    """Measure every command that people type often, and a shell's completion."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "skills"
        write_library(source, SKILLS)
        some = min(path.name for path in source.iterdir())
        asked = ["--source", str(source)]
        commands: dict[str, Sequence[str]] = {
            "help": ["--help"],
            "list": ["list", *asked],
            "info": ["info", some, *asked],
            "search": ["search", "report", *asked],
            "validate": ["validate", str(source)],
            "doctor": ["doctor", *asked],
            "create": ["create", "fresh-skill", "--description", "Does.", "--json", "--source", f"{name}/new"],
        }
        reference = _quickest(REFERENCE)
        times = {what: _quickest(("-m", "deepskills", *args)) for what, args in commands.items() if what != "create"}
        times["create"] = _seconds(("-m", "deepskills", *commands["create"]))
        words = f"deepskills info --source {source} {some[:3]}"
        completion = {"_DEEPSKILLS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
        times["completion"] = _quickest(("-m", "deepskills"), completion)
    slowest = max(times, key=lambda what: times[what])
    return Row(
        "the command, from start to end",
        f"import click, rich {reference * 1000:.0f} ms",
        f"{times['list'] * 1000:.0f} ms (list), {times[slowest] * 1000:.0f} ms (slowest: {slowest})",
        f"under {REACH * 1000:.0f} ms",
        times[slowest] < REACH,
        {"reference": reference, **times},
    )


def _quickest(args: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    return min(_seconds(args, env) for _ in range(RUNS))


def _seconds(args: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    command = [sys.executable, *args]
    surroundings = {**os.environ, **(env or {})}
    return seconds(lambda: subprocess.run(command, env=surroundings, capture_output=True, check=True))  # noqa: S603 - our own command


if __name__ == "__main__":
    print(startup_row())
