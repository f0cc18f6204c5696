"""Root mean square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.layers.parameter import LoadedParameter, TensorSlice


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, size: int, epsilon: float, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._epsilon = epsilon
        self.weight = LoadedParameter((size,), dtype, device)
        self.weight.load = self._load_weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., size] → [..., size]."""
        return F.rms_norm(hidden, self.weight.shape, self.weight, self._epsilon)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (slice(None),))
