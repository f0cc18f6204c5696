"""Orders requests by priority, then by arrival."""

from __future__ import annotations

from engine_svc.scheduler.policies.base import SchedulingPolicy


class PriorityFirst(SchedulingPolicy):
    """Uses the request's priority as its rank: a lower number runs earlier."""

    def rank(self, priority: int) -> int:
        return priority
