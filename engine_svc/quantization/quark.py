"""quark: checkpoints by AMD's Quark, whose weights have the same layouts as those of other methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.float4 import mxfp4
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.integers import Int8Layer, IntegersLayer
from engine_svc.quantization.modules import Modules, modules
from engine_svc.quantization.scales import FLAT_CHANNEL, TENSOR, Scales
from engine_svc.quantization.settings import Settings, names, one_of
from engine_svc.quantization.unquantized import PlainLayer

_SCHEMES: Mapping[str, Scales] = {"per_tensor": TENSOR, "per_channel": FLAT_CHANNEL}
_TYPES = ("fp8_e4m3", "int8", "fp4")


@dataclass(frozen=True)
class Quark(QuantizationMethod):
    """See QuantizationMethod."""

    plain: PlainLayer
    ignored: Modules
    named: Sequence[tuple[Modules, LayerMethod]]
    quantized: LayerMethod  # for all other modules

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Quark:
        """See QuantizationMethod.of_checkpoint."""
        plain = PlainLayer(form.dtype)
        by_class = settings.get("layer_type_quant_config") or {}
        by_name = settings.get("layer_quant_config") or {}
        named = [(modules([name]), _layer(said, plain)) for name, said in (*by_name.items(), *by_class.items())]
        common = _layer(settings.get("global_quant_config") or {}, plain)
        return cls(plain, modules(names(settings, "exclude")), tuple(named), common)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        if place.kind in ("embedding", "router") or self.ignored.have(place):
            return self.plain
        named = (method for modules, method in self.named if modules.have(place) or modules.have_class_of(place))
        return next(named, self.quantized)


def _layer(said: Settings, plain: PlainLayer) -> LayerMethod:
    """
    Raises:
        StartupError: weights have a form that is not supported.
    """
    weight = said.get("weight")
    if weight is None:
        return plain
    kind = one_of(weight, "dtype", _TYPES, None)
    if kind == "fp4":
        one_of(weight, "qscheme", ("per_group",), None)
        one_of(weight, "group_size", (32,), None)
        one_of(weight, "scale_format", ("e8m0",), None)
        return mxfp4("weight")
    scales = _SCHEMES[one_of(weight, "qscheme", _SCHEMES, None)]
    if kind == "fp8_e4m3":
        return Float8Layer(scales)
    one_of({"symmetric": weight.get("symmetric", True)}, "symmetric", (True,), True)
    inputs = said.get("input_tensors") or {}
    return Int8Layer(scales) if inputs.get("dtype") == "int8" else IntegersLayer(8, scales, symmetric=True)
