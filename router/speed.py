"""How fast a worker is, learnt from the step times in its heartbeats.

A step takes a fixed time and a time for each token in it. Both are fitted by least squares to the steps seen, old ones
counting less and less, so that one straight line tells what decoding beside so many sequences and what prefill takes.
"""

from __future__ import annotations

from quire.v1 import common_pb2

_DECAY = 0.98  # of an observation's weight with each later one: half of it is gone after 35 busy heartbeats
# Until one worker has told: a GPU's, roughly. Only the proportion matters while all are new.
DEFAULT_SECONDS_PER_STEP = 0.02
DEFAULT_SECONDS_PER_TOKEN = 1e-4
# Where all steps seen are alike, their fixed time is taken to be worth as many tokens as it was by default.
_FIXED_TOKENS = DEFAULT_SECONDS_PER_STEP / DEFAULT_SECONDS_PER_TOKEN


class StepTimes:
    """The line through one worker's steps."""

    __slots__ = ("_counters", "_moments", "known", "seconds_per_step", "seconds_per_token")

    def __init__(self) -> None:
        self.seconds_per_step = DEFAULT_SECONDS_PER_STEP
        self.seconds_per_token = DEFAULT_SECONDS_PER_TOKEN
        self.known = False
        self._counters: tuple[int, float, float] | None = None  # steps, tokens, seconds
        self._moments = (0.0, 0.0, 0.0, 0.0, 0.0)  # sums of 1, x, y, x*x, x*y: tokens x and seconds y of a step

    def heartbeat(self, counters: common_pb2.EngineCounters) -> None:
        """Takes in the steps that were done since the last call."""
        tokens, times = counters.iteration_tokens, counters.model_execute_milliseconds
        now = (sum(times.counts), tokens.sum, times.sum / 1e3)
        before, self._counters = self._counters, now
        if before is not None and now[0] > before[0]:
            steps = now[0] - before[0]
            self.observe((now[1] - before[1]) / steps, (now[2] - before[2]) / steps)

    def assume(self, other: StepTimes) -> None:
        """Takes on another worker's speed, until this one has told its own."""
        self.seconds_per_step, self.seconds_per_token = other.seconds_per_step, other.seconds_per_token

    def observe(self, tokens: float, seconds: float) -> None:
        """Steps of so many tokens took so long each."""
        added = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._moments = tuple(_DECAY * old + new for old, new in zip(self._moments, added, strict=True))  # type: ignore[assignment]  # five go in, five come out
        weight, x, y, xx, xy = self._moments
        mean_tokens, mean_seconds = x / weight, y / weight
        variance = xx / weight - mean_tokens**2
        if variance > (0.1 * mean_tokens) ** 2:
            slope = (xy / weight - mean_tokens * mean_seconds) / variance
        elif self.known:
            slope = self.seconds_per_token
        else:
            slope = mean_seconds / (mean_tokens + _FIXED_TOKENS)
        self.seconds_per_token = min(max(slope, 1e-9), mean_seconds / max(mean_tokens, 1.0))
        self.seconds_per_step = max(0.0, mean_seconds - self.seconds_per_token * mean_tokens)
        self.known = True
