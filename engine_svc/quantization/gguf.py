"""GGUF: quantized blocks as they are in the file; each tensor has its own block type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import (
    OUTPUTS,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip
from engine_svc.quantization.gguf_blocks import FORMS, block_size
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_CHUNK_BYTES = 1 << 22  # bytes of blocks that are unpacked at a time


@dataclass(frozen=True)
class BlockLayer(LayerMethod):
    """See LayerMethod."""

    type: str

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        values, size = block_size(self.type)
        return (ParameterSpec("weight", torch.uint8, (OUTPUTS, Axis("inputs", features=values, entries=size))),)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        form, packed = FORMS[self.type], parameters["weight"]
        _, size = block_size(self.type)
        rows = packed.flatten(0, -2)
        some = max(1, _CHUNK_BYTES // max(1, rows.shape[1]))
        parts = [form.unpack(chunk.unflatten(-1, (-1, size))) for chunk in rows.split(some)]
        codes, scale, offset = (_whole(each, packed.shape[:-1]) for each in zip(*parts, strict=True))
        assert codes is not None
        assert scale is not None
        return CodedWeight(form.grid, codes, scale, offset, form.group)


def _whole(parts: Sequence[torch.Tensor | None], shape: Sequence[int]) -> torch.Tensor | None:
    """Joins parts [some rows, blocks, values of a block] to [*shape, values]; None if the type has no such values."""
    found = [part.flatten(1) for part in parts if part is not None]
    return torch.cat(found).view(*shape, -1) if found else None


@dataclass(frozen=True)
class Gguf(QuantizationMethod):
    """See QuantizationMethod."""

    types: Mapping[str, str]  # block types of quantized modules, by their names in Hugging Face's layout
    dtype: torch.dtype

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Gguf:
        """See QuantizationMethod.of_checkpoint."""
        types = settings.get("types")
        if not isinstance(types, Mapping):
            raise StartupError("quantization_config says gguf, but the model is not a .gguf file. Specify the file.")
        return cls(types, form.dtype)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        found = next((self.types[name] for name in place.names if name in self.types), None)
        return PlainLayer(self.dtype) if found is None else BlockLayer(found)
