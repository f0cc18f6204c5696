"""The gateway's span of a request's trace, from its headers to the end of the response."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.middleware.root_path import path_below_root
from quire.rpc.context import current_request_id, current_trace, enter_request
from quire.tracing.attributes import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, REQUEST_ID, URL_PATH
from quire.tracing.base import Side, Tracer

# Paths that orchestrators and Prometheus poll every few seconds.
_UNTRACED = ("/health", "/ping", "/livez", "/readyz", "/metrics", "/load")
_MAX_PATH = 256


class TracingMiddleware:
    """Traces requests. Must come after the middleware that makes the request the current one."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; spans of other services become children of this one."""
        if scope["type"] != "http" or scope["path"].endswith(_UNTRACED):
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
            if route := _route(scope):
                span.rename(f"{method} {route}")
                span.set({HTTP_ROUTE: route})
            span.end(error)


def _route(scope: Scope) -> str:
    """Returns the route's path with parameter names in place of values; empty if no route matches."""
    endpoint, path = scope.get("endpoint"), path_below_root(scope).decode("latin-1")
    routes = scope["router"].routes if endpoint is not None else ()
    found = (route for route in routes if isinstance(route, Route) and route.endpoint is endpoint)
    return next((route.path for route in found if route.path_regex.match(path)), "")
