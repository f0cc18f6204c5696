"""fp8: checkpoints with E4M3 weights, such as DeepSeek-V3's, and quantization of any checkpoint to E4M3 on load.

The experts of DeepSeek V4 have 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.ops.rounding import to_float8
from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.float4 import deepseek_fp4
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.on_load import RoundedLayer
from engine_svc.quantization.scales import TENSOR, Scales
from engine_svc.quantization.settings import names, one_of
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_SCHEMES = ("static", "dynamic")  # of inputs
_NAMES = ("weight_scale", "weight_scale_inv")


@dataclass(frozen=True)
class Fp8(QuantizationMethod):
    """See QuantizationMethod."""

    quantized: LayerMethod
    plain: PlainLayer
    experts: LayerMethod
    ignored: Sequence[str] = ()  # modules that are not quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Fp8:
        """See QuantizationMethod.of_checkpoint."""
        one_of(settings, "activation_scheme", _SCHEMES, "dynamic")
        one_of(settings, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
        ignored = (*names(settings, "ignored_layers"), *names(settings, "modules_to_not_convert"))
        quantized = Float8Layer(_scales(settings.get("weight_block_size")), _NAMES)
        has_fp4 = one_of(settings, "expert_dtype", ("fp8", "fp4"), "fp8") == "fp4"
        return cls(quantized, PlainLayer(form.dtype), deepseek_fp4() if has_fp4 else quantized, ignored)

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> Fp8:
        """See QuantizationMethod.on_load."""
        quantized = RoundedLayer(form.dtype, to_float8)
        return cls(quantized, PlainLayer(form.dtype), quantized)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        by_kind = {"linear": self.quantized, "experts": self.experts}
        return self.plain if place.is_any_of(self.ignored) else by_kind.get(place.kind, self.plain)


def _scales(block: Any) -> Scales:
    """One scale for each block [outputs, inputs]; without blocks, for each output or for the matrix."""
    if block is None:
        return TENSOR
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise StartupError(
            f"quantization_config: weight_block_size is {block!r}; expected [outputs, inputs] of a block."
        )
    return Scales(sizes[0], sizes[1])
