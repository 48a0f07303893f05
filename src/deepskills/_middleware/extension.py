"""The seam: what a capability outside the core can do, and what it gets to know.

An extension overrides the methods it is about; the others do nothing. Each method `x` that the core calls has an async
twin `ax`, which calls `x` unless it is overridden; an extension with I/O overrides both.

Exceptions never end a run. `visibility`, `before_read`, `before_load`, `change_text`, `before_file` and `before_tool`
judge, so they fail closed: the skill is hidden, the load, the text, the file or the call refused; a failing `withholds`
withholds everything. All other methods fail open, unless the extension sets `protective`. A result that means nothing
is a failure too. LangGraph's own exceptions (interrupts) pass through.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from deepskills._catalog.catalog import SkillEntry, Visibility
from deepskills._files.manifest import SkillManifest
from deepskills._io.plan import Plan, ResultT
from deepskills._types import ResourceMetadata, Severity, Trigger

ToolResult: TypeAlias = ToolMessage | Command[Any]
"""What a tool call gives."""


@dataclass(frozen=True)
class LoadedSkill:
    """A skill that is in use."""

    entry: SkillEntry
    arguments: str
    trigger: Trigger
    tokens: int
    is_recent: bool
    """Whether it was loaded since the user's newest message."""

    grants: bool = True
    """Whether what it grants counts: its own tools, calls without approval, a model. Its limits hold in any case."""

    withheld: frozenset[str] = frozenset()
    """What an extension withholds from it: any of `tools`, `hooks`, `scripts` and `model`. The entry's frontmatter does
    not show what is withheld."""

    is_lost: bool = False
    """Whether its text could not be recovered: then it is no longer loaded, and only its limits hold."""


@dataclass(frozen=True)
class SkillLoad:
    """A load that is about to happen, or a text that is about to enter a request."""

    entry: SkillEntry
    arguments: str
    trigger: Trigger
    text: str
    """The instructions as the model would read them: the whole file, with arguments filled in."""

    tokens: int
    resources: Sequence[ResourceMetadata] = ()
    """The skill's other files, as far as a load lists them."""

    runtime: Any = None
    """The `ToolRuntime` of a call of `load_skill`, else the run's `Runtime`."""


@dataclass(frozen=True)
class SkillFile:
    """A file of a skill that was read and is about to be shown or run."""

    entry: SkillEntry
    path: str
    """Relative to the skill."""

    content: bytes = field(repr=False)
    """The very bytes that are shown or run."""

    purpose: Literal["read", "run"] = "read"
    """A script that runs may use every other file of its skill."""

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """For what runs in a copy: the very bytes of every file of the skill, from which the copy is made."""


@dataclass(frozen=True)
class Refuse:
    """A load or a tool call must not happen; the model reads the reason."""

    reason: str


@dataclass(frozen=True)
class Answer:
    """A load is answered in another way than by text in the conversation; nothing counts as loaded."""

    text: str = ""
    """What the model reads."""

    is_error: bool = False
    update: Mapping[str, Any] = field(default_factory=dict)
    """Changes of graph state that come with the answer, `messages` left out."""

    permits_call: bool = False
    """Lets the model call `load_skill` for this skill once, even if only the user may start it.

    That holds until the user's next message, and arguments that the user gave replace the model's.
    """


@dataclass(frozen=True)
class ModelCallReport:
    """A model call that has ended, and which skills' texts were in it."""

    request: ModelRequest[Any]
    """The request as it went out."""

    response: ModelResponse[Any] | None
    """What the model answered; `None` if the call failed."""

    error: Exception | None = None
    """What the call raised; the run ends with it, unless other middleware tries again."""

    shown: frozenset[str] = frozenset()
    """Names of the skills whose text stood in the request."""

    put_back: frozenset[str] = frozenset()
    """Names of the skills whose lost text was put back by this call, and not by one before."""


class SkillRun(Protocol):
    """What an extension knows of the run that calls it, and what it can ask for."""

    runtime: Any
    """LangGraph's runtime: `.context`, `.store`, `.stream_writer`."""

    state: Mapping[str, Any]
    """The graph's state. Private keys of the core in it are not for extensions; use what is below."""

    @property
    def skills(self) -> Sequence[SkillEntry]:
        """The skills that exist in this run, whatever their visibility to the model; without those that are off."""

    @property
    def visible(self) -> Sequence[SkillEntry]:
        """The skills that the model may see and load."""

    @property
    def found(self) -> Sequence[SkillEntry]:
        """Every skill that the sources hold, including those that are off."""

    @property
    def sources(self) -> Sequence[str]:
        """Paths of the sources that were looked at."""

    @property
    def name_only(self) -> frozenset[str]:
        """Names of visible skills whose descriptions the model must not see."""

    def may_still_show(self, name: str, source: str) -> bool:
        """Whether what an earlier request showed of a skill of this source may be shown in this run as well.

        It may after the skill was edited or removed, but not if visibility or another user's sources hide it.
        """

    @property
    def loaded(self) -> Sequence[LoadedSkill]:
        """The skills in use, in load order; one whose file is out of reach has `entry.is_read` unset."""

    @property
    def own_tools(self) -> frozenset[str]:
        """Names of the skills' own tools: load, unload, extra tools, and those that skills in use bring by `tools=`."""

    def owners(self, tool: str) -> frozenset[str] | None:
        """Return the names of the skills in use whose own tool this is; `None` for a tool that belongs to no skill."""

    def holders(self, entry: SkillEntry) -> frozenset[str]:
        """Return the paths of all of the run's sources that hold a skill's file, where sources overlap."""

    @property
    def user_message(self) -> AnyMessage | None:
        """The user's newest message: not a summary, not a message of the middleware."""

    @property
    def memory(self) -> Mapping[str, Any]:
        """This extension's private state on the thread, as it was when the method was called."""

    def remember(self, key: str, value: Any) -> None:  # noqa: ANN401 - any serializable value
        """Change this extension's private state; `None` removes the key. Values must be plain data."""

    def report(self, path: str, code: str, message: str, severity: Severity = "warning") -> None:
        """Report a problem, once per thread: it is logged and stands in `skills_problems`."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Write an event to the custom stream, and tell the other extensions."""

    def load(self, name: str, arguments: str = "", *, trigger: Trigger = "system") -> None:
        """Ask at the start of a run that a skill be loaded, unless it already is."""

    def note(self, message_id: str, text: str) -> None:
        """Put a note at the end of a message, in every request while the message is there; the history stays."""

    @property
    def update(self) -> dict[str, Any]:
        """The graph update that holds what `remember`, `report` and `note` asked for; a tool returns it itself."""

    @property
    def executing_tools(self) -> frozenset[str]:
        """Names of tools that execute code, besides `execute` and `run_skill_script`, as backends name them."""

    @property
    def can_execute(self) -> bool:
        """Whether the backend of this run runs commands."""

    def execute(self, command: str, timeout: int | None = None) -> Any:  # noqa: ANN401 - deepagents' ExecuteResponse
        """Run a shell command through the backend.

        Raises:
            SkillsError: If the backend cannot execute, fails, or does not answer in time; `TimeoutError` is its cause
                in the last case, and the command may still run or be about to start.
        """

    async def aexecute(self, command: str, timeout: int | None = None) -> Any:  # noqa: ANN401, ASYNC109
        """Run a shell command through the backend, without blocking."""

    def write_files(self, files: Sequence[tuple[str, bytes]], *, for_shell: bool = False) -> None:
        """Write files through the backend; `for_shell` by the part of it that runs commands, wherever paths route to.

        Raises:
            SkillsError: If one cannot be written.
        """

    async def awrite_files(self, files: Sequence[tuple[str, bytes]], *, for_shell: bool = False) -> None:
        """Write files through the backend, without blocking."""

    def read_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, the path checked as by `load_skill_asset` with all directories.

        Raises:
            SkillsError: If the path is refused, or the file is absent or cannot be read.
        """

    async def aread_file(self, entry: SkillEntry, relative_path: str) -> bytes:
        """Return the content of a skill's file, without blocking."""

    def manifest(self, entry: SkillEntry) -> SkillManifest:
        """Return every file of a skill as it is now, with digests, hidden ones included.

        A backend that has `skill_manifest` is asked and no file is read; else all files are.

        Raises:
            SkillsError: If a file cannot be read, there are too many, or a link leads out of the skill.
        """

    async def amanifest(self, entry: SkillEntry) -> SkillManifest:
        """Return every file of a skill as it is now, without blocking."""

    def files_to_run(self, entry: SkillEntry, script_name: str | None = None) -> Mapping[str, bytes] | None:
        """Return the files of which a copy must be made to run a script, or a command, of a skill.

        Whoever runs a file by its path after it was judged runs what lies there by then. So where an extension judges
        files, the very bytes that it judged are run, from a private copy. A hidden skill inside this one is left out.
        `None` if nobody judges and nothing is hidden: then the skill's own directory serves.

        Raises:
            SkillsError: If a file or the script's path is refused, or not all files can be read.
        """

    async def afiles_to_run(self, entry: SkillEntry, script_name: str | None = None) -> Mapping[str, bytes] | None:
        """Return the files of which a copy must be made to run something of a skill, without blocking."""

    def directory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it.

        Raises:
            SkillsError: If a hidden skill lies inside it, for nothing keeps a shell out; use `files_to_run`.
        """

    async def adirectory(self, entry: SkillEntry) -> str:
        """Return a skill's directory as a shell knows it, without blocking."""

    def script_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, checked as by `get_skill_script_path`.

        Raises:
            SkillsError: If the path is refused or no script is there.
        """

    async def ascript_path(self, entry: SkillEntry, script_name: str) -> str:
        """Return the path by which a shell runs a script of a skill, without blocking."""

    def drive(self, plan: Plan[ResultT]) -> ResultT:
        """Perform a plan of the library's own extensions on the backend of this run."""

    async def adrive(self, plan: Plan[ResultT]) -> ResultT:
        """Perform a plan of the library's own extensions on the backend of this run, without blocking."""


class SkillsHost(Protocol):
    """The middleware as an extension's tools and helpers see it."""

    def run_for(self, extension: "SkillExtension", state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to; looks at sources if this process has not yet."""

    async def arun_for(self, extension: "SkillExtension", state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to, without blocking."""

    def loaded_in(self, state: Mapping[str, Any]) -> Sequence[LoadedSkill]:
        """Return the skills in use, without I/O; none if this process has not looked at the sources of the thread."""

    def known_run(self, extension: "SkillExtension", state: Mapping[str, Any]) -> SkillRun | None:
        """Return the run of a state as this process knows it, without I/O; `None` if it has not looked at sources."""


class SkillExtension:
    """A capability that plugs into `SkillsMiddleware(extensions=[...])`; override what it is about.

    Extensions are asked in the order of the list, and the first refusal wins. One instance may serve several agents
    and many threads at once: keep per-thread data with `run.remember`, not on the instance.
    """

    name: ClassVar[str] = ""
    """The key of its private state; the class's name by default."""

    protective: ClassVar[bool] = False
    """Whether every method of this extension fails closed."""

    frontmatter_keys: Sequence[str] = ()
    """Frontmatter keys to keep with each entry, for `SkillEntry.frontmatter`."""

    ranks_skills: bool = False
    """Whether this extension ranks skills against texts: the searchable parts of their files are then kept."""

    extra_tools: Sequence[str] = ()
    """Extra tools of the middleware that this extension turns on, such as `search_skills`."""

    def attach(self, host: SkillsHost) -> None:
        """Remember the middleware, for tools and for helpers that other middleware calls."""

    def tools(self, host: SkillsHost) -> Sequence[BaseTool]:  # noqa: ARG002 - for overriding
        """Return tools of the extension's own."""
        return ()

    def visibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:  # noqa: ARG002
        """Return how visible skills are to this run, by name; one that is left out is not restricted."""
        return {}

    async def avisibility(self, skills: Sequence[SkillEntry], run: SkillRun) -> Mapping[str, Visibility]:
        """Return how visible skills are to this run."""
        return self.visibility(skills, run)

    def before_read(self, entry: SkillEntry, run: SkillRun) -> Refuse | None:
        """Let a skill's file be read for a load (`None`) or refuse the load. May call LangGraph's `interrupt`.

        Called for a load by the model, a pin, a slash command or an extension, before anything of the skill is read.
        """

    async def abefore_read(self, entry: SkillEntry, run: SkillRun) -> Refuse | None:
        """Let a skill's file be read for a load, or refuse the load."""
        return self.before_read(entry, run)

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Let a load pass (`None`), refuse it, or answer it in another way. May call LangGraph's `interrupt`."""

    async def abefore_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Let a load pass, refuse it, or answer it in another way."""
        return self.before_load(load, run)

    def change_text(self, load: SkillLoad, run: SkillRun) -> str | Refuse:  # noqa: ARG002 - for overriding
        """Return the text that enters the request, at a load and when a lost text is put back; or keep it out.

        `load.entry.sha256` is that of the very file that the text was made from.
        """
        return load.text

    async def achange_text(self, load: SkillLoad, run: SkillRun) -> str | Refuse:
        """Return the text that enters the request."""
        return self.change_text(load, run)

    def before_file(self, file: SkillFile, run: SkillRun) -> Refuse | None:
        """Let a skill's file be shown to the model or run (`None`), or refuse it."""

    async def abefore_file(self, file: SkillFile, run: SkillRun) -> Refuse | None:
        """Let a skill's file be shown to the model or run, or refuse it."""
        return self.before_file(file, run)

    def withholds(self, entry: SkillEntry, memory: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG002 - for overriding
        """Return which powers of a skill in use have no effect: any of `tools`, `hooks`, `scripts` and `model`.

        `memory` is this extension's private state on the thread. Called often: no I/O. A failure withholds all.
        """
        return ()

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:  # noqa: ARG002
        """Return the model request with other tools, another model or further messages."""
        return request

    async def achange_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Return the model request with other tools, another model or further messages."""
        return self.change_request(request, run)

    def call_metadata(self, run: SkillRun) -> Mapping[str, Any]:  # noqa: ARG002 - for overriding
        """Return metadata that tracers see on the model call that is about to be made; must not block."""
        return {}

    def after_model(self, report: ModelCallReport, run: SkillRun) -> None:
        """Look at a model call that has ended; whatever goes to `run.remember` is lost if the call failed."""

    async def aafter_model(self, report: ModelCallReport, run: SkillRun) -> None:
        """Look at a model call that has ended."""
        self.after_model(report, run)

    def before_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Let a tool call pass (`None`) or refuse it. Loads and unloads earlier in the same turn count as done."""

    async def abefore_tool(self, request: ToolCallRequest, run: SkillRun) -> Refuse | None:
        """Let a tool call pass or refuse it."""
        return self.before_tool(request, run)

    def after_tool(self, request: ToolCallRequest, result: ToolResult, run: SkillRun) -> ToolResult:  # noqa: ARG002
        """Look at a tool's result; return it, or another in its place."""
        return result

    async def aafter_tool(self, request: ToolCallRequest, result: ToolResult, run: SkillRun) -> ToolResult:
        """Look at a tool's result."""
        return self.after_tool(request, result, run)

    def at_start(self, run: SkillRun) -> None:
        """Act at the start of a run, after discovery: `run.load`, `run.note`, `run.report`, `run.remember`."""

    async def aat_start(self, run: SkillRun) -> None:
        """Act at the start of a run."""
        self.at_start(run)

    def at_end(self, run: SkillRun) -> None:
        """Act at the end of a run."""

    async def aat_end(self, run: SkillRun) -> None:
        """Act at the end of a run."""
        self.at_end(run)

    def catalog_list(self, skills: Sequence[SkillEntry]) -> str | None:  # noqa: ARG002 - for overriding
        """Return what stands in place of the section's list of these visible skills; `None` to leave the list."""
        return None

    def search(self, query: str, n: int, run: SkillRun) -> Sequence[str] | None:  # noqa: ARG002 - for overriding
        """Return the names that `search_skills` finds, best first; `None` to leave the search to the core."""
        return None

    async def asearch(self, query: str, n: int, run: SkillRun) -> Sequence[str] | None:
        """Return the names that `search_skills` finds."""
        return self.search(query, n, run)

    def on_event(self, event: Mapping[str, Any], runtime: Any) -> None:  # noqa: ANN401 - LangGraph's runtime
        """Hear an event of the custom stream, such as `skill.loaded`; must not block."""


def overrides(extension: SkillExtension, method: str) -> bool:
    """Whether an extension does something in a method, or in its async twin."""
    return defines(extension, method) or defines(extension, f"a{method}")


def defines(extension: SkillExtension, method: str) -> bool:
    """Whether an extension has a method of its own, not the seam's."""
    return getattr(type(extension), method, None) is not getattr(SkillExtension, method, None)
