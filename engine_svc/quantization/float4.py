"""Layers whose weights are floating-point numbers of four bits, two in a byte: NVIDIA's and OCP's forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine_svc.ops.grids import E2M1
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import OUTPUTS, Axis, LayerMethod, Parameters, ParameterSpec
from engine_svc.quantization.float8 import INPUT_SCALES
from engine_svc.quantization.scales import TENSOR, Scales

_EXPONENT_BIAS = 127


@dataclass(frozen=True)
class Float4Layer(LayerMethod):
    """E2M1 with scales of eight bits for groups of inputs, and perhaps one for the whole matrix besides.

    Inputs stay in 16 or 32 bits.
    """

    ignored: ClassVar[frozenset[str]] = INPUT_SCALES

    weight_name: str
    scales: Scales
    scale_dtype: torch.dtype  # uint8 for the exponent alone of a power of two
    factor_name: str | None = None  # of the one for the matrix
    divides: bool = False  # it does, instead of to multiply

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        codes = ParameterSpec(self.weight_name, torch.uint8, (OUTPUTS, Axis("inputs", features=2)))
        factor = () if self.factor_name is None else (TENSOR.spec(self.factor_name),)
        return (codes, self.scales.spec("weight_scale", self.scale_dtype), *factor)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        pairs, scale = parameters[self.weight_name], parameters["weight_scale"]
        codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
        scale = torch.exp2(scale.float() - _EXPONENT_BIAS) if self.scale_dtype == torch.uint8 else scale.float()
        if self.factor_name is not None:
            factor = parameters[self.factor_name]
            scale = scale / factor if self.divides else scale * factor
        return CodedWeight(E2M1, codes, scale.contiguous(), None, self.scales.group(codes.shape[-1]))


def nvfp4(weight_name: str, factor_name: str, *, divides: bool) -> Float4Layer:
    """Groups of 16."""
    return Float4Layer(weight_name, Scales(1, 16), torch.float8_e4m3fn, factor_name, divides)


def mxfp4(weight_name: str) -> Float4Layer:
    """Groups of 32."""
    return Float4Layer(weight_name, Scales(1, 32), torch.uint8)
