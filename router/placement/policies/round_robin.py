"""Sends requests to the workers in turn."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.load_table import LAST_PLACED


class RoundRobin(Policy):
    """Gives each worker every n-th request of its model, whatever the load: the one whose last request is longest ago
    is next.

    A plain counter would go wrong when requests for several models alternate, or when a worker is left out.
    """

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        return int(candidates.figures[LAST_PLACED].argmin())
