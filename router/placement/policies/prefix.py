"""Picks the worker where the request costs the least time, given what each has cached."""

from __future__ import annotations

from random import Random

import numpy as np

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.placement.policies.cost import cost_seconds
from router.workers.load_table import LAST_PLACED


class PrefixPolicy(Policy):
    """Picks the candidate with the least cost; equally cheap ones take turns."""

    uses_cache = True

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        return least_cost(request, candidates, self.weights, self.random)


def least_cost(request: RouteRequest, candidates: Candidates, weights: PlacementCostOptions, random: Random) -> int:
    """The cheapest candidate; among those within the temperature of it, the one whose last request is longest ago."""
    costs = cost_seconds(request, candidates, weights)
    least = int(costs.argmin())
    cheapest = costs <= costs[least] * (1 + weights.routing_temperature)
    if np.count_nonzero(cheapest) == 1:
        return least
    last_placed = candidates.figures[LAST_PLACED]
    longest_ago = last_placed[cheapest].min()
    return int(random.choice((cheapest & (last_placed == longest_ago)).nonzero()[0]))
