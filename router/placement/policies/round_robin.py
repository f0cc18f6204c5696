"""The workers in turn."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.load_table import LAST_PLACED


class RoundRobin(Policy):
    """Each worker gets every n-th request of its model, whatever the load: the one whose last is longest ago is next.

    A count of turns would go wrong where requests for several models come in turns, and where a worker is left out.
    """

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        return int(candidates.figures[LAST_PLACED].argmin())
