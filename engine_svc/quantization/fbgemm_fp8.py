"""fbgemm_fp8: E4M3 weights with a scale for each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.scales import CHANNEL
from engine_svc.quantization.settings import names
from engine_svc.quantization.unquantized import PlainLayer


@dataclass(frozen=True)
class FbgemmFp8(QuantizationMethod):
    """See QuantizationMethod."""

    plain: PlainLayer
    ignored: Sequence[str]  # modules that are not quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> FbgemmFp8:
        """See QuantizationMethod.of_checkpoint."""
        return cls(PlainLayer(form.dtype), names(settings, "modules_to_not_convert"))

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        is_quantized = place.kind in ("linear", "experts") and not place.is_any_of(self.ignored)
        return Float8Layer(CHANNEL) if is_quantized else self.plain
