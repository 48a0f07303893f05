"""The `deepskills` command: list, inspect, search, validate and create skills."""

import logging
import sys
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from deepskills._catalog.sources import Source
from deepskills._cli.catalog import (
    DEFAULT_SOURCES,
    LocalCatalog,
    UsageError,
    absolute,
    choose_sources,
    read_catalog,
)
from deepskills._cli.create import free_place, write_skill
from deepskills._cli.output import Output, prose, visible
from deepskills._cli.validate import validate_paths
from deepskills._errors import SkillNotFoundError, SkillsError

__all__ = ["app", "main"]

FAILED = 1
"""Exit code: done, and something is wrong; or it could not be done."""

MISUSED = 2
"""Exit code: wrong usage, or an argument that leads nowhere."""

INTERRUPTED = 130
"""Exit code: ended by Ctrl-C, as `__main__` has it for what comes before."""


class _Commands(TyperGroup):
    """The commands; what they raise for the user becomes one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's releases disagree on the type
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            # Older releases of typer call this an abort, and exit with 1.
            raise typer.Exit(INTERRUPTED) from None
        except (UsageError, SkillNotFoundError) as error:
            message, code = str(error), MISUSED
        except SkillsError as error:
            message, code = str(error), FAILED
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            message, code = f"{path}{error.strerror or error}. Check the path and its permissions.", FAILED
        Output().remark(f"Error: {message}", "red")
        raise typer.Exit(code)


app = typer.Typer(
    name="deepskills",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at Agent Skills on this machine, check them, and start new ones.",
)

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        "-s",
        metavar="DIR",
        help="A directory that holds skill directories. Repeatable; the later wins.",
        show_default=" and ".join(DEFAULT_SOURCES),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command and exit; no failure shows a traceback."""
    for stream in (sys.stdout, sys.stderr):
        _show_what_cannot_be_encoded(stream)
    # The backend logs what reaches the user as a problem.
    logging.getLogger("deepagents").addHandler(logging.NullHandler())
    try:
        app(prog_name="deepskills")
    except Exception as error:  # noqa: BLE001 - the last stop
        Output().remark(f"Error: deepskills failed ({type(error).__name__}: {error}). Please report it.", "red")
        sys.exit(FAILED)


def _show_what_cannot_be_encoded(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - slow to import, and needed here alone

        typer.echo(f"deepskills {version('deepskills')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_skills(*, source: Sources = None, as_json: AsJson = False) -> None:
    """List all skills with their source, token cost, files and problems."""
    output = Output()
    local = _read(source, output)
    if as_json:
        output.json([found.row for found in local.found])
    else:
        output.skills(local.found, local.catalog.sources)
        output.problem_remarks(problem for found in local.found for problem in found.row["problems"])
    _finish(local)


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the skill should be for, in a few words.")],
    *,
    source: Sources = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Find the skills that fit a task, best first."""
    output = Output()
    local = _read(source, output)
    hits = local.search(query, limit)
    if as_json:
        output.json([found.row for found in hits])
    else:
        output.hits(hits)
        if not hits and local.found:
            output.remark(f"No skill fits '{query}'. Try other words, or see `deepskills list`.")
    _finish(local)


def _complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the skills whose names a shell may offer; on any failure none."""
    try:
        local = read_catalog(choose_sources(ctx.params.get("source")))
    except (OSError, SkillsError):
        return []
    names = [prose(found.row["name"]) for found in local.found if found.is_usable]
    return [name for name in names if name.startswith(incomplete)]


@app.command()
def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The skill's name.", autocompletion=_complete_name)],
    *,
    source: Sources = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of one skill."""
    output = Output()
    local = _read(source, output)
    found = local.get(name)
    if not found.is_usable:
        output.problem_remarks(found.row["problems"])
        raise typer.Exit(FAILED)
    if as_json:
        output.json(found.details())
    else:
        output.details(found)
        output.problem_remarks(found.row["problems"])
    _finish(local)


@app.command()
def validate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="SKILL.md files, skill directories and trees of them."),
    ] = None,
    *,
    source: Annotated[
        list[str] | None, typer.Option("--source", "-s", metavar="DIR", help="A further tree. Repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check skills strictly; exit 1 if anything is wrong."""
    output = Output()
    wanted = [*(paths or []), *(source or [])]
    if not wanted:
        raise UsageError("Nothing to validate. Name a SKILL.md, a skill's directory or a tree of skills.")
    done = validate_paths(wanted)
    if as_json:
        output.json(done.problems)
    else:
        output.problems(done.problems)
    skills = "1 skill" if done.skills == 1 else f"{done.skills} skills"
    problems = "1 problem" if len(done.problems) == 1 else f"{len(done.problems) or 'no'} problems"
    output.remark(f"{skills} checked, {problems}.", "red" if done.problems else "green")
    if done.problems:
        raise typer.Exit(FAILED)


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and single hyphens between them.")
    ],
    *,
    description: Annotated[
        str | None,
        typer.Option("--description", "-d", help="What the skill does and when to use it; asked for if left out."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            "-s",
            metavar="DIR",
            help="Where the skill's directory goes. Repeatable; the last counts.",
            show_default=DEFAULT_SOURCES[-1],
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a skill that passes validation. Never overwrites anything."""
    output = Output()
    given = source[-1] if source else DEFAULT_SOURCES[-1]
    place = free_place(absolute(given), name)
    file = write_skill(place, _ask_for_description() if description is None else description)
    if as_json:
        found = read_catalog([Source(place.as_posix(), given)]).get(name)
        found.row["source"] = place.parent.as_posix()
        output.json(found.row)
    else:
        output.line("Created ", (visible(str(file)), "bold"))


def _ask_for_description() -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("There is no description. Pass one: --description 'What it does, and when to use it.'")
    answer: str = typer.prompt("What does the skill do, and when should it be used?", err=True)
    return answer


def _read(source: list[str] | None, output: Output) -> LocalCatalog:
    """Read the catalog and remark on sources; the skills' own problems are left to the caller."""
    local = read_catalog(choose_sources(source))
    output.problem_remarks(local.source_problems)
    if not local.found and not local.source_problems:
        output.remark(f"No skills in {' or '.join(DEFAULT_SOURCES)}. Start one with `deepskills create NAME`.")
    return local


def _finish(local: LocalCatalog) -> None:
    """Exit with a failure if a source could not be read: what was shown may not be all."""
    if any(found["severity"] == "error" for found in local.source_problems):
        raise typer.Exit(FAILED)
