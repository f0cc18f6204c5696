"""How fast workers are, learned from the step times in their heartbeats.

A step takes a fixed time plus a time for each token in it. This line is fitted, by least squares, to the steps of all
workers of one make together; a single worker is slower than the line by a factor of its own. That factor is learned in
seconds and forgotten in half a minute: otherwise a worker that was slow once, and gets no requests for it, would never
be measured again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.v1 import common_pb2


_DECAY = 0.995  # decay of a step's weight in the line with each later step
# Used until a worker has reported: roughly a GPU's. Only the proportion matters.
DEFAULT_SECONDS_PER_STEP = 0.02
DEFAULT_SECONDS_PER_TOKEN = 1e-4
# If all steps seen are alike, their fixed time is assumed to be worth as many tokens as it is by default.
_FIXED_TOKENS = DEFAULT_SECONDS_PER_STEP / DEFAULT_SECONDS_PER_TOKEN
_MOST_OFF = 8.0  # factor by which a token may take less than this guess

_HALF_LIFE_SECONDS = 10.0  # of the observations of a single worker
_DOUBT = 4.0  # number of prior observations with factor 1
# Factors nearer to 1 are taken for noise: otherwise everything would go to the worker that seems a little faster.
_INSIGNIFICANT = math.log(1.3)
_MOST_TIMES = 16.0  # bound on one observation's factor, both ways


class StepLine:
    """The line fitted through the steps of one make of workers."""

    __slots__ = ("_moments", "known", "seconds_per_step", "seconds_per_token")

    def __init__(self) -> None:
        self.seconds_per_step = DEFAULT_SECONDS_PER_STEP
        self.seconds_per_token = DEFAULT_SECONDS_PER_TOKEN
        self.known = False
        self._moments = [0.0] * 5  # sums of 1, x, y, x*x, x*y: tokens x and seconds y of a step

    def observe(self, tokens: float, seconds: float) -> None:
        """Takes in steps of `tokens` tokens that took `seconds` each."""
        added = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._moments = [_DECAY * old + new for old, new in zip(self._moments, added, strict=True)]
        weight, x, y, xx, xy = self._moments
        mean_tokens, mean_seconds = x / weight, y / weight
        variance = xx / weight - mean_tokens**2
        guess = mean_seconds / (mean_tokens + _FIXED_TOKENS)
        if variance > (0.1 * mean_tokens) ** 2:
            slope = (xy / weight - mean_tokens * mean_seconds) / variance
        else:
            slope = self.seconds_per_token if self.known else guess
        # When something other than tokens makes steps longer, the line may be flat or fall.
        self.seconds_per_token = min(max(slope, guess / _MOST_OFF), mean_seconds / max(mean_tokens, 1.0))
        self.seconds_per_step = max(0.0, mean_seconds - self.seconds_per_token * mean_tokens)
        self.known = True


class WorkerSpeed:
    """One worker's speed: its make's line, times a factor of its own."""

    __slots__ = (
        "_counters", "_has_reckoned", "_log_factor", "_time", "_weight", "line", "seconds_per_step",
        "seconds_per_token",
    )  # fmt: skip

    def __init__(self) -> None:
        self.line = StepLine()  # replaced by its make's line once that is known
        self._counters: tuple[int, float, float] | None = None  # steps, tokens, seconds
        self._log_factor, self._weight, self._time = 0.0, 0.0, 0.0
        self._has_reckoned = False  # whether with a known line
        self.seconds_per_step = DEFAULT_SECONDS_PER_STEP
        self.seconds_per_token = DEFAULT_SECONDS_PER_TOKEN

    @property
    def known(self) -> bool:
        """Whether this worker, or another of its make, has reported steps."""
        return self.line.known

    def heartbeat(self, counters: common_pb2.EngineCounters, now: float) -> None:
        """Takes in the steps done since the last call; `now` is in seconds."""
        times = counters.model_execute_milliseconds
        count = (sum(times.counts), float(counters.computed_tokens), times.sum / 1e3)
        before, self._counters = self._counters, count
        self._weight *= 0.5 ** ((now - self._time) / _HALF_LIFE_SECONDS)
        self._time = now
        if before is not None and count[0] > before[0]:
            steps = count[0] - before[0]
            self._observe((count[1] - before[1]) / steps, (count[2] - before[2]) / steps)
        self._reckon()

    def learn_from(self, line: StepLine) -> None:
        """Sets its make's line. If that is known already, and was not when this worker last computed its speed, it
        takes effect at once: with the default speed the worker would get no requests until its next heartbeat."""
        self.line = line
        if line.known and not self._has_reckoned:
            self._reckon()

    def _reckon(self) -> None:
        self._has_reckoned = self.line.known
        log = self._log_factor * self._weight / (self._weight + _DOUBT)
        factor = math.exp(log) if abs(log) > _INSIGNIFICANT else 1.0
        self.seconds_per_step = factor * self.line.seconds_per_step
        self.seconds_per_token = factor * self.line.seconds_per_token

    def _observe(self, tokens: float, seconds: float) -> None:
        self.line.observe(tokens, seconds)
        expected = self.line.seconds_per_step + self.line.seconds_per_token * tokens
        times = min(max(seconds / max(expected, 1e-9), 1 / _MOST_TIMES), _MOST_TIMES)
        self._weight += 1
        self._log_factor += (math.log(times) - self._log_factor) / self._weight
