"""int4: quantizes 16-bit and 32-bit weights to 4 bits on load; inputs are not quantized."""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.on_load import OnLoadMethod

_GROUP = 128


class Int4(OnLoadMethod):
    """4-bit weights in groups of 128 inputs."""

    def rounded(self, weight: torch.Tensor) -> Weight:
        """See OnLoadMethod.rounded."""
        return self.form.ops.quantize_groups(weight, _GROUP)
