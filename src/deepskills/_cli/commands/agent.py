"""`doctor --agent`: what is wrong with a real agent, found by importing it and without calling a model."""

import asyncio
import contextlib
import importlib
import inspect
import sys
from collections.abc import Awaitable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from deepskills import SkillsMiddleware
from deepskills._cli.files import UsageError
from deepskills._cli.output import Output, prose
from deepskills._cli.result import FAILED, MISUSED, Result
from deepskills._diagnosis import AgentDiagnosis, diagnose, take_apart
from deepskills._skillmd.problems import problem
from deepskills._skillmd.text import counted


def diagnose_agent(given: str, output: Output) -> Result:
    """Import an agent and say what is wrong with it; one that cannot be imported or made is a wrong argument."""
    try:
        found = _import_and_examine(given)
    except UsageError as error:
        found = AgentDiagnosis(given, problems=[problem(given, "agent-unusable", reason=str(error).rstrip("."))])
        return Result(vars(found), lambda: None, MISUSED, f"Error: {error}", "red")
    is_well = all(noted["severity"] != "error" for noted in found.problems)
    return Result(vars(found), lambda: show_agent(output, found), 0 if is_well else FAILED)


def _import_and_examine(given: str) -> AgentDiagnosis:
    # What an application prints, while it is imported or later, must not mix with the report.
    with contextlib.redirect_stdout(sys.stderr):
        module, made = _make(given)
        try:
            return _examine(given, module, made)
        except UsageError:
            raise
        # The module's objects are the application's own, and any attribute of theirs may raise.
        except Exception as error:  # noqa: BLE001
            raise UsageError(f"{given} cannot be looked at: {_explain(error)}") from None


def _examine(given: str, module: Any, made: object) -> AgentDiagnosis:  # noqa: ANN401 - a module
    parts = take_apart(made)
    if parts is None:
        kind = type(made).__name__
        hint = "; call its `compile()`" if hasattr(made, "compile") else ""
        raise UsageError(f"{given} is of type {kind}, neither a compiled agent nor a SkillsMiddleware{hint}.")
    tools = None if parts.tools is None else sorted(parts.tools)
    found = AgentDiagnosis(given, [f"in {given}"] * len(parts.middleware), parts.order, tools)
    if not parts.middleware:
        own = {id(each): (name, each) for name, each in vars(module).items() if isinstance(each, SkillsMiddleware)}
        if own:
            parts = replace(parts, middleware=[each for _, each in own.values()])
            found.middleware = [f"beside it, as {module.__name__}:{name}" for name, _ in own.values()]
            found.unseen.append(
                "Whether the agent has these middlewares: its graph shows none, so its module's were taken."
            )
    diagnose(parts, found)
    return found


def _make(given: str) -> tuple[Any, object]:
    """Return the module that is named, and the agent; a function without parameters is called."""
    name, colon, attribute = given.partition(":")
    if not (name and colon and attribute) or name.endswith(".py"):
        raise UsageError(f"{given!r} does not name an agent. Write --agent package.module:attribute")
    # As `python -m` has it: an agent is usually below the current directory.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, or exit
        raise UsageError(f"{name} cannot be imported: {_explain(error)}") from None
    try:
        made = attrgetter(attribute)(module)
    except AttributeError:
        raise UsageError(f"{name} has no {attribute}. Name the agent, or a function that makes it.") from None
    return module, _call(made, given)


def _call(made: Any, given: str) -> object:  # noqa: ANN401 - the user's own
    if not (inspect.isroutine(made) and callable(made)):
        return made
    try:
        inspect.signature(made).bind()
    except (TypeError, ValueError):
        raise UsageError(f"{given} takes parameters. Name a function without any that returns the agent.") from None
    try:
        result = made()
        return asyncio.run(_await(result)) if inspect.isawaitable(result) else result
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a function may raise anything, or exit
        raise UsageError(f"{given} failed: {_explain(error)}") from None


async def _await(result: Awaitable[object]) -> object:
    return await result


def _explain(error: BaseException) -> str:
    text = prose(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def show_agent(output: Output, report: AgentDiagnosis) -> None:
    """Show what is wrong with an agent, what was looked at, and what could not be."""
    output.problems(report.problems)
    for place in report.middleware:
        output.line(f"SkillsMiddleware found {prose(place)}")
    if report.order:
        output.entry(f"order: {prose(', '.join(report.order))}")
    if report.tools is not None:
        output.entry(f"tools: {prose(', '.join(report.tools))}")
    if report.provider or report.window:
        window = f"{report.window:,} tokens" if report.window else "unknown"
        output.line(f"model: {prose(report.provider) or 'unknown'}, window {window}")
    output.entry(f"sources: {prose(', '.join(report.sources)) or 'none that are fixed'}")
    output.entry(f"the model sees: {prose(', '.join(report.skills)) or 'nothing'}")
    if report.user_only:
        output.entry(f"only a user can start: {prose(', '.join(report.user_only))}")
    for line in report.unseen:
        output.entry(f"not seen: {prose(line)}")
    number = len(report.problems)
    output.remark(f"{counted(number, 'problem') if number else 'No problems'}.", "red" if number else "green")
