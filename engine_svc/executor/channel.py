"""Messages between an executor and its rank processes: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end. Each message is a msgpack value; structs are decoded by the type that is named when receiving."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: Any) -> None:
        """Sends one message."""
        payload = self._encoder.encode(message)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, kind: Any, timeout: float | None = None) -> Any:
        """The next message.

        Raises:
            EOFError: the peer is gone.
            TimeoutError: nothing came in `timeout` seconds.
        """
        self._socket.settimeout(timeout)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return msgspec.msgpack.decode(self._read(length), type=kind)

    def close(self) -> None:
        """Closes this end; the peer sees the end of the stream."""
        self._socket.close()

    def _read(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            received = self._socket.recv_into(view)
            if not received:
                raise EOFError("the peer is gone")
            view = view[received:]
        return buffer
