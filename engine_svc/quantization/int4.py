"""int4: weights of 16 or 32 bits become 4 bits as they are loaded, and inputs stay."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import LayerMethod, ModelForm, Parameters, Place, QuantizationMethod
from engine_svc.ops.rounding import to_int4
from engine_svc.quantization.unquantized import PlainLayer

_GROUP = 128


@dataclass(frozen=True)
class Int4Layer(PlainLayer):
    """Plain in the checkpoint. Each rank's part is divided into groups by itself."""

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return to_int4(parameters["weight"], _GROUP)


@dataclass(frozen=True)
class Int4(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> Int4:
        """See QuantizationMethod.on_load."""
        return cls(form)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        chosen = Int4Layer if place.kind in ("linear", "experts") else PlainLayer
        return chosen(self.form.dtype)
