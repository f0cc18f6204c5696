"""Which implementation of the recurrent operations runs here."""

from __future__ import annotations

from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.recurrence.base import Recurrence
from engine_svc.recurrence.native import NativeRecurrence
from engine_svc.recurrence.plain import PlainRecurrence


def create_recurrence(ops: Ops) -> Recurrence:
    """The operations that go with those between attention."""
    return NativeRecurrence(ops.kernels) if isinstance(ops, NativeOps) else PlainRecurrence()
