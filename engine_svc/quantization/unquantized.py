"""Weights as they are."""

from __future__ import annotations

import torch

from engine_svc.ops.base import ExpertsProduct, Product
from engine_svc.quantization.base import INPUTS, OUTPUTS, ParameterSpec, QuantizationMethod, Weights


class Unquantized(QuantizationMethod):
    """See QuantizationMethod."""

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See QuantizationMethod.parameters."""
        return (ParameterSpec("weight", self.dtype, (OUTPUTS, INPUTS)),)

    def linear(self, weights: Weights, bias: torch.Tensor | None) -> Product:
        """See QuantizationMethod.linear."""
        return self.ops.matrix(weights["weight"], bias)

    def experts(self, gate_up: Weights, down: Weights) -> ExpertsProduct:
        """See QuantizationMethod.experts."""
        return self.ops.experts(gate_up["weight"], down["weight"])
