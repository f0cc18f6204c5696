"""Limits of named API keys: every POST counts as a request, whatever it asks for."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import error_response
from gateway.middleware.root_path import path_below_root
from gateway.requests.named_key import NamedKey
from quire.errors import RateLimited

# What ends running requests must be possible at any limit.
ENDS_REQUESTS = re.compile(rb"/inference/v1/abort_requests|/v1/responses/[^/]+/cancel")


class RateLimitMiddleware:
    """Refuses requests of keys that have reached a limit, and tells all others what remains.

    Sets the request's `admission` in `scope["state"]`, through which it reserves its tokens once they are known.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on what has no limits, and requests within their limits."""
        key: NamedKey | None = scope["state"].get("named_key") if scope["type"] == "http" else None
        if key is None or scope["method"] != "POST" or ENDS_REQUESTS.fullmatch(path_below_root(scope)):
            await self._app(scope, receive, send)
            return

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                limits = [(name.encode(), value.encode()) for name, value in key.headers.items()]
                message = {**message, "headers": [*message["headers"], *limits]}
            await send(message)

        try:
            admission = key.admit()
        except RateLimited as error:
            await error_response(error, scope)(scope, receive, send_with_limits)
            return
        scope["state"]["admission"] = admission
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            admission.end()
