"""Skills with `model:`: the model that serves the rest of the user's turn."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

from langchain.agents.middleware.types import ModelRequest
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel

from deepskills import Answer, Refuse, SkillEntry, SkillExtension, SkillLoad, SkillRun
from deepskills._format.text import one_line
from deepskills.extensions.forks import running_fork

Models: TypeAlias = Mapping[str, BaseChatModel | str] | Callable[[str], BaseChatModel | None]
"""Models by the name that skills give, or a function that returns one, or `None` for a name it does not know."""

INHERIT = "inherit"
"""What a skill says that wants the model of the conversation."""

UNKNOWN_CODE = "model-unknown"
UNKNOWN = (
    "The skill asks for the model {model}, which the application does not offer, so the conversation's model is used. "
    "Add the name to SkillModels, or write `model: inherit`."
)

_first_try: ContextVar[tuple[object, BaseChatModel] | None] = ContextVar("first_try_of_model_call", default=None)


class SkillModels(SkillExtension):
    """Lets `model:` of the skill loaded last since the user's newest message pick the model for the rest of the turn.

    A fallback around it keeps its say: once it has replaced the model of a call that failed, its choice stands.

    Args:
        models: A mapping from the names that skills use to models (or to `"provider:name"`), or a function.
    """

    frontmatter_keys: Sequence[str] = ("model",)

    def __init__(self, models: Models) -> None:
        self._find: Callable[[str], BaseChatModel | None]
        if isinstance(models, Mapping):
            made = {name: init_chat_model(item) if isinstance(item, str) else item for name, item in models.items()}
            self._find = made.get
        else:
            self._find = models

    def before_load(self, load: SkillLoad, run: SkillRun) -> Refuse | Answer | None:
        """Report a name that stands for no model; the load itself passes."""
        name = _model_of(load.entry)
        if name is not None and self._find(name) is None:
            run.report(load.entry.path, UNKNOWN_CODE, UNKNOWN.format(model=f'"{one_line(name)[:100]}"'))
        return None

    def change_request(self, request: ModelRequest[Any], run: SkillRun) -> ModelRequest[Any]:
        """Put the skill's model in the place of the conversation's."""
        model = self._picked(run)
        if model is None or _was_replaced(request):
            return request
        return request.override(model=model)

    def _picked(self, run: SkillRun) -> BaseChatModel | None:
        recent = [skill.entry for skill in reversed(run.loaded) if skill.is_recent]
        fork = running_fork()
        named = (_model_of(entry) for entry in (*recent, *([fork] if fork is not None else ())))
        found = (self._find(name) for name in named if name is not None)
        return next((model for model in found if model is not None), None)


def _model_of(entry: SkillEntry) -> str | None:
    """Return the name of the model that a skill asks for, if it asks for another than the conversation's."""
    given = entry.frontmatter.get("model")
    name = given.strip() if isinstance(given, str) else ""
    return name if name and name.casefold() != INHERIT else None


def _was_replaced(request: ModelRequest[Any]) -> bool:
    """Whether this is a later try of a model call, and somebody around us has chosen another model for it."""
    messages = request.state["messages"]
    call = (len(messages), messages[-1].id if messages else None)
    first = _first_try.get()
    if first is None or first[0] != call:
        _first_try.set((call, request.model))
        return False
    return first[1] is not request.model
