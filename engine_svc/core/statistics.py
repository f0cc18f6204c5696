"""Counters of the engine, written in its thread and read from any."""

from __future__ import annotations

from quire.histogram import Histogram

ITERATION_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MILLISECOND_BOUNDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


class EngineStatistics:
    """Monotonic counters and histograms, except for the counters that the scheduler keeps."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.computed_tokens = 0
        self.dual_batch_steps = 0
        self.encoded_media = 0  # by an encoder that works for others
        self.iteration_tokens = Histogram(ITERATION_TOKEN_BOUNDS)
        self.forward_milliseconds = Histogram(MILLISECOND_BOUNDS)
        self.execute_milliseconds = Histogram(MILLISECOND_BOUNDS)

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Seconds that all steps so far have taken: in their forward passes, and in total."""
        return self.forward_milliseconds.sum / 1000, self.execute_milliseconds.sum / 1000
