"""Calls that arrive while others are in flight are batched; errors and cancellations affect only their own caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.services.together import Together
from quire.errors import InvalidRequest, Unavailable


class Calls:
    """Doubles numbers once `go_on` is set."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.cancelled = 0
        self.go_on = asyncio.Event()

    async def __call__(self, key: str, numbers: Sequence[int]) -> list[int]:
        self.seen.append(list(numbers))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if 13 in numbers:
            raise InvalidRequest("13")
        if 99 in numbers:
            raise Unavailable("gone")
        return [2 * number for number in numbers]


def begin(together: Together[str, int, int], *numbers: int, key: str = "a") -> list[asyncio.Task[int]]:
    return [asyncio.create_task(together.add(key, number, 1)) for number in numbers]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_meanwhile_goes_together() -> None:
    calls = Calls()
    together = Together(calls, 100)
    tasks = begin(together, *range(10))
    await settle()
    assert calls.seen == [[0], [1], [2]]  # up to three calls run at once, without waiting
    others = begin(together, 20, key="b")
    await settle()
    assert calls.seen[3:] == [[20]]
    calls.go_on.set()
    assert await asyncio.gather(*tasks, *others) == [*range(0, 20, 2), 40]
    assert calls.seen[4:] == [[3, 4, 5, 6, 7, 8, 9]]
    assert not together._waiting
    assert not together._under_way


async def test_what_is_full_does_not_wait() -> None:
    calls = Calls()
    together = Together(calls, 3)
    tasks = begin(together, *range(8))
    await settle()
    assert calls.seen == [[0], [1], [2], [3, 4, 5]]
    calls.go_on.set()
    await asyncio.gather(*tasks)
    assert calls.seen[4:] == [[6, 7]]


async def test_only_who_is_at_fault_fails() -> None:
    calls = Calls()
    together = Together(calls, 100)
    tasks = begin(together, 0, 1, 2, 12, 13, 14)
    await settle()
    calls.go_on.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[3], found[5]] == [24, 28]
    assert isinstance(found[4], InvalidRequest)


async def test_a_call_that_fails_fails_for_all_in_it() -> None:
    calls = Calls()
    together = Together(calls, 100)
    tasks = begin(together, 0, 1, 2, 98, 99)
    await settle()
    calls.go_on.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found[:3] == [0, 2, 4]
    assert all(isinstance(each, Unavailable) for each in found[3:])


async def test_a_call_ends_when_all_have_left_and_who_has_left_is_not_sent() -> None:
    calls = Calls()
    together = Together(calls, 100)
    tasks = begin(together, 0, 1, 2, 3, 4)
    await settle()
    for task in (tasks[0], tasks[3]):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await settle()
    assert calls.cancelled == 1
    assert calls.seen == [[0], [1], [2], [4]]
    calls.go_on.set()
    assert [await task for task in (tasks[1], tasks[2], tasks[4])] == [2, 4, 8]
