"""What a user set on the middleware, checked once, and what it comes to in a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from deepagents.backends import BackendProtocol
from langgraph.errors import GraphBubbleUp

from deepskills._backend.plan import Consult, Consulted, Failed, Plan, ResultT, adrive, drive, needs_loop
from deepskills._catalog.discovery import SkillCache
from deepskills._catalog.origins import Origins
from deepskills._catalog.sources import Source, parse_sources
from deepskills._errors import SkillsError
from deepskills._loading.decisions import Budgets
from deepskills._types import SkillSource

Refresh: TypeAlias = Literal["thread", "run"]
"""When skills are discovered: once a thread, or at every run."""

LoadedStatus: TypeAlias = Literal["system_prompt", "conversation"]
"""Where the model sees what is loaded."""

BackendFactory: TypeAlias = Callable[[Any], BackendProtocol]
"""Makes the backend of a run from its runtime, which has `.context` and `.store`."""

SourcesFactory: TypeAlias = Callable[[Any], Sequence[SkillSource]]
"""Gives the sources of a run from its runtime, which has `.context` and `.store`."""


class UnavailableBackend(BackendProtocol):
    """Stands in for a backend that could not be made: every call to it fails with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def ls(self, path: str) -> NoReturn:  # noqa: ARG002 - the protocol's signature
        """Fail."""
        raise SkillsError(self._reason)

    def download_files(self, paths: list[str]) -> NoReturn:  # noqa: ARG002 - the protocol's signature
        """Fail."""
        raise SkillsError(self._reason)


@dataclass(frozen=True)
class Settings:
    """The constructor's arguments, valid."""

    backend: BackendProtocol | BackendFactory
    sources: tuple[Source, ...] | SourcesFactory
    budgets: Budgets
    refresh: Refresh = "thread"
    loaded_status: LoadedStatus = "system_prompt"
    max_depth: int = 1
    resource_depth: int = 1
    backend_timeout: float | None = None
    strict: bool = False
    catalog_budget: int | None = None
    origins: Origins = field(default_factory=Origins)
    """Filled by discovery: where its listings led outside the sources."""
    cache: SkillCache = field(default_factory=SkillCache)
    """Filled by discovery: the files that were read."""

    def __post_init__(self) -> None:
        _check_choice("refresh", self.refresh, get_args(Refresh))
        _check_choice("loaded_status", self.loaded_status, get_args(LoadedStatus))
        _check_number("max_depth", self.max_depth, at_least=1)
        _check_number("resource_depth", self.resource_depth, at_least=1)
        _check_number("max_loaded_skills", self.budgets.skills, at_least=0)
        for name, value in (("max_loaded_tokens", self.budgets.tokens), ("catalog_budget", self.catalog_budget)):
            if value is not None:
                _check_number(name, value, at_least=0)
        if self.backend_timeout is not None and not self.backend_timeout > 0:
            raise ValueError(f"backend_timeout must be above 0 or None, got {self.backend_timeout!r}")
        if not is_backend(self.backend) and not callable(self.backend):
            raise TypeError(f"backend must be a backend or a function of the runtime, got {self.backend!r}")

    @property
    def varies_by_run(self) -> bool:
        """Whether another run may see other skills, so that each has to look for itself."""
        return self.refresh == "run" or callable(self.sources) or not is_backend(self.backend)

    @property
    def _fixed_backend(self) -> BackendProtocol | None:
        return self.backend if is_backend(self.backend) else None  # type: ignore[return-value]

    def origins_of_run(self) -> Origins:
        """Return where listings led, as far as a run may know; each user's backend may lead elsewhere by one path."""
        return self.origins if is_backend(self.backend) else Origins()

    def __deepcopy__(self, memo: dict[int, object]) -> "Settings":
        """Return the same settings with nothing remembered; backend and functions are the user's, and shared."""
        return replace(self, origins=Origins(), cache=SkillCache())

    def backend_for(self, runtime: object) -> BackendProtocol:
        """Return the backend of a run; one that cannot be made fails when it is called."""
        if is_backend(self.backend):
            return self.backend  # type: ignore[return-value]
        try:
            backend: Any = self.backend(runtime)  # type: ignore[operator]
        except GraphBubbleUp:
            raise
        except Exception as error:
            if needs_loop(error):
                raise
            return UnavailableBackend(f"the backend could not be made: {_explain(error)}")
        if not is_backend(backend):
            return UnavailableBackend(f"the backend function returned a {type(backend).__name__}, not a backend")
        return backend  # type: ignore[no-any-return]

    def perform(self, plan: Plan[ResultT], runtime: object) -> ResultT:
        """Perform a plan on the backend of a run."""
        return drive(plan, lambda: self.backend_for(runtime), self.backend_timeout, self._fixed_backend)

    async def aperform(self, plan: Plan[ResultT], runtime: object) -> ResultT:
        """Perform a plan on the backend of a run, without blocking."""
        return await adrive(plan, lambda: self.backend_for(runtime), self.backend_timeout, self._fixed_backend)

    def sources_in(self, runtime: object) -> Plan[tuple[list[Source], str | None]]:
        """Return the sources of a run, or why there are none; a user's function is called by the driver."""
        if not callable(self.sources):
            return list(self.sources), None
        [reply] = yield (Consult(lambda: self.sources_for(runtime)),)
        if isinstance(reply, Consulted):
            found: tuple[list[Source], str | None] = reply.value
            return found
        return [], reply.reason if isinstance(reply, Failed) else "no answer"

    def sources_for(self, runtime: object) -> tuple[list[Source], str | None]:
        """Return the sources of a run, or why there are none."""
        if not callable(self.sources):
            return list(self.sources), None
        try:
            return parse_sources(self.sources(runtime)), None
        except GraphBubbleUp:
            raise
        except Exception as error:
            if needs_loop(error):
                raise
            return [], _explain(error)


def is_backend(value: object) -> bool:
    """Whether `value` can be asked for files; a class or a function cannot."""
    if isinstance(value, BackendProtocol):
        return True
    return not isinstance(value, type) and hasattr(value, "ls") and hasattr(value, "download_files")


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _check_number(name: str, value: object, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")


def _explain(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "StateBackend" in text:
        return f"{text} (StateBackend takes no argument: pass StateBackend() itself)"
    return text
