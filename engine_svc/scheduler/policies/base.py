"""What a scheduling policy decides."""

from __future__ import annotations

from abc import ABC, abstractmethod


class SchedulingPolicy(ABC):
    """Puts requests into one total order: the first starts first; the last yields when blocks run out.

    The order never changes while a request lives. That makes starvation and deadlock impossible among equals: whoever
    comes first in the order is never preempted for somebody else.
    """

    @abstractmethod
    def rank(self, priority: int) -> int:
        """Requests of a lower rank go first; those of one rank in the order of their arrival.

        Args:
            priority: the request's own.
        """
