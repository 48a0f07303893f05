"""Small parts that several extensions use: calls that a human edited, and paths of trusted sources."""

from collections.abc import Collection, Iterable, Mapping

from langchain.agents.middleware.types import ToolCallRequest

from deepskills import SkillEntry, SkillRun

_EDITED_CALLS = "hitl_edited_tool_calls"
"""The state key where LangChain's human review, in batched mode, keeps edited calls until they run."""


def as_edited(request: ToolCallRequest) -> ToolCallRequest:
    """Return a call as it will run, even if the middleware that edits it comes after ours."""
    # A policy must judge what will run, not what the model asked for.
    edits = request.state.get(_EDITED_CALLS) if isinstance(request.state, Mapping) else None
    edited = edits.get(request.tool_call["id"]) if isinstance(edits, Mapping) else None
    if edited is None:
        return request
    return request.override(tool_call={**request.tool_call, "name": edited["name"], "args": edited["args"]})


# Paths of sources that an operator trusts.


def tidy_source(path: str) -> str:
    """Return a source's path without doubled or trailing slashes; a relative one stays relative."""
    root = "/" if path.startswith("/") else ""
    return root + "/".join(part for part in path.split("/") if part not in {"", "."})


def tidy_sources(parameter: str, paths: Iterable[str]) -> frozenset[str]:
    """Return tidied paths for comparison.

    Raises:
        ValueError: If a single text was given instead of a list: it would count as a list of letters.
    """
    if isinstance(paths, str):
        raise ValueError(f"`{parameter}` takes a list of source paths, not the text {paths!r}.")  # noqa: TRY004
    return frozenset(tidy_source(path) for path in paths)


def is_trusted(entry: SkillEntry, run: SkillRun, trusted: Collection[str]) -> bool:
    """Whether every source that holds a skill's file is trusted: whoever can write to one of them can change it."""
    return all(tidy_source(path) in trusted for path in run.holders(entry))
