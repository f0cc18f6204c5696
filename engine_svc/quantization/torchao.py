"""torchao's weights, as it writes them to safetensors: integers of 8 or 4 bits, or 8-bit floats.

Inputs are not quantized, even where torchao would quantize them dynamically. Layouts specific to a GPU kernel are not
supported. On load, weights are rounded as torchao does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.ops.grids import E4M3, INT4, INT8
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.quantization.base import (
    INPUTS,
    OUTPUTS,
    SINGLE,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip
from engine_svc.quantization.settings import Settings, group_size, names, one_of
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_QDATA, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_E4M3_MAXIMUM = 448.0


@dataclass(frozen=True)
class BytesLayer(LayerMethod):
    """See LayerMethod. Integers of up to 8 bits in a byte each: (number - zero) * scale."""

    group: int | None

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        groups = SINGLE if self.group is None else Axis("inputs", features=self.group)
        return (
            ParameterSpec(_QDATA, torch.int8, (OUTPUTS, INPUTS)),
            ParameterSpec(_SCALE, torch.float32, (OUTPUTS, groups), is_scalar=True),
            ParameterSpec(_ZERO, torch.int8, (OUTPUTS, groups), is_scalar=True, default=0),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        values, scale, zero = parameters[_QDATA], parameters[_SCALE], parameters[_ZERO]
        return _of_whole(values, scale, -zero.float() * scale if zero.any() else None, self.group)


@dataclass(frozen=True)
class FloatsLayer(LayerMethod):
    """See LayerMethod. E4M3 numbers times a scale for each output or for the matrix."""

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (
            ParameterSpec(_QDATA, torch.float8_e4m3fn, (OUTPUTS, INPUTS)),
            ParameterSpec(_SCALE, torch.float32, (OUTPUTS, SINGLE), is_scalar=True),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        values = parameters[_QDATA]
        return CodedWeight(E4M3, values.view(torch.uint8), parameters[_SCALE], None, values.shape[-1])


@dataclass(frozen=True)
class HalvesLayer(LayerMethod):
    """See LayerMethod. 4-bit integers, two per byte, the lower half first: number * scale + zero."""

    group: int

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        groups = Axis("inputs", features=self.group)
        return (
            ParameterSpec(_QDATA, torch.int8, (OUTPUTS, Axis("inputs", features=2))),
            ParameterSpec(_SCALE, torch.float32, (groups, OUTPUTS)),
            ParameterSpec(_ZERO, torch.float32, (groups, OUTPUTS)),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        octets = parameters[_QDATA].view(torch.uint8)
        codes = torch.stack((octets & 15, octets >> 4), -1).flatten(-2) ^ 8
        scale, zero = (parameters[name].mT.contiguous() for name in (_SCALE, _ZERO))
        return CodedWeight(INT4, codes, scale, zero, self.group)


@dataclass(frozen=True)
class OnLoadLayer(PlainLayer):
    """See LayerMethod. Quantizes 16-bit or 32-bit weights to one of these forms."""

    form: BytesLayer | FloatsLayer | HalvesLayer

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight.

        Raises:
            ValueError: the inputs are not a multiple of the group size.
        """
        weight = parameters["weight"].float()
        if isinstance(self.form, FloatsLayer):
            scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / _E4M3_MAXIMUM
            codes = (weight / scale).clamp(-_E4M3_MAXIMUM, _E4M3_MAXIMUM).to(torch.float8_e4m3fn).view(torch.uint8)
            return CodedWeight(E4M3, codes, scale, None, weight.shape[-1])
        group = self.form.group or weight.shape[-1]
        if weight.shape[-1] % group:
            raise ValueError(f"{weight.shape[-1]} inputs are not a multiple of the group size {group}")
        groups = weight.unflatten(-1, (-1, group))
        if isinstance(self.form, BytesLayer):
            scale = groups.abs().amax(-1).clamp(min=1e-12) / 127.5
            values = (groups * (1 / scale[..., None])).round().clamp(-128, 127).to(torch.int8).flatten(-2)
            return _of_whole(values, scale, None, self.form.group)
        least = groups.amin(-1)
        scale = (groups.amax(-1) - least).clamp(min=1e-6) / 15
        codes = ((groups - least[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.uint8).flatten(-2)
        return CodedWeight(INT4, codes, scale, least + 8 * scale, group)


def _of_whole(values: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, group: int | None) -> CodedWeight:
    return CodedWeight(INT8, values.view(torch.uint8) ^ 128, scale, offset, group or values.shape[-1])


@dataclass(frozen=True)
class TorchAo(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    quantized: BytesLayer | FloatsLayer | HalvesLayer
    ignored: Sequence[str]  # modules that are not quantized
    is_on_load: bool

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> TorchAo:
        """See QuantizationMethod.of_checkpoint."""
        return cls(form, _form(settings), names(settings, "modules_to_not_convert"), is_on_load=False)

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> TorchAo:
        """See QuantizationMethod.on_load. 8-bit integers by default."""
        found = _form(form.wanted) if form.wanted else BytesLayer(None)
        return cls(form, found, names(form.wanted, "modules_to_not_convert"), is_on_load=True)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        if place.kind not in ("linear", "experts") or place.is_any_of(self.ignored):
            return PlainLayer(self.form.dtype)
        return OnLoadLayer(self.form.dtype, self.quantized) if self.is_on_load else self.quantized


def _form(settings: Settings) -> BytesLayer | FloatsLayer | HalvesLayer:
    kind, data = _described(settings.get("quant_type"))
    one_of(settings, "include_input_output_embeddings", (False, None), False)
    if kind in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"):
        return BytesLayer(_group(data, data.get("group_size")))
    if kind in ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig"):
        one_of(_values(data), "weight_dtype", ("float8_e4m3fn",), "float8_e4m3fn")
        return FloatsLayer()
    if kind in ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"):
        one_of(_values(data), "intx_packing_format", ("UNPACKED_TO_INT8",), "UNPACKED_TO_INT8")
        return BytesLayer(_group({"granularity": data.get("granularity", data.get("weight_granularity"))}, None))
    if kind == "Int4WeightOnlyConfig":
        one_of(_values(data), "int4_packing_format", ("PLAIN", "plain"), "PLAIN")
        group = group_size(data, "group_size", 128)
        if group is None:
            raise StartupError(
                "quantization_config: group_size of Int4WeightOnlyConfig is -1, which torchao does not have."
            )
        return HalvesLayer(group)
    raise StartupError(
        f"quantization_config: torchao's {kind} is not supported; Int8WeightOnlyConfig, Int4WeightOnlyConfig, "
        "IntxWeightOnlyConfig and Float8WeightOnlyConfig are, as are those that also quantize inputs. Use such a "
        "checkpoint, or the 16-bit one with --quantization torchao."
    )


def _described(quant_type: Any) -> tuple[str, Settings]:
    """The name of a torchao configuration, and its settings."""
    found = quant_type.get("default", quant_type) if isinstance(quant_type, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("_data", {}), Mapping):
        raise StartupError(
            f"quantization_config: quant_type is {quant_type!r}; expected a torchao configuration, such as "
            '{"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}.'
        )
    return str(found.get("_type")), found.get("_data", {})


def _values(data: Settings) -> Settings:
    """Replaces dtypes and enum values, which torchao writes as {"_type": ..., "_data": name}, by their names."""
    return {
        name: said["_data"] if isinstance(said, Mapping) and "_data" in said else said for name, said in data.items()
    }


def _group(data: Settings, size: int | None) -> int | None:
    granularity = data.get("granularity")
    if size is None and isinstance(granularity, Mapping) and granularity.get("_type") == "PerGroup":
        size = granularity.get("_data", {}).get("group_size")
    return None if size is None else group_size({"group_size": size}, "group_size", -1)
