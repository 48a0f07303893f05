"""Everything that the page's addresses share: the user, forms, templates, headers, and how failures look.

Every answer has a policy that allows only the page's own script and style sheet, so that even markup that slipped
through could not run. Addresses are built from the path that the application is mounted at, never from the `Host`
header.
"""

import hashlib
import hmac
import inspect
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepskills._errors import SkillFormatError, SkillsError
from deepskills.store.http.answers import failed
from deepskills.store.http.requests import Parts, Settings, bound_body, content_type
from deepskills.store.page import shown
from deepskills.store.rules import MAX_GROUPS, MAX_GROUPS_OF_USER, Policy, Viewer, signed_in, storable
from deepskills.store.workers import run_in_thread

# -- Forms -------------------------------------------------------------------------------------------------------------
#
# Reads the page's forms, within bounds, and refuses those that this page did not give to this user.
#
# The application signs people in, often with a cookie, which a browser adds to whatever any other site makes it send.
# Three checks protect against that; in a current browser, each would be enough on its own:
#
# - The origin. Browsers name it in `Sec-Fetch-Site`, which no page can set, or else in `Origin`.
# - The token in every form. It is derived from a random value in a cookie that scripts cannot read, and from the user:
#   no other site knows the cookie, and a form given to one user is refused from another. It needs no server secret, so
#   any number of processes can serve the page.
# - The cookie itself. It is `SameSite=Strict`, and over HTTPS it has the `__Host-` prefix, so no other subdomain can
#   set it.
#
# The user and the origin are known before any of the body is read.

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


async def read_form(request: Request, user: str, body: bytes) -> Form:
    """Return the form in the body of a request.

    Raises:
        ForgedRequestError: If it is not a form that this page gave to this user.
        SkillFormatError: If it cannot be read.
    """
    data = await _parse(request, body)
    try:
        form = _form_of(data)
    finally:
        await data.close()
    check_token(request, form.text(TOKEN_FIELD), user)
    return form


async def _parse(request: Request, body: bytes) -> FormData:
    media_type = content_type(request)
    if media_type not in (_URLENCODED, _PARTED):
        raise SkillFormatError("This address accepts only forms. Use the page, or the HTTP API.")

    async def whole() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        if media_type == _URLENCODED:
            return await run_in_thread(len(body), lambda: FormData(_pairs(body)))
        # The body was read first, because the parser limits each part but not their sum.
        again = Request(request.scope, whole)
        return await again.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=len(body))
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


# -- Pages -------------------------------------------------------------------------------------------------------------

_DIRECTIVES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

POLICY = "; ".join(_DIRECTIVES)
"""The content security policy of every page."""

FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""The content security policy of a stranger's file, for a browser that shows it anyway."""

HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    # Not `no-referrer`: browsers would then send forms with `Origin: null`.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""The headers of every answer, unless it sets its own."""

STATIC = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""The page's own files, with their types."""

MESSAGES = {
    "saved": "Saved.",
    "created": "Created.",
    "file-saved": "The file was saved.",
    "file-deleted": "The file was removed.",
    "shared": "Sharing was changed.",
    "published": "It is public now.",
    "submitted": "Submitted. Others see it once an operator has approved it.",
    "withdrawn": "Withdrawn. It is no longer public.",
    "approved": "Approved.",
    "hidden": "Hidden from everybody but its owner.",
    "shown": "Shown again.",
    "handed-over": "Handed over.",
    "deleted": "Deleted. You can restore it from here for a while.",
    "restored": "Restored.",
    "unchanged": "Nothing had changed.",
}
"""The messages after an action. The address names one of these; text from the address is never shown."""

PARENT_HANDLERS = "deepskills.parent_handlers"
"""The key in a request's scope for the exception handlers of the application around the page."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Site:
    """The page of one store: its settings, templates and files."""

    settings: Settings
    account_links: Mapping[str, str] = field(default_factory=dict)
    """The application's links for the user's menu, such as to sign out."""

    @property
    def policy(self) -> Policy:
        """The application's decisions about its store."""
        return self.settings.policy

    async def viewer(self, user: str | None) -> Viewer:
        """Return the user with their groups, to offer them what they may do."""
        return await self.policy.viewer(user)

    async def page(
        self,
        request: Request,
        template: str,
        user: str | None,
        *,
        code: int = 200,
        size: int = 0,
        **values: object,
    ) -> Response:
        """Return a page.

        Args:
            request: The request.
            template: The name of the template.
            user: The user, or `None`.
            code: The status.
            size: About how much there is to escape, to decide whether to use a thread.
            values: The values for the template.
        """
        viewer = values.pop("viewer", None) or await self.viewer(user)
        browser = Browser.of(request)
        context: dict[str, object] = {
            "user": user,
            "viewer": viewer,
            "csrf": _token_input(browser.token_for(user)),
            "token": browser.token_for(user),
            "done": MESSAGES.get(request.query_params.get("done", "")),
            "account_links": self.account_links,
            "at": Addresses(request),
            "here": request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/",
            **values,
        }
        chosen = TEMPLATES.get_template(template)
        html = await run_in_thread(size, lambda: chosen.render(context))
        response = HTMLResponse(html, code)
        browser.remember(response)
        return response

    async def failure(self, request: Request, error: Exception) -> Response:
        """Return the page for a request that failed, whatever the reason."""
        parent = await _ask_parent(request, error)
        if parent is not None:
            return parent
        if isinstance(error, ForgedRequestError):
            code, message = 403, str(error)
            headers: Mapping[str, str] = {}
        else:
            # The same words and the same log entry as over HTTP.
            refusal = failed(error, self.settings.challenge)
            code, message = refusal.status_code, json.loads(bytes(refusal.body))["error"]["message"]
            kept = ("retry-after", *((error.headers or {}) if isinstance(error, HTTPException) else ()))
            headers = {name: refusal.headers[name] for name in kept if name in refusal.headers}
        if 300 <= code < 400:  # noqa: PLR2004 - the application sends users elsewhere, such as to sign in
            return Response(status_code=code, headers=dict(headers))
        user = getattr(request.state, "user", None)
        title = _TITLES.get(code, "Failed")
        # The failure may come from the application's function that knows the user's groups.
        response = await self.page(
            request, "error.html", user, code=code, viewer=Viewer(user), message=message, title=title
        )
        response.headers.update(headers)
        return response

    def route_class(self) -> type[APIRoute]:
        """Return the class of routes whose failures are pages."""
        site = self

        class PageRoute(APIRoute):
            def get_route_handler(self) -> Handler:
                handler = super().get_route_handler()

                async def handle(request: Request) -> Response:
                    try:
                        return await handler(request)
                    except Exception as error:  # noqa: BLE001 - whatever it is, people see a page
                        return await site.failure(request, error)

                return handle

        return PageRoute


_TITLES = {
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed",
    409: "In conflict",
    412: "Changed in the meantime",
    413: "Too large",
    422: "Cannot be done",
    503: "Not available",
}


async def _ask_parent(request: Request, error: Exception) -> Response | None:
    """Return the answer of the application around the page to its own exception, such as one from `current_user`."""
    handlers: tuple[dict[type, Any], Any] = request.scope.get(PARENT_HANDLERS) or ({}, {})
    own = next((kind for kind in type(error).__mro__ if kind in handlers[0]), None)
    # Handlers for all exceptions, and for those that FastAPI raises itself, are not meant for this page.
    if own is None or own is Exception or own.__module__.partition(".")[0] in {"fastapi", "starlette", "deepskills"}:
        return None
    answer = handlers[0][own](request, error)
    response: Response = await answer if inspect.isawaitable(answer) else answer
    return response


def _token_input(token: str) -> Markup:
    return Markup('<input type="hidden" name="{}" value="{}">').format(TOKEN_FIELD, token)


class Addresses:
    """The addresses of the page, below the path that it is mounted at."""

    def __init__(self, request: Request) -> None:
        # Only one slash: a path that starts with two would name another host.
        root = str(request.scope.get("root_path", "")).strip("/")
        self._root = f"/{quote(root)}" if root else ""

    def __call__(self, path: str = "/", /, **query: object) -> str:
        """Return the address of a path of the page."""
        given = [(key, str(item)) for key, value in query.items() for item in _each(value)]
        return f"{self._root}{quote(path)}" + (f"?{urlencode(given)}" if given else "")

    def skill(self, skill_id: object, rest: str = "", /, **query: object) -> str:
        """Return an address below a skill."""
        return self(f"/skills/{skill_id}{rest}", **query)

    def static(self, name: str) -> str:
        """Return the address of one of the page's own files, which changes with its content."""
        return self(f"/static/{name}", v=FILES[name].digest)


def _each(value: object) -> list[object]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def see(address: str) -> Response:
    """Return the redirect after a form, so that reloading does not send it again."""
    return RedirectResponse(address, 303)


@dataclass(frozen=True)
class StaticFile:
    """One of the page's own files."""

    content: bytes
    media_type: str
    digest: str


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for name, media_type in STATIC.items():
        content = resources.files("deepskills.store.page").joinpath("static", name).read_bytes()
        found[name] = StaticFile(content, media_type, hashlib.sha256(content).hexdigest()[:16])
    return found


FILES = _static_files()
"""The page's own files, by name."""


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("deepskills.store.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        action=shown.action,
        counted=shown.counted,
        date=shown.date,
        folders=shown.folders,
        line=shown.line,
        marked=shown.marked,
        number=shown.number,
        said=shown.said,
        size=shown.size,
        time=shown.time,
    )
    return found


TEMPLATES = _environment()
"""The templates; everything they print is escaped."""


class WithHeaders:
    """Adds the page's headers to every answer, whoever made it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope[PARENT_HANDLERS] = scope.get("starlette.exception_handlers")
        await self._app(scope, receive, sent)


class PageParts:
    """The dependencies of the page's addresses: those of the HTTP routes, and the page's forms."""

    def __init__(self, site: Site) -> None:
        parts = Parts(site.settings)
        self.site = site
        self.service = parts.service
        """A service with its own session."""

        self.unzip = parts.unzip
        """What a zipped skill holds, within the bounds of a process."""

        self.read_files = parts.read_files
        """Whole files, by a session of its own."""

        async def user(request: Request, known: Annotated[str | None, Depends(parts.user)]) -> str | None:
            # For the page of a failure, which is rendered outside of dependencies.
            request.state.user = known
            return known

        async def writer(known: Annotated[str | None, Depends(user)]) -> str:
            return signed_in(known)

        async def form(request: Request, known: Annotated[str, Depends(writer)]) -> AsyncIterator[Form]:
            check_same_site(request)
            async with bound_body(request, site.settings.max_request_bytes, known) as body:
                yield await read_form(request, known, body)

        self.user = user
        """The user, or `None` if nobody is signed in."""

        self.writer = writer
        """The signed-in user."""

        self.form = form
        """The form that a signed-in user sent, read once they are known."""
