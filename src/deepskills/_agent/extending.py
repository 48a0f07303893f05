"""Calls the extensions: in their order, guarded, sync or async as the run is."""

from collections.abc import Sequence
from typing import Any

from langchain.agents.middleware.types import ModelRequest, ToolCallRequest

from deepskills._agent.asking import ask, overrides, unusable
from deepskills._agent.extension import Answer, Refuse, SkillLoad, ToolResult
from deepskills._agent.extension_run import ExtensionRun, first_refusal
from deepskills._agent.run import Run, Shelf
from deepskills._backend.calls import Failed, Plan
from deepskills._catalog.entries import SkillEntry
from deepskills._errors import SkillsError

__all__ = [
    "after_tool",
    "ask",
    "at",
    "before_load",
    "before_tool",
    "change_request",
    "change_text",
    "first_refusal",
    "overrides",
    "searched_by_extensions",
    "unusable",
]


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
            if isinstance(changed, Refuse):
                return Failed(changed.reason)
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


def before_tool(request: ToolCallRequest, run: Run) -> Plan[Refuse | None]:
    """Ask whether a tool call may run; the first refusal wins. A failure refuses."""
    return (yield from first_refusal("before_tool", run, request))


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
