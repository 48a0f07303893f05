"""Calls the extensions: in their order, guarded, sync or async as the run is."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AnyMessage

from deepskills._agent.events import tell
from deepskills._agent.extension import (
    Answer,
    LoadedSkill,
    Refuse,
    SkillExtension,
    SkillLoad,
    ToolResult,
)
from deepskills._agent.run import Run, Shelf
from deepskills._agent.updates import merged, note_update
from deepskills._backend.calls import (
    Ask,
    Consulted,
    Execute,
    Executed,
    Failed,
    Plan,
    RealPaths,
    ResolveLinks,
    ResultT,
    WriteFiles,
    Written,
)
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillsError
from deepskills._files.assets import read_asset_bytes, script_path
from deepskills._format.problems import problem
from deepskills._format.text import one_line
from deepskills._types import Severity, SkillProblem, Trigger

logger = logging.getLogger("deepskills")

_FAILED_CLOSED = "the extension {name} failed: {reason}"


def overrides(extension: SkillExtension, method: str) -> bool:
    """Whether an extension does something in a method."""
    own, base = type(extension), SkillExtension
    return any(getattr(own, name) is not getattr(base, name) for name in (method, f"a{method}") if hasattr(base, name))


def name_of(extension: SkillExtension) -> str:
    """Return the name under which an extension keeps its state."""
    return extension.name or type(extension).__name__


class ExtensionRun:
    """What one extension knows of a run, and what it can ask for: the `SkillRun` of the seam."""

    def __init__(self, run: Run, extension: SkillExtension, shelf: Shelf | None = None) -> None:
        self._run = run
        self._extension = extension
        self._shelf = shelf
        self.name = name_of(extension)
        self.runtime = run.runtime
        self.state = run.state

    @property
    def _known_shelf(self) -> Shelf:
        return self._shelf or self._run.known_shelf

    @property
    def skills(self) -> Sequence[SkillEntry]:
        """The skills that exist in this run."""
        return self._known_shelf.existing

    @property
    def visible(self) -> Sequence[SkillEntry]:
        """The skills that the model may see and load."""
        return self._known_shelf.visible

    @property
    def name_only(self) -> frozenset[str]:
        """Names of visible skills whose descriptions the model must not see."""
        return frozenset(name for name, how in self._known_shelf.hidden.items() if how == "name-only")

    @property
    def loaded(self) -> Sequence[LoadedSkill]:
        """The skills in use, in load order."""
        return self._run.loaded

    @property
    def own_tools(self) -> frozenset[str]:
        """Names of the skills' own tools."""
        return self._run.settings.own_tools | self._run.skill_tools

    @property
    def user_message(self) -> AnyMessage | None:
        """The user's newest message."""
        return self._run.thread.user_message

    @property
    def memory(self) -> Mapping[str, Any]:
        """This extension's private state on the thread."""
        kept = self.state.get("skills_extensions")
        own = kept.get(self.name) if isinstance(kept, Mapping) else None
        asked = self._run.collected.get("skills_extensions", {}).get(self.name, {})
        values = {**(own if isinstance(own, Mapping) else {}), **asked}
        return {key: value for key, value in values.items() if value is not None}

    def remember(self, key: str, value: Any) -> None:  # noqa: ANN401 - any serializable value
        """Change this extension's private state."""
        self._run.collect({"skills_extensions": {self.name: {key: value}}})

    def report(self, path: str, code: str, message: str, severity: Severity = "warning") -> None:
        """Report a problem, once per thread."""
        self._run.problems.append(SkillProblem(path=path, code=code, severity=severity, message=message))

    def emit(self, event: Mapping[str, Any]) -> None:
        """Write an event to the custom stream, and tell the extensions."""
        tell(event, self.runtime, self._run.settings.extensions)

    def load(self, name: str, arguments: str = "", *, trigger: Trigger = "system") -> None:
        """Ask that a skill be loaded before the next model call, unless it is."""
        self._run.collect({"skills_context": {"loads": {name: {"arguments": arguments, "trigger": trigger}}}})

    def note(self, message_id: str, text: str) -> None:
        """Put a note at the end of a message, in every request while the message is there."""
        self._run.collect(note_update(self._run.thread, message_id, "end", text))

    @property
    def update(self) -> dict[str, Any]:
        """The graph update that holds what was asked for."""
        return merged(self._run.collected, tool_problems(self._run))

    @property
    def can_execute(self) -> bool:
        """Whether the backend of this run runs commands."""
        return self._run.settings.can_execute(self.runtime)

    def execute(self, command: str, timeout: int | None = None) -> Any:  # noqa: ANN401 - deepagents' response
        """Run a shell command through the backend."""
        return self._perform(_executed(command, timeout))

    async def aexecute(self, command: str, timeout: int | None = None) -> Any:  # noqa: ANN401, ASYNC109
        """Run a shell command through the backend, without blocking."""
        return await self._aperform(_executed(command, timeout))

    def write_files(self, files: Sequence[tuple[str, bytes]], *, for_shell: bool = False) -> None:
        """Write files through the backend."""
        self._perform(_written(files, for_shell=for_shell))

    async def awrite_files(self, files: Sequence[tuple[str, bytes]], *, for_shell: bool = False) -> None:
        """Write files through the backend, without blocking."""
        await self._aperform(_written(files, for_shell=for_shell))

    def read_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file."""
        return self._perform(read_asset_bytes(entry.skill, relative_path, "all"))

    async def aread_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, without blocking."""
        return await self._aperform(read_asset_bytes(entry.skill, relative_path, "all"))

    def directory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it."""
        return self._perform(_directory(entry))

    async def adirectory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it, without blocking."""
        return await self._aperform(_directory(entry))

    def script_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill."""
        return self._perform(script_path(entry.skill, script_name))

    async def ascript_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, without blocking."""
        return await self._aperform(script_path(entry.skill, script_name))

    def _perform(self, plan: Plan[ResultT]) -> ResultT:
        return self._run.settings.perform(plan, self.runtime)

    async def _aperform(self, plan: Plan[ResultT]) -> ResultT:
        return await self._run.settings.aperform(plan, self.runtime)


def _directory(entry: SkillEntry) -> Plan[str]:
    path = parent(entry.path)
    [reply] = yield (ResolveLinks((path,)),)
    return reply.paths.get(path, path) if isinstance(reply, RealPaths) else path


def _executed(command: str, timeout: int | None) -> Plan[Any]:
    [reply] = yield (Execute(command, timeout),)
    if isinstance(reply, Executed):
        return reply.response
    if not isinstance(reply, Failed):
        raise SkillsError("the backend gave no response")
    raise SkillsError(reply.reason) from (TimeoutError(reply.reason) if reply.timed_out else None)


def _written(files: Sequence[tuple[str, bytes]], *, for_shell: bool) -> Plan[None]:
    [reply] = yield (WriteFiles(tuple(files), for_shell),)
    errors = reply.errors if isinstance(reply, Written) else {"files": getattr(reply, "reason", "no answer")}
    if errors:
        raise SkillsError("; ".join(f"{path}: {error}" for path, error in errors.items()))


def ask(extension: SkillExtension, method: str, run: ExtensionRun, *given: Any) -> Plan[Any]:  # noqa: ANN401
    """Call one method of an extension, sync or async as the run is; a failure is logged, noted and returned."""
    [reply] = yield (
        Ask(
            lambda: getattr(extension, method)(*given, run),
            lambda: getattr(extension, f"a{method}")(*given, run),
        ),
    )
    if isinstance(reply, Consulted):
        return reply.value
    failed = reply if isinstance(reply, Failed) else Failed("no answer")
    logger.error("The extension %s failed in %s: %s", run.name, method, one_line(failed.reason))
    run._run.problems.append(  # noqa: SLF001 - the run that this one is about
        problem("extensions", "extension-failed", name=run.name, method=method, reason=failed.reason)
    )
    return Failed(_FAILED_CLOSED.format(name=run.name, reason=failed.reason))


def before_load(load: SkillLoad, run: Run) -> Plan[Refuse | Answer | None]:
    """Ask whether a load may happen; the first that refuses or answers decides. A failure refuses."""
    for extension in run.settings.extensions:
        if overrides(extension, "before_load"):
            decision = yield from ask(extension, "before_load", ExtensionRun(run, extension), load)
            if isinstance(decision, Failed):
                return Refuse(decision.reason)
            if isinstance(decision, Refuse | Answer):
                return decision
    return None


def change_text(load: SkillLoad, run: Run) -> Plan[str | Failed]:
    """Return the text that enters a request after every extension has seen it; a failure keeps it out."""
    text = load.text
    for extension in run.settings.extensions:
        if overrides(extension, "change_text"):
            given = SkillLoad(load.entry, load.arguments, load.trigger, text, load.tokens, load.resources, load.runtime)
            changed = yield from ask(extension, "change_text", ExtensionRun(run, extension), given)
            if not isinstance(changed, str):
                return changed if isinstance(changed, Failed) else Failed(f"{name_of(extension)} returned no text")
            text = changed
    return text


def change_request(request: ModelRequest[Any], run: Run) -> Plan[ModelRequest[Any] | Failed]:
    """Return the request as the extensions change it; a failure leaves it, or stops it if the extension protects."""
    for extension in run.settings.extensions:
        if overrides(extension, "change_request"):
            changed = yield from ask(extension, "change_request", ExtensionRun(run, extension), request)
            if isinstance(changed, ModelRequest):
                request = changed
            elif extension.protective:
                return changed if isinstance(changed, Failed) else Failed(f"{name_of(extension)} returned no request")
    return request


def before_tool(request: ToolCallRequest, run: Run) -> Plan[Refuse | None]:
    """Ask whether a tool call may run; the first refusal wins. A failure refuses."""
    for extension in run.settings.extensions:
        if overrides(extension, "before_tool"):
            decision = yield from ask(extension, "before_tool", ExtensionRun(run, extension), request)
            if isinstance(decision, Failed):
                return Refuse(decision.reason)
            if isinstance(decision, Refuse):
                return decision
    return None


def after_tool(request: ToolCallRequest, result: ToolResult, run: Run) -> Plan[ToolResult | Refuse]:
    """Return a tool's result after every extension has seen it; a protecting one that fails withholds it."""
    for extension in run.settings.extensions:
        if overrides(extension, "after_tool"):
            changed = yield from ask(extension, "after_tool", ExtensionRun(run, extension), request, result)
            if not isinstance(changed, Failed) and changed is not None:
                result = changed
            elif extension.protective and isinstance(changed, Failed):
                return Refuse(changed.reason)
    return result


def searched_by_extensions(query: str, n: int, run: Run, shelf: Shelf) -> Plan[list[SkillEntry] | None]:
    """Return what the first extension that searches has found of the visible skills; `None` if none searches."""
    for extension in run.settings.extensions:
        if overrides(extension, "search"):
            names = yield from ask(extension, "search", ExtensionRun(run, extension, shelf), query, n)
            if isinstance(names, Sequence):
                by_name = {entry.name: entry for entry in shelf.visible}
                return [by_name[name] for name in names if name in by_name][:n]
    return None


def at(moment: str, run: Run) -> Plan[None]:
    """Let the extensions act at the start or the end of a run."""
    for extension in run.settings.extensions:
        if overrides(extension, moment):
            failed = yield from ask(extension, moment, ExtensionRun(run, extension))
            if isinstance(failed, Failed) and extension.protective:
                raise SkillsError(failed.reason)


def tool_problems(run: Run) -> dict[str, Any]:
    """Return the problems of a tool call as an update that calls of one turn can make side by side."""
    fresh = run.new_problems()
    return {"skills_context": {"problems": {f"{p['code']}:{p['path']}": p for p in fresh}}} if fresh else {}
