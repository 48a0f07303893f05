"""Creates the agents that skills are measured with, runs one, and reports what happened.

Loads are taken from the events of the run, never guessed from what the model wrote.
"""

import base64
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import UUID, uuid4

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend
from deepagents.backends.utils import create_file_data
from langchain import chat_models
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from deepskills import SkillMetadata, SkillsMiddleware
from deepskills._io.plan import Attempt, CallFunction, Failed
from deepskills._io.readonly import ReadOnlyBackend
from deepskills._loading.budget import count_text_tokens
from deepskills.evals.files import EvalError

MAX_COPIED_BYTES = 200_000_000
"""How much of a library is copied for agents to work with."""

SKILLS = "/skills"
"""Where these agents find their skills."""


def resolve_model(model: BaseChatModel | str) -> BaseChatModel:
    """Return a chat model, given as one or as `provider:name`.

    Raises:
        EvalError: If the model cannot be created.
    """
    if isinstance(model, BaseChatModel):
        return model
    try:
        found: BaseChatModel = chat_models.init_chat_model(model)
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(". ")
        raise EvalError(
            f"The model {model!r} cannot be used. {reason}. Write provider:name, install the provider's package and "
            "set its key."
        ) from error
    return found


def is_model(given: object) -> bool:
    """Whether something is a model, or names one; otherwise it is an agent."""
    return isinstance(given, str | BaseChatModel)


class _LibraryFiles(ReadOnlyBackend, FilesystemBackend):
    """The files of a library, read-only: one run must not change what the next one sees."""

    holds = "The skills here"


class LibraryCopy:
    """A copy of a library for agents to read; nothing else on the machine is within their reach."""

    def __init__(self, skills: Sequence[SkillMetadata]) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="deepskills-eval-")
        root = Path(self._place.name)
        budget = _CopyBudget()
        for number, skill in enumerate(skills):
            source = Path(skill["path"]).parent
            # Numbered, because two skills may have directories with the same name.
            shutil.copytree(source, root / f"{number:05}" / source.name, ignore=budget.leave_out)
        self._root = root

    def agent(self, model: BaseChatModel) -> Any:  # noqa: ANN401 - a compiled graph
        """Return an agent with the library."""
        # Workspaces live in graph state, so that each run starts with an empty one.
        backend = CompositeBackend(
            default=StateBackend(), routes={f"{SKILLS}/": _LibraryFiles(root_dir=self._root, virtual_mode=True)}
        )
        middleware: Any = SkillsMiddleware(backend=backend, sources=[SKILLS], max_depth=2)
        return create_deep_agent(model=model, backend=backend, middleware=[middleware])

    def close(self) -> None:
        """Remove the copy."""
        self._place.cleanup()


class _CopyBudget:
    """Leaves out links, hidden files, large files and evals: an agent must not read how it is judged."""

    def __init__(self) -> None:
        self._left = MAX_COPIED_BYTES

    def leave_out(self, directory: str, names: list[str]) -> list[str]:
        """Return the entries of a directory that are not copied."""
        found = []
        is_skill = "SKILL.md" in names
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118 - shutil's own terms
            if name.startswith(".") or os.path.islink(path) or (is_skill and name == "evals"):  # noqa: PTH114
                found.append(name)
            elif os.path.isfile(path):  # noqa: PTH113 - shutil's own terms
                size = os.path.getsize(path)  # noqa: PTH202 - shutil's own terms
                if size > self._left:
                    found.append(name)
                else:
                    self._left -= size
            elif not os.path.isdir(path):  # noqa: PTH112 - pipes and devices
                found.append(name)
        return found


def check_agent(agent: object) -> None:
    """Check that something can be run as an agent.

    Raises:
        TypeError: If it cannot.
    """
    for method in ("stream", "astream"):
        found: Callable[..., Any] | None = getattr(agent, method, None)
        if not callable(found):
            raise TypeError(f"expected a chat model, its name, or a compiled graph, got {type(agent).__name__}")


Status: TypeAlias = Literal["done", "loaded", "failed", "timed-out", "over-steps", "over-budget"]
"""How a run ended: with an answer, with the expected load, or early."""

MAX_TRANSCRIPT_CHARACTERS = 4_000
"""How much of each message a transcript keeps."""

MAX_TRANSCRIPT_MESSAGES = 200
"""How many messages a transcript keeps."""

GRAPH_STEPS_PER_CALL = 12
"""How many graph steps one model call may take at most, including nodes of middleware."""


@dataclass(frozen=True)
class AgentRun:
    """A run to make."""

    agent: Any
    prompt: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    stop_at_load: str | None = None
    """A skill whose load ends the run, because what comes after it does not matter."""

    max_steps: int = 20
    """How many model calls it may make."""

    timeout: float = 300
    """Seconds after which it is abandoned."""

    max_tokens: int | None = None
    """Tokens after which it is stopped."""


@dataclass(frozen=True)
class Question:
    """A question to a model, without tools."""

    model: BaseChatModel
    messages: Sequence[BaseMessage]
    timeout: float = 300


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run or a question."""

    status: Status
    text: str = ""
    """The last answer."""

    loaded: tuple[str, ...] = ()
    """The skills that were loaded, in order, including those of sub-agents."""

    steps: int = 0
    """How many model calls were made."""

    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False
    """Whether a provider gave no count of tokens."""

    seconds: float = 0.0
    error: str | None = None
    transcript: tuple[dict[str, str], ...] = ()
    """Who said what, as `role` and `text`."""

    files: Mapping[str, str] = field(default_factory=dict)
    """The text files that the agent left behind, by path."""

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.tokens_in + self.tokens_out

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Outcome":
        """Return an outcome from plain data.

        Raises:
            TypeError: If it is not an outcome.
        """
        given = {**data, "loaded": tuple(data["loaded"]), "transcript": tuple(data["transcript"])}
        return cls(**given)


Request: TypeAlias = AgentRun | Question


async def make_run(request: Request) -> Outcome:
    """Make a run or ask a question; whatever goes wrong is part of the outcome."""
    watch = _Watch(request)
    try:
        # A model that hangs must not delay the rest, and a failure is a result.
        reply = await Attempt(CallFunction(watch.run, seconds=request.timeout, twin=watch.arun))
    finally:
        # In a sync evaluation a run that timed out or was interrupted continues in its thread.
        watch.is_given_up = True
    if not isinstance(reply, Failed):
        return watch.outcome()
    if reply.timed_out:
        return watch.outcome("timed-out", f"timed out after {request.timeout:g} s")
    return watch.outcome("failed", reply.reason)


class _Counter(BaseCallbackHandler):
    """Counts model calls and their tokens, including those of sub-agents."""

    def __init__(self) -> None:
        self.calls = 0
        self.tokens_in = 0
        self.tokens_out = 0
        self.is_estimated = False
        self._sent: dict[UUID, int] = {}
        self._lock = threading.Lock()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - LangChain's signature
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **kwargs: Any,  # noqa: ANN401, ARG002 - LangChain's signature
    ) -> None:
        """Count a call."""
        with self._lock:
            self.calls += 1
            self._sent[run_id] = sum(count_text_tokens(str(message.text)) for batch in messages for message in batch)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Count its tokens."""
        found = [item.message for batch in response.generations for item in batch if isinstance(item, ChatGeneration)]
        with self._lock:
            sent = self._sent.pop(run_id, 0)
            used = [message.usage_metadata for message in found if isinstance(message, AIMessage)]
            # Either all counted or all estimated: a sum of both would be neither.
            if used and all(used):
                self.tokens_in += sum(int(usage["input_tokens"]) for usage in used if usage)
                self.tokens_out += sum(int(usage["output_tokens"]) for usage in used if usage)
            else:
                self.is_estimated = True
                self.tokens_in += sent
                self.tokens_out += sum(count_text_tokens(str(message.text)) for message in found)


class _Watch:
    """Follows one run until it ends or is stopped."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._started = time.monotonic()
        self._counter = _Counter()
        self._loaded: list[str] = []
        self._state: Mapping[str, Any] = {}
        self._status: Status = "done"
        self._error: str | None = None
        self._answer: BaseMessage | None = None
        self.is_given_up = False

    def run(self) -> None:
        """Make the run."""
        request = self._request
        try:
            if isinstance(request, Question):
                self._answer = request.model.invoke(list(request.messages), self._config())
                return
            stream = request.agent.stream(
                self._input(), self._config(), stream_mode=["custom", "values"], subgraphs=True
            )
            for chunk in stream:
                if self._is_over(chunk):
                    stream.close()
                    break
        except Exception as error:  # noqa: BLE001 - models and agents may raise anything; it is part of the result
            self._record_failure(error)

    async def arun(self) -> None:
        """Make the run without blocking."""
        request = self._request
        try:
            if isinstance(request, Question):
                self._answer = await request.model.ainvoke(list(request.messages), self._config())
                return
            stream = request.agent.astream(
                self._input(), self._config(), stream_mode=["custom", "values"], subgraphs=True
            )
            async for chunk in stream:
                if self._is_over(chunk):
                    await stream.aclose()
                    break
        except Exception as error:  # noqa: BLE001 - models and agents may raise anything; it is part of the result
            self._record_failure(error)

    def _record_failure(self, error: Exception) -> None:
        if isinstance(error, GraphRecursionError):
            self._status, self._error = "over-steps", self._over_steps()
        else:
            self._status, self._error = "failed", f"{type(error).__name__}: {error}"[:500]

    def _over_steps(self) -> str:
        limit = self._request.max_steps if isinstance(self._request, AgentRun) else 0
        return f"not finished after {limit} model calls"

    def _config(self) -> RunnableConfig:
        config: RunnableConfig = {"callbacks": [self._counter]}
        if isinstance(self._request, AgentRun):
            config["configurable"] = {"thread_id": f"eval-{uuid4()}"}
            # We count steps by model calls; LangGraph's own limit only has to be high enough.
            config["recursion_limit"] = (self._request.max_steps + 1) * GRAPH_STEPS_PER_CALL
        return config

    def _input(self) -> dict[str, Any]:
        request = self._request
        prompt = HumanMessage(request.prompt) if isinstance(request, AgentRun) else None
        given: dict[str, Any] = {"messages": [prompt]}
        if isinstance(request, AgentRun) and request.files:
            given["files"] = {f"/{name}": _file(content) for name, content in request.files.items()}
        return given

    def _is_over(self, chunk: tuple[tuple[str, ...], str, Any]) -> bool:
        """Process a part of the stream; return whether to stop there."""
        place, mode, value = chunk
        request, counter = self._request, self._counter
        if mode == "custom" and isinstance(value, Mapping) and value.get("type") == "skill.loaded":
            self._loaded.append(str(value.get("skill")))
        # The state of the agent itself, not that of a sub-agent.
        elif mode == "values" and not place and isinstance(value, Mapping):
            self._state = value
        if not isinstance(request, AgentRun):
            return False
        if request.stop_at_load is not None and request.stop_at_load in self._loaded:
            self._status = "loaded"
            return True
        if request.max_tokens is not None and counter.tokens_in + counter.tokens_out > request.max_tokens:
            self._status, self._error = "over-budget", f"more than {request.max_tokens:,} tokens"
            return True
        # The call that reaches the limit may be the last one anyway; after a tool's answer another would follow.
        messages = list(self._state.get("messages") or ())
        is_waiting = bool(messages) and isinstance(messages[-1], ToolMessage)
        if counter.calls > request.max_steps or (counter.calls == request.max_steps and is_waiting):
            self._status, self._error = "over-steps", self._over_steps()
            return True
        return self.is_given_up

    def outcome(self, status: Status | None = None, error: str | None = None) -> Outcome:
        """Return the outcome."""
        messages = [*(self._state.get("messages") or ())]
        if self._answer is not None:
            messages = [self._answer]
        spoken = [str(item.text).strip() for item in messages if isinstance(item, AIMessage)]
        counter = self._counter
        return Outcome(
            status=status or self._status,
            text=next((text for text in reversed(spoken) if text), ""),
            loaded=tuple(dict.fromkeys(self._loaded)),
            steps=counter.calls,
            tokens_in=counter.tokens_in,
            tokens_out=counter.tokens_out,
            estimated=counter.is_estimated,
            seconds=round(time.monotonic() - self._started, 2),
            error=error or self._error,
            transcript=tuple(_tell(item) for item in messages[:MAX_TRANSCRIPT_MESSAGES]),
            files=_text_files(self._state.get("files"), self._request),
        )


def _file(content: bytes) -> Any:  # noqa: ANN401 - deepagents' FileData
    try:
        return create_file_data(content.decode())
    except UnicodeDecodeError:
        return create_file_data(base64.b64encode(content).decode(), encoding="base64")


def _tell(message: BaseMessage) -> dict[str, str]:
    """Return a message as a transcript shows it: tool calls by name and arguments, long texts cut."""
    text = str(message.text)
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({call['args']})" for call in message.tool_calls]
        text = "\n".join(filter(None, [text, *calls]))
    role = f"tool {message.name or ''}".strip() if isinstance(message, ToolMessage) else message.type
    if len(text) > MAX_TRANSCRIPT_CHARACTERS:
        text = f"{text[:MAX_TRANSCRIPT_CHARACTERS]}\n[{len(text) - MAX_TRANSCRIPT_CHARACTERS:,} characters more]"
    return {"role": role, "text": text.encode(errors="replace").decode()}


def _text_files(files: object, request: Request) -> dict[str, str]:
    """Return the text files that a run wrote, without those that it was given and did not change."""
    given = request.files if isinstance(request, AgentRun) else {}
    found: dict[str, str] = {}
    for path, data in files.items() if isinstance(files, Mapping) else ():
        content = data.get("content") if isinstance(data, Mapping) and data.get("encoding") != "base64" else None
        text = "\n".join(content) if isinstance(content, list) else content
        if isinstance(text, str) and given.get(str(path).lstrip("/"), b"").decode(errors="replace") != text:
            found[str(path)] = text[:MAX_TRANSCRIPT_CHARACTERS]
    return found
