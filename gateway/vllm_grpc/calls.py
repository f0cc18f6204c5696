"""Turns a gRPC call into what the rest of the gateway knows of a caller: an HTTP request without a body."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Message

from gateway.context import GatewayContext
from gateway.middleware.authentication import identify
from gateway.requests.caller import admission_of


class Calls:
    """Identifies the callers of a service."""

    def __init__(self, app: Starlette, context: GatewayContext) -> None:
        """
        Args:
            app: the application that holds the gateway's components.
        """
        self._app = app
        self._context = context

    def request_of(self, call: grpc.aio.ServicerContext) -> Request:
        """Returns the request that a call amounts to: its metadata are the headers.

        Raises:
            Unauthenticated: it needs a key, and has none that is known.
        """
        headers = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in call.invocation_metadata() or ()
            if isinstance(value, str)
        ]
        keys = self._context.api_keys
        state: dict[str, Any] = identify(keys, headers) if self._context.options.needs_key else {}
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "app": self._app, "state": state}
        return Request(scope, _until_cancelled)

    @contextlib.contextmanager
    def admitted(self, call: grpc.aio.ServicerContext) -> Iterator[Request]:
        """Counts a call as a request of its key while the context is open.

        Raises:
            Unauthenticated: see `request_of`.
            RateLimited: the key has reached a limit.
        """
        request = self.request_of(call)
        if key := request.scope["state"].get("named_key"):
            request.scope["state"]["admission"] = key.admit()
        try:
            yield request
        finally:
            if admission := admission_of(request):
                admission.end()


async def _until_cancelled() -> Message:
    """A client that goes away cancels the call, and so never sends a message about it."""
    gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await gone
