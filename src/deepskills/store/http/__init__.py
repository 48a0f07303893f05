"""The store over HTTP, with FastAPI. No rules live here: every route calls the service."""
