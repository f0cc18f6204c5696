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
from quire.errors import Unavailable


class Calls:
    """Identifies the callers of a service."""

    def __init__(self, app: Starlette, context: GatewayContext) -> None:
        """
        Args:
            app: the application that holds the gateway's components.
        """
        self.app = app
        self._context = context
        self._num_running = 0  # requests that are admitted
        self._is_draining = False
        self._idle = asyncio.Event()

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
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "app": self.app, "state": state}
        return Request(scope, _until_cancelled)

    @contextlib.contextmanager
    def admitted(self, call: grpc.aio.ServicerContext) -> Iterator[Request]:
        """Counts a call as a request of its key while the context is open.

        Raises:
            Unauthenticated: see `request_of`.
            Unavailable: the server is stopping, or short of memory.
            RateLimited: the key has reached a limit.
        """
        request = self.request_of(call)
        if self._is_draining:
            raise Unavailable("The server is stopping: send the request to another one, or again in a moment.")
        self._context.memory.admit()
        if key := request.scope["state"].get("named_key"):
            request.scope["state"]["admission"] = key.admit()
        self._num_running += 1
        try:
            yield request
        finally:
            self._num_running -= 1
            self._note_idle()
            if admission := admission_of(request):
                admission.end()

    async def drain(self) -> None:
        """Refuses new requests; returns once none is running."""
        self._is_draining = True
        self._note_idle()
        await self._idle.wait()

    def _note_idle(self) -> None:
        if self._is_draining and not self._num_running:
            self._idle.set()


async def _until_cancelled() -> Message:
    """A client that goes away cancels the call, and so never sends a message about it."""
    gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await gone
