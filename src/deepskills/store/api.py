"""The store over HTTP. Needs the extra `api`."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from deepskills._errors import SkillFormatError, SkillNotFoundError, SkillPathError, SkillsError
from deepskills.store._checks import UserId, signed_in
from deepskills.store._errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillTooLargeError,
)
from deepskills.store._models import Skill
from deepskills.store._rules import MAX_TAGS, StoreLimits, storable
from deepskills.store._schemas import SkillCreate, SkillFileCreate, SkillFileSchema, SkillSchema, SkillUpdate
from deepskills.store._service import SkillService
from deepskills.store._unavailable import are_tables_missing, unavailable
from deepskills.store._view import SessionFactory

__all__ = ["create_skills_router"]

logger = logging.getLogger("deepskills")

DataT = TypeVar("DataT")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
CurrentUser = Callable[..., Any]
"""A FastAPI dependency, sync or async, that gives a user id or `None`."""

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Largest request body by default."""

MAX_DRAINED_BYTES = 64 * 1024 * 1024
"""How much of a body that is too large is read and dropped, so that the client gets to read the answer."""

_STATUS: dict[type[Exception], tuple[int, str]] = {
    SkillAuthenticationError: (status.HTTP_401_UNAUTHORIZED, "not-signed-in"),
    SkillPermissionError: (status.HTTP_403_FORBIDDEN, "not-owner"),
    SkillNotFoundError: (status.HTTP_404_NOT_FOUND, "not-found"),
    SkillConflictError: (status.HTTP_409_CONFLICT, "conflict"),
    SkillTooLargeError: (413, "too-large"),
    SkillFormatError: (422, "invalid"),
    SkillPathError: (422, "invalid"),
}

_UNPARSED_BODY = "There was an error parsing the body"
"""What FastAPI says with a 400 of its own; others are the application's."""

_NO_ANSWER = "The skill database did not answer. Try again later."
_NO_TABLES = "The skill database has no tables yet, or old ones. Its operator runs `migrations.upgrade`."


class ErrorDetail(BaseModel):
    """One part of a request that is invalid."""

    where: str
    message: str


class ErrorBody(BaseModel):
    """What went wrong, for programs and for people."""

    code: str
    message: str
    details: list[ErrorDetail] = Field(default_factory=list)


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    success: Literal[False] = False
    error: ErrorBody


class Answer(BaseModel, Generic[DataT]):
    """The answer to a request that was served."""

    success: Literal[True] = True
    data: DataT


class Deleted(BaseModel):
    """What was deleted."""

    id: UUID


def create_skills_router(
    session_factory: SessionFactory,
    current_user: CurrentUser,
    *,
    limits: StoreLimits | None = None,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> APIRouter:
    """Return the routes of the store, to be included under a prefix such as `/api/v1`.

    Every answer is `{"success": true, "data": ...}` or `{"success": false, "error": {...}}`, errors of validation, of
    `current_user` and of the database included.

    Args:
        session_factory: Opens a session, such as an `async_sessionmaker`.
        current_user: A FastAPI dependency that gives the user id of a request, or `None` for nobody.
        limits: How large skills may be, and which files they may hold.
        max_request_bytes: Largest request body.
    """
    router = APIRouter(tags=["skills"], route_class=_route_class(max_request_bytes))

    async def open_service() -> AsyncIterator[SkillService]:
        async with session_factory() as session:
            yield SkillService(session, limits=limits)

    service_of_request = Annotated[SkillService, Depends(open_service)]
    user_of_request = Annotated[UserId | None, Depends(current_user)]

    async def check_signed_in(user: user_of_request) -> UserId:
        return signed_in(user)

    writer_of_request = Annotated[UserId, Depends(check_signed_in)]
    tag_filter = Annotated[list[str] | None, Query(max_length=MAX_TAGS)]

    @router.get("/skills", responses=_errors(422))
    async def list_skills(
        service: service_of_request,
        user: user_of_request,
        include_public: bool = True,  # noqa: FBT001, FBT002 - a query parameter
        tags: tag_filter = None,
    ) -> Answer[list[SkillSchema]]:
        """List the skills that one may see, without the contents of their files; with tags, those that have one."""
        return Answer(data=_shown(await service.list_skills(user, include_public, tags)))

    @router.post("/skills", status_code=201, responses=_errors(401, 409, 413, 422))
    async def create_skill(
        data: SkillCreate, service: service_of_request, user: writer_of_request
    ) -> Answer[SkillSchema]:
        """Create a skill with its files, all or nothing."""
        return Answer(data=SkillSchema.of(await service.create_skill(data, user)))

    @router.get("/skills/{skill_id}", responses=_errors(404, 422))
    async def get_skill(skill_id: UUID, service: service_of_request, user: user_of_request) -> Answer[SkillSchema]:
        """Get a skill with its files."""
        return Answer(data=SkillSchema.of(await service.get_skill(skill_id, user)))

    @router.put("/skills/{skill_id}", responses=_errors(401, 403, 404, 409, 413, 422))
    async def update_skill(
        skill_id: UUID, data: SkillUpdate, service: service_of_request, user: writer_of_request
    ) -> Answer[SkillSchema]:
        """Change a skill; what is left out stays."""
        return Answer(data=SkillSchema.of(await service.update_skill(skill_id, data, user)))

    @router.delete("/skills/{skill_id}", responses=_errors(401, 403, 404, 422))
    async def delete_skill(skill_id: UUID, service: service_of_request, user: writer_of_request) -> Answer[Deleted]:
        """Delete a skill with its files."""
        await service.delete_skill(skill_id, user)
        return Answer(data=Deleted(id=skill_id))

    @router.post("/skills/{skill_id}/files", status_code=201, responses=_errors(401, 403, 404, 409, 413, 422))
    async def add_file(
        skill_id: UUID, data: SkillFileCreate, service: service_of_request, user: writer_of_request
    ) -> Answer[SkillFileSchema]:
        """Add a file to a skill."""
        return Answer(data=SkillFileSchema.of(await service.add_file(skill_id, data, user)))

    @router.delete("/skills/files/{file_id}", responses=_errors(401, 403, 404, 422))
    async def delete_file(file_id: UUID, service: service_of_request, user: writer_of_request) -> Answer[Deleted]:
        """Delete a file of a skill."""
        await service.delete_file(file_id, user)
        return Answer(data=Deleted(id=file_id))

    return router


def _shown(skills: Iterable[Skill]) -> list[SkillSchema]:
    """Return skills as they are shown; a row that other hands than the service's spoiled is left out, and logged."""
    shown = []
    for skill in skills:
        try:
            shown.append(SkillSchema.of(skill))
        except Exception as error:  # noqa: BLE001 - one skill's failure, whatever it is, costs no other
            logger.error("Skill %s cannot be listed: %s: %s", skill.id, type(error).__name__, error)  # noqa: TRY400 - the message says it all
    return shown


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": ErrorAnswer} for code in (*codes, 503)}


def _route_class(max_request_bytes: int) -> type[APIRoute]:
    """Return the class of routes that bound their bodies and answer every failure in the envelope."""
    methods: dict[str, set[str]] = {}

    class EnvelopeRoute(APIRoute):
        limit: ClassVar[int] = max_request_bytes

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
            super().__init__(path, endpoint, **options)
            methods.setdefault(path, set()).update(self.methods or ())

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] in (self.methods or ()):
                await super().handle(scope, receive, send)
                return
            answer = _answer(405, "method-not-allowed", f"This address does not take {scope['method']}.")
            answer.headers["Allow"] = ", ".join(sorted(methods[self.path]))
            await answer(scope, receive, send)

        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await _served(handler, await _bounded(request, self.limit))
                except RequestValidationError as error:
                    return _invalid(error)
                except HTTPException as error:
                    return _refused(error)
                except Exception as error:
                    # Some of our own are `ValueError` or `LookupError` too: no handler for those takes them.
                    if not isinstance(error, SkillsError) and _is_for_the_application(request, error):
                        raise
                    return _failed(error)

            return handle

    return EnvelopeRoute


async def _served(handler: Handler, request: Request) -> Response:
    """Return the answer to a request whose body may be anything."""
    try:
        return await handler(request)
    except (RequestValidationError, HTTPException) as error:
        if not _is_unreadable(error):
            raise
        # FastAPI reads a body before it asks whose it is, and a body that cannot be read is told to writers alone.
        with suppress(RequestValidationError):
            await handler(_with_body(request, b""))
        raise


async def _bounded(request: Request, limit: int) -> Request:
    """Return the request with its body read, as long as that stays within the limit.

    Raises:
        SkillTooLargeError: If it does not.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > limit + MAX_DRAINED_BYTES:
            break
    if size > limit:
        raise SkillTooLargeError(f"The request is larger than {limit} bytes. Send files one by one, or shrink them.")
    return _with_body(request, b"".join(chunks))


def _with_body(request: Request, body: bytes) -> Request:
    replies: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return replies.pop() if replies else await request.receive()

    return Request(request.scope, receive)


def _invalid(error: RequestValidationError) -> JSONResponse:
    details = [
        ErrorDetail(where=".".join(map(str, problem["loc"])), message=str(problem["msg"])) for problem in error.errors()
    ]
    return _answer(422, "invalid", "The request is invalid. Correct what the details name.", details)


def _refused(error: HTTPException) -> JSONResponse:
    if _is_unreadable(error):
        return _answer(422, "invalid", "The body is not readable as JSON. Send JSON in UTF-8.")
    answer = _answer(error.status_code, "refused", str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _is_unreadable(error: RequestValidationError | HTTPException) -> bool:
    """Whether the body is no JSON, cannot be decoded, nests too deep, or holds a number that is too long."""
    if isinstance(error, RequestValidationError):
        return any(problem["type"] == "json_invalid" for problem in error.errors())
    return error.detail == _UNPARSED_BODY and isinstance(error.__cause__, ValueError | RecursionError)


def _is_for_the_application(request: Request, error: Exception) -> bool:
    """Whether the application has a handler of its own for what one of its functions raised."""
    handlers, _by_status = request.scope.get("starlette.exception_handlers", ({}, {}))
    return any(kind in handlers for kind in type(error).__mro__)


def _failed(error: Exception) -> JSONResponse:
    for kind, (code, name) in _STATUS.items():
        if isinstance(error, kind):
            return _answer(code, name, str(error))
    failure = unavailable(error)
    if failure is None:
        logger.error("A request to the skill store failed", exc_info=error)
        return _answer(
            500, "failed", "The request failed for a reason that is not its own. The log of the server has it."
        )
    logger.error("A request was not served: %s", failure, exc_info=error)
    return _answer(503, "unavailable", _NO_TABLES if are_tables_missing(error) else _NO_ANSWER)


def _answer(code: int, name: str, message: str, details: list[ErrorDetail] | None = None) -> JSONResponse:
    error = ErrorBody(code=name, message=storable(message))
    content = ErrorAnswer(error=error).model_dump()
    content["error"]["details"] = [
        {"where": storable(detail.where), "message": storable(detail.message)} for detail in details or []
    ]
    return JSONResponse(content, status_code=code)
