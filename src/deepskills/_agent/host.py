"""What the middleware offers to extensions, menus and hooks of others."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langgraph.runtime import get_runtime

from deepskills._agent.extension import LoadedSkill, SkillExtension, SkillRun
from deepskills._agent.extension_run import ExtensionRun
from deepskills._agent.run import Run, Shelf, is_user_invocable, loaded_skills, name_of
from deepskills._agent.settings import Settings
from deepskills._agent.thread import Thread
from deepskills._format.frontmatter import as_text


def checked(extensions: Sequence[SkillExtension]) -> tuple[SkillExtension, ...]:
    """Return the extensions of a middleware.

    Raises:
        TypeError: If one is not an extension.
        ValueError: If two keep their state under one name.
    """
    plugged = tuple(extensions)
    for extension in plugged:
        if not isinstance(extension, SkillExtension):
            raise TypeError(f"extensions must be SkillExtension instances, got {extension!r}")
    names = [name_of(extension) for extension in plugged]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"extensions has {', '.join(sorted(twice))} twice; pass each once")
    return plugged


def extension_run(run: Run, extension: SkillExtension) -> SkillRun:
    """Return a run as one extension sees it."""
    return cast("SkillRun", ExtensionRun(run, extension))


def loaded_in(settings: Settings, state: Mapping[str, Any]) -> list[LoadedSkill]:
    """Return the skills in use, if this process has looked at the sources of the thread; no I/O."""
    thread = Thread.of(state)
    catalog = settings.memory.catalogs.believed(thread.catalog)
    if catalog is None:
        return []
    run = Run(settings, state, current_runtime())
    return [run.limited(skill) for skill in loaded_skills(thread, catalog)]


def slash_menu(shelf: Shelf) -> list[dict[str, str]]:
    """Return the slash commands of a run, for a menu."""
    return [
        {
            "name": entry.name,
            "description": entry.description,
            "argument_hint": as_text(entry.frontmatter.get("argument-hint")),
        }
        for entry in shelf.existing
        if is_user_invocable(entry) and "/" not in entry.name
    ]


def current_runtime() -> Any:  # noqa: ANN401 - LangGraph's runtime
    """Return the runtime of the run that this call is part of; `None` outside a run."""
    try:
        return get_runtime()
    except (RuntimeError, LookupError, KeyError):
        return None
