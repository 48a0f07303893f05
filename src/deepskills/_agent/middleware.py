"""`SkillsMiddleware`: settings and hooks, each hook a few lines."""

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

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
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command

from deepskills._agent import host
from deepskills._agent.discovery import start
from deepskills._agent.ending import with_end_of_run
from deepskills._agent.extension import SkillExtension
from deepskills._agent.extra_tools import ExtraTools, check_names
from deepskills._agent.handover import handing_over
from deepskills._agent.memory import Memory
from deepskills._agent.model_call import ModelCall, open_call, section_in_use
from deepskills._agent.run import Run
from deepskills._agent.schema import with_own_keys
from deepskills._agent.services import Services, appended
from deepskills._agent.settings import (
    BackendFactory,
    LoadedStatus,
    Refresh,
    Settings,
    SourcesFactory,
    UnloadWhen,
    VisibilityRule,
)
from deepskills._agent.skill_tools import ToolSource, answer_from_context
from deepskills._agent.state import SkillsState, SkillsStateUpdate
from deepskills._agent.step import before_model_call
from deepskills._agent.tool_call import ToolCall, open_tool_call
from deepskills._agent.tools import SkillTools
from deepskills._agent.turn_calls import LOAD_TOOL, UNLOAD_TOOL
from deepskills._backend.calls import Plan
from deepskills._catalog.sources import parse_sources
from deepskills._files.paths import AssetDirectories
from deepskills._loading.budgets import Budgets
from deepskills._loading.tokens import count_tokens
from deepskills._prompt.section import Section
from deepskills._prompt.template import SKILLS_SYSTEM_PROMPT, check_template
from deepskills._types import SkillSource


class SkillsMiddleware(Services, DeepAgentsSkillsMiddleware[ContextT, ResponseT]):
    """Gives an agent skills: finds them, lists them, and lets the model load and unload them.

    Pass it to `create_deep_agent` or `create_agent` as middleware; it takes the place of deepagents' own class. In a
    graph of your own, use `before_agent` as a node, `model_messages` for what the model is sent, and `tools`.

    One instance serves any number of agents, sub-agents, threads and users; it holds nothing that belongs to a run.

    Args:
        backend: Where the files are: a backend, or a function of the runtime that gives one.
        sources: Backend paths that hold skill directories, each alone or as `(path, label)`; the later wins. Or a
            function of the runtime that gives them.
        system_prompt: The section's template with the slots `{skills_locations}`, `{skills_load_warnings}` and
            `{skills_list}`; `None` for no section.
        tools: Tools that are callable only while a skill that names them in `metadata.include_tools` is in use.
        max_depth: How many levels below a source skills may lie.
        resource_depth: How many levels of a skill's `scripts/`, `references/` and `assets/` are listed.
        max_loaded_skills: How many skills may be loaded at a time.
        max_loaded_tokens: How many tokens loaded skills may take together; `None` for no limit.
        refresh: `"thread"` to discover skills once per thread, `"run"` to look again at every run. Where `backend` or
            `sources` is a function, every run looks for itself.
        loaded_status: `"system_prompt"` marks loaded skills in the section; `"conversation"` leaves the section the
            same until the catalog changes, so that prompt caches hold.
        catalog_budget: How many characters the list of skills may take in the prompt; over it, hints go first, then
            descriptions shrink, never a name. `None` to cut nothing.
        extra_tools: Any of `search_skills`, `list_skill_assets`, `load_skill_asset` and `get_skill_script_path`, for
            agents without file tools or with large libraries.
        visibility: How visible skills are: a mapping from names or glob patterns to `"on"`, `"name-only"`,
            `"user-only"` or `"off"`, or a function `(skill, runtime)` that returns one of them.
        slash_commands: Whether a user's message that starts with `/name` starts that skill.
        unload_when: `"now"` to take an unloaded skill's text out of requests at once; `"cheap"` to leave it until the
            prefix changes anyway, so that prompt caches hold.
        asset_directories: Which files of a skill the extra tools list and read: `"all"`, or names of directories.
        token_counter: Counts the tokens of a text.
        extensions: Capabilities that plug in, each a `SkillExtension`, asked in this order.
        backend_timeout: Seconds after which a backend call counts as failed; `None` to wait.
        strict: Raise `SkillsError` when a source or a skill has an error, instead of going on without it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument has a value that it cannot have, or the template cannot be filled in.
    """

    state_schema: Any = SkillsState

    def __init__(  # noqa: PLR0913 - the options of a product, each by name
        self,
        *,
        backend: BackendProtocol | BackendFactory,
        sources: Sequence[SkillSource] | SourcesFactory,
        system_prompt: str | None = SKILLS_SYSTEM_PROMPT,
        tools: Sequence[BaseTool | Callable[..., Any]] | SkillToolResolver[ContextT] | None = None,
        max_depth: int = 1,
        resource_depth: int = 1,
        max_loaded_skills: int = 10,
        max_loaded_tokens: int | None = 50_000,
        refresh: Refresh = "thread",
        loaded_status: LoadedStatus = "system_prompt",
        catalog_budget: int | None = None,
        extra_tools: Sequence[str] = (),
        visibility: VisibilityRule | None = None,
        slash_commands: bool = False,
        unload_when: UnloadWhen = "now",
        asset_directories: AssetDirectories = "all",
        token_counter: Callable[[str], int] = count_tokens,
        extensions: Sequence[SkillExtension] = (),
        backend_timeout: float | None = None,
        strict: bool = False,
    ) -> None:
        if system_prompt is not None:
            check_template(system_prompt)
        plugged = host.checked(extensions)
        turned_on = [name for extension in plugged for name in extension.extra_tools]
        extra = check_names([*check_names(extra_tools), *turned_on])
        fixed = None if callable(sources) else parse_sources(sources)
        # deepagents' class judges the tools, then asks for what each model call has resolved.
        super().__init__(backend=backend, sources=[], system_prompt=None, tools=tools)  # type: ignore[arg-type]
        super().__init__(backend=backend, sources=[], system_prompt=None, tools=answer_from_context)  # type: ignore[arg-type]
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
            asset_directories=asset_directories,
            token_counter=token_counter,
            extensions=plugged,
            own_tools=frozenset({LOAD_TOOL, UNLOAD_TOOL, *extra}),
            memory=Memory(
                [key for extension in plugged for key in extension.frontmatter_keys],
                backend,
                for_search="search_skills" in extra or any(extension.ranks_skills for extension in plugged),
            ),
        )
        self.sources: list[str] = [source.path for source in fixed or ()]
        self.source_labels: list[str] = [source.label for source in fixed or ()]
        self.system_prompt_template = system_prompt
        self._extra_tools = extra
        self.tools: Sequence[BaseTool] = self._own_tools()
        self._section = None
        if system_prompt is not None:
            self._section = Section(
                system_prompt,
                shows_loaded=loaded_status == "system_prompt",
                budget=catalog_budget,
                searchable="search_skills" in self._extra_tools,
            )
        self.state_schema = with_own_keys(type(self).state_schema)
        with_end_of_run(self, plugged)
        for extension in plugged:
            extension.attach(self)

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillsMiddleware[ContextT, ResponseT]":
        """Return a copy that remembers nothing and whose tools work on its own settings."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for shared in (self._settings.backend, self._tool_source, self.state_schema, *self._settings.extensions):
            memo[id(shared)] = shared
        for key, value in vars(self).items():
            if key != "tools":
                setattr(twin, key, copy.deepcopy(value, memo))
        own = {tool.name: tool for tool in twin._own_tools()}  # noqa: SLF001 - of the same class
        twin.tools = [own.get(tool.name, tool) for tool in self.tools]
        for extension in twin._settings.extensions:  # noqa: SLF001 - of the same class
            extension.attach(twin)
        return twin

    def _own_tools(self) -> list[BaseTool]:
        extra = ExtraTools(self._settings)
        brought = [tool for extension in self._settings.extensions for tool in extension.tools(self)]
        return [*SkillTools(self._settings).all(), *(extra.make(name) for name in self._extra_tools), *brought]

    @property
    def name(self) -> str:
        """The slot this middleware takes, for subclasses too."""
        return "SkillsMiddleware"

    def before_agent(  # type: ignore[override]
        self,
        state: SkillsState,
        runtime: Runtime[ContextT],
        config: RunnableConfig | None = None,  # noqa: ARG002 - LangGraph passes it
    ) -> SkillsStateUpdate | None:
        """Discover skills, if this thread has none yet or is to look again."""
        return self._settings.perform(start(Run(self._settings, state, runtime)), runtime)

    async def abefore_agent(  # type: ignore[override]
        self,
        state: SkillsState,
        runtime: Runtime[ContextT],
        config: RunnableConfig | None = None,  # noqa: ARG002 - LangGraph passes it
    ) -> SkillsStateUpdate | None:
        """Discover skills, if this thread has none yet or is to look again."""
        return await self._settings.aperform(start(Run(self._settings, state, runtime)), runtime)

    def modify_request(self, request: ModelRequest[ContextT]) -> ModelRequest[ContextT]:
        """Append the skills section to the request's system message."""
        section = section_in_use.get()
        if section is None:
            section = self.skills_section(request.state)
        return request.override(system_message=appended(request.system_message, section)) if section else request

    @hook_config(can_jump_to=["model"])
    def before_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills that users and extensions ask for, and restore texts that were evicted."""
        return self._settings.perform(before_model_call(Run(self._settings, state, runtime)), runtime)

    @hook_config(can_jump_to=["model"])
    async def abefore_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills that users and extensions ask for, and restore texts that were evicted."""
        return await self._settings.aperform(before_model_call(Run(self._settings, state, runtime)), runtime)

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[ResponseT]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        model_call = self._settings.perform(self._opened(request), request.runtime)

        def call(changed: ModelRequest[ContextT]) -> ModelResponse[ResponseT]:
            return handler(self._settings.perform(model_call.outgoing(changed), request.runtime))

        with model_call.in_context():
            try:
                response = super().wrap_model_call(model_call.request(), call)
            except Exception as error:
                if not model_call.may_retry(error):
                    raise
                response = super().wrap_model_call(model_call.bare_request(), call)
        return model_call.finish(response)

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[ResponseT]]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        model_call = await self._settings.aperform(self._opened(request), request.runtime)

        async def call(changed: ModelRequest[ContextT]) -> ModelResponse[ResponseT]:
            return await handler(await self._settings.aperform(model_call.outgoing(changed), request.runtime))

        with model_call.in_context():
            try:
                response = await super().awrap_model_call(model_call.request(), call)
            except Exception as error:
                if not model_call.may_retry(error):
                    raise
                response = await super().awrap_model_call(model_call.bare_request(), call)
        return model_call.finish(response)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool that the extensions let pass; a call to a skill's tool that is hidden fails as unknown."""
        opened = self._settings.perform(open_tool_call(request, self._settings, self._tool_source), request.runtime)
        if not isinstance(opened, ToolCall):
            return opened
        with handing_over(request.tool_call["name"], request.state):
            result = handler(opened.request)
        return self._settings.perform(opened.reviewed(result), request.runtime)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool that the extensions let pass; a call to a skill's tool that is hidden fails as unknown."""
        plan = open_tool_call(request, self._settings, self._tool_source)
        opened = await self._settings.aperform(plan, request.runtime)
        if not isinstance(opened, ToolCall):
            return opened
        with handing_over(request.tool_call["name"], request.state):
            result = await handler(opened.request)
        return await self._settings.aperform(opened.reviewed(result), request.runtime)

    def _opened(self, request: ModelRequest[ContextT]) -> Plan[ModelCall[ContextT]]:
        run = Run(self._settings, request.state, request.runtime)
        return open_call(request, run, self._section, self._tool_source)
