"""HQQ (Badri and Shaji 2023): integers of 1, 2, 3, 4 or 8 bits, in groups with fractional zero points.

A checkpoint has a matrix's groups as rows, packed so that the parts of a word are rows far from each other, and
describes the form of each matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine_svc.ops.weights import Weight
from engine_svc.quantization.base import (
    INPUTS,
    OUTPUTS,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip
from engine_svc.quantization.bits import whole_numbers
from engine_svc.quantization.settings import Settings, group_size, names, one_of
from engine_svc.quantization.source import HeldTensor, Tensors
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_CODES, _SCALE, _ZERO = "W_q", "scale", "zero"
# By number of bits: the type of words, and the bit positions of codes in them.
_WORDS = {
    8: (torch.uint8, (0,)), 4: (torch.uint8, (4, 0)), 3: (torch.int32, tuple(range(27, -1, -3))),
    2: (torch.uint8, (6, 4, 2, 0)), 1: (torch.uint8, tuple(range(7, -1, -1))),
}  # fmt: skip
# Settings that a checkpoint repeats for each matrix; the configuration has them for all.
_SAID = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise",
    "optimize", "round_zero",
)  # fmt: skip


@dataclass(frozen=True)
class HqqLayer(LayerMethod):
    """See LayerMethod. Codes have been unpacked to a byte each."""

    ignored: ClassVar[frozenset[str]] = frozenset(_SAID)

    bits: int
    group: int

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        groups = Axis("inputs", features=self.group)
        return (
            ParameterSpec(_CODES, torch.uint8, (OUTPUTS, INPUTS)),
            ParameterSpec(_SCALE, torch.float32, (OUTPUTS, groups)),
            ParameterSpec(_ZERO, torch.float32, (OUTPUTS, groups)),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        codes = parameters[_CODES] & (1 << self.bits) - 1  # random weights may be any bytes
        return whole_numbers(codes, parameters[_ZERO], parameters[_SCALE], self.bits, self.group)


@dataclass(frozen=True)
class Hqq(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    bits: int
    group: int
    ignored: Sequence[str]  # modules that are not quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Hqq:
        """See QuantizationMethod.of_checkpoint."""
        said = _said(settings)
        one_of(said, "axis", (1,), 1)
        for name in ("quant_scale", "quant_zero"):
            one_of(said, name, (False, None), False)
        group = group_size(said, "group_size", 64)
        if group is None:
            raise StartupError("quantization_config: group_size is -1; HQQ needs a number of inputs per group.")
        return cls(form, one_of(said, "nbits", _WORDS, 4), group, _skipped(settings))

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        is_quantized = place.kind in ("linear", "experts", "head") and not place.is_any_of(self.ignored)
        return HqqLayer(self.bits, self.group) if is_quantized else PlainLayer(self.form.dtype)

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """See QuantizationMethod.adapted."""
        shapes = {
            name.removesuffix(".shape"): source[...].tolist() for name, source in tensors() if name.endswith(".shape")
        }
        for name, source in tensors():
            module, _, kind = name.rpartition(".")
            if module not in shapes or kind not in (_CODES, _SCALE, _ZERO):
                yield name, source
                continue
            try:
                yield name, HeldTensor(self._shown(kind, source[...], shapes[module]))
            except (ValueError, RuntimeError) as error:
                raise StartupError(f"{name}: {error}") from error

    def _shown(self, kind: str, tensor: torch.Tensor, shape: object) -> torch.Tensor:
        if not isinstance(shape, list) or [type(each) for each in shape] != [int, int]:
            raise ValueError(f"its module's shape is {shape}; expected [outputs, inputs]")
        outputs, inputs = shape
        if inputs % self.group:
            raise ValueError(f"groups of {self.group} values do not fit rows of {inputs}")
        rows = outputs * inputs // self.group
        if kind == _CODES:
            tensor = _unpacked(tensor, self.bits)[:rows]
        if tensor.dim() == 0 or len(tensor) != rows or tensor.numel() != rows * (self.group if kind == _CODES else 1):
            raise ValueError(f"shape {list(tensor.shape)}, where {outputs} times {inputs} weights have {rows} groups")
        return tensor.reshape(outputs, -1)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, group], or a few rows more. The first part of the rows is at the first place in the words, and so on."""
    dtype, places = _WORDS[bits]
    words = words.contiguous().view(dtype) if words.dtype.is_floating_point else words
    if words.dtype != dtype:
        raise ValueError(f"type {words.dtype} in the checkpoint, expected {dtype}")
    return torch.cat([(words >> place & (1 << bits) - 1).to(torch.uint8) for place in places])


def _said(settings: Settings) -> Settings:
    """The settings of weights.

    Raises:
        StartupError: single modules have their own settings.
    """
    config = settings.get("quant_config", settings)
    said = config.get("weight_quant_params", config) if isinstance(config, Mapping) else None
    if not isinstance(said, Mapping) or "nbits" not in said:
        raise StartupError(
            "quantization_config: quant_config has no settings for all weights (nbits, group_size); settings for "
            "single modules are not supported."
        )
    return said


def _skipped(settings: Settings) -> Sequence[str]:
    return ("lm_head",) if settings.get("skip_modules") is None else names(settings, "skip_modules")
