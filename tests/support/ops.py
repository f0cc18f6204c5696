"""Implementations of Ops by the names used in tests, with the dtypes that they run in."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.ops.base import Activation, ClampedSwish, ClippedSilu, ExpertsForm, Ops
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from tests.support.native import fastest_kernels


def make_ops(name: str) -> tuple[Ops, torch.dtype]:
    if name == "plain":
        return PlainOps(), torch.float32
    if name == "triton":
        from engine_svc.ops.triton import TritonOps  # Triton is not installed everywhere

        return TritonOps(), torch.float32
    return NativeOps(fastest_kernels()), torch.bfloat16


def activated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """float64 [rows, 2 * size] → [rows, size]; `Ops.activate_and_multiply` by its definition."""
    gate, up = gate_up.chunk(2, dim=-1)
    if isinstance(activation, ClampedSwish):
        gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit) + 1
        return gate / (1 + (-activation.slope * gate).exp()) * up
    if isinstance(activation, ClippedSilu):
        silu = (gate / (1 + (-gate).exp())).clamp(max=activation.gate_limit)
        return silu * up.clamp(-activation.limit, activation.limit)
    if activation == "silu":
        return gate / (1 + (-gate).exp()) * up
    if activation == "relu":
        return gate.clamp(min=0) * up
    if activation == "relu2":
        return gate.clamp(min=0) ** 2 * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def experts_by_definition(
    hidden: torch.Tensor,
    weights: torch.Tensor,
    expert_ids: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    form: ExpertsForm = ExpertsForm(),
) -> torch.Tensor:
    """`Ops.experts` by its definition, in float64; the arguments are those of `Ops.experts` and of its product."""
    expected = torch.zeros(hidden.shape, dtype=torch.float64)
    for index, (first, second) in enumerate(zip(gate_up.double(), down.double(), strict=True)):
        share = (weights.double() * (expert_ids == index)).sum(-1, keepdim=True)
        inputs = hidden.double() * share if form.weighs_inputs else hidden.double()
        inner = inputs @ first.T + (0 if form.gate_up_bias is None else form.gate_up_bias[index].double())
        both = inner if form.is_gated else torch.cat((inner, torch.ones_like(inner)), -1)
        result = activated(both, form.activation) @ second.T
        result += 0 if form.down_bias is None else form.down_bias[index].double()
        expected += (share > 0) * result if form.weighs_inputs else share * result
    return expected


CLAMPED, CLIPPED = ClampedSwish(1.702, 1.5), ClippedSilu(0.7, gate_limit=0.4)


def forms_of_experts(experts: int, size: int, inner: int, dtype: torch.dtype) -> dict[str, ExpertsForm]:
    """Forms of experts by the names used in tests."""
    generator = torch.Generator().manual_seed(9)
    biases = [torch.randn(experts, outputs, generator=generator).to(dtype) for outputs in (2 * inner, size)]
    return {
        "plain": ExpertsForm(), "gelu": ExpertsForm("gelu_tanh"), "gpt-oss": ExpertsForm(CLAMPED, *biases),
        "clipped": ExpertsForm(CLIPPED),
        "llama 4": ExpertsForm(weighs_inputs=True), "all": ExpertsForm(CLAMPED, *biases, weighs_inputs=True),
    }  # fmt: skip


FORMS = tuple(forms_of_experts(1, 1, 1, torch.float32))
