"""Simulated time: a heap of things to do."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Event:
    """A call that is due at some time."""

    __slots__ = ("_arguments", "_callback")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._callback: Callable[..., Any] | None = callback
        self._arguments = arguments

    def cancel(self) -> None:
        """It does not happen."""
        self._callback = None

    def happen(self) -> None:
        """Calls back, unless cancelled."""
        if self._callback is not None:
            self._callback(*self._arguments)


class EventClock:
    """A clock as the router's core wants it. What is due at the same moment happens in the order of the calls."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Event:
        """Calls back at a time; one that has passed means now."""
        event = Event(callback, args)
        heapq.heappush(self._heap, (max(when, self._now), next(self._order), event))
        return event

    def run(self, until: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds, which is looked at after each event, or nothing is left to do."""
        while self._heap and not until():
            self._now, _, event = heapq.heappop(self._heap)
            event.happen()
