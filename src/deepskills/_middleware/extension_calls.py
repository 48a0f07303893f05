"""Calls the extensions, in their order, guarded, sync or async as the run is.

`SkillRun` is what one extension knows of a run: what it reads or runs by it passes the checks that the core's own
tools pass. Below it are reading and running of a skill's files as extensions judge them, and then the calls: `ask`
calls one method of one extension, and the functions behind it call one method of all. There is one rule for failures:
what judges (visibility, loads, texts, files, tool calls) fails closed, because a guard that crashed has not agreed;
everything else fails open, unless the extension says that it protects.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import NoneType
from typing import Any, Concatenate, ParamSpec

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import AnyMessage, ToolMessage
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command

from deepskills._catalog.catalog import SkillEntry, include_names
from deepskills._errors import SkillFileNotFoundError, SkillsError
from deepskills._files.assets import find_script, read_asset_bytes
from deepskills._files.manifest import (
    SkillManifest,
    read_all_files,
    read_manifest,
    read_provided_manifest,
)
from deepskills._files.paths import AssetDirectories, normalise_path
from deepskills._io.backends import is_backend, real_root
from deepskills._io.drivers import await_if_needed
from deepskills._io.plan import (
    Ask,
    Attempt,
    Execute,
    Executed,
    Failed,
    Plan,
    ResolveLinks,
    ResultT,
    WriteFiles,
    lies_under,
    parent,
)
from deepskills._middleware.config import Settings
from deepskills._middleware.events import SkillEvent, event_from
from deepskills._middleware.extension import (
    Answer,
    LoadedSkill,
    Refuse,
    SendBack,
    SkillExtension,
    SkillFile,
    SkillLoad,
    ToolResult,
    overrides,
)
from deepskills._middleware.reporting import emit
from deepskills._middleware.run import Run, VisibleCatalog, name_of
from deepskills._middleware.state import build_note_update, extension_section, merge_updates
from deepskills._middleware.workarounds import (
    STARTS_AGENT,
    add_call_metadata,
    middleware_of_agent,
    middleware_of_sub_agent,
)
from deepskills._providers.base import SCHEME
from deepskills._skillmd.problems import problem, quoted
from deepskills._skillmd.text import one_line
from deepskills._types import SKILL_FILE, Severity, SkillProblem, Trigger

logger = logging.getLogger("deepskills")

ONLY_IN_ASYNC = (
    "a method of `run` that reads, writes or runs something gives an awaitable: write the method of {name} that calls "
    "it `async def`, and `await` it"
)


ArgumentsT = ParamSpec("ArgumentsT")


def perform_in_run(
    plan: Callable[Concatenate["SkillRun", ArgumentsT], Plan[ResultT]],
) -> Callable[Concatenate["SkillRun", ArgumentsT], Coroutine[Any, Any, ResultT]]:
    """Make a method of `SkillRun` whose plan is performed on the backend of the run."""

    @wraps(plan)
    def method(run: "SkillRun", /, *given: ArgumentsT.args, **named: ArgumentsT.kwargs) -> Coroutine[Any, Any, ResultT]:
        return run.perform(lambda: plan(run, *given, **named))

    return method


class SkillRun:
    """What one extension knows of the run that calls it, and what it can ask for.

    Properties work in every hook. Methods that read, write or run something give an awaitable, for hooks that are
    written `async def`; `asyncio.gather`, `asyncio.wait_for` and task groups take them.
    """

    def __init__(self, run: Run, extension: SkillExtension, view: VisibleCatalog | None = None) -> None:
        self._run = run
        self._extension = extension
        self._view = view
        self._is_called = False
        self.name = name_of(extension)
        """The name under which this extension keeps its state."""
        self.is_protective = extension.protective
        """Whether every method of this extension fails closed."""
        self.runtime: ToolRuntime[Any, Any] = run.runtime
        """LangGraph's runtime: `.context`, `.store`, `.stream_writer`."""
        # Messages have the same keys here as in requests, even where the host gave no id.
        keyed = run.thread.messages is not run.thread.given
        self.state: Mapping[str, Any] = {**run.state, "messages": list(run.thread.messages)} if keyed else run.state
        """The graph's state. Private keys of the core in it are not for extensions; use what is below."""

    @property
    def _known_view(self) -> VisibleCatalog:
        return self._view or self._run.known_view

    @property
    def extensions(self) -> Sequence[SkillExtension]:
        """The extensions of the middleware, in their order."""
        return self._run.settings.extensions

    @property
    def skills(self) -> Sequence[SkillEntry]:
        """The skills that exist in this run, also those that the model does not see; without those that are off."""
        return self._known_view.existing

    @property
    def visible(self) -> Sequence[SkillEntry]:
        """The skills that the model may see and load."""
        return self._known_view.visible

    @property
    def found(self) -> Sequence[SkillEntry]:
        """Every skill that the sources hold, including those that are off."""
        return self._known_view.catalog.entries

    @property
    def sources(self) -> Sequence[str]:
        """Paths of the sources that were looked at."""
        return [source.path for source in self._known_view.catalog.sources]

    @property
    def name_only(self) -> frozenset[str]:
        """Names of visible skills whose descriptions the model must not see."""
        return frozenset(name for name, how in self._known_view.hidden.items() if how == "name-only")

    def may_still_show(self, name: str, source: str) -> bool:
        """Whether what an earlier request showed of a skill of this source may be shown in this run as well.

        It may after the skill was edited or removed, but not if visibility or another user's sources hide it.
        """
        view = self._known_view
        # Where each run makes its own backend, the same path may be another user's.
        if not is_backend(self._run.settings.backend) or all(own.path != source for own in view.catalog.sources):
            return False
        # A skill that left the catalog may still be named in an old note; the rule for its name decides.
        return name not in view.hidden if name in view.catalog.by_name else view.shows_absent(name)

    @property
    def loaded(self) -> Sequence[LoadedSkill]:
        """The skills in use, in load order; one whose file is out of reach has `entry.is_read` unset."""
        return self._run.loaded

    @property
    def loaded_before(self) -> Sequence[LoadedSkill]:
        """The skills in use when the calls of this turn were made: what an earlier call changes does not count yet."""
        return self._run.in_use.skills

    @property
    def seen(self) -> Sequence[SkillEntry]:
        """The skills whose text the model has seen: those in use, and those unloaded whose text still stands."""
        return self._run.seen

    @property
    def own_tools(self) -> frozenset[str]:
        """Names of the skills' own tools: load, unload, extra tools, and those that skills in use bring by `tools=`."""
        return self._run.settings.own_tools | self._run.skill_tools

    def owners(self, tool: str) -> frozenset[str] | None:
        """Return the names of the skills in use whose own tool this is; `None` for a tool that belongs to no skill."""
        name = self._run.tool_origins.get(tool)
        if name is None:
            return None
        # Only those whose grants count: a tool of a skill whose file was not read belongs to none.
        return frozenset(entry.name for entry in self._run.in_use.granting if name in include_names(entry))

    def holders(self, entry: SkillEntry) -> frozenset[str]:
        """Return the paths of all of the run's sources that hold a skill's file, where sources overlap."""
        sources = (source.path for source in self._known_view.catalog.sources)
        # A file may lie below two sources (one inside the other); the less trusted one decides, so all are given.
        return frozenset({entry.source, *(path for path in sources if lies_under(entry.path, path))})

    def granted(self, entry: SkillEntry) -> frozenset[str]:
        """Return what a human granted to a served skill."""
        return self._run.granted(entry)

    def withheld(self, entry: SkillEntry) -> frozenset[str]:
        """Return which powers extensions withhold from a skill."""
        return self._run.withheld(entry)

    def starts_unbound(self, request: ToolCallRequest) -> bool:
        """Whether a call starts an agent that is not known to have this extension, to which no limit would travel."""
        found = self._agent_middleware(request)
        if found is None:
            return False
        settings = [own for middleware in found if isinstance(own := getattr(middleware, "_settings", None), Settings)]
        return not any(isinstance(other, type(self._extension)) for own in settings for other in own.extensions)

    def _agent_middleware(self, request: ToolCallRequest) -> Sequence[object] | None:
        """Return the middleware of the agent that a call starts, as far as it is known; `None` if it starts none."""
        call = request.tool_call
        if call["name"] in STARTS_AGENT:
            return middleware_of_sub_agent(request.tool, call["args"].get("subagent_type"))
        agents = (extension.find_agent(request, self) for extension in self._run.settings.extensions)
        agent = next((agent for agent in agents if agent is not None), None)
        if agent is None:
            return None
        return self._agent_middleware(agent) if isinstance(agent, ToolCallRequest) else middleware_of_agent(agent)

    @property
    def user_message(self) -> AnyMessage | None:
        """The user's newest message: not a summary, not a message of the middleware."""
        return self._run.thread.user_message

    @property
    def memory(self) -> Mapping[str, Any]:
        """This extension's private state on the thread, with what it asked to change in this call."""
        return self._run.memory_of(self._extension)

    def remember(self, key: str, value: Any) -> None:  # noqa: ANN401 - any serializable value
        """Change this extension's private state; `None` removes the key. Values must be plain data."""
        self._run.collect({"skills_context": {extension_section(self.name): {key: value}}})

    def report(self, path: str, code: str, message: str, severity: Severity = "warning") -> None:
        """Report a problem, once per thread: it is logged and stands in `skills_problems`."""
        self._run.problems.append(SkillProblem(path=path, code=code, severity=severity, message=message))

    def emit(self, event: SkillEvent | Mapping[str, Any]) -> None:
        """Write an event to the custom stream, and tell the extensions; one of your own may be a mapping."""
        emit(event_from(event), self._run)

    def load(self, name: str, arguments: str = "", *, trigger: Trigger = "system") -> None:
        """Ask that a skill be loaded before the next model call, unless it already is."""
        self._run.collect({"skills_context": {"loads": {name: {"arguments": arguments, "trigger": trigger}}}})

    def note(self, message_id: str, text: str) -> None:
        """Put a note at the end of a message, in every request while the message is there; the history stays."""
        self._run.collect(build_note_update(self._run.thread, message_id, "end", text))

    @property
    def update(self) -> dict[str, Any]:
        """The graph update that holds what `remember`, `report` and `note` asked for; a tool returns it itself."""
        return merge_updates(self._run.collected, self._run.problems_update())

    @property
    def executing_tools(self) -> frozenset[str]:
        """Names of further tools that execute code, as the sources of skills name them."""
        sources = self._run.known_view.catalog.sources
        providers = [source.provider for source in sources if source.provider is not None]
        providers += self._run.settings.serving_providers(self.runtime)
        return frozenset(name for each in providers if not each.trusted for name in each.executes)

    @property
    def is_async(self) -> bool:
        """Whether the run is async; in a sync run, use the sync methods of a store or client that has both."""
        return self._run.is_async

    @property
    def can_execute(self) -> bool:
        """Whether the backend of this run runs commands; a function of the user's may have to make it first."""
        return self._run.settings.can_execute(self.runtime)

    @property
    def root(self) -> str | None:
        """The real directory at which the backend's relative paths start; `None` if its paths are not those of a disk.

        Nor is it known of a backend that a function makes for each run.
        """
        return real_root(self._run.settings.fixed_backend)

    @perform_in_run
    async def execute(self, command: str, timeout: int | None = None) -> Executed:  # noqa: ASYNC109 - of the command
        """Run a shell command through the backend, and return deepagents' `ExecuteResponse`.

        Raises:
            SkillsError: If the backend cannot execute, fails, or does not answer in time; `TimeoutError` is its cause
                in the last case, and the command may still run or be about to start.
        """
        return await Execute(command, timeout)

    @perform_in_run
    async def write_files(self, files: Sequence[tuple[str, bytes]], *, for_shell: bool = False) -> None:
        """Write files through the backend; `for_shell` by the part of it that runs commands, wherever paths route to.

        Raises:
            SkillsError: If one cannot be written.
        """
        reply = await WriteFiles(tuple(files), for_shell)
        if reply:
            raise SkillsError("; ".join(f"{path}: {error}" for path, error in reply.items()))

    @perform_in_run
    async def read_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, the path checked as by `load_skill_asset` with all directories.

        Raises:
            SkillsError: If the path is refused, or the file is absent or cannot be read.
        """
        # "all" means any file inside the skill; hidden files and those of hidden skills inside it stay closed.
        return await read_judged_asset(self._run, _check_read(entry), relative_path, "all", self._find_closed(entry))

    @perform_in_run
    async def manifest(self, entry: SkillEntry) -> SkillManifest:
        """Return every file of a skill as it is now, with digests, hidden ones included.

        Files of a provider that lists their digests and sizes are not read for it; all others are.

        Raises:
            SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
        """
        files = await self._run.scan.files(_check_read(entry))
        return await (read_manifest(entry) if files is None else read_provided_manifest(entry, files))

    @perform_in_run
    async def files_to_run(self, entry: SkillEntry, script_name: str | None = None) -> Mapping[str, bytes] | None:
        """Return the files of which a copy must be made to run a script, or a command, of a skill.

        A file that is run by its path may have changed since it was judged. So where an extension judges
        files, the very bytes that it judged are run, from a private copy. A hidden skill inside this one is left out.
        `None` if no extension judges and nothing is hidden: then the skill's own directory serves.

        Raises:
            SkillsError: If a file or the script's path is refused, or not all files can be read.
        """
        return await read_judged_files(self._run, _check_read(entry), script_name, self._find_closed(entry))

    @perform_in_run
    async def directory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it.

        Raises:
            SkillsError: If a hidden skill lies inside it, for nothing keeps a shell out; use `files_to_run`.
        """
        if self._find_closed(entry):
            raise SkillsError(
                f"Nothing can run in the directory of {entry.name!r}: a skill that is not shown lies in it."
            )
        path = parent(_check_read(entry).path)
        if path.startswith(SCHEME):
            raise SkillsError(f"The skill {entry.name!r} has no directory; its files are run from a copy.")
        reply = await ResolveLinks((path,))
        return reply.get(path, path)

    @perform_in_run
    async def script_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, checked as by `get_skill_script_path`.

        Raises:
            SkillsError: If the path is refused or no script is there.
        """
        return await find_judged_script(self._run, _check_read(entry), script_name, self._find_closed(entry))

    def perform(self, make: Callable[[], Plan[ResultT]]) -> Coroutine[Any, Any, ResultT]:
        """Perform a plan of the library's own extensions on the backend of this run."""
        if self._is_called:
            raise SkillsError(ONLY_IN_ASYNC.format(name=self.name))
        return self._run.aperform(make()) if self.is_async else self._run.perform_in_thread(make)

    def _find_closed(self, entry: SkillEntry) -> Sequence[str]:
        """Return the directories inside a skill's own that belong to skills which the model may not read."""
        view = self._known_view
        # Before the skills were looked up, it is unknown which are in use: what is hidden is closed then.
        in_use = self._run.loaded if self._run.view is not None else ()
        loaded = {skill.entry.name for skill in in_use if not skill.is_lost}
        return view.find_closed_below(entry, loaded)

    def call(self, method: str, *given: Any) -> Any:  # noqa: ANN401 - what an extension returns
        """Call a method of the extension for this run; what it gives may be awaitable."""
        # While a `def` method runs; an `async def` method only makes its coroutine here.
        self._is_called = True
        try:
            return getattr(self._extension, method)(*given, self)
        finally:
            self._is_called = False


def _check_read(entry: SkillEntry) -> SkillEntry:
    """Return a skill whose path is known from its source, not from what state claims.

    Raises:
        SkillsError: If this process has not read it.
    """
    if not entry.is_read:
        raise SkillsError(f"The file of the skill {entry.name!r} cannot be read at the moment; try again later.")
    return entry


def with_changes(result: ToolResult, run: Run) -> ToolResult:
    """Return a tool's result with what extensions asked to change, and the problems that were found on the way."""
    update = merge_updates(run.collected, run.problems_update())
    if not update:
        return result
    if isinstance(result, ToolMessage):
        return Command(update=merge_updates(update, {"messages": [result]}))
    # A list of pairs or an object, which LangGraph also takes: nothing of ours can be merged into it safely.
    if not isinstance(result.update, Mapping):
        return result
    return replace(result, update=merge_updates(result.update, update))


# A skill's files, as extensions judge them.


async def read_judged_asset(
    run: Run,
    entry: SkillEntry,
    relative_path: str,
    directories: AssetDirectories = "all",
    closed: Sequence[str] = (),
) -> bytes:
    """Return the content of a skill's file that no extension refuses.

    Raises:
        SkillsError: If the path or the file is refused, or the file is absent or cannot be read.
    """
    content = await run.scan.read(entry, read_asset_bytes(entry.skill, relative_path, directories, closed))
    await _check_file(run, SkillFile(entry, normalise_path(relative_path), content))
    return content


async def find_judged_script(run: Run, entry: SkillEntry, script_name: str, closed: Sequence[str] = ()) -> str:
    """Return the path by which a script runs that no extension refuses.

    Raises:
        SkillsError: If the path or the script is refused, or no script is there.
    """
    script = await run.scan.read(entry, find_script(entry.skill, script_name, closed=closed))
    if script.path.startswith(SCHEME):
        raise SkillsError(f"The script {quoted(script_name)} has no path by which it runs; its skill has no directory.")
    # The content is read only if an extension judges it: scripts may be large.
    if any(overrides(extension, "before_file") for extension in run.settings.extensions):
        content = await run.scan.read(entry, read_asset_bytes(entry.skill, script.relative, "all", closed))
        await _check_file(run, SkillFile(entry, script.relative, content, "run"))
    return script.path


async def read_judged_files(
    run: Run, entry: SkillEntry, script_name: str | None, closed: Sequence[str] = ()
) -> dict[str, bytes] | None:
    """Return the files of a skill of which a copy is to be run, judged as they are; `None` if none is needed.

    Raises:
        SkillsError: If a file or the script's path is refused, or not all files can be read.
    """
    is_judged = any(overrides(extension, "before_file") for extension in run.settings.extensions)
    files = await run.scan.files(entry)
    # What a provider gives lies in no directory, or in one that may hold other bytes: it always runs from a copy.
    if not is_judged and not closed and files is None:
        return None
    path = SKILL_FILE
    if script_name is not None:
        path = (await run.scan.read(entry, find_script(entry.skill, script_name, closed=closed))).relative
    contents, hidden = await run.scan.read(entry, read_all_files(entry, closed))
    if path not in contents:
        raise SkillFileNotFoundError(f"The file {quoted(path)} of the skill {quoted(entry.name)} is gone. Try again.")
    # All are judged, also those that the copy leaves out: a guard knows a skill by the whole set of its files.
    await _check_file(run, SkillFile(entry, path, contents[path], "run", contents))
    return {path: content for path, content in contents.items() if path not in hidden}


async def _check_file(run: Run, file: SkillFile) -> None:
    refused = await decide_by_extensions("before_file", run, file)
    if isinstance(refused, Refuse):
        raise SkillsError(refused.reason)


# The calls.


_GIVES: Mapping[str, tuple[type, ...]] = {
    "visibility": (Mapping,),
    "before_read": (Refuse, NoneType),
    "before_load": (Refuse, Answer, NoneType),
    "before_file": (Refuse, NoneType),
    "change_text": (str, Refuse),
    "change_request": (ModelRequest,),
    "before_tool": (Refuse, NoneType),
    "after_tool": (ToolMessage, Command, NoneType),
    "search": (Sequence, NoneType),
    "before_end": (SendBack, NoneType),
    "open_checks": (Sequence,),
}
"""What a method may return; where nothing is expected, anything."""


async def ask(method: str, run: SkillRun, *given: Any) -> Any:  # noqa: ANN401
    """Call one method of the extension of a run, and return what it gives.

    A result that means nothing is a failure like an exception: logged, recorded as a problem, returned as `Failed`.
    """
    # Called by its name when it is asked: a method that is missing fails like one that raises.
    reply = await Attempt(Ask(lambda: run.call(method, *given)))
    if not isinstance(reply, Failed) and isinstance(reply, _GIVES.get(method, (object,))):
        return reply
    return fail(run, method, reply.reason if isinstance(reply, Failed) else describe_unusable(reply))


def fail(run: SkillRun, method: str, reason: str) -> Failed:
    """Log and record that an extension failed, and return that as a value."""
    logger.error("The extension %s failed in %s: %s", run.name, method, one_line(reason))
    found = problem("extensions", "extension-failed", name=run.name, method=method, reason=reason)
    run._run.problems.append(found)  # noqa: SLF001 - the run that this one is about
    return Failed(f"the extension {run.name} failed: {reason}")


def describe_unusable(value: object) -> str:
    """Say what was returned that means nothing here, such as the coroutine of a method that should not be async."""
    if inspect.iscoroutine(value):
        # Closed, or Python warns that it was never awaited.
        value.close()
    return f"it returned {type(value).__name__}, which means nothing here"


def runs_of(method: str, run: Run, view: VisibleCatalog | None = None) -> Iterator[SkillRun]:
    """Yield what each extension that has a method of its own knows of a run, in their order."""
    for extension in run.settings.extensions:
        if overrides(extension, method):
            yield SkillRun(run, extension, view)


async def decide_by_extensions(method: str, run: Run, given: object) -> Refuse | Answer | None:
    """Ask by one method that judges; the first decision counts, and a failure refuses. `None` lets pass."""
    for own in runs_of(method, run):
        decision: Refuse | Answer | Failed | None = await ask(method, own, given)
        if isinstance(decision, Failed):
            return Refuse(decision.reason)
        if decision is not None:
            return decision
    return None


async def change_text(load: SkillLoad, run: Run) -> str | Failed:
    """Return the text that enters a request after every extension has seen it; a failure keeps it out."""
    for own in runs_of("change_text", run):
        # Each extension sees what those before it made of the text.
        changed = await ask("change_text", own, load)
        if isinstance(changed, Refuse):
            return Failed(changed.reason)
        if isinstance(changed, Failed):
            return changed
        load = replace(load, text=changed)
    return load.text


async def change_request(request: ModelRequest[Any], run: Run) -> ModelRequest[Any] | Failed:
    """Return the request as the extensions change it; a failure leaves it, or stops it if the extension protects."""
    for own in runs_of("change_request", run):
        changed = await ask("change_request", own, request)
        if not isinstance(changed, Failed):
            request = changed
        elif own.is_protective:
            return changed
    return request


async def after_tool(request: ToolCallRequest, result: ToolResult, run: Run) -> ToolResult | Failed:
    """Return a tool's result after every extension has seen it; a protecting one that fails withholds it."""
    for own in runs_of("after_tool", run):
        changed = await ask("after_tool", own, request, result)
        if not isinstance(changed, Failed):
            result = result if changed is None else changed
        elif own.is_protective:
            return changed
    return result


async def search_by_extensions(query: str, n: int, run: Run, view: VisibleCatalog) -> list[SkillEntry] | None:
    """Return what the first extension that searches has found of the visible skills; `None` if none searches.

    Raises:
        SkillsError: If an extension that protects failed.
    """
    for own in runs_of("search", run, view):
        names = await ask("search", own, query, n)
        if isinstance(names, Failed) and own.is_protective:
            raise SkillsError(names.reason)
        if isinstance(names, Sequence):
            by_name = {entry.name: entry for entry in view.visible}
            # Through the visible ones: an extension may know names that this run must not show.
            return [by_name[name] for name in names if name in by_name][:n]
    return None


async def call_extensions(method: str, run: Run, *given: object) -> None:
    """Let the extensions act by a method that decides nothing: at the start or end of a run, after a model call.

    Raises:
        SkillsError: If an extension that protects failed at the start; later there is nothing left to protect.
    """
    for own in runs_of(method, run):
        failed = await ask(method, own, *given)
        if isinstance(failed, Failed) and own.is_protective and method == "at_start":
            raise SkillsError(failed.reason)


@contextmanager
def describe_to_tracers(run: Run) -> Iterator[None]:
    """Let tracers such as LangSmith see the skills in use, and what extensions say of the model call made inside."""
    digests = {skill.entry.name: skill.entry.digest or None for skill in run.loaded if not skill.is_lost}
    metadata: dict[str, Any] = {"skills": list(digests), "skill_digests": digests} if digests else {}
    for own in runs_of("call_metadata", run):
        try:
            metadata.update(await_if_needed(own.call("call_metadata")))
        except Exception:
            logger.exception("The extension %s failed to describe a model call", own.name)
    with add_call_metadata(metadata):
        yield
