"""Which errors of a model mean that the request was too long."""

from types import SimpleNamespace

from langchain_core.exceptions import ContextOverflowError

from deepskills._middleware.chat_models import is_overflow


class ApiError(Exception):
    """What a provider's client raises."""

    def __init__(self, message: str, status_code: object = 400) -> None:
        super().__init__(message)
        self.status_code = status_code


class CodeError(ApiError):
    """What a client raises that leaves the code out of its message."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.body = {"code": code}


class ResponseError(Exception):
    """What a client raises that keeps the status on the response."""

    def __init__(self, message: str) -> None:
        super().__init__("Error response 400")
        self.response = SimpleNamespace(status_code=400, text=message)


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
    "anthropic-sum": ApiError("input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000"),
    "google": ApiError("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    "groq": ApiError("Please reduce the length of the messages or completion."),
    "groq-413": ApiError("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000", 413),
    "ollama": ApiError("prompt too long; exceeded max context length by 4 tokens"),
    "llama.cpp-500": ApiError("the request exceeds the available context size", 500),
    "code-alone": CodeError("Please shorten this.", "context_length_exceeded"),
    "status-of-response": ResponseError("Prompt contains 40000 tokens, too large for model with 32768 context length"),
    "openrouter": ValueError({"message": "This endpoint's maximum context length is 8192 tokens", "code": 400}),
    "in-a-stream": ApiError("prompt is too long: 210000 tokens > 200000 maximum", 200),
    "bedrock": ApiError("ValidationException: Input is too long for requested model.", None),
    "http-413": ApiError("Context window exceeded", 413),
    "http-422": ApiError("Maximum context length is 4096", 422),
}


def test_a_refusal_for_length_is_recognized() -> None:
    """What providers say when a request is too long counts as an overflow."""
    assert [name for name, error in OVERFLOWS.items() if not is_overflow(error)] == []


OTHER_ERRORS = {
    "connection": ConnectionError("maximum context length"),
    "bad-request": ApiError("Invalid schema for function 'clock'."),
    "rate-limit": ApiError("Rate limit reached: context length 8192", 429),
    "server": ApiError("context length service unavailable", 503),
    "timeout": TimeoutError("context window"),
}


def test_other_errors_are_not_overflows() -> None:
    """An error that only mentions context, or a bad request for another reason, does not count as one."""
    assert [name for name, error in OTHER_ERRORS.items() if is_overflow(error)] == []
