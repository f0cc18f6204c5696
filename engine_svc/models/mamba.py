"""The selective state space layer of Mamba (Gu and Dao 2023), as in Jamba and pure Mamba models."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.rows import rows_parameter
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer, even_part, rates
from engine_svc.models.recurrent_config import MambaConfig
from engine_svc.recurrence.base import LayerState, ScanInputs, ScanParameters, StateShape
from engine_svc.recurrence.registry import create_recurrence


class Mamba(RecurrentLayer):
    """Mamba layer, see RecurrentLayer. Each rank has a range of the channels."""

    def __init__(self, hidden_size: int, config: MambaConfig, context: LayerContext) -> None:
        """
        Raises:
            ValueError: the channels cannot be divided among the ranks.
        """
        super().__init__()
        self._recurrence = create_recurrence(context.ops)
        self._ops = context.ops
        mine = even_part(context.groups.tensor, config.channels, 1, "channels of a Mamba layer")
        self._sizes = (config.rank, config.state_size, config.state_size)
        self.in_proj = ColumnParallelLinear(
            hidden_size, {"x": mine, "z": mine}, bias=config.bias, context=context.at("in_proj")
        )
        self.conv1d = ChannelConvolution([mine], config.taps, bias=config.convolution_bias, context=context)
        self.x_proj = RowParallelLinear(config.channels, sum(self._sizes), bias=False, context=context.at("x_proj"))
        self.dt_proj = ColumnParallelLinear(config.rank, {"": mine}, bias=True, context=context.at("dt_proj"))
        self.A_log = rows_parameter(
            [mine], (config.state_size, mine.count), context, lambda rows: rates(rows).t()
        )  # [state_size, channels]
        self.D = rows_parameter([mine], (mine.count,), context)
        self.out_proj = RowParallelLinear(
            config.channels, hidden_size, bias=config.bias, context=context.at("out_proj")
        )
        self._epsilon = config.norm_epsilon
        self._ones: list[torch.Tensor] = []
        if config.norms == "learned":
            self.dt_layernorm, self.b_layernorm, self.c_layernorm = (
                RMSNorm(size, config.norm_epsilon, context=context) for size in self._sizes
            )
        elif config.norms == "plain":
            self._ones = [torch.ones(size, dtype=context.dtype, device=context.device) for size in self._sizes]
        self._norms = config.norms
        self.state_shape = StateShape((config.taps - 1, mine.count), (config.state_size, mine.count))

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        values, gates = self.in_proj(hidden).chunk(2, dim=-1)
        values = self._recurrence.convolve(values, self.conv1d.filters(), state)
        steps, writes, reads = self._normalise(*self.x_proj(values).split(self._sizes, dim=-1))
        inputs = ScanInputs(values, self.dt_proj(steps), writes, reads)
        return self.out_proj(self._recurrence.scan_channels(inputs, gates, ScanParameters(self.A_log, self.D), state))

    def _normalise(
        self, steps: torch.Tensor, writes: torch.Tensor, reads: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self._norms == "learned":
            return self.dt_layernorm(steps), self.b_layernorm(writes), self.c_layernorm(reads)
        if self._norms == "none":
            return steps, writes, reads
        normed = [
            self._ops.rms_norm(each, ones, self._epsilon)
            for each, ones in zip((steps, writes, reads), self._ones, strict=True)
        ]
        return normed[0], normed[1], normed[2]
