"""Frames on a Unix socket, in both directions: the beginning of a call, its messages, and its end."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from quire.rpc.settings import MAX_MESSAGE_BYTES

Metadata = tuple[tuple[str, str], ...]
Trailers = tuple[tuple[str, bytes], ...]

_HEADER = struct.Struct("!BI")  # kind, size of the payload
# With more unread bytes than this, a connection stops reading; with more bytes to write, its writers wait.
_MAX_WAITING_BYTES = 2 * MAX_MESSAGE_BYTES


class Kind(enum.IntEnum):
    """The kind of a frame."""

    BEGIN = 0  # from the caller: a Call; from the server: empty, the call is running
    MESSAGE = 1  # a protobuf message
    END = 2  # from the server: an End, the last frame


class Call(msgspec.Struct):
    """The call that a caller wants to make."""

    method: str
    metadata: Metadata


class End(msgspec.Struct):
    """How a call ended."""

    code: int  # gRPC status code
    details: str = ""
    trailers: Trailers = ()


class Frame(NamedTuple):
    """A frame."""

    kind: int
    payload: bytes


class FrameConnection(asyncio.Protocol):
    """One end of a connection. Used from one event loop; one task reads. It closes on a frame larger than the limit for
    gRPC messages."""

    def __init__(self, on_lost: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            on_lost: called once when the connection is gone.
        """
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._frames: deque[Frame] = deque()
        self._waiting_bytes = 0  # payload bytes in `_frames`
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = False

    @property
    def transport(self) -> asyncio.Transport:
        """The connection's transport."""
        return self._transport

    @property
    def writable(self) -> bool:
        """Whether a write would not have to wait."""
        return self._writable.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.closed = True
        self._writable.set()
        self._wake()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            kind, size = _HEADER.unpack_from(buffer, start)
            if size > MAX_MESSAGE_BYTES:
                self.abort()
                return
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            self._frames.append(Frame(kind, bytes(buffer[start + _HEADER.size : end])))
            self._waiting_bytes += size
            start = end
        if start:
            del buffer[:start]
            self._wake()
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.set()

    async def next(self) -> Frame | None:
        """The next frame; None once the connection is closed."""
        while not self._frames:
            if self.closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        frame = self._frames.popleft()
        if self._waiting_bytes > _MAX_WAITING_BYTES >= self._waiting_bytes - len(frame.payload):
            self._transport.resume_reading()
        self._waiting_bytes -= len(frame.payload)
        return frame

    async def write(self, kind: Kind, payload: bytes = b"") -> None:
        """Sends a frame; waits while too many bytes are still unsent. Does nothing once the connection is closed."""
        if not self._writable.is_set():
            await self._writable.wait()
        if not self.closed:
            self._transport.write(_HEADER.pack(kind, len(payload)) + payload)

    def close(self) -> None:
        """Ends the connection once everything written has been sent."""
        self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
