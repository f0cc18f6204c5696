"""Ports of the local stack."""

from __future__ import annotations

import contextlib
import errno
import socket

from quire.errors import StartupError
from quire.options.gateway import GatewayOptions
from quire.rpc.discovery import join_address
from quire.serve.held_folder import held_folder
from quire.unix_socket import SCHEME, unix_listener

LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports that are bound here and not listened on, for as long as the stack lives: only our own services, which set
    SO_REUSEADDR as well, can then listen there, however late they start or start again. Several gateways may share one,
    which set SO_REUSEPORT too."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._others = contextlib.ExitStack()  # folders, and a socket that is a file
        self.uds_descriptor: int | None = None

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._sockets:
            held.close()
        self._others.close()

    def make_folder(self) -> str:
        """A folder for those who share a port, for as long as the port is held."""
        return self._others.enter_context(held_folder())

    def hold_api(self, options: GatewayOptions) -> None:
        """Takes where gateways listen, as `hold` does; a Unix socket is made here, and all of them take from it.

        Raises:
            StartupError: as `hold`.
        """
        if options.uds:
            self.uds_descriptor = self._others.enter_context(unix_listener(options.uds)).fileno()
        else:
            self.hold(options.host, options.port, "--port")

    def hold(self, host: str, port: int, flag: str) -> None:
        """Takes a port before a model is loaded in vain.

        Raises:
            StartupError: another process listens on it, or the address is not this machine's.
        """
        try:
            self._bind(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartupError(
                    f"Port {port} on {host} is in use by another process. Choose another with {flag}."
                ) from error
            raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error

    def hold_free(self, count: int, host: str = LOOPBACK) -> list[int]:
        """Takes ports of an address of this machine that nobody uses."""
        return [self._bind(host, 0) for _ in range(count)]

    def _bind(self, host: str, port: int) -> int:
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._sockets.append(held)
        if port:  # the kernel's choice may be one that others let be used again
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
        # Only now: with them set before, the port could be another stack's.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return int(held.getsockname()[1])


def api_url(options: GatewayOptions) -> str:
    """Where clients find a gateway of these options."""
    if options.uds:
        return f"{SCHEME}{options.uds}"
    return f"{'https' if options.ssl_certfile else 'http'}://{join_address(options.host, options.port)}"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    with HeldPorts() as ports:
        return ports.hold_free(count)
