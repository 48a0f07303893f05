"""The commands for skills of others: add, install, update, remove and verify.

Only what every command needs is imported here; what one command needs, it imports when it runs.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepskills._cli.files import NEW_SKILLS, UsageError, absolute
from deepskills._cli.result import FAILED, MISUSED, as_json, make_output
from deepskills._skillmd.text import counted

if TYPE_CHECKING:
    from deepskills._cli.output import Output
    from deepskills._install.project import Changes, Project

__all__ = ["COMMANDS"]

LOCK = "deepskills.lock"
TIMEOUT = 300

_OPTIONS = {
    "source": click.option(
        "--source",
        "-s",
        default=NEW_SKILLS,
        show_default=True,
        metavar="DIR",
        help="The directory of installed skills.",
    ),
    "lock": click.option("--lock", default=LOCK, show_default=True, metavar="FILE", help="The lock."),
    "timeout": click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="How long fetching may take.",
    ),
    "yes": click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    "as_json": as_json,
}


@dataclass
class _Given:
    """What several commands take, and the project that it means."""

    source: str
    lock: str
    as_json: bool
    yes: bool = True
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        self.output = make_output()

    @property
    def places(self) -> tuple[Path, Path]:
        """The directory of installed skills and the lock.

        The directory itself may be a link: what lies behind it is what changes, never the link.

        Raises:
            UsageError: If the lock is another installer's.
        """
        if Path(self.lock).name == "skills-lock.json":
            raise UsageError(
                f"skills-lock.json is the lock of `npx skills`, which is only read. Use another, such as {LOCK}."
            )
        return Path(os.path.realpath(absolute(self.source))), Path(absolute(self.lock))

    def project(self) -> "Project":
        """Return the project."""
        from deepskills._install.project import Project  # noqa: PLC0415 - imported by the commands that need it

        deadline = time.monotonic() + self.timeout
        return Project(*self.places, lambda text: self.output.remark(f"{text} …", "dim"), deadline)


def _takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options of all, as one value."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**options: Any) -> None:  # noqa: ANN401 - as click calls it
            command(given=_Given(**{name: options.pop(name) for name in names}), **options)

        decorated: Callable[..., None] = run
        for name in reversed(names):
            decorated = _OPTIONS[name](decorated)
        return decorated

    return decorate


@click.command()
@click.argument("origin", metavar="SOURCE")
@click.option("--skill", multiple=True, metavar="NAME", help="Only this skill, by name or path. Repeatable.")
@click.option("--ref", metavar="REF", help="A branch, a tag or a commit of a repository.")
@_takes("source", "lock", "timeout", "yes", "as_json")
def add(given: _Given, origin: str, skill: Sequence[str], ref: str | None) -> None:
    """Add other people's skills: review, place and lock them.

    SOURCE is a directory, a .zip or .tar.gz file, a git repository's URL, `owner/name` on GitHub, or a web site that
    publishes skills. Nothing of it is executed. Shows what would come and asks, unless --yes.
    """
    _carry_out(given, given.project().adding(origin, skill, ref), "Add")


@click.command()
@click.option("--frozen", is_flag=True, help="Also change nothing if there is a skill that no lock lists.")
@_takes("source", "lock", "timeout", "as_json")
def install(given: _Given, *, frozen: bool) -> None:
    """Install exactly what the lock says, or change nothing.

    For a fresh machine, an image, CI: every skill comes from its source at its commit and is compared file by file.
    """
    _carry_out(given, given.project().restoring(frozen=frozen), "Install")


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_takes("source", "lock", "timeout", "yes", "as_json")
def update(given: _Given, names: Sequence[str]) -> None:
    """Update skills to the newest state of their sources.

    Without NAME all skills of the lock. Shows the difference of every text file and asks, unless --yes.
    """
    _carry_out(given, given.project().updating(names), "Update", show_texts=True)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_takes("source", "lock", "yes", "as_json")
def remove(given: _Given, names: Sequence[str]) -> None:
    """Remove skills, from disk and from the lock. Asks, unless --yes."""
    _carry_out(given, given.project().removing(names), "Remove")


@click.command()
@click.option("--fix", is_flag=True, help="Put back what was changed, from the sources.")
@_takes("source", "lock", "as_json")
def verify(given: _Given, *, fix: bool) -> None:
    """Compare installed skills with the lock; exit 1 on a difference.

    Names every file that was changed, added or removed since, and every skill, at any depth, that no lock lists. What
    `npx skills` brought is compared with its own lock, `skills-lock.json`; a difference there is only a warning.
    """
    from deepskills._cli.commands.install_screen import show_drift  # noqa: PLC0415 - imported by the command that needs it
    from deepskills._install.drift import Drift, compare_installed, find_unlisted  # noqa: PLC0415 - as above
    from deepskills._install.lock import load_lock  # noqa: PLC0415 - as above
    from deepskills._install.npx import NPX_LOCK  # noqa: PLC0415 - as above
    from deepskills._install.place import finish_earlier  # noqa: PLC0415 - as above

    output = given.output
    if fix:
        # Put back first, then compared like without --fix: the exit code says how things are afterwards.
        with given.project().restoring(replace_drifted=True) as changes:
            changes.apply()
            fixed = [change.name for change in changes.to_do]
        if fixed:
            output.remark(f"Put back {', '.join(fixed)}.", "green")
    directory, lock_path = given.places
    finish_earlier(directory, lock_path)
    # A project may have the other installer's lock alone.
    known = load_lock(lock_path, missing_ok=lock_path.with_name(NPX_LOCK).exists())
    installed = compare_installed(directory, known, lock_path)
    unlisted = [Drift(path, "unlisted", installer=None) for path in find_unlisted(directory, known, lock_path)]
    drift = sorted([*installed.drift, *unlisted], key=lambda item: not item.is_error)
    if installed.failure:
        output.remark(f"{installed.failure}; what it brought is not compared.", "yellow")
    if given.as_json:
        output.json([item.row() for item in drift])
    else:
        show_drift(output, installed, drift)
    if any(item.is_error for item in drift):
        raise click.exceptions.Exit(FAILED)


COMMANDS: tuple[click.Command, ...] = (add, install, update, remove, verify)


def _carry_out(
    given: _Given, changing: "AbstractContextManager[Changes]", verb: str, *, show_texts: bool = False
) -> None:
    """Show what a command would change, ask where it must, and do it."""
    from deepskills._cli.commands.install_screen import changes_row, show_changes, show_done  # noqa: PLC0415 - as above

    output = given.output
    with changing as changes:
        if not given.as_json:
            show_changes(output, changes, show_texts=show_texts)
        for item in changes.refused:
            output.remark(f"Not taken: {item.name} ({item.path}): {item.refusal}", "yellow")
        # Asked while the workspace is open: what was shown is what gets placed, without a second fetch.
        row = changes_row(changes, show_texts=show_texts) if given.as_json else {}
        goes_on = bool(changes.to_do) and (given.yes or _agrees(verb, changes, output))
        if goes_on:
            changes.apply()
        if given.as_json:
            output.json({"done": goes_on, **row})
    if not given.as_json:
        show_done(output, changes, is_done=goes_on)
    if changes.to_do and not goes_on:
        # A person who said no has not misused the command; a script without --yes has.
        raise click.exceptions.Exit(FAILED if _is_person() else MISUSED)
    if changes.refused:
        raise click.exceptions.Exit(FAILED)


def _agrees(verb: str, changes: "Changes", output: "Output") -> bool:
    """Ask whether to go on; without a terminal, nothing is changed."""
    if not _is_person():
        output.remark("Nothing was changed: there is no terminal to ask on. Pass --yes to go on without asking.", "red")
        return False
    return click.confirm(f"{verb} {counted(len(changes.to_do), 'skill')}?", err=True, default=False)


def _is_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
