"""Dynamic W8A8: weights of 16 or 32 bits become int8 as they are loaded, and inputs as they come.

Symmetric, with a scale for each output of a weight and for each row of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import LayerMethod, ModelForm, Parameters, ParameterSpec, Place, QuantizationMethod
from engine_svc.quantization.unquantized import PlainLayer


@dataclass(frozen=True)
class Int8Layer(LayerMethod):
    """See LayerMethod."""

    form: ModelForm

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return PlainLayer(self.form.dtype).parameters()

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return self.form.ops.quantize_rows(parameters["weight"])


@dataclass(frozen=True)
class Int8(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> Int8:
        """See QuantizationMethod.on_load."""
        return cls(form)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        return Int8Layer(self.form) if place.kind in ("linear", "experts") else PlainLayer(self.form.dtype)
