"""AutoRound (Cheng et al. 2023): weights packed as in GPTQ or AWQ, with optional settings for single modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.quantization.awq import AwqLayer
from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.gptq import BITS, GptqLayer
from engine_svc.quantization.routers import with_plain_routers
from engine_svc.quantization.settings import Settings, group_size, names, one_of
from engine_svc.quantization.source import Tensors
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

# Whether each packing is AWQ's (else GPTQ's). Other packings, such as IPEX's, are specific to kernels.
_PACKINGS = {"auto_round:auto_gptq": False, "auto_gptq": False, "auto_round:auto_awq": True, "auto_awq": True}
_PLAIN_BITS = 16


@dataclass(frozen=True)
class AutoRound(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    settings: Settings
    modules: Mapping[str, Settings]  # by module names or patterns
    blocks: Sequence[str]  # prefixes of the names of quantized modules; empty means all are quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> AutoRound:
        """See QuantizationMethod.of_checkpoint."""
        one_of(settings, "data_type", ("int",), "int")
        modules = settings.get("extra_config") or {}
        if not isinstance(modules, Mapping) or not all(isinstance(said, Mapping) for said in modules.values()):
            raise StartupError("quantization_config: extra_config must map module names to settings.")
        key = next((key for key in ("block_name_to_quantize", "to_quant_block_names") if settings.get(key)), None)
        blocks = settings[key] if key else ()
        blocks = blocks.split(",") if isinstance(blocks, str) else names({"blocks": blocks}, "blocks")
        found = cls(form, settings, modules, tuple(block.strip() for block in blocks))
        for said in ({}, *modules.values()):
            found.quantized(said)
        return found

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        said = self._said(place)
        if said is None:
            is_in_block = not self.blocks or any(name.startswith(tuple(self.blocks)) for name in place.names)
            is_quantized = place.kind in ("linear", "experts") and is_in_block
        else:
            is_quantized = place.kind in ("linear", "experts", "head")
        return self.quantized(said or {}) if is_quantized else PlainLayer(self.form.dtype)

    def _said(self, place: Place) -> Settings | None:
        for name, said in self.modules.items():
            if name in place.names:
                return said
        for pattern, said in self.modules.items():
            if not re.fullmatch(r"[\w.\-]+", pattern) and any(re.search(pattern, name) for name in place.names):
                return said
        return None

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """See QuantizationMethod.adapted."""
        return with_plain_routers(tensors(), lambda name: self.layer(Place("linear", (name,))), self.form.dtype)

    def quantized(self, said: Settings) -> LayerMethod:
        """The form of modules with settings `said`, which override the general ones.

        Raises:
            StartupError: the form is not supported.
        """
        settings = {**self.settings, **said}
        if type(bits := settings.get("bits")) is int and bits >= _PLAIN_BITS:
            return PlainLayer(self.form.dtype)
        is_awq = _PACKINGS[one_of(settings, "packing_format", _PACKINGS, "auto_round:auto_gptq")]
        bits = one_of(settings, "bits", (4,) if is_awq else BITS, 4)
        group = group_size(settings, "group_size", 128)
        return AwqLayer(group) if is_awq else GptqLayer(bits, group, less=1)
