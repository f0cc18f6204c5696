"""Keeps the last placement decisions, so that they can be explained."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidates, RouteRequest
from router.placement.policies.cost import cost_seconds
from router.placement.policies.prefix import least_cost

KEPT_DECISIONS = 1024
KEPT_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Decision:
    """One placement, and all inputs that it was based on."""

    request: RouteRequest
    time_seconds: float  # Unix time
    policy: str
    weights: PlacementCostOptions
    attempt: int  # from 1
    seconds: float  # how long the decision took
    queued_seconds: float  # how long the request had waited for workers, over all attempts
    chosen: str
    # Of the candidates that are kept: their addresses, and what was known of them.
    addresses: Sequence[str]
    candidates: Candidates

    def costs(self, weights: PlacementCostOptions) -> Sequence[float]:
        """The cost in seconds of each kept candidate, with these weights."""
        return [float(cost) for cost in cost_seconds(self.request, self.candidates, weights)]

    def would_choose(self, weights: PlacementCostOptions) -> str:
        """The worker that the prefix policy would send the request to with other weights."""
        random = Random(0)  # noqa: S311  (no secret)
        return self.addresses[least_cost(self.request, self.candidates, weights, random)]


def worth_keeping(
    request: RouteRequest, candidates: Candidates, weights: PlacementCostOptions, chosen: int
) -> NDArray[np.intp]:
    """Indices of the candidates that a decision is remembered with: all, or the chosen one and the cheapest others."""
    if len(candidates) <= KEPT_CANDIDATES:
        return np.arange(len(candidates))
    costs = cost_seconds(request, candidates, weights)
    costs[chosen] = -np.inf
    return np.sort(costs.argpartition(KEPT_CANDIDATES)[:KEPT_CANDIDATES])


class Decisions:
    """The last placement decisions; `find` prefers the newest."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self.record = self._kept.append

    def __iter__(self) -> Iterator[Decision]:
        """Iterates from the oldest remembered decision to the newest."""
        return iter(self._kept)

    def find(self, request_id: str) -> Decision | None:
        """The last placement of the request; None means that none is remembered."""
        return next((each for each in reversed(self._kept) if each.request.request_id == request_id), None)
