"""The gated feed-forward layer (SwiGLU, GeGLU)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, even_parts
from engine_svc.ops.base import Activation


class MLP(torch.nn.Module):
    """down(activation(gate(x)) * up(x))."""

    def __init__(
        self, hidden_size: int, size: int, *, activation: Activation, bias: bool, context: LayerContext
    ) -> None:
        super().__init__()
        self._ops = context.ops
        self._activation = activation
        parts = even_parts(context.groups.tensor, {"gate": size, "up": size})
        self.gate_up_proj = ColumnParallelLinear(hidden_size, parts, bias=bias, context=context.at("gate_up_proj"))
        self.down_proj = RowParallelLinear(size, hidden_size, bias=bias, context=context.at("down_proj"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        return self.down_proj(self._ops.activate_and_multiply(self.gate_up_proj(hidden), self._activation))
