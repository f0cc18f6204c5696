"""int4: weights of 16 or 32 bits become 4 bits as they are loaded, and inputs stay."""

from __future__ import annotations

from dataclasses import dataclass

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import LayerMethod, ModelForm, Parameters, ParameterSpec, Place, QuantizationMethod
from engine_svc.quantization.unquantized import PlainLayer

_GROUP = 128


@dataclass(frozen=True)
class Int4Layer(LayerMethod):
    """Plain in the checkpoint. Each rank's part is divided into groups by itself."""

    form: ModelForm

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return PlainLayer(self.form.dtype).parameters()

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return self.form.ops.quantize_groups(parameters["weight"], _GROUP)


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
        return Int4Layer(self.form) if place.kind in ("linear", "experts") else PlainLayer(self.form.dtype)
