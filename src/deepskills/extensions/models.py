"""Lets a skill with `model:` choose the model for the rest of the user's turn.

The choice ends with the turn, and only skills loaded since the user's newest message have one: a skill that was
loaded an hour ago must not keep deciding what every later question costs. A fallback middleware around ours has the
last word, so a model that just failed is not chosen again.
"""

import logging
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, TypeAlias

from langchain.agents.middleware.types import ModelRequest
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langgraph.errors import GraphBubbleUp

from deepskills import Answer, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun
from deepskills._skillmd.text import one_line
from deepskills.extensions.forks import running_fork

logger = logging.getLogger("deepskills")

Models: TypeAlias = Mapping[str, BaseChatModel | str] | Callable[[str], BaseChatModel | None]
"""Models by the names that skills use, or a function that returns a model, or `None` for a name it does not know."""

INHERIT = "inherit"
"""How a skill asks for the model of the conversation."""

UNKNOWN_CODE = "model-unknown"
UNKNOWN = (
    "The skill asks for the model {model}, which the application does not offer, so the conversation's model is used. "
    "Add the name to SkillModels, or write `model: inherit`."
)

MAX_CALLS = 1024
"""How many model calls are remembered, to tell a later try from the first."""


class SkillModels(SkillExtension):
    """Lets `model:` of the skill loaded last since the user's newest message pick the model for the rest of the turn.

    A fallback around it has the last word: once it has replaced the model of a failed call, its choice stands.

    Args:
        models: A mapping from the names that skills use to models (or to `"provider:name"`), or a function.
    """

    def __init__(self, models: Models) -> None:
        self._first_tries = _FirstTries()
        self._models: Callable[[str], BaseChatModel | None]
        if isinstance(models, Mapping):
            made = {name: init_chat_model(item) if isinstance(item, str) else item for name, item in models.items()}
            self._models = made.get
        else:
            self._models = models

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Report a model that the application does not offer; the load itself continues."""
        name = _model_of(load.entry)
        if name is not None and self._find(name) is None:
            run.report(load.entry.path, UNKNOWN_CODE, UNKNOWN.format(model=f'"{one_line(name)[:100]}"'))
        return None

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Replace the conversation's model with the skill's."""
        model = self._pick(run)
        if model is None or self._first_tries.was_replaced(request):
            return request
        return request.override(model=model)

    def _find(self, name: str) -> BaseChatModel | None:
        """Return the model with a name; `None` if the function fails or returns something else."""
        try:
            model = self._models(name)
        except GraphBubbleUp:
            raise
        except Exception:
            logger.exception("The function of SkillModels failed for the model %r", one_line(name)[:100])
            return None
        # Checked by what an agent needs from a model, because a function may return anything.
        return model if hasattr(model, "bind_tools") else None

    def _pick(self, run: SkillRun) -> BaseChatModel | None:
        # The newest load first. Inside a fork, its skill chose the model and stays the last resort.
        recent = [skill.entry for skill in reversed(run.loaded) if skill.is_recent and skill.grants]
        fork = running_fork()
        named = (_model_of(entry) for entry in (*recent, *([fork] if fork is not None else ())))
        found = (self._find(name) for name in named if name is not None)
        return next((model for model in found if model is not None), None)


def _model_of(entry: SkillEntry) -> str | None:
    """Return the name of the model that a skill asks for, unless it is the conversation's."""
    given = entry.frontmatter.get("model")
    name = given.strip() if isinstance(given, str) else ""
    return name if name and name.casefold() != INHERIT else None


class _FirstTries:
    """Remembers the model of each call's first try: if a later try has another, a fallback chose it."""

    def __init__(self) -> None:
        self._models: dict[object, BaseChatModel] = {}
        self._lock = Lock()

    def was_replaced(self, request: ModelRequest[Any]) -> bool:
        """Whether this is a later try of a model call, and a middleware around ours has chosen another model for it."""
        call = _call_of(request)
        with self._lock:
            first = self._models.setdefault(call, request.model)
            while len(self._models) > MAX_CALLS:
                del self._models[next(iter(self._models))]
        return first is not request.model


def _call_of(request: ModelRequest[Any]) -> object:
    """Return a value that is the same for all tries of one model call, and for no other call."""
    info = getattr(request.runtime, "execution_info", None)
    task = (info.checkpoint_ns, info.task_id, info.checkpoint_id) if info is not None else None
    messages = request.state["messages"]
    # Without execution info, as in a custom graph, the conversation's length and end have to do.
    return task, len(messages), messages[-1].id if messages else None
