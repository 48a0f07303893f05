"""What the middleware offers beside its hooks: for graphs of one's own, menus, and extensions."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, SystemMessage

from deepskills._agent import host
from deepskills._agent.extension import LoadedSkill, SkillExtension, SkillRun
from deepskills._agent.model_call import PreparedCall, prepare_call, problems_update, section_text, tell_composed
from deepskills._agent.run import Run
from deepskills._agent.settings import Settings
from deepskills._agent.updates import merged
from deepskills._agent.visibility import shelf_of
from deepskills._prompt.section import Section


class Services:
    """Methods of `SkillsMiddleware` that users and extensions call themselves."""

    _settings: Settings
    _section: Section | None

    def skills_section(self, state: Mapping[str, Any]) -> str:
        """Return the skills section for a system prompt, as it stands in `state`; empty if it is left out."""
        run = Run(self._settings, state, host.current_runtime())
        self._settings.perform(shelf_of(run), run.runtime)
        return section_text(self._section, run, state)

    def slash_commands_for(self, state: Mapping[str, Any], runtime: object = None) -> list[dict[str, str]]:
        """Return the slash commands that a menu may offer: `name`, `description` and `argument_hint` of each.

        Outside a run, functions of the runtime (`visibility`, `sources`, `backend`) are given `runtime`.
        """
        run = Run(self._settings, state, runtime or host.current_runtime())
        return host.slash_menu(self._settings.perform(shelf_of(run), run.runtime))

    async def aslash_commands_for(self, state: Mapping[str, Any], runtime: object = None) -> list[dict[str, str]]:
        """Return the slash commands that a menu may offer, without blocking; see `slash_commands_for`."""
        run = Run(self._settings, state, runtime or host.current_runtime())
        return host.slash_menu(await self._settings.aperform(shelf_of(run), run.runtime))

    def model_messages(self, state: Mapping[str, Any], runtime: object) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, and the state update that goes with it.

        The messages are those of `state`, with the skills section in front as a system message, every loaded skill's
        text once and no unloaded skill's.
        """
        run = Run(self._settings, state, runtime)
        return _for_own_graph(self._settings.perform(prepare_call(state["messages"], run, self._section), runtime), run)

    async def amodel_messages(
        self, state: Mapping[str, Any], runtime: object
    ) -> tuple[list[AnyMessage], dict[str, Any]]:
        """Return what to send to the model from a graph of your own, without blocking; see `model_messages`."""
        run = Run(self._settings, state, runtime)
        plan = prepare_call(state["messages"], run, self._section)
        return _for_own_graph(await self._settings.aperform(plan, runtime), run)

    def run_for(self, extension: SkillExtension, state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to, for an extension."""
        run = Run(self._settings, state, runtime)
        self._settings.perform(shelf_of(run), runtime)
        return host.extension_run(run, extension)

    async def arun_for(self, extension: SkillExtension, state: Mapping[str, Any], runtime: Any) -> SkillRun:  # noqa: ANN401
        """Return the run that a tool call or another hook belongs to, for an extension, without blocking."""
        run = Run(self._settings, state, runtime)
        await self._settings.aperform(shelf_of(run), runtime)
        return host.extension_run(run, extension)

    def loaded_in(self, state: Mapping[str, Any]) -> Sequence[LoadedSkill]:
        """Return the skills in use, without I/O: only those whose files this process has read."""
        return host.loaded_in(self._settings, state)


def _for_own_graph(prepared: PreparedCall, run: Run) -> tuple[list[AnyMessage], dict[str, Any]]:
    composed = prepared.composed
    tell_composed(composed, run)
    update = merged(composed.update, run.collected, problems_update(run))
    messages = composed.messages
    if not prepared.section:
        return messages, update
    first = messages[0] if messages else None
    if isinstance(first, SystemMessage):
        return [appended(first, prepared.section), *messages[1:]], update
    return [SystemMessage(prepared.section), *messages], update


def appended(message: SystemMessage | None, section: str) -> SystemMessage:
    """Return a system message with the section at its end."""
    blocks: list[Any] = list(message.content_blocks) if message is not None else []
    text = f"\n\n{section}" if blocks else section
    return SystemMessage(content_blocks=[*blocks, {"type": "text", "text": text}])
