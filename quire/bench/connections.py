"""The connections that requests are sent on, reused as long as the server keeps them open."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from quire.bench.answer import Answer, AnswerReader, EventReader
from quire.bench.response import ResponseReader

_MAX_ERROR_BYTES = 4096


@dataclass(frozen=True)
class Target:
    """The endpoint that requests are sent to.

    Attributes:
        headers: header lines of every request, each with its line end.
        tls: TLS context for an https server.
        reads: creates the reader of an answer.
    """

    url: str  # including the endpoint's path
    headers: str
    tls: ssl.SSLContext | None
    reads: Callable[[Answer], AnswerReader] = EventReader
    socket: str = ""  # path of a Unix socket to connect to instead of the URL's host

    def request(self, body: bytes, request_id: str) -> bytes:
        """The bytes of one request."""
        parts = urlsplit(self.url)
        head = (
            f"POST {parts.path or '/'}{'?' if parts.query else ''}{parts.query} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            f"{self.headers}x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1", "replace") + body


class Connections:
    """Sends requests, each on a connection of its own while it runs."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[_Connection] = []

    async def ask(self, body: bytes, request_id: str, answer: Answer) -> None:
        """Sends one request and fills in the answer, including any error."""
        message = self._target.request(body, request_id)
        try:
            while connection := self._pop():
                if await connection.exchange(message, answer):
                    self._idle.append(connection)
                    return
                if not connection.was_stale:
                    return
            connection = await self._open()
            if await connection.exchange(message, answer):
                self._idle.append(connection)
            elif connection.was_stale:
                answer.fail("the server closed the connection without an answer")
        except OSError as error:
            answer.fail(f"no connection: {error}")

    def close(self) -> None:
        """Closes the idle connections."""
        while connection := self._pop():
            connection.close()

    def _pop(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _open(self) -> _Connection:
        make = functools.partial(_Connection, self._target.reads)
        loop = asyncio.get_running_loop()
        if self._target.socket:
            _, connection = await loop.create_unix_connection(make, self._target.socket)
            return connection
        parts = urlsplit(self._target.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        _, connection = await loop.create_connection(make, parts.hostname or "", port, ssl=self._target.tls)
        return connection


class _Connection(asyncio.Protocol):
    """A connection with at most one request in progress."""

    def __init__(self, reads: Callable[[Answer], AnswerReader]) -> None:
        self._reads = reads
        self.is_closed = False
        self.was_stale = False  # it ended before any response
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._reader = ResponseReader(self._take)
        self._body: AnswerReader | None = None
        self._answer = Answer(0)
        self._other = b""  # beginning of an error response

    async def exchange(self, message: bytes, answer: Answer) -> bool:
        """Sends a request and waits for the end of its answer; returns whether the connection can be reused."""
        assert self._transport is not None
        self._answer, self._body, self._other = answer, self._reads(answer), b""
        self._reader, self.was_stale = ResponseReader(self._take), False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        try:
            await self._done
        except BaseException:
            self.close()
            raise
        if self._reader.status and self._reader.status != 200:
            said = self._other.decode(errors="replace")
            answer.fail(f"{self._reader.status}: {said}")
        if not self._reader.keeps_connection:
            self.close()
        return self._reader.keeps_connection and not self.is_closed

    def close(self) -> None:
        """Closes the connection."""
        self.is_closed = True
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class does not derive from it

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            if self._reader.is_complete and self._reader.status == 200 and self._body:
                self._body.end()
        except ValueError as error:
            self._answer.fail(f"the answer cannot be read: {error}")
            self.close()
            self._finish()
        if self._reader.is_complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._reader.end()
        if not self._reader.status:
            self.was_stale = True
        elif not self._reader.is_complete:
            self._answer.fail(f"the connection was lost{f': {exc}' if exc else ''}")
        self._finish()

    def _take(self, piece: bytes) -> None:
        if self._reader.status == 200 and self._body:
            self._body.feed(piece)
        else:
            self._other = (self._other + piece)[:_MAX_ERROR_BYTES]

    def _finish(self) -> None:
        if self._done and not self._done.done():
            self._done.set_result(None)
