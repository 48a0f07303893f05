"""Drivers of the plans that run scripts: the same steps on a run's sync and on its async methods."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from langgraph.errors import GraphBubbleUp

from deepskills import SkillRun, SkillsError
from deepskills._backend.making import needs_loop
from deepskills._backend.steps import aperform, perform
from deepskills._backend.threads import in_thread
from deepskills._files.commands import GRACE_SECONDS
from deepskills._files.functions import acall_function, call_function
from deepskills._files.running import (
    AskForShell,
    CallFunction,
    Execute,
    LocateScript,
    Outcome,
    ReadFile,
    ScriptPlan,
    Step,
    WriteFiles,
)

logger = logging.getLogger("deepskills")


async def acan_execute(run: SkillRun) -> bool:
    """Whether the backend runs commands, asked in a thread: a user's function may have to make the backend first."""
    try:
        return await asyncio.wrap_future(in_thread(lambda: run.can_execute))
    except RuntimeError as error:
        if not needs_loop(error):
            raise
        return run.can_execute


def drive(plan: ScriptPlan[Outcome], run: SkillRun) -> Outcome:
    """Perform a plan and return its outcome; a step that fails is thrown into it."""
    return perform(plan, lambda step: _perform(step, run))


async def adrive(plan: ScriptPlan[Outcome], run: SkillRun) -> Outcome:
    """Perform a plan without blocking; what a cancelled run had started is ended."""
    return await aperform(plan, lambda step: _aperform(step, run))


def _perform(step: Step, run: SkillRun) -> Any:  # noqa: ANN401 - each step has its own reply
    match step:
        case Execute(command, seconds):
            return run.execute(command, seconds)
        case WriteFiles(files):
            return run.write_files(files, for_shell=True)
        case LocateScript(entry, script_name):
            return run.script_path(entry, script_name)
        case ReadFile(entry, path):
            return run.read_file(entry, path)
        case AskForShell():
            return run.can_execute
        case CallFunction(function, given, seconds):
            try:
                return call_function(function, given, seconds)
            except GraphBubbleUp:
                raise
            except Exception as error:
                raise _function_failed(error) from error


async def _aperform(step: Step, run: SkillRun) -> Any:  # noqa: ANN401 - each step has its own reply
    match step:
        case Execute(command, seconds):
            return await _or_stop(run.aexecute(command, seconds), step.stop, run, waits=step.is_brief)
        case WriteFiles(files):
            return await _or_stop(run.awrite_files(files, for_shell=True), step.stop, run, waits=True)
        case LocateScript(entry, script_name):
            return await run.ascript_path(entry, script_name)
        case ReadFile(entry, path, stop):
            return await _or_stop(run.aread_file(entry, path), stop, run)
        case AskForShell():
            return await acan_execute(run)
        case CallFunction(function, given, limit):
            try:
                return await acall_function(function, given, limit)
            except GraphBubbleUp:
                raise
            except Exception as error:
                raise _function_failed(error) from error


def _function_failed(error: Exception) -> SkillsError:
    if isinstance(error, TimeoutError):
        return SkillsError("The operator's function did not answer in time. What it started may still be running.")
    return SkillsError(f"The operator's function failed: {type(error).__name__}: {error}")


async def _or_stop(step: Coroutine[Any, Any, Any], stop: str, run: SkillRun, *, waits: bool = False) -> Any:  # noqa: ANN401
    """Wait for a step; if the run is cancelled meanwhile, end what the step started before that goes on."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if waits:
            # A file or a directory that arrives after the clean-up would stay.
            await asyncio.wait({task}, timeout=GRACE_SECONDS)
        if not task.cancel() and not task.cancelled():
            task.exception()
        if stop:
            await _end(stop, run)
        raise


async def _end(stop: str, run: SkillRun) -> None:
    """Run a command that ends a script."""
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await run.aexecute(stop, GRACE_SECONDS)
    except (SkillsError, TimeoutError) as error:
        logger.warning("A script of a cancelled run could not be ended: %s", type(error).__name__)
