"""Layers with 8-bit floating-point weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine_svc.ops.grids import E4M3
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import INPUTS, OUTPUTS, LayerMethod, Parameters, ParameterSpec
from engine_svc.quantization.scales import Scales

# Scales of inputs and outputs are ignored, as these keep 16 or 32 bits here.
INPUT_SCALES = frozenset({
    "input_scale", "input_scale_ub", "input_zero_point", "input_global_scale", "activation_scale", "output_scale",
    "output_zero_point",
})  # fmt: skip


@dataclass(frozen=True)
class Float8Layer(LayerMethod):
    """E4M3 with scales. Inputs are not quantized, which is more accurate, even if the checkpoint asks for it."""

    ignored: ClassVar[frozenset[str]] = INPUT_SCALES

    scales: Scales
    scale_names: tuple[str, ...] = ("weight_scale",)  # a checkpoint has any one of these

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        default = float("nan") if len(self.scale_names) > 1 else None
        scales = (self.scales.spec(name, default=default) for name in self.scale_names)
        return (ParameterSpec("weight", torch.float8_e4m3fn, (OUTPUTS, INPUTS)), *scales)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight.

        Raises:
            ValueError: the checkpoint has no scales.
        """
        codes = parameters["weight"].view(torch.uint8)
        scale = self.scales.of_outputs(self._given(parameters), codes.shape[-2])
        return CodedWeight(E4M3, codes, scale, None, self.scales.group(codes.shape[-1]))

    def _given(self, parameters: Parameters) -> torch.Tensor:
        for name in self.scale_names:
            if not (found := parameters[name]).isnan().any():
                return found
        raise ValueError(
            f"the checkpoint has no {' and no '.join(self.scale_names)} for it, or one that is not a number"
        )
