"""The operations by the names that tests have for them, with the type that they run in."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.ops.base import Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from tests.support.native import fastest_kernels


def make_ops(name: str) -> tuple[Ops, torch.dtype]:
    if name == "plain":
        return PlainOps(), torch.float32
    if name == "triton":
        from engine_svc.ops.triton import TritonOps  # which not every machine has

        return TritonOps(), torch.float32
    return NativeOps(fastest_kernels()), torch.bfloat16


def experts_by_definition(
    hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """In float64; the arguments are those of `Ops.experts` and of its product."""
    expected = torch.zeros(hidden.shape, dtype=torch.float64)
    for index, (first, second) in enumerate(zip(gate_up.double(), down.double(), strict=True)):
        share = (weights.double() * (expert_ids == index)).sum(-1, keepdim=True)
        gate, up = (hidden.double() @ first.T).chunk(2, dim=-1)
        expected += share * (F.silu(gate) * up @ second.T)
    return expected
