"""The middleware's settings, and what it remembers between calls.

Settings are checked once, when the middleware is made, so that a wrong value fails there and not in mid-run.

`SharedCache` holds nothing that belongs to a run: one instance serves many agents, threads and users. All of it is
bounded in bytes and safe to share by threads.

`Invocation` lets the calls of one turn share what they read, so that each file is read once however many calls need
it. A call that needs a skill which no other call of the turn is reading claims it, and must deliver it; others wait.
A call that is executed again after an interrupt belongs to another invocation, and reads again.
"""

import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, wraps
from typing import Any, Literal, ParamSpec, TypeAlias, get_args
from weakref import WeakKeyDictionary

from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import FileDownloadResponse, LsResult
from langgraph.errors import GraphBubbleUp

from deepskills._catalog.catalog import STRICTNESS, Catalogs, Readings, Visibility
from deepskills._catalog.discovery import Discovery, ScanSettings
from deepskills._errors import SkillsError
from deepskills._files.paths import AssetDirectories, check_directories
from deepskills._io.backends import can_execute, has_file_methods, is_backend
from deepskills._io.cache import BoundedCache
from deepskills._io.drivers import needs_loop
from deepskills._io.plan import Attempt, CallFunction, Failed
from deepskills._loading.budget import Budgets, Prepared, count_tokens
from deepskills._middleware.extension import SkillExtension, overrides
from deepskills._middleware.state import fingerprint
from deepskills._middleware.workarounds import identify_invocation
from deepskills._prompt.messages import FileNames
from deepskills._providers.ask import USUAL_SECONDS
from deepskills._providers.base import SkillProvider, serves_skills, serving_providers
from deepskills._providers.directory import DirectoryProvider
from deepskills._providers.sources import SkillSource, Source, parse_sources
from deepskills._types import SkillMetadata

OptionsT = ParamSpec("OptionsT")
logger = logging.getLogger("deepskills")

WINDOW_SHARE = 4
"""What part of a model's window loaded skills may take, unless the application set a budget of its own."""

CACHING_PROVIDERS = frozenset(
    {
        "anthropic",
        "openai",
        "azure",
        "google_genai",
        "google_vertexai",
        "amazon_bedrock",
        "bedrock",
        "xai",
        "deepseek",
        "groq",
        "mistral",
        "mistralai",
        "fireworks",
        "openrouter",
    }
)
"""The providers, as LangChain's `ls_provider` names them, that cache prompts by prefix."""

MAX_TURNS = 4
"""How many turns of an invocation the readings of are kept: a graph may hold several agents."""


class Invocation:
    """What one invocation of a graph has seen of its sources, and what the calls of its turns have read."""

    def __init__(self) -> None:
        self.found: dict[str, Discovery] = {}
        self._lock = threading.Lock()
        self._turns: dict[Hashable, dict[Hashable, Future[Prepared]]] = {}

    def claim(self, turn: Hashable, key: Hashable) -> tuple[Future[Prepared], bool]:
        """Return the future of a reading for the calls of a turn, and whether the caller has to make it."""
        with self._lock:
            readings = self._turns.setdefault(turn, {})
            for old in list(self._turns)[:-MAX_TURNS]:
                # What it has read may be large, and its calls are done; one that is not reads for itself.
                del self._turns[old]
            is_new = key not in readings
            return readings.setdefault(key, Future()), is_new


class _NoFiles(BackendProtocol):
    """The backend of an agent all of whose skills come from providers: it holds nothing."""

    def ls(self, path: str) -> LsResult:  # noqa: ARG002 - the protocol's
        """Say that there is no backend: a function of the runtime may name a path all the same."""
        return LsResult(error="it is a path, and the middleware has no `backend`; pass one")

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Find nothing."""
        return [FileDownloadResponse(path=path, error="file_not_found") for path in paths]


NO_FILES = _NoFiles()


# What is remembered between calls.


MAX_TEXT_BYTES = 64_000_000
"""How much memory the remembered texts of loaded skills may take."""

MAX_RULE_BYTES = 16_000_000
"""How much memory the fixed rules of visibility may take, worked out for each catalog."""


class SharedCache:
    """What was read, found, rendered and loaded in this process."""

    def __init__(self, backend: object = None, *, for_search: bool = True) -> None:
        self.readings = Readings(for_search=for_search)
        self.catalogs = Catalogs(backend)
        self.rules: BoundedCache[int, dict[str, Visibility]] = BoundedCache(MAX_RULE_BYTES)
        """What frontmatter and a fixed rule hide, by the serial of a catalog."""
        self._texts: BoundedCache[str, str] = BoundedCache(MAX_TEXT_BYTES)
        self._invocations: WeakKeyDictionary[object, Invocation] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def invocation_of(self, runtime: object) -> Invocation | None:
        """Return what this invocation of a graph has seen and read; `None` outside of one."""
        own = identify_invocation(runtime)
        if own is None:
            return None
        with self._lock:
            try:
                return self._invocations.setdefault(own, Invocation())
            except TypeError:  # No weak reference to it is possible: then every hook looks for itself.
                return Invocation()

    def keep_text(self, text: str) -> str:
        """Remember a text of a loaded skill, and return its fingerprint."""
        key = fingerprint(text)
        self._texts.put(key, text)
        return key

    def text(self, key: str) -> str | None:
        """Return the text that has this fingerprint."""
        return self._texts.get(key)


# Settings.


Refresh: TypeAlias = Literal["thread", "run"]
"""When skills are discovered: once per thread, or at every run."""

LoadedStatus: TypeAlias = Literal["auto", "system_prompt", "conversation"]
"""Where the model sees what is loaded."""

UnloadWhen: TypeAlias = Literal["auto", "now", "cheap"]
"""When an unloaded skill's text leaves requests: at once, or when the prefix changes anyway."""

SubagentInherit: TypeAlias = Literal["isolated", "inherit"]
"""What a sub-agent begins with: nothing loaded, or what its parent has loaded."""

SlashCommands: TypeAlias = bool | Literal["always"]
"""Whether a user's message may start skills; `"always"`: also in an agent inside another graph's run."""

BackendFactory: TypeAlias = Callable[[Any], BackendProtocol]
"""Makes the backend of a run from its runtime, which has `.context` and `.store`."""

SourcesFactory: TypeAlias = Callable[[Any], Sequence[SkillSource]]
"""Gives the sources of a run from its runtime, which has `.context` and `.store`."""

VisibilityRule: TypeAlias = Mapping[str, Visibility] | Callable[[SkillMetadata, Any], Visibility]
"""How visible skills are: by name or glob pattern, or as a function of skill and runtime says.

`"always"` shows a skill to the model although its author says `disable-model-invocation`; only an operator's rule may
say it.
"""


_CHOICES: Mapping[str, Sequence[object]] = {
    "refresh": get_args(Refresh),
    "loaded_status": get_args(LoadedStatus),
    "slash_commands": (True, False, "always"),
    "unload_when": get_args(UnloadWhen),
    "subagent_inherit": get_args(SubagentInherit),
}


@dataclass(frozen=True)
class Settings:
    """The constructor's arguments, valid, and what the middleware remembers."""

    backend: BackendProtocol | BackendFactory | None
    """`None` where no source is a path."""

    sources: tuple[Source, ...] | SourcesFactory
    budgets: Budgets
    refresh: Refresh = "thread"
    loaded_status: LoadedStatus = "auto"
    max_depth: int = 1
    resource_depth: int = 1
    backend_timeout: float | None = None
    strict: bool = False
    catalog_budget: int | None = None
    visibility: VisibilityRule | None = None
    slash_commands: SlashCommands = False
    unload_when: UnloadWhen = "auto"
    subagent_inherit: SubagentInherit = "isolated"
    load_requires: bool = False
    asset_directories: AssetDirectories = "all"
    token_counter: Callable[[str], int] = count_tokens
    extensions: tuple[SkillExtension, ...] = ()
    own_tools: frozenset[str] = frozenset()
    """Names of the tools that every agent with this middleware has."""
    cache: SharedCache = field(default_factory=SharedCache)

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        for name in ("strict", "load_requires"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        _check_number("max_depth", self.max_depth, at_least=1)
        _check_number("resource_depth", self.resource_depth, at_least=1)
        _check_number("max_loaded_skills", self.budgets.skills)
        for name, number in (("max_loaded_tokens", self.budgets.tokens), ("catalog_budget", self.catalog_budget)):
            if number is not None:
                _check_number(name, number)
        # `not > 0`, so that `nan` is refused as well.
        if self.backend_timeout is not None and not self.backend_timeout > 0:
            raise ValueError(f"backend_timeout must be above 0 or None, got {self.backend_timeout!r}")
        check_no_backend_class(self.backend)
        _check_backend(self.backend, self.fixed_sources)
        if not callable(self.token_counter):
            raise TypeError(f"token_counter must be a function of a text, got {self.token_counter!r}")
        _check_visibility(self.visibility)
        check_directories(self.asset_directories)
        if self.unload_when == "cheap" and self.loaded_status == "system_prompt":
            logger.warning(
                'unload_when="cheap" leaves texts in the request for the sake of prompt caches, which '
                'loaded_status="system_prompt" breaks at every load and unload; leave one of them at "auto"'
            )

    # Worked out once: every hook of every run asks for these, and settings never change.

    @cached_property
    def fixed_backend(self) -> BackendProtocol | None:
        """The backend, if every run has the same."""
        if self.backend is None:
            return NO_FILES
        return self.backend if is_backend(self.backend) else None  # type: ignore[return-value]

    @cached_property
    def varies_by_user(self) -> bool:
        """Whether what a run finds depends on who started it, so that state proves nothing."""
        return callable(self.sources) or self.fixed_backend is None

    @cached_property
    def varies_by_run(self) -> bool:
        """Whether another run may see other skills, so that each has to look for itself."""
        # A provider is asked at every invocation: only it knows what there is.
        provides = any(source.provider is not None for source in self.fixed_sources or ())
        provides = provides or serves_skills(self.fixed_backend)
        return self.refresh == "run" or self.varies_by_user or provides

    @cached_property
    def has_judges(self) -> bool:
        """Whether a function or an extension is asked how visible skills are."""
        is_function = self.visibility is not None and not isinstance(self.visibility, Mapping)
        return is_function or any(overrides(extension, "visibility") for extension in self.extensions)

    @cached_property
    def scan_settings(self) -> ScanSettings:
        """How this middleware looks at sources."""
        cache = self.cache
        directories = DirectoryProvider(self.max_depth)

        def give() -> DirectoryProvider:
            # A function may give each user another backend: what one run learned of paths says nothing to the next.
            return directories if self.fixed_backend is not None else DirectoryProvider(self.max_depth)

        return ScanSettings(
            give,
            cache.readings,
            cache.catalogs,
            is_shared=not self.varies_by_user,
            varies=self.varies_by_run,
            seconds=self.provider_seconds,
        )

    @property
    def provider_seconds(self) -> float:
        """How long a call of a provider may take."""
        return USUAL_SECONDS if self.backend_timeout is None else self.backend_timeout

    @property
    def fixed_sources(self) -> tuple[Source, ...] | None:
        """The sources, if they are the same in every run."""
        return None if callable(self.sources) else self.sources

    def file_names(self) -> FileNames:
        """Return how the agent's tools take the names of a skill's files."""
        tools = {"list_skill_assets", "load_skill_asset", "get_skill_script_path"} & self.own_tools
        # An extension's own tool, such as `run_skill_script`, takes a name too.
        takes_names = bool(tools) or any(
            type(extension).tools is not SkillExtension.tools for extension in self.extensions
        )
        return FileNames(takes_names, "load_skill_asset" in tools)

    def can_execute(self, runtime: object) -> bool:
        """Whether the backend of a run runs commands; one that cannot be made does not."""
        backend: object = self.fixed_backend
        if backend is None:
            try:
                backend = self.backend_for(runtime)
            except SkillsError:
                return False
        return can_execute(backend)

    def serving_providers(self, runtime: object) -> list[SkillProvider]:
        """Return the providers whose skills the backends of a run serve."""
        return serving_providers(self.fixed_backend or self.backend_for(runtime))

    def backend_for(self, runtime: object) -> BackendProtocol:
        """Return the backend that a function makes for a run.

        Raises:
            SkillsError: If it cannot be made; the driver answers every call of the plan with the reason.
        """
        try:
            backend: Any = self.backend(runtime)  # type: ignore[operator,misc]
            check_no_backend_class(backend)
        except GraphBubbleUp:
            raise
        except Exception as error:
            # It asked for the running event loop, which a worker thread lacks: the driver calls it again on the loop.
            if needs_loop(error):
                raise
            raise SkillsError(f"the backend could not be made: {_explain(error)}") from error
        if _close_if_async(backend):
            raise SkillsError(f"the backend could not be made: {_IS_ASYNC} a backend")
        if not is_backend(backend):
            raise SkillsError(f"the backend function returned a {type(backend).__name__}, not a backend")
        return backend  # type: ignore[no-any-return]

    async def sources_in(self, runtime: Callable[[], object]) -> tuple[Sequence[Source], str | None]:
        """Return the sources of a run, or why there are none; a user's function is called by the driver."""
        if not callable(self.sources):
            return self.sources, None
        make = self.sources
        found: tuple[list[Source], str | None] | Failed
        found = await Attempt(CallFunction(lambda: _parse_sources(make, runtime())))
        return ([], found.reason) if isinstance(found, Failed) else found


def _parse_sources(make: SourcesFactory, runtime: object) -> tuple[list[Source], str | None]:
    try:
        given = make(runtime)
        if _close_if_async(given):
            return [], f"{_IS_ASYNC} a list of sources"
        return parse_sources(given), None
    except GraphBubbleUp:
        raise
    except Exception as error:
        if needs_loop(error):
            raise
        return [], _explain(error)


_IS_ASYNC = "the function is async; pass a plain one (`def`) that returns"


def _close_if_async(value: object) -> bool:
    """Whether a function gave a coroutine, which cannot be awaited here; it is closed, so that Python does not warn."""
    if not inspect.iscoroutine(value):
        return False
    value.close()
    return True


def refuse_unknown(init: Callable[OptionsT, None]) -> Callable[OptionsT, None]:
    """Have a constructor name the closest parameter where it is given an unknown keyword."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @wraps(init)
    def construct(*given: OptionsT.args, **options: OptionsT.kwargs) -> None:
        for name in options.keys() - known:
            closest = get_close_matches(name, known, 1)
            meant = f"did you mean {closest[0]}?" if closest else f"it takes {', '.join(known)}"
            raise TypeError(f"{type(given[0]).__name__} has no parameter {name}; {meant}")
        init(*given, **options)

    return construct


def check_no_backend_class(backend: object) -> None:
    """Raise if a backend's class was passed in place of an instance, which is a usual slip.

    Raises:
        TypeError: The message says what to write.
    """
    if isinstance(backend, type) and has_file_methods(backend):
        name = backend.__name__
        raise TypeError(f"backend must be an instance, got the class {name}; write backend={name}(...)")


def _check_number(name: str, value: object, *, at_least: int = 0) -> None:
    # `True` is an `int` to Python.
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")


def _check_backend(backend: object, sources: Sequence[Source] | None) -> None:
    if backend is not None:
        if not is_backend(backend) and not callable(backend):
            raise TypeError(f"backend must be a backend or a function of the runtime, got {backend!r}")
        return
    # What a function names is known only in a run.
    paths = [source.path for source in sources or () if source.provider is None]
    if paths:
        raise TypeError(f"the source {paths[0]!r} is a path; pass the backend on which it lies")


def _check_visibility(rule: object) -> None:
    if rule is None or (callable(rule) and not isinstance(rule, Mapping)):
        return
    if not isinstance(rule, Mapping):
        raise TypeError(f"visibility must be a mapping or a function of skill and runtime, got {rule!r}")
    for name, visibility in rule.items():
        if not isinstance(name, str) or not isinstance(visibility, str) or visibility not in STRICTNESS:
            choices = ", ".join(map(repr, STRICTNESS))
            raise ValueError(f"visibility must map names or patterns to one of {choices}, got {name!r}: {visibility!r}")


def _explain(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    # The commonest slip: factories written for older releases of deepagents pass the runtime.
    if isinstance(error, TypeError) and "StateBackend" in text:
        return f"{text} (StateBackend takes no argument: pass StateBackend() itself)"
    return text
