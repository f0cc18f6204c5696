"""A rate limit that allows bursts."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """Holds at most what may be used per minute, and refills evenly. It may be in debt, and then refills from there."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        """
        Args:
            per_minute: amount that a full bucket holds, and by which it refills per minute.
            clock: returns the time in seconds.
        """
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._time = clock()

    @property
    def remaining(self) -> int:
        """What could be taken now."""
        return max(0, int(self._refilled()))

    @property
    def seconds_until_full(self) -> float:
        """Time until it is full, if nothing more is taken."""
        return self.seconds_until(self.per_minute)

    def seconds_until(self, amount: float) -> float:
        """Returns the time until it holds an amount of at most `per_minute`; 0 if it does now."""
        return max(0.0, amount - self._refilled()) * 60 / self.per_minute

    def take(self, amount: float) -> None:
        """Takes an amount, whether it is there or not; a negative one is put back."""
        self._level = min(self._refilled() - amount, self.per_minute)

    def resize(self, per_minute: int) -> None:
        """Changes the limit; the bucket keeps what it holds, as far as it fits."""
        self._level = min(self._refilled(), per_minute)
        self.per_minute = per_minute

    def _refilled(self) -> float:
        """Brings the level up to date."""
        now = self._clock()
        self._level = min(self._level + (now - self._time) * self.per_minute / 60, self.per_minute)
        self._time = now
        return self._level
