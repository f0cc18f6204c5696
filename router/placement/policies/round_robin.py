"""The workers in turn."""

from __future__ import annotations

import itertools
from random import Random

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidates, Policy, RouteRequest


class RoundRobin(Policy):
    """Each worker gets every n-th request, whatever the load."""

    def __init__(self, weights: PlacementCostOptions, random: Random) -> None:
        super().__init__(weights, random)
        self._turn = itertools.count()

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        return next(self._turn) % len(candidates)
