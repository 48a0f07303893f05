"""`create_skills_page`: the page as an application to mount beside the HTTP routes."""

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.security.base import SecurityBase
from starlette.exceptions import HTTPException

from deepskills.store.db.engine import SessionFactory
from deepskills.store.http.requests import BEARER, MAX_REQUEST_BYTES, CurrentUser, Settings
from deepskills.store.page.reading import add_lists, add_skills, add_versions
from deepskills.store.page.site import PageParts, Site, WithHeaders
from deepskills.store.page.writing import (
    add_creation,
    add_editing,
    add_files,
    add_operations,
    add_removal,
    add_sharing,
    add_uploads,
)
from deepskills.store.rules import RETENTION_DAYS, ApprovalRule, GroupsOf, IsOperator, Policy, StoreLimits


def create_skills_page(  # noqa: PLR0913 - options, each by name
    session_factory: SessionFactory,
    current_user: CurrentUser,
    *,
    limits: StoreLimits | None = None,
    max_request_bytes: int = MAX_REQUEST_BYTES,
    groups_of: GroupsOf | None = None,
    is_operator: IsOperator | None = None,
    approval: ApprovalRule = False,
    retention: float = RETENTION_DAYS,
    security: SecurityBase | None = BEARER,
    account_links: Mapping[str, str] | None = None,
) -> FastAPI:
    """Return the page where people keep their skills, as an application to mount: `app.mount("/skills", page)`.

    It shows and does what the same user could do over HTTP, and nothing else. It needs no JavaScript, loads nothing
    from elsewhere, and keeps no sessions: `current_user` says for each request who the user is.

    Args:
        session_factory: Opens a session, such as an `async_sessionmaker`.
        current_user: A FastAPI dependency that returns the user id of a request as text; `None` or `""` for nobody. One
            that sends people to sign in raises `HTTPException(303, headers={"Location": ...})`.
        limits: How large skills may be, which files they may hold, and how much each owner may keep.
        max_request_bytes: Largest form, uploads included.
        groups_of: Returns the groups that a user is in; sync or async.
        is_operator: Whether a user may list, hide, approve and remove any skill, sync or async.
        approval: Show a public skill to others only once an operator approved its current revision; with `"by-others"`,
            an operator who neither owns it nor made its last change.
        retention: How many days a deleted skill can be restored.
        security: As `create_skills_router` takes it, so that both take the same options.
        account_links: Links for the user's menu by their text, such as `{"Sign out": "/logout"}`.
    """
    policy = Policy(limits or StoreLimits(), groups_of, is_operator, approval, retention)
    site = Site(Settings(session_factory, current_user, policy, max_request_bytes, security), dict(account_links or {}))
    app = FastAPI(title="Skills", openapi_url=None)
    app.add_middleware(WithHeaders)
    app.router.route_class = site.route_class()
    parts = PageParts(site)
    for add in (add_lists, add_skills, add_versions):
        add(app.router, parts)
    for add in (add_creation, add_editing, add_files, add_uploads, add_sharing, add_operations, add_removal):
        add(app.router, parts)

    async def refused(request: Request, error: Exception) -> Response:
        return await site.failure(request, error)

    # For unknown addresses: the others answer their failures themselves.
    app.add_exception_handler(HTTPException, refused)
    return app
