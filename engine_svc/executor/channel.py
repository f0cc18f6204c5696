"""Messages between an executor and its ranks: length-prefixed msgpack over a stream socket."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import struct
from typing import Any

import msgspec

# Poll events of a socket whose peer has closed it or is gone.
GONE = select.POLLHUP | select.POLLRDHUP | select.POLLERR

_LENGTH = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


def encode(message: Any) -> bytes:
    """Encodes a message for `Channel.receive`, as a msgpack value."""
    return msgspec.msgpack.encode(message)


def decode(payload: Buffer, kind: Any) -> Any:
    """Decodes a message of type `kind`."""
    return _decoder(kind).decode(payload)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A cached decoder: creating the one for all commands takes as long as decoding the plan of 256 sequences."""
    return msgspec.msgpack.Decoder(kind)


class Channel:
    """One end of a connection. One thread may send while another receives if neither sets a time limit."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._socket = connection
        self._seconds: float | None = None

    def fileno(self) -> int:
        """The file descriptor, for polling; -1 once closed."""
        return self._socket.fileno()

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Sends one message; blocks while the peer is not reading.

        Raises:
            OSError: the peer is gone.
            TimeoutError: the peer does not read for `seconds`.
        """
        self.send_encoded(encode(message), seconds)

    def send_encoded(self, payload: bytes, seconds: float | None = None) -> None:
        """Like `send`, for an encoded message."""
        self._limit(seconds)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, kind: Any, seconds: float | None = None) -> Any:
        """Waits for the next message and returns it.

        Raises:
            EOFError: the peer is gone.
            OSError: as `send`.
            TimeoutError: nothing arrives for `seconds`.
        """
        self._limit(seconds)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return decode(self._read(length), kind)

    def is_gone(self) -> bool:
        """Whether the peer has closed its end or is gone, as far as the kernel knows."""
        poll = select.poll()
        poll.register(self._socket, GONE)
        return bool(poll.poll(0))

    def leave(self) -> None:
        """Closes this process's end alone: the connection remains for a child that has inherited it."""
        self._socket.close()

    def shut(self) -> None:
        """Ends the stream for both ends and wakes a pending receive. May be called from any thread."""
        with contextlib.suppress(OSError):  # already closed, here or by the peer
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Like `shut`, and also closes the socket."""
        self.shut()
        self._socket.close()

    def _limit(self, seconds: float | None) -> None:
        if seconds != self._seconds:  # each change is a system call
            self._socket.settimeout(seconds)
            self._seconds = seconds

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise EOFError("the peer has gone")
            view = view[received:]
        return buffer
