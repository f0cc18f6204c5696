"""Leases of workers that registered themselves."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from quire.errors import NotFound


class Leases:
    """Lease id → address and end. A worker that registers again gets a new lease in place of its old one."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends: dict[str, tuple[str, float]] = {}

    def grant(self, address: str) -> str:
        """The id of a new lease."""
        for lease_id in [lease_id for lease_id, (holder, _) in self._ends.items() if holder == address]:
            del self._ends[lease_id]
        lease_id = uuid.uuid4().hex
        self._ends[lease_id] = (address, self._clock() + self.seconds)
        return lease_id

    def renew(self, lease_id: str) -> None:
        """
        Raises:
            NotFound: the lease has ended or never was; the worker has to register again.
        """
        self._expire()
        if lease_id not in self._ends:
            raise NotFound("The lease has ended; register again.", parameter="lease_id")
        self._ends[lease_id] = (self._ends[lease_id][0], self._clock() + self.seconds)

    def addresses(self) -> set[str]:
        """Workers whose lease runs."""
        self._expire()
        return {address for address, _ in self._ends.values()}

    def _expire(self) -> None:
        now = self._clock()
        for lease_id in [lease_id for lease_id, (_, end) in self._ends.items() if end <= now]:
            del self._ends[lease_id]
