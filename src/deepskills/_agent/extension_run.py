"""What one extension knows of a run and what it can ask for, on the backend and the state of that run."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.types import Command

from deepskills._agent.asking import ask, overrides
from deepskills._agent.events import tell
from deepskills._agent.extension import LoadedSkill, Refuse, SkillExtension, SkillFile, ToolResult
from deepskills._agent.run import Run, Shelf, name_of
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
from deepskills._catalog.entries import SkillEntry
from deepskills._catalog.manifest import SkillManifest
from deepskills._catalog.sources import parent
from deepskills._errors import SkillsError
from deepskills._files.assets import read_asset_bytes, script_path
from deepskills._files.manifest import read_manifest
from deepskills._files.paths import STANDARD_DIRECTORIES, AssetDirectories, normalised, script_to_relative
from deepskills._types import Severity, SkillProblem, Trigger


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
    def found(self) -> Sequence[SkillEntry]:
        """Every skill that the sources hold."""
        return self._known_shelf.catalog.entries

    @property
    def sources(self) -> Sequence[str]:
        """Paths of the sources that were looked at."""
        return [source.path for source in self._known_shelf.catalog.sources]

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
        return self._run.memory_of(self._extension)

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
        return self._perform(judged_asset(self._run, _read(entry), relative_path))

    async def aread_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, without blocking."""
        return await self._aperform(judged_asset(self._run, _read(entry), relative_path))

    def manifest(self, entry: SkillEntry) -> SkillManifest:
        """Return every file of a skill as it is now."""
        return self._perform(read_manifest(_read(entry)))

    async def amanifest(self, entry: SkillEntry) -> SkillManifest:
        """Return every file of a skill as it is now, without blocking."""
        return await self._aperform(read_manifest(_read(entry)))

    def directory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it."""
        return self._perform(_directory(entry))

    async def adirectory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it, without blocking."""
        return await self._aperform(_directory(entry))

    def script_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill."""
        return self._perform(judged_script(self._run, _read(entry), script_name))

    async def ascript_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, without blocking."""
        return await self._aperform(judged_script(self._run, _read(entry), script_name))

    def _perform(self, plan: Plan[ResultT]) -> ResultT:
        return self._run.settings.perform(plan, self.runtime)

    async def _aperform(self, plan: Plan[ResultT]) -> ResultT:
        return await self._run.settings.aperform(plan, self.runtime)


def _read(entry: SkillEntry) -> SkillEntry:
    """Return a skill whose path is known from its source, not from what state claims.

    Raises:
        SkillsError: If this process has not read it.
    """
    if not entry.is_read:
        raise SkillsError(f"The file of the skill {entry.name!r} cannot be read at the moment; try again later.")
    return entry


def _directory(entry: SkillEntry) -> Plan[str]:
    path = parent(_read(entry).path)
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


def first_refusal(method: str, run: Run, given: object) -> Plan[Refuse | None]:
    """Ask the extensions by one method that judges; the first refusal wins, and a failure refuses."""
    for extension in run.settings.extensions:
        if overrides(extension, method):
            decision = yield from ask(extension, method, ExtensionRun(run, extension), given)
            if isinstance(decision, Failed):
                return Refuse(decision.reason)
            if isinstance(decision, Refuse):
                return decision
    return None


def judged_asset(
    run: Run,
    entry: SkillEntry,
    relative_path: str,
    directories: AssetDirectories = "all",
    closed: Sequence[str] = (),
) -> Plan[bytes]:
    """Return the content of a skill's file that no extension refuses.

    Raises:
        SkillsError: If the path or the file is refused, or the file is absent or cannot be read.
    """
    content = yield from read_asset_bytes(entry.skill, relative_path, directories, closed)
    yield from _check(run, SkillFile(entry, normalised(relative_path), content))
    return content


def judged_script(run: Run, entry: SkillEntry, script_name: str, closed: Sequence[str] = ()) -> Plan[str]:
    """Return the path by which a script runs that no extension refuses.

    Raises:
        SkillsError: If the path or the script is refused, or no script is there.
    """
    path = yield from script_path(entry.skill, script_name, closed=closed)
    if run.settings.extensions:
        relative = script_to_relative(script_name)
        content = yield from read_asset_bytes(entry.skill, relative, STANDARD_DIRECTORIES, closed)
        yield from _check(run, SkillFile(entry, relative, content, "run"))
    return path


def _check(run: Run, file: SkillFile) -> Plan[None]:
    refused = yield from first_refusal("before_file", run, file)
    if refused is not None:
        raise SkillsError(refused.reason)
