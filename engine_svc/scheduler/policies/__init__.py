"""Scheduling policies, which order requests: one file each, selected by `--scheduling-policy`."""

from __future__ import annotations

from collections.abc import Mapping

from engine_svc.scheduler.policies.base import SchedulingPolicy
from engine_svc.scheduler.policies.fcfs import FirstComeFirstServed
from engine_svc.scheduler.policies.priority import PriorityFirst
from quire.options.scheduler import SCHEDULING_POLICIES
from quire.registry import registry

POLICIES: Mapping[str, type[SchedulingPolicy]] = registry(
    "--scheduling-policy", SCHEDULING_POLICIES, {"fcfs": FirstComeFirstServed, "priority": PriorityFirst}
)
