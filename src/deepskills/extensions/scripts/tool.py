"""`SkillScripts`: a tool that runs the scripts of loaded skills."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from deepagents.backends.protocol import ExecuteResponse
from langchain.agents.middleware.types import ModelRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command
from pydantic import BaseModel, Field, field_validator

from deepskills import SkillEntry, SkillExtension, SkillLoad, SkillRun, SkillsError, SkillsHost
from deepskills._io.plan import CallFailed, CallFunction, Plan
from deepskills._prompt.escaping import harmless_body
from deepskills._prompt.messages import RUN_SCRIPT_DESCRIPTION, SCRIPT_ENDED, SCRIPT_MAY_GO_ON
from deepskills._skillmd.names import meant_name
from deepskills._skillmd.problems import listed, quoted
from deepskills._skillmd.text import is_text
from deepskills.extensions.scripts.output import MIN_OUTPUT, masked_text, told_exit_code
from deepskills.extensions.scripts.run import (
    MAX_COPIED_FILES,
    MAX_ERROR_LENGTH,
    Outcome,
    ScriptCall,
    can_execute,
    run_by_function,
    run_in_shell,
)

logger = logging.getLogger("deepskills")


TOOL_NAME = "run_skill_script"

ENV_FAILED = "script-env-failed"
"""Code of the problem that says why scripts have no environment."""

Env: TypeAlias = Callable[[Any, SkillEntry], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None]
"""Returns the environment variables of a script's process, from the run's runtime and the skill."""

Runner: TypeAlias = Callable[[str, str, list[str], dict[str, str], int], ExecuteResponse | Awaitable[ExecuteResponse]]
"""Runs a script: skill name, path, arguments, environment, time limit in seconds."""

_VARIABLE = re.compile(r"(?!_ds_)[A-Za-z_][A-Za-z0-9_]*")


class ScriptArguments(BaseModel):
    """Arguments of `run_skill_script`."""

    skill_name: str = Field(description="The loaded skill's name.")
    script_name: str = Field(description="Path of the script relative to the skill's `scripts/` directory.")
    args: list[str] = Field(default_factory=list, description="Arguments for the script, one string each.")

    @field_validator("args", mode="before")
    @classmethod
    def _as_texts(cls, value: object) -> object:
        if value is None:
            return []
        if not isinstance(value, list):
            return value
        return [str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in value]


class SkillScripts(SkillExtension):
    """Gives the model `run_skill_script`: a script of a loaded skill, with arguments that no shell interprets.

    It runs through the backend's `execute`, or through `runner` if the backend has none; with neither, the tool is not
    offered. A script that takes too long is killed, with every process that is recognizably its own. If an extension
    judges files, as `SkillLock` and `SkillApproval` do, the very bytes that were judged run from a private copy of the
    skill, and `runner` gets a path in it.

    Args:
        runner: Called as `runner(skill_name, path, args, env, timeout)` if the backend cannot execute; sync or async,
            returns deepagents' `ExecuteResponse`.
        env: Called as `env(runtime, skill)`; returns environment variables for the script's process, such as keys. No
            value appears in messages, logs, events or state, and output that repeats one is masked.
        timeout: Seconds after which a script is killed. `env` must return within that time, too.
        max_output: How many characters of output the model reads: the head and the tail if there are more.

    Raises:
        ValueError: If `timeout` or `max_output` is too small, or `runner` or `env` is not a function.
    """

    def __init__(
        self, runner: Runner | None = None, env: Env | None = None, timeout: int = 60, max_output: int = 20_000
    ) -> None:
        _check_number("timeout", timeout, 1)
        _check_number("max_output", max_output, MIN_OUTPUT)
        for name, function in (("runner", runner), ("env", env)):
            if function is not None and not callable(function):
                raise ValueError(f"{name} must be a function, got {type(function).__name__}")
        self._runner, self._env = runner, env
        self._timeout, self._max_output = timeout, max_output

    def tools(self, host: SkillsHost) -> Sequence[BaseTool]:
        """Return the tool that runs scripts."""

        def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolMessage | Command[Any]:  # noqa: ANN401 - checked by the schema
            try:
                run = host.run_for(self, runtime.state, runtime)
                return run.drive(self._answered(run, runtime, arguments))
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - no exception leaves a tool; the model reads what it may
                return _answer(error, runtime)

        async def acall(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolMessage | Command[Any]:  # noqa: ANN401 - checked by the schema
            try:
                run = await host.arun_for(self, runtime.state, runtime)
                return await run.adrive(self._answered(run, runtime, arguments))
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - no exception leaves a tool; the model reads what it may
                return _answer(error, runtime)

        return [
            StructuredTool.from_function(
                call,
                acall,
                name=TOOL_NAME,
                description=RUN_SCRIPT_DESCRIPTION,
                args_schema=ScriptArguments,
                infer_schema=False,
            )
        ]

    def before_load(self, load: SkillLoad, run: SkillRun) -> None:
        """Remember a skill's files, to copy them with a script to a shell that does not have the skill."""
        directory = load.entry.path.rpartition("/")[0]
        paths = [item["path"].removeprefix(f"{directory}/") for item in load.resources]
        if len(paths) > 1:
            run.remember(load.entry.name, paths[:MAX_COPIED_FILES])

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Leave out the tool if nothing could run a script."""
        return request if self._runner is not None or run.can_execute else _without_tool(request)

    async def achange_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Leave out the tool if nothing could run a script, without blocking."""
        return request if self._runner is not None or await run.adrive(can_execute(run)) else _without_tool(request)

    def _answered(
        self, run: SkillRun, runtime: "ToolRuntime[Any, Any]", arguments: Mapping[str, Any]
    ) -> Plan[ToolMessage | Command[Any]]:
        """Return what the model reads, and the problems that were found on the way, for state."""
        outcome: Outcome | Exception
        try:
            outcome = yield from self._plan(run, **arguments)
        except Exception as error:  # noqa: BLE001 - a plan never sees LangGraph's own exceptions
            outcome = error
        answer = _answer(outcome, runtime, self._timeout)
        return Command(update={**run.update, "messages": [answer]}) if run.update else answer

    def _plan(self, run: SkillRun, skill_name: str, script_name: str, args: Sequence[str] = ()) -> Plan[Outcome]:
        entry = _loaded(run, skill_name)
        has_shell = yield from can_execute(run)
        if not has_shell and self._runner is None:
            raise SkillsError("Scripts cannot be run here: the backend has no shell. Work without the script.")
        env = yield from self._variables(run, entry)
        remembered = run.memory.get(entry.name)
        others = [path for path in remembered if isinstance(path, str)] if isinstance(remembered, list) else []
        call = ScriptCall(entry, script_name, args, env, self._timeout, self._max_output, others)
        started = time.monotonic()
        try:
            if has_shell or self._runner is None:
                outcome = yield from run_in_shell(call, run)
            else:
                outcome = yield from run_by_function(call, self._runner, run)
        except SkillsError as error:
            # The message may contain a value, and so may the exception that caused it.
            raise SkillsError(masked_text(str(error), call.secrets, MAX_ERROR_LENGTH)) from None
        seconds = round(time.monotonic() - started, 3)
        run.emit(
            {
                "type": "skill.script",
                "skill": entry.name,
                "script": call.relative_path,
                "exit_code": outcome.exit_code,
                "seconds": seconds,
                "source": entry.source,
                "digest": entry.digest,
                "trigger": "model",
            }
        )
        ended = (
            f"ended after its limit of {self._timeout} s" if outcome.timed_out else told_exit_code(outcome.exit_code)
        )
        logger.info("Ran script %r of skill %r: %s, %.1f s", call.relative_path, entry.name, ended, seconds)
        return outcome

    def _variables(self, run: SkillRun, entry: SkillEntry) -> Plan[dict[str, str]]:
        """Return what the operator's function returns; problems with it are reported without any value."""
        if self._env is None:
            return {}
        try:
            given = yield CallFunction(self._env, (run.runtime, entry), seconds=self._timeout)
        except CallFailed as failure:
            # Only the type: the message of an error may contain a value of the environment.
            cause = type(failure.__cause__).__name__
            raise _without_environment(
                run, entry, f"The environment of the script could not be prepared ({cause})."
            ) from None
        if given is None:
            return {}
        fault = _fault_of(given)
        if fault is not None:
            raise _without_environment(run, entry, fault)
        return dict(given)


def _fault_of(env: object) -> str | None:
    """Return what is wrong with the result of the operator's function, without any value; `None` if nothing is."""
    if not isinstance(env, Mapping):
        return f"The environment of the script is not a mapping but {type(env).__name__}."
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            return "The environment of the script has a variable whose name no shell takes."
        if not isinstance(value, str) or "\x00" in value or not is_text(value):
            return f"The value of the variable {name} is not text that a process can be given."
    return None


def _without_environment(run: SkillRun, entry: SkillEntry, fault: str) -> SkillsError:
    """Report what is wrong with the environment to the operator, and return the answer for the model."""
    message = f"{fault} No script of the skill runs until the function `env` of SkillScripts is fixed."
    run.report(entry.path, ENV_FAILED, message, "error")
    return SkillsError(fault)


def _without_tool(request: ModelRequest[Any]) -> ModelRequest[Any]:
    return request.override(tools=[tool for tool in request.tools if getattr(tool, "name", None) != TOOL_NAME])


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")


def _loaded(run: SkillRun, name: str) -> SkillEntry:
    """Return the loaded skill with that name, ignoring case.

    Raises:
        SkillsError: If it is not loaded, or its file is out of reach; a skill that the model cannot see is reported
            like one that does not exist.
    """
    withheld = {skill.entry.name for skill in run.loaded if "scripts" in skill.withheld}
    loaded = [skill.entry for skill in run.loaded if not skill.is_lost]
    meant = meant_name([entry.name for entry in loaded], name)
    entry = next((entry for entry in loaded if entry.name == meant), None)
    if entry is not None and not entry.is_read:
        raise SkillsError(f"The skill {quoted(name)} cannot be read at the moment. Try again later.")
    if entry is not None and entry.name in withheld:
        raise SkillsError(f"Scripts of the skill {quoted(name)} were not approved. Work without them, or ask the user.")
    if entry is not None:
        return entry
    if meant_name([entry.name for entry in run.visible], name) is not None:
        raise SkillsError(f"The skill {quoted(name)} is not loaded. Call `load_skill` first, then run its scripts.")
    now = f"Loaded now: {listed([e.name for e in loaded])}." if loaded else "No skill is loaded."
    raise SkillsError(f"No loaded skill is named {quoted(name)}. {now}")


def _answer(outcome: Outcome | Exception, runtime: "ToolRuntime[Any, Any]", seconds: int = 0) -> ToolMessage:
    """Return what the model reads; as for shell commands, a script that ran to its end is not a failed call."""
    code: int | None = None
    is_error = True
    if isinstance(outcome, SkillsError):
        text = f"Error: {outcome}"
    elif isinstance(outcome, Exception):
        # Its message may contain anything, so neither the log nor the model gets it.
        logger.error("%s failed: %s", TOOL_NAME, type(outcome).__name__)
        text = f"Error: {TOOL_NAME} failed ({type(outcome).__name__}). Work without it."
    else:
        code, is_error = outcome.exit_code, outcome.timed_out
        how = (
            (SCRIPT_ENDED if outcome.none_found else SCRIPT_MAY_GO_ON).format(seconds=seconds)
            if outcome.timed_out
            else f"The script ended with {told_exit_code(code)}."
        )
        text = f"{how} Its output:\n{harmless_body(outcome.output)}" if outcome.output else f"{how} It wrote nothing."
    return ToolMessage(
        text,
        name=TOOL_NAME,
        tool_call_id=runtime.tool_call_id or "",
        status="error" if is_error else "success",
        artifact=None if code is None else {"exit_code": code},
    )
