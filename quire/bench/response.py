"""An incremental HTTP/1.1 response parser, with as little Python per token as possible."""

from __future__ import annotations

import enum
from collections.abc import Callable

_MAX_HEAD_BYTES = 64 * 2**10


class _Body(enum.Enum):
    SIZED = enum.auto()
    CHUNKED = enum.auto()
    TO_THE_END = enum.auto()  # until the connection ends


class ResponseReader:
    """Parses one response: passes pieces of its body on as they arrive.

    Attributes:
        status: the HTTP status; 0 until known.
        is_complete: whether the whole response has arrived.
        keeps_connection: whether the connection can be reused for another request.
    """

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.status = 0
        self.is_complete = False
        self.keeps_connection = False
        self._on_body = on_body
        self._buffer = b""
        self._body = _Body.TO_THE_END
        self._left = 0  # bytes left of a sized body, or of the chunk including its line end

    def feed(self, data: bytes) -> None:
        """Processes received bytes.

        Raises:
            ValueError: it is not HTTP.
        """
        self._buffer += data
        if not self.status and not self._read_head():
            return
        if self._body is _Body.CHUNKED:
            self._read_chunks()
        elif self._body is _Body.SIZED:
            piece, self._buffer = self._buffer[: self._left], b""
            self._left -= len(piece)
            self._on_body(piece)
            self.is_complete = self._left == 0
        else:
            self._on_body(self._buffer)
            self._buffer = b""

    def end(self) -> None:
        """Handles the end of the connection, which also ends a body without a length."""
        self.is_complete = self.is_complete or bool(self.status and self._body is _Body.TO_THE_END)
        self.keeps_connection = False

    def _read_head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise ValueError("the response has no end of headers")
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(":") for x in lines)}
        version, _, status = first.partition(" ")
        self.status = int(status[:3])
        if 100 <= self.status < 200:  # interim response; the final one follows
            self.status, self._buffer = 0, rest
            return self._read_head()
        self._buffer = rest
        self.keeps_connection = version == "HTTP/1.1" and headers.get("connection") != "close"
        if headers.get("transfer-encoding") == "chunked":
            self._body = _Body.CHUNKED
        elif "content-length" in headers:
            self._body, self._left = _Body.SIZED, int(headers["content-length"])
        return True

    def _read_chunks(self) -> None:
        while self._buffer and not self.is_complete:
            if not self._left:
                size, found, rest = self._buffer.partition(b"\r\n")
                if not found:
                    return
                length = int(size.partition(b";")[0], 16)
                self.is_complete = not length  # trailers are ignored
                self._left, self._buffer = length + 2, rest
                continue
            piece = self._buffer[: self._left]
            self._buffer = self._buffer[self._left :]
            self._left -= len(piece)
            past = max(0, 2 - self._left)  # bytes of the line end in this piece
            self._on_body(piece[: len(piece) - past] if past else piece)
