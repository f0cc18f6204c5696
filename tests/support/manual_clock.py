"""A clock that tests advance."""

from __future__ import annotations


class ManualClock:
    """Returns the same time until it is told otherwise."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds
