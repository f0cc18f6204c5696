"""The worker with the least work to do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidate, Policy, RouteRequest
from router.placement.policies.cost import CROWDED_FACTOR, CROWDED_KV_USAGE

# Prompt tokens that weigh as much as one more sequence: about what a step's budget loses to either.
_PREFILL_TOKENS_PER_SEQUENCE = 512


def cost(load: Candidate) -> float:
    """How much work waits on a worker, in sequences."""
    work = load.sequences + load.prefill_tokens / _PREFILL_TOKENS_PER_SEQUENCE
    return work * CROWDED_FACTOR if load.kv_usage > CROWDED_KV_USAGE else work


class LeastLoaded(Policy):
    """Least cost wins; equals take turns."""

    def __init__(self, weights: PlacementCostOptions, random: Random) -> None:
        super().__init__(weights, random)
        self._turn = itertools.count()

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        costs = [cost(worker) for worker in candidates]
        least = min(costs)
        cheapest = [worker for worker, value in zip(candidates, costs, strict=True) if value == least]
        return cheapest[next(self._turn) % len(cheapest)]
