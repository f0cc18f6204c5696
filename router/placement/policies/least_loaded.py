"""Picks the worker with the least work to do."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.load_table import CROWDING, LAST_PLACED, PREFILL_TOKENS, SEQUENCES, Figures

# Number of waiting prompt tokens that count as much as one more sequence: either takes about the same out of a step's
# token budget.
_PREFILL_TOKENS_PER_SEQUENCE = 512


def work(candidates: Candidates) -> Figures:
    """The work waiting on each worker, in units of sequences."""
    figures = candidates.figures
    waiting: Figures = (figures[SEQUENCES] + figures[PREFILL_TOKENS] / _PREFILL_TOKENS_PER_SEQUENCE) * figures[CROWDING]
    return waiting


class LeastLoaded(Policy):
    """Picks the worker with the least work; among equals, the one whose last request is longest ago."""

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        waiting = work(candidates)
        (least,) = (waiting == waiting.min()).nonzero()
        return int(least[candidates.figures[LAST_PLACED][least].argmin()])
