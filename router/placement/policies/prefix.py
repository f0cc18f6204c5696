"""The worker where the request costs the least time, given what each has cached."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidate, Policy, RouteRequest
from router.placement.policies.cost import cost_seconds


class PrefixPolicy(Policy):
    """Least cost wins, and those that cost the same take turns."""

    uses_cache = True

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        return least_cost(request, candidates, self.weights, self.random)


def least_cost(
    request: RouteRequest, candidates: Sequence[Candidate], weights: PlacementCostOptions, random: Random
) -> Candidate:
    """The cheapest candidate; of those that are as good, the one whose last request is longest ago."""
    costs = [cost_seconds(request, candidate, weights) for candidate in candidates]
    most = min(costs) * (1 + weights.routing_temperature)
    cheapest = [candidate for candidate, cost in zip(candidates, costs, strict=True) if cost <= most]
    if len(cheapest) == 1:
        return cheapest[0]
    longest_ago = min(candidate.last_placed for candidate in cheapest)
    return random.choice([candidate for candidate in cheapest if candidate.last_placed == longest_ago])
