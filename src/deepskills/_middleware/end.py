"""The end of a turn and of a run: extensions may send the model back, and act when the run has ended.

A turn ends with an answer without tool calls, or with a structured response. Extensions are asked about an answer only
if our `wrap_model_call` saw it: what another middleware put in its place, or ended a run with (`jump_to="end"`), is not
theirs to question. So the id of such an answer is kept in private state until the hook behind the model asks.

Only agents with extensions that act here have these hooks, because a hook costs a step of the graph.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from langchain.agents.middleware.types import ModelResponse, hook_config
from langchain_core.messages import AIMessage, HumanMessage

from deepskills._io.plan import Failed
from deepskills._middleware.events import SkillSentBack
from deepskills._middleware.extension import OpenCheck, SendBack, SkillExtension, overrides
from deepskills._middleware.extension_calls import ask, call_extensions, runs_of
from deepskills._middleware.reporting import emit, report_problems
from deepskills._middleware.run import Run
from deepskills._middleware.state import merge_updates
from deepskills._middleware.visibility import find_view
from deepskills._middleware.workarounds import give_hooks
from deepskills._skillmd.problems import problem
from deepskills._skillmd.text import harmless_body

MAX_SENT_BACK = 25
"""How often the model is sent back in one turn at most."""

OURS = {"lc_source": "deepskills"}
"""Says of a message that no user wrote it, and of an answer that it was not the last."""


def asks_at_end(extensions: Sequence[SkillExtension]) -> bool:
    """Whether an extension wants to be asked before a turn ends."""
    return any(overrides(extension, "before_end") for extension in extensions)


def add_end_hooks(middleware: object, extensions: Sequence[SkillExtension]) -> None:
    """Give a middleware the hooks in which extensions act at the end of a turn or a run, where one does."""
    if any(overrides(extension, "at_end") for extension in extensions):
        give_hooks(middleware, _EndOfRun)
    if asks_at_end(extensions):
        give_hooks(middleware, _EndOfTurn)


def record_answer(response: ModelResponse[Any]) -> dict[str, Any]:
    """Return the update that remembers whether a model's response would end its turn."""
    answer = next((item for item in reversed(response.result) if isinstance(item, AIMessage)), None)
    if answer is None or (answer.tool_calls and response.structured_response is None):
        return {"skills_context": {"answer": {"id": None}}}
    answer.id = answer.id or str(uuid4())
    return {"skills_context": {"answer": {"id": answer.id}}}


async def ask_to_end(run: Run, answer: AIMessage | None) -> tuple[bool, dict[str, Any]]:
    """Ask the extensions whether a turn may end with an answer; return whether not, and the update that says so."""
    if answer is None:
        return False, {}
    await find_view(run)
    wanted: dict[str, str] = {}
    for own in runs_of("before_end", run):
        reply = await ask("before_end", own)
        if isinstance(reply, SendBack):
            wanted[own.name] = reply.text
    thread = run.thread
    kept, turn = thread.section("answer"), thread.turn
    count = int(kept["count"]) if kept.get("turn") == turn and str(kept.get("count")).isdecimal() else 0
    if wanted and count >= MAX_SENT_BACK:
        names = ", ".join(wanted)
        run.problems.append(problem("extensions", "sent-back-too-often", name=names, limit=MAX_SENT_BACK))
        wanted = {}
    update = merge_updates(run.collected, report_problems(run))
    if not wanted:
        return False, update
    # Marked, so that neither passes for a user's message or for the end of the turn.
    premature = answer.model_copy(update={"additional_kwargs": {**answer.additional_kwargs, **OURS}})
    text = harmless_body("\n\n".join(dict.fromkeys(wanted.values())))
    sent = HumanMessage(text, id=str(uuid4()), additional_kwargs=dict(OURS))
    emit(SkillSentBack(extensions=tuple(wanted), count=count + 1), run)
    context = {"answer": {"id": None, "turn": turn, "count": str(count + 1)}}
    messages = [premature, sent] if answer.id else [sent]
    return True, merge_updates(update, {"messages": messages, "skills_context": context})


async def open_checks(run: Run) -> list[OpenCheck]:
    """Return what a turn that ended now would leave open."""
    await find_view(run)
    found: list[OpenCheck] = []
    for own in runs_of("open_checks", run):
        reply = await ask("open_checks", own)
        found += () if isinstance(reply, Failed) else reply
    return found


async def end_or_send_back(run: Run) -> tuple[bool, dict[str, Any]]:
    """Ask whether the newest answer of a graph of one's own may end its turn, and if it does, act at that end."""
    newest = run.thread.given[-1] if run.thread.given else None
    if not isinstance(newest, AIMessage) or newest.tool_calls:
        return False, {}
    goes_back, update = await ask_to_end(run, newest)
    return (True, update) if goes_back else (False, await _end_run(run) or {})


def _see_answer(run: Run) -> AIMessage | None:
    """Return the model's newest answer, if it would end its turn and our `wrap_model_call` saw it."""
    answer = next((item for item in reversed(run.thread.given) if isinstance(item, AIMessage)), None)
    if answer is None or not answer.id or answer.id != run.thread.section("answer").get("id"):
        return None
    # Another middleware may have changed it since.
    is_answer = not answer.tool_calls or run.state.get("structured_response") is not None
    return answer if is_answer else None


async def _end_turn(run: Run) -> dict[str, Any] | None:
    goes_back, update = await ask_to_end(run, _see_answer(run))
    return {**update, "jump_to": "model"} if goes_back else update or None


async def _end_run(run: Run) -> dict[str, Any] | None:
    await find_view(run)
    await call_extensions("at_end", run)
    return merge_updates(run.collected, report_problems(run)) or None


class _EndOfTurn:
    """The hooks of an instance whose extensions are asked before a turn ends."""

    _settings: Any

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: Mapping[str, Any], runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions send the model back."""
        run = Run(self._settings, state, runtime)
        return run.perform(_end_turn(run))

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: Mapping[str, Any], runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions send the model back."""
        run = Run(self._settings, state, runtime)
        return await run.aperform(_end_turn(run))


class _EndOfRun:
    """The hooks of an instance whose extensions act at the end of a run."""

    _settings: Any

    def after_agent(self, state: Mapping[str, Any], runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions act at the end of a run."""
        run = Run(self._settings, state, runtime)
        return run.perform(_end_run(run))

    async def aafter_agent(self, state: Mapping[str, Any], runtime: Any) -> dict[str, Any] | None:  # noqa: ANN401 - LangChain's signature
        """Let extensions act at the end of a run."""
        run = Run(self._settings, state, runtime)
        return await run.aperform(_end_run(run))
