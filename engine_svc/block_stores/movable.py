"""What block stores move: blocks of KV caches, and saved states of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from engine_svc.attention.stored import bits
from engine_svc.transfer import to_device, to_host


class Form(NamedTuple):
    """How an item's part in one tensor is stored."""

    shape: tuple[int, ...]  # 1 in the dimension of the items
    dtype: torch.dtype  # see `bits`
    num_bytes: int


class Items:
    """Items of one size, numbered from 0. Each has a part in every one of several tensors, whatever their layout."""

    def __init__(self, tensors: Sequence[torch.Tensor], dimension: int) -> None:
        """
        Args:
            dimension: of each tensor, the one that counts items.
        """
        self.tensors = tensors
        self.dimension = dimension
        shapes = [(*each.shape[:dimension], 1, *each.shape[dimension + 1 :]) for each in tensors]
        self.forms = [
            Form(shape, bits(each).dtype, math.prod(shape) * each.itemsize)
            for shape, each in zip(shapes, tensors, strict=True)
        ]  # fmt: skip
        self.num_bytes = sum(form.num_bytes for form in self.forms)

    def taken(self, numbers: Sequence[int]) -> Iterator[torch.Tensor]:
        """Copies of the items' parts in each tensor."""
        if self.tensors:
            at = self._index(numbers)
            yield from (bits(tensor).index_select(self.dimension, at) for tensor in self.tensors)

    def put(self, parts: Iterable[torch.Tensor], numbers: Sequence[int]) -> None:
        """Copies parts, as `taken` returns them, to the items with these numbers."""
        if self.tensors:
            at = self._index(numbers)
            for tensor, moved in zip(self.tensors, parts, strict=True):
                bits(tensor).index_copy_(self.dimension, at, to_device(moved, tensor.device))

    def _index(self, numbers: Sequence[int]) -> torch.Tensor:
        return to_device(torch.tensor(numbers, dtype=torch.int64), self.tensors[0].device)

    def allocate_host(self, count: int) -> Items:
        """Allocates as many items of the same layout in host memory.

        Raises:
            MemoryError: there is not enough host memory.
        """
        found = []
        for tensor, form in zip(self.tensors, self.forms, strict=True):
            shape = list(form.shape)
            shape[self.dimension] = count
            try:
                found.append(torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda))
            except RuntimeError as error:  # raised by torch if host memory runs out
                wanted = f"{count * self.num_bytes / 2**30:.1f} GiB of host memory for --swap-space"
                raise MemoryError(f"{wanted} cannot be allocated") from error
        return Items(found, self.dimension)


class Copies(NamedTuple):
    """Copies of some blocks and states, as the parts of each tensor."""

    blocks: Iterable[torch.Tensor]
    states: Iterable[torch.Tensor]


class Movable:
    """The blocks of KV caches and, numbered after them, saved states; on the device or in host memory."""

    def __init__(self, blocks: Items, states: Items, num_blocks: int, device: torch.device) -> None:
        self.blocks, self.states, self._num_blocks, self.device = blocks, states, num_blocks, device

    def split(self, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """The numbers of blocks, and those of states among the states."""
        states = [number - self._num_blocks for number in numbers if number >= self._num_blocks]
        return [number for number in numbers if number < self._num_blocks], states

    def taken(self, numbers: Sequence[int]) -> Copies:
        """Copies in the same memory."""
        blocks, states = self.split(numbers)
        return Copies(self.blocks.taken(blocks) if blocks else (), self.states.taken(states) if states else ())

    def on_host(self, numbers: Sequence[int]) -> Copies:
        """Copies in host memory, in the order of the device's stream; see `to_host`."""
        found = self.taken(numbers)
        return Copies([to_host(each) for each in found.blocks], [to_host(each) for each in found.states])

    def put(self, copies: Copies, numbers: Sequence[int]) -> None:
        """Copies from any memory, without waiting for the device, to as many blocks and states as were copied."""
        blocks, states = self.split(numbers)
        if blocks:
            self.blocks.put(copies.blocks, blocks)
        if states:
            self.states.put(copies.states, states)

    def allocate_host(self, num_blocks: int, num_states: int) -> Movable:
        """Allocates a second tier in host memory.

        Raises:
            MemoryError: there is not enough host memory.
        """
        blocks, states = self.blocks.allocate_host(num_blocks), self.states.allocate_host(num_states)
        return Movable(blocks, states, num_blocks, torch.device("cpu"))

    def items_of(self, number: int) -> Items:
        """The items to which a number belongs."""
        return self.blocks if number < self._num_blocks else self.states
