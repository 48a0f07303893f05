"""Reads requests to the store over HTTP: who sent them, their bodies, and which revision the client knows.

Identity comes before the body: an anonymous write is refused before anything is read. Bodies are bounded, each and all
that are in flight together, and parsed off the event loop.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ValidationError

from deepskills._errors import SkillFormatError
from deepskills.store.db.engine import SessionFactory
from deepskills.store.db.models import SkillFile
from deepskills.store.errors import SkillStaleError, SkillTooLargeError
from deepskills.store.http.answers import MAX_DETAILS, CurrentUserError
from deepskills.store.packages import measure_unpacked, unpack
from deepskills.store.rules import Policy, require_user
from deepskills.store.schemas import SkillFileContent
from deepskills.store.service import SkillService
from deepskills.store.workers import in_flight, run_in_thread

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Largest request body by default."""

FILE_TYPE = "application/vnd.deepskills.file+json"
"""The content type of a file sent as JSON, with its encoding, whatever its name."""

ZIP_TYPES = frozenset({"application/zip", "application/x-zip-compressed", "application/x-zip"})
"""Content types of archives."""

MAX_VALUES = 150_000
"""How many texts, brackets and commas JSON has at most: each takes up to a kilobyte while it is parsed."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A text in JSON, or what is left of one that does not end."""


@asynccontextmanager
async def bound_body(request: Request, limit: int, user: str) -> AsyncIterator[bytes]:
    """Give the body of a request, which counts as in flight from when it arrives.

    Raises:
        SkillTooLargeError: If it is larger than the limit; no more than that is read.
        SkillBusyError: If there is no room for it now.
    """
    # A client that declares its length is refused before it sends anything; one that lies about it is cut off.
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > len(str(limit)) or int(declared) > limit):
        raise _too_large(limit)
    body = bytearray()
    # Not what is declared: a client that announces much and sends nothing would keep others out.
    with in_flight.hold(user=user) as hold_more:
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise _too_large(limit)
            hold_more(len(chunk))
            body += chunk
        whole = bytes(body)
        body.clear()
        yield whole


def content_type(request: Request) -> str:
    """Return the media type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    """Whether a media type is JSON; browsers send it to another site only if that site allows it."""
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def check_not_forged(request: Request) -> None:
    """Check that a write without a body was not sent by a page of another site.

    If people sign in with a cookie, their browser adds it to whatever any page makes it send: a form, or a request
    without a body. But without this server's consent, such a page cannot send JSON or a custom header. Headers that
    proxies add prove nothing if a browser sent the request, which `Origin` or `Sec-Fetch-Site` shows.

    Raises:
        SkillFormatError: If the request has nothing that only a client of this store would send.
    """
    media_type = content_type(request)
    if is_json(media_type) or any(name in request.headers for name in _OWN_HEADERS):
        return
    is_from_a_browser = "origin" in request.headers or "sec-fetch-site" in request.headers
    if not media_type and not is_from_a_browser and any(name.startswith("x-") for name in request.headers):
        return
    raise SkillFormatError("A form could have sent this request. Send it as `application/json`, or with `If-Match`.")


_OWN_HEADERS = ("authorization", "if-match", "x-requested-with", "x-csrf-token")
"""Headers that a page on another site cannot make a browser send without this server's consent."""


def parse_body(model: type[ModelT], body: bytes) -> ModelT:
    """Return a body as a model.

    Raises:
        RequestValidationError: If it is not valid; the first problems are named.
        SkillTooLargeError: If it has too many values.
    """
    _check_values(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        problems: list[Any] = [{**problem, "loc": ("body", *problem["loc"])} for problem in islice(found, MAX_DETAILS)]
        raise RequestValidationError(problems) from None


def _check_values(body: bytes) -> None:
    """Check how many values JSON has: a few megabytes of brackets become gigabytes.

    Raises:
        SkillTooLargeError: If they are too many.
    """

    def count(start: int, end: int) -> int:
        return sum(body.count(sign, start, end) for sign in (b",", b"[", b"{"))

    found = end = 0
    for text in _TEXT.finditer(body):
        found += 1 + count(end, text.start())
        end = text.end()
        if found > MAX_VALUES:
            break
    if found + count(end, len(body)) > MAX_VALUES:
        raise SkillTooLargeError(
            f"The request has more than {MAX_VALUES} values. Send a skill of many files as a .zip."
        )


def file_content(path: str, media_type: str, body: bytes) -> bytes | str:
    """Return a file that was sent: its bytes as they are, or the content inside our own JSON.

    JSON is our own if its content type says so, or if it has exactly our keys and the file is not a `.json` file.

    Raises:
        RequestValidationError: If our own JSON is not valid.
    """
    if media_type == FILE_TYPE:
        return parse_body(SkillFileContent, body).content
    # A `.json` file that happens to have our keys is still a file.
    if not is_json(media_type) or path.lower().endswith(".json"):
        return body
    try:
        return parse_body(SkillFileContent, body).content
    except RequestValidationError as error:
        if _NOT_OURS.isdisjoint(problem["type"] for problem in error.errors()):
            raise
        return body
    except SkillTooLargeError:
        return body


_NOT_OURS = frozenset({"extra_forbidden", "json_invalid", "missing", "model_type"})
"""What is wrong with JSON that has other keys than ours; a wrong value of one of ours is not among it."""


def _too_large(limit: int) -> SkillTooLargeError:
    return SkillTooLargeError(f"The request is larger than {limit} bytes. Send files one by one, or shrink them.")


CurrentUser = Callable[..., Any]
"""A FastAPI dependency, sync or async, that returns a user id or `None`."""

BEARER = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token of the application that identifies the user."
)
"""How clients sign in, for the documentation, unless the application says otherwise."""

NO_REVISION = -1
"""A revision that no skill has, for a tag that is not one of ours."""

_MAX_MATCHES = 20
_ETAG = re.compile(r'\s*(W/)?"([^"]*)"\s*')
_REVISION = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Settings:
    """How the store is served."""

    session_factory: SessionFactory
    current_user: CurrentUser
    policy: Policy = field(default_factory=Policy)
    max_request_bytes: int = MAX_REQUEST_BYTES
    security: SecurityBase | None = BEARER

    @property
    def challenge(self) -> str:
        """The authentication scheme in the challenge to an anonymous client."""
        scheme = getattr(getattr(self.security, "model", None), "scheme", None)
        return scheme.capitalize() if isinstance(scheme, str) else "Bearer"


IfMatch = Annotated[
    str | None,
    Header(description='Change it only if it still has this `ETag`, such as `"42"`; else 412.', max_length=1_000),
]


@dataclass(frozen=True)
class Caller:
    """Who writes, and the revision that they know."""

    service: SkillService
    user: str
    if_match: str | None

    async def change(self, write: Callable[..., Awaitable[ResultT]], *values: object, **options: object) -> ResultT:
        """Return what a method of the service returns for these values, the user and the revision.

        Raises:
            SkillStaleError: If the client does not name the revision that the skill has.
        """
        if self.if_match is None or self.if_match.strip() == "*":
            return await write(*values, self.user, **options)
        # Bounded: the header comes from a client.
        known = [_revision_of(tag) for tag in self.if_match.split(",", _MAX_MATCHES)[:_MAX_MATCHES]]
        try:
            return await write(*values, self.user, expected_revision=known[0], **options)
        except SkillStaleError as error:
            # One of several may be the current one, which only the write itself can tell.
            if error.revision not in known[1:]:
                raise
            return await write(*values, self.user, expected_revision=error.revision, **options)


class Parts:
    """The dependencies of operations, created for one router: each is a function for `Depends`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

        # Closures over this router's settings: FastAPI reads from signatures what depends on what. Because a body
        # depends on its writer, an anonymous body is never read.
        async def user(given: Annotated[object, Depends(settings.current_user)]) -> str | None:
            return check_user(given)

        async def writer(known: Annotated[str | None, Depends(user)]) -> str:
            return require_user(known)

        async def caller(
            service: Annotated[SkillService, Depends(self.service)],
            user: Annotated[str, Depends(writer)],
            if_match: IfMatch = None,
        ) -> Caller:
            return Caller(service, user, if_match)

        async def bodiless_caller(request: Request, known: Annotated[Caller, Depends(caller)]) -> Caller:
            check_not_forged(request)
            return known

        async def raw_body(request: Request, known: Annotated[str, Depends(writer)]) -> AsyncIterator[bytes]:
            async with bound_body(request, settings.max_request_bytes, known) as body:
                yield body

        self.user = user
        """The user, or `None` if nobody is signed in."""

        self.writer = writer
        """The signed-in user."""

        self.caller = caller
        """The signed-in user of a write, with the revision that they know."""

        self.bodiless_caller = bodiless_caller
        """The same for a write without a body that no other site's page can have sent."""

        self.raw_body = raw_body
        """The bytes of the body, read once the writer is known."""

    async def service(self) -> AsyncIterator[SkillService]:
        """Open a service with its own session."""
        async with self.settings.session_factory() as session:
            yield SkillService(session, policy=self.settings.policy)

    async def read_files(self, files: Sequence[SkillFile]) -> list[bytes]:
        """Return whole files, by a session of its own."""
        async with self.open_service() as service:
            return await service.read_files(files)

    def open_service(self) -> AbstractAsyncContextManager[SkillService]:
        """Open a service outside of dependencies, for work that takes longer than a session should."""
        return asynccontextmanager(self.service)()

    def body(self, model: type[ModelT]) -> Callable[..., Coroutine[Any, Any, ModelT]]:
        """Return the dependency on the body as a model, read once the writer is known."""

        async def read(request: Request, raw: Annotated[bytes, Depends(self.raw_body)]) -> ModelT:
            return await self.parse(model, request, raw)

        return read

    @asynccontextmanager
    async def unzip(
        self, service: SkillService, raw: bytes, user: str, skill_id: UUID | None = None
    ) -> AsyncIterator[tuple[bytes, dict[str, bytes]]]:
        """Give the text and files of a zipped skill; what it says of its size is checked before it is unpacked."""
        limits = self.settings.policy.limits
        size = await run_in_thread(len(raw), lambda: measure_unpacked(raw, limits))
        await service.check_room(size, user, skill_id)
        with in_flight.hold(size):
            yield await run_in_thread(size, lambda: unpack(raw, limits))

    async def parse(self, model: type[ModelT], request: Request, raw: bytes) -> ModelT:
        """Return a body as a model, parsed off the event loop if it is large.

        Raises:
            SkillFormatError: If it does not claim to be JSON.
        """
        if not is_json(content_type(request)):
            raise SkillFormatError("The content type of the body is not JSON. Send it as `application/json`.")
        return await run_in_thread(len(raw), lambda: parse_body(model, raw))


def check_user(given: object) -> str | None:
    """Return the user id that the application gave; an empty one means nobody.

    Raises:
        CurrentUserError: If it is not text: `str()` of any other object may later name another user.
    """
    if given is not None and not isinstance(given, str):
        raise CurrentUserError(
            f"`current_user` must give a user id as text, or None for nobody; it gave {type(given).__name__}."
        )
    return given or None


def _revision_of(tag: str) -> int:
    found = _ETAG.fullmatch(tag)
    # By the rules of HTTP, a weak tag never matches.
    is_revision = found is not None and not found[1] and _REVISION.fullmatch(found[2]) is not None
    return int(found[2]) if found is not None and is_revision else NO_REVISION
