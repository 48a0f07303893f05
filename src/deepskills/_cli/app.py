"""The `deepskills` command: list, inspect, search, validate, create and diagnose skills.

Only what every command needs is imported here; what one command needs, it imports when it runs.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from deepskills._cli.commands.install import COMMANDS
from deepskills._cli.commands.mcp import group as mcp_commands
from deepskills._cli.commands.store import store
from deepskills._cli.files import DEFAULT_SOURCES, NEW_SKILLS, UsageError, absolute
from deepskills._cli.result import FAILED, INTERRUPTED, MISUSED, Result, as_json, make_output, prints
from deepskills._errors import SkillNotFoundError, SkillsError

if TYPE_CHECKING:
    from deepskills._cli.commands.catalog import Found, LocalCatalog
    from deepskills._cli.output import Output
    from deepskills._skillmd.read import Profile

__all__ = ["app", "main"]

SHELLS = ("bash", "zsh", "fish")
"""The shells that completion is made for."""


class _Commands(click.Group):
    """The commands; what they raise for the user becomes one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever a command returns
        """Run a command."""
        try:
            return super().invoke(ctx)
        # The reader has seen enough, as `head` does; click ends quietly.
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except (UsageError, SkillNotFoundError) as error:
            message, code = str(error), MISUSED
        except SkillsError as error:
            message, code = str(error), FAILED
        except OSError as error:
            path, what = (
                (f"{error.filename}: ", "path and its permissions") if error.filename else ("", "disk and network")
            )
            message, code = f"{path}{error.strerror or error}. Check the {what}.", FAILED
        make_output().remark(f"Error: {message}", "red")
        raise click.exceptions.Exit(code)


def main() -> None:
    """Run the command and exit; no failure shows a traceback, except a package that cannot be imported."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="deepskills")
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - the last stop
        make_output().remark(f"Error: deepskills failed ({type(error).__name__}: {error}). Please report it.", "red")
        sys.exit(FAILED)


def _print_completion(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class  # noqa: PLC0415 - needed here alone

        shell = get_completion_class(value)
        if shell is None:
            raise UsageError(f"There is no completion for {value}. Name one of {', '.join(SHELLS)}.")
        click.echo(shell(app, {}, "deepskills", "_DEEPSKILLS_COMPLETE").source())
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="deepskills", message="deepskills %(version)s", help="Print the version.")
@click.option(
    "--show-completion",
    type=click.Choice(SHELLS),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the completion script of a shell.",
)
def app() -> None:
    """Look at Agent Skills on this machine, check them, and start new ones."""


app.add_command(store)
app.add_command(mcp_commands)


def _source_option(about: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--source", "-s", multiple=True, metavar="DIR", help=about)


sources = _source_option(
    "A directory that holds skill directories. Repeatable; the later wins. "
    f"Without it: those of {', '.join(DEFAULT_SOURCES)} that exist."
)


def _complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the skills whose names a shell may offer; on any failure none."""
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - only names need it
    from deepskills._cli.output import prose  # noqa: PLC0415 - only names need it

    try:
        local = read_catalog(ctx.params.get("source"))
    except (OSError, SkillsError):
        return []
    names = [prose(found.row["name"]) for found in local.usable]
    return [name for name in names if name.startswith(incomplete)]


@app.command("list")
@sources
@prints
def list_skills(output: "Output", source: Sequence[str]) -> Result:
    """List all skills, with costs and problems."""
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    local = _read(source, output)

    def show() -> None:
        screens.show_list(output, local)
        output.problem_remarks(problem for found in local.found for problem in found.row["problems"])

    return Result([found.row for found in local.found], show, _exit_code(local))


@app.command()
@click.argument("query")
@sources
@click.option("--limit", "-n", type=click.IntRange(min=1), default=5, show_default=True, help="How many to show.")
@prints
def search(output: "Output", query: str, source: Sequence[str], limit: int) -> Result:
    """Find the skills that fit a task, best first.

    QUERY says in a few words what the skill should be for.
    """
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    local = _read(source, output)
    hits = local.search(query, limit)

    def show() -> None:
        screens.show_hits(output, hits)
        if not hits and local.found:
            output.remark(f"No skill fits '{query}'. Try other words, or see `deepskills list`.")

    return Result([found.row for found in hits], show, _exit_code(local))


@app.command()
@click.argument("name", shell_complete=_complete_name)
@sources
@prints
def info(output: "Output", name: str, source: Sequence[str]) -> Result:
    """Show everything about the skill NAME."""
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    local = _read(source, output)
    found = _usable(local, name, output)

    def show() -> None:
        screens.show_details(output, found)
        output.problem_remarks(found.row["problems"])

    return Result(found.details(), show, _exit_code(local))


@app.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@click.argument("arguments", nargs=-1)
@click.option("--arguments", "whole", metavar="TEXT", help="What the skill is started with, as one text.")
@click.option("--request", "-r", metavar="TEXT", help="Show the note that `SkillSuggestions` adds to this request.")
@click.option("--tokens", is_flag=True, help="Print what each part costs instead of the text.")
@sources
@prints
def show(  # noqa: PLR0913 - click calls it by names
    output: "Output",
    *,
    name: str | None,
    arguments: Sequence[str],
    whole: str | None,
    request: str | None,
    tokens: bool,
    source: Sequence[str],
) -> Result:
    """Show what the model would read, word for word.

    Without NAME it is the section of the system prompt; with NAME, what loading that skill puts into the conversation,
    with ARGUMENTS filled in; with --request, the note that suggests skills for a request.
    """
    from deepskills._cli.commands import show as texts  # noqa: PLC0415 - this command alone needs it

    if request is not None and name is not None:
        raise UsageError("Give a skill's name or --request, not both.")
    if whole is not None and (name is None or arguments):
        raise UsageError("Give --arguments with a skill's name, and no further words.")
    local = _read(source, output)
    if name is not None:
        found = _usable(local, name, output)
        shown: texts.Shown | None = texts.block_of(found, " ".join(arguments) if whole is None else whole)
    else:
        shown = texts.section_of(local) if request is None else texts.note_for(local, request)

    def show_text() -> None:
        if shown is None:
            output.remark("No skill fits this request, so no note is added to it.")
        elif tokens:
            texts.show_tokens(output, shown)
        else:
            output.text(shown["text"])

    return Result(shown, show_text, _exit_code(local))


@app.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@click.option("--request", "-r", metavar="TEXT", help="Also rank the skill for this request.")
@click.option("--events", metavar="FILE", help="Read a log of `SkillUsage` (JSON lines) instead of skills.")
@sources
@prints
def explain(
    output: "Output", name: str | None, request: str | None, events: str | None, source: Sequence[str]
) -> Result:
    """Explain why the skill NAME is not used: how far it comes, and what to do.

    From files: found, shadowed or broken, hidden, its cost, its rank for a request. With --events, from a log: loads,
    misses, refusals and open checks of each skill, or of NAME. Exits with 1 if the skill cannot be used.
    """
    from deepskills._cli.commands import explain as reasons  # noqa: PLC0415 - this command alone needs it
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - imported by the commands that need it

    if events is not None:
        if request is not None or source:
            raise UsageError("Give --events alone, or with a skill's name.")
        report = reasons.read_events(events, name)
        return Result(report, lambda: reasons.show_events(output, report))
    if name is None:
        raise UsageError("Name a skill, or a log with --events.")
    own = reasons.explain_skill(read_catalog(source), name, request)
    code = FAILED if own.stopped == "found" else 0
    return Result(vars(own), lambda: reasons.show_explanation(output, own), code)


@app.command()
@sources
@click.option("--agent", metavar="MODULE:ATTRIBUTE", help="Look at this agent instead: it is imported, not run.")
@prints
def doctor(output: "Output", source: Sequence[str], agent: str | None) -> Result:
    """Diagnose: what is wrong, what would help, what it costs.

    Skills are seen as an agent with default settings sees them, or, with --agent, as that agent does: a compiled
    agent, a SkillsMiddleware, or a function without parameters that returns one. No model is called. Exits with 1 if
    something is broken.
    """
    if agent is not None:
        if source:
            raise UsageError("Give --agent or --source, not both: an agent has its own sources.")
        from deepskills._cli.commands.agent import diagnose_agent  # noqa: PLC0415 - slow, and needed here alone

        return diagnose_agent(agent, output)
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - imported by the commands that need it
    from deepskills._cli.commands.doctor import examine, show_examination  # noqa: PLC0415 - this command alone needs it

    local = read_catalog(source)
    found = examine(local)
    code = 0 if found.is_well else FAILED
    remark = "" if local.found else _nothing_found(local)
    return Result(found.report, lambda: show_examination(output, found), code, remark)


@app.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@_source_option("A further tree. Repeatable.")
@click.option("--spec", is_flag=True, help="Accept the specification's keys alone, without YAML flow style.")
@click.option("--ignore", multiple=True, metavar="CODE", help="A problem's code to leave out. Repeatable.")
@prints
def validate(
    output: "Output", *, paths: Sequence[str], source: Sequence[str], spec: bool, ignore: Sequence[str]
) -> Result:
    """Check skills strictly; exit 1 on any error.

    PATH is a SKILL.md, a skill's directory or a tree of skills; without any, the usual sources are checked. Keys that
    deepskills acts on pass, unless --spec is given; a key that only another client reads is a warning.
    """
    from deepskills._cli.commands.validate import validate_paths, validate_usual_sources  # noqa: PLC0415 - needed here alone
    from deepskills._skillmd.problems import PROBLEMS  # noqa: PLC0415 - this command alone needs it
    from deepskills._skillmd.text import counted  # noqa: PLC0415 - as above

    unknown = sorted(set(ignore) - PROBLEMS.keys())
    if unknown:
        raise UsageError(
            f"There is no problem with the code {_and(unknown, 'or')}. See the codes in the documentation."
        )
    profile: Profile = "spec" if spec else "deepskills"
    if wanted := [*paths, *source]:
        done = validate_paths(wanted, profile)
    else:
        done, used = validate_usual_sources(profile)
        output.remark(f"Checking {_and(used)}.")
    found = [problem for problem in done.problems if problem["code"] not in ignore]
    is_well = all(problem["severity"] != "error" for problem in found)
    problems = counted(len(found), "problem") if found else "no problems"
    remark = f"{counted(done.skills, 'skill')} checked, {problems}."
    code, style = (0, "green") if is_well else (FAILED, "red")
    return Result(found, lambda: output.problems(found), code, remark, style)


@app.command()
@click.option("--base", metavar="REF", help="Report only what is new since this commit, such as origin/main.")
@sources
@click.option("--github", is_flag=True, help="Print annotations for GitHub Actions.")
@prints
def gate(output: "Output", *, base: str | None, source: Sequence[str], github: bool) -> Result:
    """Judge a change to a library of skills; exit 1 if there is something to look at.

    Problems, references to files that are not there, tokens added, and requests of the skills' own
    `evals/triggers.json` that another skill would take. No model and no key are needed.
    """
    from deepskills._cli.commands.gate import run_gate, show_annotations, show_report  # noqa: PLC0415 - needed here alone

    report = run_gate(base, source)
    show = show_annotations if github else show_report
    return Result(report, lambda: show(output, report), FAILED if report["findings"] else 0)


@app.command()
@click.argument("name")
@click.option(
    "--description", "-d", metavar="TEXT", help="What the skill does and when to use it; asked for if left out."
)
@_source_option(f"Where the skill's directory goes. Repeatable; the last counts. Without it: {NEW_SKILLS}.")
@click.option("--checks", is_flag=True, help="Begin with a check of the skill's work, for the extension SkillChecks.")
@prints
def create(output: "Output", *, name: str, description: str | None, source: Sequence[str], checks: bool) -> Result:
    """Start the skill NAME, which passes validation. Never overwrites anything.

    NAME is made of lower-case letters, digits and single hyphens between them.
    """
    from deepskills._cli.commands.catalog import read_one  # noqa: PLC0415 - imported by the commands that need it
    from deepskills._cli.commands.create import free_place, write_skill  # noqa: PLC0415 - this command alone needs it
    from deepskills._cli.output import visible  # noqa: PLC0415 - imported by the commands that need it

    given = source[-1] if source else NEW_SKILLS
    place = free_place(absolute(given), name)
    file = write_skill(place, _ask_for_description() if description is None else description, has_checks=checks)
    row = read_one(place.as_posix(), given).row
    return Result(row, lambda: output.line("Created ", (visible(str(file)), "bold")))


@app.command("eval")
@click.argument("skill_dir", required=False)
@click.option("--all", "everything", is_flag=True, help="Show who takes whose requests in a whole library.")
@_source_option("The library to measure in. Repeatable.")
@click.option("--model", metavar="PROVIDER:NAME", help="Run an agent with this model; without it, requests are ranked.")
@click.option("--grader", metavar="PROVIDER:NAME", help="The model that judges expectations. Default: --model.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="How often each query is run.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Stop after about so many tokens.")
@click.option("--max-steps", type=click.IntRange(min=1), default=20, show_default=True, help="Model calls of a task.")
@click.option("--timeout", type=click.FloatRange(min=0.01), default=300, show_default=True, help="Seconds for a run.")
@click.option("--min-pass", type=click.FloatRange(0, 1), metavar="SHARE", help="Exit 1 if fewer pass, such as 0.8.")
@click.option("--fresh", is_flag=True, help="Begin again, also where an evaluation was interrupted.")
@click.option("--html", metavar="FILE", help="Also write the report as one HTML page.")
@as_json
def evaluate(skill_dir: str | None, **options: Any) -> None:  # noqa: ANN401 - click calls it so
    """Measure whether a skill is found, loaded and useful.

    SKILL_DIR is a skill with evals/triggers.json and evals/evals.json; with --all, a library. Without --model, nothing
    is called and nothing is spent. Without --source, the library is the directory that holds the skill.
    """
    from deepskills._cli.commands.evaluate import EvalArguments, run  # noqa: PLC0415 - this command alone needs it

    if not run(EvalArguments(skill=skill_dir, **options), make_output()):
        raise click.exceptions.Exit(FAILED)


def _ask_for_description() -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("There is no description. Pass one: --description 'What it does, and when to use it.'")
    answer: str = click.prompt("What does the skill do, and when should it be used?", err=True)
    return answer


def _read(source: Sequence[str], output: "Output") -> "LocalCatalog":
    """Read the catalog and remark on sources; the skills' own problems are left to the caller."""
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - imported by the commands that need it

    local = read_catalog(source)
    output.problem_remarks(local.source_problems)
    if local.is_default and local.found:
        output.remark(f"Reading {_and([source.label for source in local.sources])}.")
    if not local.found and not local.source_problems:
        output.remark(_nothing_found(local))
    return local


def _usable(local: "LocalCatalog", name: str, output: "Output") -> "Found":
    """Return the skill of that name; exit with its problems if it cannot be used."""
    found = local.get(name)
    if not found.is_usable:
        output.problem_remarks(found.row["problems"])
        raise click.exceptions.Exit(FAILED)
    return found


def _nothing_found(local: "LocalCatalog") -> str:
    places = DEFAULT_SOURCES if local.is_default else [source.label for source in local.sources]
    return f"No skills in {_and(places, 'or')}. Start one with `deepskills create NAME`."


def _and(names: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _exit_code(local: "LocalCatalog") -> int:
    """Return a failure if a source could not be read: what was shown may not be all."""
    return FAILED if any(found["severity"] == "error" for found in local.source_problems) else 0


for _command in COMMANDS:
    app.add_command(_command)
