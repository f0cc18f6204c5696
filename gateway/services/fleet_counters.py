"""Sums of the engine workers' counters that never decrease."""

from __future__ import annotations

from collections import OrderedDict

from quire.counters import COUNTS, HISTOGRAMS
from quire.v1 import common_pb2

# How many workers' last counts are remembered; they tell a worker that is back from one that has restarted.
_MOST_WORKERS = 4096


class FleetCounters:
    """Sums of the workers' counters that keep growing although workers restart (from zero), leave and come back."""

    def __init__(self) -> None:
        self._total = common_pb2.EngineCounters()
        self._last: OrderedDict[str, common_pb2.EngineCounters] = OrderedDict()  # least recently heard first

    @property
    def total(self) -> common_pb2.EngineCounters:
        """The totals of all workers, including ones that have left."""
        return self._total

    def take(self, worker: str, now: common_pb2.EngineCounters) -> None:
        """Adds what the worker has counted since it was last seen."""
        before = self._last.pop(worker, common_pb2.EngineCounters())
        self._last[worker] = now
        if len(self._last) > _MOST_WORKERS:
            self._last.popitem(last=False)
        if any(getattr(now, name) < getattr(before, name) for name in COUNTS):
            before = common_pb2.EngineCounters()  # it has restarted
        for name in COUNTS:
            setattr(self._total, name, getattr(self._total, name) + getattr(now, name) - getattr(before, name))
        for name in HISTOGRAMS:
            _add_growth(getattr(self._total, name), getattr(now, name), getattr(before, name))


def _add_growth(total: common_pb2.Histogram, now: common_pb2.Histogram, before: common_pb2.Histogram) -> None:
    """total += now - before. A histogram whose buckets differ from the total's is skipped: it cannot be added."""
    if not now.bounds:
        return  # the worker does not have this histogram
    if not total.bounds:
        total.bounds.extend(now.bounds)
        total.counts.extend([0] * len(now.counts))
    if total.bounds != now.bounds or len(total.counts) != len(now.counts):
        return
    earlier = before.counts or [0] * len(now.counts)
    total.counts[:] = [t + n - b for t, n, b in zip(total.counts, now.counts, earlier, strict=True)]
    total.sum += now.sum - before.sum
