"""Views of checkpoint tensors that hold all experts: one expert at a time, in the form of separate tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.layers.parameter import TensorSlice


@dataclass(frozen=True)
class FusedForm:
    """The layout of fused tensors: [experts, outputs, inputs] with gate's outputs before up's, unless set otherwise."""

    transposed: bool = False  # 16-bit and 32-bit weights have their inputs first
    interleaved: bool = False  # outputs of gate and up alternate
    stacked: bool = False  # experts are below each other in a matrix: outputs of gate or up, but inputs of down

    def whole(self, source: TensorSlice, count: int) -> TensorSlice:
        """The tensor with a dimension of its own for experts, its first one; unchanged if it does not have `count`."""
        shape = source.get_shape()
        return _Unstacked(source, count) if self.stacked and len(shape) == 2 and shape[0] % count == 0 else source

    def expert(
        self, source: TensorSlice, index: int, *, is_gate_up: bool, is_down: bool, is_plain: bool
    ) -> TensorSlice:
        """The tensor of one expert, with outputs as its first dimension.

        Args:
            is_gate_up: the tensor holds gate and up together.
            is_down: the tensor holds down.
            is_plain: the tensor is a 16-bit or 32-bit weight.
        """
        found: TensorSlice = _One(source, index)
        # With any other number of dimensions it is left unchanged, so that the error tells its shape.
        dimensions = len(found.get_shape())
        if dimensions == 3:
            found = _Joined(found)
        if (self.transposed or (self.stacked and is_down)) and is_plain and dimensions == 2:
            found = Transposed(found)
        return _TakenApart(found) if self.interleaved and is_gate_up else found


class Flat:
    """A small tensor flattened to one dimension. Any access reads all of it."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return (math.prod(self._source.get_shape()),)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._source[...].flatten()[index]


class _Unstacked:
    """A matrix with a dimension more, of experts that are below each other. One expert is read at a time."""

    def __init__(self, source: TensorSlice, count: int) -> None:
        self._source, self._count = source, count

    def get_shape(self) -> Sequence[int]:
        rows, columns = self._source.get_shape()
        return (self._count, rows // self._count, columns)

    def __getitem__(self, index: Any) -> torch.Tensor:
        expert, *others = _slices(index)
        size = self.get_shape()[1]
        first, last, _ = (others[0] if others else slice(None)).indices(size)
        rows = slice(expert.start * size + first, expert.start * size + last)
        return self._source[(rows, *others[1:])][None]


class _One:
    """One entry along the first dimension."""

    def __init__(self, source: TensorSlice, index: int) -> None:
        self._source, self._index = source, index

    def get_shape(self) -> Sequence[int]:
        return self._source.get_shape()[1:]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._source[(slice(self._index, self._index + 1), *_slices(index))][0]


class _Joined:
    """The last two dimensions joined to one: these are blocks of bytes, and only whole blocks are read."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        rows, blocks, size = self._source.get_shape()
        return (rows, blocks * size)

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows, columns = _slices(index)
        size = self._source.get_shape()[-1]
        return self._source[rows, columns.start // size : -(-columns.stop // size), :].flatten(-2)


class Transposed:
    """A transposed matrix."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return tuple(reversed(self._source.get_shape()))

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows, columns = _slices(index)
        return self._source[columns, rows].t()


class _TakenApart:
    """De-interleaves the first dimension: first the entries with even index, then those with odd index."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return self._source.get_shape()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Takes a range within one half only; the files are read without steps."""
        wanted, *others = _slices(index)
        half = self.get_shape()[0] // 2
        odd = wanted.start >= half
        first, last = (place - half * odd for place in (wanted.start, wanted.stop))
        return self._source[(slice(2 * first, 2 * last), *others)][int(odd) :: 2]


def _slices(index: Any) -> tuple[slice, ...]:
    if index is Ellipsis:
        return ()
    return index if isinstance(index, tuple) else (index,)
