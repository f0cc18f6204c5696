"""Which implementation of the operations runs here."""

from __future__ import annotations

import torch

from engine_svc.native.library import kernels
from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from quire.errors import StartupError


def create_ops(choice: str, dtype: torch.dtype, device: torch.device) -> Ops:
    """The operations for a rank.

    Args:
        choice: --cpu-kernels: auto, native or torch.

    Raises:
        StartupError: native kernels are asked for and cannot run.
    """
    suitable = device.type == "cpu" and dtype == torch.bfloat16
    if choice == "native" and not suitable:
        raise StartupError(f"--cpu-kernels native runs bfloat16 on a CPU, and this is {dtype} on {device.type}.")
    if device.type == "cuda":
        # Triton is imported only where it is used.
        from engine_svc.ops.triton import TritonOps

        return TritonOps()
    if choice != "torch" and suitable:
        if (found := kernels()) is not None:
            return NativeOps(found)
        if choice == "native":
            raise StartupError("--cpu-kernels native: the kernels cannot run here; the log says why.")
    return PlainOps()
