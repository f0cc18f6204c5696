"""bitsandbytes: 4-bit codes looked up in NF4 or FP4 (Dettmers et al. 2023), or 8 bits by output (LLM.int8()).

With 4 bits, a checkpoint has the codes of a matrix one after the other, the first of two in a byte's upper half, and
the greatest value (absmax) of each block, either as numbers or as 8-bit codes with blocks of their own. Inputs keep 16
bits. With 8 bits they do too: here, all inputs are handled as LLM.int8() handles a few outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from engine_svc.ops.grids import FP4, INT8, NF4
from engine_svc.ops.weights import CodedWeight, Grid, Weight
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
from engine_svc.quantization.bitsandbytes_state import RUN, MatrixState, beside
from engine_svc.quantization.settings import Settings, names, one_of
from engine_svc.quantization.source import HeldTensor, Tensors, TensorSlice
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError

_GRIDS = {"nf4": NF4, "fp4": FP4}
_BLOCK = 64


@dataclass(frozen=True)
class CodesLayer(LayerMethod):
    """See LayerMethod. 4-bit codes."""

    grid: Grid

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (
            ParameterSpec("weight", torch.uint8, (OUTPUTS, Axis("inputs", features=2))),
            ParameterSpec("absmax", torch.float32, (OUTPUTS, Axis("inputs", features=RUN))),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        codes, scale, group = _halves(parameters["weight"]), parameters["absmax"], RUN
        while group < _BLOCK and scale.shape[-1] % 2 == 0 and torch.equal(scale[..., ::2], scale[..., 1::2]):
            scale, group = scale[..., ::2].contiguous(), 2 * group
        return CodedWeight(self.grid, codes, scale, None, group)


@dataclass(frozen=True)
class BytesLayer(LayerMethod):
    """See LayerMethod. 8-bit integers, of which 127 stands for an output's greatest value."""

    ignored: ClassVar[frozenset[str]] = frozenset({"weight_format"})

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """See LayerMethod.parameters."""
        return (
            ParameterSpec("weight", torch.int8, (OUTPUTS, INPUTS)),
            ParameterSpec("SCB", torch.float32, (OUTPUTS,)),
        )

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        return _of_bytes(parameters["weight"], parameters["SCB"])


@dataclass(frozen=True)
class OnLoadLayer(PlainLayer):
    """See LayerMethod. Quantizes 16-bit or 32-bit weights to 4-bit codes or 8-bit integers."""

    grid: Grid | None

    def weight(self, parameters: Parameters) -> Weight:
        """See LayerMethod.weight."""
        weight = parameters["weight"].float()
        if self.grid is not None:
            return _nearest(weight, self.grid)
        greatest = weight.abs().amax(-1)
        inverse = torch.where(greatest > 0, 127 / greatest, 0)
        return _of_bytes((weight * inverse[..., None]).round_().to(torch.int8), greatest)


def _halves(octets: torch.Tensor) -> torch.Tensor:
    """Both codes of each byte, the upper half first."""
    return torch.stack((octets >> 4, octets & 15), -1).flatten(-2)


def _of_bytes(values: torch.Tensor, greatest: torch.Tensor) -> CodedWeight:
    return CodedWeight(INT8, values.view(torch.uint8) ^ 128, greatest[..., None] / 127, None, values.shape[-1])


def _nearest(weight: torch.Tensor, grid: Grid) -> CodedWeight:
    """Rounds to the nearest grid values, in blocks within each row."""
    inputs = weight.shape[-1]
    missing = -inputs % _BLOCK
    blocks = torch.nn.functional.pad(weight, (0, missing)).unflatten(-1, (-1, _BLOCK))
    scale = blocks.abs().amax(-1)
    inverse = torch.where(scale > 0, 1 / scale, 0)
    values, places = torch.tensor(grid.values, device=weight.device).sort()
    between = (values[1:] + values[:-1]) / 2
    codes = torch.bucketize(blocks * inverse[..., None], between)
    codes = places.to(torch.uint8)[codes].flatten(-2)[..., :inputs].contiguous()
    return CodedWeight(grid, codes, scale, None, _BLOCK)


@dataclass(frozen=True)
class BitsAndBytes(QuantizationMethod):
    """See QuantizationMethod."""

    form: ModelForm
    grid: Grid | None  # None means 8-bit integers
    ignored: Sequence[str]  # modules that are not quantized
    has_head: bool  # the output layer is quantized too
    is_on_load: bool

    @classmethod
    def of_checkpoint(cls, settings: Mapping[str, Any], form: ModelForm) -> BitsAndBytes:
        """See QuantizationMethod.of_checkpoint."""
        return cls._of(settings, form, is_on_load=False)

    @classmethod
    def on_load(cls, name: str, form: ModelForm) -> BitsAndBytes:
        """See QuantizationMethod.on_load. NF4 by default."""
        return cls._of({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", **form.wanted}, form, is_on_load=True)

    @classmethod
    def _of(cls, settings: Settings, form: ModelForm, *, is_on_load: bool) -> BitsAndBytes:
        keys = ("load_in_8bit", "_load_in_8bit")
        is_bytes = any(one_of(settings, key, (True, False, None), False) for key in keys)
        grid = None if is_bytes else _GRIDS[one_of(settings, "bnb_4bit_quant_type", _GRIDS, "fp4")]
        skipped = "llm_int8_skip_modules"
        has_head = settings.get(skipped) is not None and not is_on_load
        return cls(form, grid, names(settings, skipped), has_head, is_on_load)

    def layer(self, place: Place) -> LayerMethod:
        """See QuantizationMethod.layer."""
        is_quantized = place.kind in ("linear", "experts") or (place.kind == "head" and self.has_head)
        if not is_quantized or place.is_any_of(self.ignored):
            return PlainLayer(self.form.dtype)
        if self.is_on_load:
            return OnLoadLayer(self.form.dtype, self.grid)
        return BytesLayer() if self.grid is None else CodesLayer(self.grid)

    def adapted_name(self, name: str) -> str:
        """See QuantizationMethod.adapted_name."""
        return name.replace(".weight.absmax", ".absmax")

    def adapted(self, tensors: Callable[[], Tensors]) -> Tensors:
        """See QuantizationMethod.adapted."""
        if self.is_on_load:
            yield from tensors()
            return
        states, router_scales = beside(tensors())
        for name, source in tensors():
            module, _, kind = name.rpartition(".")
            if module in router_scales and kind == "weight" and self.grid is None:
                yield name, HeldTensor(_of_bytes(source[...], router_scales[module]).wide(self.form.dtype))
            elif module in states and kind == "weight":
                yield name, self._codes(name, source, states[module], router_scales.get(module))
            elif kind == "absmax" and (state := states.get(module.removesuffix(".weight"))):
                if module.removesuffix(".weight") not in router_scales:
                    yield self.adapted_name(name), HeldTensor(_checked(name, state.greatest, source[...]))
            elif module not in router_scales and ".weight." not in name:
                yield name, source

    def _codes(
        self, name: str, source: TensorSlice, state: MatrixState, router_scale: torch.Tensor | None
    ) -> TensorSlice:
        if self.grid is None or self.grid is not _GRIDS.get(state.quant_type):
            raise StartupError(f"{name} has codes of {state.quant_type}, but the configuration says otherwise.")
        codes = _checked(name, state.codes, source[...])
        if router_scale is None:
            return HeldTensor(codes)
        greatest = _checked(name, state.greatest, router_scale)
        return HeldTensor(CodedWeight(self.grid, _halves(codes), greatest, None, RUN).wide(self.form.dtype))


def _checked(name: str, change: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    try:
        return change(tensor)
    except (ValueError, RuntimeError, IndexError) as error:
        raise StartupError(f"{name}: {error}") from error
