"""Picks the less loaded of two random workers."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.placement.policies.least_loaded import work


class PowerOfTwo(Policy):
    """Nearly as even as least loaded, without all routers of a deployment choosing the same worker at once."""

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        drawn = self.random.sample(range(len(candidates)), min(2, len(candidates)))
        waiting = work(candidates)
        return min(drawn, key=lambda place: float(waiting[place]))
