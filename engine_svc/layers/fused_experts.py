"""Checkpoints' tensors that hold all experts of a mixture, one expert at a time as others have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.layers.parameter import TensorSlice


@dataclass(frozen=True)
class FusedForm:
    """How such tensors lie: [experts, outputs, inputs], gate's outputs before up's, unless it is said here."""

    transposed: bool = False  # weights of 16 or 32 bits have their inputs first
    interleaved: bool = False  # outputs of gate and of up take turns

    def expert(self, source: TensorSlice, index: int, *, is_gate_up: bool, is_plain: bool) -> TensorSlice:
        """The tensor of one expert as [outputs, inputs], or whatever has outputs first.

        Args:
            is_gate_up: it holds gate and up, not down.
            is_plain: it is a weight of 16 or 32 bits.
        """
        found: TensorSlice = _One(source, index)
        # Of another number of dimensions, it is left as it is for the error to tell.
        dimensions = len(found.get_shape())
        if dimensions == 3:
            found = _Joined(found)
        if self.transposed and is_plain and dimensions == 2:
            found = Transposed(found)
        return _TakenApart(found) if self.interleaved and is_gate_up else found


class Flat:
    """All entries in a row, of a tensor that is small: whatever is wanted of it, it is read whole."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return (math.prod(self._source.get_shape()),)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._source[...].flatten()[index]


class _One:
    """One of those along the first dimension."""

    def __init__(self, source: TensorSlice, index: int) -> None:
        self._source, self._index = source, index

    def get_shape(self) -> Sequence[int]:
        return self._source.get_shape()[1:]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._source[(slice(self._index, self._index + 1), *_slices(index))][0]


class _Joined:
    """The last two dimensions as one: the bytes of blocks, which are read whole."""

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
    """A matrix, its dimensions exchanged."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return tuple(reversed(self._source.get_shape()))

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows, columns = _slices(index)
        return self._source[columns, rows].t()


class _TakenApart:
    """First the entries at even places of the first dimension, then those at odd ones."""

    def __init__(self, source: TensorSlice) -> None:
        self._source = source

    def get_shape(self) -> Sequence[int]:
        return self._source.get_shape()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Of either kind, a range at a time: files are read without steps."""
        wanted, *others = _slices(index)
        half = self.get_shape()[0] // 2
        odd = wanted.start >= half
        first, last = (place - half * odd for place in (wanted.start, wanted.stop))
        return self._source[(slice(2 * first, 2 * last), *others)][int(odd) :: 2]


def _slices(index: Any) -> tuple[slice, ...]:
    if index is Ellipsis:
        return ()
    return index if isinstance(index, tuple) else (index,)
