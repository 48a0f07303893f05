"""`SkillsMiddleware`: its parameters, its hooks, and the methods that applications and extensions call.

Every hook is a few lines that perform a plan. Sync and async stand side by side because LangChain has two names for
each hook; what they do is written once, in the plans of this folder.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, cast

from deepagents.backends import BackendProtocol
from deepagents.middleware.skills import SkillsMiddleware as DeepAgentsSkillsMiddleware
from deepagents.middleware.skills import SkillToolResolver
from langchain.agents.middleware.types import (
    ContextT,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ResponseT,
    ToolCallRequest,
    hook_config,
)
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from deepskills._catalog.catalog import SkillEntry
from deepskills._catalog.discovery import Discovery
from deepskills._errors import SkillsError
from deepskills._files.paths import AssetDirectories
from deepskills._io.bridge import bridge, is_bridged
from deepskills._io.plan import Plan
from deepskills._loading.budget import Budgets, count_tokens
from deepskills._middleware.before_model import before_model_call, start_alone
from deepskills._middleware.chat_models import facts_of
from deepskills._middleware.config import (
    NO_FILES,
    BackendFactory,
    LoadedStatus,
    Refresh,
    Settings,
    SharedCache,
    SlashCommands,
    SourcesFactory,
    SubagentInherit,
    UnloadWhen,
    VisibilityRule,
    refuse_unknown,
)
from deepskills._middleware.end import (
    add_end_hooks,
    end_or_send_back,
    open_checks,
)
from deepskills._middleware.explain import SkillExplanation, explain_skills
from deepskills._middleware.extension import HOOKS, LoadedSkill, OpenCheck, SkillExtension
from deepskills._middleware.extension_calls import SkillRun, read_judged_asset
from deepskills._middleware.nesting import is_own_graph
from deepskills._middleware.request import (
    append_section,
    call_model,
    prepare_messages,
    render_section,
    section_in_use,
)
from deepskills._middleware.run import Run, VisibleCatalog, name_of
from deepskills._middleware.startup import start
from deepskills._middleware.state import SkillsState, SkillsStateUpdate, with_own_keys
from deepskills._middleware.tool_calls import (
    ToolSource,
    add_guard,
    answer_from_context,
    call_tool,
    read_disclosed,
)
from deepskills._middleware.tools import check_names, make_tool
from deepskills._middleware.turn import LOAD_TOOL, UNLOAD_TOOL
from deepskills._middleware.visibility import find_view
from deepskills._middleware.workarounds import conflict_in_deep_agent
from deepskills._prompt.section import SKILLS_SYSTEM_PROMPT, Section, check_template, select_spoken_tools
from deepskills._providers.base import SkillProvider
from deepskills._providers.sources import SkillSource, Source, parse_sources
from deepskills._skillmd.problems import problem
from deepskills._skillmd.repair import as_text
from deepskills._types import (
    DEFAULT_DEPTH,
    DEFAULT_LOADED_SKILLS,
    DEFAULT_LOADED_TOKENS,
    DEFAULT_RESOURCE_DEPTH,
)


def check_extensions(extensions: object) -> tuple[SkillExtension, ...]:
    """Return the extensions of a middleware.

    Raises:
        TypeError: If one is not an extension, or they are not in a list.
        ValueError: If two keep their state under one name.
    """
    if not isinstance(extensions, Iterable) or isinstance(extensions, str):
        name = type(extensions).__name__
        raise TypeError(f"extensions must be a list, got {extensions!r}; write extensions=[{name}(...)]")
    plugged: tuple[SkillExtension, ...] = tuple(extensions)
    for extension in plugged:
        # At construction, not at the first run: a class in place of an instance is the usual slip.
        if isinstance(extension, type) and issubclass(extension, SkillExtension):
            name = extension.__name__
            raise TypeError(
                f"extensions must be SkillExtension instances, got the class {name}; write extensions=[{name}(...)]"
            )
        if not isinstance(extension, SkillExtension):
            raise TypeError(
                f"extensions must be SkillExtension instances, got {extension!r}; those of deepskills are in "
                "deepskills.extensions, and middleware of LangChain goes to the agent's `middleware`"
            )
        # A guard that is written `abefore_load`, as LangChain's are, would be skipped without a word.
        twins = [f"a{hook}" for hook in HOOKS if hasattr(extension, f"a{hook}")]
        if twins:
            hook = twins[0].removeprefix("a")
            raise TypeError(
                f"{type(extension).__name__}.{twins[0]} is never called: a method of an extension has one name, "
                f"written `def {hook}` or `async def {hook}`"
            )
    names = [name_of(extension) for extension in plugged]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"extensions has {', '.join(sorted(twice))} twice; pass each once")
    return plugged


def _start(run: Run) -> "Plan[SkillsStateUpdate | None]":
    return cast("Any", start_alone(run, start(run))) if is_own_graph() else start(run)


def _callable_in_sync(tool: BaseTool) -> BaseTool:
    """Return an extension's tool that sync runs can call as well, if it is only `async def`."""
    work: Any = tool.coroutine if isinstance(tool, StructuredTool) and tool.func is None else None
    if work is None:
        return tool

    @wraps(work)
    def call(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - the tool's own
        return bridge.run_anywhere(lambda: work(*given, **named))

    return tool.model_copy(update={"func": call})


def build_menu(view: VisibleCatalog) -> list[dict[str, str]]:
    """Return the slash commands of a run, for a menu."""
    return [
        {
            "name": entry.name,
            "description": entry.description,
            "argument_hint": as_text(entry.frontmatter.get("argument-hint")),
        }
        for entry in view.existing
        if entry.is_user_invocable and "/" not in entry.name
    ]


def current_runtime() -> Any:  # noqa: ANN401 - LangGraph's runtime
    """Return the runtime of the run that this call is part of; `None` outside a run."""
    try:
        return get_runtime()
    except (RuntimeError, LookupError, KeyError):
        return None


# Methods beside the hooks: for custom graphs, menus, and extensions.


class Services:
    """Methods of `SkillsMiddleware` that users and extensions call themselves."""

    _settings: Settings
    _section: Section | None

    def skills_section(self, state: Mapping[str, Any]) -> str:
        """Return the skills section for a system prompt, as it stands in `state`; empty if it is left out."""
        return self._section_of(Run(self._settings, state, current_runtime()))

    def _section_of(self, run: Run) -> str:
        run.perform(find_view(run))
        return render_section(self._section, run, [skill.entry.name for skill in run.loaded if not skill.is_lost])

    def slash_commands_for(self, state: Mapping[str, Any], runtime: object = None) -> list[dict[str, str]]:
        """Return the slash commands that a menu may offer: `name`, `description` and `argument_hint` of each.

        Outside a run, functions of the runtime (`visibility`, `sources`, `backend`) are given `runtime`.
        """
        # A menu is often built outside any run, where LangGraph has no runtime to offer.
        run = Run(self._settings, state, runtime or current_runtime())
        return build_menu(run.perform(find_view(run)))

    async def aslash_commands_for(self, state: Mapping[str, Any], runtime: object = None) -> list[dict[str, str]]:
        """Return the slash commands that a menu may offer, without blocking; see `slash_commands_for`."""
        run = Run(self._settings, state, runtime or current_runtime())
        return build_menu(await run.aperform(find_view(run)))

    async def _list_shown(
        self,
        backend: BackendProtocol,
        sources: Sequence[Source],
        found: Discovery,
        runtime: object,
    ) -> tuple[Sequence[SkillEntry], Callable[[SkillEntry, str], Coroutine[Any, Any, bytes]]]:
        """Return the skills that are shown to a model, and what reads their files as extensions judge them."""
        run = Run(replace(self._settings, backend=backend, sources=tuple(sources)), {}, runtime)
        view = await run.aperform(find_view(run, found))
        return view.visible, lambda entry, path: run.aperform(read_judged_asset(run, entry, path))

    def explain(
        self, state: Mapping[str, Any], name: str | None = None, runtime: object = None
    ) -> list[SkillExplanation]:
        """Return for each skill how far it came on a thread, and why no further; with `name`, of that skill alone.

        Args:
            state: `agent.get_state(config).values`.
            name: A skill's name; a file that another skill of its name replaces is explained as well, behind it.
            runtime: For functions of the runtime (`visibility`, `sources`, `backend`); without one, what they said in
                the thread's latest run counts.

        Raises:
            TypeError: If `state` is not the values of a state.
        """
        run, has_runtime = self._run_to_explain(state, runtime)
        return run.perform(explain_skills(run, name, self._section, has_runtime=has_runtime))

    async def aexplain(
        self, state: Mapping[str, Any], name: str | None = None, runtime: object = None
    ) -> list[SkillExplanation]:
        """Return for each skill how far it came on a thread, without blocking; see `explain`."""
        run, has_runtime = self._run_to_explain(state, runtime)
        return await run.aperform(explain_skills(run, name, self._section, has_runtime=has_runtime))

    def _run_to_explain(self, state: Mapping[str, Any], runtime: object) -> tuple[Run, bool]:
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be `agent.get_state(config).values`, got {type(state).__name__}")
        found = runtime or current_runtime()
        return Run(self._settings, state, found), found is not None

    def model_messages(
        self, state: Mapping[str, Any], runtime: object, model: object = None
    ) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, and the state update that goes with it.

        The messages are those of `state`, with the skills section in front as a system message, every loaded skill's
        text once and no unloaded skill's. `model` is the chat model that they go to, which decides what `"auto"` means.
        """
        run = Run(self._settings, state, runtime)
        return run.perform(prepare_messages(run, self._section, model))

    async def amodel_messages(
        self, state: Mapping[str, Any], runtime: object, model: object = None
    ) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, without blocking; see `model_messages`."""
        run = Run(self._settings, state, runtime)
        return await run.aperform(prepare_messages(run, self._section, model))

    def send_back(self, state: Mapping[str, Any], runtime: object) -> tuple[bool, dict[str, Any]]:
        """Tell, in a graph of your own, whether the model's answer must not end its turn yet, with the state update.

        The update holds the message that the model reads next. If the turn ends, extensions have acted at its end, and
        it holds what they remember.
        """
        run = Run(self._settings, state, runtime)
        return run.perform(end_or_send_back(run))

    async def asend_back(self, state: Mapping[str, Any], runtime: object) -> tuple[bool, dict[str, Any]]:
        """Tell whether the model's answer must not end its turn yet, without blocking; see `send_back`."""
        run = Run(self._settings, state, runtime)
        return await run.aperform(end_or_send_back(run))

    def open_checks(self, state: Mapping[str, Any], runtime: object) -> list[OpenCheck]:
        """Return the checks of skills that a turn which ended now would leave open, for a graph of your own."""
        run = Run(self._settings, state, runtime)
        return run.perform(open_checks(run))

    async def aopen_checks(self, state: Mapping[str, Any], runtime: object) -> list[OpenCheck]:
        """Return the checks that are open, without blocking; see `open_checks`."""
        run = Run(self._settings, state, runtime)
        return await run.aperform(open_checks(run))

    def run_for(self, extension: SkillExtension, state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to, for an extension."""
        run = Run(self._settings, state, runtime)
        run.perform(find_view(run))
        return SkillRun(run, extension)

    async def arun_for(self, extension: SkillExtension, state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to, for an extension, without blocking."""
        run = Run(self._settings, state, runtime)
        # An async tool may be called in a sync run, whose backend is called by its sync methods.
        await (run.perform_in_thread(lambda: find_view(run)) if is_bridged() else run.aperform(find_view(run)))
        return SkillRun(run, extension)

    def list_loaded(self, state: Mapping[str, Any]) -> Sequence[LoadedSkill]:
        """Return the skills in use, without I/O; none if this process has not looked at the sources of the thread."""
        run = self._run_without_io(state)
        return [] if run is None else run.loaded

    def run_without_io(self, extension: SkillExtension, state: Mapping[str, Any]) -> SkillRun | None:
        """Return the run of a state as this process knows it, without I/O; `None` if it has not looked at sources."""
        run = self._run_without_io(state)
        return None if run is None else SkillRun(run, extension)

    def _run_without_io(self, state: Mapping[str, Any]) -> Run | None:
        # Without a runtime: nothing here calls a function of the user's, so nothing needs one.
        run, cache = Run(self._settings, state, None), self._settings.cache
        catalog = cache.catalogs.recognize(run.thread.catalog)
        # Only a catalog that this process made itself; state alone proves nothing.
        if catalog is None:
            return None
        # The fixed rules are known without a call; a function or an extension is asked by `run_for`.
        run.view = VisibleCatalog(catalog, cache.rules.get(catalog.serial) or {})
        run.tool_origins = read_disclosed(state)
        return run


# `SkillsMiddleware`: settings and hooks, each hook a few lines.


class SkillsMiddleware(Services, DeepAgentsSkillsMiddleware[ContextT, ResponseT]):
    """Gives an agent skills: finds them, lists them, and lets the model load and unload them.

    Pass it to `create_deep_agent` or `create_agent` as middleware; it takes the place of deepagents' own class. In a
    graph of your own, use `before_agent` as a node, `model_messages` for what the model is sent, and `tools`.

    One instance serves any number of agents, sub-agents, threads and users; it holds nothing that belongs to a run.
    Pass one instance to an agent, with all sources: `create_agent` refuses two, and an agent that `create_deep_agent`
    made of two raises `SkillsError` at its first run: deepagents would keep only the last.

    Args:
        backend: Where the files are: a backend, or a function of the runtime that gives one. It may be left out where
            no source is a path.
        sources: Where skills come from: backend paths that hold skill directories, each alone or as `(path, label)`,
            and instances of `SkillProvider`; the later wins. Or a function of the runtime that gives them.
        system_prompt: The section's template with the slots `{skills_locations}`, `{skills_load_warnings}` and
            `{skills_list}`; `None` for no section.
        tools: Tools that are callable only while a skill that names them in `metadata.include_tools` is in use.
        max_depth: How many levels below a source skills may lie; 1 by default.
        resource_depth: How many levels of a skill's `scripts/`, `references/` and `assets/` are listed; 1 by
            default.
        max_loaded_skills: How many skills may be loaded at a time; 10 by default.
        max_loaded_tokens: How many tokens loaded skills may take together, 50,000 by default but at most a quarter of
            the model's window where that is known; `None` for no limit.
        refresh: `"thread"` to discover skills once per thread, `"run"` to look again at every run. Where `backend` or
            `sources` is a function, every run looks for itself.
        loaded_status: `"system_prompt"` marks loaded skills in the section; `"conversation"` leaves the section the
            same until the catalog changes, so that prompt caches hold. `"auto"`: `"conversation"` for models of
            providers that cache prompts, else `"system_prompt"`.
        catalog_budget: How many characters the list of skills may take in the prompt; over it, hints go first, then
            descriptions shrink, never a name. `None` to cut nothing.
        extra_tools: Any of `search_skills`, `list_skill_assets`, `load_skill_asset` and `get_skill_script_path`, for
            agents without file tools or with large libraries.
        visibility: How visible skills are: a mapping from names or glob patterns to `"on"`, `"name-only"`,
            `"user-only"` or `"off"`, or a function `(skill, runtime)` that returns one of them; `"always"` shows a
            skill to the model in spite of its author's `disable-model-invocation`.
        slash_commands: Whether a user's message that starts with `/name` starts that skill. An agent inside
            another graph's run takes none: a node or a model may have written the message. `"always"` says that its
            input is a user's there as well.
        unload_when: `"now"` to take an unloaded skill's text out of requests at once; `"cheap"` to leave it until the
            prefix changes anyway, so that prompt caches hold. `"auto"`: `"cheap"` for models of providers that cache
            prompts, else `"now"`.
        subagent_inherit: `"isolated"` for sub-agents that begin with nothing loaded (a fork knows what it continues);
            `"inherit"` for sub-agents that begin with what this agent has loaded, within their own budgets.
        load_requires: Whether a load brings along what the skill requires (`metadata.requires`), first and all or
            none; without it, the load names what is not loaded.
        asset_directories: Which files of a skill the extra tools list and read: `"all"`, or names of directories.
        token_counter: Counts the tokens of a text.
        extensions: Capabilities that plug in, each a `SkillExtension`, asked in this order.
        backend_timeout: Seconds after which a backend call counts as failed; `None` to wait.
        strict: Raise `SkillsError` when a source is missing, or a source or a skill has an error, instead of going on
            without it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument has a value that it cannot have, or the template cannot be filled in.
    """

    state_schema: Any = SkillsState

    @refuse_unknown
    def __init__(  # noqa: PLR0913 - the options of a product, each by name
        self,
        *,
        backend: BackendProtocol | BackendFactory | None = None,
        sources: Sequence[SkillSource] | SourcesFactory,
        system_prompt: str | None = SKILLS_SYSTEM_PROMPT,
        tools: Sequence[BaseTool | Callable[..., Any]] | SkillToolResolver[ContextT] | None = None,
        max_depth: int = DEFAULT_DEPTH,
        resource_depth: int = DEFAULT_RESOURCE_DEPTH,
        max_loaded_skills: int = DEFAULT_LOADED_SKILLS,
        max_loaded_tokens: int | None = DEFAULT_LOADED_TOKENS,
        refresh: Refresh = "thread",
        loaded_status: LoadedStatus = "auto",
        catalog_budget: int | None = None,
        extra_tools: Sequence[str] = (),
        visibility: VisibilityRule | None = None,
        slash_commands: SlashCommands = False,
        unload_when: UnloadWhen = "auto",
        subagent_inherit: SubagentInherit = "isolated",
        load_requires: bool = False,
        asset_directories: AssetDirectories = "all",
        token_counter: Callable[[str], int] = count_tokens,
        extensions: Sequence[SkillExtension] = (),
        backend_timeout: float | None = None,
        strict: bool = False,
    ) -> None:
        if system_prompt is not None:
            check_template(system_prompt)
        self._section: Section | None = None
        fixed = None if callable(sources) else parse_sources(sources)
        plugged = add_guard(check_extensions(extensions), backend, fixed)
        turned_on = [name for extension in plugged for name in extension.extra_tools]
        extra = check_names([*check_names(extra_tools), *turned_on])
        files = NO_FILES if backend is None else backend
        # Made to be thrown away: it raises for tools that deepagents refuses.
        DeepAgentsSkillsMiddleware(backend=files, sources=[], tools=tools)  # type: ignore[arg-type]
        # Its own sources stay empty, because discovery is ours.
        super().__init__(backend=files, sources=[], system_prompt=None, tools=answer_from_context)  # type: ignore[arg-type]
        self._conflict = ""
        self._tool_source = ToolSource(tools)
        self._settings = Settings(
            backend=backend,
            sources=sources if callable(sources) else tuple(fixed or ()),
            budgets=Budgets(max_loaded_skills, max_loaded_tokens),
            refresh=refresh,
            loaded_status=loaded_status,
            max_depth=max_depth,
            resource_depth=resource_depth,
            backend_timeout=backend_timeout,
            strict=strict,
            catalog_budget=catalog_budget,
            visibility=visibility,
            slash_commands=slash_commands,
            unload_when=unload_when,
            subagent_inherit=subagent_inherit,
            load_requires=load_requires,
            asset_directories=asset_directories,
            token_counter=token_counter,
            extensions=plugged,
            own_tools=frozenset({LOAD_TOOL, UNLOAD_TOOL, *extra}),
            cache=SharedCache(
                backend,
                for_search="search_skills" in extra or any(extension.ranks_skills for extension in plugged),
            ),
        )
        self.sources: list[str] = [source.path for source in fixed or () if source.provider is None]
        self.source_labels: list[str] = [source.label for source in fixed or () if source.provider is None]
        self.providers: list[SkillProvider] = [source.provider for source in fixed or () if source.provider is not None]
        self._extra_tools = extra
        # After the settings, which every tool holds on to.
        self.tools: Sequence[BaseTool] = self._own_tools()
        self.system_prompt_template = system_prompt
        # On the instance: a subclass may have its own schema, and the class itself must stay as its author wrote it.
        self.state_schema = with_own_keys(type(self).state_schema)
        add_end_hooks(self, plugged)
        for extension in plugged:
            # Last, when everything that an extension may look at is there.
            extension.attach(self)

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillsMiddleware[ContextT, ResponseT]":
        """Return the same object: it holds nothing of a run, so copies of a configuration share it."""
        return self

    @property
    def system_prompt_template(self) -> str | None:
        """The section's template, `None` for no section; one that is set is checked as the constructor's is."""
        return self._section.template if self._section is not None else None

    @system_prompt_template.setter
    def system_prompt_template(self, template: str | None) -> None:
        if template is None:
            self._section = None
            return
        check_template(template)
        self._section = Section(
            template,
            budget=self._settings.catalog_budget,
            searchable="search_skills" in self._extra_tools,
            max_loaded=self._settings.budgets.skills,
        )

    def _own_tools(self) -> list[BaseTool]:
        brought = [_callable_in_sync(tool) for extension in self._settings.extensions for tool in extension.tools(self)]
        own = [make_tool(name, self._settings) for name in (LOAD_TOOL, UNLOAD_TOOL, *self._extra_tools)]
        return [*own, *brought]

    @property
    def name(self) -> str:
        """The slot this middleware takes, for subclasses too."""
        # `create_deep_agent` gives its slot for skills, and the general-purpose sub-agent, only to this name.
        conflict = conflict_in_deep_agent(self, SkillsMiddleware)
        if conflict is not None:
            self._conflict = conflict
        return "SkillsMiddleware"

    def _check_alone(self) -> None:
        if self._conflict:
            raise SkillsError(self._conflict)

    def before_agent(  # type: ignore[override]
        self,
        state: SkillsState,
        runtime: Runtime[ContextT],
        config: RunnableConfig | None = None,  # noqa: ARG002 - LangGraph passes it
    ) -> SkillsStateUpdate | None:
        """Discover skills, if this thread has none yet or is to look again."""
        self._check_alone()
        run = Run(self._settings, state, runtime)
        return run.perform(_start(run))

    async def abefore_agent(  # type: ignore[override]
        self,
        state: SkillsState,
        runtime: Runtime[ContextT],
        config: RunnableConfig | None = None,  # noqa: ARG002 - LangGraph passes it
    ) -> SkillsStateUpdate | None:
        """Discover skills, if this thread has none yet or is to look again."""
        self._check_alone()
        run = Run(self._settings, state, runtime)
        return await run.aperform(_start(run))

    def modify_request(self, request: ModelRequest[ContextT]) -> ModelRequest[ContextT]:
        """Append the skills section to the request's system message."""
        # Inside a model call the section was rendered beforehand, off the event loop; deepagents' hook is sync and asks
        # for it here.
        section = section_in_use.get()
        if section is None:
            run = Run(self._settings, request.state, request.runtime)
            run.model = facts_of(request.model, run.thread)
            if request.tools:  # a request by hand does not tell the agent's tools
                run.agent_tools = select_spoken_tools(getattr(tool, "name", None) for tool in request.tools)
            section = self._section_of(run)
        return request.override(system_message=append_section(request.system_message, section)) if section else request

    @hook_config(can_jump_to=["model"])
    def before_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills that users and extensions ask for, and restore texts that were evicted."""
        run = Run(self._settings, state, runtime)
        self._note_own_catalog(run)
        return run.perform(before_model_call(run))

    @hook_config(can_jump_to=["model"])
    async def abefore_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills that users and extensions ask for, and restore texts that were evicted."""
        run = Run(self._settings, state, runtime)
        self._note_own_catalog(run)
        return await run.aperform(before_model_call(run))

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[ResponseT]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        run = Run(self._settings, request.state, request.runtime)
        return run.perform(call_model(request, run, self._section, self._tool_source, super().wrap_model_call, handler))

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[ResponseT]]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        run = Run(self._settings, request.state, request.runtime)
        return await run.aperform(
            call_model(request, run, self._section, self._tool_source, super().awrap_model_call, handler)
        )

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool that the extensions let pass; a call to a skill's tool that is hidden fails as unknown."""
        run = Run(self._settings, request.state, request.runtime, request.tool_call)
        return run.perform(call_tool(request, run, self._tool_source, handler))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool that the extensions let pass; a call to a skill's tool that is hidden fails as unknown."""
        run = Run(self._settings, request.state, request.runtime, request.tool_call)
        return await run.aperform(call_tool(request, run, self._tool_source, handler))

    def _note_own_catalog(self, run: Run) -> None:
        """Report that a subclass wrote a catalog of its own, which deepagents' class would use and this does not."""
        own = type(self)
        hooks = (own.before_agent, own.abefore_agent)
        if hooks == (SkillsMiddleware.before_agent, SkillsMiddleware.abefore_agent):
            return
        catalog = self._settings.cache.catalogs.recognize(run.thread.catalog)
        given = run.state.get("skills_metadata")
        if catalog is not None and given is not None and not catalog.is_copied_in(given):
            run.problems.append(problem("before_agent", "catalog-replaced"))
