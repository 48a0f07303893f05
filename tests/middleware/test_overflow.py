"""Which errors of a model mean that the request was too long."""

from langchain_core.exceptions import ContextOverflowError

from deepskills._middleware.request import is_overflow


class ApiError(Exception):
    """What a provider's client raises."""

    def __init__(self, message: str, status_code: object = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


OVERFLOWS = {
    "langchain": ContextOverflowError("whatever"),
    "openai": ApiError("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."),
    "openai-code": ApiError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}"),
    "openai-responses": ApiError("Your input exceeds the context window of this model."),
    "openai-limit": ApiError("Input tokens exceed the configured limit of 272000 tokens."),
    "anthropic": ApiError("prompt is too long: 210000 tokens > 200000 maximum"),
    "litellm": ApiError("litellm.ContextWindowExceededError: too long"),
    "llama.cpp": ApiError("the request exceeds the available context size"),
    "context-limit": ApiError("Context limit exceeded"),
    "http-413": ApiError("Context window exceeded", 413),
    "http-422": ApiError("Maximum context length is 4096", 422),
}


def test_a_refusal_for_length_is_recognized() -> None:
    """What providers say when a request is too long counts as an overflow."""
    assert [name for name, error in OVERFLOWS.items() if not is_overflow(error)] == []


OTHER_ERRORS = {
    "no-status": ValueError("maximum context length"),
    "bad-request": ApiError("Invalid schema for function 'clock'."),
    "rate-limit": ApiError("Rate limit reached: context length 8192", 429),
    "server": ApiError("context length service unavailable", 503),
    "status-as-text": ApiError("maximum context length", "400"),
    "timeout": TimeoutError("context window"),
}


def test_other_errors_are_not_overflows() -> None:
    """An error that only mentions context, or a bad request for another reason, does not count as one."""
    assert [name for name, error in OTHER_ERRORS.items() if is_overflow(error)] == []
