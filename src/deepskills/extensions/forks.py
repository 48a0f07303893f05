"""Runs skills with `context: fork` as the task of a sub-agent, instead of loading them into the conversation.

The sub-agent sees the skill's text and nothing of the conversation; the conversation gets its last message, and what it
wrote to shared state, such as files. Only a call to `load_skill` can wait for a sub-agent. A slash command or a pin
comes before the model has made any call, so it is answered with a request to make one.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn
from uuid import uuid4
from weakref import WeakSet

from langchain.agents.middleware.types import ToolCallRequest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from deepskills import (
    Answer,
    Refuse,
    SkillEntry,
    SkillExtension,
    SkillForked,
    SkillLoad,
    SkillRun,
    SkillsMiddleware,
    SkillsState,
)
from deepskills._prompt import messages
from deepskills._skillmd.names import find_meant_name
from deepskills._skillmd.text import harmless_body, one_line
from deepskills.extensions._shared import MaybeAwaitable

logger = logging.getLogger("deepskills")

GENERAL_PURPOSE = "general-purpose"
"""The type of sub-agent for a skill that names none."""

MAX_DEPTH = 3
"""How deep forks may be nested."""

MAX_REASON_CHARACTERS = 500

_CHAIN_KEY = "__deepskills_forks"
"""The key in a run's configuration for the running forks, which also reaches graphs that run elsewhere."""

_NOT_SHARED = frozenset({*SkillsState.__annotations__, "todos", "rubric", "hitl_edited_tool_calls"})
"""State that belongs to one conversation: its messages, skills and to-dos, and a human's edits of its calls."""

_running: ContextVar[tuple[SkillEntry, ...]] = ContextVar("running_forks", default=())
_hosts: WeakSet[Any] = WeakSet()


def is_fork(entry: SkillEntry) -> bool:
    """Whether a skill asks to be run in a sub-agent."""
    context = entry.frontmatter.get("context")
    return isinstance(context, str) and context.strip().casefold() == "fork"


def runs_forks(host: SkillsMiddleware[Any, Any]) -> bool:
    """Whether a middleware runs such skills in sub-agents."""
    return host in _hosts


def running_forks() -> tuple[SkillEntry, ...]:
    """Return the skills in whose sub-agents this code runs, the outermost first."""
    return _running.get()


def running_fork() -> SkillEntry | None:
    """Return the skill whose sub-agent this code runs in, the innermost of several."""
    chain = _running.get()
    return chain[-1] if chain else None


class SkillForks(SkillExtension):
    """Runs skills with `context: fork` in sub-agents.

    Args:
        agents: Compiled graphs by the name in a skill's `agent:`. Without it, or for other names, deepagents' `task`
            tool is used if the agent has it.
    """

    def __init__(self, agents: Mapping[str, Runnable[Any, Any]] | None = None) -> None:
        self._agents = dict(agents or {})

    def attach(self, host: SkillsMiddleware[Any, Any]) -> None:
        """Register that this middleware runs forks."""
        _hosts.add(host)

    def find_agent(self, request: ToolCallRequest, run: SkillRun) -> object | None:
        """Return the agent in which a call to `load_skill` runs its skill, or the call to `task` that starts it."""
        call = request.tool_call
        if call["name"] != "load_skill":
            return None
        forks = {entry.name: entry for entry in run.skills if is_fork(entry)}
        entry = forks.get(find_meant_name(list(forks), str(call["args"].get("skill_name", ""))) or "")
        if entry is None:
            return None
        agent = _agent_of(entry)
        if agent in self._agents:
            return self._agents[agent]
        started: ToolCall = {**call, "name": "task", "args": {"subagent_type": agent}}
        return dataclasses.replace(request, tool=_task_of(run.runtime), tool_call=started)

    def before_load(self, load: SkillLoad, run: SkillRun) -> MaybeAwaitable[Refuse | Answer | None]:
        """Run the skill in a sub-agent in place of loading it."""
        fork = self._started(load)
        if not isinstance(fork, _Fork):
            return fork
        # A sub-agent is run as its parent is, in the same thread or on the same loop.
        return fork.arun(run) if run.is_async else fork.run(run)

    def _started(self, load: SkillLoad) -> "_Fork | Refuse | Answer | None":
        """Return the run of a skill in a sub-agent, or the answer in its place."""
        answer = self._other_answer(load)
        return self._fork(load) if answer is None and is_fork(load.entry) else answer

    def _other_answer(self, load: SkillLoad) -> Refuse | Answer | None:
        """Answer a load without a call to `load_skill`: there is no call yet that could wait for a sub-agent."""
        if not is_fork(load.entry) or load.trigger == "model":
            return None
        # Neither the model nor the user asked for it, so neither can be asked to make a call.
        if load.trigger == "system":
            return Refuse(messages.FORK_NO_CONVERSATION.format(name=_quote(load.entry.name)))
        arguments = f" and arguments {json.dumps(load.arguments, ensure_ascii=False)}" if load.arguments.strip() else ""
        return Answer(
            messages.FORK_CALL_IT.format(name=_quote(load.entry.name), arguments=arguments), permits_call=True
        )

    def _fork(self, load: SkillLoad) -> "_Fork | Answer":
        runtime: ToolRuntime[Any, Any] = load.runtime
        name = _quote(load.entry.name)
        chain = _chain(runtime.config)
        # A skill that forks itself would run until the recursion limit, at the price of a model call each time.
        if len(chain) >= MAX_DEPTH or load.entry.name in chain:
            inside = ", ".join(_quote(item) for item in chain)
            return _error(messages.FORK_TOO_DEEP.format(name=name, chain=inside, limit=MAX_DEPTH))
        agent = _agent_of(load.entry)
        # All of `configurable`, because some runnables replace it as a whole and interrupts depend on what is in it.
        inherited = (runtime.config or {}).get("configurable") or {}
        config: RunnableConfig = {"configurable": {**inherited, _CHAIN_KEY: [*chain, load.entry.name]}}
        if agent in self._agents:
            return _GraphFork(load, agent, self._agents[agent], config)
        task = _task_of(runtime)
        if task is not None:
            return _TaskFork(load, agent, task, config)
        known = ", ".join(_quote(item) for item in self._agents) or "none"
        return _error(messages.FORK_NO_AGENT.format(name=name, agent=_quote(agent), known=known))


class _Fork:
    """A skill's run in a sub-agent."""

    def __init__(self, load: SkillLoad, agent: str, runnable: Runnable[Any, Any], config: RunnableConfig) -> None:
        self._load = load
        self._agent = agent
        self.runnable = runnable
        self.config = config
        self.given: Any = self._input(load.runtime)
        self._started = time.monotonic()

    def run(self, run: SkillRun) -> Answer:
        """Return what the sub-agent answers."""
        try:
            with self.running():
                return self._end(self.answer(self.runnable.invoke(self.given, self.config)), run)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a sub-agent may raise anything; the model reads it
            return self._end(self.failure(error), run)

    async def arun(self, run: SkillRun) -> Answer:
        """Return what the sub-agent answers, without blocking."""
        try:
            with self.running():
                return self._end(self.answer(await self.runnable.ainvoke(self.given, self.config)), run)
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001 - a sub-agent may raise anything; the model reads it
            return self._end(self.failure(error), run)

    def _end(self, answer: Answer, run: SkillRun) -> Answer:
        entry = self._load.entry
        run.emit(
            SkillForked(
                skill=entry.name,
                agent=self._agent,
                failed=answer.is_error,
                seconds=round(time.monotonic() - self._started, 3),
                source=entry.source,
                digest=entry.digest,
                trigger=self._load.trigger,
            )
        )
        return answer

    def _input(self, runtime: ToolRuntime[Any, Any]) -> Any:  # noqa: ANN401 - what the runnable takes
        raise NotImplementedError

    def answer(self, result: Any) -> Answer:  # noqa: ANN401 - what the runnable gives
        """Return the answer to the load from the sub-agent's result."""
        raise NotImplementedError

    def failure(self, error: Exception) -> Answer:
        """Return the answer for a sub-agent that raised."""
        name, agent = _quote(self._load.entry.name), _quote(self._agent)
        if isinstance(error, _ConversationAskedError):
            return _error(messages.FORK_SEES_CONVERSATION.format(name=name, agent=agent))
        logger.warning("The sub-agent %s of skill %s failed", agent, name, exc_info=error)
        return self._describe_failure(f"{type(error).__name__}: {error}")

    def _describe_failure(self, reason: str) -> Answer:
        reason = one_line(reason)[:MAX_REASON_CHARACTERS]
        return _error(
            messages.FORK_FAILED.format(name=_quote(self._load.entry.name), agent=_quote(self._agent), reason=reason)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let what runs inside know which skill it runs for."""
        token = _running.set((*_running.get(), self._load.entry))
        try:
            yield
        finally:
            _running.reset(token)


class _GraphFork(_Fork):
    """A run in one of the application's graphs."""

    def _input(self, runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
        self._shared = _select_shared(runtime.state)
        return {**self._shared, "messages": [HumanMessage(harmless_body(self._load.text))]}

    def answer(self, result: Any) -> Answer:  # noqa: ANN401 - what a user's graph gives
        """Return the sub-agent's last message, and its changes to the state that it was given."""
        if not isinstance(result, Mapping) or "messages" not in result:
            return self._describe_failure("it must return a state with `messages`")
        # With a checkpointer of its own the graph keeps the interrupt to itself, and no answer could reach it.
        if result.get("__interrupt__"):
            return self._describe_failure("it was interrupted; compile it without its own checkpointer to pass that on")
        text = _last_words(result)
        update = {
            key: value
            for key, value in _select_shared(result).items()
            # Only what changed: writing back everything would undo what siblings wrote meanwhile.
            if key not in self._shared or not _is_same(value, self._shared[key])
        }
        return (
            dataclasses.replace(self._describe_failure(messages.FORK_NO_ANSWER), update=update)
            if not text
            else Answer(harmless_body(text), update=update)
        )


class _TaskFork(_Fork):
    """A run through deepagents' `task` tool."""

    def _input(self, runtime: ToolRuntime[Any, Any]) -> dict[str, Any]:
        # A sub-agent type with `mode="fork"` would get the conversation, which a forked skill must not see.
        unseen = dataclasses.replace(runtime, state=_WithoutConversation(runtime.state))
        arguments = {"description": harmless_body(self._load.text), "subagent_type": self._agent, "runtime": unseen}
        return {"type": "tool_call", "name": "task", "args": arguments, "id": runtime.tool_call_id or str(uuid4())}

    def answer(self, result: Any) -> Answer:  # noqa: ANN401 - what a tool gives
        """Return the tool's result, without its messages; a plain message says why no sub-agent ran."""
        if not isinstance(result, Command):
            reason = result.text if isinstance(result, ToolMessage) else str(result)
            return self._describe_failure(reason)
        update = dict(result.update) if isinstance(result.update, Mapping) else {}
        text = "\n".join(str(message.text) for message in update.pop("messages", ()))
        return (
            dataclasses.replace(self._describe_failure(messages.FORK_NO_ANSWER), update=update)
            if not text
            else Answer(harmless_body(text), update=update)
        )


class _ConversationAskedError(Exception):
    """A sub-agent wants the conversation it was started from."""


class _WithoutConversation(dict[str, Any]):
    """A graph's state for a sub-agent that must not see the conversation: reading its messages raises."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__({key: value for key, value in state.items() if key != "messages"})

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - dict's signature
        return self[key] if key in self or key == "messages" else default

    def __missing__(self, key: str) -> NoReturn:
        if key == "messages":
            raise _ConversationAskedError
        raise KeyError(key)


def _agent_of(entry: SkillEntry) -> str:
    """Return the name of the agent that a skill asks to be run in."""
    wanted = entry.frontmatter.get("agent")
    return wanted.strip() if isinstance(wanted, str) and wanted.strip() else GENERAL_PURPOSE


def _task_of(runtime: ToolRuntime[Any, Any]) -> BaseTool | None:
    """Return the agent's own `task` tool: it knows the sub-agents, their models and their middleware."""
    return next((item for item in runtime.tools if item.name == "task"), None)


def _chain(config: RunnableConfig | None) -> list[str]:
    """Return the names of the skills in whose sub-agents this code runs, the outermost first."""
    given = ((config or {}).get("configurable") or {}).get(_CHAIN_KEY)
    passed = [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []
    inherited = [entry.name for entry in _running.get()]
    # The configuration reaches graphs in other processes; the context variable reaches runnables that drop the
    # configuration.
    return max(passed, inherited, key=len)


def _select_shared(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that a sub-agent shares, without what belongs to a conversation, skills or one middleware."""
    return {key: value for key, value in state.items() if key not in _NOT_SHARED and not key.startswith("_")}


def _is_same(value: object, other: object) -> bool:
    # An ambiguous comparison, such as of arrays, counts as a change.
    return value is other or (value == other) is True


def _last_words(result: Mapping[str, Any]) -> str:
    spoken = (str(message.text).strip() for message in reversed(result["messages"]) if isinstance(message, AIMessage))
    return next((text for text in spoken if text), "")


def _quote(name: str) -> str:
    return f'"{one_line(name)}"'


def _error(text: str) -> Answer:
    return Answer(text, is_error=True)
