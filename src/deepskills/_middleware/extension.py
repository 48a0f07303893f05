"""The seam: what a capability outside the core can do, and what it gets to know.

An extension overrides the methods it is about, each written `def` or `async def` under its one name; the others do
nothing. A `def` method is called where the run is; an `async def` method is awaited on the event loop in an async run,
and runs on a loop of the library in a sync run. Methods with I/O, such as those that read a skill's files, are
`async def`.

Exceptions never end a run. `visibility`, `before_read`, `before_load`, `change_text`, `before_file` and `before_tool`
judge, so they fail closed: the skill is hidden, the load, the text, the file or the call refused; a failing `withholds`
withholds everything. All other methods fail open, unless the extension sets `protective`. A result that means nothing
is a failure too. LangGraph's own exceptions (interrupts) pass through.
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from deepskills._catalog.catalog import SkillEntry, Visibility
from deepskills._middleware.events import SkillEvent
from deepskills._types import ResourceMetadata, Trigger

if TYPE_CHECKING:
    from deepskills._middleware.extension_calls import SkillRun
    from deepskills._middleware.middleware import SkillsMiddleware

ResultT = TypeVar("ResultT")
MaybeAwaitable: TypeAlias = ResultT | Awaitable[ResultT]
"""What a method gives that is written `def` or `async def`."""

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

    is_inherited: bool = False
    """Whether it is in use in the agent whose tool call started this one: then only its limits hold here."""

    load_id: str = ""
    """Identifies the load: another load of the skill has another. Empty for one that is not done yet, or was lost."""


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
class SendBack:
    """The turn must not end yet; the model reads the text and goes on."""

    text: str


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


@dataclass(frozen=True)
class OpenCheck:
    """A check of a skill that has not passed."""

    skill: str
    check: str
    """The check as its author wrote it, such as `called: run_tests`."""

    say: str
    """What the model reads: what is to be done."""


class SkillExtension:
    """A capability that plugs into `SkillsMiddleware(extensions=[...])`; override what it is about.

    Extensions are asked in the order of the list, and the first refusal wins. One instance may serve several agents
    and many threads at once: keep per-thread data with `run.remember`, not on the instance.
    """

    name: ClassVar[str] = ""
    """The key of its private state; the class's name by default."""

    protective: ClassVar[bool] = False
    """Whether every method of this extension fails closed."""

    ranks_skills: bool = False
    """Whether this extension ranks skills against texts: the searchable parts of their files are then kept."""

    extra_tools: Sequence[str] = ()
    """Extra tools of the middleware that this extension turns on, such as `search_skills`."""

    def attach(self, host: "SkillsMiddleware[Any, Any]") -> None:
        """Remember the middleware, for tools and for helpers that other middleware calls."""

    def tools(self, host: "SkillsMiddleware[Any, Any]") -> Sequence[BaseTool]:  # noqa: ARG002 - for overriding
        """Return tools of the extension's own; `host.run_for` and `host.arun_for` give them the run of a call."""
        return ()

    def visibility(self, skills: Sequence[SkillEntry], run: "SkillRun") -> MaybeAwaitable[Mapping[str, Visibility]]:  # noqa: ARG002
        """Return how visible skills are to this run, by name; one that is left out is not restricted."""
        return {}

    def before_read(self, entry: SkillEntry, run: "SkillRun") -> MaybeAwaitable[Refuse | None]:
        """Let a skill's file be read for a load (`None`) or refuse the load. May call LangGraph's `interrupt`.

        Called for a load by the model, a pin, a slash command or an extension, before anything of the skill is read.
        """

    def before_load(self, load: SkillLoad, run: "SkillRun") -> MaybeAwaitable[Refuse | Answer | None]:
        """Let a load pass (`None`), refuse it, or answer it in another way. May call LangGraph's `interrupt`."""

    def change_text(self, load: SkillLoad, run: "SkillRun") -> MaybeAwaitable[str | Refuse]:  # noqa: ARG002 - for overriding
        """Return the text that enters the request, at a load and when a lost text is put back; or keep it out.

        `load.entry.sha256` is that of the very file that the text was made from.
        """
        return load.text

    def before_file(self, file: SkillFile, run: "SkillRun") -> MaybeAwaitable[Refuse | None]:
        """Let a skill's file be shown to the model or run (`None`), or refuse it."""

    def withholds(self, entry: SkillEntry, memory: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG002 - for overriding
        """Return which powers of a skill in use have no effect: any of `tools`, `hooks`, `scripts` and `model`.

        `memory` is this extension's private state on the thread. Called often: no I/O. A failure withholds all.
        """
        return ()

    def change_request(self, request: ModelRequest[Any], run: "SkillRun") -> MaybeAwaitable[ModelRequest[Any]]:  # noqa: ARG002
        """Return the model request with other tools, another model or further messages."""
        return request

    def call_metadata(self, run: "SkillRun") -> Mapping[str, Any]:  # noqa: ARG002 - for overriding
        """Return metadata that tracers see on the model call that is about to be made; must not block."""
        return {}

    def after_model(self, report: ModelCallReport, run: "SkillRun") -> MaybeAwaitable[None]:
        """Look at a model call that has ended; what goes to `run.remember` is lost if the call failed."""

    def before_tool(self, request: ToolCallRequest, run: "SkillRun") -> MaybeAwaitable[Refuse | None]:
        """Let a tool call pass (`None`) or refuse it. Loads and unloads earlier in the same turn count as done."""

    def find_agent(self, request: ToolCallRequest, run: "SkillRun") -> object | None:
        """Return the agent that a tool call starts by this extension, or the call to `task` that does; `None` for none.

        What skills in use forbid must hold there too: where that is not known, a call is refused. No I/O.
        """

    def after_tool(self, request: ToolCallRequest, result: ToolResult, run: "SkillRun") -> MaybeAwaitable[ToolResult]:  # noqa: ARG002
        """Look at a tool's result; return it, or another in its place."""
        return result

    def at_start(self, run: "SkillRun") -> MaybeAwaitable[None]:
        """Act at the start of a run, after discovery: `run.load`, `run.note`, `run.report`, `run.remember`."""

    def before_end(self, run: "SkillRun") -> MaybeAwaitable[SendBack | None]:
        """Let the model end its turn (`None`), or send it back with what is missing.

        Asked about an answer without tool calls and about a structured response, as often as the model gives one: how
        often it is sent back is this extension's to bound. The core ends a turn after 25 times.
        """

    def open_checks(self, run: "SkillRun") -> MaybeAwaitable[Sequence[OpenCheck]]:  # noqa: ARG002 - for overriding
        """Return what a turn that ended now would leave open; a graph of one's own asks by the middleware's method."""
        return ()

    def at_end(self, run: "SkillRun") -> MaybeAwaitable[None]:
        """Act at the end of a run, once."""

    def catalog_list(self, skills: Sequence[SkillEntry]) -> str | None:  # noqa: ARG002 - for overriding
        """Return what stands in place of the section's list of these visible skills; `None` to leave the list."""
        return None

    def search(self, query: str, n: int, run: "SkillRun") -> MaybeAwaitable[Sequence[str] | None]:  # noqa: ARG002 - for overriding
        """Return the names that `search_skills` finds, best first; `None` to leave the search to the core."""
        return None

    def on_event(self, event: SkillEvent, runtime: Any) -> MaybeAwaitable[None]:  # noqa: ANN401 - LangGraph's runtime
        """Hear an event, such as `SkillLoaded`. It must not block; async runs do not wait for `async def` ones."""


HOOKS = (
    "visibility",
    "search",
    "open_checks",
    *(name for name in vars(SkillExtension) if name.startswith(("before_", "after_", "change_", "at_"))),
)
"""The methods that the core calls in a run, and that may be `async def`."""


def overrides(extension: SkillExtension, method: str) -> bool:
    """Whether an extension has a method of its own, not the seam's."""
    return getattr(type(extension), method, None) is not getattr(SkillExtension, method, None)
