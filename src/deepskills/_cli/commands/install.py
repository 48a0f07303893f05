"""The commands for skills of others: add, install, update, remove and verify.

Only what every command needs is imported here; what one command needs, it imports when it runs.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deepskills._cli.files import NEW_SKILLS, UsageError, absolute

if TYPE_CHECKING:
    from deepskills._cli.output import Output
    from deepskills._install.project import Changes, Project

__all__ = ["COMMANDS"]

FAILED = 1
MISUSED = 2
LOCK = "deepskills.lock"
TIMEOUT = 300

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
_directory = click.option(
    "--source", "-s", default=NEW_SKILLS, show_default=True, metavar="DIR", help="The directory of installed skills."
)
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long fetching may take.",
)
_lock = click.option("--lock", default=LOCK, show_default=True, metavar="FILE", help="The lock.")


@click.command()
@click.argument("given", metavar="SOURCE")
@click.option("--skill", multiple=True, metavar="NAME", help="Only this skill, by name or path. Repeatable.")
@click.option("--ref", metavar="REF", help="A branch, a tag or a commit of a repository.")
@_directory
@_lock
@_timeout
@_yes
@_as_json
def add(  # noqa: PLR0913, PLR0917 - the options of a command
    given: str,
    skill: Sequence[str],
    ref: str | None,
    source: str,
    lock: str,
    timeout: float,
    yes: bool,  # noqa: FBT001 - click calls it so
    as_json: bool,  # noqa: FBT001 - click calls it so
) -> None:
    """Add other people's skills: review, place and lock them.

    SOURCE is a directory, a .zip or .tar.gz file, a git repository's URL, `owner/name` on GitHub, or a web site that
    publishes skills. Nothing of it is executed. Shows what would come and asks, unless --yes.
    """
    project = _project(source, lock, timeout)
    _carry_out(project.adding(given, skill, ref), "Add", yes=yes, as_json=as_json)


@click.command()
@click.option("--frozen", is_flag=True, help="Also change nothing if there is a skill that no lock lists.")
@_directory
@_lock
@_timeout
@_as_json
def install(frozen: bool, source: str, lock: str, timeout: float, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Install exactly what the lock says, or change nothing.

    For a fresh machine, an image, CI: every skill comes from its source at its commit and is compared file by file.
    """
    restoring = _project(source, lock, timeout).restoring(frozen=frozen)
    _carry_out(restoring, "Install", yes=True, as_json=as_json)


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_directory
@_lock
@_timeout
@_yes
@_as_json
def update(
    names: Sequence[str],
    source: str,
    lock: str,
    timeout: float,
    yes: bool,  # noqa: FBT001 - click calls it so
    as_json: bool,  # noqa: FBT001 - click calls it so
) -> None:
    """Update skills to the newest state of their sources.

    Without NAME all skills of the lock. Shows the difference of every text file and asks, unless --yes.
    """
    updating = _project(source, lock, timeout).updating(names)
    _carry_out(updating, "Update", yes=yes, as_json=as_json, show_texts=True)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_directory
@_lock
@_yes
@_as_json
def remove(names: Sequence[str], source: str, lock: str, yes: bool, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Remove skills, from disk and from the lock. Asks, unless --yes."""
    _carry_out(_project(source, lock).removing(names), "Remove", yes=yes, as_json=as_json)


@click.command()
@click.option("--fix", is_flag=True, help="Put back what was changed, from the sources.")
@_directory
@_lock
@_as_json
def verify(fix: bool, source: str, lock: str, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Compare installed skills with the lock; exit 1 on a difference.

    Names every file that was changed, added or removed since, and every skill, at any depth, that no lock lists. What
    `npx skills` brought is compared with its own lock, `skills-lock.json`; a difference there is only a warning.
    """
    from deepskills._cli.commands.install_screen import show_drift  # noqa: PLC0415 - imported by the command that needs it
    from deepskills._install.lock import load_lock  # noqa: PLC0415 - as above
    from deepskills._install.npx import NPX_LOCK, compare_npx  # noqa: PLC0415 - as above
    from deepskills._install.place import Drift, find_drift, find_unlisted, finish_earlier  # noqa: PLC0415 - as above

    output = _output()
    if fix:
        # Put back first, then compared like without --fix: the exit code says how things are afterwards.
        with _project(source, lock).restoring(replace_drifted=True) as changes:
            changes.apply()
            fixed = [change.name for change in changes.to_do]
        if fixed:
            output.remark(f"Put back {', '.join(fixed)}.", "green")
    directory, lock_path = _places(source, lock)
    finish_earlier(directory, lock_path)
    # A project may have the other installer's lock alone.
    known = load_lock(lock_path, missing_ok=lock_path.with_name(NPX_LOCK).exists())
    drift = find_drift(directory, known)
    drift += [Drift(path, "unlisted") for path in find_unlisted(directory, known, lock_path)]
    others, failure = compare_npx(directory, lock_path)
    if failure:
        output.remark(f"{failure}; what it brought is not compared.", "yellow")
    if as_json:
        output.json([item.row() for item in drift] + [other.row() for other in others if other.state != "same"])
    else:
        show_drift(output, known, drift, others)
    if drift:
        raise click.exceptions.Exit(FAILED)


COMMANDS: tuple[click.Command, ...] = (add, install, update, remove, verify)


def _carry_out(
    changing: "AbstractContextManager[Changes]", verb: str, *, yes: bool, as_json: bool, show_texts: bool = False
) -> None:
    """Show what a command would change, ask where it must, and do it."""
    from deepskills._cli.commands.install_screen import changes_row, show_changes, show_done  # noqa: PLC0415 - as above

    output = _output()
    with changing as changes:
        if not as_json:
            show_changes(output, changes, show_texts=show_texts)
        for item in changes.refused:
            output.remark(f"Not taken: {item.name} ({item.path}): {item.reason}", "yellow")
        # Asked while the workspace is open: what was shown is what gets placed, without a second fetch.
        row = changes_row(changes, show_texts=show_texts) if as_json else {}
        goes_on = bool(changes.to_do) and (yes or _agrees(verb, changes, output))
        if goes_on:
            changes.apply()
        if as_json:
            output.json({"done": goes_on, **row})
    if not as_json:
        show_done(output, changes, is_done=goes_on)
    if changes.to_do and not goes_on:
        # A person who said no has not misused the command; a script without --yes has.
        raise click.exceptions.Exit(FAILED if _is_person() else MISUSED)
    if changes.refused:
        raise click.exceptions.Exit(FAILED)


def _agrees(verb: str, changes: "Changes", output: "Output") -> bool:
    """Ask whether to go on; where nobody can answer, nothing is changed."""
    if not _is_person():
        output.remark("Nothing was changed: there is no terminal to ask on. Pass --yes to go on without asking.", "red")
        return False
    what = f"{verb} {len(changes.to_do)} skill{'' if len(changes.to_do) == 1 else 's'}?"
    return click.confirm(what, err=True, default=False)


def _is_person() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _project(source: str, lock: str, timeout: float = TIMEOUT) -> "Project":
    from deepskills._install.project import Project  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    deadline = time.monotonic() + timeout
    return Project(*_places(source, lock), lambda text: output.remark(f"{text} …", "dim"), deadline)


def _places(source: str, lock: str) -> tuple[Path, Path]:
    """Return the directory of installed skills and the lock.

    The directory itself may be a link: what lies behind it is what changes, never the link.

    Raises:
        UsageError: If the lock is another installer's.
    """
    if Path(lock).name == "skills-lock.json":
        raise UsageError(
            f"skills-lock.json is the lock of `npx skills`, which is only read. Use another, such as {LOCK}."
        )
    return Path(os.path.realpath(absolute(source))), Path(absolute(lock))


def _output() -> "Output":
    from deepskills._cli.output import Output  # noqa: PLC0415 - the help needs none

    return Output()
