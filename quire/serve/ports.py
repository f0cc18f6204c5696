"""Ports of the local stack."""

from __future__ import annotations

import errno
import socket

from quire.errors import StartupError


def check_port_free(host: str, port: int, flag: str) -> None:
    """Refuses a port that another process listens on, before a model is loaded in vain.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartupError(
                    f"Port {port} on {host} is in use by another process. Choose another with {flag}."
                ) from error
            raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
