"""A streamed response, which writes everything that is ready at once and stops when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from gateway.answers.events import PING
from gateway.errors import error_response, stopping
from quire.errors import QuireError

# Proxies and clients close connections that are silent for long.
_PING_SECONDS = 15.0
# Time to send the final events of a stream that is cut off.
_LAST_WORDS_SECONDS = 1.0
# Larger batches are sent in several pieces.
_PIECE_BYTES = 256 * 1024
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

# ASGI extension of this server that writes a piece without passing a message through all middleware, which costs as
# much as writing it. If its `write` returns False, the piece has to be sent the usual way.
PIECES = "quire.pieces"

Update = TypeVar("Update")
Written = TypeVar("Written", contravariant=True)


class UpdateSource(Protocol[Update]):
    """Source of the updates of a stream; see AnswerQueue."""

    @property
    def error(self) -> QuireError | None:
        """Why there are no more updates; None if they have simply ended."""

    async def next_batch(self, timeout: float) -> list[Update] | None:
        """Returns all updates that are ready; an empty list at the end; None on timeout."""

    def read_by(self, receive: Receive) -> AbstractAsyncContextManager[None]:
        """Context in which a client reads."""


class EventWriter(Protocol[Written]):
    """Writes an answer as encoded events of an API."""

    def opening(self) -> Iterable[bytes]:
        """Returns the events before any update."""

    def update(self, update: Written, /) -> Iterable[bytes]:
        """Returns the events of an update; none if it has nothing to show."""

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        """Returns the last events: after all updates, or after an error."""


class EventStream:
    """ASGI response of a streaming request.

    The headers are sent only with the first events, so that a request which the engine refuses still gets its proper
    status; unless clients are to hear something sooner.
    """

    def __init__(self, queue: UpdateSource[Update], writer: EventWriter[Update], keep_alive_interval: float) -> None:
        """
        Args:
            keep_alive_interval: after this many seconds of silence a ping is sent, and before it the headers, if they
                have not been; 0 means that nothing is sent before the first events.
        """
        self._queue: UpdateSource[Any] = queue
        self._is_early = keep_alive_interval > 0
        self._ping_seconds = keep_alive_interval or _PING_SECONDS
        self._writer: EventWriter[Any] = writer
        self._begun = False
        self._write: Callable[[bytes], bool] = lambda body: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the request ends or the client disconnects."""
        async with self._queue.read_by(receive):
            try:
                await self._stream(scope, receive, send)
            except asyncio.CancelledError:
                if not self._begun:
                    raise
                await self._end_early(send)

    async def _end_early(self, send: Send) -> None:
        """Ends the stream with an error event when the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._end(send, stopping())

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (batch := await self._queue.next_batch(self._ping_seconds)) is None:
            if self._is_early:
                await self._begin(scope, send)
                await self._send(send, PING)
        if self._queue.error and not self._begun:
            await error_response(self._queue.error, scope)(scope, receive, send)
            return
        await self._begin(scope, send)
        await self._send_all(send, itertools.chain(self._writer.opening(), self._told(batch)))
        while batch != []:
            batch = await self._queue.next_batch(self._ping_seconds)
            await self._send_all(send, self._told(batch))
        await self._end(send, self._queue.error)

    async def _begin(self, scope: Scope, send: Send) -> None:
        """Sends the headers, once."""
        if not self._begun:
            self._begun = True
            self._write = scope.get("extensions", {}).get(PIECES, {}).get("write", self._write)
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    def _told(self, batch: Iterable[Any] | None) -> Iterable[bytes]:
        return (PING,) if batch is None else (event for update in batch for event in self._writer.update(update))

    async def _send_all(self, send: Send, events: Iterable[bytes]) -> None:
        body = b""
        for event in events:
            body += event
            if len(body) >= _PIECE_BYTES:  # e.g. many choices that echo a prompt
                await self._send(send, body)
                await asyncio.sleep(0)  # sending does not block if the client reads, so yield to other tasks
                body = b""
        await self._send(send, body)

    async def _send(self, send: Send, body: bytes) -> None:
        if body and not self._write(body):
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _end(self, send: Send, error: QuireError | None) -> None:
        await send({"type": "http.response.body", "body": b"".join(self._writer.closing(error))})
