"""What happens to skills, as values: one class for each type of event, with its fields.

The custom stream carries them as dictionaries (`as_dict`); extensions hear the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from deepskills._types import Trigger


@dataclass(frozen=True, kw_only=True)
class _Event:
    """An event about a skill, as its load or the catalog knows it."""

    type: ClassVar[str]

    skill: str
    source: str | None = None
    """Path of the source that gave the skill."""

    digest: str | None = None
    trigger: Trigger = "system"

    def as_dict(self) -> dict[str, Any]:
        """Return the event as the custom stream carries it."""
        values = {known.name: _plain(getattr(self, known.name)) for known in fields(self)}
        origin = {name: values.pop(name) for name in ("source", "digest", "trigger")}
        return {"type": self.type, **values, **origin}


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, kw_only=True)
class SkillLoaded(_Event):
    """A skill was loaded."""

    type: ClassVar[str] = "skill.loaded"
    tokens: int
    resources: int
    """How many files the load lists."""


@dataclass(frozen=True, kw_only=True)
class SkillUnloaded(_Event):
    """A skill was unloaded; by the middleware itself if there is a reason."""

    type: ClassVar[str] = "skill.unloaded"
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the event as the custom stream carries it."""
        values = super().as_dict()
        if self.reason is None:
            del values["reason"]
        return values


@dataclass(frozen=True, kw_only=True)
class SkillRefused(_Event):
    """A load or an unload was refused."""

    type: ClassVar[str] = "skill.refused"
    reason: str


@dataclass(frozen=True, kw_only=True)
class SkillReattached(_Event):
    """A text that was lost from the conversation was put back into the request."""

    type: ClassVar[str] = "skill.reattached"
    tokens: int


@dataclass(frozen=True, kw_only=True)
class SkillLeftOut(_Event):
    """A text that was lost from the conversation is not put back: the model has no room for it."""

    type: ClassVar[str] = "skill.left_out"
    tokens: int


@dataclass(frozen=True, kw_only=True)
class SkillMissed(_Event):
    """A run ended without a load although this skill clearly fitted."""

    type: ClassVar[str] = "skill.missed"


@dataclass(frozen=True, kw_only=True)
class SkillShadow(_Event):
    """A run ended in which this skill would have been suggested, or was loaded by the model."""

    type: ClassVar[str] = "skill.shadow"
    rank: int | None
    """From 1; `None` if it would not have been suggested."""

    loaded: bool


@dataclass(frozen=True, kw_only=True)
class SkillScriptRun(_Event):
    """A script of a skill ran."""

    type: ClassVar[str] = "skill.script"
    script: str
    exit_code: int | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SkillForked(_Event):
    """A skill ran in a sub-agent."""

    type: ClassVar[str] = "skill.forked"
    agent: str
    failed: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SkillCost(_Event):
    """What a skill has cost since its last event of this type."""

    type: ClassVar[str] = "skill.cost"
    calls: int
    failed_calls: int
    model_calls: int
    tool_calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    shared_tokens_in: int
    shared_tokens_out: int
    requests: int
    put_backs: int
    estimated: bool


@dataclass(frozen=True, kw_only=True)
class SkillChecked(_Event):
    """A check of a skill passed, or is open again."""

    type: ClassVar[str] = "skill.checked"
    check: str
    """The check as its author wrote it."""

    status: Literal["passed", "open"]
    evidence: Mapping[str, Any]
    """What proves it: the id of a `call` or `message`, and an `exit_code`; empty for an open one."""


@dataclass(frozen=True, kw_only=True)
class SkillUnchecked(_Event):
    """A turn ended while checks of a skill were open."""

    type: ClassVar[str] = "skill.unchecked"
    checks: tuple[str, ...]
    """The open ones, as their author wrote them."""


@dataclass(frozen=True, kw_only=True)
class SkillSentBack(_Event):
    """The model would have ended its turn, and an extension sent it back; about no single skill."""

    type: ClassVar[str] = "skill.sent_back"
    skill: str = ""
    extensions: tuple[str, ...]
    """Names of the extensions that did."""

    count: int
    """How often the model was sent back in this turn, this time included."""


@dataclass(frozen=True)
class CustomEvent:
    """An event of an extension's own."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Its fields, `type` among them."""

    @property
    def type(self) -> str:
        """Its type."""
        return str(self.values.get("type", ""))

    @property
    def skill(self) -> str:
        """The skill that it is about; empty if it is about none."""
        return str(self.values.get("skill", ""))

    def as_dict(self) -> dict[str, Any]:
        """Return the event as the custom stream carries it."""
        return dict(self.values)


SkillEvent: TypeAlias = (
    SkillLoaded
    | SkillUnloaded
    | SkillRefused
    | SkillReattached
    | SkillLeftOut
    | SkillMissed
    | SkillShadow
    | SkillScriptRun
    | SkillForked
    | SkillCost
    | SkillChecked
    | SkillUnchecked
    | SkillSentBack
    | CustomEvent
)
"""Any event about skills."""


def event_from(event: SkillEvent | Mapping[str, Any]) -> SkillEvent:
    """Return an event as a value; a mapping is an extension's own."""
    return CustomEvent(dict(event)) if isinstance(event, Mapping) else event
