"""The worker where the request costs the least time, given what each has cached."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from router.policies.base import Candidate, Policy, RouteRequest, Weights
from router.policies.cost import cost_seconds


class Prefix(Policy):
    """Least cost wins; chance decides between those that cost about the same, as other routers see them too."""

    uses_cache = True

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        return least_cost(request, candidates, self.weights, self.random)


def least_cost(request: RouteRequest, candidates: Sequence[Candidate], weights: Weights, random: Random) -> Candidate:
    """The cheapest candidate, or any that is as good."""
    costs = [cost_seconds(request, candidate, weights) for candidate in candidates]
    most = min(costs) * (1 + weights.temperature)
    cheapest = [candidate for candidate, cost in zip(candidates, costs, strict=True) if cost <= most]
    return cheapest[0] if len(cheapest) == 1 else random.choice(cheapest)
