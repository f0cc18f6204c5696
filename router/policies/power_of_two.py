"""The less loaded of two workers drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from router.policies.base import Policy, RouteRequest, WorkerView
from router.policies.least_loaded import cost


class PowerOfTwo(Policy):
    """Nearly as even as least loaded, without all routers of a deployment running to the same worker at once."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311  (a choice of workers is no secret)

    def choose(self, request: RouteRequest, candidates: Sequence[WorkerView]) -> WorkerView:
        drawn = self._random.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=lambda worker: cost(worker.load))
