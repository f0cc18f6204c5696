"""Time as the router's core sees it: the event loop's, or a simulation's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """What `call_at` returns."""

    def cancel(self) -> None:
        """Cancels the call, unless it has been made already."""


class Clock(Protocol):
    """A source of time and timers; asyncio's event loops satisfy it."""

    def time(self) -> float:
        """Seconds since some fixed moment; never goes backward."""

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Calls `callback` with `args` at clock time `when`."""
