"""A TCP connection from each rank to the first one, for signals between ranks and for detecting lost ranks by name.

It carries frames of a kind and a number, so there is nothing unsafe to deserialize. Like the connections of the
collectives, it is meant for a network that only the ranks are on.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

_FRAME = struct.Struct("<Bq")
_SEND_SECONDS = 10.0  # to send a frame of nine bytes; a peer that does not read it in time counts as lost
_CONNECT_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
# Seconds of silence before the first keepalive probe, seconds between probes, and probes until a peer counts as lost.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class Kind(IntEnum):
    """The kind of a frame; comments say what its number is."""

    HERE = 1  # sent first; the sender's index
    READY = 2  # sent by each member; once all have sent it, it is sent to all
    WAVE = 3  # a wave of steps begins; its number
    LEAVING = 4  # a member will have no more requests of its own; its index
    LOST = 5  # a member's connection is closed; its index


@dataclass
class _Member:
    index: int = -1  # until its HERE frame arrives
    read: bytearray = field(default_factory=bytearray)


class Switchboard:
    """The first rank's end: a thread that forwards what any member says to all members."""

    def __init__(self, host: str, num_members: int) -> None:
        """
        Args:
            host: an address of this machine that all members can reach.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._num_members = num_members
        self._members: dict[socket.socket, _Member] = {}
        self._ready: set[int] = set()
        self._lost: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="switchboard", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Waits a short time for the last member's connection to close."""
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        seen = 0
        while seen < self._num_members or self._members:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                    seen += 1
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        line, _ = self._listener.accept()
        _keep_alive(line)
        line.settimeout(_SEND_SECONDS)
        self._members[line] = _Member()
        self._selector.register(line, selectors.EVENT_READ)

    def _read(self, line: socket.socket) -> None:
        member = self._members.get(line)
        if member is None:  # dropped while a frame was being forwarded
            return
        try:
            received = line.recv(4096)
        except OSError:
            received = b""
        if not received:
            self._drop(line)
            return
        member.read += received
        while len(member.read) >= _FRAME.size:
            kind, number = _FRAME.unpack_from(member.read)
            del member.read[: _FRAME.size]
            self._heed(member, kind, number)

    def _heed(self, member: _Member, kind: int, number: int) -> None:
        match kind:
            case Kind.HERE:
                member.index = number
                for lost in self._lost:  # members lost before this one connected
                    self._tell(Kind.LOST, lost)
            case Kind.READY:
                self._ready.add(member.index)
                if len(self._ready) == self._num_members:
                    self._tell(Kind.READY, 0)
            case Kind.WAVE:
                self._tell(Kind.WAVE, number)
            case Kind.LEAVING:
                self._tell(Kind.LEAVING, member.index)

    def _tell(self, kind: Kind, number: int) -> None:
        for line in list(self._members):
            try:
                line.sendall(_FRAME.pack(kind, number))
            except OSError:
                self._drop(line)

    def _drop(self, line: socket.socket) -> None:
        member = self._members.pop(line, None)
        if member is None:
            return
        self._selector.unregister(line)
        line.close()
        if member.index >= 0:
            self._lost.append(member.index)
            self._tell(Kind.LOST, member.index)


class Lifeline:
    """A member's end of the connection, with a listening thread."""

    def __init__(self, address: tuple[str, int], index: int, hear: Callable[[Kind, int], None]) -> None:
        """
        Args:
            index: of this member.
            hear: called from the thread with every frame; (LOST, 0) if the switchboard itself is gone.

            Raises:
                OSError: the connection fails.
        """
        self._line = socket.create_connection(address, _CONNECT_SECONDS)
        _keep_alive(self._line)
        self._line.settimeout(None)
        self._hear = hear
        self.say(Kind.HERE, index)
        self._thread = threading.Thread(target=self._listen, name="lifeline", daemon=True)
        self._thread.start()

    def say(self, kind: Kind, number: int = 0) -> None:
        """Sends a frame to all members, including this one. If the connection is gone, `hear` is told."""
        with contextlib.suppress(OSError):
            self._line.sendall(_FRAME.pack(kind, number))

    def close(self) -> None:
        """Closes the connection, which the other members are told."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_SECONDS)

    def _listen(self) -> None:
        read = bytearray()
        with self._line, contextlib.suppress(OSError):
            while received := self._line.recv(4096):
                read += received
                while len(read) >= _FRAME.size:
                    kind, number = _FRAME.unpack_from(read)
                    del read[: _FRAME.size]
                    self._hear(Kind(kind), number)
        self._hear(Kind.LOST, 0)


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all of them
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
