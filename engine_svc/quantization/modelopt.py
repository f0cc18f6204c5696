"""modelopt: checkpoints by NVIDIA's Model Optimizer, in E4M3 or NVFP4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.float4 import nvfp4
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.modules import Modules, modules
from engine_svc.quantization.scales import FLAT_CHANNEL, TENSOR
from engine_svc.quantization.settings import Settings, names, one_of
from engine_svc.quantization.unquantized import PlainLayer

_MIXED = "MIXED_PRECISION"
_LAYERS: Mapping[str, LayerMethod] = MappingProxyType({
    "FP8": Float8Layer(TENSOR),
    "FP8_PER_CHANNEL_PER_TOKEN": Float8Layer(FLAT_CHANNEL),
    "NVFP4": nvfp4("weight", "weight_scale_2", divides=False),
    "W4A16_NVFP4": nvfp4("weight", "weight_scale_2", divides=False),  # the same, as inputs keep 16 bits here anyway
})  # fmt: skip


@dataclass(frozen=True)
class ModelOpt(QuantizationMethod):
    """See QuantizationMethod."""

    plain: PlainLayer
    ignored: Modules
    quantized: LayerMethod | None  # for all modules not ignored; None means `named` decides
    named: Sequence[tuple[Modules, LayerMethod]]

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> ModelOpt:
        """See QuantizationMethod.of_checkpoint."""
        # hf_quant_config.json has all settings in one of its parts.
        said: Settings = settings.get("quantization") or settings
        algorithm = one_of(said, "quant_algo", (*_LAYERS, _MIXED), None)
        ignored = modules([*names(said, "ignore"), *names(said, "exclude_modules")])
        if algorithm != _MIXED:
            return cls(PlainLayer(form.dtype), ignored, _LAYERS[algorithm], ())
        by_algorithm: dict[str, list[str]] = {}
        for name, each in (said.get("quantized_layers") or {}).items():
            by_algorithm.setdefault(one_of(each, "quant_algo", _LAYERS, None), []).append(name)
        named = tuple((modules(listed), _LAYERS[algorithm]) for algorithm, listed in by_algorithm.items())
        return cls(PlainLayer(form.dtype), ignored, None, named)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        if place.kind in ("embedding", "router") or self.ignored.have(place):
            return self.plain
        if self.quantized is not None:
            return self.quantized
        return next((method for named, method in self.named if named.have(place)), self.plain)
