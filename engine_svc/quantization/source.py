"""The tensors of a checkpoint, from which parameters load their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch


class TensorSlice(Protocol):
    """A tensor of a checkpoint of which only the indexed part is read, like slices of safetensors."""

    def get_shape(self) -> Sequence[int]:
        """Its shape."""
        ...

    def __getitem__(self, index: Any) -> torch.Tensor:
        """The part of it that `index` names."""
        ...


Tensors: TypeAlias = Iterator[tuple[str, TensorSlice]]


@dataclass(frozen=True)
class HeldTensor:
    """A TensorSlice of a tensor in memory, or of a memory-mapped file."""

    tensor: torch.Tensor

    def get_shape(self) -> Sequence[int]:
        """See TensorSlice."""
        return tuple(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See TensorSlice."""
        return self.tensor[index]
