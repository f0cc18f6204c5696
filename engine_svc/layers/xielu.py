"""xIELU, an activation with numbers that each layer learns."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice

# The numbers as Ops.xielu takes them, by their names in checkpoints.
_NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")


class Xielu(torch.nn.Module):
    """xIELU (Huang and Schlag 2024); every rank has all its numbers, float32 [4] as in Ops.xielu.

    Checkpoints have a tensor of one number for each. Of alpha_p and alpha_n, the layer has the softplus, which is
    computed in float32, whatever the dtype of the checkpoint.
    """

    def __init__(self, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self.weight = LoadedParameter((len(_NUMBERS),), torch.float32, context.device, _NUMBERS)
        self.weight.loader = self._load

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Activates contiguous [tokens, size], in place, and returns it."""
        return self._ops.xielu(values, self.weight)

    def _load(self, source: TensorSlice, part: str) -> None:
        """
        Raises:
            ValueError: the tensor is not a single number.
        """
        place = _NUMBERS.index(part)
        number = self.weight[place : place + 1]
        self.weight.fill(part, number, source)
        if part in ("alpha_p", "alpha_n"):
            number.copy_(F.softplus(number))
