"""Leases of self-registered workers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from quire.errors import NotFound


class Leases:
    """Maps lease ids to addresses and expiry times. A worker that registers again gets a new lease in place of its old
    one."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends: dict[str, tuple[str, float]] = {}

    def grant(self, address: str) -> str:
        """Grants a lease; returns its id."""
        for lease_id in [lease_id for lease_id, (holder, _) in self._ends.items() if holder == address]:
            del self._ends[lease_id]
        lease_id = uuid.uuid4().hex
        self._ends[lease_id] = (address, self._clock() + self.seconds)
        return lease_id

    def renew(self, lease_id: str) -> None:
        """Extends a lease to its full length.

        Raises:
            NotFound: the lease has ended or never existed; the worker must register again.
        """
        self._expire()
        if lease_id not in self._ends:
            raise NotFound("The lease has expired; register again.", parameter="lease_id")
        self._ends[lease_id] = (self._ends[lease_id][0], self._clock() + self.seconds)

    def addresses(self) -> set[str]:
        """Addresses of the workers whose leases have not expired."""
        self._expire()
        return {address for address, _ in self._ends.values()}

    def _expire(self) -> None:
        now = self._clock()
        for lease_id in [lease_id for lease_id, (_, end) in self._ends.items() if end <= now]:
            del self._ends[lease_id]
