"""Requests that take workers down with them, kept away from the rest of the fleet.

A request is refused only while it is sure to be the one: everything that an engine makes of it is the same, and so is
its tenant. A tenant's repetition counts though its seed is another one. Where callers name no tenant they cannot be
told apart, so that there the seed has to be the same too: gateways draw one for every request that is not greedy, and
what one caller sent stands in nobody else's way.
"""

from __future__ import annotations

from quire.errors import ENGINE_FAULT, Internal
from router.clock import Clock
from router.workers.assignment import Assignment
from router.workers.convert import identity

_CRASHES = 2
# For how long it is refused; twice as long after each further crash, of which there can be one when that is over.
_SECONDS = 30.0
_MOST_SECONDS = 600.0
_FORGOTTEN_SECONDS = 1200.0
_MOST = 4096  # requests remembered; the oldest goes first


class CrashSuspects:
    """Requests that ran, and had not begun to answer, where workers crashed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Request → crashes, time of the last; in the order of those times.
        self._crashes: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._crashes)

    def record_crash(self, assignment: Assignment) -> bool:
        """A worker crashed with the request on it; whether it must not be tried again."""
        name = identity(assignment)
        count = self._crashes.pop(name, (0, 0.0))[0] + 1
        if len(self._crashes) >= _MOST:
            del self._crashes[next(iter(self._crashes))]
        self._crashes[name] = count, self._clock.time()
        return count >= _CRASHES

    def clear(self, assignment: Assignment) -> None:
        """A worker has begun to answer it: whatever crashed the others, it was something else."""
        if self._crashes:
            self._crashes.pop(identity(assignment), None)

    def check(self, assignment: Assignment) -> None:
        """
        Raises:
            Internal: too many workers crashed with the request on them, and not long ago.
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
                f"{count} engine workers crashed as they began this request; it is refused for another {left:.0f} s.",
                reason=ENGINE_FAULT,
            )

    def _forget_old(self) -> None:
        horizon = self._clock.time() - _FORGOTTEN_SECONDS
        while self._crashes and next(iter(self._crashes.values()))[1] < horizon:
            del self._crashes[next(iter(self._crashes))]
