"""Tensors of a checkpoint as methods see them before parameters take their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch


class TensorSlice(Protocol):
    """A tensor of a checkpoint that is read as far as it is indexed (safetensors' slices)."""

    def get_shape(self) -> Sequence[int]:
        """Its shape."""
        ...

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The part of it that `index` names."""
        ...


Tensors: TypeAlias = Iterator[tuple[str, TensorSlice]]


@dataclass(frozen=True)
class HeldTensor:
    """A TensorSlice that is in memory, or that the system pages in from a file as it is read."""

    tensor: torch.Tensor

    def get_shape(self) -> Sequence[int]:
        """See TensorSlice."""
        return tuple(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See TensorSlice."""
        return self.tensor[index]
