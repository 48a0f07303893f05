"""Loads skills at the start of every thread, so that a sub-agent or an assistant starts with them."""

from collections.abc import Iterable

from deepskills import SkillExtension, SkillRun
from deepskills._skillmd.names import find_meant_name

UNKNOWN_CODE = "preload-unavailable"
UNKNOWN = (
    "The skill cannot be preloaded: no skill of this name is visible to the model here. Check the name, the sources "
    "and the visibility; one that only the user may start is never preloaded."
)


class Preload(SkillExtension):
    """Loads skills at the start of every thread of an agent or sub-agent, once per thread, so that an unload is final.

    Args:
        names: Names of skills, ignoring case; never those that only the user may start.
    """

    def __init__(self, names: Iterable[str]) -> None:
        if isinstance(names, str):
            raise ValueError(f"Preload takes a list of names, not the text {names!r}.")  # noqa: TRY004
        self._names = tuple(dict.fromkeys(names))

    def at_start(self, run: SkillRun) -> None:
        """Ask for the loads that this thread has not had yet."""
        visible = [entry.name for entry in run.visible]
        for given in self._names:
            # Once per thread: a skill that was unloaded since must stay unloaded.
            if given in run.memory:
                continue
            name = find_meant_name(visible, given)
            if name is None:
                run.report(given, UNKNOWN_CODE, UNKNOWN)
                continue
            run.load(name, trigger="system")
            run.remember(given, value=True)
