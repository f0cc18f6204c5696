"""Ports reserved for services that start later."""

from __future__ import annotations

import socket

import pytest

from quire.errors import StartupError
from quire.serve.ports import HeldPorts


def listener(port: int) -> socket.socket:
    """Listens with the same options as our services."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    return listening


@pytest.mark.parametrize("named", [False, True])
def test_a_held_port_is_for_our_services_alone(named: bool) -> None:
    with HeldPorts() as before, HeldPorts() as ports:
        (port,) = before.hold_free(1)
        if named:
            before.__exit__()
            ports.hold("127.0.0.1", port, "--port")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        for _ in range(2):  # the second time as after a restart
            with listener(port), socket.create_connection(("127.0.0.1", port)):
                pass


def test_a_port_that_is_listened_on_is_refused() -> None:
    with HeldPorts() as ports, listener(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"Port {port} on 127.0.0.1 is in use .* another port with --port"):
            ports.hold("127.0.0.1", port, "--port")


def test_an_address_of_another_machine_is_refused() -> None:
    with HeldPorts() as ports, pytest.raises(StartupError, match=r"Cannot listen on 192\.0\.2\.1"):
        ports.hold("192.0.2.1", 8000, "--port")
