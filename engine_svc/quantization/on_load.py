"""Methods that only quantize on load: 16-bit and 32-bit weights are quantized while they are loaded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import LayerMethod, ModelForm, Parameters, Place, PlaceKind, QuantizationMethod
from engine_svc.quantization.unquantized import PlainLayer


@dataclass(frozen=True)
class RoundedLayer(PlainLayer):
    """Unquantized in the checkpoint. Each rank quantizes its own part."""

    rounded: Callable[[torch.Tensor], Weight]

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return self.rounded(parameters["weight"])


@dataclass(frozen=True)
class OnLoadMethod(QuantizationMethod):
    """See QuantizationMethod."""

    kinds: ClassVar[tuple[PlaceKind, ...]] = ("linear", "experts")
    form: ModelForm

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> Self:
        """See QuantizationMethod.on_load."""
        return cls(form)

    @abstractmethod
    def rounded(self, weight: torch.Tensor) -> Weight:
        """Quantizes a matrix of one of `kinds`."""

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        dtype = self.form.dtype
        return RoundedLayer(dtype, self.rounded) if place.kind in self.kinds else PlainLayer(dtype)
