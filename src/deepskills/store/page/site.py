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
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deepskills._errors import SkillFormatError, SkillsError
from deepskills._skillmd.text import one_line
from deepskills.store.db.models import Skill
from deepskills.store.http.answers import answer_failure, send
from deepskills.store.http.requests import Parts, Settings, bound_body, check_user, content_type
from deepskills.store.page import shown
from deepskills.store.rules import (
    MAX_GROUPS,
    MAX_GROUPS_OF_USER,
    Need,
    Viewer,
    check_id,
    check_right,
    has_right,
    require_user,
    storable,
)
from deepskills.store.service import SkillService
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

HTML_TYPE = "text/html; charset=utf-8"

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

    @cached_property
    def parts(self) -> Parts:
        """What the page shares with the routes: sessions, and how archives are read."""
        return Parts(self.settings)

    async def page(
        self, request: Request, template: str, viewer: Viewer, *, code: int = 200, size: int = 0, **values: object
    ) -> Response:
        """Return a page.

        Args:
            request: The request.
            template: The name of the template.
            viewer: Who it is for.
            code: The status.
            size: About how much there is to escape, to decide whether to use a thread.
            values: The values for the template.
        """
        browser, user = Browser.of(request), viewer.user
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
        response = send(html.encode(), HTML_TYPE, code)
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
            refusal = answer_failure(error, self.settings.challenge)
            code, message = refusal.status_code, json.loads(bytes(refusal.body))["error"]["message"]
            kept = ("retry-after", *((error.headers or {}) if isinstance(error, HTTPException) else ()))
            headers = {name: refusal.headers[name] for name in kept if name in refusal.headers}
        if 300 <= code < 400:  # noqa: PLR2004 - the application sends users elsewhere, such as to sign in
            return Response(status_code=code, headers=dict(headers))
        # Without groups: the failure may come from the application's function that knows them.
        viewer = Viewer(getattr(request.state, "user", None))
        title = _TITLES.get(code, "Failed")
        response = await self.page(request, "error.html", viewer, code=code, message=message, title=title)
        response.headers.update(headers)
        return response


class PageRoute(APIRoute):
    """A route whose failures are pages."""

    def get_route_handler(self) -> Handler:
        """Return the handler."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, people see a page
                site: Site = request.app.state.site
                return await site.failure(request, error)

        return handle


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
        action=lambda word: shown.ACTIONS.get(word, word),
        counted=shown.count_of,
        date=shown.date,
        folders=shown.folders,
        # A stranger's text must not reorder or hide what is around it.
        line=one_line,
        marked=shown.mark_invisible,
        number=shown.number,
        said=shown.format_message,
        size=shown.size,
        time=shown.time,
    )
    return found


TEMPLATES = _environment()
"""The templates; everything they print is escaped."""


class WithHeaders:
    """Adds the page's headers to every answer."""

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


@dataclass(frozen=True)
class Visit:
    """One request to the page: who sent it, and what answers it."""

    site: Site
    request: Request
    service: SkillService
    viewer: Viewer
    user: str | None

    @property
    def at(self) -> Addresses:
        """The addresses of the page."""
        return Addresses(self.request)

    @property
    def parts(self) -> Parts:
        """What the page shares with the routes."""
        return self.site.parts

    def may(self, skill: Skill) -> dict[str, bool]:
        """Return what the user may do with a skill, by the same rules that the service checks."""
        may = {need: has_right(skill, self.viewer, need) for need in ("write", "own", "remove", "operate")}
        return may if self.user is not None else dict.fromkeys(may, False)

    async def skill(self, skill_id: str, need: Need | None = None) -> Skill:
        """Return a skill with its text and without the contents of its files.

        A right is checked even if nothing would change, which the service lets pass.

        Raises:
            SkillNotFoundError: If this user can see no such skill.
            SkillPermissionError: If the user needs a right on it and has it not.
        """
        found = await self.service.get_skill(check_id(skill_id), self.user, contents=False)
        if need is not None:
            check_right(found, self.viewer, need)
        return found

    async def page(self, template: str, **values: Any) -> Response:  # noqa: ANN401 - values of a template
        """Return a page; one about a `skill` is told what the user may do with it."""
        if isinstance(skill := values.get("skill"), Skill):
            values["may"] = self.may(skill)
        return await self.site.page(self.request, template, self.viewer, **values)

    def see(self, skill_id: object, rest: str = "", *, done: str) -> Response:
        """Return the redirect after a form, so that reloading does not send it again."""
        return RedirectResponse(self.at.skill(skill_id, rest, done=done), 303)


@dataclass(frozen=True)
class SignedIn(Visit):
    """A request of somebody who is signed in, with the form that they sent."""

    user: str
    form: Form = field(default_factory=lambda: Form({}))

    @property
    def revision(self) -> int:
        """The revision that the user looked at, as the form says."""
        return revision_of(self.form.text("revision"))


async def current_user() -> None:
    """Stand for the application's function that says who the user is, which the page puts in its place."""


async def _open_service(request: Request) -> AsyncIterator[SkillService]:
    async with request.app.state.site.parts.open_service() as service:
        yield service


async def _visit(
    request: Request,
    service: Annotated[SkillService, Depends(_open_service)],
    given: Annotated[object, Depends(current_user)],
) -> Visit:
    site: Site = request.app.state.site
    user = check_user(given)
    # For the page of a failure, which is rendered outside of dependencies.
    request.state.user = user
    return Visit(site, request, service, await site.settings.policy.viewer(user), user)


AnyVisit = Annotated[Visit, Depends(_visit)]
"""A visit of anybody."""


async def _signed_visit(visit: AnyVisit) -> SignedIn:
    return SignedIn(visit.site, visit.request, visit.service, visit.viewer, require_user(visit.user))


SignedVisit = Annotated[SignedIn, Depends(_signed_visit)]
"""A visit of somebody who is signed in."""


async def _read_sent_form(visit: SignedVisit) -> AsyncIterator[SignedIn]:
    check_same_site(visit.request)
    async with bound_body(visit.request, visit.site.settings.max_request_bytes, visit.user) as body:
        yield replace(visit, form=await read_form(visit.request, visit.user, body))


SentForm = Annotated[SignedIn, Depends(_read_sent_form)]
"""A visit with a form of this page, whose body was read once the user was known."""
