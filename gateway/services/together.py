"""Batches small requests that arrive while similar ones are in flight into one call.

A call costs each service a fraction of a millisecond, which is as much as a short text takes to compute. While nothing
is in flight, requests do not wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quire.errors import InvalidRequest

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Out = TypeVar("Out")

_AT_ONCE = 3


def _future() -> asyncio.Future[Out]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class _Waiter(Generic[Item, Out]):
    item: Item
    size: int
    done: asyncio.Future[Out] = field(default_factory=_future)


class Together(Generic[Key, Item, Out]):
    """Batches items with the same key. Used from one event loop. The caller bounds how many items wait."""

    def __init__(self, call: Callable[[Key, Sequence[Item]], Awaitable[Sequence[Out]]], full: int) -> None:
        """
        Args:
            call: processes items of one key, and returns one result for each.
            full: total size at which waiting items are sent without waiting for earlier calls.
        """
        self._call = call
        self._full = full
        self._waiting: dict[Key, deque[_Waiter[Item, Out]]] = {}
        self._under_way: Counter[Key] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, key: Key, item: Item, size: int) -> Out:
        """Returns the result for an item.

        Raises: as the call.
        """
        waiter: _Waiter[Item, Out] = _Waiter(item, size)
        self._waiting.setdefault(key, deque()).append(waiter)
        self._send(key)
        try:
            return await waiter.done
        finally:
            waiter.done.cancel()

    def _send(self, key: Key) -> None:
        """Starts calls while fewer than _AT_ONCE are in flight, or the waiting items fill a call."""
        while (waiting := self._waiting.get(key)) is not None:
            full = sum(waiter.size for waiter in waiting) >= self._full
            if self._under_way[key] >= _AT_ONCE and not full:
                return
            batch: list[_Waiter[Item, Out]] = []
            size = 0
            while waiting and (not batch or size + waiting[0].size <= self._full):
                waiter = waiting.popleft()
                if not waiter.done.done():  # otherwise its caller has gone
                    batch.append(waiter)
                    size += waiter.size
            if not waiting:
                del self._waiting[key]
            if batch:
                self._begin(key, batch)

    def _begin(self, key: Key, batch: Sequence[_Waiter[Item, Out]]) -> None:
        self._under_way[key] += 1
        task = asyncio.create_task(self._run(key, batch))
        self._tasks.add(task)

        def look(_: object) -> None:
            if all(waiter.done.done() for waiter in batch):  # no caller is waiting any more
                task.cancel()

        def end(_: object) -> None:
            self._tasks.discard(task)
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]
            self._send(key)

        for waiter in batch:
            waiter.done.add_done_callback(look)
        task.add_done_callback(end)

    async def _run(self, key: Key, batch: Sequence[_Waiter[Item, Out]]) -> None:
        try:
            found = await self._call(key, [waiter.item for waiter in batch])
        except InvalidRequest as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:  # one of them is invalid, and only that one may fail
                await asyncio.gather(*(self._run(key, [waiter]) for waiter in batch))
        except Exception as error:
            _fail(batch, error)
        else:
            for waiter, out in zip(batch, found, strict=True):
                if not waiter.done.done():
                    waiter.done.set_result(out)


def _fail(batch: Sequence[_Waiter[Item, Out]], error: Exception) -> None:
    for waiter in batch:
        if not waiter.done.done():
            waiter.done.set_exception(error)
