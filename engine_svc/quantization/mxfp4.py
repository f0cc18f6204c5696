"""MXFP4 (OCP Microscaling): 32 4-bit values share a power of two. Used for the experts of gpt-oss.

A checkpoint has a tensor of all experts' blocks, [experts, outputs, blocks, 16 bytes], and one of their exponents,
[experts, outputs, blocks]. A byte has one value in its lower half and the next one in its upper half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.ops.grids import E2M1
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import (
    OUTPUTS,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)
from engine_svc.quantization.unquantized import PlainLayer

_BLOCK = 32  # inputs
_BIAS = 127  # of exponents


@dataclass(frozen=True)
class Mxfp4Layer(LayerMethod):
    """See LayerMethod."""

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (
            ParameterSpec("scales", torch.uint8, (OUTPUTS, Axis("inputs", features=_BLOCK))),
            ParameterSpec("blocks", torch.uint8, (OUTPUTS, Axis("inputs", features=_BLOCK, entries=_BLOCK // 2))),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        blocks = parameters["blocks"]
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
        return CodedWeight(E2M1, codes, torch.exp2(parameters["scales"].float() - _BIAS), None, _BLOCK)


@dataclass(frozen=True)
class Mxfp4(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Mxfp4:
        """See QuantizationMethod.of_checkpoint."""
        return cls(form)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        return Mxfp4Layer() if place.kind == "experts" else PlainLayer(self.form.dtype)
