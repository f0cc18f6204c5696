"""The workers in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from router.policies.base import Policy, RouteRequest, WorkerView


class RoundRobin(Policy):
    """Each worker gets every n-th request, whatever the load."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def choose(self, request: RouteRequest, candidates: Sequence[WorkerView]) -> WorkerView:
        return candidates[next(self._turn) % len(candidates)]
