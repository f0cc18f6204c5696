"""Small lookup tables: learned positions, token types."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter


class RowTable(torch.nn.Module):
    """A matrix whose rows are looked up; every rank holds it whole."""

    def __init__(self, count: int, size: int, *, context: LayerContext, first: int = 0) -> None:
        """
        Args:
            first: the matrix row that index 0 refers to.
        """
        super().__init__()
        self._ops, self._first = context.ops, first
        self.weight = LoadedParameter((count, size), context.dtype, context.device)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → [tokens, size]."""
        return self._ops.take_rows(self.weight[self._first :], indices)
