"""Chooses the implementation of the operations."""

from __future__ import annotations

import torch

from engine_svc.native.library import TYPES, Kernels
from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps


def create_ops(kernels: Kernels | None, dtype: torch.dtype, device: torch.device, batch_invariant: bool = False) -> Ops:
    """The operations for a rank.

    Args:
        kernels: the C++ kernels for its CPU. None means they are not used.
        batch_invariant: asks for batch-invariant operations where they exist, even if they are slower.
    """
    if device.type == "cuda":
        # Triton is imported only where it is used.
        from engine_svc.ops.triton import InvariantTritonOps, TritonOps

        return InvariantTritonOps() if batch_invariant else TritonOps()
    if kernels is not None and dtype in TYPES:
        return NativeOps(kernels, dtype)
    return PlainOps()
