"""Counts and times HTTP requests, whatever becomes of them."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.http import HttpStatistics
from gateway.middleware.matched_route import is_polled, route_of


class MeasuringMiddleware:
    """Measures all requests but those that are polled. A stream takes until its last event."""

    def __init__(self, app: ASGIApp, statistics: HttpStatistics) -> None:
        self._app = app
        self._statistics = statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http" or is_polled(scope):
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), 500  # of a request that ends in an exception, which is answered further out

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            self._statistics.observe(scope["method"], route_of(scope), status, time.monotonic() - start)
