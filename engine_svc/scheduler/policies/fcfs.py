"""First come, first served."""

from __future__ import annotations

from engine_svc.scheduler.policies.base import SchedulingPolicy


class FirstComeFirstServed(SchedulingPolicy):
    """Gives all requests the same rank, so that only their arrival counts."""

    def rank(self, priority: int) -> int:
        return 0
