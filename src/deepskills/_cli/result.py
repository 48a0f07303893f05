"""How a command ends: what it prints, as JSON or for a person, what it remarks, and its exit code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from deepskills._cli.output import Output

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
"""Exit codes: something is wrong, or it could not be done; an argument leads nowhere; ended by Ctrl-C."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True)
class Result:
    """What a command found."""

    value: object
    """What `--json` prints."""

    show: Callable[[], object]
    """Prints the same for a person or a pipe."""

    code: int = 0
    """The exit code."""

    remark: str = ""
    style: str = ""
    """What is said when it is printed, and how that looks."""


def prints(command: Callable[..., Result]) -> Callable[..., None]:
    """Make a function that is given an output and returns a result into a command, with the option `--json`."""

    @as_json
    @wraps(command)
    def run(*, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - as click calls it
        output = make_output()
        result = command(output, **options)
        if as_json:
            output.json(result.value)
        else:
            result.show()
        if result.remark:
            output.remark(result.remark, result.style)
        if result.code:
            raise click.exceptions.Exit(result.code)

    decorated: Callable[..., None] = run
    return decorated


def make_output() -> "Output":
    """Return where a command prints."""
    from deepskills._cli.output import Output  # noqa: PLC0415 - the help needs none

    return Output()
