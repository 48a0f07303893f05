"""What the store answers over HTTP: the envelope, and every failure in it, small whatever was sent."""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

from fastapi import status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError, SkillPathError
from deepskills.store._errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillQuotaError,
    SkillStaleError,
    SkillTooLargeError,
)
from deepskills.store._rules import storable
from deepskills.store._unavailable import are_tables_missing, unavailable

logger = logging.getLogger("deepskills")

DataT = TypeVar("DataT")

MAX_DETAILS = 20
"""How many parts of an invalid request an answer names."""

MAX_DETAIL_LENGTH = 200
"""How much of each is told."""

MAX_MESSAGE_LENGTH = 2_000
"""Longest message of an error."""

_STATUS: dict[type[Exception], tuple[int, str]] = {
    SkillAuthenticationError: (status.HTTP_401_UNAUTHORIZED, "not-signed-in"),
    SkillPermissionError: (status.HTTP_403_FORBIDDEN, "not-owner"),
    SkillNotFoundError: (status.HTTP_404_NOT_FOUND, "not-found"),
    SkillFileNotFoundError: (status.HTTP_404_NOT_FOUND, "not-found"),
    SkillStaleError: (status.HTTP_412_PRECONDITION_FAILED, "stale"),
    SkillConflictError: (status.HTTP_409_CONFLICT, "conflict"),
    SkillQuotaError: (413, "over-quota"),
    SkillTooLargeError: (413, "too-large"),
    SkillFormatError: (422, "invalid"),
    SkillPathError: (422, "invalid"),
}
"""A kind of error stands before the wider kinds that it belongs to."""

_NO_ANSWER = "The skill database did not answer. Try again later."
_NO_TABLES = "The skill database has no tables yet, or old ones. Its operator runs `migrations.upgrade`."
_A_BUG = "The server failed for a reason that is not the request's. The log of the server has it."


class CurrentUserError(TypeError):
    """The application's `current_user` gave something that is not a user id; its message may be shown."""


class ErrorDetail(BaseModel):
    """One part of a request that is invalid."""

    where: str
    message: str


class ErrorBody(BaseModel):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    details: list[ErrorDetail] = Field(default_factory=list, max_length=MAX_DETAILS)


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    success: Literal[False] = False
    error: ErrorBody


class Answer(BaseModel, Generic[DataT]):
    """The answer to a request that was served."""

    success: Literal[True] = True
    data: DataT


class Page(BaseModel, Generic[DataT]):
    """One page of a listing; `next_cursor` is there as long as more follows."""

    success: Literal[True] = True
    data: list[DataT]
    next_cursor: str | None = None


class Deleted(BaseModel):
    """What was deleted."""

    id: UUID


class VersionSchema(BaseModel):
    """One revision of a skill: who did what, when."""

    model_config = ConfigDict(from_attributes=True)

    revision: int
    name: str
    action: str
    user_id: str | None
    at: datetime


class DiffSchema(BaseModel):
    """What changed between two revisions, as a unified diff; `is_cut` where it was too long to be sent whole."""

    old: int
    new: int
    diff: str
    is_cut: bool


def documented_errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the failures of an operation for its documentation; those that all have are added."""
    return {code: {"model": ErrorAnswer} for code in sorted({*codes, 401, 422, 500, 503})}


def invalid(errors: Iterable[Any]) -> JSONResponse:
    """Return the answer to a request of which these parts are invalid; the first few are named."""
    details: list[ErrorDetail] = []
    for problem in errors:
        if len(details) == MAX_DETAILS:
            break
        where = ".".join(str(part)[:MAX_DETAIL_LENGTH] for part in problem["loc"])
        details.append(ErrorDetail(where=_shown(where), message=_shown(str(problem["msg"]))))
    return answer(422, "invalid", "The request is invalid. Correct what the details name.", details)


def failed(error: Exception, challenge: str) -> JSONResponse:
    """Return the answer to a request that failed, whatever the reason."""
    if isinstance(error, RequestValidationError):
        return invalid(error.errors())
    if isinstance(error, HTTPException):
        refusal = answer(error.status_code, "refused", str(error.detail))
        refusal.headers.update(error.headers or {})
        return _with_challenge(refusal, challenge)
    if isinstance(error, ClientDisconnect):
        # Nobody reads it; all the same it is not a failure of the server.
        return answer(400, "refused", "The request ended before its body was complete.")
    for kind, (code, name) in _STATUS.items():
        if isinstance(error, kind):
            refusal = _with_challenge(answer(code, name, str(error)), challenge)
            if isinstance(error, SkillStaleError):
                refusal.headers["ETag"] = f'"{error.revision}"'
            return refusal
    return _not_served(error)


def _with_challenge(refusal: JSONResponse, challenge: str) -> JSONResponse:
    if refusal.status_code == status.HTTP_401_UNAUTHORIZED:
        refusal.headers.setdefault("WWW-Authenticate", challenge)
    return refusal


def _not_served(error: Exception) -> JSONResponse:
    failure = unavailable(error)
    if failure is None:
        logger.error("A request to the skill store failed", exc_info=error)
        return answer(500, "failed", str(error) if isinstance(error, CurrentUserError) else _A_BUG)
    logger.error("A request was not served: %s", failure, exc_info=error)
    return answer(503, "unavailable", _NO_TABLES if are_tables_missing(error) else _NO_ANSWER)


def answer(code: int, name: str, message: str, details: Sequence[ErrorDetail] = ()) -> JSONResponse:
    """Return an error in the envelope."""
    error = ErrorBody(code=name, message=storable(message[:MAX_MESSAGE_LENGTH]), details=list(details))
    return JSONResponse(ErrorAnswer(error=error).model_dump(), status_code=code)


def _shown(text: str) -> str:
    return storable(text if len(text) <= MAX_DETAIL_LENGTH else f"{text[:MAX_DETAIL_LENGTH]}...")
