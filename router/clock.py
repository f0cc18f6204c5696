"""Time as the router's core knows it: the event loop's, or a simulation's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """What `call_at` returns."""

    def cancel(self) -> None:
        """Takes the call back, unless it was made."""


class Clock(Protocol):
    """asyncio's event loops are clocks."""

    def time(self) -> float:
        """Seconds since some moment; never goes back."""

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Calls back at a time."""
