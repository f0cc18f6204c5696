"""An upper bound on what any routing could find in caches."""

from __future__ import annotations

from benchmarks.router_simulation.requests import BLOCK_SIZE, SimRequest


class Oracle:
    """One cache without end that all workers share and that holds a request's blocks from the moment it arrives.

    No placement finds more: a worker's cache holds only blocks of requests that arrived there before.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def arrive(self, request: SimRequest) -> int:
        """The cached tokens of the request's prompt; its own blocks, the answer's included, are cached from now on."""
        most = (request.prompt_tokens - 1) // BLOCK_SIZE
        hits = 0
        while hits < most and request.keys[hits] in self._seen:
            hits += 1
        self._seen.update(request.keys[hits : (request.total_tokens - 1) // BLOCK_SIZE])
        return hits * BLOCK_SIZE
