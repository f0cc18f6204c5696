"""Weights that are not quantized."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import (
    INPUTS,
    OUTPUTS,
    LayerMethod,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip


@dataclass(frozen=True)
class PlainLayer(LayerMethod):
    """See LayerMethod."""

    dtype: torch.dtype

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (ParameterSpec("weight", self.dtype, (OUTPUTS, INPUTS)),)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return parameters["weight"]


@dataclass(frozen=True)
class Unquantized(QuantizationMethod):
    """See QuantizationMethod."""

    dtype: torch.dtype

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        return PlainLayer(self.dtype)
