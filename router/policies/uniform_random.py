"""Any worker."""

from __future__ import annotations

import random
from collections.abc import Sequence

from router.policies.base import Policy, RouteRequest, WorkerView


class UniformRandom(Policy):
    """Each worker is as likely as the others: the baseline that other policies are measured against."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311  (a choice of workers is no secret)

    def choose(self, request: RouteRequest, candidates: Sequence[WorkerView]) -> WorkerView:
        return self._random.choice(candidates)
