"""Answers of the store over HTTP: the envelope, large skills, and failures, which are small whatever was sent.

Large answers are put together file by file on the disk, a few at a time, and sent from there.
`route_class` makes sure that nothing leaves the router outside the envelope, wherever it was raised.
"""

import hashlib
import logging
import stat
import time
import weakref
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from fastapi import Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
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
    SkillBusyError,
    SkillConflictError,
    SkillPermissionError,
    SkillPolicyError,
    SkillQuotaError,
    SkillStaleError,
    SkillTooLargeError,
)
from deepskills.store.rules import storable
from deepskills.store.schemas import SkillFileSchema, SkillSchema
from deepskills.store.workers import Turns, in_flight, on_disk, run_in_thread

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


def document_errors(*codes: int) -> dict[int | str, dict[str, Any]]:
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
        details.append(ErrorDetail(where=_show(where), message=_show(str(problem["msg"]))))
    return answer(422, "invalid", "The request is invalid. Fix what the details name.", details)


def answer_failure(error: Exception, challenge: str) -> JSONResponse:
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
    known = next((found for kind, found in _STATUS.items() if isinstance(error, kind)), None)
    if known is None:
        return _not_served(error)
    refusal = _with_challenge(answer(*known, str(error)), challenge)
    if isinstance(error, SkillStaleError):
        refusal.headers["ETag"] = f'"{error.revision}"'
    return refusal


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
    is_busy = isinstance(failure, SkillBusyError)
    # One line: in an outage there are many of them.
    logger.error("A request was not served: %s", failure)
    message = str(failure) if is_busy else _NO_TABLES if are_tables_missing(error) else _NO_ANSWER
    refusal = answer(503, "unavailable", message)
    refusal.headers["Retry-After"] = "1" if is_busy else "5"
    return refusal


def answer(code: int, name: str, message: str, details: Sequence[ErrorDetail] = ()) -> JSONResponse:
    """Return an error in the envelope."""
    error = ErrorBody(code=name, message=storable(message[:MAX_MESSAGE_LENGTH]), details=list(details))
    # Caches may otherwise keep a 404 as they like, and show it to those who may see the skill.
    return JSONResponse(ErrorAnswer(error=error).model_dump(), code, {"Cache-Control": "no-store", **NOSNIFF})


def _show(text: str) -> str:
    return storable(text if len(text) <= MAX_DETAIL_LENGTH else f"{text[:MAX_DETAIL_LENGTH]}...")


JSON_TYPE = "application/json"
ZIP_TYPE = "application/zip"

PIECE_BYTES = 1024 * 1024
"""How much of a large answer is in memory at a time, however slowly a client reads; the rest waits on the disk."""

BYTES_TYPE = "application/octet-stream"
"""The type of every file that is sent as it is: no browser shows it."""

ASSEMBLING_SECONDS = 600.0
"""How long a large answer waits for the others to be put together."""

_FILE_LENGTH = 512
"""About how many bytes each file adds to an answer."""

_assembling = Turns(2)
_DATE = (1980, 1, 1, 0, 0, 0)
_PLAIN_FILE = (stat.S_IFREG | 0o644) << 16

Spool: TypeAlias = "SpooledTemporaryFile[bytes]"


ReadFiles: TypeAlias = Callable[[Sequence[SkillFile]], Awaitable[list[bytes]]]
"""Reads the contents of files that were listed without them."""


async def _contents(files: Iterable[SkillFile], read: ReadFiles) -> AsyncIterator[tuple[SkillFile, bytes]]:
    """Yield files in order of path with their contents, small ones read together."""
    batch: list[SkillFile] = []
    ordered = sorted(files, key=lambda file: file.path)
    for place, file in enumerate(ordered):
        batch.append(file)
        following = ordered[place + 1].size if place + 1 < len(ordered) else PIECE_BYTES
        if sum(each.size for each in batch[-_BATCH:]) + following < PIECE_BYTES and len(batch) < _BATCH:
            continue
        for each, content in zip(batch, await read(batch), strict=True):
            yield each, content
        batch = []


_BATCH = 200
"""How many small files are read together."""


class SpoolResponse(StreamingResponse):
    """Sends what waits on the disk in pieces, and closes it, even if the client leaves."""

    def __init__(self, spool: Spool, code: int, headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(iter(partial(spool.read, PIECE_BYTES), b""), code, headers, media_type)
        self._spool = spool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._spool:
            await super().__call__(scope, receive, send)


def new_spool() -> tuple[Spool, Callable[[int], None]]:
    """Return a file for a large answer, on the disk from a size on, and the function that holds room for it there."""
    spool: Spool = SpooledTemporaryFile(PIECE_BYTES)  # noqa: SIM115 - closed when it was sent
    held = ExitStack()
    # With the file, when its last user lets go of it.
    weakref.finalize(spool, held.close)
    return spool, held.enter_context(on_disk.hold())


def send(body: bytes, media_type: str, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a body; a large one waits on the disk, however slowly a client reads.

    Raises:
        SkillBusyError: If there is no room for it now.
    """
    if len(body) <= PIECE_BYTES:
        return Response(body, code, headers, media_type)
    spool, hold_more = new_spool()
    hold_more(len(body))
    spool.write(body)
    return send_spool(spool, media_type, code, headers)


def send_spool(spool: Spool, media_type: str, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return what was put together, in pieces if it is large: it waits on the disk, however slowly a client reads."""
    size = spool.tell()
    spool.seek(0)
    if size <= PIECE_BYTES:
        with spool:
            return Response(spool.read(), code, headers, media_type)
    return SpoolResponse(spool, code, {**(headers or {}), "content-length": str(size)}, media_type)


async def answer_skill(
    skill: Skill, *, read: ReadFiles | None = None, code: int = 200, tagged: bool = True
) -> Response:
    """Return the answer with a skill.

    Args:
        skill: The skill.
        read: Reads the contents of files; `None` leaves out all contents.
        code: The status.
        tagged: With an `ETag` that names its revision.
    """
    headers = etag(skill.revision) if tagged else {}
    if read is None:
        size = len(skill.content) + _FILE_LENGTH * len(skill.files)
        return as_json(await run_in_thread(size, lambda: wrap(SkillSchema.of(skill, contents=False))), code, headers)
    spool, hold_more = new_spool()

    def write(part: bytes) -> None:
        hold_more(len(part))
        spool.write(part)

    async with _assembling.turn(ASSEMBLING_SECONDS):
        shown = SkillSchema.of(skill, files=False)
        write((await run_in_thread(len(skill.content), lambda: wrap(shown))).removesuffix(b',"files":null}}'))
        separator = b',"files":['
        async for file, content in _contents(skill.files, read):
            schema = SkillFileSchema.of(file, content=content)
            part = await run_in_thread(len(content), lambda: schema.model_dump_json().encode())  # noqa: B023 - done at once
            write(separator + part)
            separator = b","
    write(b"]}}" if separator == b"," else b',"files":[]}}')
    return send_spool(spool, JSON_TYPE, code, headers)


async def only(skill: Skill) -> AsyncIterator[Skill]:
    """Yield one skill, for an archive."""
    yield skill


async def send_archive(skills: AsyncIterator[Skill], read: ReadFiles, name: str) -> Response:
    """Return a `.zip` with skills, each in a directory with its name, as a download."""
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}.zip"}
    return send_spool(await zip_skills(skills, read), ZIP_TYPE, headers=headers)


async def zip_skills(skills: AsyncIterator[Skill], read: ReadFiles, *, alone: bool = False) -> Spool:
    """Return a `.zip` with skills, each in a directory with its name.

    It is written before any of it is sent, so that a failure is still an answer of its own.

    Args:
        skills: The skills.
        read: Reads the contents of their files.
        alone: Without directories for skills, and not compressed: releases of zlib differ, and what has a digest has to
            be the same in every process.

    Raises:
        SkillBusyError: If there is no room for one of the skills now.
    """
    spool, hold_more = new_spool()
    try:
        with zipfile.ZipFile(spool, "w") as archive:

            async def add(path: str, content: bytes) -> None:
                # One date for all, so that the same skill gives the same archive.
                entry = zipfile.ZipInfo(path, _DATE)
                entry.external_attr = _PLAIN_FILE
                method = zipfile.ZIP_STORED if alone else zipfile.ZIP_DEFLATED
                await run_in_thread(len(content), lambda: archive.writestr(entry, content, method))

            async for skill in skills:
                hold_more(skill.size)
                directory = "" if alone else f"{skill.name}/"
                async with _assembling.turn(ASSEMBLING_SECONDS):
                    with in_flight.hold(skill.size):
                        await add(f"{directory}{SKILL_FILE}", document_of(skill).render())
                        async for file, content in _contents(skill.files, read):
                            await add(f"{directory}{file.path}", content)
    except BaseException:
        spool.close()
        raise
    return spool


async def send_file(file: SkillFile, read: ReadFiles, headers: dict[str, str]) -> Response:
    """Return the bytes of a file, of a type that browsers save and never show."""
    return send((await read([file]))[0], BYTES_TYPE, headers=headers)


def answer_file(file: SkillFile, code: int = 200) -> Response:
    """Return the answer with a file that was written, without its content, and the skill's current revision."""
    return as_json(wrap(SkillFileSchema.of(file)), code, etag(file.skill_revision))


def etag(revision: int) -> dict[str, str]:
    """Return the header that names a revision of a skill."""
    return {"ETag": f'"{revision}"'}


def wrap(data: BaseModel) -> bytes:
    """Return data in the envelope."""
    return b'{"success":true,"data":' + data.model_dump_json().encode() + b"}"


def as_json(body: bytes, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON as a response."""
    return send(body, JSON_TYPE, code, headers)


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
                begun = time.monotonic()
                try:
                    return _measure(self.path, begun, request, answer_cached(request, await handler(request)))
                except Exception as error:
                    if not isinstance(error, _OWN) and _is_for_the_application(request, error):
                        raise
                    return _measure(self.path, begun, request, answer_failure(error, self.challenge))

            return handle

    return EnvelopeRoute


def _measure(path: str, begun: float, request: Request, response: Response) -> Response:
    """Return an answer whose time was measured, if the extra `otel` is installed."""
    if _durations is not None:
        route = {"http.route": path, "http.request.method": request.method}
        _durations.record(time.monotonic() - begun, {**route, "http.response.status_code": response.status_code})
    return response


def _histogram() -> Any:  # noqa: ANN401 - an instrument, if OpenTelemetry is installed
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None
    meter = metrics.get_meter("deepskills.store")
    meter.create_observable_gauge(
        "deepskills.store.bytes_in_flight",
        [lambda _options: [metrics.Observation(in_flight.held)]],
        unit="By",
        description="How many bytes of requests the process works on.",
    )
    return meter.create_histogram(
        "deepskills.store.request.duration", unit="s", description="How long requests to the store took."
    )


_durations = _histogram()

VARY = "Authorization, Cookie"
"""What an answer depends on, beside its address."""


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has the answer with that `ETag` already."""
    known = {given.strip().removeprefix("W/") for given in request.headers.get("if-none-match", "").split(",")}
    return tag in known or "*" in known


NOSNIFF = {"X-Content-Type-Options": "nosniff"}
"""Keeps a browser from running a stranger's text as a script or a style sheet of this origin."""


def answer_cached(request: Request, response: Response) -> Response:
    """Return an answer that browsers may keep and proxies may not, or a 304 if the client has it already."""
    response.headers.update(NOSNIFF)
    if request.method not in {"GET", "HEAD"}:
        return response
    response.headers.setdefault("Cache-Control", "private, no-cache")
    response.headers.setdefault("Vary", VARY)
    if "ETag" not in response.headers and not isinstance(response, StreamingResponse):
        response.headers["ETag"] = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    if "ETag" not in response.headers or not is_known(request, response.headers["ETag"]):
        return response
    kept = ("etag", "cache-control", "vary")
    return Response(
        status_code=304, headers={name: response.headers[name] for name in kept if name in response.headers}
    )


def _is_for_the_application(request: Request, error: Exception) -> bool:
    """Whether the application has its own handler for what one of its functions raised."""
    handlers, _by_status = request.scope.get("starlette.exception_handlers", ({}, {}))
    return any(kind in handlers for kind in type(error).__mro__)
