"""LFM2's short convolution between two gates (Liquid AI 2025); its state is just the last few inputs."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, even_parts
from engine_svc.models.attention import StepInputs
from engine_svc.models.recurrent import ChannelConvolution, RecurrentLayer
from engine_svc.models.recurrent_config import ShortConvolutionConfig
from engine_svc.recurrence.base import LayerState, StateShape
from engine_svc.recurrence.registry import create_recurrence


class ShortConvolution(RecurrentLayer):
    """Short convolution layer, see RecurrentLayer. Each rank has a range of the channels."""

    def __init__(self, hidden_size: int, config: ShortConvolutionConfig, context: LayerContext) -> None:
        """
        Raises:
            ValueError: the channels cannot be divided among the ranks.
        """
        super().__init__()
        self._recurrence = create_recurrence(context.ops)
        parts = even_parts(context.groups.tensor, dict.fromkeys(("before", "behind", "values"), hidden_size))
        self.in_proj = ColumnParallelLinear(hidden_size, parts, bias=config.bias, context=context.at("in_proj"))
        self.conv = ChannelConvolution([parts["values"]], config.taps, bias=config.bias, context=context)
        self.out_proj = RowParallelLinear(hidden_size, hidden_size, bias=config.bias, context=context.at("out_proj"))
        self.state_shape = StateShape((config.taps - 1, self.conv.channels), (0,))

    def forward(self, hidden: torch.Tensor, state: LayerState, step: StepInputs) -> torch.Tensor:
        """See RecurrentLayer.forward."""
        return self.out_proj(self._recurrence.gated_convolve(self.in_proj(hidden), self.conv.filters(), state))
