"""The kinds of weights that products take: every checkpoint format becomes one of these while loading."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

_CHUNK = 1 << 22  # how many weights are in float32 at a time


@dataclass(frozen=True)
class Int8Weight:
    """8-bit weights. The inputs are quantized to 8 bits on the fly, symmetrically and row by row (W8A8)."""

    values: torch.Tensor  # int8 [..., outputs, inputs]
    scale: torch.Tensor  # float32 [..., outputs]: what the value 1 stands for

    @property
    def shape(self) -> torch.Size:
        """[..., outputs, inputs]"""
        return self.values.shape

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The weights of some outputs, int64 [count], of a single matrix: float32 [count, inputs]."""
        return self.values[indices].float() * self.scale[indices, None]

    def wide(self, dtype: torch.dtype) -> torch.Tensor:
        """The dequantized weights, [..., outputs, inputs]."""
        return (self.values.float() * self.scale[..., None]).to(dtype)


@dataclass(frozen=True)
class Grid:
    """The numbers that codes stand for: 16 or 256 of them."""

    name: str
    values: tuple[float, ...]

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if len(self.values) == 16 else 8


@functools.cache
def _table(grid: Grid, device: torch.device) -> torch.Tensor:
    """float32 [16 or 256]. Cached: coded embeddings are looked up in every step, and a CUDA graph may capture them."""
    return torch.tensor(grid.values, device=device)


@dataclass(frozen=True)
class CodedWeight:
    """Weights looked up in a grid: grid[code] * scale + offset. Inputs are not quantized (W4A16, W8A16).

    Each output has a scale and an offset for each group of inputs; the last group may be smaller.
    """

    grid: Grid
    codes: torch.Tensor  # uint8 [..., outputs, inputs], one code per byte
    scale: torch.Tensor  # float32 [..., outputs, groups]
    offset: torch.Tensor | None  # float32 [..., outputs, groups]
    group: int  # inputs in a group
    order: torch.Tensor | None = None  # int64 [..., inputs]: codes' column i is for input order[i]; None: for input i

    @property
    def shape(self) -> torch.Size:
        """[..., outputs, inputs]"""
        return self.codes.shape

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The weights of some outputs, int64 [count], of a single matrix: float32 [count, inputs]."""
        offset = None if self.offset is None else self.offset[indices]
        return replace(self, codes=self.codes[indices], scale=self.scale[indices], offset=offset).wide(torch.float32)

    def wide(self, dtype: torch.dtype) -> torch.Tensor:
        """The dequantized weights, [..., outputs, inputs], computed in float32 and rounded once."""
        lines = self.codes.flatten(0, -2)
        output = torch.empty(lines.shape, dtype=dtype, device=lines.device)
        scale = self.scale.flatten(0, -2)
        offset = None if self.offset is None else self.offset.flatten(0, -2)
        values = _table(self.grid, lines.device)
        inputs = lines.shape[1]
        for part in torch.arange(len(lines)).split(max(1, _CHUNK // inputs)):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            numbers = values[lines[rows].long()] * self._spread(scale[rows], inputs)
            if offset is not None:
                numbers += self._spread(offset[rows], inputs)
            output[rows] = numbers
        output = output.view(self.codes.shape)
        return output if self.order is None else self._in_order(output)

    def _spread(self, groups: torch.Tensor, inputs: int) -> torch.Tensor:
        """[rows, groups] → [rows, inputs]."""
        return groups.repeat_interleave(self.group, -1)[:, :inputs]

    def _in_order(self, weights: torch.Tensor) -> torch.Tensor:
        assert self.order is not None
        places = self.order[..., None, :].expand(weights.shape)
        return torch.empty_like(weights).scatter_(-1, places, weights)


Weight: TypeAlias = torch.Tensor | Int8Weight | CodedWeight


def tensors_of(weight: Weight) -> list[torch.Tensor]:
    """All tensors it is made of; of several matrices, with matrices along the first dimension."""
    if isinstance(weight, torch.Tensor):
        return [weight]
    if isinstance(weight, Int8Weight):
        return [weight.values, weight.scale]
    return [each for each in (weight.codes, weight.scale, weight.offset, weight.order) if each is not None]


def bytes_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of all tensors, one after the other: uint8 [bytes]."""
    return torch.cat([each.contiguous().view(-1).view(torch.uint8) for each in tensors])


def write_bytes(source: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the result of `bytes_of` back to tensors of the same shapes and dtypes."""
    for part, target in zip(source.split([each.nbytes for each in tensors]), tensors, strict=True):
        target.copy_(part.clone().view(target.dtype).view(target.shape))  # clone: aligned for its dtype


def layout_of(weight: Weight) -> str:
    """Describes the form of a weight, apart from dtypes and shapes."""
    return f"{weight.grid.name} by {weight.group}" if isinstance(weight, CodedWeight) else type(weight).__name__


def wide(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """The dequantized weight, [..., outputs, inputs]."""
    return weight.to(dtype) if isinstance(weight, torch.Tensor) else weight.wide(dtype)


def side_by_side(weights: Sequence[Weight]) -> list[Weight]:
    """Joins neighbors of the same kind and form into one matrix each; the order of outputs stays the same."""
    joined: list[list[Weight]] = []
    for weight in weights:
        if joined and _alike(joined[-1][0], weight):
            joined[-1].append(weight)
        else:
            joined.append([weight])
    return [each[0] if len(each) == 1 else _join(each) for each in joined]


def _alike(one: Weight, other: Weight) -> bool:
    if isinstance(one, CodedWeight) and isinstance(other, CodedWeight):
        forms = [(each.grid, each.group, each.offset is None, each.order is None) for each in (one, other)]
        same = one.order is None or (other.order is not None and torch.equal(one.order, other.order))
        return forms[0] == forms[1] and same
    return type(one) is type(other)


def _join(weights: Sequence[Weight]) -> Weight:
    """Joins weights that are `_alike`."""
    if coded := [each for each in weights if isinstance(each, CodedWeight)]:
        offsets = [each.offset for each in coded if each.offset is not None]
        return replace(
            coded[0], codes=torch.cat([each.codes for each in coded], -2),
            scale=torch.cat([each.scale for each in coded], -2), offset=torch.cat(offsets, -2) if offsets else None,
        )  # fmt: skip
    if int8 := [each for each in weights if isinstance(each, Int8Weight)]:
        return Int8Weight(torch.cat([each.values for each in int8], -2), torch.cat([each.scale for each in int8], -1))
    return torch.cat([each for each in weights if isinstance(each, torch.Tensor)], -2)
