"""experts_int8: quantizes experts' weights, most of a large mixture, to 8 bits on load; inputs are not quantized."""

from __future__ import annotations

import torch

from engine_svc.ops.rounding import to_int8
from engine_svc.ops.weights import Weight
from engine_svc.quantization.on_load import OnLoadMethod


class ExpertsInt8(OnLoadMethod):
    """See the module."""

    kinds = ("experts",)

    def rounded(self, weight: torch.Tensor) -> Weight:
        """See OnLoadMethod.rounded."""
        return to_int8(weight)
