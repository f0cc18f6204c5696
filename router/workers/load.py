"""Tracks the load of one worker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from router.workers.load_table import NUM_FIGURES, Figures
from router.workers.speed import StepLine, WorkerSpeed
from router.workers.step_times import StepTimes

if TYPE_CHECKING:
    from quire.v1 import common_pb2

# A step counts as stalled after this many seconds, or after this many times the larger of what the worker's longest
# step should take and what its slow steps do take.
_STALL_SECONDS = 2.0
_STALL_STEPS = 10
# A worker this full of KV blocks begins to preempt; its sequences cost more than they seem to.
_CROWDED_KV_USAGE = 0.95
_CROWDED_FACTOR = 2.0
# Most prompt tokens waiting at a worker, in multiples of its step budget, and sequences beyond what it runs at once:
# enough that it never idles, and that a request can wait for the worker that has its prefix while others have room. If
# a request could only go to the first worker with room, a full fleet would forget its prefixes and stay full. Anything
# beyond that waits in the router, where it can still go elsewhere and where tenants take turns.
_MOST_WAITING_STEPS = 4
_SPARE_SEQUENCES = 1 / 2


class LoadTracker:
    """The load of one worker, kept accurate between its heartbeats.

    The router knows its own requests there exactly and at once; other routers' load is the last heartbeat's figure
    minus this router's share at that time.
    """

    __slots__ = (
        "_adapters", "_column", "_foreign_prefill_tokens", "_foreign_sequences", "_last_placed", "_progress_time",
        "_step_times", "inflight_requests", "kv_usage", "last", "max_sequences", "most_sequences", "most_tokens",
        "own_prefill_tokens", "own_prompt_tokens", "own_sequences", "place", "prefill_tokens", "sequences", "speed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.inflight_requests = 0
        # This router's share: sequences; tokens of prompts that are not computed yet; and how many of those are
        # believed not to be cached. Workers report only the former two.
        self.own_sequences = 0
        self.own_prompt_tokens = 0
        self.own_prefill_tokens = 0
        self._foreign_sequences = 0
        self._foreign_prefill_tokens = 0
        # Totals, including other routers' requests.
        self.sequences = 0
        self.prefill_tokens = 0
        self.max_sequences = math.inf  # that it runs at once; unbounded if the worker does not tell
        # Limits beyond which a request would only wait at the worker.
        self.most_sequences = math.inf
        self.most_tokens = math.inf
        self._last_placed = 0  # sequence number of the last placement
        self.kv_usage = 0.0  # share of the KV blocks that live sequences hold
        self.speed = WorkerSpeed()
        self._step_times = StepTimes()
        self.last: common_pb2.EngineLoad | None = None
        self._adapters: set[str] = set()  # loaded on the device, or about to be
        self._progress_time = 0.0  # when a step was last seen to end, or the worker to be idle
        self.place = -1  # column in the table of all workers' loads
        self._column: Figures = np.zeros(NUM_FIGURES)
        self._sum_up()

    def keep_in(self, table: Figures, place: int) -> None:
        """See Keeper."""
        self.place, self._column = place, table[:, place]
        self._sum_up()

    def bound(self, max_sequences: int, max_tokens: int) -> None:
        """Takes in how many sequences the worker runs at once, and how many tokens it puts in a step; 0 means
        unknown."""
        self.max_sequences = max_sequences or math.inf
        self.most_sequences = self.max_sequences * (1 + _SPARE_SEQUENCES) + 1
        self.most_tokens = _MOST_WAITING_STEPS * max_tokens or math.inf
        self._sum_up()

    def has_at_hand(self, adapter: str) -> bool:
        """Whether the adapter's weights are on the device, or will be for an earlier request."""
        return adapter in self._adapters

    def placed(
        self, sequences: int, prompt_tokens: int, prefill_tokens: int, adapter: str = "", number: int = 0
    ) -> None:
        """Records that a request was sent to the worker, which has to compute `prefill_tokens` of its prompt.

        Args:
            number: sequence number of the placement, counted over all workers.
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
        """Records that a request's prompt is computed, or need not be any more. Called once for each request placed."""
        self.own_prompt_tokens -= prompt_tokens
        self.own_prefill_tokens -= prefill_tokens
        self._sum_up()

    def ended(self, sequences: int) -> None:
        """Records that a request is no longer on the worker."""
        self.inflight_requests -= 1
        self.own_sequences -= sequences
        self._sum_up()

    def heartbeat(self, load: common_pb2.EngineLoad, now: float) -> None:
        """Takes in the worker's own figures; `now` is in seconds."""
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
        """Sets the step-time line of its make, to which all workers of the make contribute."""
        self.speed.learn_from(line)
        self._sum_up()

    def stalled(self, now: float, most_tokens: int) -> float:
        """How long no step has ended although there is work, as a multiple of the longest time allowed; 0 if within
        that time.

        Args:
            most_tokens: maximum number of tokens in a step.
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
