"""How loaded one worker is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from router.workers.load_table import NUM_FIGURES, Figures
from router.workers.speed import StepLine, WorkerSpeed
from router.workers.step_times import StepTimes

if TYPE_CHECKING:
    from quire.v1 import common_pb2

# A step may take so long, or so many times as long as the worker's longest should and its long ones do.
_STALL_SECONDS = 2.0
_STALL_STEPS = 10
# A worker this full of KV blocks begins to preempt; its sequences cost more than they seem.
_CROWDED_KV_USAGE = 0.95
_CROWDED_FACTOR = 2.0
# Prompt tokens that wait at a worker, in budgets of its steps, and sequences over what it runs at once: enough that it
# never idles, and that a request can wait for the worker that has its prefix while others have room. Where only the
# first worker with room is left to choose, a full fleet forgets its prefixes and stays full. What is more waits here,
# where it may still go elsewhere and where tenants take turns.
_MOST_WAITING_STEPS = 4
_SPARE_SEQUENCES = 1 / 2


class LoadTracker:
    """The load of one worker, kept right between its heartbeats.

    What this router has running there it knows exactly and at once; what others have there is the last heartbeat's
    figure less what was ours when it came.
    """

    __slots__ = (
        "_adapters", "_column", "_foreign_prefill_tokens", "_foreign_sequences", "_last_placed", "_progress_time",
        "_step_times", "inflight_requests", "kv_usage", "last", "max_sequences", "most_sequences", "most_tokens",
        "own_prefill_tokens", "own_prompt_tokens", "own_sequences", "place", "prefill_tokens", "sequences", "speed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.inflight_requests = 0
        # What this router has there: sequences; the tokens of prompts that are not computed yet; and how many of these
        # are believed not to be cached. Workers only count the former.
        self.own_sequences = 0
        self.own_prompt_tokens = 0
        self.own_prefill_tokens = 0
        self._foreign_sequences = 0
        self._foreign_prefill_tokens = 0
        # All that is there.
        self.sequences = 0
        self.prefill_tokens = 0
        self.max_sequences = math.inf  # that it runs at once; where it does not tell, there is no bound
        # A request beyond these would only wait there.
        self.most_sequences = math.inf
        self.most_tokens = math.inf
        self._last_placed = 0  # number of the last placement
        self.kv_usage = 0.0  # share of the KV blocks that live sequences hold
        self.speed = WorkerSpeed()
        self._step_times = StepTimes()
        self.last: common_pb2.EngineLoad | None = None
        self._adapters: set[str] = set()  # on the device, or about to be
        self._progress_time = 0.0  # at which a step was last seen to have ended, or nothing to do
        self.place = -1  # in the table of all workers' loads
        self._column: Figures = np.zeros(NUM_FIGURES)
        self._sum_up()

    def keep_in(self, table: Figures, place: int) -> None:
        """See Keeper."""
        self.place, self._column = place, table[:, place]
        self._sum_up()

    def bound(self, max_sequences: int, max_tokens: int) -> None:
        """The worker has told how many sequences it runs at once, and how many tokens are in a step; 0 for no word."""
        self.max_sequences = max_sequences or math.inf
        self.most_sequences = self.max_sequences * (1 + _SPARE_SEQUENCES) + 1
        self.most_tokens = _MOST_WAITING_STEPS * max_tokens or math.inf
        self._sum_up()

    def has_at_hand(self, adapter: str) -> bool:
        """Whether its weights are on the device, or will be for a request before."""
        return adapter in self._adapters

    def placed(
        self, sequences: int, prompt_tokens: int, prefill_tokens: int, adapter: str = "", number: int = 0
    ) -> None:
        """A request was sent to the worker, which has `prefill_tokens` of its prompt to compute.

        Args:
            number: of the placement, which counts up over all workers.
        """
        self._last_placed = number
        if adapter:
            self._adapters.add(adapter)
        self.inflight_requests += 1
        self.own_sequences += sequences
        self.own_prompt_tokens += prompt_tokens
        self.own_prefill_tokens += prefill_tokens
        self._sum_up()

    def prefilled(self, prompt_tokens: int, prefill_tokens: int) -> None:
        """A request's prompt is computed, or need not be any more. Called once for each request placed."""
        self.own_prompt_tokens -= prompt_tokens
        self.own_prefill_tokens -= prefill_tokens
        self._sum_up()

    def ended(self, sequences: int) -> None:
        """A request is no longer on the worker."""
        self.inflight_requests -= 1
        self.own_sequences -= sequences
        self._sum_up()

    def heartbeat(self, load: common_pb2.EngineLoad, now: float) -> None:
        """Takes in the worker's own figures, at a time in seconds."""
        if self.last is None or load.step != self.last.step or not load.busy:
            self._progress_time = now
        self.last = load
        self._adapters = {adapter.name for adapter in load.adapters}
        self._foreign_sequences = max(0, load.running_sequences + load.waiting_requests - self.own_sequences)
        self._foreign_prefill_tokens = max(0, load.waiting_prefill_tokens - self.own_prompt_tokens)
        self.kv_usage = load.used_kv_blocks / load.total_kv_blocks if load.total_kv_blocks else 0.0
        self.speed.heartbeat(load.counters, now)
        self._step_times.heartbeat(load.counters.model_execute_milliseconds, now)
        self._sum_up()

    def learn_from(self, line: StepLine) -> None:
        """Its make's line is this one, which all workers of the make observe."""
        self.speed.learn_from(line)
        self._sum_up()

    def stalled(self, now: float, most_tokens: int) -> float:
        """For how many times as long as a step may take none has ended, though there is work; 0 below once.

        Args:
            most_tokens: of a step.
        """
        if self.last is None or not self.last.busy:
            return 0.0
        longest = max(
            self.speed.seconds_per_step + self.speed.seconds_per_token * most_tokens, self._step_times.p99_seconds
        )
        times = (now - self._progress_time) / max(_STALL_SECONDS, _STALL_STEPS * longest)
        return times if times > 1 else 0.0

    def _sum_up(self) -> None:
        self.sequences = self.own_sequences + self._foreign_sequences
        self.prefill_tokens = self.own_prefill_tokens + self._foreign_prefill_tokens
        speed = self.speed
        self._column[:] = (
            self.sequences, self.max_sequences, self.prefill_tokens, self.kv_usage,
            speed.seconds_per_step, speed.seconds_per_token, self._last_placed, self.most_sequences, self.most_tokens,
            _CROWDED_FACTOR if self.kv_usage > _CROWDED_KV_USAGE else 1.0,
        )  # fmt: skip
