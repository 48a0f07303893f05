"""A chat model that follows a script, states made by hand, and the gate, for tests without a key or a network.

Only the model is scripted. Agents, backends and checkpointers in a test are real, and `Request` shows what the model
was sent, which is what a test of skills usually wants to know.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast
from uuid import uuid4

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from pydantic import Field

from deepskills._errors import SkillsError
from deepskills._middleware.middleware import SkillsMiddleware
from deepskills._middleware.state import apply_update
from deepskills._types import SkillProblem

__all__ = ["Reply", "ReplyFunction", "Request", "ScriptedChatModel", "call_tools", "gate_findings", "skills_state"]

ReplyFunction: TypeAlias = Callable[[list[BaseMessage]], AIMessage | str]
"""A function of the messages that the model was sent, to what it says."""

Reply: TypeAlias = AIMessage | str | ReplyFunction
"""What the model says: a message, a text, or a function that gives one."""


@dataclass(frozen=True)
class Request:
    """What the model was sent in one call."""

    messages: list[BaseMessage]
    tools: list[str] = field(default_factory=list)

    @property
    def system(self) -> str:
        """The text of the system messages."""
        return "\n".join(str(message.text) for message in self.messages if message.type == "system")

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n".join(str(message.text) for message in self.messages)


def call_tools(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    """Return a message in which the model calls tools, each given as name and arguments."""
    tool_calls = [{"name": name, "args": args, "id": f"call-{uuid4().hex[:12]}"} for name, args in calls]
    return AIMessage(content=text, tool_calls=tool_calls)


def _tool_name(tool: dict[str, Any] | type | Callable[..., Any] | BaseTool) -> str:
    """Return a tool's name; a provider's own tool without one goes by its type. No schema is made: that takes long."""
    if isinstance(tool, BaseTool):
        return tool.name
    if isinstance(tool, dict) and not {"function", "name", "title"} & tool.keys():
        return str(tool.get("type") or next(iter(tool), ""))
    converted = convert_to_openai_tool(tool)
    return str(converted["function"]["name"] if "function" in converted else converted["name"])


class ScriptedChatModel(BaseChatModel):
    """Answers each call with the next reply of its script, and remembers what it was sent in `requests`.

    When the script is over it says `fallback`, so that a run ends; set that to something of your own to tell. In place
    of a script it takes one function that answers every call.
    """

    replies: list[Any] | ReplyFunction = Field(repr=False)  # LangChain asks for the model's `repr` at every call
    """The script, one `Reply` per call; or a function of the messages that answers every call."""

    fallback: str = "Done."
    """What the model says when the script has ended."""

    requests: list[Request] = Field(default_factory=list, repr=False)
    """What the model was sent, call by call."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with `tools` to choose from."""
        return self.bind(tools=[_tool_name(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - LangChain's signature
        **kwargs: Any,
    ) -> ChatResult:
        # Taken before the request is recorded, so that replies and requests count alike.
        position = len(self.requests)
        self.requests.append(Request(list(messages), list(kwargs.get("tools", []))))
        if callable(self.replies):
            reply: Any = self.replies
        else:
            reply = self.replies[position] if position < len(self.replies) else self.fallback
        message = reply(messages) if callable(reply) else reply
        if isinstance(message, str):
            message = AIMessage(message)
        return ChatResult(generations=[ChatGeneration(message=message.model_copy(update={"id": f"reply-{uuid4()}"}))])


def skills_state(
    middleware: SkillsMiddleware[Any, Any],
    loaded: Sequence[str | Mapping[str, str]] = (),
    *,
    messages: Sequence[BaseMessage | str] = (),
    context: object = None,
    **state: object,
) -> dict[str, Any]:
    """Return the state of a thread in which skills were found and some are loaded, as a unit test wants it.

    It is made by the middleware's own hooks, so that everything private in it is as in an agent. Give it to a hook, to
    `modify_request`, or to a tool by its `ToolRuntime`, and look at what they return.

    Args:
        middleware: The middleware under test; its backend must work outside a run, which `StateBackend` does not.
        loaded: Names of skills that are loaded, in this order, each alone or as `{"name": ..., "arguments": ...}`.
        messages: What the conversation begins with; the texts of loaded skills follow.
        context: What the runtime has as its context, for functions of the runtime.
        state: Further keys of the state.

    Raises:
        SkillsError: If a skill cannot be loaded; the message has the problems.
    """
    runtime: Any = Runtime(context=context)
    given: dict[str, Any] = {**state, "messages": add_messages([], cast("Any", [*messages]))}
    given = apply_update(given, middleware.before_agent(given, runtime) or {})  # type: ignore[arg-type]
    for skill in loaded:
        given = _after(given, middleware.before_model({**given, "pinned_skills": [skill]}, runtime) or {})  # type: ignore[typeddict-item]
        name = skill["name"] if isinstance(skill, Mapping) else skill
        if name not in given["skills_loaded"]:
            reasons = "; ".join(problem["message"] for problem in given.get("skills_problems", ()))
            raise SkillsError(f"{name} could not be loaded. {reasons}")
    return given


def _after(state: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state after an update, messages included."""
    messages = add_messages(list(state["messages"]), list(update.get("messages", ())))
    return {**apply_update(state, {**update, "messages": messages}), "pinned_skills": []}


def gate_findings(*sources: str | os.PathLike[str], base: str | None = None) -> list[SkillProblem]:
    """Return what `deepskills gate` finds in directories of skills; an empty list if they pass.

    Problems, references to missing files, and requests of `evals/triggers.json` that another skill would take. It needs
    the extra `cli`, and no model.

    Args:
        sources: Directories that hold skill directories; without any, those that the command line looks into.
        base: A commit, such as `"origin/main"`: then only what the working tree does worse than it is returned.

    Raises:
        SkillsError: If there is no such directory or commit, or no skill at all, so that nothing was checked.
        ImportError: If the extra is not installed.
    """
    try:
        from deepskills._cli.commands.gate import run_gate  # noqa: PLC0415 - the extra may not be there
    except ImportError as error:
        raise ImportError(
            f"gate_findings needs {error.name}. Install it with: pip install 'deepskills[cli]'", name=error.name
        ) from error
    report = run_gate(base, [os.fspath(source) for source in sources])
    # A test that looks in the wrong place must not pass.
    if not report["skills"] and not report["findings"]:
        raise SkillsError("There is no skill to check. Name the directory that holds the skills' own directories.")
    return report["findings"]
