"""The worker with the least work to do."""

from __future__ import annotations

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.load_table import CROWDING, LAST_PLACED, PREFILL_TOKENS, SEQUENCES, Figures

# Prompt tokens that weigh as much as one more sequence: about what a step's budget loses to either.
_PREFILL_TOKENS_PER_SEQUENCE = 512


def work(candidates: Candidates) -> Figures:
    """How much of it waits on each worker, in sequences."""
    figures = candidates.figures
    waiting: Figures = (figures[SEQUENCES] + figures[PREFILL_TOKENS] / _PREFILL_TOKENS_PER_SEQUENCE) * figures[CROWDING]
    return waiting


class LeastLoaded(Policy):
    """Least work wins; of equals, the one whose last request is longest ago."""

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        waiting = work(candidates)
        (least,) = (waiting == waiting.min()).nonzero()
        return int(least[candidates.figures[LAST_PLACED][least].argmin()])
