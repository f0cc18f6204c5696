"""The load of all workers together, as heartbeats to gateways carry it."""

from __future__ import annotations

from quire.v1 import common_pb2

_COUNTERS = ("prompt_tokens", "generation_tokens", "preemptions", "prefix_cache_queries", "prefix_cache_hits")
_HISTOGRAMS = ("iteration_tokens", "model_forward_milliseconds", "model_execute_milliseconds")
_GAUGES = ("running_sequences", "waiting_requests", "used_kv_blocks", "total_kv_blocks", "waiting_prefill_tokens")


class FleetCounters:
    """Sums of the workers' counters that never fall, though workers restart (from zero) and leave."""

    def __init__(self) -> None:
        self._total = common_pb2.EngineCounters()
        self._last: dict[str, common_pb2.EngineCounters] = {}

    @property
    def total(self) -> common_pb2.EngineCounters:
        """The sums."""
        return self._total

    def take(self, worker: str, now: common_pb2.EngineCounters) -> None:
        """Adds what the worker counted since it was last seen."""
        before = self._last.get(worker, common_pb2.EngineCounters())
        if any(getattr(now, name) < getattr(before, name) for name in _COUNTERS):
            before = common_pb2.EngineCounters()  # it has restarted
        for name in _COUNTERS:
            setattr(self._total, name, getattr(self._total, name) + getattr(now, name) - getattr(before, name))
        for name in _HISTOGRAMS:
            _add_growth(getattr(self._total, name), getattr(now, name), getattr(before, name))
        self._last[worker] = now

    def forget(self, worker: str) -> None:
        """The worker has left; what it counted stays in the sums."""
        self._last.pop(worker, None)


def _add_growth(total: common_pb2.Histogram, now: common_pb2.Histogram, before: common_pb2.Histogram) -> None:
    """total += now - before. Buckets that differ from the total's are left out: they cannot be added."""
    if not total.bounds:
        total.bounds.extend(now.bounds)
        total.counts.extend([0] * len(now.counts))
    if total.bounds != now.bounds or len(total.counts) != len(now.counts):
        return
    earlier = before.counts or [0] * len(now.counts)
    total.counts[:] = [t + n - b for t, n, b in zip(total.counts, now.counts, earlier, strict=True)]
    total.sum += now.sum - before.sum


def add_gauges(total: common_pb2.EngineLoad, load: common_pb2.EngineLoad) -> None:
    """total += load, for all but the counters."""
    for name in (*_GAUGES, "step"):
        setattr(total, name, getattr(total, name) + getattr(load, name))
    total.busy = total.busy or load.busy
