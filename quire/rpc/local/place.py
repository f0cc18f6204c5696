"""Where a server of this machine is found beside its gRPC port."""

from __future__ import annotations

import os
import socket
import struct
import sys

from quire.rpc.discovery import split_address

_LOOPBACK = ("127.0.0.1", "localhost")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (compared with, not listened on)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def place_of(address: str) -> str:
    """The name of the Unix socket beside a port of the loopback address; empty for any other address.

    It is abstract: there is no file, it lives in the same network namespace as the port, and goes with the server.
    """
    host, port = split_address(address)
    return _name(port) if host in _LOOPBACK else ""


def own_place(host: str, port: int) -> str:
    """The same for who listens; empty where nobody reaches the port at the loopback address."""
    return _name(port) if host in (*_LOOPBACK, *_EVERYWHERE) else ""


def is_own_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this one's user: anybody may take a name that is free."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())


def _name(port: int) -> str:
    return f"\0quire-sessions-{port}" if sys.platform == "linux" else ""
