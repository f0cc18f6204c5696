"""Griffin's recurrent layer (De et al. 2024), as in RecurrentGemma: gated linear units after a convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.part import Part
from engine_svc.layers.rows import rows_parameter
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer, even_part
from engine_svc.models.recurrent_config import GatedUnitsConfig
from engine_svc.ops.base import HeadsProduct, activate
from engine_svc.recurrence.base import LayerState, StateShape, UnitInputs, UnitParameters
from engine_svc.recurrence.registry import create_recurrence

_SHARPNESS = 8.0  # factor on the rates


class GatedUnits(RecurrentLayer):
    """Griffin's recurrent layer, see RecurrentLayer. Each rank has a part of the heads."""

    def __init__(self, hidden_size: int, config: GatedUnitsConfig, context: LayerContext) -> None:
        """
        Raises:
            ValueError: the heads cannot be divided among the ranks.
        """
        super().__init__()
        self._ops, self._recurrence = context.ops, create_recurrence(context.ops)
        size, self._activation = config.channels // config.heads, config.activation
        mine = even_part(context.groups.tensor, config.heads, size, "heads of a recurrent layer")
        for name in ("linear_x", "linear_y"):
            self.add_module(name, ColumnParallelLinear(hidden_size, {"": mine}, bias=True, context=context.at(name)))
        self.conv_1d = ChannelConvolution([mine], config.taps, bias=True, context=context, activates=False)
        heads = even_part(context.groups.tensor, config.heads, 1, "heads of a recurrent layer")
        self.input_gate, self.recurrent_gate = (HeadGates(heads, size, context) for _ in range(2))
        self.recurrent_param = rows_parameter(
            [mine], (mine.count,), context, lambda rows: -_SHARPNESS * F.softplus(rows.float())
        )
        self.linear_out = RowParallelLinear(config.channels, hidden_size, bias=True, context=context.at("linear_out"))
        self.state_shape = StateShape((config.taps - 1, mine.count), (mine.count,))

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        values = self._recurrence.convolve(self.linear_x(hidden), self.conv_1d.filters(), state)
        inputs = UnitInputs(values, self.input_gate(values), self.recurrent_gate(values))
        parameters = UnitParameters(self.recurrent_param, self.input_gate.bias, self.recurrent_gate.bias)
        output = self._recurrence.gated_units(inputs, parameters, state)
        both = self._ops.join([self.linear_y(hidden)[:, None], output[:, None]])
        return self.linear_out(activate(self._ops, both, self._activation, is_gated=True))


class HeadGates(PackedLayer):
    """Gates before their sigmoid: each head's channels times its own matrix, which is never quantized."""

    def __init__(self, heads: Part, size: int, context: LayerContext) -> None:
        """
        Args:
            heads: the heads of this rank.
            size: number of channels of each head.
        """
        super().__init__()
        self._ops, self._shape = context.ops, (heads.count, size)
        # [heads, inputs, outputs], as in checkpoints.
        self.weight = rows_parameter(
            [heads], (heads.count, size, size), context, lambda rows: rows.to(context.dtype), context.dtype
        )
        self.bias = rows_parameter([heads], (heads.count * size,), context, lambda rows: rows.float().flatten())
        self._product: HeadsProduct | None = None

    def pack(self) -> None:
        """See PackedLayer.pack."""
        self._product = self._ops.head_matrices(self.weight.data.transpose(1, 2))
        del self.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[tokens, channels of this rank] → [tokens, channels of this rank]."""
        assert self._product is not None
        gates = torch.empty_like(values)
        self._product(values.unflatten(-1, self._shape), gates.unflatten(-1, self._shape))
        return gates
