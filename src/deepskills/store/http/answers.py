"""Answers of the store over HTTP: the envelope, skills sent in pieces, and failures, which are small whatever was sent.

Large skills are serialized in pieces off the event loop, so that one client's large answer does not delay the others.
`route_class` makes sure that nothing leaves the router outside the envelope, whoever raised it.
"""

import base64
import codecs
import datetime as dt
import functools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from json.encoder import encode_basestring
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar
from urllib.parse import quote
from uuid import UUID

from fastapi import Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import StatementError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from deepskills._errors import SkillFileNotFoundError, SkillFormatError, SkillNotFoundError, SkillPathError, SkillsError
from deepskills._types import SKILL_FILE
from deepskills.store.db.engine import are_tables_missing, unavailable
from deepskills.store.db.models import Skill, SkillFile, document_of
from deepskills.store.errors import (
    SkillAuthenticationError,
    SkillConflictError,
    SkillPermissionError,
    SkillPolicyError,
    SkillQuotaError,
    SkillStaleError,
    SkillTooLargeError,
)
from deepskills.store.packages import ZipWriter
from deepskills.store.rules import MAX_DAYS, MAX_GROUPS, MAX_OWNER_LENGTH, Right, storable
from deepskills.store.schemas import SkillFileSchema, SkillSchema
from deepskills.store.workers import computed

logger = logging.getLogger("deepskills")

DataT = TypeVar("DataT")

MAX_DETAILS = 20
"""How many parts of an invalid request an answer names."""

MAX_DETAIL_LENGTH = 200
"""How many characters of each part are shown."""

MAX_MESSAGE_LENGTH = 2_000
"""Longest error message."""

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
"""Status and code by type of error; a subclass comes before its base classes."""

_NO_ANSWER = "The skill database did not answer. Try again later."
_NO_TABLES = "The tables of the skill database are missing or out of date. Its operator must run `migrations.upgrade`."
_A_BUG = "The server failed, and the request is not the cause. The server's log says why."


class CurrentUserError(TypeError):
    """The application's `current_user` returned something that is not a user id; the message may be shown."""


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
    """One page of a listing; it has a `next_cursor` if there are more."""

    success: Literal[True] = True
    data: list[DataT]
    next_cursor: str | None = None


class Deleted(BaseModel):
    """What was deleted."""

    id: UUID


class VersionSchema(BaseModel):
    """One revision of a skill: who did what and when."""

    model_config = ConfigDict(from_attributes=True)

    revision: int
    name: str
    action: str
    user_id: str | None
    at: datetime


class ChangeSchema(VersionSchema):
    """One change: who did what to which skill and when."""

    skill_id: UUID
    owner_id: str | None


class UsageSchema(BaseModel):
    """How often a skill was used on one day, by type of event and trigger."""

    model_config = ConfigDict(from_attributes=True)

    day: dt.date
    type: str
    trigger: str
    count: int


class Approval(BaseModel):
    """The revision that an operator looked at."""

    model_config = ConfigDict(extra="forbid")

    revision: int = Field(ge=1, lt=1 << 63)


class Hiding(BaseModel):
    """Whether a skill is hidden."""

    model_config = ConfigDict(extra="forbid")

    hidden: bool = True


class Handover(BaseModel):
    """The new owner of a skill."""

    model_config = ConfigDict(extra="forbid")

    owner_id: str = Field(min_length=1, max_length=MAX_OWNER_LENGTH)


class Sharing(BaseModel):
    """The groups to share a skill with, and what their members may do."""

    model_config = ConfigDict(extra="forbid")

    shared_with: dict[str, Right] = Field(max_length=MAX_GROUPS)


class Purging(BaseModel):
    """What to remove permanently, by age in days."""

    model_config = ConfigDict(extra="forbid")

    retention: float | None = Field(default=None, ge=0, le=MAX_DAYS)
    versions: float | None = Field(default=None, ge=0, le=MAX_DAYS)


class Purged(BaseModel):
    """How many skills were permanently removed."""

    purged: int


class DiffSchema(BaseModel):
    """The changes between two revisions, as a unified diff; `is_cut` if it was too long to send all of it."""

    old: int
    new: int
    diff: str
    is_cut: bool


def documented_errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the failures of an operation for its documentation, including those that all operations share."""
    return {code: {"model": ErrorAnswer} for code in sorted({*codes, 401, 422, 500, 503})}


def invalid(errors: Iterable[Any]) -> JSONResponse:
    """Return the answer to a request with invalid parts; the first few are named."""
    details: list[ErrorDetail] = []
    for problem in errors:
        # A body of a million wrong values must not become an answer of a million lines.
        if len(details) == MAX_DETAILS:
            break
        where = ".".join(str(part)[:MAX_DETAIL_LENGTH] for part in problem["loc"])
        details.append(ErrorDetail(where=_shown(where), message=_shown(str(problem["msg"]))))
    return answer(422, "invalid", "The request is invalid. Fix what the details name.", details)


def failed(error: Exception, challenge: str) -> JSONResponse:
    """Return the answer to a request that failed, whatever the reason."""
    if isinstance(error, RequestValidationError):
        return invalid(error.errors())
    if isinstance(error, HTTPException):
        refusal = answer(error.status_code, "refused", str(error.detail))
        refusal.headers.update(error.headers or {})
        return _with_challenge(refusal, challenge)
    if isinstance(error, ClientDisconnect):
        # The client is gone and reads no answer; still, this is not a failure of the server.
        return answer(400, "refused", "The request ended before its body was complete.")
    if isinstance(error, SkillPolicyError):
        logger.error("The skill store is not set up right: %s", error)
        return answer(500, "failed", str(error))
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
    if isinstance(error, StatementError):
        # Even if the application's engine shows them: the values of a statement are people's private texts.
        error.hide_parameters = True
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


JSON_TYPE = "application/json"

PIECE_BYTES = 1024 * 1024 - 1
"""How much of a file is in memory at a time. A multiple of three, so that pieces of base64 can be joined."""

TEXT_LENGTH = PIECE_BYTES // 6
"""How many characters of a text are escaped in one step: each may become six."""

BYTES_TYPE = "application/octet-stream"
"""The type of every file that is sent as it is: no browser shows it."""

WHOLE_BYTES = 1024 * 1024
"""Up to this size, an answer is sent in one piece, with its length."""

_FILE_LENGTH = 512
"""About how many bytes each file adds to an answer."""


class ReadsFiles(Protocol):
    """Reads the contents of files that were listed without them."""

    async def read_piece(self, file: SkillFile, offset: int, length: int) -> bytes:
        """Return part of a file: from an offset, so many bytes at most."""

    async def read_files(self, files: Sequence[SkillFile]) -> list[bytes]:
        """Return whole files, which are small together."""


async def shown_skill(
    skill: Skill, *, read: ReadsFiles | None = None, code: int = 200, tagged: bool = True
) -> Response:
    """Return the answer with a skill.

    Args:
        skill: The skill.
        read: Reads contents of files that were not read yet; `None` leaves out all contents.
        code: The status.
        tagged: With an `ETag` that names its revision.
    """
    size = len(skill.content) + _FILE_LENGTH * len(skill.files)
    if read is not None:
        size += sum(file.size for file in skill.files)
    headers = etag(skill.revision) if tagged else {}
    # Fail here if the skill cannot be shown: once the answer has begun, no error can be sent.
    shown = SkillSchema.of(skill, files=False).model_dump_json(exclude={"content", "files"})
    for file in skill.files if read is not None else ():
        _ = file.content if file.has_content else None
    pieces = _pieces(shown, skill, read)
    if size > WHOLE_BYTES:
        return StreamingResponse(pieces, code, headers, JSON_TYPE)
    return as_json(b"".join([piece async for piece in pieces]), code, headers)


async def _pieces(shown: str, skill: Skill, read: ReadsFiles | None) -> AsyncIterator[bytes]:
    """Yield the answer with a skill, so that one piece of one file is held at a time."""
    # Put together by hand: a JSON library would want the whole skill in memory, and once more as text.
    yield f'{{"success":true,"data":{shown.removesuffix("}")},"content":"'.encode()
    for start in range(0, len(skill.content), PIECE_BYTES):
        part = skill.content[start : start + PIECE_BYTES]
        for text in _slices(part):
            yield await computed(len(text), functools.partial(_escaped, text))
    yield b'","files":['
    begun = ""
    for files in batches(skill.files):
        contents = await _whole(files, read) if read is not None else {}
        for file in files:
            described = SkillFileSchema.of(file, content=False).model_dump_json(exclude={"content"}).removesuffix("}")
            yield f'{begun}{described},"content":'.encode()
            begun = ","
            if read is None:
                yield b"null}"
                continue
            yield b'"'
            async for piece in _content(file, contents.get(file.path), read):
                yield piece
            yield b'"}'
    yield b"]}}"


def batches(files: Iterable[SkillFile]) -> Iterator[list[SkillFile]]:
    """Yield files in order of path, those together that take no more memory than a piece of a large one."""
    batch: list[SkillFile] = []
    # Added up as it goes: thousands of sums over thousands of files would keep the event loop for a second.
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if batch and size + file.size > PIECE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


async def _whole(files: Sequence[SkillFile], read: ReadsFiles) -> dict[str, bytes]:
    """Return the contents of a batch by path, read by one call; none for a large file, which is read in pieces."""
    if any(file.size > PIECE_BYTES for file in files):
        return {}
    unread = [file for file in files if not file.has_content]
    contents = await read.read_files(unread) if unread else []
    found = {file.path: content for file, content in zip(unread, contents, strict=True)}
    return found | {file.path: file.data for file in files if file.has_content}


async def _content(file: SkillFile, content: bytes | None, read: ReadsFiles) -> AsyncIterator[bytes]:
    """Yield a file's content, if it was read already from there, as it stands in JSON, between the quotes."""
    # Pieces are cut by bytes, and a character may lie across the cut.
    decoder = codecs.getincrementaldecoder("utf-8")()
    known = file.data if content is None and file.has_content else content
    for offset in range(0, file.size, PIECE_BYTES):
        if known is not None:
            data = known[offset : offset + PIECE_BYTES]
        else:
            data = await read.read_piece(file, offset, PIECE_BYTES)
        is_last = offset + PIECE_BYTES >= file.size

        if not file.is_text:
            yield await computed(len(data), functools.partial(base64.b64encode, data))
            continue
        for text in _slices(decoder.decode(data, is_last)):
            yield await computed(len(text), functools.partial(_escaped, text))


def _slices(text: str) -> Iterator[str]:
    """Yield parts of a text that stay small even if every character is escaped."""
    return (text[start : start + TEXT_LENGTH] for start in range(0, len(text), TEXT_LENGTH))


def _escaped(text: str) -> bytes:
    return encode_basestring(text)[1:-1].encode()


async def archive_of(skills: AsyncIterator[tuple[str, Skill]], read: ReadsFiles) -> AsyncIterator[bytes]:
    """Yield a `.zip` with skills, each in a directory, so that one piece of one file is held at a time."""
    writer = ZipWriter()
    async for directory, skill in skills:
        text = document_of(skill).render()
        yield await computed(len(text), lambda: writer.whole(f"{directory}/{SKILL_FILE}", text))  # noqa: B023 - done at once
        for files in batches(skill.files):
            contents = await _whole(files, read)
            if contents:
                size = sum(file.size for file in files)
                yield await computed(size, functools.partial(_packed, writer, directory, contents))
                continue
            for file in files:
                writer.begin(f"{directory}/{file.path}", file.size)
                for offset in range(0, file.size, PIECE_BYTES):
                    data = await read.read_piece(file, offset, PIECE_BYTES)
                    yield await computed(len(data), lambda: writer.write(data))  # noqa: B023 - done at once
                yield writer.end()
    yield writer.close()


def _packed(writer: ZipWriter, directory: str, contents: Mapping[str, bytes]) -> bytes:
    """Return what files become in an archive."""
    return b"".join(writer.whole(f"{directory}/{path}", contents[path]) for path in sorted(contents))


def sent_archive(pieces: AsyncIterator[bytes], name: str) -> Response:
    """Return a `.zip` as a download with that name, which may only have letters, digits and hyphens."""
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}.zip"}
    return StreamingResponse(pieces, 200, headers, "application/zip")


async def sent_file(file: SkillFile, read: ReadsFiles, headers: dict[str, str]) -> Response:
    """Return the bytes of a file, of a type that browsers save and never show."""
    if file.size <= PIECE_BYTES:
        (content,) = await read.read_files([file])
        return Response(content, 200, headers, BYTES_TYPE)

    async def pieces() -> AsyncIterator[bytes]:
        for offset in range(0, file.size, PIECE_BYTES):
            yield await read.read_piece(file, offset, PIECE_BYTES)

    return StreamingResponse(pieces(), 200, {**headers, "content-length": str(file.size)}, BYTES_TYPE)


def shown_file(file: SkillFile, code: int = 200) -> Response:
    """Return the answer with a file that was written, without its content, and the skill's current revision."""
    return as_json(written(SkillFileSchema.of(file, content=False)), code, etag(file.skill_revision))


def etag(revision: int) -> dict[str, str]:
    """Return the header that names a revision of a skill."""
    return {"ETag": f'"{revision}"'}


def written(data: BaseModel) -> bytes:
    """Return data in the envelope."""
    return b'{"success":true,"data":' + data.model_dump_json().encode() + b"}"


def as_json(body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON as a response."""
    return Response(body, code, headers, JSON_TYPE)


Handler = Callable[[Request], Coroutine[Any, Any, Response]]

NO_METHOD = "-"
"""A method that no request has: a route with only this method never matches fully, so others come first."""

NOTHING_HERE = "There is nothing at this address. See the documentation for the addresses."
"""The answer for an address without an operation."""

_OWN = (SkillsError, RequestValidationError, HTTPException, CurrentUserError, ClientDisconnect)
"""Errors that the router answers itself. Some are also a `ValueError` or `LookupError`; handlers for those are
skipped."""


def route_class(www_authenticate: str) -> type[APIRoute]:
    """Return the class of routes that answer every failure in the envelope."""
    # By path: each method of an address is a separate route, and a 405 has to name the methods of all of them.
    methods: dict[str, set[str]] = {}

    class EnvelopeRoute(APIRoute):
        challenge: ClassVar[str] = www_authenticate

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
            super().__init__(path, endpoint, **options)
            methods.setdefault(path, set()).update(self.methods or ())

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            # Starlette would answer 405 by itself, outside the envelope.
            if scope["method"] in (self.methods or ()):
                await super().handle(scope, receive, send)
                return
            allowed = methods[self.path] - {NO_METHOD}
            if not allowed:
                refusal = answer(404, "not-found", NOTHING_HERE)
            else:
                refusal = answer(405, "method-not-allowed", f"This address does not take {scope['method']}.")
                refusal.headers["Allow"] = ", ".join(sorted(allowed))
            await refusal(scope, receive, send)

        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await handler(request)
                except Exception as error:
                    if not isinstance(error, _OWN) and _is_for_the_application(request, error):
                        raise
                    return failed(error, self.challenge)

            return handle

    return EnvelopeRoute


def _is_for_the_application(request: Request, error: Exception) -> bool:
    """Whether the application has its own handler for what one of its functions raised."""
    handlers, _by_status = request.scope.get("starlette.exception_handlers", ({}, {}))
    return any(kind in handlers for kind in type(error).__mro__)
