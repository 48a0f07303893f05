"""The graph state that skills live in, and how updates to it are merged."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypeVar

from langchain.agents.middleware.types import AgentState, OmitFromOutput, PrivateStateAttr
from typing_extensions import TypedDict

from deepskills._types import CatalogRecord, LoadRecord, ResourceMetadata, SkillMetadata, SkillProblem

ValueT = TypeVar("ValueT")


class Unload(TypedDict):
    """An update of `skills_loaded` that takes names away."""

    unload: list[str]


def merge_loaded(current: list[str] | None, update: Sequence[str] | Unload | None) -> list[str]:
    """Merge an update of `skills_loaded`: a list adds what is new, `{"unload": [...]}` removes."""
    loaded = list(current or [])
    if isinstance(update, Mapping):
        gone = set(update.get("unload") or ())
        return [name for name in loaded if name not in gone]
    return list(dict.fromkeys([*loaded, *(update or ())]))


def merge_by_name(current: dict[str, ValueT] | None, update: Mapping[str, ValueT | None] | None) -> dict[str, ValueT]:
    """Merge an update keyed by skill: each name is replaced, `None` removes it."""
    merged = {**(current or {}), **(update or {})}
    return {name: value for name, value in merged.items() if value is not None}


def merge_pins(current: list[str] | None, update: Sequence[str] | None) -> list[str]:
    """Add up the skills to pin that were named in one step."""
    return [*(current or []), *(update or [])]


class SkillsState(AgentState[Any]):
    """State of an agent with skills. The reducer is the last entry of an annotation, where LangGraph looks for it."""

    skills_metadata: NotRequired[Annotated[list[SkillMetadata] | None, OmitFromOutput]]
    """The catalog. Set it to `None` to have skills discovered again at the next run."""

    skills_load_errors: NotRequired[Annotated[list[str], PrivateStateAttr]]
    """Sources that could not be read, one line each."""

    skills_problems: NotRequired[Annotated[list[SkillProblem], PrivateStateAttr]]
    """Everything that is wrong with sources and skills."""

    skills_loaded: NotRequired[Annotated[list[str], PrivateStateAttr, merge_loaded]]
    """Names of the loaded skills, in load order."""

    skill_resources: NotRequired[Annotated[dict[str, list[ResourceMetadata]], PrivateStateAttr, merge_by_name]]
    """The files of each loaded skill."""

    skills_load_records: NotRequired[Annotated[dict[str, LoadRecord], PrivateStateAttr, merge_by_name]]
    """Digest and token count of each load."""

    skills_catalog_record: NotRequired[Annotated[CatalogRecord, PrivateStateAttr]]
    """Proof that `skills_metadata` is what discovery wrote."""

    skills_reattached: NotRequired[Annotated[dict[str, str], PrivateStateAttr, merge_by_name]]
    """Loaded skills whose text was lost and put back, each with the digest it was told for."""

    pinned_skills: NotRequired[Annotated[list[str], OmitFromOutput, merge_pins]]
    """Names of skills to put into the conversation before the next model call."""

    _skill_tools_disclosed: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]
    """Skill tools that the latest model call was shown."""


class SkillsStateUpdate(TypedDict, total=False):
    """What discovery writes."""

    skills_metadata: list[SkillMetadata]
    skills_load_errors: list[str]
    skills_problems: list[SkillProblem]
    skills_loaded: list[str] | Unload
    skill_resources: dict[str, list[ResourceMetadata] | None]
    skills_load_records: dict[str, LoadRecord | None]
    skills_catalog_record: CatalogRecord
    messages: list[Any]
