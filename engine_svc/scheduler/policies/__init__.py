"""Orders in which requests are served: one file each, chosen by `--scheduling-policy`."""

from __future__ import annotations

from engine_svc.scheduler.policies.base import SchedulingPolicy
from engine_svc.scheduler.policies.fcfs import FirstComeFirstServed
from engine_svc.scheduler.policies.priority import PriorityFirst

POLICIES: dict[str, type[SchedulingPolicy]] = {"fcfs": FirstComeFirstServed, "priority": PriorityFirst}
