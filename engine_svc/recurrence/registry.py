"""Which implementation of the recurrent operations runs here."""

from __future__ import annotations

from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from engine_svc.recurrence.base import Recurrence
from engine_svc.recurrence.native import NativeRecurrence
from engine_svc.recurrence.plain import PlainRecurrence


def create_recurrence(ops: Ops) -> Recurrence:
    """The operations that go with those between attention."""
    if isinstance(ops, NativeOps):
        return NativeRecurrence(ops.kernels)
    if type(ops) is PlainOps:  # a GPU's are made of them
        return PlainRecurrence()
    # Triton is imported only where it is used.
    from engine_svc.recurrence.triton import TritonRecurrence

    return TritonRecurrence()
