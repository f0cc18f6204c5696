"""Root mean square normalisation."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, size: int, epsilon: float, *, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self.epsilon = epsilon
        self.weight = LoadedParameter((size,), context.dtype, context.device)
        self.weight.load = self._load_weight

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[..., size] → [..., size]; a residual gets `hidden` added, in place, and is what is normalised."""
        if residual is None:
            return self._ops.rms_norm(hidden, self.weight, self.epsilon)
        return self._ops.add_rms_norm(hidden, residual, self.weight, self.epsilon)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (slice(None),))
