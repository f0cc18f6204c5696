"""The less loaded of two workers drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from router.placement.policies.base import Candidate, Policy, RouteRequest
from router.placement.policies.least_loaded import cost


class PowerOfTwo(Policy):
    """Nearly as even as least loaded, without all routers of a deployment running to the same worker at once."""

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        drawn = self.random.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=cost)
