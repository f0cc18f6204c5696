"""The feed-forward layers: gated (SwiGLU, GeGLU), plain, and with a learned activation."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, even_parts
from engine_svc.layers.part import Layout
from engine_svc.layers.xielu import Xielu
from engine_svc.ops.base import Activation, GatedActivation, RowProduct, activate


class RowForms(NamedTuple):
    """An MLP's products for few rows."""

    gate_up: RowProduct
    down: RowProduct
    activation: Activation


class MLP(torch.nn.Module):
    """Feed-forward layer: down(activation(gate(x)) * up(x)), or without gate down(activation(up(x)))."""

    def __init__(
        self, hidden_size: int, size: int, *, activation: Activation, bias: bool, context: LayerContext,
        output_bias: bool | None = None, up_first: bool = False, is_gated: bool = True,
        multipliers: tuple[float, float] = (1.0, 1.0),
    ) -> None:  # fmt: skip
        """
        Args:
            output_bias: None means as `bias`.
            up_first: whether up comes first in checkpoint tensors that hold gate and up together.
            multipliers: factors on the gate before its activation, and on the output.
        """
        super().__init__()
        self._ops = context.ops
        self._activation, self._is_gated, self._multipliers = activation, is_gated, multipliers
        parts = even_parts(context.groups.tensor, dict.fromkeys(("gate", "up") if is_gated else ("up",), size))
        self.gate_up_proj = ColumnParallelLinear(
            hidden_size,
            parts,
            bias=bias,
            context=context.at("gate_up_proj"),
            layout=Layout(("up", "gate") if up_first else ()),
        )
        output_bias = bias if output_bias is None else output_bias
        self.down_proj = RowParallelLinear(size, hidden_size, bias=output_bias, context=context.at("down_proj"))

    def row_forms(self) -> RowForms | None:
        """The layer's fused products for few rows; None if they do not support this layer."""
        first, second = self.gate_up_proj.row, self.down_proj.row
        if first is None or second is None or not self._is_gated or self._multipliers != (1.0, 1.0):
            return None
        return RowForms(first, second, self._activation)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        wide, (gate, down) = self.gate_up_proj(hidden), self._multipliers
        if gate != 1:
            self._ops.scale(wide[:, : wide.shape[1] // 2], gate)
        put_out = self.down_proj(self._activated(wide))
        return put_out if down == 1 else self._ops.scale(put_out, down)

    def _activated(self, wide: torch.Tensor) -> torch.Tensor:
        """The output of the first product, which may be changed in place → the input of the second one."""
        return activate(self._ops, wide, self._activation, self._is_gated)


class SparseGateMLP(MLP):
    """An MLP whose gates become zero but for a token's largest: those over a cutoff, which is subtracted (Gemma 3n).

    The cutoff follows from the mean and the deviation of the token's gates, as if these were normally distributed.
    """

    def __init__(
        self, hidden_size: int, size: int, *, cutoff: float, activation: Activation, context: LayerContext
    ) -> None:
        """
        Args:
            cutoff: in standard deviations over the mean.
        """
        super().__init__(hidden_size, size, activation=activation, bias=False, context=context)
        self._cutoff, self._size, self._group = cutoff, size, context.groups.tensor

    def _activated(self, wide: torch.Tensor) -> torch.Tensor:
        """See MLP."""
        gates = wide[:, : wide.shape[1] // 2]
        values = gates.float()
        mean = self._group.all_reduce(values.sum(-1, keepdim=True)) / self._size
        square = self._group.all_reduce((values - mean).square().sum(-1, keepdim=True)) / self._size
        gates.copy_((values - mean - square.sqrt() * self._cutoff).relu_())
        return super()._activated(wide)


class PlainMLP(torch.nn.Module):
    """Feed-forward layer without gate: fc_out(activation(fc_in(x)))."""

    def __init__(
        self, hidden_size: int, size: int, *, activation: Activation, bias: bool, context: LayerContext
    ) -> None:
        """
        Raises:
            ValueError: the activation needs a gate.
        """
        super().__init__()
        if isinstance(activation, GatedActivation):
            raise ValueError("a clamped activation is only supported for gated layers")
        self._ops, self._activation = context.ops, activation
        parts = even_parts(context.groups.tensor, {"": size})
        self.fc_in = ColumnParallelLinear(hidden_size, parts, bias=bias, context=context.at("fc_in"))
        self.fc_out = RowParallelLinear(size, hidden_size, bias=bias, context=context.at("fc_out"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        return self.fc_out(self._ops.activate(self.fc_in(hidden), self._activation))


class XieluMLP(torch.nn.Module):
    """Feed-forward layer without gate, with an activation that it learns: down(xielu(up(x)))."""

    def __init__(self, hidden_size: int, size: int, *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        parts = even_parts(context.groups.tensor, {"up": size})
        self.gate_up_proj = ColumnParallelLinear(hidden_size, parts, bias=bias, context=context.at("gate_up_proj"))
        self.act_fn = Xielu(context)
        self.down_proj = RowParallelLinear(size, hidden_size, bias=bias, context=context.at("down_proj"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        return self.down_proj(self.act_fn(self.gate_up_proj(hidden)))
