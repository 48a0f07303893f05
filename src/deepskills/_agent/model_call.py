"""One model call with skills: the request that goes out, a second try, and what comes back into state."""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic

from langchain.agents.middleware.types import ContextT, ExtendedModelResponse, ModelRequest, ModelResponse, ResponseT
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AnyMessage, SystemMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from deepskills._agent.composing import Composition, compose, is_summary
from deepskills._agent.discovery import log_problems
from deepskills._agent.events import skill_event, tell
from deepskills._agent.extending import after_model, change_request, traced, unusable
from deepskills._agent.extension import ModelCallReport
from deepskills._agent.run import Run, usable
from deepskills._agent.skill_tools import (
    DISCLOSED,
    InUse,
    Resolution,
    ToolSource,
    acceptance,
    bound,
    name_of,
    needed_names,
    resolved,
    resolved_tools,
    skills_in_use,
)
from deepskills._agent.turn_calls import LOAD_TOOL
from deepskills._agent.updates import fingerprint, merged
from deepskills._agent.visibility import shelf_of
from deepskills._backend.calls import Failed, Plan
from deepskills._backend.work import apart
from deepskills._errors import SkillsError
from deepskills._format.problems import problem
from deepskills._format.text import one_line
from deepskills._prompt.catalog_list import LIST_WITHHELD
from deepskills._prompt.section import Section, SectionInput
from deepskills._types import ResourceMetadata

logger = logging.getLogger("deepskills")

_OVERFLOW_SIGNS = (
    *(f"context{gap}{noun}" for gap in (" ", "_", "") for noun in ("length", "window", "size", "limit")),
    "prompt is too long",
    "tokens exceed",
)
_SUMMARIZED = "_summarization_event"
"""State key of deepagents' summarization: what it has summed up, in requests alone."""

_OVERFLOW_STATUS = frozenset({400, 413, 422})

section_in_use: ContextVar[str | None] = ContextVar("deepskills_section", default=None)
"""The skills section of the model call that is being made, rendered before deepagents' class asks for it."""


def prepare_call(messages: Sequence[AnyMessage], run: Run, section: Section | None) -> Plan["PreparedCall"]:
    """Compose the messages of a request, and find out what its section and tools depend on."""
    shelf = yield from shelf_of(run)
    prefix: dict[str, str] = {}
    changes = False
    if run.settings.unload_when == "cheap":
        prefix = _prefix(messages, (yield from _section(section, run, run.state)))
        before = run.thread.section("prefix")
        changes = bool(before) and before != prefix
    composed = yield from compose(messages, run, prefix_changes=changes)
    if prefix and run.thread.section("prefix") != prefix:
        composed.update.update(merged(composed.update, {"skills_context": {"prefix": prefix}}))
    use = skills_in_use(composed.messages, usable(run), run.thread.standing.without(composed.lost).loaded)
    text = yield from _section(section, run, composed.seen_in(run.state))
    return PreparedCall(composed, use, text, bool(shelf.visible))


def _section(section: Section | None, run: Run, state: Mapping[str, Any]) -> Plan[str]:
    """Return the skills section; a large one is rendered apart from the event loop."""
    return (yield from apart(lambda: section_text(section, run, state), len(run.known_shelf.catalog.entries)))


def _prefix(messages: Sequence[AnyMessage], section: str) -> dict[str, str]:
    """Return what a request begins with: the section, and a summary if there is one.

    deepagents' summaries have no id, and two may have the same text: the message that follows tells them apart.
    """
    begins = list(itertools.islice((item for item in messages if not isinstance(item, SystemMessage)), 2))
    summary = ""
    if begins and is_summary(begins[0]):
        summary = " ".join(message.id or fingerprint(str(message.text)) for message in begins)
    return {"section": fingerprint(section), "summary": summary}


def section_text(section: Section | None, run: Run, state: Mapping[str, Any]) -> str:
    """Return the skills section as a run shows it; empty if it is left out."""
    if section is None:
        return ""
    shelf, settings = run.known_shelf, run.settings
    loaded = [name for name in state.get("skills_loaded") or () if isinstance(name, str)]
    resources: Mapping[str, list[ResourceMetadata]] = run.thread.resources
    errors = state.get("skills_load_errors")
    sources = settings.fixed_sources if settings.fixed_sources is not None else shelf.catalog.sources
    return section.render(
        SectionInput(
            catalog=shelf.catalog,
            sources=shelf.sources_to_show(sources),
            errors=[error for error in errors if isinstance(error, str)] if isinstance(errors, list) else [],
            loaded={name: resources.get(name, []) for name in loaded},
            hidden=shelf.hidden,
            replaced_list=_replaced_list(run),
        )
    )


def _replaced_list(run: Run) -> str | None:
    """Return what an extension shows in place of the list of skills."""
    for extension in run.settings.extensions:
        try:
            text = extension.catalog_list(run.known_shelf.visible)
            if text is not None and not isinstance(text, str):
                raise TypeError(unusable(text))  # noqa: TRY301 - a failure like any other
        except Exception as error:
            logger.exception("%s failed to replace the list of skills", type(extension).__name__)
            name, reason = type(extension).__name__, f"{type(error).__name__}: {error}"
            run.problems.append(
                problem("extensions", "extension-failed", name=name, method="catalog_list", reason=reason)
            )
            text = LIST_WITHHELD if extension.protective else None
        if text is not None:
            return text
    return None


class PreparedCall:
    """What a model call needs to know of skills before its tools are resolved."""

    def __init__(self, composed: Composition, use: InUse, section: str, has_visible_skills: bool) -> None:  # noqa: FBT001
        self.composed = composed
        self.use = use
        self.section = section
        self.has_visible_skills = has_visible_skills


def open_call(
    request: ModelRequest[ContextT], run: Run, section: Section | None, source: ToolSource
) -> Plan["ModelCall[ContextT]"]:
    """Prepare one model call: its messages, its section, and the tools of the skills in use."""
    if isinstance(run.state.get(_SUMMARIZED), dict) and not any(map(is_summary, request.messages[:2])):
        run.problems.append(problem("middleware", "middleware-order"))
    prepared = yield from prepare_call(request.messages, run, section)
    names = needed_names(prepared.use, request.tools)
    return ModelCall(request, run, prepared, (yield from resolved(source, names, request.runtime)))


class ModelCall(Generic[ContextT]):
    """One model call."""

    def __init__(
        self,
        request: ModelRequest[ContextT],
        run: Run,
        prepared: PreparedCall,
        resolutions: Mapping[str, Resolution],
    ) -> None:
        self._request = request
        self._run = run
        self._composed = prepared.composed
        self._use = prepared.use
        self._section = prepared.section
        self._resolved = {name: found.tools for name, found in resolutions.items()}
        tools, self._record = bound(request.tools, prepared.use, self._resolved, acceptance(request.model))
        if not prepared.has_visible_skills and run.known_shelf.catalog.entries:
            tools = [item for item in tools if name_of(item) != LOAD_TOOL]
        self._tools = tools

    @contextmanager
    def in_context(self) -> Iterator[None]:
        """Answer deepagents' questions for tools and for the section from what was found for this call."""
        tools, section = resolved_tools.set(self._resolved), section_in_use.set(self._section)
        try:
            yield
        finally:
            resolved_tools.reset(tools)
            section_in_use.reset(section)

    def request(self) -> ModelRequest[ContextT]:
        """Return the request with every loaded skill's text and tools."""
        state: Any = {**self._request.state, "skills_metadata": self._use.shown_to_deepagents()}
        return self._request.override(messages=self._composed.messages, tools=self._tools, state=state)

    def bare_request(self) -> ModelRequest[ContextT]:
        """Return the request without the texts that were put back; from now on the call is one without them."""
        self._composed = self._composed.without_put_back()
        return self.request()

    def may_retry(self, error: Exception) -> bool:
        """Whether the model had no room for what was put back."""
        return self._composed.bare is not None and is_overflow(error)

    def outgoing(self, request: ModelRequest[ContextT]) -> Plan[ModelRequest[ContextT]]:
        """Return the request as it goes out: the state as it is, and what extensions change.

        Raises:
            SkillsError: If an extension that protects failed.
        """
        request = request.override(state=self._request.state)
        if not self._run.settings.extensions:
            return request
        before = {name_of(item) for item in self._request.tools}
        self._run.skill_tools = frozenset(
            name for item in request.tools if (name := name_of(item)) is not None and name not in before
        )
        changed = yield from change_request(request, self._run)
        if isinstance(changed, Failed):
            raise SkillsError(changed.reason)
        return changed

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Let tracers see the skills of the call that is made inside, as extensions describe them."""
        if not self._run.settings.extensions:
            yield
            return
        with traced(self._run):
            yield

    def ended(
        self,
        request: ModelRequest[ContextT],
        response: ModelResponse[Any] | ExtendedModelResponse[Any] | None,
        error: Exception | None = None,
    ) -> Plan[None]:
        """Show the extensions how the call ended; one that was interrupted has not."""
        if self._run.settings.extensions and not isinstance(error, GraphBubbleUp):
            inner = response.model_response if isinstance(response, ExtendedModelResponse) else response
            composed = self._composed
            report = ModelCallReport(request, inner, error, composed.shown, frozenset(composed.reattached))
            yield from after_model(report, self._run)

    def finish(
        self, response: ModelResponse[ResponseT] | ExtendedModelResponse[ResponseT]
    ) -> ExtendedModelResponse[ResponseT]:
        """Return the response with what this call changes in state, and tell what became of lost texts."""
        tell_composed(self._composed, self._run)
        command = response.command if isinstance(response, ExtendedModelResponse) else None
        before = command.update if command is not None and isinstance(command.update, dict) else {}
        record = dict(sorted({**before.get(DISCLOSED, {}), **self._record}.items()))
        inner = response.model_response if isinstance(response, ExtendedModelResponse) else response
        update = merged(before, self._composed.update, self._run.collected, problems_update(self._run))
        return ExtendedModelResponse(model_response=inner, command=Command(update={**update, DISCLOSED: record}))


def problems_update(run: Run) -> dict[str, Any]:
    """Return the update that adds what was found on the way to the thread's problems, and log it."""
    malformed = [problem("state", "state-malformed", key=key) for key in dict.fromkeys(run.thread.malformed)]
    run.problems = [*malformed, *run.problems]
    fresh = run.new_problems()
    if not fresh:
        return {}
    log_problems(fresh)
    return {"skills_problems": [*run.thread.problems, *fresh]}


def tell_composed(composed: Composition, run: Run) -> None:
    """Log and stream which texts were put back, and which could not be recovered."""
    extensions = run.settings.extensions
    for name, record in composed.reattached.items():
        logger.info("Put the text of skill %r back into the request", name)
        tell(skill_event("reattached", name, "system", record, tokens=record["tokens"]), run.runtime, extensions)
    for name, reason in composed.lost.items():
        logger.error("Unloaded skill %r: its text was lost and its file could not be read: %s", name, one_line(reason))
        before = run.thread.standing.records.get(name)
        tell(skill_event("unloaded", name, "system", before, reason=reason), run.runtime, extensions)


def is_overflow(error: Exception) -> bool:
    """Whether a model refused a request for its length."""
    if isinstance(error, ContextOverflowError):
        return True
    text = str(error).lower()
    return getattr(error, "status_code", None) in _OVERFLOW_STATUS and any(sign in text for sign in _OVERFLOW_SIGNS)
