"""The graph state that skills live in: its keys, how updates are merged, how it is read and how it is written.

An application may write any key here by `Command(update=...)` or `update_state`, private ones included. So each part of
state is checked by one pydantic type: a part of the wrong shape is set aside with a problem, and what remains is used.
Nothing outside this module looks at a private key itself.

`skills_context` is the one private key beside those that `docs/reference/events.md` promises. `Context` names its
sections; a further one, `extension NAME`, holds what the extension of that name remembers.

Messages are known by their id. Not all have one: the message channel of `create_deep_agent` gives none to input that
came as a text or a tuple. Such a message is given a key derived from its content and from how many messages of the same
content stand before it, so that it is the same in every hook, after a resume and in another process (`add_keys`).
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypeVar, get_type_hints
from uuid import uuid4

from langchain.agents.middleware.types import AgentState, OmitFromOutput, PrivateStateAttr
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.graph.message import add_messages
from pydantic import ConfigDict, NonNegativeInt, Strict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from deepskills._loading.budget import Loaded, LoadedSkills, record_of
from deepskills._types import (
    MAX_SHOWN_NAME_LENGTH,
    CatalogRecord,
    LoadRecord,
    ResourceMetadata,
    SkillMetadata,
    SkillOrigin,
    SkillProblem,
    Trigger,
)

logger = logging.getLogger("deepskills")


ValueT = TypeVar("ValueT")


StrictText: TypeAlias = Annotated[str, Strict()]


class Unload(TypedDict):
    """An update of `skills_loaded` that takes names away, and may add others after that."""

    unload: list[str]
    load: NotRequired[list[str]]


class PinnedSkill(TypedDict):
    """A skill to pin, with arguments."""

    name: str
    arguments: NotRequired[str]


def merge_loaded(current: list[str] | None, update: Sequence[str] | Unload | None) -> list[str]:
    """Merge an update of `skills_loaded`: a list adds what is new, `{"unload": [...]}` removes."""
    return list(dict.fromkeys(_join_names(current, update)["load"]))


def _join_names(before: object, update: object) -> dict[str, list[str]]:
    """Return two updates of `skills_loaded` as one: an unload cancels the loads before it, not those after it."""
    first, second = _read_names(before), _read_names(update)
    # One update can move a skill to the end, as an unload and a load in one turn do.
    kept = [name for name in first["load"] if name not in second["unload"]]
    return {"unload": [*first["unload"], *second["unload"]], "load": [*kept, *second["load"]]}


def _read_names(update: object) -> dict[str, list[str]]:
    """Return what an update of `skills_loaded` unloads and then loads; anything else is set aside."""
    given = update if isinstance(update, Mapping) else {"load": update}
    names: dict[str, list[str]] = {}
    for key in ("unload", "load"):
        value = given.get(key) or ()
        if isinstance(value, str) or not isinstance(value, Sequence):
            logger.warning("Set aside an update of loaded skills that is not a list: %s", type(value).__name__)
            value = ()
        names[key] = [name for name in value if isinstance(name, str)]
    return names


def merge_by_name(current: dict[str, ValueT] | None, update: Mapping[str, ValueT | None] | None) -> dict[str, ValueT]:
    """Merge an update keyed by skill: each name is replaced, `None` removes it."""
    return {name: value for name, value in _join(current, update).items() if value is not None}


def _join(before: object, update: object) -> dict[Any, Any]:
    """Return two updates keyed by name as one."""
    return {**_read_mapping(before), **_read_mapping(update)}


def _join_sections(before: object, update: object) -> dict[str, dict[str, Any]]:
    """Return two updates of the context as one, section by section."""
    # A new mapping, never a change in place: LangGraph may hand the same object to parallel branches.
    joined = {section: dict(values) for section, values in _read_mapping(before).items() if isinstance(values, Mapping)}
    for section, values in _read_mapping(update).items():
        joined[section] = _join(joined.get(section), values)
    return joined


TRACES: Mapping[str, int] = {"trail": 20_000, "uses": 12_000, "hidden": 12_000, "shadowed": 20_000}
"""The sections of the context that only explain, each with the bytes that it may take: together under 64 KiB."""

MAX_TRACED = 200
"""How many skills each of them holds."""


def merge_context(
    current: dict[str, dict[str, Any]] | None, update: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, dict[str, Any]]:
    """Merge an update in two levels: each key of each section is replaced, `None` removes it.

    Traces stay within their bounds, and the oldest leave.
    """
    joined = _join_sections(current, update)
    merged = {section: kept for section, values in joined.items() if (kept := merge_by_name(None, values))}
    for section in TRACES.keys() & merged.keys() & _read_mapping(update).keys():
        merged[section] = newest_traces(section, merged[section])
    return merged


def newest_traces(section: str, traces: dict[str, Any]) -> dict[str, Any]:
    """Return the newest traces of a section, as many as it may hold."""
    room = TRACES[section]
    sizes = [len(json.dumps([name, value], default=str)) for name, value in traces.items()]
    start, size = max(0, len(sizes) - MAX_TRACED), sum(sizes)
    size -= sum(sizes[:start])
    while size > room:
        size -= sizes[start]
        start += 1
    return dict(itertools.islice(traces.items(), start, None)) if start else traces


def _read_mapping(value: object) -> Mapping[Any, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    logger.warning("Set aside an update of skill state that is not a mapping: %s", type(value).__name__)
    return {}


def merge_pins(
    current: list[str | PinnedSkill] | None, update: Sequence[str | PinnedSkill] | None
) -> list[str | PinnedSkill]:
    """Add up the skills to pin that were named in one step; what is not a list pins nothing.

    No skill has a name that is longer than what is kept here, so a pin that is cut still names an unknown skill.
    """
    # Pins of one step add up: parallel branches may each write some, and two writes without a reducer raise.
    return [*_read_list(current), *(_short_pin(pin) for pin in _read_list(update))]


def _short_pin(pin: Any) -> Any:  # noqa: ANN401 - a caller may give anything
    """Return a pin that takes no more room than the longest name does; arguments stay as they are."""
    # Cut here, in the reducer: what a caller sends is copied into every checkpoint until it is used.
    if not isinstance(pin, Mapping):
        return str(pin)[: MAX_SHOWN_NAME_LENGTH + 1]
    short = {key: str(pin[key])[: MAX_SHOWN_NAME_LENGTH + 1] for key in ("name", "not_a_list") if key in pin}
    arguments = pin.get("arguments")
    return {**short, "arguments": arguments} if isinstance(arguments, str | int | float) else short


def _read_list(value: object) -> list[Any]:
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return list(value or ())
    # One pin of another shape, from which `commands` makes the problem that says so.
    kind = "text" if isinstance(value, str | bytes) else type(value).__name__
    return [{"not_a_list": kind, "name": value if isinstance(value, str) else "name"}]


class SkillsState(AgentState[Any]):
    """State of an agent with skills. The reducer is the last entry of an annotation, where LangGraph looks for it."""

    skills_metadata: NotRequired[Annotated[list[SkillMetadata] | None, OmitFromOutput]]
    """A copy of the catalog, for users. Set it to `None` to have skills discovered again at the next run."""

    skills_catalog: NotRequired[Annotated[CatalogRecord | None, PrivateStateAttr]]
    """Names what discovery found: the only catalog that is trusted, and only by a process that has made it."""

    skills_load_errors: NotRequired[Annotated[list[str], PrivateStateAttr]]
    """Sources that could not be read, one line each."""

    skills_problems: NotRequired[Annotated[list[SkillProblem], PrivateStateAttr]]
    """Everything that is wrong with sources and skills."""

    skills_loaded: NotRequired[Annotated[list[str], PrivateStateAttr, merge_loaded]]
    """Names of the loaded skills, in load order."""

    skill_resources: NotRequired[Annotated[dict[str, list[ResourceMetadata]], PrivateStateAttr, merge_by_name]]
    """The files of each loaded skill."""

    skills_context: NotRequired[Annotated[dict[str, dict[str, Any]], PrivateStateAttr, merge_context]]
    """All else that the library keeps: records of loads, what requests need to stay the same, extensions' memories."""

    pinned_skills: NotRequired[Annotated[list[str | PinnedSkill], OmitFromOutput, merge_pins]]
    """Skills to put into the conversation before the next model call, each a name or a name with arguments."""

    _skill_tools_disclosed: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]
    """Skill tools that the latest model call was shown."""


class SkillsStateUpdate(TypedDict, total=False):
    """What discovery writes."""

    skills_metadata: list[SkillMetadata]
    skills_catalog: CatalogRecord
    skills_load_errors: list[str]
    skills_problems: list[SkillProblem]
    skills_loaded: list[str] | Unload
    skill_resources: dict[str, list[ResourceMetadata] | None]
    skills_context: dict[str, dict[str, Any]]


def apply_update(state: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state as it will be after an update of ours, as LangGraph will reduce it."""
    reducers: dict[str, Callable[[Any, Any], Any]] = {
        "messages": lambda messages, new: add_messages(messages or [], new),
        "skills_loaded": merge_loaded,
        "skill_resources": merge_by_name,
        "skills_context": merge_context,
        "pinned_skills": merge_pins,
    }
    result = {**state, **update}
    for key in reducers.keys() & update.keys():
        result[key] = reducers[key](state.get(key), update[key])
    return result


def with_own_keys(schema: Any) -> Any:  # noqa: ANN401 - a TypedDict class
    """Return a state schema that has every key of ours, with our reducers; a loss of one would lose loads."""
    own = get_type_hints(SkillsState, include_extras=True)
    theirs = get_type_hints(schema, include_extras=True)
    # The common case: a subclass that adds nothing, or adds keys and inherits ours, keeps its own class.
    if all(theirs.get(key) == annotation for key, annotation in own.items()):
        return schema
    # Their `messages` stays: a host may have another channel for it (deepagents has its `DeltaChannel`).
    merged = {**theirs, **own, "messages": theirs.get("messages", own["messages"])}
    return TypedDict(schema.__name__, merged, total=False)  # type: ignore[operator]


# Reading.


LEFT_OUT = "(left out)"
"""Stands in `reported` for a skill whose text the model had no room for."""

LINGERING = "lingering"
UNDONE = "undone"


class TextEntry(TypedDict):
    """A message that brought a skill's text in."""

    skill: str
    state: NotRequired[Literal["lingering", "undone"] | None]
    tokens: NotRequired[NonNegativeInt]
    restored: NotRequired[bool]


class Note(TypedDict, total=False):
    """Texts to show at a message, in requests only."""

    before: list[str]
    end: list[str]


class WaitingLoad(TypedDict):
    """A load that waits for the next model call."""

    arguments: str
    trigger: Trigger
    message: NotRequired[str]
    text: NotRequired[str]


class Permit(TypedDict):
    """The user's leave for one call of the model."""

    arguments: str
    turn: str


@dataclass(frozen=True)
class ModelFacts:
    """What is known of the model that a thread's requests go to."""

    provider: str = ""
    window: int | None = None
    refused: int | None = None
    """The size of the smallest request with put-backs that it refused for its length, in tokens as we count."""

    def update_from(self, before: "ModelFacts") -> dict[str, Any]:
        """Return what changes in state."""
        changed = {key: value or None for key, value in vars(self).items() if value != getattr(before, key)}
        return {"skills_context": {"model": changed}} if changed else {}


class Brought(TypedDict):
    """A skill that was in use in an agent whose answer came back in a turn."""

    name: str
    digest: str
    turn: str


class Trace(TypedDict):
    """What became of a skill that is not loaded."""

    event: Literal["refused", "unloaded", "answered"]
    code: NotRequired[str]
    """The reason, as the event has it."""

    by: NotRequired[str]
    text: NotRequired[str]


class HiddenTrace(TypedDict):
    """How a skill was hidden from a run."""

    how: str
    by: NotRequired[str]
    """The extension that hid it; empty for the operator's function."""

    code: NotRequired[str]
    """The failure that hid it, `author` for its own frontmatter, `paths` where no file was touched that they match."""


class ShadowTrace(TypedDict):
    """A skill that another one of its name replaced."""

    name: str
    winner: str


class Context(TypedDict, total=False):
    """The sections of `skills_context`, each by key."""

    records: dict[str, LoadRecord]
    """By skill, each load's record: path, digest, tokens, arguments, the message that brought the text in."""

    texts: dict[str, TextEntry]
    """By message, every message that brought a skill's text in."""

    reported: dict[str, StrictText]
    """By skill, the digest for which a put-back was reported, or `LEFT_OUT`."""

    notes: dict[str, Note]
    """By message, texts to show at it, in requests only."""

    loads: dict[str, WaitingLoad]
    """By skill, what enters before the next model call."""

    permits: dict[str, Permit]
    """Skills that the model may load once although only the user may start them."""

    commands: dict[str, Annotated[bool, Strict()]]
    """Messages that began with a slash command, and whether it was carried out, so that none is twice."""

    problems: dict[str, SkillProblem]
    """Problems that tool calls found, until the next model call."""

    answer: dict[str, StrictText]
    """`id`, the model's newest answer that would end its turn; `turn` and `count`, how often it was sent back."""

    brought: dict[str, Brought]
    """By path, skills in use in agents that a tool call of the `turn` started: their limits hold until its end."""

    disclosed: dict[str, StrictText]
    """Skills whose `SKILL.md` the model read by `read_file`, each with the catalog's digest of it."""

    touched: dict[str, StrictText]
    """Skills whose `paths` a tool call touched, each with the message that they were announced at."""

    model: dict[str, StrictText | Annotated[int, Strict()]]
    """The fields of `ModelFacts`."""

    prefix: dict[str, StrictText]
    """What the latest request began with, to tell when it changes."""

    trail: dict[str, Trace]
    """What happened to skills that are not loaded; this and what follows is for `explain` alone, and bounded."""

    uses: dict[str, list[StrictText]]
    hidden: dict[str, HiddenTrace]
    shadowed: dict[str, ShadowTrace]


# As written, or not at all: a caller's nonsense must not be bent until it fits.
for _type in (
    *(TextEntry, Note, WaitingLoad, Permit, Brought, Trace, HiddenTrace, ShadowTrace),
    *(SkillOrigin, LoadRecord, ResourceMetadata, SkillProblem),
):
    with_config(ConfigDict(strict=True, extra="forbid"))(_type)
with_config(ConfigDict(extra="allow"))(Context)

_CONTEXT: TypeAdapter[Context] = TypeAdapter(Context)
_RESOURCES: TypeAdapter[Any] = TypeAdapter(dict[str, list[ResourceMetadata]])
_PROBLEMS: TypeAdapter[list[SkillProblem]] = TypeAdapter(list[SkillProblem])
_MARKED = "extension "


def extension_section(name: str) -> str:
    """Return the section of the context that holds what an extension remembers."""
    return f"{_MARKED}{name}"


def _find_errors(value: object, adapter: TypeAdapter[Any]) -> list[tuple[Any, ...]]:
    """Return the places at which a value has not the right shape."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return [found["loc"] for found in error.errors(include_url=False, include_context=False, include_input=False)]
    return []


def _read_context(value: object, malformed: list[str]) -> dict[str, dict[str, Any]]:
    """Return the items of the context that have the right shape."""
    given: dict[Any, Any] = value if isinstance(value, dict) else {}
    known = {section: items for section, items in given.items() if _is_section(section) and isinstance(items, dict)}
    wrong = {place[:2] for place in _find_errors(known, _CONTEXT)}
    if wrong or len(known) < len(given) or not isinstance(value, dict | None):
        malformed.append("skills_context")
    if not wrong:
        return known
    # The items themselves, not pydantic's copies: the same bytes go back into the checkpoint.
    return {
        section: {key: item for key, item in items.items() if (section, key) not in wrong}
        for section, items in known.items()
    }


def _is_section(name: object) -> bool:
    return isinstance(name, str) and (name in Context.__annotations__ or name.startswith(_MARKED))


def _read_resources(value: object, malformed: list[str]) -> dict[str, list[ResourceMetadata]]:
    given: dict[Any, Any] = value if isinstance(value, dict) else {}
    wrong = {place[0] for place in _find_errors(given, _RESOURCES)}
    if wrong or not isinstance(value, dict | None):
        malformed.append("skill_resources")
    return {name: files for name, files in given.items() if name not in wrong} if wrong else given


@dataclass
class Thread:
    """What a thread's state says of skills, in the right shapes."""

    given: Sequence[AnyMessage]
    """The messages as state has them."""

    loaded: LoadedSkills
    resources: dict[str, list[ResourceMetadata]]
    context: dict[str, dict[str, Any]]
    catalog: object
    """The catalog as state has it, not checked yet."""

    unbacked: list[str] = field(default_factory=list)
    """Names that state calls loaded without a load of ours: an application wrote them, or a record was corrupted."""

    malformed: list[str] = field(default_factory=list)
    """Keys of state that had the wrong shape."""

    known_problems: list[Any] = field(default_factory=list)
    """The problems as state has them."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Thread":
        """Read a thread's state."""
        malformed: list[str] = []
        context = _read_context(state.get("skills_context"), malformed)
        loaded, unbacked = _read_loaded(state.get("skills_loaded") or (), context, malformed)
        # No more than this yet: there may be one for each of thousands of skills.
        problems = state.get("skills_problems")
        if not isinstance(problems, list | None):
            malformed.append("skills_problems")
        return cls(
            given=state.get("messages") or (),
            loaded=loaded,
            resources=_read_resources(state.get("skill_resources"), malformed),
            context=context,
            catalog=state.get("skills_catalog"),
            unbacked=unbacked,
            malformed=malformed,
            known_problems=problems if isinstance(problems, list) else [],
        )

    @property
    def is_new(self) -> bool:
        """Whether nothing was discovered or loaded on this thread yet."""
        return self.catalog is None and not self.loaded.names and not self.unbacked

    @cached_property
    def messages(self) -> Sequence[AnyMessage]:
        """The messages, each user's with an id; looked at where they are needed, as there may be thousands."""
        return add_keys(self.given)

    @cached_property
    def problems(self) -> list[SkillProblem]:
        """Everything that is wrong with sources and skills, looked at only where it is needed."""
        given = self.known_problems
        problems: list[SkillProblem] = given if not _find_errors(given, _PROBLEMS) else []
        if len(problems) < len(given):
            self.malformed.append("skills_problems")
        return problems

    def add_keys(self, messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
        """Return the messages of a request with the keys that they have in state, whichever others were left out."""
        if self.messages is self.given:
            return add_keys(messages)
        # By identity: a middleware further out may have left out messages, and then the count of equal contents would
        # differ.
        known = {id(given): own for given, own in zip(self.given, self.messages, strict=True) if given is not own}
        return add_keys([known.get(id(message), message) for message in messages])

    def section(self, name: str) -> dict[str, Any]:
        """Return one section of the context."""
        return self.context.get(name) or {}

    def text_state(self, message_id: str) -> str:
        """Return what became of a text that was brought in by a message; empty for nothing special."""
        return str(self.section("texts").get(message_id, {}).get("state") or "")

    def is_left_out(self, name: str) -> bool:
        """Whether the latest request went out without a loaded skill's text because the model had no room."""
        return bool(self.section("reported").get(name) == LEFT_OUT)

    @property
    def model(self) -> ModelFacts:
        """The model of the latest request."""
        facts = self.section("model")
        provider, window, refused = (facts.get(key) for key in ("provider", "window", "refused"))
        return ModelFacts(
            provider if isinstance(provider, str) else "",
            window if isinstance(window, int) else None,
            refused if isinstance(refused, int) else None,
        )

    @property
    def user_message(self) -> AnyMessage | None:
        """The newest message that a user wrote: not a summary, a pin or a message of this library."""
        return next((message for message in reversed(self.messages) if is_users_own(message)), None)

    @property
    def turn(self) -> str:
        """The id of the user's newest message, which identifies the turn; empty if there is none."""
        user = self.user_message
        return (user.id or "") if user is not None else ""

    def find_permitted_arguments(self, name: str) -> str | None:
        """Return the arguments of a start that the user asked for in this turn, or `None` where none was asked for."""
        permit = self.section("permits").get(name)
        return str(permit["arguments"]) if permit is not None and permit["turn"] == self.turn else None


def is_answered(thread: Thread, message: AnyMessage) -> bool:
    """Whether the model has spoken after a message."""
    later = itertools.takewhile(lambda known: known is not message, reversed(thread.messages))
    return any(isinstance(known, AIMessage) for known in later)


def is_users_own(message: AnyMessage) -> bool:
    """Whether a user wrote a message: it is not a summary, a pin or a message of this library."""
    return isinstance(message, HumanMessage) and not message.additional_kwargs.get("lc_source")


def _read_loaded(
    names: object, context: Mapping[str, dict[str, Any]], malformed: list[str]
) -> tuple[LoadedSkills, list[str]]:
    """Return what is loaded, and the names that state calls loaded without a record of a load."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        malformed.append("skills_loaded")
        names = ()
    # The cost, path and digest of a name without a record are unknown, so it does not count as loaded.
    records, texts = context.get("records", {}), context.get("texts", {})
    lingering = sum(text.get("tokens", 0) for text in texts.values() if text.get("state") == LINGERING)
    loaded = LoadedSkills(tuple(name for name in names if name in records), records, lingering)
    return loaded, [name for name in names if name not in records]


def add_keys(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """Return messages in which every user message has an id: the host's, or else one derived from its content.

    Only requests and hooks see it. It is not written to the conversation: a channel treats a message with an
    unknown id as a new one.
    """
    # The usual case costs one look and copies nothing.
    if all(message.id or not isinstance(message, HumanMessage) for message in messages):
        return messages
    counts: dict[str, int] = {}
    keyed: list[AnyMessage] = []
    for message in messages:
        if message.id or not isinstance(message, HumanMessage):
            keyed.append(message)
            continue
        # `default=str`: content blocks may hold anything a host put there, and a key must never fail.
        content = fingerprint(json.dumps(message.content, sort_keys=True, default=str))
        counts[content] = counts.get(content, 0) + 1
        keyed.append(message.model_copy(update={"id": f"{_KEY}{content}-{counts[content]}"}))
    return keyed


def remove_key(message: AnyMessage) -> AnyMessage:
    """Return a message as its host made it: without an id that `add_keys` gave it."""
    return message.model_copy(update={"id": None}) if (message.id or "").startswith(_KEY) else message


_KEY = "content-"


# Writing: the one place that builds what a load, an unload or a note changes.


MARK = "deepskills"
"""Key in a message's `additional_kwargs` that says what the message did to the loaded skills: a claim, not a proof."""


class Mark(TypedDict):
    """What a message's mark says; further keys, such as those of older versions, are passed over."""

    event: Literal["load", "unload"]
    skill: str
    arguments: NotRequired[str]
    digest: NotRequired[str]


with_config(ConfigDict(strict=True, extra="ignore"))(Mark)
_MARK: TypeAdapter[Mark] = TypeAdapter(Mark)


def read_mark(message: object) -> Mark | None:
    """Return what a message says it did to the loaded skills; a mark of any other shape says nothing."""
    extra = getattr(message, "additional_kwargs", None)
    given = extra.get(MARK) if isinstance(extra, Mapping) else None
    if given is None:
        return None
    try:
        return _MARK.validate_python(given)
    # Users and clients can send messages with marks, nested as deep as they like.
    except (ValidationError, RecursionError):
        return None


def fingerprint(text: str) -> str:
    """Return the digest by which a message's text is recognized."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def new_message_id() -> str:
    """Return the id of a message that carries a skill's text."""
    return f"skill-{uuid4()}"


def current_config() -> RunnableConfig:
    """Return the configuration of the current step; empty outside a graph."""
    try:
        return get_config()
    except RuntimeError:
        return {}


def current_step() -> int:
    """Return the number of LangGraph's current step; 0 outside a graph."""
    step = current_config().get("metadata", {}).get("langgraph_step")
    return step if isinstance(step, int) else 0


def make_load_mark(name: str, record: LoadRecord) -> dict[str, Any]:
    """Return the mark of a message that brings a skill in."""
    return {"event": "load", "skill": name, "arguments": record.get("arguments", ""), "digest": record["digest"]}


def make_unload_mark(name: str) -> dict[str, Any]:
    """Return the mark of a message that takes a skill away."""
    return {"event": "unload", "skill": name}


def build_load_update(
    outcome: Loaded, message: AnyMessage, thread: Thread, trigger: Trigger, *, waits: bool = False
) -> dict[str, Any]:
    """Return the update of a load whose text `message` carries; one that waits enters before the next model call."""
    prepared, name = outcome.prepared, outcome.prepared.name
    record: LoadRecord = {
        **record_of(prepared),
        "text": fingerprint(str(message.text)),
        "message": message.id or "",
        "trigger": trigger,
        "turn": thread.turn,
    }
    # Marks a text that no request has held yet (`_is_unseen` in `request.py`); outside a graph there are no steps.
    step = current_step()
    if step and not waits:
        record["step"] = step
    if outcome.relies_on:
        record["relies_on"] = list(outcome.relies_on)
    waiting = {"arguments": prepared.arguments, "trigger": trigger, "message": message.id, "text": str(message.text)}
    return {
        "skills_loaded": [name],
        "skill_resources": {name: prepared.inventory.resources},
        "skills_context": {
            "records": {name: record},
            "texts": {message.id or "": {"skill": name}},
            # A new text starts over: what was reported, waiting or permitted for the old one no longer counts.
            "reported": {name: None},
            "loads": {name: waiting if waits else None},
            "permits": {name: None},
            "trail": {name: None},
            "uses": {name: None},
        },
        **({} if waits else {"messages": [message]}),
    }


def build_unload_update(
    names: Iterable[str], loaded: LoadedSkills | None = None, state: str | None = None
) -> dict[str, Any]:
    """Return the update that takes skills away; `state` says what becomes of their texts, if not the usual."""
    gone = list(names)
    context: dict[str, Any] = {section: dict.fromkeys(gone) for section in ("records", "reported", "loads")}
    # Usually nothing special is recorded: a carrier whose skill has no record shows a notice by itself.
    if state is not None and loaded is not None:
        context["texts"] = {
            message: {"skill": name, "state": state, "tokens": loaded.size(name)}
            for name in gone
            if name in loaded.records and (message := loaded.records[name].get("message"))
        }
    return {
        "skills_loaded": {"unload": gone},
        "skill_resources": dict.fromkeys(gone),
        "skills_context": context,
    }


def build_loss_update(names: Iterable[str], loaded: LoadedSkills) -> dict[str, Any]:
    """Return the update that takes skills away whose text could not be recovered; records stay for their limits."""
    kept: dict[str, Any] = {}
    for name in names:
        # Without its message, so that no text of this skill goes back into that one.
        record = {key: value for key, value in loaded.records[name].items() if key != "message"}
        kept[name] = {**record, "lost": True}
    return merge_updates(build_unload_update(kept), {"skills_context": {"records": kept}})


def drop_lingering(thread: Thread) -> dict[str, Any]:
    """Return the `texts` entries that mark lingering texts as gone from requests."""
    texts = thread.section("texts")
    return {key: {"skill": text["skill"]} for key, text in texts.items() if text.get("state") == LINGERING}


def build_note_update(thread: Thread, message_id: str, place: str, text: str) -> dict[str, Any]:
    """Return the update that shows a text at a message, in every request while the message is there."""
    note = thread.section("notes").get(message_id, {})
    shown = note.get(place, [])
    if text in shown:
        return {}
    return {"skills_context": {"notes": {message_id: {**note, place: [*shown, text]}}}}


MAX_GONE = 50
"""How many records of messages that are gone a section of the context may hold."""


def forget_gone(thread: Thread) -> dict[str, Any]:
    """Return the update that drops records of messages which are gone, once there are many in a section."""
    known: set[str] | None = None
    update: dict[str, Any] = {}
    for section in ("texts", "notes"):
        entries = thread.section(section)
        # Looking through all messages costs more than a few stale records, so it waits until there are many.
        if len(entries) <= MAX_GONE:
            continue
        if known is None:
            known = {message.id for message in thread.messages if message.id}
            # A carrier that is gone from the messages still belongs to a loaded skill, which will be put back.
            known |= {record.get("message", "") for record in thread.loaded.records.values()}
        gone = [key for key in entries if key not in known]
        if len(gone) > MAX_GONE:
            update[section] = dict.fromkeys(gone)
    return {"skills_context": update} if update else {}


def merge_updates(*updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return several updates as one, which does what they would do one after the other."""
    result: dict[str, Any] = {}
    for update in updates:
        for key, value in update.items():
            join = _JOINS.get(key)
            result[key] = join(result[key], value) if join is not None and result.get(key) is not None else value
    return result


def _join_loads(before: object, update: object) -> Any:  # noqa: ANN401 - a list, or what to unload and load
    joined = _join_names(before, update)
    # A plain list where nothing is unloaded, as a single load writes it.
    return joined if joined["unload"] else joined["load"]


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "messages": lambda before, messages: [*before, *messages],
    "skills_loaded": _join_loads,
    "skill_resources": _join,
    "skills_context": _join_sections,
}
"""How two updates of a key become one; of any other key the later counts."""
