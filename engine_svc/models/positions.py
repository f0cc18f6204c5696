"""Position embeddings, which are added to token embeddings."""

from __future__ import annotations

import math

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.row_table import RowTable
from engine_svc.models.config import ModelConfig

_LONGEST = 10000.0  # longest wavelength, divided by 2π


class Waves(torch.nn.Module):
    """Sines, then cosines, of decreasing frequencies (Vaswani et al. 2017), each in one half of the values."""

    def __init__(self, count: int, size: int, *, context: LayerContext, first: int = 0) -> None:
        """
        Args:
            first: the position that index 0 stands for.
        """
        super().__init__()
        self._ops = context.ops
        half = size // 2
        frequencies = torch.exp(torch.arange(half) * -(math.log(_LONGEST) / (half - 1)))
        angles = torch.arange(first, count)[:, None] * frequencies
        table = torch.cat((angles.sin(), angles.cos()), dim=1)
        self._table = torch.nn.functional.pad(table, (0, size % 2)).to(context.device, context.dtype)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → [tokens, size]."""
        return self._ops.take_rows(self._table, indices)


def position_table(config: ModelConfig, context: LayerContext) -> RowTable | Waves | None:
    """The family's position embeddings; None if it has none."""
    if not config.num_positions:
        return None
    table = Waves if config.positions_are_waves else RowTable
    first = config.first_position - config.encoder_tokens
    return table(config.num_positions, config.hidden_size, context=context, first=first)
