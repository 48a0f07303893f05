"""The graph state that skills live in, and how updates to it are merged. Updates of the wrong shape are set aside."""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypeVar

from langchain.agents.middleware.types import AgentState, OmitFromOutput, PrivateStateAttr
from typing_extensions import TypedDict

from deepskills._types import CatalogRecord, LoadRecord, ResourceMetadata, SkillMetadata, SkillProblem

logger = logging.getLogger("deepskills")

ValueT = TypeVar("ValueT")


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
    loaded = _names(current)
    if isinstance(update, Mapping):
        gone = set(_names(update.get("unload")))
        kept = [name for name in loaded if name not in gone]
        return list(dict.fromkeys([*kept, *_names(update.get("load"))]))
    return list(dict.fromkeys([*loaded, *_names(update)]))


def _names(value: object) -> list[str]:
    """Return the names in a list; whatever else a caller wrote is set aside."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        logger.warning("Set aside an update of loaded skills that is not a list: %s", type(value).__name__)
        return []
    return [name for name in value if isinstance(name, str)]


def merge_by_name(current: dict[str, ValueT] | None, update: Mapping[str, ValueT | None] | None) -> dict[str, ValueT]:
    """Merge an update keyed by skill: each name is replaced, `None` removes it."""
    merged = {**_mapping(current), **_mapping(update)}
    return {name: value for name, value in merged.items() if value is not None}


def merge_sections(
    current: dict[str, dict[str, Any]] | None, update: Mapping[str, Mapping[str, Any] | None] | None
) -> dict[str, dict[str, Any]]:
    """Merge an update in two levels: each key of each section is replaced, `None` removes it."""
    merged = {section: dict(values) for section, values in _mapping(current).items() if isinstance(values, Mapping)}
    for section, values in _mapping(update).items():
        kept = merge_by_name(merged.get(section), values) if isinstance(values, Mapping) else {}
        merged[section] = kept
    return {section: values for section, values in merged.items() if values}


def _mapping(value: object) -> Mapping[Any, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    logger.warning("Set aside an update of skill state that is not a mapping: %s", type(value).__name__)
    return {}


def merge_pins(
    current: list[str | PinnedSkill] | None, update: Sequence[str | PinnedSkill] | None
) -> list[str | PinnedSkill]:
    """Add up the skills to pin that were named in one step; whatever is not a list is set aside."""
    return [*_listed(current), *_listed(update)]


def _listed(value: object) -> list[Any]:
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        return list(value or ())
    logger.warning("Set aside skills to pin that are not a list: %s", type(value).__name__)
    return []


class SkillsState(AgentState[Any]):
    """State of an agent with skills. The reducer is the last entry of an annotation, where LangGraph looks for it."""

    skills_metadata: NotRequired[Annotated[list[SkillMetadata] | None, OmitFromOutput]]
    """A copy of the catalog, for users. Set it to `None` to have skills discovered again at the next run."""

    skills_catalog: NotRequired[Annotated[CatalogRecord | None, PrivateStateAttr]]
    """What discovery found: the only catalog that is believed, and only as far as this process has read the files."""

    skills_load_errors: NotRequired[Annotated[list[str], PrivateStateAttr]]
    """Sources that could not be read, one line each."""

    skills_problems: NotRequired[Annotated[list[SkillProblem], PrivateStateAttr]]
    """Everything that is wrong with sources and skills."""

    skills_loaded: NotRequired[Annotated[list[str], PrivateStateAttr, merge_loaded]]
    """Names of the loaded skills, in load order."""

    skill_resources: NotRequired[Annotated[dict[str, list[ResourceMetadata]], PrivateStateAttr, merge_by_name]]
    """The files of each loaded skill."""

    skills_load_records: NotRequired[Annotated[dict[str, LoadRecord], PrivateStateAttr, merge_by_name]]
    """What is kept of each load: digest, token count, message."""

    skills_context: NotRequired[Annotated[dict[str, dict[str, Any]], PrivateStateAttr, merge_sections]]
    """What requests need to stay the same from call to call: see `Thread`."""

    skills_extensions: NotRequired[Annotated[dict[str, dict[str, Any]], PrivateStateAttr, merge_sections]]
    """What extensions remember, each under its name."""

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
    skills_load_records: dict[str, LoadRecord | None]
    skills_context: dict[str, dict[str, Any]]
    skills_extensions: dict[str, dict[str, Any]]
