"""Asks one extension by one of its methods: sync or async as the run is, and never so that an exception escapes."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Protocol

from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from deepskills._agent.extension import Answer, Refuse, SkillExtension
from deepskills._agent.run import Run
from deepskills._backend.calls import Ask, Consulted, Failed, Plan
from deepskills._errors import SkillsError
from deepskills._format.problems import problem
from deepskills._format.text import one_line

logger = logging.getLogger("deepskills")


class OwnRun(Protocol):
    """A run as one extension sees it."""

    name: str
    _run: Run


_FAILED_CLOSED = "the extension {name} failed: {reason}"
_ONLY_ASYNC = "it has {method} in its async form alone; run the agent with ainvoke or astream"


def overrides(extension: SkillExtension, method: str) -> bool:
    """Whether an extension does something in a method, or in its async twin."""
    return any(_defines(extension, name) for name in (method, f"a{method}"))


def _defines(extension: SkillExtension, method: str) -> bool:
    return getattr(type(extension), method, None) is not getattr(SkillExtension, method, None)


_GIVES: Mapping[str, tuple[type, ...]] = {
    "visibility": (Mapping,),
    "before_read": (Refuse, NoneType),
    "before_load": (Refuse, Answer, NoneType),
    "before_file": (Refuse, NoneType),
    "change_text": (str, Refuse),
    "change_request": (ModelRequest,),
    "before_tool": (Refuse, NoneType),
    "after_tool": (ToolMessage, Command, NoneType),
    "search": (Sequence, NoneType),
}
"""What a method may return; where nothing is expected, all but a coroutine that nobody awaits."""


def ask(extension: SkillExtension, method: str, run: OwnRun, *given: Any) -> Plan[Any]:  # noqa: ANN401
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
