"""The worker that the request's conversation belongs to.

Highest random weight (Thaler and Ravishankar 1998): each worker's address is hashed together with the key, and the
highest hash wins. When a worker leaves, its conversations are spread over the others, and no other one moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from router.placement.policies.base import Candidate, Policy, RouteRequest

# A worker with more than this many times the mean of sequences, and some to spare, passes requests on to the next in
# its conversation's order (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
_MOST_OVER_MEAN = 1.25
_SPARE = 2


class ConsistentHash(Policy):
    """Requests of one session, else of one tenant, go to one worker; those that name neither, anywhere."""

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate:
        key = (request.session_id or request.tenant or request.request_id).encode()
        mean = sum(candidate.sequences for candidate in candidates) / len(candidates)
        most = mean * _MOST_OVER_MEAN + _SPARE

        def rank(candidate: Candidate) -> tuple[bool, bytes]:
            weight = hashlib.blake2b(key + b"@" + candidate.address.encode(), digest_size=8).digest()
            return candidate.sequences <= most, weight

        return max(candidates, key=rank)
