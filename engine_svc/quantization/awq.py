"""AWQ (Lin et al. 2023) as AutoAWQ writes it for its GEMM kernel: 4 bits, with a zero point for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import (
    INPUTS,
    OUTPUTS,
    SINGLE,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip
from engine_svc.quantization.bits import packed_along, unpacked, whole_numbers
from engine_svc.quantization.settings import group_size, names, one_of
from engine_svc.quantization.unquantized import PlainLayer

_BITS = 4
# The place in a word, out of eight, of the code of each of eight outputs.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class AwqLayer(LayerMethod):
    """See LayerMethod. Each word holds the codes of eight outputs for one input."""

    group: int | None

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        packed = packed_along(OUTPUTS, _BITS)
        groups = SINGLE if self.group is None else Axis("inputs", features=self.group)
        return (
            ParameterSpec("qweight", torch.int32, (INPUTS, packed)),
            ParameterSpec("qzeros", torch.int32, (groups, packed)),
            ParameterSpec("scales", torch.float32, (groups, OUTPUTS)),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        codes, zeros = (_in_order(parameters[name]).mT for name in ("qweight", "qzeros"))
        return whole_numbers(codes.contiguous(), zeros, parameters["scales"].mT, _BITS, self.group)


def _in_order(words: torch.Tensor) -> torch.Tensor:
    return unpacked(words, _BITS).unflatten(-1, (-1, len(_PLACES)))[..., _PLACES].flatten(-2)


@dataclass(frozen=True)
class Awq(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    group: int | None
    ignored: Sequence[str]  # modules that are not quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Awq:
        """See QuantizationMethod.of_checkpoint."""
        one_of(settings, "w_bit" if "w_bit" in settings else "bits", (_BITS,), _BITS)
        one_of(settings, "zero_point", (True,), True)
        one_of({"version": str(settings.get("version", "gemm")).lower()}, "version", ("gemm", "exllama"), "gemm")
        name = "q_group_size" if "q_group_size" in settings else "group_size"
        return cls(form, group_size(settings, name, 128), names(settings, "modules_to_not_convert"))

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        if place.kind not in ("linear", "experts") or place.is_any_of(self.ignored):
            return PlainLayer(self.form.dtype)
        return AwqLayer(self.group)
