"""Answers requests that are cancelled because the server stops, if no response has begun."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import error_response, stopping


class StoppingMiddleware:
    """Answers 503 to a request whose task is cancelled, which happens only when the server stops (`main`).

    Streams that have begun send their own error (`EventStream`).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything on."""
        begun = False

        async def noting_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except asyncio.CancelledError:
            if begun or scope["type"] != "http":
                raise
            await error_response(stopping(), scope)(scope, receive, send)
