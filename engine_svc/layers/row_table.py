"""Small lookup tables: learned positions, token types."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice


class RowTable(torch.nn.Module):
    """A matrix whose rows are looked up; every rank holds it whole."""

    def __init__(self, count: int, size: int, *, context: LayerContext, first: int = 0) -> None:
        """
        Args:
            first: the matrix row that index 0 refers to. If it is negative, indices below row 0 stand for zeros.
        """
        super().__init__()
        self._ops, self._first = context.ops, max(first, 0)
        self._zeros = max(-first, 0)
        self.weight = LoadedParameter((self._zeros + count, size), context.dtype, context.device)
        self.weight.keep_zero("zeros")
        self.weight.loader = self._load

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] → [tokens, size]."""
        return self._ops.take_rows(self.weight[self._first :], indices)

    def _load(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight[self._zeros :], source, (slice(None),) * 2)
