"""The end of a run: a hook that only agents whose extensions act there have, for a hook costs a step of the graph."""

from collections.abc import Sequence
from typing import Any

from deepskills._agent.extending import at, overrides
from deepskills._agent.extension import SkillExtension
from deepskills._agent.model_call import problems_update
from deepskills._agent.run import Run
from deepskills._agent.updates import merged
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Plan


def with_end_of_run(middleware: Any, extensions: Sequence[SkillExtension]) -> None:  # noqa: ANN401 - our own class
    """Give a middleware `after_agent`, if an extension acts at the end of a run.

    LangChain looks at a middleware's class to see which hooks it has, so the instance gets a class of its own; one with
    a second base would have another layout, which Python does not let an instance change to.
    """
    if any(overrides(extension, "at_end") for extension in extensions):
        own = type(middleware)
        hooks = {"after_agent": _EndOfRun.after_agent, "aafter_agent": _EndOfRun.aafter_agent}
        middleware.__class__ = type(own.__name__, (own,), {"__module__": own.__module__, **hooks})


def _end(run: Run) -> Plan[dict[str, Any] | None]:
    yield from shelf_of(run)
    yield from at("at_end", run)
    return merged(run.collected, problems_update(run)) or None


class _EndOfRun:
    """Lets extensions act at the end of a run."""

    _settings: Any

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions act at the end of a run."""
        result: dict[str, Any] | None = self._settings.perform(_end(Run(self._settings, state, runtime)), runtime)
        return result

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions act at the end of a run."""
        run = Run(self._settings, state, runtime)
        result: dict[str, Any] | None = await self._settings.aperform(_end(run), runtime)
        return result
