"""Server-sent events: a response that writes what is ready in one go and stops when the client does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.errors import error_body, error_response
from gateway.job import ChoiceEvent, FailureEvent
from gateway.live import LiveRequest
from gateway.middleware.stopping import stopping
from gateway.outcome import first_error

logger = logging.getLogger(__name__)

# Proxies and clients close connections on which nothing comes for long.
PING_SECONDS = 15.0
# A client that takes longer than this to read 64 KiB is not reading.
STALL_SECONDS = 60.0
# For the last words of a stream that is cut.
_LAST_WORDS_SECONDS = 1.0
# More goes out in several pieces.
_PIECE_BYTES = 256 * 1024
_PING = b": ping\n\n"
_DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encoder = msgspec.json.Encoder()


def sse(content: Any) -> bytes:
    """One event."""
    return b"data: " + _encoder.encode(content) + b"\n\n"


class EventStream:
    """ASGI response of a streaming request.

    The head is sent with the first events and not before, so that a request which the engine refuses still gets its
    proper status.
    """

    def __init__(
        self,
        live: LiveRequest,
        opening: Iterable[Any],
        render: Callable[[ChoiceEvent], Iterable[Any]],
        closing: Callable[[], Iterable[Any]],
    ) -> None:
        """
        Args:
            opening: chunks that come before any event.
            render: an event → its chunks.
            closing: chunks that come after the last event, if all went well.
        """
        self._live = live
        self._opening = opening
        self._render = render
        self._closing = closing
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams until the request ends or the client goes."""
        watcher = asyncio.ensure_future(self._watch(receive))
        try:
            await self._stream(scope, receive, send)
        except TimeoutError:
            logger.info("the client has not read its stream for %g s; ending it", STALL_SECONDS)
        except asyncio.CancelledError:
            if not self._begun:
                raise
            await self._end_early(send)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            self._live.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._live.cancel()

    async def _end_early(self, send: Send) -> None:
        """The server stops: no stream ends without a word."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await send({"type": "http.response.body", "body": sse(error_body(stopping())) + _DONE})

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        batch = None
        while batch is None:  # no head yet, so nothing can be said while the request waits in a queue
            batch = await self._live.next_batch(PING_SECONDS)
        if error := first_error(batch):
            await error_response(error)(scope, receive, send)
            return
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        body = b""
        for chunk in self._opening:
            body += sse(chunk)
            if len(body) >= _PIECE_BYTES:  # prompts that many choices repeat
                await self._send(send, body)
                body = b""
        failed = False
        while batch != []:
            body += _PING if batch is None else b"".join(self._encode(event) for event in batch)
            failed = failed or (batch is not None and first_error(batch) is not None)
            await self._send(send, body)
            body = b""
            batch = await self._live.next_batch(PING_SECONDS)
        if not failed:
            body = b"".join(sse(chunk) for chunk in self._closing())
        await send({"type": "http.response.body", "body": body + _DONE})

    async def _send(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(STALL_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await asyncio.sleep(0)  # sending to a client that reads does not wait, and others are to have their turn

    def _encode(self, event: ChoiceEvent | FailureEvent) -> bytes:
        if isinstance(event, FailureEvent):
            return sse(error_body(event.error))
        self._live.completion_tokens += len(event.token_ids)
        return b"".join(sse(chunk) for chunk in self._render(event))
