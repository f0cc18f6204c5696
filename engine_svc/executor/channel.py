"""Messages between an executor and its ranks: length-prefixed msgpack over a stream socket."""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


def encode(message: Any) -> bytes:
    """A message as `Channel.receive` reads it: a msgpack value."""
    return msgspec.msgpack.encode(message)


def decode(payload: Buffer, kind: Any) -> Any:
    """The message; structs are of the type that is named."""
    return _decoder(kind).decode(payload)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Made once: for all that ranks are told, making it takes as long as reading the plan of 256 sequences."""
    return msgspec.msgpack.Decoder(kind)


class Channel:
    """One end. One thread may send and another receive where neither names a time limit."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._socket = connection
        self._seconds: float | None = None

    def fileno(self) -> int:
        """For those who wait for several; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Sends one message; waits while the peer is behind with reading.

        Raises:
            OSError: the peer is gone.
            TimeoutError: it does not read, for so many seconds.
        """
        self.send_encoded(encode(message), seconds)

    def send_encoded(self, payload: bytes, seconds: float | None = None) -> None:
        """As `send`."""
        self._limit(seconds)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, kind: Any, seconds: float | None = None) -> Any:
        """The next message.

        Raises:
            EOFError: the peer is gone.
            OSError: as `send`.
            TimeoutError: a part of it does not come, for so many seconds.
        """
        self._limit(seconds)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return decode(self._read(length), kind)

    def shut(self) -> None:
        """Ends the stream for both ends, also for who waits for a message. May be called from any thread."""
        with contextlib.suppress(OSError):  # the peer has closed it, or it is closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """As `shut`, and no more can be done with it."""
        self.shut()
        self._socket.close()

    def _limit(self, seconds: float | None) -> None:
        if seconds != self._seconds:  # each time is a call of the kernel
            self._socket.settimeout(seconds)
            self._seconds = seconds

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise EOFError("the peer is gone")
            view = view[received:]
        return buffer
