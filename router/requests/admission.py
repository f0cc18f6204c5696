"""Whether the router takes a new request, of any kind."""

from __future__ import annotations

from typing import Any

from quire.errors import Overloaded, Unavailable
from quire.memory_guard import MemoryGuard
from router.requests.waiting_room import WaitingRoom


class Admission:
    """Refuses requests while the router drains, is short of memory, or has as many requests as it may have."""

    def __init__(self, max_inflight_requests: int, memory: MemoryGuard) -> None:
        self._max_inflight_requests = max_inflight_requests
        self._memory = memory
        self.draining = False

    def check(self, model: str, inflight: int, waiting: WaitingRoom[Any]) -> None:
        """
        Args:
            inflight: number of requests in flight.
            waiting: those that wait for a worker.

        Raises:
            Unavailable: another router may take the request.
            Overloaded: too many requests are in flight.
        """
        if self.draining:
            raise Unavailable("The router is shutting down; send the request again.")
        self._memory.admit()
        if inflight >= self._max_inflight_requests:
            raise Overloaded(
                f"The router already has {inflight} requests in flight (--max-inflight-requests); try again later.",
                retry_after_seconds=max(1.0, waiting.expected_seconds(model)),
            )
