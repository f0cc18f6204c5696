"""int4: weights of 16 or 32 bits become 4 bits as they are loaded, and inputs stay."""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.on_load import OnLoadMethod

_GROUP = 128


class Int4(OnLoadMethod):
    """In groups of inputs."""

    def rounded(self, weight: torch.Tensor) -> Weight:
        """See OnLoadMethod.rounded."""
        return self.form.ops.quantize_groups(weight, _GROUP)
