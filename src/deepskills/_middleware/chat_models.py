"""What is known of chat models from outside: their provider, their window, and what their errors mean.

Providers have no common error for a request that is too long, and their clients keep a status and a message in
different places: on the error, on its `response`, in its `body`, or on the error that it was raised from. So all of
these are looked at. An error that comes in a stream, or as the body of an answer, has no status or that of success. A
sign does not count beside a status that such errors never have, because a skill's text in some other error could hold
any of the words.
"""

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from itertools import pairwise
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from deepskills._middleware.state import ModelFacts, Thread
from deepskills._middleware.workarounds import provider_of
from deepskills._prompt.messages import RESULTS_READ

_OVERFLOW_SIGNS = (
    *(f"context{gap}{noun}" for gap in (" ", "_", "") for noun in ("length", "window", "size", "limit")),
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "tokens exceed",
    "maximum number of tokens allowed",
    "request too large",
    "reduce the length of the messages",
)
_OVERFLOW_STATUS = frozenset({400, 413, 422, None})
"""HTTP statuses by which providers refuse a request for its length; an error in a stream has none."""

_SERVER_SIGN = "available context size"
"""What llama.cpp says with status 500, as do servers built on it."""

_INVALID_SIGN = "invalid_request"
"""What OpenAI, Anthropic and their likes call an error of the request itself, in a stream as well."""

_MAX_CAUSES = 5

_SPEAK_AFTER_RESULTS = frozenset({"mistral", "mistralai"})
"""Providers that refuse a user's message right behind a tool's result."""


def facts_of(model: object, thread: Thread) -> ModelFacts:
    """Return what is known of a model; `None` stands for that of the thread's latest request."""
    if model is None:
        return thread.model
    bare = _bare(model)
    provider, window = "" if bare is None else provider_of(bare), _window(model)
    # What one model refused says nothing of another's room.
    refused = thread.model.refused if (provider, window) == (thread.model.provider, thread.model.window) else None
    return ModelFacts(provider, window, refused)


def _bare(model: object) -> BaseChatModel | None:
    """Return the chat model inside bindings; `None` for one that is bound late, of which nothing is known."""
    for _ in range(_MAX_CAUSES):
        if isinstance(model, BaseChatModel):
            return model
        model = vars(model).get("bound") if hasattr(model, "__dict__") else None
    return None


def profile_of(model: object) -> Mapping[str, Any]:
    """Return what a model's profile says; empty if there is none."""
    profile = getattr(_bare(model), "profile", None)
    return profile if isinstance(profile, Mapping) else {}


def fit_order(messages: list[AnyMessage], provider: str) -> list[AnyMessage]:
    """Return a request's messages in an order that a provider takes.

    A skill that is loaded after a tool call, by an extension or because its file changed, stands in a user's message
    right behind the result, as does what a user says who interrupts a run.
    """
    if provider not in _SPEAK_AFTER_RESULTS:
        return messages
    fitted: list[AnyMessage] = list(messages[:1])
    for before, message in pairwise(messages):
        if isinstance(before, ToolMessage) and isinstance(message, HumanMessage):
            fitted.append(AIMessage(RESULTS_READ))
        fitted.append(message)
    return fitted


def _window(model: object) -> int | None:
    window = profile_of(model).get("max_input_tokens")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None


def is_overflow(error: BaseException) -> bool:
    """Whether a model refused a request for its length."""
    for cause in _causes(error):
        if isinstance(cause, ContextOverflowError):
            return True
        status, text = _status_of(cause), _text_of(cause)
        # A connection that fails says nothing of the request.
        may_be = status in _OVERFLOW_STATUS and not isinstance(cause, OSError)
        if may_be and any(sign in text for sign in _OVERFLOW_SIGNS):
            return True
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and _SERVER_SIGN in text:
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def refusal_status(error: BaseException) -> int | None:
    """Return the HTTP status by which a request was refused; `None` if the error does not tell."""
    for cause in _causes(error):
        status = _status_of(cause)
        if status is not None:
            return status
        if _INVALID_SIGN in str(getattr(cause, "body", "")):
            return HTTPStatus.BAD_REQUEST
    return None


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a client's error, wherever it keeps that; a stream that began well has none."""
    response = getattr(error, "response", None)
    for value in (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "code", None),
    ):
        if isinstance(value, int) and value >= HTTPStatus.BAD_REQUEST:
            return value
    return None


def _text_of(error: BaseException) -> str:
    """Return what an error says, with the code and the text that some clients leave out of their message."""
    parts = [str(error), str(getattr(error, "code", "") or ""), str(getattr(error, "body", "") or "")]
    # The text of a stream that was not read raises.
    with contextlib.suppress(Exception):
        parts.append(str(getattr(getattr(error, "response", None), "text", "") or ""))
    return " ".join(parts).lower()
