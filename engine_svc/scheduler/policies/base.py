"""The contract of scheduling policies."""

from __future__ import annotations

from abc import ABC, abstractmethod


class SchedulingPolicy(ABC):
    """Puts requests into a total order: the first starts first; the last is preempted when blocks run out.

    The order never changes while a request lives. That rules out starvation and deadlock among requests of the same
    rank: the first one in the order is never preempted for another.
    """

    @abstractmethod
    def rank(self, priority: int) -> int:
        """The rank of a request: lower ranks go first, and requests of the same rank in order of arrival.

        Args:
            priority: priority of the request.
        """
