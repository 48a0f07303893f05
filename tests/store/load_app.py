"""The application of the load test, for uvicorn: the store as `create_store_app` makes it, with one operator."""

from fastapi import FastAPI

from deepskills.store import create_store_app

OPERATOR = "root"


def create() -> FastAPI:
    """Return the application."""
    return create_store_app(is_operator=lambda user: user == OPERATOR)
