"""experts_int8: the experts' weights, most of a large mixture, become 8 bits as they are loaded; inputs stay."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.ops.rounding import to_int8
from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import LayerMethod, ModelForm, Parameters, Place, QuantizationMethod
from engine_svc.quantization.unquantized import PlainLayer


@dataclass(frozen=True)
class Int8ExpertsLayer(PlainLayer):
    """Plain in the checkpoint."""

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return to_int8(parameters["weight"])


@dataclass(frozen=True)
class ExpertsInt8(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> ExpertsInt8:
        """See QuantizationMethod.on_load."""
        return cls(form)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        return (Int8ExpertsLayer if place.kind == "experts" else PlainLayer)(self.form.dtype)
