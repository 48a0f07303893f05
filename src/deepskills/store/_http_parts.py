"""What the operations of the store over HTTP share: who asks, what they sent, which revision they know."""

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase
from pydantic import BaseModel

from deepskills._errors import SkillFormatError
from deepskills.store._checks import signed_in
from deepskills.store._core import GroupsOf, IsOperator
from deepskills.store._errors import SkillStaleError
from deepskills.store._http_answers import CurrentUserError
from deepskills.store._http_bodies import (
    MAX_REQUEST_BYTES,
    OTHER_VALUES,
    VALUES_PER_FILE,
    beside_the_loop,
    bounded_body,
    check_json,
    content_type,
    parsed,
)
from deepskills.store._rules import StoreLimits
from deepskills.store._service import SkillService
from deepskills.store._view import SessionFactory

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")
CurrentUser = Callable[..., Any]
"""A FastAPI dependency, sync or async, that gives a user id or `None`."""

BEARER = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token of the application, which tells it who asks."
)
"""How clients sign in, as documented where the application does not say it."""

NO_REVISION = -1
"""A revision that no skill has: what a client knows that names another kind of thing."""

_MAX_MATCHES = 20
_ETAG = re.compile(r'\s*(W/)?"([^"]*)"\s*')
_REVISION = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Settings:
    """How the store is served."""

    session_factory: SessionFactory
    current_user: CurrentUser
    limits: StoreLimits = field(default_factory=StoreLimits)
    max_request_bytes: int = MAX_REQUEST_BYTES
    groups_of: GroupsOf | None = None
    is_operator: IsOperator | None = None
    approval: bool = False
    retention: float = 30
    security: SecurityBase | None = BEARER

    @property
    def max_values(self) -> int:
        """How many values the JSON of a body may have."""
        return OTHER_VALUES + VALUES_PER_FILE * self.limits.files

    @property
    def challenge(self) -> str:
        """What a client that is not signed in is told to send."""
        scheme = getattr(getattr(self.security, "model", None), "scheme", None)
        return scheme.capitalize() if isinstance(scheme, str) else "Bearer"


class Parts:
    """The dependencies of operations, made for one router: each is a function for `Depends`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

        async def user(given: Annotated[object, Depends(settings.current_user)]) -> str | None:
            return checked_user(given)

        async def writer(known: Annotated[str | None, Depends(user)]) -> str:
            return signed_in(known)

        async def raw_body(request: Request, _writer: Annotated[str, Depends(writer)]) -> bytes:
            return await bounded_body(request, settings.max_request_bytes)

        self.user = user
        """Who asks, or `None` for nobody."""

        self.writer = writer
        """Who asks, if somebody does."""

        self.raw_body = raw_body
        """The body's bytes, read once the writer is known."""

    async def service(self) -> AsyncIterator[SkillService]:
        """Open a service with a session of its own."""
        settings = self.settings
        async with settings.session_factory() as session:
            yield SkillService(
                session,
                limits=settings.limits,
                groups_of=settings.groups_of,
                is_operator=settings.is_operator,
                approval=settings.approval,
                retention=settings.retention,
            )

    def body(self, model: type[ModelT]) -> Callable[..., Coroutine[Any, Any, ModelT]]:
        """Return the dependency on the body as a model, read once the writer is known."""

        async def read(request: Request, raw: Annotated[bytes, Depends(self.raw_body)]) -> ModelT:
            return await self.parse(model, request, raw)

        return read

    async def parse(self, model: type[ModelT], request: Request, raw: bytes) -> ModelT:
        """Return a body as a model, parsed where nobody waits for it."""
        check_json(content_type(request))
        return await beside_the_loop(len(raw), lambda: parsed(model, raw, self.settings.max_values))


def checked_user(given: object) -> str | None:
    """Return who asks; an empty id is nobody's.

    Raises:
        CurrentUserError: If it is not text: the text of any other object may be another user's later.
    """
    if given is not None and not isinstance(given, str):
        raise CurrentUserError(
            f"`current_user` must give a user id as text, or None for nobody; it gave {type(given).__name__}."
        )
    return given or None


async def matching(if_match: str | None, write: Callable[[int | None], Awaitable[ResultT]]) -> ResultT:
    """Return what `write` does with the revision that a client's `If-Match` asks for; `None` stands for any.

    Raises:
        SkillStaleError: If the skill has a revision that the client does not name.
    """
    if if_match is None or if_match.strip() == "*":
        return await write(None)
    known = [_revision_of(tag) for tag in if_match.split(",", _MAX_MATCHES)[:_MAX_MATCHES]]
    try:
        return await write(known[0])
    except SkillStaleError as error:
        # One of several may be the present one, which only the write itself can tell.
        if error.revision not in known[1:]:
            raise
        return await write(error.revision)


def _revision_of(tag: str) -> int:
    found = _ETAG.fullmatch(tag)
    # A weak tag never fits, by the rules of HTTP.
    is_revision = found is not None and not found[1] and _REVISION.fullmatch(found[2]) is not None
    return int(found[2]) if found is not None and is_revision else NO_REVISION


IfMatch = Annotated[
    str | None,
    Header(description='Change it only if it still has this `ETag`, such as `"42"`; else 412.', max_length=1_000),
]


def cursor_of(number: int) -> str:
    """Return a place in a listing as text that means nothing to others."""
    return base64.urlsafe_b64encode(str(number).encode()).decode().rstrip("=")


def number_of(cursor: str) -> int:
    """Return the place that a cursor names.

    Raises:
        SkillFormatError: If it names none.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    if _REVISION.fullmatch(text) is None or int(text) >= 1 << 63:
        raise SkillFormatError("The cursor is not one that a listing gave. Start again without it.")
    return int(text)
