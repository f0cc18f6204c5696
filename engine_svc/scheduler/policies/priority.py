"""The request's own priority first, then its arrival."""

from __future__ import annotations

from engine_svc.scheduler.policies.base import SchedulingPolicy


class PriorityFirst(SchedulingPolicy):
    """A lower number runs earlier."""

    def rank(self, priority: int) -> int:
        return priority
