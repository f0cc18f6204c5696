"""Requests that crash workers, kept away from the rest of the fleet.

A request is refused only if it is certain to be the one that crashed workers: everything that determines what an engine
does with it is the same, and so is its tenant. A tenant's repeated request counts even with another seed. Requests that
name no tenant cannot be attributed to a caller, so their seed must match too: gateways draw a seed for every request
that is not greedy, so one caller's request does not block anyone else's.
"""

from __future__ import annotations

from quire.errors import ENGINE_FAULT, Internal
from router.clock import Clock
from router.workers.assignment import Assignment
from router.workers.convert import identity

_CRASHES = 2
# How long it is refused. Doubled after each further crash, of which there can be one once that time is over.
_SECONDS = 30.0
_MOST_SECONDS = 600.0
_FORGOTTEN_SECONDS = 1200.0
_MOST = 4096  # requests remembered; the oldest goes first


class CrashSuspects:
    """Requests that were running, without having produced anything yet, on workers that crashed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Request → number of crashes and time of the last one; ordered by that time.
        self._crashes: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._crashes)

    def record_crash(self, assignment: Assignment) -> bool:
        """Records that a worker crashed with the request on it; returns whether the request must not be tried again."""
        name = identity(assignment)
        count = self._crashes.pop(name, (0, 0.0))[0] + 1
        if len(self._crashes) >= _MOST:
            del self._crashes[next(iter(self._crashes))]
        self._crashes[name] = count, self._clock.time()
        return count >= _CRASHES

    def clear(self, assignment: Assignment) -> None:
        """Clears a request that a worker has begun to answer: something else crashed the other workers."""
        if self._crashes:
            self._crashes.pop(identity(assignment), None)

    def check(self, assignment: Assignment) -> None:
        """
        Raises:
            Internal: too many workers crashed with the request on them, the last one recently.
        """
        self._forget_old()
        if not self._crashes:
            return
        count, last = self._crashes.get(identity(assignment), (0, 0.0))
        if count < _CRASHES:
            return
        left = last + min(_SECONDS * 2 ** (count - _CRASHES), _MOST_SECONDS) - self._clock.time()
        if left > 0:
            raise Internal(
                f"{count} engine workers crashed when they started this request; it is refused for another "
                f"{left:.0f} s.",
                reason=ENGINE_FAULT,
            )

    def _forget_old(self) -> None:
        horizon = self._clock.time() - _FORGOTTEN_SECONDS
        while self._crashes and next(iter(self._crashes.values()))[1] < horizon:
            del self._crashes[next(iter(self._crashes))]
