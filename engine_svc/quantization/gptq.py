"""GPTQ (Frantar et al. 2022) as AutoGPTQ and GPTQModel write it: integers of 2, 3, 4 or 8 bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine_svc.ops.weights import Weight
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
from engine_svc.quantization.bits import in_groups, packed_along, unpacked, whole_numbers
from engine_svc.quantization.routers import with_plain_routers
from engine_svc.quantization.settings import Settings, group_size, names, one_of
from engine_svc.quantization.source import Tensors
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

BITS = (2, 3, 4, 8)
# By how much stored zero points are less than the actual ones.
_FORMATS = {"gptq": 1, "gptq_v2": 0}


@dataclass(frozen=True)
class GptqLayer(LayerMethod):
    """See LayerMethod. Words hold codes of neighboring inputs, and zero points of neighboring outputs."""

    ignored: ClassVar[frozenset[str]] = frozenset({"g_idx"})

    bits: int
    group: int | None
    less: int  # by how much stored zero points are less than the actual ones

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        groups = self.groups()
        return (
            ParameterSpec("qweight", torch.int32, (packed_along(INPUTS, self.bits), OUTPUTS)),
            ParameterSpec("qzeros", torch.int32, (groups, packed_along(OUTPUTS, self.bits))),
            ParameterSpec("scales", torch.float32, (groups, OUTPUTS)),
        )

    def groups(self) -> Axis:
        """The axis of groups of inputs."""
        return SINGLE if self.group is None else Axis("inputs", features=self.group)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return whole_numbers(*self.numbers(parameters), self.bits, self.group)

    def numbers(self, parameters: Parameters) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes (uint8 [..., outputs, inputs]), zeros (int32) and scales, both [..., outputs, groups]."""
        codes = unpacked(parameters["qweight"].mT, self.bits)
        zeros = unpacked(parameters["qzeros"], self.bits).mT.int() + self.less & (1 << self.bits) - 1
        return codes, zeros, parameters["scales"].mT


@dataclass(frozen=True)
class OrderedGptqLayer(GptqLayer):
    """GPTQ with act-order: inputs belong to groups in any order, so each rank needs all groups of a matrix."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    dtype: torch.dtype

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (*super().parameters(), ParameterSpec("g_idx", torch.int32, (INPUTS,), default=-1))

    def groups(self) -> Axis:
        """See GptqLayer.groups."""
        assert self.group is not None
        return Axis("inputs", features=self.group, whole=True)

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight.

        Raises:
            ValueError: an input's group does not exist.
        """
        assert self.group is not None
        return in_groups(*self.numbers(parameters), self.bits, self.group, parameters["g_idx"], self.dtype)


@dataclass(frozen=True)
class Rule:
    """A rule of GPTQModel's `dynamic`, for modules whose names begin with a pattern."""

    pattern: re.Pattern[str]
    settings: Settings | None  # override the general ones; None means such modules are not quantized

    def is_about(self, place: Place) -> bool:
        """Whether the rule applies to a matrix."""
        return any(self.pattern.match(name) for name in place.names)


@dataclass(frozen=True)
class Gptq(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    settings: Settings
    rules: Sequence[Rule]
    ignored: Sequence[str]  # modules that are not quantized
    chosen: Sequence[str] | None  # if given, only these modules are quantized

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> Gptq:
        """See QuantizationMethod.of_checkpoint."""
        dynamic = settings.get("dynamic") or {}
        if not isinstance(dynamic, Mapping):
            raise StartupError(f"quantization_config: dynamic is {dynamic!r}; it must map patterns to settings.")
        rules = tuple(_rule(pattern, said) for pattern, said in dynamic.items())
        found = cls(form, settings, rules, names(settings, "modules_to_not_convert"), _chosen(settings))
        for each in (settings, *({**settings, **rule.settings} for rule in rules if rule.settings is not None)):
            found.quantized(each)
        return found

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        plain = PlainLayer(self.form.dtype)
        if place.kind not in ("linear", "experts") and not (place.kind == "head" and self.settings.get("lm_head")):
            return plain
        for rule in self.rules:
            if rule.is_about(place):
                return plain if rule.settings is None else self.quantized({**self.settings, **rule.settings})
        is_left_out = self.chosen is not None and place.kind != "head" and not place.is_any_of(self.chosen)
        return plain if is_left_out or place.is_any_of(self.ignored) else self.quantized(self.settings)

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """See QuantizationMethod.adapted."""
        return with_plain_routers(tensors(), lambda name: self.layer(Place("linear", (name,))), self.form.dtype)

    def quantized(self, settings: Settings) -> GptqLayer:
        """The form of layers with these settings.

        Raises:
            StartupError: the form is not supported.
        """
        bits = one_of(settings, "bits", BITS, 4)
        group = group_size(settings, "group_size", 128)
        one_of(settings, "is_marlin_format", (False, None), False)
        less = _FORMATS[one_of(settings, "checkpoint_format", _FORMATS, "gptq")]
        if group is None or not one_of(settings, "desc_act", (True, False), False):
            return GptqLayer(bits, group, less)
        return OrderedGptqLayer(bits, group, less, self.form.dtype)


def _chosen(settings: Settings) -> Sequence[str] | None:
    key = "modules_in_block_to_quantize"
    steps = settings.get(key)
    if steps is None:
        return None
    if not isinstance(steps, Sequence):
        raise StartupError(f"quantization_config: {key} is {steps!r}; expected lists of names.")
    return tuple(name for step in steps for name in names({key: step}, key))


def _rule(pattern: str, settings: Any) -> Rule:
    try:
        compiled = re.compile(pattern.removeprefix("-:").removeprefix("+:"))
    except re.error as error:
        raise StartupError(
            f"quantization_config: dynamic has {pattern!r}, which is not a valid pattern: {error}."
        ) from error
    if pattern.startswith("-:"):
        return Rule(compiled, None)
    if not isinstance(settings, Mapping):
        raise StartupError(
            f"quantization_config: dynamic has {settings!r} for {pattern!r}; expected an object of settings."
        )
    return Rule(compiled, settings)
