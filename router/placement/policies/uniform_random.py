"""Any worker."""

from __future__ import annotations

from collections.abc import Sequence

from router.placement.policies.base import Candidate, Policy, RouteRequest


class UniformRandom(Policy):
    """Each worker is as likely as the others: the baseline that other policies are measured against."""

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        return self.random.choice(candidates)
