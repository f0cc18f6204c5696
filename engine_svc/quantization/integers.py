"""Layers with signed integer weights of up to 8 bits: one per byte, or several packed in a word."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from engine_svc.ops.weights import Int8Weight, Weight
from engine_svc.quantization.base import INPUTS, OUTPUTS, LayerMethod, Parameters, ParameterSpec
from engine_svc.quantization.bits import in_groups, packed_along, unpacked, whole_numbers
from engine_svc.quantization.float8 import INPUT_SCALES
from engine_svc.quantization.scales import Scales

_IGNORED = INPUT_SCALES | {"weight_zero_point", "weight_g_idx", "weight_shape"}


@dataclass(frozen=True)
class Int8Layer(LayerMethod):
    """W8A8: inputs are quantized row by row on the fly, at least as accurately as with a checkpoint's input scales."""

    ignored: ClassVar[frozenset[str]] = _IGNORED

    scales: Scales

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (ParameterSpec("weight", torch.int8, (OUTPUTS, INPUTS)), self.scales.spec("weight_scale"))

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        values = parameters["weight"]
        return Int8Weight(values, self.scales.of_outputs(parameters["weight_scale"], values.shape[-2])[..., 0])


@dataclass(frozen=True)
class IntegersLayer(LayerMethod):
    """One weight per byte; inputs keep 16 or 32 bits."""

    ignored: ClassVar[frozenset[str]] = _IGNORED

    bits: int
    scales: Scales
    symmetric: bool

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        zeros = () if self.symmetric else (self.scales.spec("weight_zero_point", torch.int8),)
        weight = ParameterSpec("weight", torch.int8, (OUTPUTS, INPUTS))
        return (weight, self.scales.spec("weight_scale"), *zeros)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        middle = 1 << self.bits - 1
        codes = parameters["weight"].view(torch.uint8) + middle  # wraps around
        outputs, scales = codes.shape[-2], self.scales
        scale = scales.of_outputs(parameters["weight_scale"], outputs)
        zeros = torch.full_like(scale, middle)
        if not self.symmetric:
            zeros += scales.of_outputs(parameters["weight_zero_point"], outputs)
        return whole_numbers(codes, zeros, scale, self.bits, scales.group(codes.shape[-1]))


@dataclass(frozen=True)
class PackedIntegersLayer(LayerMethod):
    """Packed in 32-bit words along the inputs. Inputs keep 16 or 32 bits, and may be in groups in any order."""

    ignored: ClassVar[frozenset[str]] = _IGNORED

    bits: int
    scales: Scales
    symmetric: bool
    ordered: bool  # the checkpoint says which group each input belongs to
    dtype: torch.dtype

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        scales = replace(self.scales, whole=self.ordered)
        found = [
            ParameterSpec("weight_packed", torch.int32, (OUTPUTS, packed_along(INPUTS, self.bits))),
            scales.spec("weight_scale"),
        ]
        if not self.symmetric:
            axes = (packed_along(OUTPUTS, self.bits), *scales.axes[1:])
            found.append(ParameterSpec("weight_zero_point", torch.int32, axes))
        if self.ordered:
            found.append(ParameterSpec("weight_g_idx", torch.int32, (INPUTS,), default=-1))
        return tuple(found)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight.

        Raises:
            ValueError: an input's group does not exist.
        """
        codes = unpacked(parameters["weight_packed"], self.bits)
        scale = parameters["weight_scale"]
        if self.symmetric:
            zeros = torch.full_like(scale, 1 << self.bits - 1)
        else:
            zeros = unpacked(parameters["weight_zero_point"].mT, self.bits).mT[..., : codes.shape[-2], :]
        if not self.ordered:
            return whole_numbers(codes, zeros, scale, self.bits, self.scales.inputs)
        assert self.scales.inputs is not None
        return in_groups(codes, zeros, scale, self.bits, self.scales.inputs, parameters["weight_g_idx"], self.dtype)
