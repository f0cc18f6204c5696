"""int8 (dynamic W8A8): quantizes 16-bit and 32-bit weights to int8 on load, and inputs on the fly.

Symmetric, with a scale for each output of a weight and for each row of inputs.
"""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.on_load import OnLoadMethod


class Int8(OnLoadMethod):
    """See the module."""

    def rounded(self, weight: torch.Tensor) -> Weight:
        """See OnLoadMethod.rounded."""
        return self.form.ops.quantize_rows(weight)
