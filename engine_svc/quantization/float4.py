"""Layers with 4-bit floating-point weights, two per byte: NVIDIA's NVFP4 and OCP's MXFP4."""

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
    """E2M1 with 8-bit scales for groups of inputs, and optionally a factor for the whole matrix.

    Inputs keep 16 or 32 bits.
    """

    ignored: ClassVar[frozenset[str]] = INPUT_SCALES

    weight_name: str
    scales: Scales
    scale_dtype: torch.dtype  # uint8 means the exponent of a power of two
    factor_name: str | None = None  # parameter with the matrix's factor
    divides: bool = False  # scales are divided by the factor, not multiplied
    scale_name: str = "weight_scale"
    code_dtype: torch.dtype = torch.uint8  # of a byte with two codes

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        codes = ParameterSpec(self.weight_name, self.code_dtype, (OUTPUTS, Axis("inputs", features=2)))
        factor = () if self.factor_name is None else (TENSOR.spec(self.factor_name),)
        return (codes, self.scales.spec(self.scale_name, self.scale_dtype), *factor)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        pairs, scale = parameters[self.weight_name].view(torch.uint8), parameters[self.scale_name]
        codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
        scale = torch.exp2(scale.float() - _EXPONENT_BIAS) if self.scale_dtype == torch.uint8 else scale.float()
        if self.factor_name is not None:
            factor = parameters[self.factor_name]
            scale = scale / factor if self.divides else scale * factor
        return CodedWeight(E2M1, codes, scale.contiguous(), None, self.scales.group(codes.shape[-1]))


def nvfp4(weight_name: str, factor_name: str, *, divides: bool) -> Float4Layer:
    """NVFP4: groups of 16 inputs with E4M3 scales, and a factor for the matrix."""
    return Float4Layer(weight_name, Scales(1, 16), torch.float8_e4m3fn, factor_name, divides)


def mxfp4(weight_name: str) -> Float4Layer:
    """MXFP4: groups of 32 inputs whose scales are powers of two."""
    return Float4Layer(weight_name, Scales(1, 32), torch.uint8)


def deepseek_fp4() -> Float4Layer:
    """MXFP4 as DeepSeek V4's checkpoints have it: bytes have a sign, and scales are numbers in E8M0."""
    return Float4Layer("weight", Scales(1, 32), torch.float32, scale_name="weight_scale_inv", code_dtype=torch.int8)
