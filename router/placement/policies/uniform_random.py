"""Picks any worker at random."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest


class UniformRandom(Policy):
    """Picks each worker with equal probability: the baseline that other policies are measured against."""

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        return self.random.randrange(len(candidates))
