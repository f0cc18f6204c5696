"""A timeout for each of many short waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Patience:
    """Calls back when a wait takes too long.

    It has one timer, which is rearmed when it fires rather than for each wait: a stream waits twice for each of its
    pieces.
    """

    def __init__(self, lost: Callable[[], object]) -> None:
        """
        Args:
            lost: called once for each wait that takes too long.
        """
        self._lost = lost
        self._due: float | None = None  # deadline of the current wait
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Begins a wait of at most `seconds`."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self.close()
            self._timer = loop.call_at(self._due, self._fire)

    def end(self) -> None:
        """Ends the wait."""
        self._due = None

    def close(self) -> None:
        """Cancels the timer, when no wait follows for a while, or ever."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:
            self._timer = loop.call_at(self._due, self._fire)
        else:
            self._due = None
            self._lost()
