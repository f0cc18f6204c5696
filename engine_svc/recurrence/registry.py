"""Chooses the implementation of the recurrent operations."""

from __future__ import annotations

from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.recurrence.base import Recurrence
from engine_svc.recurrence.native import NativeRecurrence
from engine_svc.recurrence.plain import PlainRecurrence


def create_recurrence(ops: Ops) -> Recurrence:
    """The recurrent operations that match the rank's other operations."""
    if isinstance(ops, NativeOps):
        return NativeRecurrence(ops.kernels)
    if type(ops) is PlainOps:  # not isinstance: TritonOps is a subclass
        return PlainRecurrence()
    # Triton is imported only where it is used.
    from engine_svc.recurrence.triton import InvariantTritonRecurrence, TritonRecurrence

    return InvariantTritonRecurrence() if ops.batch_invariant else TritonRecurrence()
