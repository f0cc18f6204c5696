"""Refuses new requests while the gateway is short of memory, before their bodies are read."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import error_response
from gateway.middleware.authentication import PUBLIC_PATHS
from gateway.middleware.rate_limits import ENDS_REQUESTS
from gateway.middleware.root_path import path_below_root
from quire.errors import Unavailable
from quire.memory_guard import MemoryGuard


class MemoryMiddleware:
    """Answers 503 to every POST, except to probes and to what ends running requests."""

    def __init__(self, app: ASGIApp, guard: MemoryGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on everything while there is memory."""
        if self._guard.is_short and scope["type"] == "http" and scope["method"] == "POST":
            path = path_below_root(scope)
            if path not in PUBLIC_PATHS and not ENDS_REQUESTS.fullmatch(path):
                try:
                    self._guard.admit()
                except Unavailable as error:
                    await error_response(error, scope)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
