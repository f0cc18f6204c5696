"""Tracks how long the steps of one worker take, the slow ones in particular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.v1 import common_pb2


_HALF_LIFE_SECONDS = 60.0
_SHARE = 0.99
_FEWEST = 0.01  # decayed number of steps below which nothing is known


class StepTimes:
    """A decaying histogram of the last minutes' steps, derived from the heartbeats' cumulative histograms."""

    __slots__ = ("_before", "_recent", "_time", "p99_seconds")

    def __init__(self) -> None:
        self._before: Sequence[int] = ()
        self._recent: list[float] = []
        self._time = 0.0
        # The 99th percentile, rounded up to a bucket's bound; 0 until known.
        self.p99_seconds = 0.0

    def heartbeat(self, milliseconds: common_pb2.Histogram, now: float) -> None:
        """Takes in the steps done since the last call; `now` is in seconds."""
        counts = list(milliseconds.counts)
        if counts == self._before:
            return  # the decay is applied at a later call, in full
        before, self._before = self._before, counts
        if len(before) != len(counts) or any(old > new for old, new in zip(before, counts, strict=True)):
            before, self._recent = [0] * len(counts), [0.0] * len(counts)  # first heartbeat, or a restarted worker
        kept = 0.5 ** ((now - self._time) / _HALF_LIFE_SECONDS)
        self._time = now
        self._recent = [
            kept * some + new - old for some, new, old in zip(self._recent, counts, before, strict=True)
        ]  # fmt: skip
        self.p99_seconds = self._bound(milliseconds.bounds) / 1e3

    def _bound(self, bounds: Sequence[float]) -> float:
        total = sum(self._recent)
        if total < _FEWEST or not bounds:
            return 0.0
        below = 0.0
        for bound, count in zip(bounds, self._recent, strict=False):
            below += count
            if below >= _SHARE * total:
                return bound
        return bounds[-1]
