"""compressed-tensors, written by LLM Compressor: groups of modules, each with its own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.quantization.base import LayerMethod, ModelForm, Place, QuantizationMethod
from engine_svc.quantization.float4 import mxfp4, nvfp4
from engine_svc.quantization.float8 import Float8Layer
from engine_svc.quantization.integers import Int8Layer, IntegersLayer, PackedIntegersLayer
from engine_svc.quantization.modules import Modules, modules
from engine_svc.quantization.scales import CHANNEL, TENSOR, Scales
from engine_svc.quantization.settings import Settings, group_size, names, one_of
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_PACKED, _FLOATS = "pack-quantized", ("float-quantized", "naive-quantized")
_INTEGERS = ("int-quantized", "naive-quantized")
_FORMATS = (_PACKED, "int-quantized", *_FLOATS, "nvfp4-pack-quantized", "mxfp4-pack-quantized", "dense")
# Two names each: groups of inputs in the order in which they were quantized, or in their original order.
_ORDERED, _UNORDERED = ("group", "dynamic"), ("weight", "static")
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")


@dataclass(frozen=True)
class CompressedTensors(QuantizationMethod):
    """See QuantizationMethod."""

    groups: Sequence[tuple[Modules, LayerMethod]]
    ignored: Modules
    plain: PlainLayer

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> CompressedTensors:
        """See QuantizationMethod.of_checkpoint."""
        _refuse(settings)
        groups = settings.get("config_groups")
        if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
            raise StartupError(f"quantization_config: config_groups is {groups!r}; expected named groups.")
        found = []
        for name, group in groups.items():
            said = {"format": settings.get("format")} | {key: value for key, value in group.items() if value}
            try:
                found.append((modules(names(group, "targets")), _layer(said, form)))
            except StartupError as error:
                raise StartupError(f"{error} (config_groups.{name})") from error
        return cls(tuple(found), modules(names(settings, "ignore")), PlainLayer(form.dtype))

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer. A group that names the module precedes one that names its class."""
        if self.ignored.have(place) or self.ignored.have_class_of(place):
            return self.plain
        for is_meant in (Modules.have, Modules.have_class_of):
            for targets, method in self.groups:
                if is_meant(targets, place):
                    return method
        return self.plain


def _refuse(settings: Settings) -> None:
    """Rejects settings that change weights or inputs in other ways than quantization.

    Raises:
        StartupError: there is such a setting.
    """
    sparse, transforms = (_object(settings, name) for name in ("sparsity_config", "transform_config"))
    if sparse.get("format", "dense") != "dense":
        raise StartupError(
            f"quantization_config: sparsity_config has the format {sparse['format']!r}; sparse weights are not "
            "supported. Use a checkpoint that is quantized but not sparse."
        )
    if transforms.get("config_groups"):
        raise StartupError(
            "quantization_config: transform_config rotates inputs and weights, which is not supported. Use a "
            "checkpoint without transforms."
        )


def _object(settings: Settings, name: str) -> Settings:
    """
    Raises:
        StartupError: the setting is not a JSON object.
    """
    found = settings.get(name) or {}
    if not isinstance(found, Mapping):
        raise StartupError(f"quantization_config: {name} is {found!r}; expected a JSON object.")
    return found


def _layer(group: Settings, form: ModelForm) -> LayerMethod:
    """
    Raises:
        StartupError: a group's weights have a form that is not supported.
    """
    weights, kind = _object(group, "weights"), one_of(group, "format", _FORMATS, _PACKED)
    if kind == "dense" or not weights:
        return PlainLayer(form.dtype)
    if kind == "nvfp4-pack-quantized":
        return nvfp4("weight_packed", "weight_global_scale", divides=True)
    if kind == "mxfp4-pack-quantized":
        return mxfp4("weight_packed")
    if one_of(weights, "type", ("int", "float"), "int") == "float":
        one_of(group, "format", _FLOATS, None)
        one_of(weights, "num_bits", (8,), 8)
        return Float8Layer(_scales(weights))
    return _integers(group, weights, kind, form)


def _integers(group: Settings, weights: Settings, kind: str, form: ModelForm) -> LayerMethod:
    bits, symmetric = weights.get("num_bits", 8), one_of(weights, "symmetric", (True, False), True)
    scales = _scales(weights)
    if kind == _PACKED:
        bits = one_of(weights, "num_bits", (2, 4, 8), 8)
        if scales.outputs != 1:
            one_of(weights, "symmetric", (True,), True)
        order = one_of(weights, "actorder", (None, False, True, *_ORDERED, *_UNORDERED), None)
        ordered = (order is True or order in _ORDERED) and scales.inputs is not None
        return PackedIntegersLayer(bits, scales, symmetric, ordered, form.dtype)
    one_of(group, "format", _INTEGERS, None)
    bits = one_of(weights, "num_bits", (4, 8), 8)
    inputs = _object(group, "input_activations")
    if inputs.get("num_bits") == 8 and inputs.get("type") == "int" and bits == 8 and symmetric and not scales.inputs:
        return Int8Layer(scales)
    return IntegersLayer(bits, scales, symmetric)


def _scales(weights: Settings) -> Scales:
    size = group_size({"group_size": weights.get("group_size") or -1}, "group_size", -1)
    implied = "group" if size else "channel" if weights.get("group_size") == -1 else "tensor"
    strategy = one_of({"strategy": weights.get("strategy") or implied}, "strategy", _STRATEGIES, None)
    if strategy == "block":
        block = weights.get("block_structure")
        if not (isinstance(block, list) and len(block) == 2 and all(type(each) is int and each > 0 for each in block)):
            raise StartupError(
                f"quantization_config: block_structure is {block!r}; expected [outputs, inputs] of a block."
            )
        return Scales(*block)
    if strategy in ("group", "tensor_group"):
        if size is None:
            raise StartupError("quantization_config: group_size is missing for weights with a scale for each group.")
        return Scales(1, size)
    return TENSOR if strategy == "tensor" else CHANNEL
