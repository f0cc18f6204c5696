"""Counters of the engine, written in its thread and read in any."""

from __future__ import annotations

from bisect import bisect_left

from engine_svc.outputs import HistogramSnapshot

ITERATION_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MILLISECOND_BOUNDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


class Histogram:
    """Counts observations in fixed buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """The state now."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)


class EngineStatistics:
    """Figures that only grow, but for those that the scheduler keeps."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.iteration_tokens = Histogram(ITERATION_TOKEN_BOUNDS)
        self.forward_milliseconds = Histogram(MILLISECOND_BOUNDS)
        self.execute_milliseconds = Histogram(MILLISECOND_BOUNDS)
