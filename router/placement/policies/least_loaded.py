"""The worker with the least work to do."""

from __future__ import annotations

import itertools
from random import Random

from quire.options.router import PlacementCostOptions
from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.load_table import CROWDING, PREFILL_TOKENS, SEQUENCES, Figures

# Prompt tokens that weigh as much as one more sequence: about what a step's budget loses to either.
_PREFILL_TOKENS_PER_SEQUENCE = 512


def work(candidates: Candidates) -> Figures:
    """How much of it waits on each worker, in sequences."""
    figures = candidates.figures
    waiting: Figures = (figures[SEQUENCES] + figures[PREFILL_TOKENS] / _PREFILL_TOKENS_PER_SEQUENCE) * figures[CROWDING]
    return waiting


class LeastLoaded(Policy):
    """Least work wins; equals take turns."""

    def __init__(self, weights: PlacementCostOptions, random: Random) -> None:
        super().__init__(weights, random)
        self._turn = itertools.count()

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        waiting = work(candidates)
        (least,) = (waiting == waiting.min()).nonzero()
        return int(least[next(self._turn) % len(least)])
