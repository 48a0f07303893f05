"""A complete application: migrations, routes and page on one database, for a server that starts with one command.

    uvicorn --factory deepskills.store:create_store_app

The database comes from `DEEPSKILLS_DATABASE_URL`, or is a SQLite file in the working directory. The user comes from the
header that `DEEPSKILLS_USER_HEADER` names, which a trusted proxy sets after it has signed the user in; the proxy must
remove that header from what clients send. Without it everybody is anonymous, and can read what is public but write
nothing.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from starlette.routing import Match, Mount
from starlette.types import Scope

from deepskills.store import migrations
from deepskills.store.db.engine import create_store_engine
from deepskills.store.http.requests import CurrentUser
from deepskills.store.http.routes import create_skills_router

logger = logging.getLogger("deepskills")

DATABASE_VARIABLE = "DEEPSKILLS_DATABASE_URL"
"""The environment variable with the database's URL."""

USER_VARIABLE = "DEEPSKILLS_USER_HEADER"
"""The environment variable with the name of the header that has the user id."""

DEFAULT_DATABASE = "sqlite:///deepskills.db"
"""The database if none is given."""

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

    app = FastAPI(title="Skills", lifespan=lifespan)
    app.include_router(create_skills_router(sessions, user, **policy), prefix=PREFIX)
    app.state.session_factory = sessions

    @app.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        """Answer as long as the process is up."""
        return {"status": "ok"}

    # Last: the page is mounted at `/`, where it would take every address that comes after it.
    _mount_page(app, sessions, user, {**policy, "account_links": account_links})
    return app


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
        return request.headers.get(name) if name else None

    return current_user
