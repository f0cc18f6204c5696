"""Waiting for something to become true, with an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

# On a busy machine, a process takes many times as long to start as on an idle one.
WAIT_SECONDS = 60.0

T = TypeVar("T")


async def eventually(condition: Callable[[], object], what: str = "", seconds: float = WAIT_SECONDS) -> None:
    """Returns once `condition()` is true; fails the test when it is not within `seconds`."""
    for pause in _pauses(condition, what, seconds):
        await asyncio.sleep(pause)


def eventually_now(condition: Callable[[], object], what: str = "", seconds: float = WAIT_SECONDS) -> None:
    """Like `eventually`, but without an event loop."""
    for pause in _pauses(condition, what, seconds):
        time.sleep(pause)


def under_way(ask: Callable[[int], Future[T]], count: int, is_seen: Callable[[], object]) -> list[Future[T]]:
    """Requests `count` answers, repeatedly, until `is_seen` holds while some are outstanding; returns these answers."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        answers = [ask(number) for number in range(count)]
        while not all(answer.done() for answer in answers):
            if is_seen():
                return answers
            time.sleep(0.01)
    raise AssertionError("what they do was never seen")


def _pauses(condition: Callable[[], object], what: str, seconds: float) -> Iterator[float]:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        yield 0.01
