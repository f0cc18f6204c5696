"""Messages between ranks, and which ranks hear of the end of another."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine_svc.parallel.lifeline import Kind, Lifeline, Switchboard

Heard = queue.SimpleQueue[tuple[Kind, int]]


@contextmanager
def connected(count: int) -> Iterator[list[tuple[Lifeline, Heard]]]:
    board = Switchboard("127.0.0.1", count)
    members = []
    for index in range(count):
        heard: Heard = queue.SimpleQueue()
        line = Lifeline(("127.0.0.1", board.port), index, lambda *frame, heard=heard: heard.put(frame))  # type: ignore[misc]
        members.append((line, heard))
    yield members
    for line, _ in members:
        line.close()
    board.close()


def next_of(heard: Heard) -> tuple[Kind, int]:
    return heard.get(timeout=30)


def test_a_call_goes_to_everybody() -> None:
    with connected(3) as members:
        members[1][0].say(Kind.WAVE, 7)
        assert [next_of(heard) for _, heard in members] == [(Kind.WAVE, 7)] * 3


def test_all_are_ready_once_the_last_one_is() -> None:
    with connected(3) as members:
        members[2][0].say(Kind.READY)
        members[0][0].say(Kind.READY)
        members[0][0].say(Kind.WAVE, 1)
        assert next_of(members[0][1]) == (Kind.WAVE, 1)  # nothing came before it
        members[1][0].say(Kind.READY)
        assert next_of(members[0][1]) == (Kind.READY, 0)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_who_is_lost_is_told_by_its_number(lost: int) -> None:
    with connected(3) as members:
        members[lost][0].close()
        for index, (_, heard) in enumerate(members):
            if index != lost:
                assert next_of(heard) == (Kind.LOST, lost)


def test_who_comes_later_hears_of_those_that_are_lost() -> None:
    board, first_heard, heard = Switchboard("127.0.0.1", 2), queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
    first = Lifeline(("127.0.0.1", board.port), 1, lambda *frame: first_heard.put(frame))
    first.close()
    assert next_of(first_heard) == (Kind.LOST, 0)  # its own connection has ended
    second = Lifeline(("127.0.0.1", board.port), 0, lambda *frame: heard.put(frame))
    assert next_of(heard) == (Kind.LOST, 1)
    second.close()
    board.close()


def test_who_leaves_says_so_first() -> None:
    with connected(2) as members:
        members[1][0].say(Kind.LEAVING)
        members[1][0].close()
        assert [next_of(members[0][1]) for _ in range(2)] == [(Kind.LEAVING, 1), (Kind.LOST, 1)]


def test_without_the_switchboard_its_rank_is_lost() -> None:
    heard: Heard = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Lifeline(listener.getsockname(), 1, lambda *frame: heard.put(frame))
        listener.accept()[0].close()
        assert next_of(heard) == (Kind.LOST, 0)
    line.close()
