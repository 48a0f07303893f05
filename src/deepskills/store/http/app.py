"""A complete application: migrations, routes and page on one database, for a server that starts with one command.

    uvicorn --factory deepskills.store:create_store_app

The database comes from `DEEPSKILLS_DATABASE_URL`, or is a SQLite file in the working directory. The user comes from the
header that `DEEPSKILLS_USER_HEADER` names, which a trusted proxy sets after it has signed the user in; the proxy must
remove that header from what clients send. Without it everybody is anonymous, and can read what is public but write
nothing. Groups, operators, approval and limits come from the environment or a file as well, see `settings.py`.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from starlette.routing import Match, Mount
from starlette.types import Scope

from deepskills.store import migrations
from deepskills.store.db.engine import create_store_engine, unavailable
from deepskills.store.http.discovery import ADDRESS, create_discovery_router
from deepskills.store.http.requests import CurrentUser
from deepskills.store.http.routes import create_skills_router
from deepskills.store.http.settings import policy_options
from deepskills.store.rules import Policy
from deepskills.store.service import SkillService

logger = logging.getLogger("deepskills")

DATABASE_VARIABLE = "DEEPSKILLS_DATABASE_URL"
"""The environment variable with the database's URL."""

USER_VARIABLE = "DEEPSKILLS_USER_HEADER"
"""The environment variable with the name of the header that has the user id."""

DEFAULT_DATABASE = "sqlite:///deepskills.db"
"""The database if none is given."""

_OF_ROUTER = frozenset({"policy", "max_request_bytes", "security"})

PREFIX = "/api/v1"
"""Where the routes are."""


def create_store_app(
    database_url: str | None = None,
    current_user: CurrentUser | None = None,
    *,
    account_links: Mapping[str, str] | None = None,
    **policy: Any,  # noqa: ANN401 - the options of the router
) -> FastAPI:
    """Return the store as a FastAPI application, with its database migrated at the start.

    Args:
        database_url: Where the database is; by default `DEEPSKILLS_DATABASE_URL`, or else a SQLite file.
        current_user: A FastAPI dependency that returns the user id of a request, or `None` for nobody; by default the
            header that `DEEPSKILLS_USER_HEADER` names, which a trusted proxy sets.
        account_links: Links for the user's menu on the page by their text, such as `{"Sign out": "/logout"}`.
        policy: The options of `create_skills_router`, such as `groups_of`, `is_operator` and `limits`.
    """
    url = database_url or os.environ.get(DATABASE_VARIABLE) or DEFAULT_DATABASE
    policy = policy_options(os.environ) | policy
    engine = create_store_engine(url)
    sessions: async_sessionmaker[AsyncSession] = async_sessionmaker(engine)
    header = os.environ.get(USER_VARIABLE, "").strip()
    user = current_user or _user_of_header(header)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if current_user is None and not header:
            logger.warning(
                "Everybody is anonymous: set %s to the header with the user id that your proxy sets", USER_VARIABLE
            )
        # Any number of processes may start at once: one migrates while the others wait.
        await migrations.upgrade(engine)
        try:
            yield
        finally:
            await engine.dispose()

    # FastAPI's own pages about the operations load scripts from elsewhere, and its redirects go where `Host` says.
    app = FastAPI(title="Skills", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(create_skills_router(sessions, user, **policy), prefix=PREFIX)
    rules = Policy.of(policy.get("policy"), {name: policy[name] for name in policy if name not in _OF_ROUTER})
    app.include_router(create_discovery_router(sessions, user, rules), prefix=ADDRESS)
    app.state.session_factory = sessions
    _add_status(app, sessions)

    # Last: the page is mounted at `/`, where it would take every address that comes after it.
    _mount_page(app, sessions, user, {**policy, "account_links": account_links})
    return app


def _add_status(app: FastAPI, sessions: async_sessionmaker[AsyncSession]) -> None:
    """Add what tells how the server is."""

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, str]:
        """Answer as long as the process is up."""
        return {"status": "ok"}

    @app.api_route("/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> Response:
        """Answer 200 if the database answers and has the store's tables, and 503 if not."""
        try:
            async with sessions() as session:
                await SkillService(session).list_skills(limit=1)
        except Exception as error:  # noqa: BLE001 - whatever it is, this process cannot serve
            logger.error("The store is not ready: %s", unavailable(error) or type(error).__name__)  # noqa: TRY400 - one line
            return JSONResponse({"status": "unavailable"}, 503, {"Retry-After": "5", "Cache-Control": "no-store"})
        return JSONResponse({"status": "ok"})


def _mount_page(
    app: FastAPI, sessions: async_sessionmaker[AsyncSession], user: CurrentUser, options: dict[str, Any]
) -> None:
    """Mount the page, if the extra `page` is installed."""
    try:
        from deepskills.store.page import create_skills_page  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "deepskills":
            raise
        logger.info("The page is left out: %s is not installed", error.name)
        return
    app.router.routes.append(_PageMount("/", create_skills_page(sessions, user, **options)))


class _PageMount(Mount):
    """The page at `/`, except below the routes' prefix: an unknown address there gets a JSON error, not a page."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the page serves a request."""
        is_theirs = scope["path"].removeprefix(scope.get("root_path", "")).startswith(f"{PREFIX}/")
        return (Match.NONE, {}) if is_theirs else super().matches(scope)


def _user_of_header(name: str) -> CurrentUser:
    def current_user(request: Request) -> str | None:
        given = request.headers.getlist(name) if name else []
        if len(given) > 1:
            raise HTTPException(400, "The header with the user was sent more than once.")
        try:
            # Servers read headers as Latin-1, whatever the proxy sent.
            user = given[0].encode("latin-1").decode() if given else None
        except UnicodeError:
            raise HTTPException(400, "The header with the user is not UTF-8.") from None
        # Two ids that look the same on the page must not be two users.
        if user is not None and not user.isprintable():
            raise HTTPException(400, "The header with the user holds characters that cannot be seen.")
        return user

    return current_user
