"""Listening on Unix sockets: stale files, files of others, and what is left at the end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.errors import StartupError
from quire.healthcheck import main as healthcheck
from quire.options.gateway import GatewayOptions
from quire.serve.ports import HeldPorts, api_url
from quire.unix_socket import socket_path, unix_listener


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "quire.sock")


@pytest.fixture
def stale(path: str) -> str:
    """Leaves a socket file behind, as a killed process does."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    return path


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_the_umask_says_who_may_connect_and_the_file_goes(path: str) -> None:
    with unix_listener(path):
        assert Path(path).stat().st_mode & 0o777 == 0o750
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert not Path(path).exists()


def test_a_stale_file_is_replaced(stale: str) -> None:
    with unix_listener(stale), socket.socket(socket.AF_UNIX) as client:
        client.connect(stale)


def test_one_that_is_in_use_is_left_alone(path: str) -> None:
    with unix_listener(path):
        with pytest.raises(StartupError, match=r"--uds .* is in use by another process"), unix_listener(path):
            pass
        assert Path(path).exists()


def test_the_file_of_whoever_came_after_is_left_alone(path: str) -> None:
    with contextlib.ExitStack() as stack:
        with unix_listener(path) as first:
            first.close()
            stack.enter_context(unix_listener(path))
        assert Path(path).is_socket()


@pytest.mark.parametrize("name", ["file", "none/quire.sock", "x" * 108])
def test_what_cannot_be_a_socket_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StartupError, match=f"--uds .*{name}"), unix_listener(str(tmp_path / name)):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_the_supervisor_holds_it_for_its_gateways(path: str) -> None:
    options = GatewayOptions(uds=path, host="0.0.0.0", admin=GatewayOptions().admin)
    options.check()  # reaching the TCP address does not mean reaching the socket
    assert (api_url(options), socket_path(api_url(options))) == (f"unix:{path}", path)
    with HeldPorts() as ports:
        ports.hold_api(options)
        assert ports.uds_descriptor is not None
        with socket.fromfd(ports.uds_descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as held:
            assert held.getsockname() == path
    assert not Path(path).exists()


def test_health_checks(path: str) -> None:
    assert path in healthcheck(["unix", path, "/health"])
    for status in (200, 503):
        with unix_listener(path) as listener:
            thread = threading.Thread(target=_answer_once, args=(listener, status))
            thread.start()
            assert (healthcheck(["unix", path, "/health"]) == "") == (status == 200)
            thread.join()


def _answer_once(listener: socket.socket, status: int) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode())
