"""The tools for agents without file tools or with large libraries: search a catalog, list and read a skill's files."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, Field

from deepskills._agent import session
from deepskills._agent.settings import Settings
from deepskills._agent.tools import preparation
from deepskills._backend.plan import Consult, Consulted, Plan
from deepskills._catalog.lookup import SearchCache, check_known, find_or_raise
from deepskills._errors import SkillsError
from deepskills._files.assets import list_assets, read_asset, script_path
from deepskills._prompt.wording import field_text, shown_name
from deepskills._types import MAX_DESCRIPTION_LENGTH, SkillMetadata

logger = logging.getLogger("deepskills")

MAX_RESULTS = 50
"""How many results of a search are shown at most."""

AGAIN = "it is tried again at the next run"
"""When an agent looks anew at a source that failed."""


class SearchArguments(BaseModel):
    """Arguments of `search_skills`."""

    query: str = Field(description="What the skill should be about, in a few words.")
    n: int = Field(default=5, description="How many results to show.")


class SkillArguments(BaseModel):
    """Arguments of `list_skill_assets`."""

    skill_name: str = Field(description="The skill's name.")


class AssetArguments(SkillArguments):
    """Arguments of `load_skill_asset`."""

    relative_path: str = Field(description="Path relative to the skill, such as `references/guide.md`.")


class ScriptArguments(SkillArguments):
    """Arguments of `get_skill_script_path`."""

    script_name: str = Field(description="Path relative to the skill's `scripts/` directory.")


@dataclass(frozen=True)
class _Spec:
    description: str
    arguments: type[BaseModel]


SPECS = {
    "search_skills": _Spec(
        "Search all skills by what they are for. Use it when the list of skills is long or cut short.", SearchArguments
    ),
    "list_skill_assets": _Spec("List the files of a skill: its scripts, references and assets.", SkillArguments),
    "load_skill_asset": _Spec("Read a text file of a skill.", AssetArguments),
    "get_skill_script_path": _Spec("Get the path by which a script of a skill can be run.", ScriptArguments),
}
"""The extra tools by name."""


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once.

    Raises:
        ValueError: If one is no extra tool.
    """
    if isinstance(names, str):
        raise ValueError(f"extra_tools must be a sequence of names, got the single name {names!r}")  # noqa: TRY004
    if not isinstance(names, Iterable):
        raise ValueError(f"extra_tools must be a sequence of names, got {names!r}")  # noqa: TRY004
    names = list(names)
    unknown = [name for name in names if not isinstance(name, str) or name not in SPECS]
    if unknown:
        raise ValueError(f"extra_tools has no {', '.join(map(repr, unknown))}; choose from {', '.join(SPECS)}")
    return tuple(dict.fromkeys(names))


class ExtraTools:
    """Makes the extra tools for one middleware."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._search = SearchCache()
        self._plans: dict[str, Callable[..., Plan[str]]] = {
            "search_skills": self._search_skills,
            "list_skill_assets": self._list_assets,
            "load_skill_asset": self._read_asset,
            "get_skill_script_path": self._script_path,
        }

    def make(self, name: str) -> BaseTool:
        """Return one tool; its sync and async calls perform the same plan."""
        settings, plan, spec = self._settings, self._plans[name], SPECS[name]

        def call(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolMessage:  # noqa: ANN401 - checked by the schema
            return settings.perform(_answered(name, plan(runtime, **arguments), runtime), runtime)

        async def acall(runtime: ToolRuntime[Any, Any], **arguments: Any) -> ToolMessage:  # noqa: ANN401 - checked by the schema
            return await settings.aperform(_answered(name, plan(runtime, **arguments), runtime), runtime)

        return StructuredTool.from_function(
            call, acall, name=name, description=spec.description, args_schema=spec.arguments, infer_schema=False
        )

    def _search_skills(self, runtime: "ToolRuntime[Any, Any]", query: str, n: int = 5) -> Plan[str]:
        shelf = yield from session.shelf_of(runtime.state, preparation(self._settings, runtime))
        check_known(shelf.skills, shelf.problems, AGAIN)
        limit = max(1, min(n, MAX_RESULTS))
        [reply] = yield (
            Consult(lambda: self._search.search(shelf.skills, shelf.tags, query, limit), is_limited=False),
        )
        if not isinstance(reply, Consulted):
            raise SkillsError(getattr(reply, "reason", "the search gave no answer"))
        found: list[SkillMetadata] = reply.value
        if not found:
            check_known(found, shelf.problems, AGAIN)
            return f"No skill matches '{field_text(query, 200)}'. Try other words, or work without a skill."
        return "\n".join(
            f"- **{shown_name(skill['name'])}**: {field_text(skill['description'], MAX_DESCRIPTION_LENGTH)}"
            for skill in found
        )

    def _list_assets(self, runtime: "ToolRuntime[Any, Any]", skill_name: str) -> Plan[str]:
        skill = yield from self._skill(runtime, skill_name)
        assets = yield from list_assets(skill)
        if not assets.paths and not assets.notes:
            return f"The skill '{shown_name(skill['name'])}' has no files besides its instructions."
        return "\n".join([*(f"- {path}" for path in assets.paths), *assets.notes])

    def _read_asset(self, runtime: "ToolRuntime[Any, Any]", skill_name: str, relative_path: str) -> Plan[str]:
        skill = yield from self._skill(runtime, skill_name)
        return (yield from read_asset(skill, relative_path))

    def _script_path(self, runtime: "ToolRuntime[Any, Any]", skill_name: str, script_name: str) -> Plan[str]:
        skill = yield from self._skill(runtime, skill_name)
        return (yield from script_path(skill, script_name))

    def _skill(self, runtime: "ToolRuntime[Any, Any]", skill_name: str) -> Plan[SkillMetadata]:
        how = preparation(self._settings, runtime)
        shelf = yield from session.shelf_of(runtime.state, how)
        skill = find_or_raise(shelf.skills, shelf.problems, skill_name, AGAIN)
        yield from how.learn([skill["path"]])
        if not how.may_read(skill["path"]):
            raise SkillsError(f"The skill '{shown_name(skill_name)}' cannot be read: {how.why_not()}.")
        return skill


def _answered(name: str, plan: Plan[str], runtime: "ToolRuntime[Any, Any]") -> Plan[ToolMessage]:
    """Turn a plan's text, or what it raised, into the tool's answer."""
    call_id = runtime.tool_call_id or ""
    try:
        text = yield from plan
    except GraphBubbleUp:
        raise
    except SkillsError as error:
        return ToolMessage(f"Error: {error}", name=name, tool_call_id=call_id, status="error")
    except Exception as error:
        logger.exception("%s failed", name)
        text = f"Error: {name} failed ({type(error).__name__}). Work without it."
        return ToolMessage(text, name=name, tool_call_id=call_id, status="error")
    return ToolMessage(text, name=name, tool_call_id=call_id)
