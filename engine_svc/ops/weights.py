"""The kinds of weights that products are made of. Whatever form a checkpoint has, it becomes one of these as it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

_CHUNK = 1 << 22  # weights that are in float32 at once


class Int8Weight(NamedTuple):
    """Weights of eight bits whose inputs become eight bits as they come, symmetrically and row by row (W8A8)."""

    values: torch.Tensor  # int8 [..., outputs, inputs]
    scale: torch.Tensor  # float32 [..., outputs], what 1 stands for


@dataclass(frozen=True)
class Grid:
    """The numbers that codes stand for; there are 16 of them or 256."""

    name: str
    values: tuple[float, ...]

    @property
    def bits(self) -> int:
        """Of a code."""
        return 4 if len(self.values) == 16 else 8


@dataclass(frozen=True)
class CodedWeight:
    """Weights that are looked up in a grid: grid[code] * scale + offset. Inputs stay as they are (W4A16, W8A16).

    Each output's scale and offset hold for a group of inputs, of which the last may have fewer.
    """

    grid: Grid
    codes: torch.Tensor  # uint8 [..., outputs, inputs], a code in each
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
        """What they stand for, [..., outputs, inputs], computed in float32 and rounded once."""
        lines = self.codes.flatten(0, -2)
        output = torch.empty(lines.shape, dtype=dtype, device=lines.device)
        scale = self.scale.flatten(0, -2)
        offset = None if self.offset is None else self.offset.flatten(0, -2)
        values = torch.tensor(self.grid.values, device=lines.device)
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


Weight = torch.Tensor | Int8Weight | CodedWeight


def beside(weights: Sequence[Weight]) -> Weight | None:
    """The outputs of several matrices as those of one; None where they are not of one kind, or differ in their form."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if any(type(weight) is not type(first) for weight in weights):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat([weight for weight in weights if isinstance(weight, torch.Tensor)], -2)
    if isinstance(first, Int8Weight):
        alike = [weight for weight in weights if isinstance(weight, Int8Weight)]
        return Int8Weight(torch.cat([each.values for each in alike], -2), torch.cat([each.scale for each in alike], -1))
    return _coded_beside(first, [weight for weight in weights if isinstance(weight, CodedWeight)])


def _coded_beside(first: CodedWeight, weights: Sequence[CodedWeight]) -> CodedWeight | None:
    forms = {(each.grid, each.group, each.offset is None) for each in weights}
    if len(forms) > 1 or not all(_same_order(first.order, each.order) for each in weights):
        return None
    offsets = [each.offset for each in weights if each.offset is not None]
    return replace(
        first, codes=torch.cat([each.codes for each in weights], -2),
        scale=torch.cat([each.scale for each in weights], -2), offset=torch.cat(offsets, -2) if offsets else None,
    )  # fmt: skip


def _same_order(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
