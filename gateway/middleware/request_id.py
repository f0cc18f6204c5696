"""Request ids and trace context: taken from the request or generated, and passed on to every service."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import is_for_messages
from quire.rpc.context import REQUEST_ID_HEADER, accept_request_id, enter_request, read_trace

_MESSAGES_HEADER = b"request-id"  # Anthropic's SDKs read it


class RequestIdMiddleware:
    """Makes the request the current one of its task."""

    def __init__(self, app: ASGIApp, echo: bool) -> None:
        """
        Args:
            echo: whether to add X-Request-Id to responses.
        """
        self._app = app
        self._echo = echo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Enters the request's context, then passes it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request_id = accept_request_id(headers.get(REQUEST_ID_HEADER))
        enter_request(request_id, read_trace(headers))
        names = [REQUEST_ID_HEADER.encode()] if self._echo else []
        if is_for_messages(scope):
            names.append(_MESSAGES_HEADER)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((name, request_id.encode()) for name in names)]
            await send(message)

        await self._app(scope, receive, send_with_id if names else send)
