"""Ranks that connect over the network, and others that try to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from engine_svc.executor.channel import Channel
from engine_svc.executor.interfaces import interface_of
from engine_svc.executor.network import RankListener, connect, own_address
from tests.support.engine_process import free_port

SECRET, HOST, SECONDS = b"secret", "127.0.0.1", 20.0


@pytest.fixture
def listener() -> Iterator[RankListener]:
    with closing(RankListener(HOST, 0, SECRET)) as made:
        yield made


def nothing(missing: set[int]) -> None:
    pass


def come(
    listener: RankListener, secret: bytes, rank: int, host: str = HOST
) -> tuple[threading.Thread, list[Channel | Exception]]:
    found: list[Channel | Exception] = []

    def run() -> None:
        try:
            found.append(connect(host, listener.port, secret, rank, rank + 4, SECONDS))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_ranks_that_know_the_secret_have_a_channel_each(listener: RankListener) -> None:
    ends = [come(listener, SECRET, rank) for rank in (2, 1)]
    arrivals = listener.accept({1, 2}, SECONDS, nothing)
    for (thread, found), rank in zip(ends, (2, 1), strict=True):
        thread.join(SECONDS)
        (channel,) = found
        assert isinstance(channel, Channel)
        arrivals[rank].channel.send([rank], SECONDS)
        assert channel.receive(list[int], SECONDS) == [rank]
        assert (arrivals[rank].device, arrivals[rank].address) == (rank + 4, HOST)
        channel.close()
        arrivals[rank].channel.close()


def test_ranks_may_come_by_an_address_of_version_6() -> None:
    host = own_address("::1")
    with closing(RankListener(host, 0, SECRET)) as listener:
        thread, found = come(listener, SECRET, 1, host)
        arrival = listener.accept({1}, SECONDS, nothing)[1]
        thread.join(SECONDS)
    assert arrival.address == host
    for channel in (arrival.channel, *found):
        assert isinstance(channel, Channel)
        channel.close()


@pytest.mark.parametrize(
    ("secret", "rank", "why"),
    [(b"another", 1, "does not know the ranks' secret"), (SECRET, 7, "rank 7 is not expected")],
)
def test_others_are_refused_and_hold_nobody_up(
    listener: RankListener, secret: bytes, rank: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection((HOST, listener.port)) as silent:
        silent.shutdown(socket.SHUT_WR)
        strangers = [come(listener, secret, rank)]
        with pytest.raises(TimeoutError, match="ranks 1 have not connected"):
            listener.accept({1}, 1.0, nothing)
        welcome = come(listener, SECRET, 1)
        (arrival,) = listener.accept({1}, SECONDS, nothing).values()
    assert why in caplog.text
    assert "it disconnected" in caplog.text
    arrival.channel.close()
    for thread, ends in (*strangers, welcome):
        thread.join(SECONDS)
        (end,) = ends
        if isinstance(end, Channel):
            end.close()
        else:
            assert isinstance(end, PermissionError)


def test_a_rank_does_not_serve_a_worker_that_does_not_know_the_secret() -> None:
    with socket.create_server((HOST, 0)) as impostor:
        impostor.settimeout(SECONDS)

        def answer() -> None:
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(bytes(32))
                connection.recv(1000)
                connection.sendall(bytes(32))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(PermissionError, match="does not know the ranks' secret"):
            connect(HOST, impostor.getsockname()[1], SECRET, 1, 0, SECONDS)
        thread.join(SECONDS)


def test_who_does_not_come_in_time_is_named(listener: RankListener) -> None:
    with pytest.raises(TimeoutError, match=r"ranks 1, 3 have not connected within 0\.1 s"):
        listener.accept({1, 3}, 0.1, nothing)
    with pytest.raises(TimeoutError, match="there is no worker at 127"):
        connect(HOST, free_port(), SECRET, 1, 0, 0.1)


def test_what_ends_a_rank_before_it_has_come_ends_the_waiting(listener: RankListener) -> None:
    def check(missing: set[int]) -> None:
        raise ValueError("its process has ended")

    with pytest.raises(ValueError, match="has ended"):
        listener.accept({1}, SECONDS, check)


def test_an_address_has_an_interface() -> None:
    assert own_address(HOST) == HOST
    assert interface_of(HOST) == "lo"
    assert interface_of("192.0.2.77") == ""
