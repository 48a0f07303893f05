"""The public import path of the routes, which are in `http/routes.py`. Needs the extra `api`."""

from deepskills.store.http.routes import create_skills_router

__all__ = ["create_skills_router"]
