"""4-bit and 8-bit weights packed for the C++ kernels without dequantizing them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from engine_svc.memory import zeros_when_touched
from engine_svc.native.library import CODES, KINDS, TYPES, Kernels, PackedForm
from engine_svc.ops.weights import CodedWeight

_CHUNK = 128  # inputs, as in coded.h
_SPANS = (128, 64, 32, 16)  # numbers of inputs that can share a scale
_LOADED_AS = {"e4m3": 256.0}  # factor on the scale where the kernels load a grid's numbers as smaller ones
_COMPUTED = ("int8", "e4m3", "e5m2")  # 8-bit grids that kernels compute instead of looking up
_PLAIN_SCALES = (2.0**-100, 2.0**100)


@dataclass(frozen=True)
class PackedCoded:
    """See PackedWeight."""

    weights: torch.Tensor  # uint8 [count, bytes]: see coded.h
    dtype: torch.dtype  # of the products' inputs
    codes: int
    span: int
    scale_type: int
    offset_type: int  # -1: none
    grid: torch.Tensor  # float32 [16 or 256]
    order: torch.Tensor | None  # int64 [count, inputs]

    def is_for(self, dtype: torch.dtype) -> bool:
        """See PackedWeight.is_for."""
        return dtype == self.dtype

    def form(self) -> PackedForm:
        """See PackedWeight.form."""
        order = None if self.order is None else self.order.data_ptr()
        return PackedForm(
            KINDS["coded"], self.weights.data_ptr(), None, None, self.codes, self.span, self.scale_type,
            self.offset_type, self.grid.data_ptr(), order,
        )  # fmt: skip

    def held(self) -> list[torch.Tensor]:
        """See PackedWeight.held."""
        return [self.weights] if self.order is None else [self.weights, self.order]

    @property
    def layout(self) -> str:
        """See PackedWeight.layout."""
        return f"codes {self.codes} by {self.span}, scales {self.scale_type}, offsets {self.offset_type}"


def packable(weight: CodedWeight) -> bool:
    """Whether the kernels take the weight's codes; if not, it must be dequantized before it is packed.

    Any 4-bit grid will do, and the 8-bit grids that kernels compute instead of looking up. The group size must be a
    multiple of 16 inputs or cover all of them.
    """
    known = weight.grid.bits == 4 or weight.grid.name in _COMPUTED
    return known and (weight.group % _SPANS[-1] == 0 or weight.group >= weight.shape[-1])


def pack_coded(kernels: Kernels, weight: CodedWeight, dtype: torch.dtype) -> PackedCoded:
    """Packs a `packable` weight [outputs, inputs] or [count, outputs, inputs].

    Args:
        dtype: type of the products' inputs.
    """
    codes = weight.codes.unflatten(0, (-1, weight.shape[-2])) if weight.codes.dim() == 2 else weight.codes
    count, _, inputs = codes.shape
    span = next(each for each in _SPANS if weight.group % each == 0 or weight.group >= inputs)
    scale, offset = (_by_span(each, weight, span) for each in (weight.scale, weight.offset))
    assert scale is not None
    scale = _narrow(scale * _LOADED_AS.get(weight.grid.name, 1.0))
    offset = None if offset is None else _narrow(offset)
    packed = PackedCoded(
        torch.empty(0), dtype, CODES[_kind(weight, span)], span, TYPES[scale.dtype],
        -1 if offset is None else TYPES[offset.dtype], torch.tensor(weight.grid.values),
        None if weight.order is None else weight.order.reshape(count, inputs).contiguous(),
    )  # fmt: skip
    return _fill(kernels, packed, codes, scale, offset)


def _kind(weight: CodedWeight, span: int) -> str:
    """The name of the codes' kind, a key of CODES."""
    if weight.grid.bits == 4:
        return "nibbles"
    if weight.grid.name == "e4m3" and weight.offset is None and span >= 64:
        sizes = weight.scale.abs()
        if bool(((sizes >= _PLAIN_SCALES[0]) & (sizes <= _PLAIN_SCALES[1])).all()):
            return "e4m3 by tables"
    return weight.grid.name


def _fill(
    kernels: Kernels,
    packed: PackedCoded,
    codes: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
) -> PackedCoded:
    """Fills in the weights, from codes [count, outputs, inputs] and scales and offsets [count, outputs, spans]."""
    count, outputs, inputs = codes.shape
    form = packed.form()
    size = kernels.packed_coded_bytes(ctypes.addressof(form), outputs, inputs)
    weights = zeros_when_touched((count, size), torch.uint8)
    for index, target in enumerate(weights):
        sources = [None if each is None else each[index].contiguous() for each in (codes, scale, offset)]
        first, *others = (None if each is None else each.data_ptr() for each in sources)
        kernels.pack_coded(
            TYPES[packed.dtype], ctypes.addressof(form), first, outputs, inputs, *others, target.data_ptr()
        )
    return replace(packed, weights=weights)


def _by_span(groups: torch.Tensor | None, weight: CodedWeight, span: int) -> torch.Tensor | None:
    """[..., outputs, groups] → [count, outputs, spans], padded with zeros to whole chunks."""
    if groups is None:
        return None
    *_, outputs, inputs = weight.shape
    spans = -(-inputs // _CHUNK) * _CHUNK // span
    repeats = spans if weight.group >= inputs else weight.group // span
    wide = groups.float().reshape(-1, outputs, groups.shape[-1]).repeat_interleave(repeats, -1)
    return F.pad(wide, (0, max(0, spans - wide.shape[-1])))[..., :spans].contiguous()


def _narrow(values: torch.Tensor) -> torch.Tensor:
    """Converts to a 16-bit type if that represents every value exactly."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = values.to(dtype)
        if torch.equal(narrow.float(), values):
            return narrow
    return values
