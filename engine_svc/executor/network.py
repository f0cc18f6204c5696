"""Network connections between ranks and their worker, which authenticate each other first.

Both ends prove that they know a shared secret by a challenge-response handshake (HMAC). What follows is neither
encrypted nor signed, as with NCCL and Gloo: the network between the machines of one worker must be private.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine_svc.executor.channel import Channel

logger = logging.getLogger(__name__)

_NONCE = 32
_PROOF = struct.Struct(f"<II{_NONCE}s32s")  # rank, GPU, random number, proof
# Time limit of the handshake: a connection that does not authenticate delays the next one this long.
_PROVE_SECONDS = 2.0
_POLL_SECONDS = 0.2
# TCP keepalive detects machines that are gone: interval of probes while idle, and unanswered probes that are tolerated.
_KEEPALIVE_SECONDS = 1
_KEEPALIVE_COUNT = 2


@dataclass(frozen=True)
class Arrival:
    """A rank that has connected.

    Attributes:
        device: index of its GPU among those visible to it.
        address: address that it connected from.
    """

    channel: Channel
    device: int
    address: str


def _greet_silently(channel: Channel, refusal: str) -> None:
    """Refuses a rank by closing its connection.

    Raises:
        ValueError: there is a reason to.
    """
    if refusal:
        raise ValueError(refusal)


class RankListener:
    """Accepts the connections of one worker's ranks."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        """
        Args:
            port: 0 for any free port.

        Raises:
            OSError: the port is in use.
        """
        self._secret = secret
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self._socket.settimeout(_POLL_SECONDS)
        self.port: int = self._socket.getsockname()[1]

    def accept(
        self,
        ranks: set[int],
        seconds: float,
        check: Callable[[set[int]], None],
        greet: Callable[[Channel, str], None] = _greet_silently,
    ) -> dict[int, Arrival]:
        """Waits until these ranks have connected. One that goes before the others have come may come again.

        Args:
            check: called from time to time with the ranks that are missing; raises if waiting has become pointless.
            greet: called with the channel of a rank that has proved itself, and why it is refused, if it is; raises
                OSError, EOFError or ValueError if it is, or for a reason of its own.

        Raises:
            TimeoutError: some ranks have not connected within `seconds`; the message names them.
        """
        found: dict[int, Arrival] = {}
        deadline = time.monotonic() + seconds
        while missing := ranks - found.keys():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"ranks {', '.join(map(str, sorted(missing)))} have not connected within {seconds:g} s"
                )
            check(missing)
            try:
                connection, (address, *_) = self._socket.accept()
            except TimeoutError:
                continue
            for rank in [rank for rank, arrival in found.items() if arrival.channel.is_gone()]:
                found.pop(rank).channel.close()
            try:
                rank, device = _admit(connection, self._secret)
                channel = Channel(connection)
                refusal = "" if rank in ranks - found.keys() else f"rank {rank} is not expected, or has come before"
                greet(channel, refusal)
            except (OSError, EOFError, ValueError) as error:
                logger.warning("a connection from %s was refused: %s", address, error)
                connection.close()
                continue
            found[rank] = Arrival(channel, device, address)
        return found

    def close(self) -> None:
        """Stops accepting connections."""
        self._socket.close()


def connect(host: str, port: int, secret: bytes, rank: int, device: int, seconds: float) -> Channel:
    """Connects a rank to its worker, which may start listening later.

    Raises:
        TimeoutError: the worker did not within `seconds`.
        PermissionError: the worker does not know the secret, or refuses ours or the rank.
    """
    deadline = time.monotonic() + seconds
    connection = _open(host, port, deadline)
    try:
        connection.settimeout(max(_PROVE_SECONDS, deadline - time.monotonic()))  # other ranks may be admitted first
        _prove(connection, secret, rank, device)
    except BaseException:
        connection.close()
        raise
    _tune(connection)
    return Channel(connection)


def _open(host: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port), _PROVE_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"there is no worker at {host}:{port}: {error}") from error
            time.sleep(_POLL_SECONDS)


def _prove(connection: socket.socket, secret: bytes, rank: int, device: int) -> None:
    """Authenticates both ends to each other, as a rank.

    Raises:
        PermissionError: see `connect`.
    """
    try:
        theirs, ours = _read(connection, _NONCE), secrets.token_bytes(_NONCE)
        connection.sendall(_PROOF.pack(rank, device, ours, _proof(secret, b"rank", theirs, ours, rank, device)))
        proof = _read(connection, 32)
    except (EOFError, ConnectionError) as error:
        raise PermissionError(f"the worker does not accept rank {rank}: see its log") from error
    if not hmac.compare_digest(proof, _proof(secret, b"worker", ours, theirs, rank, device)):
        raise PermissionError("whatever listens there does not know the ranks' secret")


def own_address(peer: str) -> str:
    """This machine's address from which another machine is reached."""
    with socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # nothing is sent
        address: str = probe.getsockname()[0]
        return address


def _admit(connection: socket.socket, secret: bytes) -> tuple[int, int]:
    """Authenticates both ends to each other, as the worker.

    Returns:
        The rank that has connected, and its GPU index.

    Raises:
        OSError, EOFError: the peer sends nothing or disconnects.
        ValueError: the peer does not know the secret.
    """
    connection.settimeout(_PROVE_SECONDS)
    ours = secrets.token_bytes(_NONCE)
    connection.sendall(ours)
    rank, device, theirs, proof = _PROOF.unpack(_read(connection, _PROOF.size))
    if not hmac.compare_digest(proof, _proof(secret, b"rank", ours, theirs, rank, device)):
        raise ValueError("it does not know the ranks' secret")
    connection.sendall(_proof(secret, b"worker", theirs, ours, rank, device))
    _tune(connection)
    return rank, device


def _proof(secret: bytes, who: bytes, first: bytes, second: bytes, rank: int, device: int) -> bytes:
    said = who + first + second + struct.pack("<II", rank, device)
    return hmac.new(secret, said, hashlib.sha256).digest()


def _read(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError("it disconnected")
        found += part
    return found


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
