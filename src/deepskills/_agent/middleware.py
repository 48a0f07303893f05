"""`SkillsMiddleware`: settings and hooks, each hook a few lines."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
)
from langchain_core.messages import AnyMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from deepskills._agent import session
from deepskills._agent.discovery import discovery, is_current
from deepskills._agent.extra_tools import ExtraTools, check_names
from deepskills._agent.pins import pin
from deepskills._agent.request import Composition, TextMemory, compose
from deepskills._agent.settings import BackendFactory, LoadedStatus, Refresh, Settings, SourcesFactory
from deepskills._agent.skill_tools import InUse, ToolSource, answer_from_context, needed_names, skills_in_use
from deepskills._agent.state import SkillsState, SkillsStateUpdate
from deepskills._agent.tools import SkillTools, preparation
from deepskills._agent.turn import Turn, failed_call, hidden_tool, tell, with_tool
from deepskills._backend.plan import Plan
from deepskills._catalog.sources import Source, parse_sources
from deepskills._loading.decisions import Budgets
from deepskills._prompt.section import Section, SectionInput
from deepskills._prompt.wording import SKILLS_SYSTEM_PROMPT, check_template
from deepskills._types import SkillSource


class SkillsMiddleware(DeepAgentsSkillsMiddleware[ContextT, ResponseT]):
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
        refresh: `"thread"` to discover skills once a thread, `"run"` to look again at every run. Where `backend` or
            `sources` is a function, every run looks for itself.
        loaded_status: `"system_prompt"` marks loaded skills in the section; `"conversation"` leaves the section the
            same until the catalog changes, so that prompt caches hold.
        catalog_budget: How many characters the list of skills may take in the prompt; over it, hints go first, then
            descriptions shrink, never a name. `None` to cut nothing.
        extra_tools: Any of `search_skills`, `list_skill_assets`, `load_skill_asset` and `get_skill_script_path`, for
            agents without file tools or with large libraries.
        backend_timeout: Seconds after which a backend call counts as failed; `None` to wait.
        strict: Raise `SkillsError` when a source or a skill has an error, instead of going on without it.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If an argument has a value that it cannot have, or the template cannot be filled in.
    """

    state_schema = SkillsState

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
        backend_timeout: float | None = None,
        strict: bool = False,
    ) -> None:
        if system_prompt is not None:
            check_template(system_prompt)
        fixed = None if callable(sources) else parse_sources(sources)
        # Made only to have deepagents' class judge the tools as it would.
        DeepAgentsSkillsMiddleware(backend=backend, sources=[], system_prompt=None, tools=tools)  # type: ignore[arg-type]
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
        )
        self.sources: list[str] = [source.path for source in fixed or ()]
        self.source_labels: list[str] = [source.label for source in fixed or ()]
        self.system_prompt_template = system_prompt
        self._memory = TextMemory()
        self._extra_tools = check_names(extra_tools)
        self.tools: Sequence[BaseTool] = self._own_tools()
        self._section = None
        if system_prompt is not None:
            self._section = Section(
                system_prompt,
                shows_loaded=loaded_status == "system_prompt",
                budget=catalog_budget,
                searchable="search_skills" in extra_tools,
            )

    def __deepcopy__(self, memo: dict[int, object]) -> "SkillsMiddleware[ContextT, ResponseT]":
        """Return a copy that remembers nothing and whose tools work on its own settings."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for shared in (self._settings.backend, self._tool_source):
            memo[id(shared)] = shared
        for key, value in vars(self).items():
            if key != "tools":
                setattr(twin, key, copy.deepcopy(value, memo))
        own = {tool.name: tool for tool in twin._own_tools()}  # noqa: SLF001 - of the same class
        twin.tools = [own.get(tool.name, tool) for tool in self.tools]
        return twin

    def _own_tools(self) -> list[BaseTool]:
        extra = ExtraTools(self._settings)
        return [*SkillTools(self._settings, self._memory).all(), *(extra.make(name) for name in self._extra_tools)]

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
        if is_current(state, self._settings):
            return None
        plan = discovery(state, runtime, self._settings)
        return self._settings.perform(plan, runtime)

    async def abefore_agent(  # type: ignore[override]
        self,
        state: SkillsState,
        runtime: Runtime[ContextT],
        config: RunnableConfig | None = None,  # noqa: ARG002 - LangGraph passes it
    ) -> SkillsStateUpdate | None:
        """Discover skills, if this thread has none yet or is to look again."""
        if is_current(state, self._settings):
            return None
        plan = discovery(state, runtime, self._settings)
        return await self._settings.aperform(plan, runtime)

    def skills_section(self, state: Mapping[str, Any]) -> str:
        """Return the skills section for a system prompt, as it stands in `state`; empty if it is left out."""
        if self._section is None:
            return ""
        return self._section.render(
            SectionInput(
                skills=state.get("skills_metadata") or [],
                sources=self._shown_sources(state),
                errors=state.get("skills_load_errors") or [],
                loaded=state.get("skills_loaded") or [],
                resources=state.get("skill_resources") or {},
            )
        )

    def _shown_sources(self, state: Mapping[str, Any]) -> Sequence[Source]:
        return session.recorded_sources(state) if callable(self._settings.sources) else self._settings.sources

    def modify_request(self, request: ModelRequest[ContextT]) -> ModelRequest[ContextT]:
        """Append the skills section to the request's system message."""
        section = self.skills_section(request.state)
        if not section:
            return request
        return request.override(system_message=_appended(request.system_message, section))

    def before_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills named in `pinned_skills`."""
        plan = pin(state, preparation(self._settings, runtime), self._memory, runtime.stream_writer)
        return self._settings.perform(plan, runtime)

    async def abefore_model(  # type: ignore[override]
        self, state: SkillsState, runtime: Runtime[ContextT]
    ) -> dict[str, Any] | None:
        """Load the skills named in `pinned_skills`."""
        plan = pin(state, preparation(self._settings, runtime), self._memory, runtime.stream_writer)
        return await self._settings.aperform(plan, runtime)

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[ResponseT]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        plan = self._composition(request.messages, request.state, request.runtime)
        composed = self._settings.perform(plan, request.runtime)
        use = self._use(composed, request)
        names = needed_names(use, request.tools)
        turn = Turn(request, composed, use, {n: self._tool_source.resolve(n, request.runtime) for n in names})

        def call(changed: ModelRequest[ContextT]) -> ModelResponse[ResponseT]:
            return handler(turn.original(changed))

        with turn.resolving():
            try:
                response = super().wrap_model_call(turn.request(), call)
            except Exception as error:
                if not turn.may_retry(error):
                    raise
                response = super().wrap_model_call(turn.bare_request(), call)
        return turn.finish(response)

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[ResponseT]]],
    ) -> ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]:
        """Show the model its skills: the section, the text of each loaded one, and the tools of those in use."""
        plan = self._composition(request.messages, request.state, request.runtime)
        composed = await self._settings.aperform(plan, request.runtime)
        use = self._use(composed, request)
        names = needed_names(use, request.tools)
        found = await asyncio.gather(*(self._tool_source.aresolve(name, request.runtime) for name in names))
        turn = Turn(request, composed, use, dict(zip(names, found, strict=True)))

        async def call(changed: ModelRequest[ContextT]) -> ModelResponse[ResponseT]:
            return await handler(turn.original(changed))

        with turn.resolving():
            try:
                response = await super().awrap_model_call(turn.request(), call)
            except Exception as error:
                if not turn.may_retry(error):
                    raise
                response = await super().awrap_model_call(turn.bare_request(), call)
        return turn.finish(response)

    def _use(self, composed: Composition, request: ModelRequest[ContextT]) -> InUse:
        state = composed.seen_in(request.state)
        return skills_in_use(composed.messages, state.get("skills_metadata") or (), state.get("skills_loaded") or ())

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool of a skill in use; a call to one that is hidden fails as an unknown tool."""
        name = hidden_tool(request)
        if name is None:
            return handler(request)
        found = self._tool_source.resolve(name, get_runtime())
        return failed_call(request, found) or handler(with_tool(request, found))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a tool of a skill in use; a call to one that is hidden fails as an unknown tool."""
        name = hidden_tool(request)
        if name is None:
            return await handler(request)
        found = await self._tool_source.aresolve(name, get_runtime())
        return failed_call(request, found) or await handler(with_tool(request, found))

    def model_messages(self, state: Mapping[str, Any], runtime: object) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, and the state update that goes with it.

        The messages are those of `state`, with the skills section in front as a system message, every loaded skill's
        text once and no unloaded skill's.
        """
        composed = self._settings.perform(self._composition(state["messages"], state, runtime), runtime)
        return self._for_own_graph(composed, state, runtime)

    async def amodel_messages(
        self, state: Mapping[str, Any], runtime: object
    ) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, without blocking; see `model_messages`."""
        composed = await self._settings.aperform(self._composition(state["messages"], state, runtime), runtime)
        return self._for_own_graph(composed, state, runtime)

    def _for_own_graph(
        self, composed: Composition, state: Mapping[str, Any], runtime: object
    ) -> tuple[list[AnyMessage], dict[str, Any]]:
        tell(composed, getattr(runtime, "stream_writer", lambda _event: None))
        messages = composed.messages
        section = self.skills_section(composed.seen_in(state))
        if not section:
            return messages, composed.update
        first = messages[0] if messages else None
        if isinstance(first, SystemMessage):
            return [_appended(first, section), *messages[1:]], composed.update
        return [SystemMessage(section), *messages], composed.update

    def _composition(
        self, messages: Sequence[AnyMessage], state: Mapping[str, Any], runtime: object
    ) -> Plan[Composition]:
        how = preparation(self._settings, runtime)
        return compose(messages, state, self._settings.budgets.tokens, self._memory, how)


def _appended(message: SystemMessage | None, section: str) -> SystemMessage:
    blocks: list[Any] = list(message.content_blocks) if message is not None else []
    text = f"\n\n{section}" if blocks else section
    return SystemMessage(content_blocks=[*blocks, {"type": "text", "text": text}])
