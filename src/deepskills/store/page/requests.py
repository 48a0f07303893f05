"""Reads the page's forms, within bounds, and refuses those that this page did not give to this user.

The application signs people in, often with a cookie, which a browser adds to whatever any other site makes it send.
Three checks protect against that; in a current browser, each would be enough on its own:

- The origin. Browsers name it in `Sec-Fetch-Site`, which no page can set, or else in `Origin`.
- The token in every form. It is derived from a random value in a cookie that scripts cannot read, and from the user: no
  other site knows the cookie, and a form given to one user is refused from another. It needs no server secret, so any
  number of processes can serve the page.
- The cookie itself. It is `SameSite=Strict`, and over HTTPS it has the `__Host-` prefix, so no other subdomain can set
  it.

The user and the origin are known before any of the body is read.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request, Response
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from deepskills._errors import SkillFormatError, SkillsError
from deepskills.store.http.requests import bounded_body, content_type
from deepskills.store.rules import MAX_GROUPS, MAX_GROUPS_OF_USER, storable
from deepskills.store.workers import computed

TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
"""The form field with the token."""

TOKEN_HEADER = "x-csrf-token"  # noqa: S105 - the name of a header
"""The header with the token, for requests by the script."""

COOKIE = "deepskills-forms"
"""The cookie that tokens are derived from; over HTTPS it has the prefix that binds it to this host."""

MAX_FIELDS = MAX_GROUPS_OF_USER + MAX_GROUPS + 20
"""How many fields a form may have: the largest has one for each of the user's groups and for each group that a skill is
shared with, besides a few others."""

_SECRET_LENGTH = 43
_URLENCODED = "application/x-www-form-urlencoded"
_PARTED = "multipart/form-data"


class ForgedRequestError(SkillsError):
    """A request that did not come from a form of this page."""


@dataclass(frozen=True)
class Browser:
    """A browser, as its request shows it: the value that its tokens are derived from, and whether that is new."""

    secret: str
    is_new: bool
    is_secure: bool

    @classmethod
    def of(cls, request: Request) -> "Browser":
        """Return the browser that sent a request."""
        is_secure = request.url.scheme == "https"
        known = request.cookies.get(_cookie_name(is_secure=is_secure), "")
        is_new = len(known) != _SECRET_LENGTH
        return cls(secrets.token_urlsafe(32) if is_new else known, is_new, is_secure)

    def token_for(self, user: str | None) -> str:
        """Return the token of the forms that this browser gets for a user."""
        return hmac.new(self.secret.encode(), (user or "").encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def remember(self, response: Response) -> None:
        """Give a new browser the cookie that its tokens are derived from."""
        if self.is_new:
            response.set_cookie(
                _cookie_name(is_secure=self.is_secure),
                self.secret,
                path="/",
                secure=self.is_secure,
                httponly=True,
                samesite="strict",
            )


def _cookie_name(*, is_secure: bool) -> str:
    return f"__Host-{COOKIE}" if is_secure else COOKIE


def check_same_site(request: Request) -> None:
    """Check that a request comes from this site, according to its browser.

    Raises:
        ForgedRequestError: If it comes from another.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
    if not is_own:
        raise ForgedRequestError("Another site sent this request. Open the page itself, and try again there.")


def check_token(request: Request, given: str, user: str | None) -> None:
    """Check that a form was given to this browser and this user.

    Raises:
        ForgedRequestError: If not.
    """
    browser = Browser.of(request)
    expected = browser.token_for(user)
    if browser.is_new or not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()):
        raise ForgedRequestError(
            "This form has expired, or was made for somebody else. Go back, reload the page, and try again."
        )


@dataclass(frozen=True)
class Form:
    """A form that a user sent: texts, and files with their names."""

    texts: Mapping[str, str]
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a field; a missing one is empty."""
        return self.texts.get(name, "")

    def revision(self, name: str = "revision") -> int:
        """Return the revision that the user looked at.

        Raises:
            SkillFormatError: If the form does not say.
        """
        return revision_of(self.text(name))

    def file(self, name: str) -> tuple[str, bytes]:
        """Return the name and the bytes of an uploaded file.

        Raises:
            SkillFormatError: If none was chosen.
        """
        given = self.files.get(name)
        if given is None or not (given[0] or given[1]):
            raise SkillFormatError("No file was chosen. Choose one, and send the form again.")
        return given


def revision_of(text: str) -> int:
    """Return a revision that came as text.

    Raises:
        SkillFormatError: If it is not one.
    """
    if not text.isascii() or not text.isdigit() or not 0 < len(text) < len(str(1 << 63)):
        raise SkillFormatError("The form does not say which revision it is about. Reload the page, and try again.")
    return int(text)


async def read_form(request: Request, user: str, limit: int) -> Form:
    """Return the form in a request.

    Raises:
        ForgedRequestError: If it is not a form that this page gave to this user.
        SkillTooLargeError: If it is larger than the limit; no more than that is read.
        SkillFormatError: If it cannot be read.
    """
    check_same_site(request)
    body = await bounded_body(request, limit)
    data = await _parsed(request, body, limit)
    try:
        form = _form_of(data)
    finally:
        await data.close()
    check_token(request, form.text(TOKEN_FIELD), user)
    return form


async def _parsed(request: Request, body: bytes, limit: int) -> FormData:
    media_type = content_type(request)
    if media_type not in (_URLENCODED, _PARTED):
        raise SkillFormatError("This address accepts only forms. Use the page, or the HTTP API.")

    async def whole() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        if media_type == _URLENCODED:
            return await computed(len(body), lambda: FormData(_pairs(body)))
        # The body was read first, because the parser limits each part but not their sum.
        again = Request(request.scope, whole)
        return await again.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=limit)
    except (HTTPException, ValueError) as error:
        reason = error.detail if isinstance(error, HTTPException) else error
        raise SkillFormatError(f"The form cannot be read: {storable(str(reason))[:200]}") from None


def _pairs(body: bytes) -> list[tuple[str, str | UploadFile]]:
    return list(parse_qsl(body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS))


def _form_of(data: FormData) -> Form:
    texts: dict[str, str] = {}
    files: dict[str, tuple[str, bytes]] = {}
    for name, value in data.multi_items():
        if isinstance(value, UploadFile):
            files[name] = (value.filename or "", value.file.read())
        else:
            texts[name] = storable(value)
    return Form(texts, files)
