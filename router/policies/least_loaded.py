"""The worker with the least work to do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from router.policies.base import Policy, RouteRequest, WorkerLoad, WorkerView

# Prompt tokens that weigh as much as one more sequence: about what a step's budget loses to either.
_PREFILL_TOKENS_PER_SEQUENCE = 512
# A worker this full of KV blocks begins to preempt; its sequences cost more than they seem.
_CROWDED_KV_USAGE = 0.95
_CROWDED_FACTOR = 2.0


def cost(load: WorkerLoad) -> float:
    """How much work waits on a worker, in sequences."""
    work = load.sequences + load.prefill_tokens / _PREFILL_TOKENS_PER_SEQUENCE
    return work * _CROWDED_FACTOR if load.kv_usage > _CROWDED_KV_USAGE else work


class LeastLoaded(Policy):
    """Least cost wins; equals take turns."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, request: RouteRequest, candidates: Sequence[WorkerView]) -> WorkerView:
        costs = [cost(worker.load) for worker in candidates]
        least = min(costs)
        cheapest = [worker for worker, value in zip(candidates, costs, strict=True) if value == least]
        return cheapest[next(self._turn) % len(cheapest)]
