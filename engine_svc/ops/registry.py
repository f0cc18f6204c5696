"""Which implementation of the operations runs here."""

from __future__ import annotations

import torch

from engine_svc.native.library import TYPES, Kernels
from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps


def create_ops(kernels: Kernels | None, dtype: torch.dtype, device: torch.device) -> Ops:
    """The operations for a rank.

    Args:
        kernels: those of its CPU, if they are to be used.
    """
    if device.type == "cuda":
        # Triton is imported only where it is used.
        from engine_svc.ops.triton import TritonOps

        return TritonOps()
    if kernels is not None and dtype in TYPES:
        return NativeOps(kernels)
    return PlainOps()
