"""Threads for work that would hold up an event loop: long encodings, large JSON, many conversions.

Python's lock is passed on every few milliseconds, so the loop goes on beside Python code in a thread, but not beside
one long call into C that keeps the lock: what goes to a pool comes in pieces that take less than a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from quire.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class WorkPool:
    """A few threads, and a bound on what waits for them. Used from one event loop."""

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        """
        Args:
            name: of the work, such as "texts to encode".
        """
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name.replace(" ", "-"))
        self._most = threads + max_waiting
        self._pending = 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work(*args, **kwargs)` returns, called in a thread.

        Raises:
            Overloaded: too much waits already.
        """
        if self._pending >= self._most:
            raise Overloaded(f"Too many {self._name} wait already; try again in a moment.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))
        finally:
            self._pending -= 1
