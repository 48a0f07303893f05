"""The state schema of a middleware: a subclass that brings its own keeps our keys."""

from typing import Any, get_type_hints

from typing_extensions import TypedDict

from deepskills._agent.state import SkillsState


def with_own_keys(schema: Any) -> Any:  # noqa: ANN401 - a TypedDict class
    """Return a state schema that has every key of ours, with our reducers; a loss of one would lose loads."""
    own = get_type_hints(SkillsState, include_extras=True)
    theirs = get_type_hints(schema, include_extras=True)
    if all(theirs.get(key) == annotation for key, annotation in own.items()):
        return schema
    merged = {**theirs, **own, "messages": theirs.get("messages", own["messages"])}
    return TypedDict(schema.__name__, merged, total=False)  # type: ignore[operator]
