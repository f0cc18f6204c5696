"""The address of the Unix socket that belongs to a gRPC port on this machine."""

from __future__ import annotations

import os
import socket
import struct
import sys

from quire.rpc.discovery import split_address

_LOOPBACK = ("127.0.0.1", "localhost")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (compared with, not bound)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def place_of(address: str) -> str:
    """The Unix socket's address for a port of the loopback address; empty for any other address.

    It is abstract: there is no file, it exists in the same network namespace as the port, and vanishes with the server.
    """
    host, port = split_address(address)
    return _name(port) if host in _LOOPBACK else ""


def own_place(host: str, port: int) -> str:
    """The same for the listening server; empty if its port is not reachable at the loopback address."""
    return _name(port) if host in (*_LOOPBACK, *_EVERYWHERE) else ""


def is_own_user(connection: socket.socket) -> bool:
    """Whether the peer's process belongs to the same user: any process may bind a free name."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())


def _name(port: int) -> str:
    return f"\0quire-sessions-{port}" if sys.platform == "linux" else ""
