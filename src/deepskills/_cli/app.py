"""The `deepskills` command: list, inspect, search, validate, create and diagnose skills.

Only what every command needs is imported here; what one command needs, it imports when it runs.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from deepskills._cli.commands.install import COMMANDS
from deepskills._cli.commands.mcp import group as mcp_commands
from deepskills._cli.commands.store import store
from deepskills._cli.files import DEFAULT_SOURCES, NEW_SKILLS, UsageError, absolute
from deepskills._errors import SkillNotFoundError, SkillsError

if TYPE_CHECKING:
    from deepskills._cli.commands.catalog import Found, LocalCatalog
    from deepskills._cli.output import Output
    from deepskills._skillmd.read import Profile

__all__ = ["app", "main"]

FAILED = 1
"""Exit code: done, and something is wrong; or it could not be done."""

MISUSED = 2
"""Exit code: wrong usage, or an argument that leads nowhere."""

INTERRUPTED = 130
"""Exit code: ended by Ctrl-C, as `__main__` has it for what comes before."""

SHELLS = ("bash", "zsh", "fish")
"""The shells that completion is made for."""


class _Commands(click.Group):
    """The commands; what they raise for the user becomes one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever a command returns
        """Run a command."""
        try:
            return super().invoke(ctx)
        # Whoever reads has seen enough, as `head` does; click ends quietly.
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except (UsageError, SkillNotFoundError) as error:
            message, code = str(error), MISUSED
        except SkillsError as error:
            message, code = str(error), FAILED
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            message, code = f"{path}{error.strerror or error}. Check the path and its permissions.", FAILED
        _output().remark(f"Error: {message}", "red")
        raise click.exceptions.Exit(code)


def main() -> None:
    """Run the command and exit; no failure shows a traceback, except a package that cannot be imported."""
    for stream in (sys.stdout, sys.stderr):
        _show_what_cannot_be_encoded(stream)
    try:
        app(prog_name="deepskills")
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - the last stop
        _output().remark(f"Error: deepskills failed ({type(error).__name__}: {error}). Please report it.", "red")
        sys.exit(FAILED)


def _show_what_cannot_be_encoded(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415 - slow, and needed here alone

        click.echo(f"deepskills {version('deepskills')}")
        ctx.exit()


def _print_completion(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class  # noqa: PLC0415 - needed here alone

        shell = get_completion_class(value)
        if shell is None:
            raise UsageError(f"There is no completion for {value}. Name one of {', '.join(SHELLS)}.")
        click.echo(shell(app, {}, "deepskills", "_DEEPSKILLS_COMPLETE").source())
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
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

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
sources = click.option(
    "--source",
    "-s",
    multiple=True,
    metavar="DIR",
    help="A directory that holds skill directories. Repeatable; the later wins. "
    f"Without it: those of {', '.join(DEFAULT_SOURCES)} that exist.",
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
@as_json
def list_skills(source: Sequence[str], as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """List all skills, with costs and problems."""
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    local = _read(source, output)
    if as_json:
        output.json([found.row for found in local.found])
    else:
        screens.show_list(output, local)
        output.problem_remarks(problem for found in local.found for problem in found.row["problems"])
    _finish(local)


@app.command()
@click.argument("query")
@sources
@click.option("--limit", "-n", type=click.IntRange(min=1), default=5, show_default=True, help="How many to show.")
@as_json
def search(query: str, source: Sequence[str], limit: int, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Find the skills that fit a task, best first.

    QUERY says in a few words what the skill should be for.
    """
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    local = _read(source, output)
    hits = local.search(query, limit)
    if as_json:
        output.json([found.row for found in hits])
    else:
        screens.show_hits(output, hits)
        if not hits and local.found:
            output.remark(f"No skill fits '{query}'. Try other words, or see `deepskills list`.")
    _finish(local)


@app.command()
@click.argument("name", shell_complete=_complete_name)
@sources
@as_json
def info(name: str, source: Sequence[str], as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Show everything about the skill NAME."""
    from deepskills._cli.commands import catalog as screens  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    local = _read(source, output)
    found = _usable(local, name, output)
    if as_json:
        output.json(found.details())
    else:
        screens.show_details(output, found)
        output.problem_remarks(found.row["problems"])
    _finish(local)


@app.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@click.argument("arguments", nargs=-1)
@click.option("--arguments", "whole", metavar="TEXT", help="What the skill is started with, as one text.")
@click.option("--request", "-r", metavar="TEXT", help="Show the note that `SkillSuggestions` adds to this request.")
@click.option("--tokens", is_flag=True, help="Print what each part costs instead of the text.")
@sources
@as_json
def show(  # noqa: PLR0913 - click calls it by names
    *,
    name: str | None,
    arguments: Sequence[str],
    whole: str | None,
    request: str | None,
    tokens: bool,
    source: Sequence[str],
    as_json: bool,
) -> None:
    """Show what the model would read, word for word.

    Without NAME it is the section of the system prompt; with NAME, what loading that skill puts into the conversation,
    with ARGUMENTS filled in; with --request, the note that suggests skills for a request.
    """
    from deepskills._cli.commands import show as texts  # noqa: PLC0415 - this command alone needs it

    if request is not None and name is not None:
        raise UsageError("Give a skill's name or --request, not both.")
    if whole is not None and (name is None or arguments):
        raise UsageError("Give --arguments with a skill's name, and no further words.")
    output = _output()
    local = _read(source, output)
    if name is not None:
        found = _usable(local, name, output)
        shown: texts.Shown | None = texts.block_of(found, " ".join(arguments) if whole is None else whole)
    else:
        shown = texts.section_of(local) if request is None else texts.note_for(local, request)
    if as_json:
        output.json(shown)
    elif shown is None:
        output.remark("No skill fits this request, so no note is added to it.")
    elif tokens:
        texts.show_tokens(output, shown)
    else:
        output.text(shown["text"])
    _finish(local)


@app.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@click.option("--request", "-r", metavar="TEXT", help="Also rank the skill for this request.")
@click.option("--events", metavar="FILE", help="Read a log of `SkillUsage` (JSON lines) instead of skills.")
@sources
@as_json
def explain(
    name: str | None,
    request: str | None,
    events: str | None,
    source: Sequence[str],
    as_json: bool,  # noqa: FBT001 - click calls it so
) -> None:
    """Explain why the skill NAME is not used: how far it comes, and what to do.

    From files: found, shadowed or broken, hidden, its cost, its rank for a request. With --events, from a log: loads,
    misses, refusals and open checks of each skill, or of NAME. Exits with 1 if the skill cannot be used.
    """
    from deepskills._cli.commands import explain as reasons  # noqa: PLC0415 - this command alone needs it
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    if events is not None:
        if request is not None or source:
            raise UsageError("Give --events alone, or with a skill's name.")
        report = reasons.read_events(events, name)
        if as_json:
            output.json(report)
        else:
            reasons.show_events(output, report)
        return
    if name is None:
        raise UsageError("Name a skill, or a log with --events.")
    own = reasons.explain_skill(read_catalog(source), name, request)
    if as_json:
        output.json(vars(own))
    else:
        reasons.show_explanation(output, own)
    if own.stopped == "found":
        raise click.exceptions.Exit(FAILED)


@app.command()
@sources
@click.option("--agent", metavar="MODULE:ATTRIBUTE", help="Look at this agent instead: it is imported, not run.")
@as_json
def doctor(source: Sequence[str], agent: str | None, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Diagnose: what is wrong, what would help, what it costs.

    Skills are seen as an agent with default settings sees them, or, with --agent, as that agent does: a compiled
    agent, a SkillsMiddleware, or a function without parameters that returns one. No model is called. Exits with 1 if
    something is broken.
    """
    if agent is not None:
        if source:
            raise UsageError("Give --agent or --source, not both: an agent has its own sources.")
        _diagnose_agent(agent, as_json=as_json)
        return
    from deepskills._cli.commands.catalog import read_catalog  # noqa: PLC0415 - imported by the commands that need it
    from deepskills._cli.commands.doctor import examine, show_examination  # noqa: PLC0415 - this command alone needs it

    output = _output()
    local = read_catalog(source)
    found = examine(local)
    if as_json:
        output.json(found.report)
    else:
        show_examination(output, found)
    if not local.found:
        output.remark(_nothing_found(local))
    if not found.is_well:
        raise click.exceptions.Exit(FAILED)


@app.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--source", "-s", multiple=True, metavar="DIR", help="A further tree. Repeatable.")
@click.option("--spec", is_flag=True, help="Accept the specification's keys alone, without YAML flow style.")
@click.option("--ignore", multiple=True, metavar="CODE", help="A problem's code to leave out. Repeatable.")
@as_json
def validate(
    paths: Sequence[str],
    source: Sequence[str],
    spec: bool,  # noqa: FBT001 - click calls it so
    ignore: Sequence[str],
    as_json: bool,  # noqa: FBT001 - click calls it so
) -> None:
    """Check skills strictly; exit 1 on any error.

    PATH is a SKILL.md, a skill's directory or a tree of skills; without any, the usual sources are checked. Keys that
    deepskills acts on pass, unless --spec is given; a key that only another client reads is a warning.
    """
    from deepskills._cli.commands.validate import validate_paths, validate_usual_sources  # noqa: PLC0415 - needed here alone
    from deepskills._cli.output import counted  # noqa: PLC0415 - imported by the commands that need it
    from deepskills._skillmd.problems import PROBLEMS  # noqa: PLC0415 - this command alone needs it

    output = _output()
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
    if as_json:
        output.json(found)
    else:
        output.problems(found)
    problems = counted(len(found), "problem") if found else "no problems"
    output.remark(f"{counted(done.skills, 'skill')} checked, {problems}.", "green" if is_well else "red")
    if not is_well:
        raise click.exceptions.Exit(FAILED)


@app.command()
@click.option("--base", metavar="REF", help="Report only what is new since this commit, such as origin/main.")
@sources
@click.option("--github", is_flag=True, help="Print annotations for GitHub Actions.")
@as_json
def gate(
    base: str | None,
    source: Sequence[str],
    github: bool,  # noqa: FBT001 - click calls it so
    as_json: bool,  # noqa: FBT001 - click calls it so
) -> None:
    """Judge a change to a library of skills; exit 1 if there is something to look at.

    Problems, references to files that are not there, tokens added, and requests of the skills' own
    `evals/triggers.json` that another skill would take. No model and no key are needed.
    """
    from deepskills._cli.commands.gate import github_lines, run_gate, show_report  # noqa: PLC0415 - needed here alone

    output = _output()
    report = run_gate(base, source)
    if as_json:
        output.json(report)
    elif github:
        for line in github_lines(report["findings"], Path.cwd()):
            output.line(line)
    else:
        show_report(output, report)
    if report["findings"]:
        raise click.exceptions.Exit(FAILED)


@app.command()
@click.argument("name")
@click.option(
    "--description", "-d", metavar="TEXT", help="What the skill does and when to use it; asked for if left out."
)
@click.option(
    "--source",
    "-s",
    multiple=True,
    metavar="DIR",
    help=f"Where the skill's directory goes. Repeatable; the last counts. Without it: {NEW_SKILLS}.",
)
@click.option("--checks", is_flag=True, help="Begin with a check of the skill's work, for the extension SkillChecks.")
@as_json
def create(name: str, description: str | None, source: Sequence[str], checks: bool, as_json: bool) -> None:  # noqa: FBT001 - click calls it so
    """Start the skill NAME, which passes validation. Never overwrites anything.

    NAME is made of lower-case letters, digits and single hyphens between them.
    """
    from deepskills._cli.commands.create import free_place, write_skill  # noqa: PLC0415 - this command alone needs it
    from deepskills._cli.output import visible  # noqa: PLC0415 - imported by the commands that need it

    output = _output()
    given = source[-1] if source else NEW_SKILLS
    place = free_place(absolute(given), name)
    file = write_skill(place, _ask_for_description() if description is None else description, has_checks=checks)
    if as_json:
        from deepskills._cli.commands.catalog import read_one  # noqa: PLC0415 - JSON alone needs it

        output.json(read_one(place.as_posix(), given).row)
    else:
        output.line("Created ", (visible(str(file)), "bold"))


@app.command("eval")
@click.argument("skill_dir", required=False)
@click.option("--all", "everything", is_flag=True, help="Show who takes whose requests in a whole library.")
@click.option("--source", "-s", multiple=True, metavar="DIR", help="The library to measure in. Repeatable.")
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

    if not run(EvalArguments(skill=skill_dir, **options), _output()):
        raise click.exceptions.Exit(FAILED)


def _diagnose_agent(agent: str, *, as_json: bool) -> None:
    from deepskills._cli.commands.agent import examine_agent, show_agent  # noqa: PLC0415 - slow, and needed here alone
    from deepskills._diagnosis import AgentDiagnosis  # noqa: PLC0415 - as above
    from deepskills._skillmd.problems import problem  # noqa: PLC0415 - as above

    output = _output()
    try:
        report = examine_agent(agent)
    except UsageError as error:
        if as_json:
            reason = str(error).rstrip(".")
            output.json(vars(AgentDiagnosis(agent, problems=[problem(agent, "agent-unusable", reason=reason)])))
        raise
    if as_json:
        output.json(vars(report))
    else:
        show_agent(output, report)
    if any(found["severity"] == "error" for found in report.problems):
        raise click.exceptions.Exit(FAILED)


def _ask_for_description() -> str:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("There is no description. Pass one: --description 'What it does, and when to use it.'")
    answer: str = click.prompt("What does the skill do, and when should it be used?", err=True)
    return answer


def _output() -> "Output":
    from deepskills._cli.output import Output  # noqa: PLC0415 - the help needs none

    return Output()


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


def _finish(local: "LocalCatalog") -> None:
    """Exit with a failure if a source could not be read: what was shown may not be all."""
    if any(found["severity"] == "error" for found in local.source_problems):
        raise click.exceptions.Exit(FAILED)


for _command in COMMANDS:
    app.add_command(_command)
