"""Sends each conversation to the worker that its hash selects.

Highest random weight (Thaler and Ravishankar 1998): the hash of each worker's address is hashed together with that of
the key, and the highest one wins. When a worker leaves, its conversations are spread over the others, and no other
conversation moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from router.placement.policies.base import Candidates, Policy, RouteRequest
from router.workers.base import hash_of
from router.workers.load_table import SEQUENCES

# A worker with more sequences than this factor times the mean, plus a few spare ones, passes requests on to the next
# worker in the conversation's order (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
_MOST_OVER_MEAN = 1.25
_SPARE = 2


class ConsistentHash(Policy):
    """Requests of one session, or else of one tenant, go to one worker; those that name neither, to any worker."""

    def choose(self, request: RouteRequest, candidates: Candidates) -> int:
        key = request.session_id or request.tenant or request.request_id
        sequences = candidates.figures[SEQUENCES]
        weights = _scramble(candidates.homes ^ np.uint64(hash_of(key)))
        weights[sequences > sequences.mean() * _MOST_OVER_MEAN + _SPARE] >>= np.uint64(32)  # ranks behind all others
        return int(weights.argmax())


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Maps each value to one whose every bit depends on all bits of the value: the finalizer of SplitMix64 (Steele, Lea
    and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
