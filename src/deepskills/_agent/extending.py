"""Calls the extensions: in their order, guarded, sync or async as the run is."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest
from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import Command

from deepskills._agent.extension import Answer, ModelCallReport, Refuse, SkillExtension, SkillLoad, ToolResult
from deepskills._agent.extension_run import ExtensionRun
from deepskills._agent.run import Run, Shelf
from deepskills._backend.calls import Ask, Consulted, Failed, Plan
from deepskills._catalog.entries import SkillEntry
from deepskills._errors import SkillsError
from deepskills._format.problems import problem
from deepskills._format.text import one_line

logger = logging.getLogger("deepskills")

_FAILED_CLOSED = "the extension {name} failed: {reason}"
_ONLY_ASYNC = "it has {method} in its async form alone; run the agent with ainvoke or astream"


def overrides(extension: SkillExtension, method: str) -> bool:
    """Whether an extension does something in a method, or in its async twin."""
    return any(_defines(extension, name) for name in (method, f"a{method}"))


def _defines(extension: SkillExtension, method: str) -> bool:
    return getattr(type(extension), method, None) is not getattr(SkillExtension, method, None)


_GIVES: Mapping[str, tuple[type, ...]] = {
    "visibility": (Mapping,),
    "before_load": (Refuse, Answer, NoneType),
    "change_text": (str,),
    "change_request": (ModelRequest,),
    "before_tool": (Refuse, NoneType),
    "after_tool": (ToolMessage, Command, NoneType),
    "search": (Sequence, NoneType),
}
"""What a method may return; where nothing is expected, all but a coroutine that nobody awaits."""


def ask(extension: SkillExtension, method: str, run: ExtensionRun, *given: Any) -> Plan[Any]:  # noqa: ANN401
    """Call one method of an extension, sync or async as the run is, and return what it gives.

    A result that means nothing is a failure as an exception is: logged, noted as a problem and returned as `Failed`.
    """
    [reply] = yield (
        Ask(
            lambda: _sync_method(extension, method)(*given, run),
            lambda: getattr(extension, f"a{method}")(*given, run),
        ),
    )
    if isinstance(reply, Consulted) and _is_usable(method, reply.value):
        return reply.value
    reason = reply.reason if isinstance(reply, Failed) else unusable(getattr(reply, "value", None))
    logger.error("The extension %s failed in %s: %s", run.name, method, one_line(reason))
    run._run.problems.append(  # noqa: SLF001 - the run that this one is about
        problem("extensions", "extension-failed", name=run.name, method=method, reason=reason)
    )
    return Failed(_FAILED_CLOSED.format(name=run.name, reason=reason))


def _sync_method(extension: SkillExtension, method: str) -> Callable[..., object]:
    """Return the method that a sync run calls; the default must not pass for a judgement that only the twin makes."""
    if _defines(extension, f"a{method}") and not _defines(extension, method):
        raise SkillsError(_ONLY_ASYNC.format(method=method))
    found: Callable[..., object] = getattr(extension, method)
    return found


def _is_usable(method: str, value: object) -> bool:
    return isinstance(value, _GIVES.get(method, (object,))) and not inspect.isawaitable(value)


def unusable(value: object) -> str:
    """Say what was returned that means nothing here, such as the coroutine of a method that should not be async."""
    if inspect.iscoroutine(value):
        value.close()
    return f"it returned {type(value).__name__}, which means nothing here"


def before_load(load: SkillLoad, run: Run) -> Plan[Refuse | Answer | None]:
    """Ask whether a load may happen; the first that refuses or answers decides. A failure refuses."""
    for extension in run.settings.extensions:
        if overrides(extension, "before_load"):
            decision = yield from ask(extension, "before_load", ExtensionRun(run, extension), load)
            if isinstance(decision, Failed):
                return Refuse(decision.reason)
            if isinstance(decision, Refuse | Answer):
                return decision
    return None


def change_text(load: SkillLoad, run: Run) -> Plan[str | Failed]:
    """Return the text that enters a request after every extension has seen it; a failure keeps it out."""
    text = load.text
    for extension in run.settings.extensions:
        if overrides(extension, "change_text"):
            given = SkillLoad(load.entry, load.arguments, load.trigger, text, load.tokens, load.resources, load.runtime)
            changed = yield from ask(extension, "change_text", ExtensionRun(run, extension), given)
            if isinstance(changed, Failed):
                return changed
            text = changed
    return text


def change_request(request: ModelRequest[Any], run: Run) -> Plan[ModelRequest[Any] | Failed]:
    """Return the request as the extensions change it; a failure leaves it, or stops it if the extension protects."""
    for extension in run.settings.extensions:
        if overrides(extension, "change_request"):
            changed = yield from ask(extension, "change_request", ExtensionRun(run, extension), request)
            if not isinstance(changed, Failed):
                request = changed
            elif extension.protective:
                return changed
    return request


@contextmanager
def traced(run: Run) -> Iterator[None]:
    """Let tracers see what extensions say of the model call that is made inside.

    LangChain calls the model with the configuration of the run that it finds in the context, so that is where metadata
    is added.
    """
    metadata: dict[str, Any] = {}
    for extension in run.settings.extensions:
        if overrides(extension, "call_metadata"):
            try:
                metadata.update(extension.call_metadata(ExtensionRun(run, extension)))
            except Exception:
                logger.exception("%s failed to describe a model call", type(extension).__name__)
    if not metadata:
        yield
        return
    config = var_child_runnable_config.get() or {}
    token = var_child_runnable_config.set({**config, "metadata": {**(config.get("metadata") or {}), **metadata}})
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def after_model(report: ModelCallReport, run: Run) -> Plan[None]:
    """Show the extensions a model call that has ended; a failure is logged and noted."""
    for extension in run.settings.extensions:
        if overrides(extension, "after_model"):
            yield from ask(extension, "after_model", ExtensionRun(run, extension), report)


def before_tool(request: ToolCallRequest, run: Run) -> Plan[Refuse | None]:
    """Ask whether a tool call may run; the first refusal wins. A failure refuses."""
    for extension in run.settings.extensions:
        if overrides(extension, "before_tool"):
            decision = yield from ask(extension, "before_tool", ExtensionRun(run, extension), request)
            if isinstance(decision, Failed):
                return Refuse(decision.reason)
            if isinstance(decision, Refuse):
                return decision
    return None


def after_tool(request: ToolCallRequest, result: ToolResult, run: Run) -> Plan[ToolResult | Refuse]:
    """Return a tool's result after every extension has seen it; a protecting one that fails withholds it."""
    for extension in run.settings.extensions:
        if overrides(extension, "after_tool"):
            changed = yield from ask(extension, "after_tool", ExtensionRun(run, extension), request, result)
            if not isinstance(changed, Failed):
                result = result if changed is None else changed
            elif extension.protective:
                return Refuse(changed.reason)
    return result


def searched_by_extensions(query: str, n: int, run: Run, shelf: Shelf) -> Plan[list[SkillEntry] | None]:
    """Return what the first extension that searches has found of the visible skills; `None` if none searches.

    Raises:
        SkillsError: If an extension that protects failed.
    """
    for extension in run.settings.extensions:
        if overrides(extension, "search"):
            names = yield from ask(extension, "search", ExtensionRun(run, extension, shelf), query, n)
            if isinstance(names, Failed) and extension.protective:
                raise SkillsError(names.reason)
            if isinstance(names, Sequence):
                by_name = {entry.name: entry for entry in shelf.visible}
                return [by_name[name] for name in names if name in by_name][:n]
    return None


def at(moment: str, run: Run) -> Plan[None]:
    """Let the extensions act at the start or the end of a run; after its end there is nothing left to protect.

    Raises:
        SkillsError: If an extension that protects failed at the start.
    """
    for extension in run.settings.extensions:
        if overrides(extension, moment):
            failed = yield from ask(extension, moment, ExtensionRun(run, extension))
            if isinstance(failed, Failed) and extension.protective and moment == "at_start":
                raise SkillsError(failed.reason)
