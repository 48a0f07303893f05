"""`create_skills_page`: the page as an application to mount beside the HTTP routes."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.security.base import SecurityBase
from starlette.exceptions import HTTPException

from deepskills.store.db.engine import SessionFactory
from deepskills.store.http.requests import BEARER, MAX_REQUEST_BYTES, CurrentUser, Settings
from deepskills.store.page import reading, writing
from deepskills.store.page.site import Site, WithHeaders
from deepskills.store.page.site import current_user as current_user_of_page
from deepskills.store.rules import Policy


def create_skills_page(
    session_factory: SessionFactory,
    current_user: CurrentUser,
    *,
    policy: Policy | None = None,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    security: SecurityBase | None = BEARER,
    account_links: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401 - the fields of Policy
) -> FastAPI:
    """Return the page where people keep their skills, as an application to mount: `app.mount("/skills", page)`.

    It shows and does what the same user could do over HTTP, and nothing else. It needs no JavaScript, loads nothing
    from elsewhere, and keeps no sessions: `current_user` says for each request who the user is.

    Args:
        session_factory: Opens a session, such as an `async_sessionmaker`.
        current_user: A FastAPI dependency that returns the user id of a request as text; `None` or `""` for nobody. One
            that sends people to sign in raises `HTTPException(303, headers={"Location": ...})`.
        policy: The application's decisions: limits, groups, operators, approval and so on.
        max_request_bytes: Largest form, uploads included.
        security: As `create_skills_router` takes it, so that both take the same options.
        account_links: Links for the user's menu by their text, such as `{"Sign out": "/logout"}`.
        options: The fields of `Policy` by name, instead of `policy` or in place of what it says.
    """
    settings = Settings(session_factory, current_user, Policy.of(policy, options), max_request_bytes, security)
    site = Site(settings, dict(account_links or {}))
    # Without redirects to addresses without a slash at the end: they would go where `Host` says.
    app = FastAPI(title="Skills", openapi_url=None, redirect_slashes=False)
    app.add_middleware(WithHeaders)
    app.state.site = site
    app.dependency_overrides[current_user_of_page] = current_user
    app.include_router(reading.router)
    app.include_router(writing.router)

    async def refuse(request: Request, error: Exception) -> Response:
        return await site.failure(request, error)

    # For unknown addresses: the others answer their failures themselves.
    app.add_exception_handler(HTTPException, refuse)
    return app
