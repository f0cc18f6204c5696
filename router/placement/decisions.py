"""The last placements, for whoever asks why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidate, RouteRequest
from router.placement.policies.cost import cost_seconds
from router.placement.policies.prefix import least_cost

KEPT_DECISIONS = 1024


@dataclass(frozen=True, slots=True)
class Decision:
    """One placement, and all that it was made from."""

    request: RouteRequest
    time_seconds: float  # Unix time
    policy: str
    weights: PlacementCostOptions
    attempt: int  # from 1
    seconds: float  # that the decision took
    queued_seconds: float
    # Those of Candidate. Plain tuples, which the garbage collector need not look into.
    facts: Sequence[tuple[Any, ...]]
    chosen: str

    @property
    def candidates(self) -> list[Candidate]:
        """The workers that could have taken it."""
        return [Candidate(*facts) for facts in self.facts]

    def costs(self, weights: PlacementCostOptions) -> list[float]:
        """Of the candidates."""
        return [cost_seconds(self.request, candidate, weights) for candidate in self.candidates]

    def would_choose(self, weights: PlacementCostOptions) -> str:
        """Where the prefix policy sends the request with other weights."""
        return least_cost(self.request, self.candidates, weights, Random(0)).address  # noqa: S311  (no secret)


class Decisions:
    """The last ones, the newest found first."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=KEPT_DECISIONS)
        self.record = self._kept.append

    def __iter__(self) -> Iterator[Decision]:
        """From the oldest that is remembered to the newest."""
        return iter(self._kept)

    def find(self, request_id: str) -> Decision | None:
        """The last placement of the request."""
        return next((each for each in reversed(self._kept) if each.request.request_id == request_id), None)
