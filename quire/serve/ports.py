"""Reserves ports for the local stack."""

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
    """Ports that are bound here but not listened on, while the stack lives: only our own services, which also set
    SO_REUSEADDR, can then listen there, however late they start or restart. Several gateways may share one, which also
    set SO_REUSEPORT."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._others = contextlib.ExitStack()  # folders, and a Unix socket
        self.uds_descriptor: int | None = None

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._sockets:
            held.close()
        self._others.close()

    def make_folder(self) -> str:
        """Creates a folder for gateways that share a port, which lives as long as the port is held."""
        return self._others.enter_context(held_folder())

    def hold_api(self, options: GatewayOptions) -> None:
        """Reserves the gateways' address, like `hold`; a Unix socket is created here, and all gateways accept from it.

        Raises:
            StartupError: see `hold`.
        """
        if options.uds:
            self.uds_descriptor = self._others.enter_context(unix_listener(options.uds)).fileno()
        else:
            self.hold(options.host, options.port, "--port")

    def hold(self, host: str, port: int, flag: str) -> None:
        """Reserves a port, so that a conflict shows before a model is loaded.

        Raises:
            StartupError: another process listens on it, or the address is not this machine's.
        """
        try:
            self._bind(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartupError(
                    f"Port {port} on {host} is in use by another process. Choose another port with {flag}."
                ) from error
            raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error

    def hold_free(self, count: int, host: str = LOOPBACK) -> list[int]:
        """Reserves `count` unused ports on an address of this machine."""
        return [self._bind(host, 0) for _ in range(count)]

    def _bind(self, host: str, port: int) -> int:
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._sockets.append(held)
        if port:  # with it, the kernel could choose a port that others allow to be reused
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
        # Set only now: before `bind`, they would allow taking another stack's port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return int(held.getsockname()[1])


def api_url(options: GatewayOptions) -> str:
    """The URL at which clients reach a gateway with these options."""
    if options.uds:
        return f"{SCHEME}{options.uds}"
    scheme = "grpc" if options.grpc else "https" if options.ssl_certfile else "http"
    return f"{scheme}://{join_address(options.host, options.port)}"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on now."""
    with HeldPorts() as ports:
        return ports.hold_free(count)
