"""The gateway's span of a request's trace, from its headers to the end of the response."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.middleware.matched_route import is_polled, route_of
from quire.rpc.context import current_request_id, current_trace, enter_request
from quire.tracing.attributes import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, REQUEST_ID, URL_PATH
from quire.tracing.base import Side, Tracer

_MAX_PATH = 256


class TracingMiddleware:
    """Traces requests. Must come after the middleware that makes the request the current one."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; spans of other services become children of this one."""
        if scope["type"] != "http" or is_polled(scope):
            await self._app(scope, receive, send)
            return
        request_id, method = current_request_id(), scope["method"]
        attributes = {HTTP_METHOD: method, URL_PATH: scope["path"][:_MAX_PATH], REQUEST_ID: request_id}
        span = self._tracer.start(method, Side.SERVER, current_trace(), attributes)
        enter_request(request_id, span.trace)
        error = "ended without an answer"

        async def send_and_look(message: Message) -> None:
            nonlocal error
            if message["type"] == "http.response.start":
                span.set({HTTP_STATUS: message["status"]})
                error = f"status {message['status']}" if message["status"] >= 500 else ""
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            if route := route_of(scope):
                span.rename(f"{method} {route}")
                span.set({HTTP_ROUTE: route})
            span.end(error)
