"""Thread pools for work that would block an event loop: long encodings, large JSON, many conversions.

Python's GIL is passed on every few milliseconds, so the loop keeps running beside Python code in a thread, but not
beside one long C call that holds the GIL: work for a pool is split into pieces that take less than a tenth of a second.
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
    """A few threads with a bound on the work that waits for them. Used from one event loop."""

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        """
        Args:
            name: description of the work, such as "texts to encode".
        """
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name.replace(" ", "-"))
        self._most = threads + max_waiting
        self._pending = 0

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `work(*args, **kwargs)` in a thread and returns its result.

        Raises:
            Overloaded: too much waits already.
        """
        if self._pending >= self._most:
            raise Overloaded(f"Too many {self._name} are already waiting; try again in a moment.")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))
        finally:
            self._pending -= 1
