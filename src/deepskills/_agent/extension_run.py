"""What one extension knows of a run and what it can ask for, on the backend and the state of that run."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills._agent.events import tell
from deepskills._agent.extension import LoadedSkill, SkillExtension, ToolResult
from deepskills._agent.run import Run, Shelf
from deepskills._agent.updates import merged, note_update
from deepskills._backend.calls import (
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
from deepskills._backend.routes import is_backend
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.sources import parent
from deepskills._errors import SkillsError
from deepskills._files.assets import read_asset_bytes, script_path
from deepskills._types import Severity, SkillMetadata, SkillProblem, Trigger


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

    def may_still_show(self, name: str, source: str) -> bool:
        """Whether what an earlier request showed of a skill of this source may be shown in this run as well."""
        shelf = self._known_shelf
        # Where each run makes its own backend, the same path may be another user's.
        if not is_backend(self._run.settings.backend) or all(own.path != source for own in shelf.catalog.sources):
            return False
        return name not in shelf.hidden if name in shelf.catalog.by_name else shelf.shows_absent(name)

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
        return self._perform(read_asset_bytes(_read(entry), relative_path, "all"))

    async def aread_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, without blocking."""
        return await self._aperform(read_asset_bytes(_read(entry), relative_path, "all"))

    def directory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it."""
        return self._perform(_directory(entry))

    async def adirectory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it, without blocking."""
        return await self._aperform(_directory(entry))

    def script_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill."""
        return self._perform(script_path(_read(entry), script_name))

    async def ascript_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, without blocking."""
        return await self._aperform(script_path(_read(entry), script_name))

    def _perform(self, plan: Plan[ResultT]) -> ResultT:
        return self._run.settings.perform(plan, self.runtime)

    async def _aperform(self, plan: Plan[ResultT]) -> ResultT:
        return await self._run.settings.aperform(plan, self.runtime)


def _read(entry: SkillEntry) -> SkillMetadata:
    """Return a skill whose path is known from its source, not from what state claims.

    Raises:
        SkillsError: If this process has not read it.
    """
    if not entry.is_read:
        raise SkillsError(f"The file of the skill {entry.name!r} cannot be read at the moment; try again later.")
    return entry.skill


def _directory(entry: SkillEntry) -> Plan[str]:
    path = parent(_read(entry)["path"])
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


def tool_problems(run: Run) -> dict[str, Any]:
    """Return the problems of a tool call as an update that calls of one turn can make side by side."""
    fresh = run.new_problems()
    return {"skills_context": {"problems": {f"{p['code']}:{p['path']}": p for p in fresh}}} if fresh else {}


def with_changes(message: ToolMessage, run: Run) -> ToolResult:
    """Return a tool's answer with what extensions asked to change, and the problems that were found on the way."""
    update = merged(run.collected, tool_problems(run))
    return Command(update=merged(update, {"messages": [message]})) if update else message
