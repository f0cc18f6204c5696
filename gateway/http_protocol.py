"""uvicorn's HTTP protocol plus the limits it lacks: size of the headers, time for headers, time for the body."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import sys
import termios
from functools import partial
from typing import Any, ClassVar, cast

from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.answers.stream import PIECES
from gateway.errors import error_response
from gateway.middleware.root_path import path_below_root
from quire.errors import Overloaded
from quire.options.gateway import GatewayOptions

logger = logging.getLogger(__name__)

_LIVENESS = b"/livez"
_WEBSOCKET = b"/v1/realtime"
# Time for a client to read why its request is refused, while it may still be sending.
_LAST_WORDS_SECONDS = 5.0
# A client that takes longer than this to read this many bytes, or the remainder, counts as stalled.
_STALL_SECONDS = 60.0
_STALL_BYTES = 2**16


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections that send too much or too slowly, before the application sees the request.

    One timer runs while the server waits for the client, and never while a response is being produced: bytes that
    arrive then (the CRLF that old clients send after a body, or the next request) may take any time. A second timer
    runs while there is response data that the client has not read. Trailers after a body are ignored.
    """

    # Time the client has for the headers and for the body.
    header_seconds: ClassVar[float]
    body_seconds: ClassVar[float]
    max_header_bytes: ClassVar[int]
    max_headers: ClassVar[int]
    # Whether body chunks may bypass ASGI: True if no user middleware needs to see them.
    gives_pieces: ClassVar[bool]

    _timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0  # bytes of the current headers, or non-body bytes since the last piece of the body
    _in_headers = True  # or between two requests
    _is_refused = False  # anything received from now on is discarded
    _served: RequestResponseCycle | None = None  # uvicorn's `cycle` is the newest, perhaps still queued

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it likewise
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._trust_reader()
        super().connection_lost(exc)
        self._leave(self._served)  # uvicorn notifies only the last request

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        if app is service_unavailable:  # uvicorn's plain-text response beyond its connection limit
            scope: Any = cycle.scope
            alive = path_below_root(scope) == _LIVENESS  # a full server must not look dead
            app = cast("ASGI3Application", self.app if alive else _too_many_connections)
        if self.gives_pieces:
            cycle.scope["extensions"] = {PIECES: {"write": partial(write_piece, cycle)}}
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._header_bytes += len(data)
        if self._in_headers and self._timer is None and not self._answering:
            self._await_headers()
        super().data_received(data)
        if self._header_bytes > self.max_header_bytes:
            self._refuse_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_refused:  # a later request in the same packet
            return
        if sum(len(name) + len(value) for name, value in self.headers) > self.max_header_bytes:
            self._refuse_size()
            return
        if len(self.headers) > self.max_headers:
            self._refuse(431, f"The request has more than {self.max_headers} headers (--h11-max-header-count).")
            return
        self._in_headers, self._header_bytes = False, 0
        self._disarm()
        if not self._answering:
            self._await_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._in_headers:
            self._header_bytes = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._in_headers:
            self._disarm()
            self._in_headers, self._header_bytes = True, 0
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return super()._should_upgrade() and self.url.partition(b"?")[0].endswith(_WEBSOCKET)

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        self._trust_reader()
        if self._answering:
            self._refuse(400, "A connection cannot become a WebSocket before earlier requests are answered.")
        elif len(self.connections) >= (self.limit_concurrency or math.inf):
            self._refuse(503, "The server has reached its connection limit (--max-connections); try again in a moment.")
        else:
            super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:
            self._watch_reader()
        super().on_response_complete()
        if not self._in_headers and self._timer is None and not self.pipeline:  # the next request's body is awaited now
            self._await_body()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._trust_reader()
        if not self._answering:  # only the tail of the last response is left
            self._watch_reader()

    def _watch_reader(self) -> None:
        """Starts the timer that ends the connection if the client does not read what has been written."""
        self._trust_reader()
        if unread := self._num_unread():
            check = partial(self._check_reader, unread, self.cycle)
            self._unread_timer = asyncio.get_running_loop().call_later(_STALL_SECONDS, check)

    def _num_unread(self) -> int:
        """Bytes the client has not taken, including those in the kernel's send buffer, which may be megabytes."""
        kept = bytearray(4)
        with contextlib.suppress(OSError, ValueError):  # the socket may just have been closed
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kept)
        return self.transport.get_write_buffer_size() + int.from_bytes(kept, sys.byteorder)

    def _trust_reader(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_reader(self, before: int, cycle: RequestResponseCycle | None) -> None:
        """
        Args:
            before: bytes unread when the watch began.
            cycle: the newest request at that time. If another one has arrived since, there may be more to read, which
                is watched when its response ends.
        """
        unread = self._num_unread()
        if not unread or (self.cycle is not cycle and not self.flow.write_paused):
            return
        if unread > max(0, before - _STALL_BYTES):
            logger.info("a client has not read its answer for %g s; closing its connection", _STALL_SECONDS)
            self.transport.abort()
        else:
            self._watch_reader()

    @property
    def _answering(self) -> bool:
        """Whether a fully received request, earlier than the one being read now, has no complete response yet."""
        return self.cycle is not None and (bool(self.pipeline) or not self.cycle.response_complete)

    def _await_headers(self) -> None:
        self._arm(self.header_seconds, 408, "The request's headers did not arrive in time.")

    def _await_body(self) -> None:
        self._arm(self.body_seconds, 408, "The request's body did not arrive in time.")

    def _arm(self, seconds: float, status: int, message: str) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._refuse, status, message)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_size(self) -> None:
        limit = f"{self.max_header_bytes} bytes (--h11-max-incomplete-event-size)"
        self._refuse(431, f"The request's headers are larger than {limit}.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        has_spoken, self._is_refused = self._has_spoken(), True
        if not has_spoken:
            self.transport.write(_response(status, message))
        if has_spoken or not self.transport.can_write_eof():  # TLS has no half-close
            self.transport.close()
            return
        # Closing with unread input would reset the connection, and the client might lose the response.
        self.transport.write_eof()
        self._leave(self.cycle)
        self.flow.resume_reading()
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self.transport.close)

    @staticmethod
    def _leave(cycle: RequestResponseCycle | None) -> None:
        """Tells the application that the client has disconnected."""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _has_spoken(self) -> bool:
        """Whether a response is under way, or the request being read now already has its response."""
        if self.cycle is None or not self.cycle.response_started:
            return bool(self.pipeline)
        return bool(self.pipeline) or not (self.cycle.response_complete and self._in_headers)


def write_piece(cycle: RequestResponseCycle, body: bytes) -> bool:
    """Writes a chunk of a chunked body directly to the transport, bypassing `cycle.send`.

    Returns:
        Whether it was written. False where `cycle.send` would wait, or do something other than write a chunk.
    """
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


def limited_protocol(options: GatewayOptions) -> type[LimitedProtocol]:
    """Returns a protocol class with the limits of `options`; uvicorn creates one instance per connection."""
    limits = {
        "header_seconds": options.header_timeout_seconds, "body_seconds": options.body_timeout_seconds,
        "max_header_bytes": options.h11_max_incomplete_event_size, "max_headers": options.h11_max_header_count,
        "gives_pieces": not options.middleware,
    }  # fmt: skip
    return type("Protocol", (LimitedProtocol,), limits)


async def _too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(
        Overloaded("The server has reached its connection limit (--max-connections); try again in a moment."), scope
    )
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def _response(status: int, message: str) -> bytes:
    phrase = {
        400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable",
    }[status]  # fmt: skip
    body = f'{{"error":{{"message":"{message}","type":"{phrase}","param":null,"code":{status}}}}}'
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"connection: close\r\n\r\n{body}"
    ).encode()
