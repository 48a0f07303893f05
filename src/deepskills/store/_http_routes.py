"""The routes of the store over HTTP: every failure is answered in the envelope, whoever raised it."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from deepskills._errors import SkillsError
from deepskills.store._http_answers import CurrentUserError, answer, failed

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

NO_METHOD = "-"
"""A method that no request has: a route that has it alone never fits wholly, so that others come first."""

NOTHING_HERE = "There is nothing at this address. See the documentation for what is."
"""What an address is told that no operation has."""

_OWN = (SkillsError, RequestValidationError, HTTPException, CurrentUserError, ClientDisconnect)
"""What the router answers itself; some are `ValueError` or `LookupError` too, and no handler for those takes them."""


def route_class(www_authenticate: str) -> type[APIRoute]:
    """Return the class of routes that answer every failure in the envelope."""
    methods: dict[str, set[str]] = {}

    class EnvelopeRoute(APIRoute):
        challenge: ClassVar[str] = www_authenticate

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
            super().__init__(path, endpoint, **options)
            methods.setdefault(path, set()).update(self.methods or ())

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["method"] in (self.methods or ()):
                await super().handle(scope, receive, send)
                return
            allowed = methods[self.path] - {NO_METHOD}
            if not allowed:
                refusal = answer(404, "not-found", NOTHING_HERE)
            else:
                refusal = answer(405, "method-not-allowed", f"This address does not take {scope['method']}.")
                refusal.headers["Allow"] = ", ".join(sorted(allowed))
            await refusal(scope, receive, send)

        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await handler(request)
                except Exception as error:
                    if not isinstance(error, _OWN) and _is_for_the_application(request, error):
                        raise
                    return failed(error, self.challenge)

            return handle

    return EnvelopeRoute


def _is_for_the_application(request: Request, error: Exception) -> bool:
    """Whether the application has a handler of its own for what one of its functions raised."""
    handlers, _by_status = request.scope.get("starlette.exception_handlers", ({}, {}))
    return any(kind in handlers for kind in type(error).__mro__)
