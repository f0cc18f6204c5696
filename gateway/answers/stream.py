"""A streamed answer: a response that writes what is ready in one go and stops when the client does."""

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

# Proxies and clients close connections on which nothing comes for long.
PING_SECONDS = 15.0
# For the last words of a stream that is cut.
_LAST_WORDS_SECONDS = 1.0
# More goes out in several pieces.
_PIECE_BYTES = 256 * 1024
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

# The server's extension of ASGI by which a piece goes out without a message through all middleware, which costs as much
# as to write it. False from its `write` says that the piece has to go the usual way.
PIECES = "quire.pieces"

Update = TypeVar("Update")
Written = TypeVar("Written", contravariant=True)


class UpdateSource(Protocol[Update]):
    """Where the updates of a stream come from; see AnswerQueue."""

    @property
    def error(self) -> QuireError | None:
        """Why no more come, where that is not their end."""

    async def next_batch(self, timeout: float) -> list[Update] | None:
        """All that are ready; an empty list at the end; None when nothing came in time."""

    def read_by(self, receive: Receive) -> AbstractAsyncContextManager[None]:
        """While a client reads."""


class EventWriter(Protocol[Written]):
    """How an API tells an answer, in encoded events."""

    def opening(self) -> Iterable[bytes]:
        """What comes before any update."""

    def update(self, update: Written, /) -> Iterable[bytes]:
        """What an update comes to; nothing for one that has nothing to show."""

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        """What comes last: after all updates, or after the error that came in between."""


class EventStream:
    """ASGI response of a streaming request.

    The head is sent with the first events and not before, so that a request which the engine refuses still gets its
    proper status.
    """

    def __init__(self, queue: UpdateSource[Update], writer: EventWriter[Update]) -> None:
        self._queue: UpdateSource[Any] = queue
        self._writer: EventWriter[Any] = writer
        self._begun = False
        self._write: Callable[[bytes], bool] = lambda body: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the request ends or the client goes."""
        async with self._queue.read_by(receive):
            try:
                await self._stream(scope, receive, send)
            except asyncio.CancelledError:
                if not self._begun:
                    raise
                await self._end_early(send)

    async def _end_early(self, send: Send) -> None:
        """The server stops: no stream ends without a word."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._end(send, stopping())

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        batch = None
        while batch is None:  # no head yet, so nothing can be said while the request waits in a queue
            batch = await self._queue.next_batch(PING_SECONDS)
        if self._queue.error:
            await error_response(self._queue.error, scope)(scope, receive, send)
            return
        self._begun = True
        self._write = scope.get("extensions", {}).get(PIECES, {}).get("write", self._write)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send_all(send, itertools.chain(self._writer.opening(), self._told(batch)))
        while batch != []:
            batch = await self._queue.next_batch(PING_SECONDS)
            await self._send_all(send, self._told(batch))
        await self._end(send, self._queue.error)

    def _told(self, batch: Iterable[Any] | None) -> Iterable[bytes]:
        return (PING,) if batch is None else (event for update in batch for event in self._writer.update(update))

    async def _send_all(self, send: Send, events: Iterable[bytes]) -> None:
        body = b""
        for event in events:
            body += event
            if len(body) >= _PIECE_BYTES:  # prompts that many choices repeat
                await self._send(send, body)
                await asyncio.sleep(0)  # sending to one that reads does not wait, and others are to have their turn
                body = b""
        await self._send(send, body)

    async def _send(self, send: Send, body: bytes) -> None:
        if body and not self._write(body):
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _end(self, send: Send, error: QuireError | None) -> None:
        await send({"type": "http.response.body", "body": b"".join(self._writer.closing(error))})
